"""Targets in a document: read, checked, compared with those that there are, and written down.

A document without the key `targets` says nothing of them. Credentials are never in it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from holdfast.core.certificate import FIELDS, Field, FieldKind
from holdfast.core.documents.fields import Bad, Change, path_of, read_by, schema_of, written_as
from holdfast.core.endpoint import endpoint_of
from holdfast.core.target import TargetRow, TargetState
from holdfast.core.windows import MaintenanceWindow

MOST: Final = 10_000  # targets in one document
MOST_SETTINGS: Final = 32
TargetAction = Literal["create", "change", "delete"]
_OF_CERTIFICATES: Final = {each.key: each for each in FIELDS}
_NAME: Final = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_LINE: Final = r"[^\x00-\x1f\x7f]{0,100}"


def _line(key: str, help_: str, attribute: str = "") -> Field:
    problem = "This is one line of at most 100 characters."
    return Field(key=key, kind=FieldKind.TEXT, help=help_, pattern=_LINE, problem=problem, attribute=attribute)


FIELDS_OF_TARGETS: Final = (
    Field(
        key="name",
        kind=FieldKind.TEXT,
        help="Its name here.",
        pattern=_NAME,
        problem="A target's name is made of at most 63 small letters, digits and -",
    ),
    _line("kind", "What it is: files, or the preset of a daemon, such as nginx."),
    _OF_CERTIFICATES["owner"],
    _OF_CERTIFICATES["labels"],
    Field(key="endpoints", kind=FieldKind.TARGETS, help="Where a deployed certificate must be seen.", most=20),
    Field(key="windows", kind=FieldKind.WINDOWS, help="Deploy only then; never lets a certificate expire.", most=50),
    _line("reload_domain", "Targets with the same word share one daemon, and its reloads.", "domain"),
    _line("host", "The replica whose files and programs these are."),
    _line("rollout", "Targets with the same word are changed in waves."),
    Field(key="paused", kind=FieldKind.FLAG, help="Deployments to it are held."),
)
KEYS: Final[Mapping[str, Field]] = {each.key: each for each in FIELDS_OF_TARGETS}
SETTINGS: Final = "settings"
_USUAL: Final[Mapping[str, Any]] = {
    "owner": "", "labels": {}, "endpoints": (), "windows": (), "domain": "", "host": "", "rollout": "", "paused": False,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetEntry:
    """One target, as a document says it."""

    name: str
    kind: str
    settings: Mapping[str, Any]
    owner: str
    labels: Mapping[str, str]
    endpoints: tuple[str, ...]
    windows: tuple[MaintenanceWindow, ...]
    domain: str
    host: str  # empty: as it is, or the replica that adds it
    rollout: str
    paused: bool
    where: str = ""


# ── Reading ──


def read(tree: object, scope: Mapping[str, str], problems: list[tuple[str, str]]) -> tuple[TargetEntry, ...] | None:
    """None: the document says nothing of targets."""
    if tree is None:
        return None
    if not isinstance(tree, list) or len(tree) > MOST:
        problems.append(("targets", f"This is a list of at most {MOST} targets; '[]' for none."))
        return ()
    read_ = [_entry(each, path_of("targets", at), scope, problems) for at, each in enumerate(tree)]
    found = [each for each in read_ if each is not None]
    seen = dict[str, str]()
    for each in found:
        if each.name in seen:
            problems.append((each.where, f"The name {each.name!r} is taken by {seen[each.name]}."))
        seen.setdefault(each.name, each.where)
    return tuple(found)


def _entry(tree: object, where: str, scope: Mapping[str, str], problems: list[tuple[str, str]]) -> TargetEntry | None:
    if not isinstance(tree, Mapping):
        problems.append((where, "A target is a mapping with at least 'name:' and 'kind:' in it."))
        return None
    before = len(problems)
    fields: dict[str, Any] = dict(_USUAL)
    for name, value in tree.items():
        try:
            fields |= _read(str(name), value)
        except Bad as bad:
            problems.append((f"{where}.{name}{bad.below}", str(bad)))
    problems += [(f"{where}.{name}", "This must be said.") for name in ("name", "kind") if name not in tree]
    fields["labels"] = {**scope, **fields["labels"]}
    for name, value in scope.items():
        if fields["labels"][name] != value:
            problems.append((f"{where}.labels", f"{name!r} is {value!r} for the whole document ('scope')."))
    return None if len(problems) > before else TargetEntry(**{SETTINGS: {}, **fields}, where=where)


def _read(name: str, value: object) -> dict[str, Any]:
    if name == SETTINGS:
        return {SETTINGS: _settings(value)}
    if name == "credentials":
        raise Bad("Credentials are never in a document: holdfast target set NAME --credential …")
    if name not in KEYS:
        raise Bad(f"There is no such key. There are: {', '.join((*KEYS, SETTINGS))}.")
    found = read_by(KEYS[name], value)
    for at, each in enumerate(found if name == "endpoints" else ()):
        try:
            endpoint_of(each)
        except ValueError as why:
            raise Bad(f"{str(why)[:1].upper()}{str(why)[1:]}.", f"[{at}]") from None
    return {KEYS[name].attribute: found}


def _settings(value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping) or len(value) > MOST_SETTINGS:
        raise Bad(f"These are at most {MOST_SETTINGS} settings, each a name and a value.")
    for name, each in value.items():
        if each is None:
            raise Bad("A setting has a value: leave it out for its default.", f".{name!s:.60}")
    return dict(value)


# ── The difference ──


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetStep:
    """One thing that is to be done with a target, and why."""

    action: TargetAction
    name: str
    reason: str
    wanted: TargetEntry | None = None  # None: it is to be deleted
    existing: TargetRow | None = None
    changes: tuple[Change, ...] = ()

    @property
    def told(self) -> list[object]:
        """What a plan is recognised by."""
        version = 0 if self.existing is None else self.existing.version
        shown = None if self.wanted is None else written(self.wanted)
        return [self.action, self.name, version, shown]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetPlan:
    steps: tuple[TargetStep, ...] = ()
    unchanged: int = 0
    left_alone: tuple[str, ...] = ()  # in scope and not in the document, and not to be deleted


def compare(
    desired: Sequence[TargetEntry] | None,
    existing: Sequence[TargetRow],
    *,
    scope: Mapping[str, str],
    prune: bool,
    in_use: Collection[str],
) -> TargetPlan:
    """The steps from the stored targets to those of the document. One that a certificate names is never deleted."""
    if desired is None:
        return TargetPlan()
    have = {each.name: each for each in existing}
    steps = [step for each in desired if (step := _step(each, have.get(each.name))) is not None]
    names = {each.name for each in desired}
    changed = sum(step.action == "change" for step in steps)
    gone = [each for name, each in sorted(have.items()) if name not in names and _within(each, scope)]
    deleted = [each for each in gone if prune and each.name not in in_use]
    return TargetPlan(
        steps=(*steps, *map(_deleted, deleted)),
        unchanged=len(names & have.keys()) - changed,
        left_alone=tuple(each.name for each in gone if each not in deleted),
    )


def _within(row: TargetRow, scope: Mapping[str, str]) -> bool:
    return all(row.labels.get(name) == value for name, value in scope.items())


def _step(wanted: TargetEntry, existing: TargetRow | None) -> TargetStep | None:
    if existing is None:
        return TargetStep(action="create", name=wanted.name, reason="there is no target of this name", wanted=wanted)
    was, will_be = written(entry_of(existing)), written(wanted)
    if not wanted.host and "host" in was:
        will_be["host"] = was["host"]
    differ = [key for key in (*KEYS, SETTINGS) if was.get(key) != will_be.get(key)]
    changes = tuple(Change(field=key, was=was.get(key), will_be=will_be.get(key)) for key in differ)
    if not changes:
        return None
    return TargetStep(
        action="change", name=wanted.name, reason="it differs", wanted=wanted, existing=existing, changes=changes
    )


def _deleted(row: TargetRow) -> TargetStep:
    reason = "it is not in the document; its credentials are deleted, and what it serves stays as it is"
    return TargetStep(action="delete", name=row.name, reason=reason, existing=row)


# ── Written down ──


def entry_of(row: TargetRow) -> TargetEntry:
    same = {name: getattr(row, name) for name in TargetEntry.__dataclass_fields__ if name not in ("paused", "where")}
    return TargetEntry(**same, paused=row.state is TargetState.PAUSED)


def written(entry: TargetEntry) -> dict[str, object]:
    """As an entry of a document, without what is so by default."""
    said = {key: getattr(entry, field.attribute) for key, field in KEYS.items()}
    usual = {field.key: _USUAL.get(field.attribute) for field in KEYS.values()}
    found = {key: written_as(KEYS[key], value) for key, value in said.items() if value != usual[key]}
    return {**found, **({SETTINGS: dict(entry.settings)} if entry.settings else {})}


def document(rows: Sequence[TargetRow], scope: Mapping[str, str]) -> list[dict[str, object]]:
    return [written(entry_of(each)) for each in sorted(rows, key=lambda row: row.name) if _within(each, scope)]


def schema() -> dict[str, object]:
    settings = {"type": "object", "maxProperties": MOST_SETTINGS, "description": "Of its kind; no credentials."}
    return {
        "type": "array",
        "maxItems": MOST,
        "description": "Left out, the document says nothing of targets.",
        "items": {
            "type": "object",
            "additionalProperties": False,
            "required": ["name", "kind"],
            "properties": {**{key: schema_of(field) for key, field in KEYS.items()}, SETTINGS: settings},
        },
    }
