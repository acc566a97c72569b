"""The filter line of the certificates: tokens such as state:retrying owner:payments expires:<14d, and plain text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode

KEYS: Final = ("state", "owner", "issuer", "expires", "label", "sort")
STANDINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "to-approve": ("awaiting_approval",),
    "issuing": ("pending",),
    "needs-me": ("expired", "failing", "revoked", "not-served", "retrying", "awaiting_approval", "paused"),
}
_PLAIN: Final = frozenset(
    {
        "expired",
        "failing",
        "revoked",
        "not-served",
        "retrying",
        "waiting",
        "paused",
        "due",
        "renewing",
        "ok",
        "archived",
    }
)
SORTS: Final = {"safe-until": "expires", "expires": "expires", "name": "name"}
_SPAN: Final = re.compile(r"<(\d{1,5})([hdw])")
_UNITS: Final = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A filter line as it was read; `wrong` has a sentence for each token that means nothing."""

    text: str
    tokens: tuple[tuple[str, str], ...] = ()
    words: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)  # of certificates.list
    wrong: tuple[str, ...] = ()

    def without(self, token: tuple[str, str]) -> str:
        rest = [f"{key}:{value}" for key, value in self.tokens if (key, value) != token]
        return urlencode({"q": " ".join([*rest, self.words]).strip()})

    @property
    def sort(self) -> str:
        return dict(self.tokens).get("sort", "safe-until")


def read(text: str, now: datetime) -> Asked:
    tokens, words = list[tuple[str, str]](), list[str]()
    for part in text.split()[:30]:
        key, colon, value = part.partition(":")
        if colon and key in KEYS and value:
            tokens.append((key, value))
        else:
            words.append(part)
    fields: dict[str, Any] = {"sort": "expires"}
    wrong = [said for token in tokens if (said := _read(token, fields, now))]
    if words:
        fields["q"] = " ".join(words)
    return Asked(text=text, tokens=tuple(tokens), words=" ".join(words), fields=fields, wrong=tuple(wrong))


def _read(token: tuple[str, str], fields: dict[str, Any], now: datetime) -> str:
    """Put a token into the fields of the list; return what is wrong with it."""
    key, value = token
    if key == "state":
        return _state(value, fields)
    if key == "sort":
        fields["sort"] = SORTS.get(value, "expires")
        return "" if value in SORTS else f"sort:{value} is unknown; there are {', '.join(SORTS)}."
    if key == "expires":
        return _expires(value, fields, now)
    if key == "owner" and value == "none":
        fields["unowned"] = True
    elif key == "label":
        fields.setdefault("label", []).append(value)
    else:
        fields[key] = value
    return ""


def _state(value: str, fields: dict[str, Any]) -> str:
    if value == "not-archived":
        return ""
    if value in STANDINGS:
        fields.setdefault("standing", []).extend(STANDINGS[value])
    elif value == "archived":
        fields["state"] = "archived"
    elif value in _PLAIN:
        fields.setdefault("standing", []).append(value)
    else:
        return f"state:{value} is unknown; there are {', '.join(sorted(_PLAIN | set(STANDINGS)))}."
    return ""


def _expires(value: str, fields: dict[str, Any], now: datetime) -> str:
    """<14d, or a day: those that expire by its end."""
    if found := _SPAN.fullmatch(value):
        fields["expires_before"] = _instant(now + int(found[1]) * _UNITS[found[2]])
        return ""
    try:
        day = datetime.strptime(value, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        return f"expires:{value} is no time; write expires:<14d or expires:2027-02-04."
    fields["expires_before"] = _instant(day + timedelta(days=1))
    return ""


def _instant(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
