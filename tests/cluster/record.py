"""What the clients saw, and what it says: pure, over the lines of their file and the rows of the database."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

Line = Mapping[str, Any]


def lines(text: str) -> list[Line]:
    """Whole lines; the last one may be cut."""
    return [json.loads(each) for each in text[: text.rfind("\n") + 1].splitlines()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    fault: str
    began: float
    over: float  # when all was well again


@dataclass(frozen=True, slots=True, kw_only=True)
class Toll:
    """What a round cost."""

    first_success: float  # seconds from its beginning to the end of the longest gap between two certificates
    requests: int
    failed: int
    orders_failed: int


def toll(seen: Sequence[Line], played: Round) -> Toll:
    """The gap may begin before the fault: it is counted from the fault on."""
    within = [each for each in seen if played.began <= each["at"] <= played.over]
    what = Counter(each["what"] for each in within)
    instants = [played.began, *(each["at"] for each in within if each["what"] == "certificate"), played.over]
    begin, end = max(pairwise(instants), key=lambda pair: pair[1] - pair[0])
    return Toll(
        first_success=end - max(begin, played.began),
        requests=what["request"] + what["request failed"],
        failed=what["request failed"],
        orders_failed=what["order failed"],
    )


def told(seen: Iterable[Line], what: str, key: str) -> list[str]:
    return [each[key] for each in seen if each["what"] == what]


def crl_faults(seen: Iterable[Line]) -> list[str]:
    """Lists that went back, or changed without a new number, as one who fetched all along saw them."""
    newest, faults = dict[str, tuple[int, str]](), list[str]()
    for each in seen:
        if each["what"] != "crl":
            continue
        url, now = each["url"], (each["number"], each["digest"])
        before = newest.get(url, now)
        if now[0] < before[0] or (now[0] == before[0] and now[1] != before[1]):
            faults.append(f"{url}: number {now[0]} after {before[0]}")
        newest[url] = now
    return faults
