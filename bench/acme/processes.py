"""Processes that the benchmark starts: they end with it, and what they cost is read from the kernel."""

import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tests.support.reaper import PROC, descendants, stat, until

from bench.acme.wire import unverified

TICKS = os.sysconf("SC_CLK_TCK")
START_S = 15.0
STOP_S = 5.0


def spawn(
    command: list[str], *, folder: Path, env: Mapping[str, str], log: IO[bytes] | None = None, fds: tuple[int, ...] = ()
) -> subprocess.Popen[bytes]:
    """Start a server in a folder of its own; it dies with us, even if we are killed."""
    with_us = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    return subprocess.Popen(
        [*with_us, *command],
        cwd=folder,
        env={"PATH": os.environ.get("PATH", os.defpath), "HOME": str(folder), **env},
        stdin=subprocess.DEVNULL,
        stdout=log or subprocess.DEVNULL,
        stderr=log or subprocess.DEVNULL,
        pass_fds=fds,
    )


@contextmanager
def running(process: subprocess.Popen[bytes], url: str, *, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """Wait until the URL answers; end the process afterwards."""
    try:
        until(lambda: _answers(process, url, name), f"{name} to answer", seconds=START_S, every=0.02)
        yield process
    finally:
        end(process)


def _answers(process: subprocess.Popen[bytes], url: str, name: str) -> bool:
    if process.poll() is not None:
        raise OSError(f"{name} ended at its start, with {process.returncode}")
    try:
        return fetch(url) != ""
    except OSError:
        return False


def fetch(url: str) -> str:
    context = unverified() if url.startswith("https:") else None
    with urllib.request.urlopen(url, timeout=5, context=context) as answer:
        return str(answer.read().decode())


def end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def python(module: str, *words: str) -> subprocess.Popen[str]:
    """Start a part of this benchmark, which is talked to by lines."""
    command = [sys.executable, "-m", module, *words]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)


def tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def dismiss(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def machine_seconds() -> float:
    """What the whole machine has used so far; time that it waited, or was not given, is not use (proc(5))."""
    user, nice, system, _idle, _iowait, irq, softirq = map(int, (PROC / "stat").read_text().split()[1:8])
    return (user + nice + system + irq + softirq) / TICKS


def cpu_seconds(pid: int) -> float:
    """What a process, its threads and its descendants have used so far, those included that ended meanwhile."""
    return sum(sum(map(int, fields[11:15])) for each in (pid, *descendants(pid)) if (fields := stat(each))) / TICKS
