"""An event loop whose time is a number: when nobody has anything to do, it jumps to the next thing planned."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

START: Final = datetime(2027, 3, 1, tzinfo=UTC)  # what calendars say when the loop's time is 0


class _NoWaiting(selectors.BaseSelector):
    """There is no outside world to wait for: waiting is adding to the clock."""

    def __init__(self) -> None:
        self.time = 0.0
        self._files: dict[Any, selectors.SelectorKey] = {}

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("every task waits for another: the simulation is stuck")
        self.time += max(0.0, timeout)
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = selectors.SelectorKey(fileobj, fileobj if isinstance(fileobj, int) else fileobj.fileno(), events, data)
        self._files[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._files.pop(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._files


class VirtualLoop(asyncio.SelectorEventLoop):
    """asyncio as it is, with virtual time. Callbacks run in the order they were made: the same seed, the same run."""

    def __init__(self) -> None:
        self._still = _NoWaiting()
        super().__init__(self._still)
        # After half a year a float counts in steps above a nanosecond: a timer would be "not yet due" for ever.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self._still.time
