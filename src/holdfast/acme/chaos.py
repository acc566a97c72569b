"""Refuses good nonces on purpose, to try clients out: a share of requests at their first try, and never twice in a row.

Several clients try again only once; what is to be seen is whether they do, not how often.
"""

from __future__ import annotations

from typing import Final

from holdfast.ports import Random

MOST: Final = 10_000  # requests remembered as refused; beyond that, nothing is refused


class Chaos:
    def __init__(self, percent: int) -> None:
        self._percent = percent
        self._refused: set[tuple[str, str]] = set()

    def refuses(self, key: str, url: str, random: Random) -> bool:
        """Whether this request of this key is to be refused now."""
        if not self._percent:
            return False
        if (key, url) in self._refused:
            self._refused.discard((key, url))
            return False
        if len(self._refused) >= MOST or random.uniform(0, 100) >= self._percent:
            return False
        self._refused.add((key, url))
        return True
