"""`holdfast` as people run it, in a process of its own: its output, its errors, its exit code.

    done = holdfast("ca", "ls", env=environment(folder, {}))
    said = await typed(folder, "issue", "www.example.com", "--wait")

The process is a copy of one that has imported the product, which saves the half second of the imports. Where those are
what is tested, `fresh` starts an interpreter.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.support.forks import Forked, preload
from tests.support.postgres import place
from tests.support.reaper import PATIENCE

preload("tests.support.command_child")
COMMAND = (sys.executable, "-m", "holdfast.cli.main")


@dataclass
class Said:
    """What a command came to."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def holdfast(
    *args: object,
    env: Mapping[str, str],
    stdin: str = "",
    cwd: Path | None = None,
    merged: bool = False,  # stderr goes where stdout goes
    fresh: bool = False,  # an interpreter of its own: for what happens at its start
    timeout: float = PATIENCE,
) -> subprocess.CompletedProcess[str]:
    words = [str(each) for each in args]
    if fresh or any(name.startswith("PYTHON") and value != os.environ.get(name) for name, value in env.items()):
        return subprocess.run(
            [*COMMAND, *words], env=env, input=stdin, cwd=cwd, text=True, timeout=timeout, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT if merged else subprocess.PIPE,
        )  # fmt: skip
    with TemporaryDirectory(dir=place(in_memory=True)) as folder:
        given, out, err = (Path(folder, name) for name in ("stdin", "stdout", "stderr"))
        given.write_text(stdin, encoding="utf-8")
        for path in (out, err):
            path.touch()
        with started(words, env, given, out, out if merged else err, cwd=cwd) as process:
            code = process.wait(timeout)
        return subprocess.CompletedProcess(words, code, out.read_text("utf-8"), err.read_text("utf-8"))


def started(
    words: Sequence[str],
    env: Mapping[str, str],
    stdin: Path,
    stdout: Path,
    stderr: Path,
    *,
    cwd: Path | None = None,
    room: int | None = None,  # how many KiB a file may have, until the limit is raised
    open_files: int | None = None,  # how many may be open at once
) -> Forked:
    """A command that goes on while the test does; its output is added to these files, which exist."""
    return Forked(
        _run, list(words), dict(env), cwd or Path.cwd(), stdin, stdout, stderr, (room, open_files), name="holdfast"
    )


def _run(*given: Any) -> None:
    from tests.support import command_child  # imported in the server of copies, and not in the process of the tests

    command_child.main(*given)


async def typed(*args: object, env: Mapping[str, str], **more: Any) -> Said:
    """On a thread: the server that the command asks may live on this loop."""
    done = await asyncio.to_thread(holdfast, *args, env=env, **more)
    return Said(done.returncode, done.stdout, done.stderr)
