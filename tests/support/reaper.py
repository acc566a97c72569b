"""Clean up after ourselves even when we are killed: a small process that outlives its owner and sweeps.

The owner holds one end of a pipe. When that closes, for whatever reason (close(), an exception, SIGKILL),
the reaper kills the PostgreSQL in the owner's folders, with all its descendants, and removes the folders. It
is the only thing here that removes them, so it is tried in every test run, not only in the bad ones.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Final

PROC = Path("/proc")
PATIENCE: Final = 120.0  # seconds; what is used up by a test that hangs, never by one that passes on a slow machine


def until(condition: Callable[[], object], what: str, *, seconds: float = PATIENCE, every: float = 0.01) -> None:
    """Wait for a condition; give up loudly."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"gave up after {seconds:g} s waiting for {what}")
        time.sleep(every)


def stat(pid: int) -> list[str]:
    """Return a process's fields from the third on (proc(5)): state, parent, …; nothing if there is none."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def state(pid: int) -> str:
    """Return T for stopped, Z for dead but not yet buried, '' for gone, and so on."""
    fields = stat(pid)
    return fields[0] if fields else ""


def descendants(pid: int) -> list[int]:
    """Return the process's children and their children, living ones only."""
    children: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdecimal() and (fields := stat(int(entry.name))) and fields[0] not in "ZX":
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = list(children.get(pid, ()))
    for child in found:  # grows while we walk it
        found += children.get(child, ())
    return found


def freeze(pid: int) -> list[int]:
    """Stop a process, then all its descendants; return them, it first. Frozen, it cannot start new ones."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: state(pid) in ("T", "Z", ""), f"process {pid} to stop")
    below = descendants(pid)
    for each in below:
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGSTOP)
    until(lambda: all(state(each) in ("T", "Z", "") for each in below), f"the children of {pid} to stop")
    return [pid, *below]


def kill_family(pid: int) -> None:
    """SIGKILL a process and its descendants, and wait until they hold nothing any more."""
    try:
        family = freeze(pid)
    except ProcessLookupError:
        return
    for each in family:
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
    until(lambda: all(state(each) in ("Z", "") for each in family), f"the family of {pid} to die")


def working_on(data: Path) -> list[int]:
    """Return the processes that were started with -D and this folder, whose name is ours alone."""
    found = []
    for entry in PROC.iterdir():
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdecimal() else []
            if (b"-D", os.fsencode(data)) in pairwise(words):
                found.append(int(entry.name))
    return found


def free_shared_memory(data: Path) -> None:
    """Free the System V segment that a killed PostgreSQL leaves behind; nothing else would."""
    pid_file = data / "postmaster.pid"  # gone after an orderly stop
    try:
        shmid = int(pid_file.read_text().splitlines()[6].split()[1])
        owner = pid_file.stat().st_uid
    except (OSError, ValueError, IndexError):
        return
    import ctypes  # seldom needed, and slow to load

    with suppress(OSError):
        os.seteuid(owner)  # in a container root may lack the right; the segment's owner has it
    ctypes.CDLL(None).shmctl(shmid, 0, None)  # 0 is IPC_RMID
    os.seteuid(os.getuid())


class Reaper:
    """Removes these folders, and kills the PostgreSQL whose data is in them, once we close it or die."""

    def __init__(self, *folders: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, *map(str, folders)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,  # Control-C is for the owner
        )

    def close(self) -> None:
        """Have it all done now; return when it is."""
        if self._process.stdin:
            self._process.stdin.close()
        self._process.wait(PATIENCE)


def main(folders: Sequence[str]) -> None:
    """Wait for the owner's end, then clean up."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)  # when everybody is told to go, the one who sweeps goes last
    sys.stdin.read()
    for folder in map(Path, folders):
        for pid in working_on(folder / "data"):
            kill_family(pid)
        free_shared_memory(folder / "data")
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
