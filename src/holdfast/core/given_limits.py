"""What an operator writes as the limits of a CA, looked at before it is believed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from holdfast.core.ca_limits import BY_KEY

_COUNTS: Final = ("max_names", "answers")
_MOST: Final = 10**9


def problem_with(given: object) -> str | None:
    """What is wrong with the setting `limits`, with the name of the limit; None if nothing is."""
    if given is None:
        return None
    if not isinstance(given, Mapping):
        return f"limits is {given!r:.40}, and must be a table"
    if unknown := sorted(set(map(str, given)) - {*BY_KEY, *_COUNTS}):
        return f"there is no limit {unknown[0]!r:.40}; there are {', '.join((*BY_KEY, *_COUNTS))}"
    for name in BY_KEY:
        if not _is_limit(given.get(name)):
            return f"{name} is {given[name]!r:.40}, and must be [burst, seconds for each further one], or null"
    for name in _COUNTS:
        if given.get(name) is not None and not _is_count(given[name]):
            return f"{name} is {given[name]!r:.40}, and must be a whole number from 1 on"
    return None


def _is_limit(value: object) -> bool:
    if value is None:
        return True
    if not isinstance(value, list | tuple) or len(value) != 2:
        return False
    burst, every = value
    return _is_count(burst) and isinstance(every, int | float) and not isinstance(every, bool) and 0 < every <= _MOST


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MOST
