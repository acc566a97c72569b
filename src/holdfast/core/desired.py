"""What certificates there are to be, as a document says it: read, checked, and compared with those that there are.

Pure: a tree of plain values in, and values out. How the tree is written down is the business of core/desired_yaml.py.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from holdfast.core.acme import Identifier
from holdfast.core.certificate import State, Wanted
from holdfast.core.desired_fields import FIELDS, NO_DEFAULT, Bad, path_of, read_field
from holdfast.errors import UserError

VERSION: Final = 1
MOST: Final = 100_000  # certificates in one document
_TOP: Final = frozenset({"version", "scope", "defaults", "certificates"})
_SHOWN: Final = 20  # problems that are told at once
Action = Literal["create", "change", "archive"]


class DocumentRefused(UserError):
    """Everything that is wrong with a document, at once: (where, what) for each."""

    status, code = 400, "document-refused"

    def __init__(self, problems: Sequence[tuple[str, str]]) -> None:
        shown = [_one_line(f"{where}: {what}" if where else what) for where, what in problems[:_SHOWN]]
        more = [f"… and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
        super().__init__("\n".join(["The document cannot be used.", *shown, *more]))
        self.problems = tuple(problems)
        self.hint = "The format: holdfast export --schema. What there is now, as such a document: holdfast export"


def _one_line(text: str) -> str:
    """The document's own words are in it: they must neither break a line nor steer a terminal."""
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in text)


