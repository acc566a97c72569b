"""Who brings bad tokens again and again is not listened to for a while: it keeps logs short, and guessing slower."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final

ALLOWED: Final = 30  # bad tokens in a window
WINDOW: Final = 60.0  # seconds
MOST: Final = 10_000  # addresses that are remembered


class Throttle:
    """In memory: 256 random bits cannot be guessed, so nothing depends on all replicas counting together."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def failed(self, address: str) -> float:
        """Count one more; for how long they are too many, in seconds. A good token is let in whatever others bring."""
        since, failures = self._seen.pop(address, (_now(), 0))
        if _now() - since >= WINDOW:
            since, failures = _now(), 0
        self._seen[address] = (since, failures + 1)
        while len(self._seen) > MOST:
            self._seen.popitem(last=False)
        return max(1.0, since + WINDOW - _now()) if failures >= ALLOWED else 0.0


def _now() -> float:
    return asyncio.get_running_loop().time()
