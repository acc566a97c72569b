"""One run of `holdfast` in a copy of a process that has imported the whole product: see commands.py."""

import os
import pkgutil
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import holdfast
from holdfast.cli import main as cli

for _module in pkgutil.walk_packages(holdfast.__path__, "holdfast."):
    if not _module.name.endswith(".__main__"):
        with suppress(ImportError):  # what needs a library that is not installed says so when it is used
            import_module(_module.name)


def main(
    argv: Sequence[str],
    env: Mapping[str, str],
    folder: Path,
    stdin: Path,
    stdout: Path,
    stderr: Path,
    limits: tuple[int | None, int | None],
) -> None:
    """With nothing left of the process that was copied: its environment, folder, streams and arguments are replaced."""
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    os.chdir(folder)
    for number, path in enumerate((stdin, stdout, stderr)):
        flags = os.O_WRONLY | os.O_APPEND if number else os.O_RDONLY
        handle = os.open(path, flags)
        os.dup2(handle, number)
        os.close(handle)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False, buffering=1)
    sys.argv = ["holdfast", *argv]
    room, open_files = limits
    if room is not None:
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room * 1024, most))
    if open_files is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))
    try:
        cli.main()
    except Exception:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        sys.exit(1)
