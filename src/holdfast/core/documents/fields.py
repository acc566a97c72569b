"""The keys of a certificate in a document: how each is read, checked, written, and described to editors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from holdfast.core import durations
from holdfast.core.certificate import (
    DEFAULTS,
    FIELDS,
    CertificateSpec,
    Field,
    FieldKind,
    RenewalPolicy,
)
from holdfast.core.windows import DAYS, UTC_NAME, MaintenanceWindow

_TIME: Final = re.compile(r"([01][0-9]|2[0-4]):([0-5][0-9])")
_WORD: Final = re.compile(r"[^\x00-\x20\x7f]{1,253}")
_LABEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}")
_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9._:/@+-]{0,63}")


class Bad(Exception):
    """The error of a value; `below` is the place in it, such as "[2]" or ".days"."""

    def __init__(self, problem: str, below: str = "") -> None:
        super().__init__(problem)
        self.below = below


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """How a field differs, as a document says it."""

    field: str
    was: Any
    will_be: Any


def path_of(where: str, at: int) -> str:
    return f"{where}[{at}]"


# ── Reading ──


def _text(field: Field, value: object) -> str:
    if not isinstance(value, str):
        raise Bad(f"This is text: write it in quotes. {field.problem}")
    if not re.fullmatch(field.pattern, value):
        raise Bad(field.problem)
    return value


def _names(field: Field, value: object) -> tuple[str, ...]:
    return _words(value, field.most, "DNS names and addresses")


def _issuers(field: Field, value: object) -> tuple[str, ...]:
    found = _words(value, field.most, "CAs, by their names here")
    twice = next((at for at, each in enumerate(found) if each in found[:at]), None)
    if twice is not None:
        raise Bad("This is in the list already.", f"[{twice}]")
    return found


def _words(value: object, most: int, what: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= most:
        raise Bad(f"This is a list of 1 to {most} {what}.")
    for at, each in enumerate(value):
        if not isinstance(each, str) or not _WORD.fullmatch(each):
            raise Bad("This is text without spaces: write it in quotes.", f"[{at}]")
    return tuple(value)


def _targets(field: Field, value: object) -> tuple[str, ...]:
    found = () if value == [] else _words(value, field.most, field.key)
    if len(set(found)) < len(found):
        raise Bad("One of them is in the list twice.")
    return found


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise Bad("This is true or false.")
    return value


def _choice(field: Field, value: object) -> str:
    if value not in field.members:
        raise Bad(f"This is one of {', '.join(field.members)}.")
    return str(value)


def _span(value: object) -> timedelta:
    try:
        return durations.parse(value if isinstance(value, str) else "")
    except ValueError:
        raise Bad("This is a duration, such as 90d, 12h or 30m.") from None
    except OverflowError:
        raise Bad("This is longer than anything lasts.") from None


def _duration(field: Field, value: object) -> timedelta:
    span = _span(value)
    if field.between is not None and not field.between[0] <= span <= field.between[1]:
        raise Bad(field.problem)
    return span


def _labels(field: Field, value: object) -> dict[str, str]:
    if not isinstance(value, Mapping) or len(value) > field.most:
        raise Bad(f"These are at most {field.most} labels, each a name and a text.")
    for name, each in value.items():
        if not isinstance(name, str) or not _LABEL.fullmatch(name):
            raise Bad("The name of a label is made of letters, digits and . _ / -", f".{name!s:.63}")
        if not isinstance(each, str):
            raise Bad("The value of a label is text: write it in quotes.", f".{name}")
        if not _LABEL_VALUE.fullmatch(each):
            raise Bad("The value of a label is made of at most 63 letters, digits and . _ : / @ + -", f".{name}")
    return dict(value)


def _rule(value: object) -> RenewalPolicy:
    if not isinstance(value, Mapping) or set(value) - {"fraction", "before", "ari"}:
        raise Bad("This is a mapping with 'fraction', or 'before', and 'ari'.")
    fraction = value.get("fraction")
    if fraction is not None and (isinstance(fraction, bool) or not isinstance(fraction, int | float)):
        raise Bad("This is a number between 0.1 and 0.95.", ".fraction")
    before = None if value.get("before") is None else _span(value["before"])
    try:
        return RenewalPolicy(
            fraction=None if fraction is None else float(fraction), before=before, ari=_flag(value.get("ari", True))
        )
    except ValueError as error:
        raise Bad(f"This cannot be: {error}.") from None


def _windows(field: Field, value: object) -> tuple[MaintenanceWindow, ...]:
    if not isinstance(value, list) or len(value) > field.most:
        raise Bad(f"This is a list of at most {field.most} windows.")
    return tuple(_window(each, f"[{at}]") for at, each in enumerate(value))


def _window(value: object, below: str) -> MaintenanceWindow:
    if not isinstance(value, Mapping) or set(value) - {"days", "opens", "closes", "zone"}:
        raise Bad("A window is a mapping with 'days', 'opens', 'closes' and 'zone', such as Europe/Berlin.", below)
    days = value.get("days", list(DAYS))
    if not isinstance(days, list) or not days or set(map(str, days)) - set(DAYS):
        raise Bad(f"This is a list of days: {', '.join(DAYS)}.", f"{below}.days")
    opens, closes = (_minute(value.get(name, usual), f"{below}.{name}") for name, usual in _ALL_DAY)
    try:
        zone = str(value.get("zone", UTC_NAME))
        return MaintenanceWindow(days=frozenset(map(DAYS.index, days)), opens=opens, closes=closes, zone=zone)
    except ValueError as error:
        raise Bad(f"This cannot be: {error}.", below) from None


_ALL_DAY: Final = (("opens", "00:00"), ("closes", "24:00"))


def _minute(value: object, below: str) -> int:
    match = _TIME.fullmatch(value) if isinstance(value, str) else None
    if match is None or int(match[1]) * 60 + int(match[2]) > 24 * 60:
        raise Bad('This is a time of day in quotes, such as "22:30".', below)
    return int(match[1]) * 60 + int(match[2])


# ── Writing ──


def _write_span(span: timedelta | None) -> str | None:
    return None if span is None else durations.brief(span)


def _write_rule(rule: RenewalPolicy) -> dict[str, object]:
    written: dict[str, object] = {}
    if rule.fraction is not None:
        written["fraction"] = rule.fraction
    if rule.before is not None:
        written["before"] = _write_span(rule.before)
    return written if rule.ari else {**written, "ari": False}


def _write_windows(windows: tuple[MaintenanceWindow, ...]) -> list[dict[str, object]]:
    return [
        {
            **({} if len(each.days) == 7 else {"days": [DAYS[day] for day in sorted(each.days)]}),
            "opens": _clock(each.opens),
            "closes": _clock(each.closes),
            **({} if each.zone == UTC_NAME else {"zone": each.zone}),
        }
        for each in windows
    ]


def _clock(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"


# ── For editors ──

_SPAN_SCHEMA: Final = {"type": "string", "pattern": f"^{durations.PATTERN}$"}
_TIME_SCHEMA: Final = {"type": "string", "pattern": "^([01][0-9]|2[0-4]):[0-5][0-9]$"}
LABELS_SCHEMA: Final = {
    "type": "object",
    "maxProperties": next(each.most for each in FIELDS if each.kind is FieldKind.LABELS),
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
        "days": {"type": "array", "items": {"enum": list(DAYS)}, "minItems": 1},
        "opens": _TIME_SCHEMA,
        "closes": _TIME_SCHEMA,
        "zone": {"type": "string", "default": UTC_NAME, "description": "The time zone, such as Europe/Berlin."},
    },
}
_WORDS: Final = {"type": "string", "minLength": 1, "maxLength": 253}


def _array(field: Field) -> dict[str, object]:
    return {"type": "array", "items": _WORDS, "minItems": 1, "maxItems": field.most}


def schema_of(field: Field) -> dict[str, object]:
    said = {"description": field.help} if field.help else {}
    return {**_KINDS[field.kind].schema(field), **said}


# ── Each kind of value, and the keys of a document ──


@dataclass(frozen=True, slots=True)
class _Kind:
    read: Callable[[Field, Any], Any]
    write: Callable[[Any], Any]
    schema: Callable[[Field], Mapping[str, Any]]


def _text_schema(field: Field) -> Mapping[str, object]:
    return _WORDS if field.pattern.endswith("{1,253}") else {"type": "string", "pattern": f"^{field.pattern}$"}


_KINDS: Final[Mapping[FieldKind, _Kind]] = {
    FieldKind.TEXT: _Kind(_text, lambda value: value, _text_schema),
    FieldKind.NAMES: _Kind(_names, lambda value: [each.value for each in value], _array),
    FieldKind.ISSUERS: _Kind(_issuers, list, _array),
    FieldKind.TARGETS: _Kind(_targets, list, lambda field: {**_array(field), "minItems": 0}),
    FieldKind.CHOICE: _Kind(
        _choice, str, lambda field: {"enum": list(field.members), "default": DEFAULTS[field.attribute]}
    ),
    FieldKind.FLAG: _Kind(lambda field, value: _flag(value), bool, lambda field: {"type": "boolean", "default": False}),
    FieldKind.DURATION: _Kind(_duration, _write_span, lambda field: _SPAN_SCHEMA),
    FieldKind.RENEWAL: _Kind(lambda field, value: _rule(value), _write_rule, lambda field: _RULE_SCHEMA),
    FieldKind.WINDOWS: _Kind(
        _windows, _write_windows, lambda field: {"type": "array", "items": _WINDOW_SCHEMA, "maxItems": field.most}
    ),
    FieldKind.LABELS: _Kind(_labels, dict, lambda field: LABELS_SCHEMA),
}
# Of a certificate that is there a document may also say that it is paused, which is no wish of its owner but its state.
PAUSED: Final = Field(key="paused", kind=FieldKind.FLAG, defaults=False)
KEYS: Final[Mapping[str, Field]] = {each.key: each for each in (*FIELDS, PAUSED)}
NO_DEFAULT: Final = frozenset(each.key for each in KEYS.values() if not each.defaults)


def read_field(name: str, value: object) -> object:
    """Bad carries the error of a value."""
    return read_by(KEYS[name], value)


def read_by(field: Field, value: object) -> Any:
    return _KINDS[field.kind].read(field, value)


def written_as(field: Field, value: object) -> object:
    """A value of a field as a document says it."""
    return _KINDS[field.kind].write(value)


def in_full(spec: CertificateSpec) -> dict[str, object]:
    """All that an owner asks for, as a document would say it."""
    return {each.key: written_as(each, getattr(spec, each.attribute)) for each in FIELDS}