# ── The document ──


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One certificate, with the defaults filled in. What nobody said is not in `fields`."""

    name: str
    names: tuple[str, ...]  # as written
    fields: Mapping[str, Any]  # by the names that Wanted has for them
    paused: bool
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    entries: tuple[Entry, ...]
    scope: Mapping[str, str] = field(default_factory=dict)  # it speaks of certificates with these labels only


def read(tree: Any) -> Document:
    """Check a whole document; DocumentRefused tells everything that is wrong with it."""
    problems: list[tuple[str, str]] = []
    if not isinstance(tree, Mapping):
        raise DocumentRefused([("", "A document is a mapping with 'certificates:' in it.")])
    known = f"There is no such key. There are: {', '.join(sorted(_TOP))}."
    problems += [(name, known) for name in sorted(set(map(str, tree)) - _TOP)]
    if tree.get("version", VERSION) != VERSION:
        problems.append(("version", f"This release reads version {VERSION} of the format."))
    scope = _read(problems, "scope", "labels", tree.get("scope") or {}) or {}
    defaults = _defaults(tree.get("defaults"), problems)
    entries = _entries(tree.get("certificates"), defaults, scope, problems)
    problems += _taken_twice(entries)
    if problems:
        raise DocumentRefused(problems)
    return Document(entries=tuple(entries), scope=scope)


@dataclass(frozen=True, slots=True)
class _Default:
    when: Mapping[str, str]
    fields: Mapping[str, Any]


_OF_DEFAULTS: Final = ("when", *(each for each in FIELDS if each not in NO_DEFAULT))


def _defaults(tree: Any, problems: list[tuple[str, str]]) -> list[_Default]:
    if tree is None:
        return []
    if not isinstance(tree, list):
        problems.append(("defaults", "This is a list of blocks, each with 'when:' and what holds then."))
        return []
    found = []
    for at, block in enumerate(tree):
        where = path_of("defaults", at)
        if not isinstance(block, Mapping):
            problems.append((where, "A block of defaults is a mapping."))
            continue
        when = _read(problems, f"{where}.when", "labels", block.get("when") or {}) or {}
        rest = {str(name): value for name, value in block.items() if name != "when"}
        for name in sorted(NO_DEFAULT & {*rest}):
            problems.append((f"{where}.{name}", "This cannot have a default."))
            del rest[name]
        found.append(_Default(when, _fields(rest, where, problems, _OF_DEFAULTS)))
    return found


def _entries(
    tree: Any, defaults: Sequence[_Default], scope: Mapping[str, str], problems: list[tuple[str, str]]
) -> list[Entry]:
    if not isinstance(tree, list):
        problems.append(("certificates", "This is a list of certificates; '[]' for none."))
        return []
    if len(tree) > MOST:
        problems.append(("certificates", f"A document has at most {MOST} certificates."))
        return []
    found = [_entry(each, path_of("certificates", at), defaults, scope, problems) for at, each in enumerate(tree)]
    return [each for each in found if each is not None]


def _entry(
    tree: Any, where: str, defaults: Sequence[_Default], scope: Mapping[str, str], problems: list[tuple[str, str]]
) -> Entry | None:
    if not isinstance(tree, Mapping):
        problems.append((where, "A certificate is a mapping with at least 'names:' in it."))
        return None
    before = len(problems)
    own = _fields({str(name): value for name, value in tree.items()}, where, problems)
    names = own.pop("identifiers", ())
    if not names and not any(at.startswith(f"{where}.names") for at, _ in problems[before:]):
        problems.append((f"{where}.names", "Say what names it is for."))
    labels = {**scope, **own.get("labels", {})}
    for name, value in scope.items():
        if labels[name] != value:
            problems.append((f"{where}.labels", f"{name!r} is {value!r} for the whole document ('scope')."))
    fields: dict[str, Any] = {}
    for each in defaults:
        if all(labels.get(name) == value for name, value in each.when.items()):
            fields |= each.fields
    fields |= own
    if labels:
        fields["labels"] = labels
    name, paused = fields.pop("name", None) or (names[0].lower() if names else ""), fields.pop("paused", False)
    if len(problems) > before:
        return None
    return Entry(name=name, names=tuple(names), fields=fields, paused=paused, where=where)


def _fields(
    tree: Mapping[str, Any], where: str, problems: list[tuple[str, str]], known: Iterable[str] = FIELDS
) -> dict[str, Any]:
    found = {}
    for name, value in tree.items():
        if name not in FIELDS:
            problems.append((f"{where}.{name}", f"There is no such key. There are: {', '.join(known)}."))
            continue
        read_value = _read(problems, f"{where}.{name}", name, value)
        if read_value is not None:
            found[FIELDS[name].wanted] = read_value
    return found


def _read(problems: list[tuple[str, str]], where: str, name: str, value: Any) -> Any:
    try:
        return read_field(name, value)
    except Bad as bad:
        problems.append((f"{where}{bad.below}", str(bad)))
        return None


def _taken_twice(entries: Sequence[Entry]) -> list[tuple[str, str]]:
    seen: dict[str, str] = {}
    problems = []
    for each in entries:
        if each.name in seen:
            problems.append(
                (each.where, f"The name {each.name!r} is taken by {seen[each.name]}: give it another 'name:'.")
            )
        seen.setdefault(each.name, each.where)
    return problems


def wanted_of(entry: Entry, identifiers: tuple[Identifier, ...], issuers: tuple[str, ...]) -> Wanted:
    """What this entry asks for; `issuers` are for those that name no CA."""
    return Wanted(name=entry.name, identifiers=identifiers, **{"issuers": issuers, **entry.fields})


# ── The difference ──


@dataclass(frozen=True, slots=True, kw_only=True)
class Existing:
    id: str
    version: int
    wanted: Wanted
    state: State
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    field: str
    was: Any
    will_be: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing that is to be done, and why."""

    action: Action
    name: str
    reason: str
    wanted: Wanted | None = None  # None: it is to be archived
    paused: bool = False
    existing: Existing | None = None
    changes: tuple[Change, ...] = ()
    issues: bool = False  # whether a certificate will be ordered for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    steps: tuple[Step, ...]
    unchanged: int
    left_alone: tuple[str, ...] = ()  # in scope and not in the document, and not to be archived

    @property
    def empty(self) -> bool:
        return not self.steps

    def digest(self) -> str:
        """Equal as long as the same would be done to the same things: what was reviewed is what is applied."""
        told = [
            [
                each.action,
                each.name,
                0 if each.existing is None else each.existing.version,
                [[change.field, change.was, change.will_be] for change in each.changes],
                None if each.wanted is None else each.wanted.fingerprint(),
                each.paused,
            ]
            for each in self.steps
        ]
        return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()


