"""What a process remembers of its issuers between two calls: tokens, chains, policies, and searches for lost orders."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, MutableMapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias, TypeVar

from holdfast.core.reasons import Reason
from holdfast.errors import TryLater
from holdfast.ports import Clock

# ── Values ──
# What a process keeps of its CAs between two calls: tokens, chains, policies. Losing it costs a request or two.


T = TypeVar("T")
IssuerMemory: TypeAlias = MutableMapping[str, Any]  # of one issuer in this process, by name

_MOST_VALUES: Final = 256


@dataclass(slots=True)
class _Entry:
    fetching: asyncio.Lock = field(default_factory=asyncio.Lock)
    value: Any = None
    fetched_at: float | None = None


class Remembered:
    """Values with an age. Of many callers that want one at once, the first fetches it and the others wait."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()

    async def kept(self, name: Hashable, fetch: Callable[[], Awaitable[T]], for_s: float) -> T:
        """The value of this name, fetched anew once it is older than that."""
        entry = self._entries.setdefault(name, _Entry())
        self._entries.move_to_end(name)
        while len(self._entries) > _MOST_VALUES:
            self._entries.popitem(last=False)
        async with entry.fetching:
            if entry.fetched_at is None or self._clock.monotonic() - entry.fetched_at > for_s:
                entry.value = await fetch()
                entry.fetched_at = self._clock.monotonic()
            return entry.value  # type: ignore[no-any-return]

    def forget(self, name: Hashable, value: object) -> None:
        """Drop a value that turned out to be of no use, unless a newer one was fetched meanwhile."""
        entry = self._entries.get(name)
        if entry is not None and entry.value is value:
            entry.fetched_at = None


# ── Searches ──
# Looking for an order among many: so many details in one claim, and what was ruled out is not looked at again.


_MOST_SEARCHES: Final = 64  # searches that a process remembers, of one CA
_GOES_ON_AFTER: Final = timedelta(seconds=5)


@dataclass(slots=True)
class Search:
    """The search for one issuance's order, over as many claims as it takes; a process that forgot it begins again."""

    ruled_out: set[Any] = field(default_factory=set)
    unclear: bool = False  # among them one that may be ours after all, and does not show it
    cursor: Any = None  # where a list goes on
    since: datetime | None = None  # entries before it were read to the end
    left: int = 0  # requests in this claim

    def spend(self, ca: str) -> None:
        """Before each request. TryLater, once this claim has made all that it paid for: the next one goes on."""
        if self.left <= 0:
            why = f"{ca} has much to look through for our order; it is looked for further on."
            raise TryLater(why, after=_GOES_ON_AFTER, reason=Reason.UNDER_WAY)
        self.left -= 1


def resumed(memory: IssuerMemory, issuance: str, most: int) -> Search:
    """The search of this issuance, with so many requests to spend in this claim."""
    searches: OrderedDict[str, Search] = memory.setdefault("searches", OrderedDict())
    found = searches.setdefault(issuance, Search())
    searches.move_to_end(issuance)
    while len(searches) > _MOST_SEARCHES:
        searches.popitem(last=False)
    found.left = most
    return found
