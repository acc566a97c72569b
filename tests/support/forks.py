"""Processes of tests, copied from one that has imported everything and started no thread: a tenth of the time.

with Forked(child.main, argv, name="r1") as process:
    process.wait()
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from multiprocessing import connection
from typing import Any, Final, Self

_CONTEXT: Final = multiprocessing.get_context("forkserver")
_PRELOADED: Final = ["__main__"]
_GUARD: Final = threading.Lock()  # multiprocessing asks after all children at each start: not two of us at once


def preload(module: str) -> None:
    """Have the server import a module before the first copy is made; to be called where a module is imported."""
    _PRELOADED.append(module)
    _CONTEXT.set_forkserver_preload(_PRELOADED)


class Forked:
    """A copy that runs one function; as much of subprocess.Popen as tests use."""

    def __init__(self, target: Callable[..., object], *args: Any, name: str | None = None) -> None:
        with _GUARD:
            self._process = _CONTEXT.Process(target=target, args=args, name=name, daemon=True)
            self._process.start()
        pid = self._process.pid
        if pid is None:
            raise AssertionError("it was started")
        self.pid = pid
        self.returncode: int | None = None  # known once poll or wait has seen the end

    def poll(self) -> int | None:
        """Its exit code; None while it runs; -9 after SIGKILL."""
        if self.returncode is None:
            with _GUARD:
                self.returncode = self._process.exitcode
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            connection.wait([self._process.sentinel], timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(str(self._process.name), timeout or 0)
        return code

    @property
    def sentinel(self) -> int:
        """A file handle that can be read once the process is dead."""
        return self._process.sentinel

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.wait()
        with _GUARD:
            self._process.close()
