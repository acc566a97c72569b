"""Looking for an order among many: so many details in one claim, and what was ruled out is not looked at again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from holdfast.core.reasons import Reason
from holdfast.errors import TryLater

_MOST: Final = 64  # searches that a process remembers, of one CA
_GOES_ON_AFTER: Final = timedelta(seconds=5)


@dataclass(slots=True)
class Search:
    """One look-up of one attempt, over as many claims as it takes; who has forgotten it begins again."""

    ruled_out: set[Any] = field(default_factory=set)
    unclear: bool = False  # among them one that may be ours after all, and does not show it
    cursor: Any = None  # where a list goes on
    since: datetime | None = None  # what is older was read to its end
    left: int = 0  # requests in this claim

    def spend(self, ca: str) -> None:
        """Before each request. TryLater, once this claim has made all that it paid for: the next one goes on."""
        if self.left <= 0:
            why = f"{ca} has much to look through for our order; it is looked for further on."
            raise TryLater(why, after=_GOES_ON_AFTER, reason=Reason.UNDER_WAY)
        self.left -= 1


def resumed(memory: MutableMapping[str, Any], issuance: str, most: int) -> Search:
    """The search of this attempt, with so many requests to spend in this claim."""
    searches: OrderedDict[str, Search] = memory.setdefault("searches", OrderedDict())
    found = searches.setdefault(issuance, Search())
    searches.move_to_end(issuance)
    while len(searches) > _MOST:
        searches.popitem(last=False)
    found.left = most
    return found