def compare(
    desired: Sequence[tuple[Wanted, bool]], existing: Sequence[Existing], *, scope: Mapping[str, str], prune: bool
) -> Plan:
    """What has to be done so that there is what is desired. Things that are not in scope are never archived."""
    have = {each.wanted.name: each for each in existing}
    names = {wanted.name for wanted, _ in desired}
    steps = [step for wanted, paused in desired if (step := _step(wanted, paused, have.get(wanted.name))) is not None]
    gone = [each for name, each in sorted(have.items()) if name not in names and _within(each.wanted, scope)]
    if prune:
        steps += [_archived(each) for each in gone]
    left_alone = () if prune else tuple(each.wanted.name for each in gone)
    unchanged = sum(1 for name in names if name in have) - sum(1 for step in steps if step.action == "change")
    return Plan(steps=tuple(steps), unchanged=unchanged, left_alone=left_alone)


def _within(wanted: Wanted, scope: Mapping[str, str]) -> bool:
    return all(wanted.labels.get(name) == value for name, value in scope.items())


def _step(wanted: Wanted, paused: bool, existing: Existing | None) -> Step | None:
    if existing is None:
        reason = "there is no certificate of this name"
        return Step(action="create", name=wanted.name, reason=reason, wanted=wanted, paused=paused, issues=not paused)
    same = _same_order(wanted, existing.wanted)
    changes = differences(existing.wanted, same)
    is_paused = existing.state is State.PAUSED
    if is_paused != paused:
        changes += (Change(field="paused", was=is_paused, will_be=paused),)
    if not changes:
        return None
    anew = same.fingerprint() != existing.fingerprint
    reason = "what is asked for differs" + (": a new certificate is issued" if anew and not paused else "")
    return Step(
        action="change",
        name=wanted.name,
        reason=reason,
        wanted=same,
        paused=paused,
        existing=existing,
        changes=changes,
        issues=anew and not paused,
    )


def _same_order(wanted: Wanted, existing: Wanted) -> Wanted:
    """The same names in another order are the same certificate."""
    same = set(wanted.identifiers) == set(existing.identifiers)
    return replace(wanted, identifiers=existing.identifiers) if same else wanted


def _archived(existing: Existing) -> Step:
    reason = "it is not in the document; its certificate stays valid, and is not revoked"
    return Step(action="archive", name=existing.wanted.name, reason=reason, existing=existing)


def differences(before: Wanted, after: Wanted) -> tuple[Change, ...]:
    """Compared as they are, and told as they are written: what is written alike must not hide a difference."""
    was, will_be = shown(before), shown(after)
    return tuple(
        Change(field=name, was=was.get(name), will_be=will_be.get(name))
        for name, each in FIELDS.items()
        if name != "paused" and getattr(before, each.wanted) != getattr(after, each.wanted)
    )


# ── Written down ──


def shown(wanted: Wanted) -> dict[str, Any]:
    """As an entry of a document, in full but for what is as it is without being said."""
    plain = Wanted(name=wanted.name, identifiers=wanted.identifiers, issuers=wanted.issuers)
    entry: dict[str, Any] = {"name": wanted.name, "names": [each.value for each in wanted.identifiers]}
    for name, each in FIELDS.items():
        if each.write is not None and name != "name":
            value = each.write(getattr(wanted, each.wanted))
            if name == "issuers" or value != each.write(getattr(plain, each.wanted)):
                entry[name] = value
    return entry


def document(existing: Sequence[Existing], scope: Mapping[str, str]) -> dict[str, Any]:
    """All of them as a document: comparing it with what there is finds no difference."""
    entries = []
    for each in sorted(existing, key=lambda each: each.wanted.name):
        if _within(each.wanted, scope):
            entry = shown(each.wanted)
            entries.append({**entry, "paused": True} if each.state is State.PAUSED else entry)
    return {"version": VERSION, **({"scope": dict(scope)} if scope else {}), "certificates": entries}
