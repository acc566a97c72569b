"""Work that would hold up the event loop, on a thread: RSA keys, signatures in a device, very large CRLs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
Check = Callable[[], None]  # called again and again by work that can be stopped; raises when it is to stop


async def aside(work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a plain function on a thread. It cannot be interrupted: a caller that gives up leaves it running."""
    return await asyncio.to_thread(work, *args, **kwargs)


class Aside(Protocol):
    """Runs a plain function on a thread, until the caller gives up."""

    def __call__(self, work: Callable[[Check], R]) -> Awaitable[R]: ...


class _Stopped(Exception):
    """Nobody waits for the work any more."""


class OneThread:
    """A thread apart from those that `aside` uses, for one piece of work after the other."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def run(self, work: Callable[[Check], Any]) -> Any:
        """A caller that gives up goes on when the work has stopped, which it does where it next calls `check`."""
        stop = threading.Event()

        def check() -> None:
            if stop.is_set():
                raise _Stopped

        under_way = asyncio.get_running_loop().run_in_executor(self._pool, work, check)
        try:
            return await asyncio.shield(under_way)
        except asyncio.CancelledError:
            stop.set()
            await asyncio.wait([under_way])
            under_way.exception()
            raise
