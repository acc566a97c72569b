"""Work that would hold up the event loop, on a thread: RSA keys, signatures in a device, very large CRLs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


async def aside(work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a plain function on a thread. It cannot be interrupted: a caller that gives up leaves it running."""
    return await asyncio.to_thread(work, *args, **kwargs)
