"""What a process keeps of its CAs between two calls: tokens, chains, policies. Losing it costs a request or two."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from holdfast.ports import Clock

T = TypeVar("T")

_MOST: Final = 256


@dataclass(slots=True)
class _Entry:
    fetching: asyncio.Lock = field(default_factory=asyncio.Lock)
    value: Any = None
    fetched_at: float | None = None


class Remembered:
    """Values with an age. Of many who want the same one at once, the first fetches it and all others wait."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()

    async def kept(self, name: Hashable, fetch: Callable[[], Awaitable[T]], for_s: float) -> T:
        """The value of this name, fetched anew once it is older than that."""
        entry = self._entries.setdefault(name, _Entry())
        self._entries.move_to_end(name)
        while len(self._entries) > _MOST:
            self._entries.popitem(last=False)
        async with entry.fetching:
            if entry.fetched_at is None or self._clock.monotonic() - entry.fetched_at > for_s:
                entry.value = await fetch()
                entry.fetched_at = self._clock.monotonic()
            return entry.value  # type: ignore[no-any-return]

    def forget(self, name: Hashable, value: object) -> None:
        """It turned out to be of no use; one that was fetched meanwhile stays."""
        entry = self._entries.get(name)
        if entry is not None and entry.value is value:
            entry.fetched_at = None
