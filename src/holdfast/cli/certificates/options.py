"""The options of `issue` and `change`, made from the table of a certificate's fields, and the fields they set."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

import typer

from holdfast.cli import input_files
from holdfast.cli.durations import span
from holdfast.cli.everywhere import Row
from holdfast.cli.input_files import label as label_of
from holdfast.core.certificate import DEFAULTS, FIELDS, FILE, Field, FieldKind, FieldOption
from holdfast.core.windows import DAYS, UTC_NAME
from holdfast.errors import Usage

F = TypeVar("F", bound=Callable[..., None])
Given = Row  # by the name of the option: reuse_key for --reuse-key/--new-key
_SHORT: Final = {"--label": ["-l"]}
LONGEST_FILE: Final = 64 * 1024  # bytes
_SHARE: Final = "SHARE"  # the metavar of an option that is a part of a whole
_BOUNDS: Final = {"min": 0.1, "max": 0.95}  # of a share of a certificate's life


# ── From the table to options ──


def with_fields(command: str) -> Callable[[F], F]:
    """Give a function that takes `**said` one option for each field that the command can say something about."""

    def give(function: F) -> F:
        own = [each for each in inspect.signature(function, eval_str=True).parameters.values() if each.name != "said"]
        made = [_parameter(each, option) for each in FIELDS for option in each.options if command in option.commands]
        before = [each for each in own if each.kind is not inspect.Parameter.KEYWORD_ONLY]
        after = [each for each in own if each.kind is inspect.Parameter.KEYWORD_ONLY]
        function.__signature__ = inspect.Signature([*before, *made, *after])  # type: ignore[attr-defined]
        return function

    return give


def _parameter(field: Field, option: FieldOption) -> inspect.Parameter:
    bounds = _BOUNDS if option.metavar == _SHARE else {}
    words = [option.flag, *_SHORT.get(option.flag, ())]
    metavar = option.metavar or None
    info = typer.Option(*words, metavar=metavar, help=option.help, show_default=False, **bounds)  # type: ignore[arg-type]
    kind: Any = _type(field, option) | None
    annotation: Any = Annotated[kind, info]
    return inspect.Parameter(_name(option), inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _type(field: Field, option: FieldOption) -> Any:
    if option.repeated:
        return list[str]
    if "/" in option.flag:
        return bool
    if option.metavar == _SHARE:
        return float
    return Literal[field.members] if field.kind is FieldKind.CHOICE else str


def _name(option: FieldOption) -> str:
    return option.flag.partition("/")[0].strip("-").replace("-", "_")


# ── From options to what the API is asked ──


_UNSAID: Final[tuple[Any, ...]] = (None, (), [])


def asked(said: Given, was: Row | None = None) -> dict[str, Any]:
    """The fields that options were given for; `was` is the certificate that is changed, if there is one."""
    found: dict[str, Any] = {}
    for field in FIELDS:
        given = {name: said[name] for name in map(_name, field.options) if said.get(name) not in _UNSAID}
        if given:
            found |= _READERS[field.kind](field, given, was or {})
    return found


def _text(field: Field, given: Given, was: Row) -> dict[str, Any]:
    """'' takes away a text that may be absent; of some, the text is in a file."""
    [text] = given.values()
    if text and field.options[0].metavar == FILE:
        text = input_files.content(Path(text), LONGEST_FILE).decode("utf-8", "replace").strip() + "\n"
    return {field.wire: text or DEFAULTS.get(field.attribute, text)}


def _value(field: Field, given: Given, was: Row) -> dict[str, Any]:
    [value] = given.values()
    return {field.wire: value}


def _duration(field: Field, given: Given, was: Row) -> dict[str, Any]:
    [text] = given.values()
    return {field.wire: span(text).total_seconds() if text else None}


def _names(field: Field, given: Given, was: Row) -> dict[str, Any]:
    """In their order; names that are added come last."""
    gone = {each.strip().lower() for each in given.get("remove_name", ())}
    kept = [each for each in was.get("names", ()) if each not in gone]
    added = [each.strip().lower() for each in given.get("add_name", ())]
    return {field.wire: list(dict.fromkeys([*kept, *added]))}


def _labels(field: Field, given: Given, was: Row) -> dict[str, Any]:
    kept = {name: value for name, value in was.get("labels", {}).items() if name not in given.get("remove_label", ())}
    return {field.wire: kept | dict(map(label_of, given.get("label", ())))}


class TwoRules(Usage):
    code = "two-rules"
    hint = "Give --renew-after, such as 0.6, or --renew-before, such as 30d."


def _renewal(field: Field, given: Given, was: Row) -> dict[str, Any]:
    """A share of the lifetime replaces a span before expiry, and a span a share."""
    after, before = given.get("renew_after"), given.get("renew_before")
    if after is not None and before is not None:
        raise TwoRules("A certificate is renewed after a share of its life, or a span before it expires: not both.")
    policy: dict[str, Any] = {"ari": given["ari"]} if "ari" in given else {}
    if after is not None:
        policy |= {"fraction": after, "before_s": None}
    if before is not None:
        policy |= {"fraction": None, "before_s": span(before).total_seconds()}
    return {field.wire: {**was.get(field.wire, {}), **policy}}


def _windows(field: Field, given: Given, was: Row) -> dict[str, Any]:
    """The windows instead of those before; '' is none at all."""
    [texts] = given.values()
    return {field.wire: [window(each) for each in texts if each]}


def _targets(field: Field, given: Given, was: Row) -> dict[str, Any]:
    """The targets instead of those before; '' is none at all."""
    [names] = given.values()
    return {field.wire: [each for each in names if each]}


_READERS: Final[Mapping[FieldKind, Callable[[Field, Given, Row], dict[str, Any]]]] = {
    FieldKind.TEXT: _text, FieldKind.NAMES: _names, FieldKind.ISSUERS: _value, FieldKind.TARGETS: _targets,
    FieldKind.CHOICE: _value, FieldKind.FLAG: _value,
    FieldKind.DURATION: _duration, FieldKind.RENEWAL: _renewal, FieldKind.WINDOWS: _windows, FieldKind.LABELS: _labels,
}  # fmt: skip


# ── The test endpoints of CAs ──

STAGING: Final = "-staging"  # how the names of issuers end that issue for tests
NO_STAGING: Final = "There is no issuer for tests."  # that --staging could mean


class NoStaging(Usage):
    code = "no-staging"
    hint = "Add one, such as: holdfast issuer add letsencrypt-staging letsencrypt-staging"


def staged(chosen: Sequence[str], known: Sequence[str]) -> list[str]:
    """The test issuers of these issuers; if none is named, the only test issuer there is."""
    wanted = [each if each.endswith(STAGING) else f"{each}{STAGING}" for each in chosen]
    found = wanted or [each for each in known if each.endswith(STAGING)]
    missing = [each for each in found if each not in known]
    if missing:
        raise NoStaging(f"There is no issuer {missing[0]!r:.60}.")
    if not wanted and len(found) != 1:
        raise NoStaging(f"There are {len(found)} issuers for tests: name one by --issuer." if found else NO_STAGING)
    return found


# ── Maintenance windows: sat,sun 02:00-05:00 Europe/Berlin ──


class NotAWindow(Usage):
    code = "not-a-window"
    hint = (
        "For example: --window 22:00-04:00, or --window 'sat,sun 02:00-05:00 Europe/Berlin'; days are mon, tue, wed, …"
    )


_WINDOW: Final = re.compile(
    r"(?:([a-z,]+) )?([01]\d|2[0-3]):([0-5]\d)-(?:([01]\d|2[0-3]):([0-5]\d)|(24):(00))(?: (\S{1,60}))?", re.I
)


def window(text: str) -> dict[str, Any]:
    found = _WINDOW.fullmatch(text.strip())
    days = list(DAYS) if found is None or found[1] is None else found[1].lower().split(",")
    if found is None or not set(days) <= set(DAYS):
        raise NotAWindow(f"{text!r:.60} is no maintenance window.")
    opens, closes = (int(hour) * 60 + int(minute) for hour, minute in ((found[2], found[3]), _end(found)))
    return {
        "days": sorted(map(DAYS.index, set(days))),
        "opens": opens,
        "closes": closes or 1440,
        "zone": found[8] or UTC_NAME,
    }


def _end(found: re.Match[str]) -> tuple[str, str]:
    return (found[4] or found[6], found[5] or found[7])


def window_shown(row: Row) -> str:
    """As it is typed."""
    days = "" if len(row["days"]) == len(DAYS) else ",".join(DAYS[each] for each in row["days"]) + " "
    opens, closes = (f"{at // 60:02}:{at % 60:02}" for at in (row["opens"], row["closes"]))
    return f"{days}{opens}-{closes}{'' if row['zone'] == UTC_NAME else ' ' + row['zone']}"
