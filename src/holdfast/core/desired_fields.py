"""The keys of a certificate in a document: how each is read, checked, written, and described to editors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from holdfast.core.certificate import MAX_NAMES, Rule, Window

KEY_KINDS: Final = ("ec-p256", "ec-p384", "rsa-2048", "rsa-3072", "rsa-4096", "ed25519")
_DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_UNITS: Final = {"s": timedelta(seconds=1), "m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}
_SPAN: Final = re.compile(r"([0-9]{1,11})(?:\.([0-9]{1,6}))?(s|m|h|d)")
_TIME: Final = re.compile(r"([01][0-9]|2[0-4]):([0-5][0-9])")
_WORD: Final = re.compile(r"[^\x00-\x20\x7f]{1,253}")
_LINE: Final = re.compile(r"[^\x00-\x1f\x7f]{1,253}")
_LABEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}")
_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9._:/@+-]{0,63}")
_OWNER: Final = re.compile(r"[A-Za-z0-9._:/@+-]{0,100}")
_MOST_LABELS, _MOST_WINDOWS, _MOST_CAS = 32, 50, 10
_LIFE: Final = (timedelta(minutes=5), timedelta(seconds=10**10))


class Bad(Exception):
    """What is wrong with a value; `below` is where in it, such as "[2]" or ".days"."""

    def __init__(self, problem: str, below: str = "") -> None:
        super().__init__(problem)
        self.below = below


def path_of(where: str, at: int) -> str:
    return f"{where}[{at}]"


# ── Reading ──


def _text(pattern: re.Pattern[str], problem: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if not isinstance(value, str):
            raise Bad(f"This is text: write it in quotes. {problem}")
        if not pattern.fullmatch(value):
            raise Bad(problem)
        return value

    return read


def _texts(most: int, what: str) -> Callable[[Any], tuple[str, ...]]:
    def read(value: Any) -> tuple[str, ...]:
        if not isinstance(value, list) or not 1 <= len(value) <= most:
            raise Bad(f"This is a list of 1 to {most} {what}.")
        for at, each in enumerate(value):
            if not isinstance(each, str) or not _WORD.fullmatch(each):
                raise Bad("This is text without spaces: write it in quotes.", f"[{at}]")
        return tuple(value)

    return read


def _once_each(read: Callable[[Any], tuple[str, ...]]) -> Callable[[Any], tuple[str, ...]]:
    def read_once(value: Any) -> tuple[str, ...]:
        found = read(value)
        twice = next((at for at, each in enumerate(found) if each in found[:at]), None)
        if twice is not None:
            raise Bad("This is in the list already.", f"[{twice}]")
        return found

    return read_once


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Bad("This is true or false.")
    return value


def _choice(value: Any) -> str:
    if value not in KEY_KINDS:
        raise Bad(f"This is one of {', '.join(KEY_KINDS)}.")
    return str(value)


def _span(value: Any) -> timedelta:
    match = _SPAN.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise Bad("This is a duration, such as 90d, 12h or 30m.")
    try:
        unit, millionths = _UNITS[match[3]], int((match[2] or "").ljust(6, "0"))
        return int(match[1]) * unit + millionths * unit / 10**6  # exact, as floats would not be
    except OverflowError:
        raise Bad("This is longer than anything lasts.") from None


def _lifetime(value: Any) -> timedelta:
    span = _span(value)
    if not _LIFE[0] <= span <= _LIFE[1]:
        raise Bad("A certificate lives from 5 minutes to three centuries.")
    return span


def _labels(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping) or len(value) > _MOST_LABELS:
        raise Bad(f"These are at most {_MOST_LABELS} labels, each a name and a text.")
    for name, each in value.items():
        if not isinstance(name, str) or not _LABEL.fullmatch(name):
            raise Bad("The name of a label is made of letters, digits and . _ / -", f".{name!s:.63}")
        if not isinstance(each, str):
            raise Bad("The value of a label is text: write it in quotes.", f".{name}")
        if not _LABEL_VALUE.fullmatch(each):
            raise Bad("The value of a label is made of at most 63 letters, digits and . _ : / @ + -", f".{name}")
    return dict(value)


def _rule(value: Any) -> Rule:
    if not isinstance(value, Mapping) or set(value) - {"fraction", "before", "ari"}:
        raise Bad("This is a mapping with 'fraction', or 'before', and 'ari'.")
    fraction = value.get("fraction")
    if fraction is not None and (isinstance(fraction, bool) or not isinstance(fraction, int | float)):
        raise Bad("This is a number between 0.1 and 0.95.", ".fraction")
    before = None if value.get("before") is None else _span(value["before"])
    try:
        return Rule(
            fraction=None if fraction is None else float(fraction), before=before, ari=_flag(value.get("ari", True))
        )
    except ValueError as error:
        raise Bad(f"This cannot be: {error}.") from None


def _windows(value: Any) -> tuple[Window, ...]:
    if not isinstance(value, list) or len(value) > _MOST_WINDOWS:
        raise Bad(f"This is a list of at most {_MOST_WINDOWS} windows.")
    return tuple(_window(each, f"[{at}]") for at, each in enumerate(value))


def _window(value: Any, below: str) -> Window:
    if not isinstance(value, Mapping) or set(value) - {"days", "opens", "closes"}:
        raise Bad("A window is a mapping with 'days', 'opens' and 'closes', in UTC.", below)
    days = value.get("days", list(_DAYS))
    if not isinstance(days, list) or not days or set(map(str, days)) - set(_DAYS):
        raise Bad(f"This is a list of days: {', '.join(_DAYS)}.", f"{below}.days")
    opens, closes = (_minute(value.get(name, usual), f"{below}.{name}") for name, usual in _ALL_DAY)
    try:
        return Window(days=frozenset(map(_DAYS.index, days)), opens=opens, closes=closes)
    except ValueError as error:
        raise Bad(f"This cannot be: {error}.", below) from None


_ALL_DAY: Final = (("opens", "00:00"), ("closes", "24:00"))


def _minute(value: Any, below: str) -> int:
    match = _TIME.fullmatch(value) if isinstance(value, str) else None
    if match is None or int(match[1]) * 60 + int(match[2]) > 24 * 60:
        raise Bad('This is a time of day in quotes, such as "22:30".', below)
    return int(match[1]) * 60 + int(match[2])


# ── Writing ──


def _write_span(span: timedelta | None) -> str | None:
    if span is None:
        return None
    exact = (f"{span // size}{unit}" for unit, size in reversed(_UNITS.items()) if not span % size)
    micros = span // timedelta(microseconds=1)
    return next(exact, f"{micros // 10**6}.{micros % 10**6:06}".rstrip("0") + "s")


def _write_rule(rule: Rule) -> dict[str, Any]:
    written: dict[str, Any] = {}
    if rule.fraction is not None:
        written["fraction"] = rule.fraction
    if rule.before is not None:
        written["before"] = _write_span(rule.before)
    return written if rule.ari else {**written, "ari": False}


def _write_windows(windows: tuple[Window, ...]) -> list[dict[str, Any]]:
    return [
        {
            **({} if len(each.days) == 7 else {"days": [_DAYS[day] for day in sorted(each.days)]}),
            "opens": _clock(each.opens),
            "closes": _clock(each.closes),
        }
        for each in windows
    ]


def _clock(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"


# ── The table ──


@dataclass(frozen=True, slots=True)
class Field:
    wanted: str  # what Wanted calls it
    read: Callable[[Any], Any]
    write: Callable[[Any], Any] | None  # None: somebody else writes it
    schema: Mapping[str, Any]


_SPAN_SCHEMA: Final = {"type": "string", "pattern": f"^{_SPAN.pattern}$"}
_TIME_SCHEMA: Final = {"type": "string", "pattern": "^([01][0-9]|2[0-4]):[0-5][0-9]$"}
LABELS_SCHEMA: Final = {
    "type": "object",
    "maxProperties": _MOST_LABELS,
    "propertyNames": {"pattern": f"^{_LABEL.pattern}$"},
    "additionalProperties": {"type": "string", "pattern": f"^{_LABEL_VALUE.pattern}$"},
}
_RULE_SCHEMA: Final = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "fraction": {"type": "number", "minimum": 0.1, "maximum": 0.95, "description": "Of its life."},
        "before": {**_SPAN_SCHEMA, "description": "Or so long before its end."},
        "ari": {"type": "boolean", "default": True, "description": "Ask the CA when (RFC 9773)."},
    },
}
_WINDOW_SCHEMA: Final = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "days": {"type": "array", "items": {"enum": list(_DAYS)}, "minItems": 1},
        "opens": _TIME_SCHEMA,
        "closes": _TIME_SCHEMA,
    },
}
_WORDS: Final = {"type": "string", "minLength": 1, "maxLength": 253}


def _list(items: Mapping[str, Any], most: int, description: str) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1, "maxItems": most, "description": description}


NO_DEFAULT: Final = frozenset({"name", "names", "labels", "paused"})
FIELDS: Final[Mapping[str, Field]] = {
    "name": Field(
        "name",
        _text(_WORD, "A certificate's own name has 1 to 253 characters and no spaces."),
        str,
        {**_WORDS, "description": "Its own name here; the first of its names if left out."},
    ),
    "names": Field(
        "identifiers",
        _texts(MAX_NAMES, "DNS names and addresses"),
        None,
        _list(_WORDS, MAX_NAMES, "DNS names and addresses that it is for."),
    ),
    "issuers": Field(
        "issuers",
        _once_each(_texts(_MOST_CAS, "CAs, by their names here")),
        list,
        _list(_WORDS, _MOST_CAS, "CAs by their names here; the first is asked first."),
    ),
    "key": Field("key_kind", _choice, str, {"enum": list(KEY_KINDS), "default": "ec-p256"}),
    "profile": Field("profile", _text(_LINE, "A profile of the CA, by its name."), lambda value: value, _WORDS),
    "preferred_chain": Field(
        "preferred_chain",
        _text(_LINE, "The common name of a root."),
        lambda value: value,
        {**_WORDS, "description": "The common name of the root to prefer."},
    ),
    "lifetime": Field("lifetime", _lifetime, _write_span, {**_SPAN_SCHEMA, "description": "How long it is to live."}),
    "reuse_key": Field("reuse_key", _flag, bool, {"type": "boolean", "default": False}),
    "renewal": Field("rule", _rule, _write_rule, _RULE_SCHEMA),
    "windows": Field(
        "windows",
        _windows,
        _write_windows,
        {"type": "array", "items": _WINDOW_SCHEMA, "maxItems": _MOST_WINDOWS, "description": "In UTC."},
    ),
    "owner": Field(
        "owner",
        _text(_OWNER, "An owner is made of at most 100 letters, digits and . _ : / @ + -"),
        str,
        {"type": "string", "pattern": f"^{_OWNER.pattern}$"},
    ),
    "labels": Field("labels", _labels, dict, LABELS_SCHEMA),
    "approval_required": Field("approval_required", _flag, bool, {"type": "boolean", "default": False}),
    "paused": Field("paused", _flag, None, {"type": "boolean", "default": False}),
}


def read_field(name: str, value: Any) -> Any:
    """Bad says what is wrong with it."""
    return FIELDS[name].read(value)


def schema() -> dict[str, Any]:
    """For editors (JSON Schema, 2020-12): what may be written where, and what it means."""
    entry = {name: dict(each.schema) for name, each in FIELDS.items()}
    default = {name: each for name, each in entry.items() if name not in NO_DEFAULT}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "certificates.yaml of Holdfast",
        "type": "object",
        "additionalProperties": False,
        "required": ["certificates"],
        "properties": {
            "version": {"const": 1},
            "scope": {**LABELS_SCHEMA, "description": "The document speaks of certificates with these labels only."},
            "defaults": {
                "type": "array",
                "description": "What holds where an entry does not say; the last block that fits wins.",
                "items": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {"when": {**LABELS_SCHEMA, "description": "Labels to fit; none: always."}, **default},
                },
            },
            "certificates": {
                "type": "array",
                "items": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["names"],
                    "properties": entry,
                },
            },
        },
    }
