"""Maintenance windows as they are typed and shown: 'sat,sun 02:00-05:00', in UTC."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from holdfast.errors import Usage


class NotAWindow(Usage):
    code = "not-a-window"
    hint = "For example: --window 22:00-04:00, or --window 'sat,sun 02:00-05:00'; days are mon, tue, wed, thu, fri, …"


DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_WINDOW: Final = re.compile(r"(?:([a-z,]+) )?([01]\d|2[0-3]):([0-5]\d)-(?:([01]\d|2[0-3]):([0-5]\d)|(24):(00))")


def windows(given: Sequence[str] | None) -> dict[str, list[dict[str, Any]]]:
    """The windows instead of those before; an empty text is none at all."""
    return {} if given is None else {"windows": [window(each) for each in given if each]}


def window(text: str) -> dict[str, Any]:
    found = _WINDOW.fullmatch(text.strip().lower())
    days = list(DAYS) if found is None or found[1] is None else found[1].split(",")
    if found is None or not set(days) <= set(DAYS):
        raise NotAWindow(f"{text!r:.60} is no maintenance window.")
    opens, closes = (int(hour) * 60 + int(minute) for hour, minute in ((found[2], found[3]), _end(found)))
    return {"days": sorted(map(DAYS.index, set(days))), "opens": opens, "closes": closes or 1440}


def _end(found: re.Match[str]) -> tuple[str, str]:
    return (found[4] or found[6], found[5] or found[7])


def window_shown(row: Mapping[str, Any]) -> str:
    """As it is typed."""
    days = "" if len(row["days"]) == len(DAYS) else ",".join(DAYS[each] for each in row["days"]) + " "
    opens, closes = (f"{at // 60:02}:{at % 60:02}" for at in (row["opens"], row["closes"]))
    return f"{days}{opens}-{closes}"
