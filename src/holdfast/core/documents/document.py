"""What certificates there are to be, as a document says it: read, checked, and compared with those that there are.

Pure: a tree of plain values in, and values out. How the tree is written down is the business of
core/documents/yaml_text.py.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from holdfast.core.certificate import FIELDS, CertificateSpec, CertificateState
from holdfast.core.documents import targets as of_targets
from holdfast.core.documents.fields import KEYS, NO_DEFAULT, Bad, Change, in_full, path_of, read_field
from holdfast.core.documents.targets import TargetEntry, TargetPlan
from holdfast.core.own_ca.acme import Identifier
from holdfast.core.target import TargetRow
from holdfast.errors import UserError

VERSION: Final = 1
MOST: Final = 100_000  # certificates in one document
_TOP: Final = frozenset({"version", "scope", "defaults", "targets", "certificates"})
_SHOWN: Final = 20  # problems that are told at once
DocumentAction = Literal["create", "change", "archive"]


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
class DocumentEntry:
    """One certificate, with the defaults filled in. Fields that were left out are not in `fields`."""

    name: str
    names: tuple[str, ...]  # as written
    fields: Mapping[str, Any]  # by the names that Wanted has for them
    paused: bool
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    entries: tuple[DocumentEntry, ...]
    scope: Mapping[str, str] = field(default_factory=dict)  # it speaks of what has these labels only
    targets: tuple[TargetEntry, ...] | None = None  # None: it says nothing of targets


def read(tree: object) -> Document:
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
    targets = of_targets.read(tree.get("targets"), scope, problems)
    if problems:
        raise DocumentRefused(problems)
    return Document(entries=tuple(entries), scope=scope, targets=targets)


@dataclass(frozen=True, slots=True)
class _Default:
    when: Mapping[str, str]
    fields: Mapping[str, Any]


_OF_DEFAULTS: Final = ("when", *(each for each in KEYS if each not in NO_DEFAULT))


def _defaults(tree: object, problems: list[tuple[str, str]]) -> list[_Default]:
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
) -> list[DocumentEntry]:
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
) -> DocumentEntry | None:
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
    return DocumentEntry(name=name, names=tuple(names), fields=fields, paused=paused, where=where)


def _fields(
    tree: Mapping[str, Any], where: str, problems: list[tuple[str, str]], known: Iterable[str] = KEYS
) -> dict[str, Any]:
    found = {}
    for name, value in tree.items():
        if name not in KEYS:
            problems.append((f"{where}.{name}", f"There is no such key. There are: {', '.join(known)}."))
            continue
        read_value = _read(problems, f"{where}.{name}", name, value)
        if read_value is not None:
            found[KEYS[name].attribute] = read_value
    return found


def _read(problems: list[tuple[str, str]], where: str, name: str, value: Any) -> Any:
    try:
        return read_field(name, value)
    except Bad as bad:
        problems.append((f"{where}{bad.below}", str(bad)))
        return None


def _taken_twice(entries: Sequence[DocumentEntry]) -> list[tuple[str, str]]:
    seen: dict[str, str] = {}
    problems = []
    for each in entries:
        if each.name in seen:
            problems.append(
                (each.where, f"The name {each.name!r} is taken by {seen[each.name]}: give it another 'name:'.")
            )
        seen.setdefault(each.name, each.where)
    return problems


def wanted_of(entry: DocumentEntry, identifiers: tuple[Identifier, ...], issuers: tuple[str, ...]) -> CertificateSpec:
    """What this entry asks for; `issuers` are for those that name no CA."""
    return CertificateSpec(name=entry.name, identifiers=identifiers, **{"issuers": issuers, **entry.fields})


# ── The difference ──


@dataclass(frozen=True, slots=True, kw_only=True)
class Existing:
    id: str
    version: int
    wanted: CertificateSpec
    state: CertificateState
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentStep:
    """One thing that is to be done, and why."""

    action: DocumentAction
    name: str
    reason: str
    wanted: CertificateSpec | None = None  # None: it is to be archived
    paused: bool = False
    existing: Existing | None = None
    changes: tuple[Change, ...] = ()
    issues: bool = False  # whether a certificate will be ordered for it


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentPlan:
    steps: tuple[DocumentStep, ...]
    unchanged: int
    left_alone: tuple[str, ...] = ()  # in scope and not in the document, and not to be archived
    targets: TargetPlan = field(default_factory=TargetPlan)

    @property
    def empty(self) -> bool:
        return not self.steps and not self.targets.steps

    def digest(self) -> str:
        """Equal as long as the same steps apply to the same certificates: the plan that was reviewed is applied."""
        told: list[object] = [
            [
                each.action,
                each.name,
                0 if each.existing is None else each.existing.version,
                [[change.field, change.was, change.will_be] for change in each.changes],
                None if each.wanted is None else each.wanted.fingerprint(),
                each.paused,
            ]
            for each in self.steps
        ] + [each.told for each in self.targets.steps]
        return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()


def compare(
    desired: Sequence[tuple[CertificateSpec, bool]],
    existing: Sequence[Existing],
    *,
    scope: Mapping[str, str],
    prune: bool,
) -> DocumentPlan:
    """The steps from the stored certificates to those of the document. Certificates out of scope are never archived."""
    have = {each.wanted.name: each for each in existing}
    names = {spec.name for spec, _ in desired}
    steps = [step for spec, paused in desired if (step := _step(spec, paused, have.get(spec.name))) is not None]
    gone = [each for name, each in sorted(have.items()) if name not in names and _within(each.wanted, scope)]
    if prune:
        steps += [_archived(each) for each in gone]
    left_alone = () if prune else tuple(each.wanted.name for each in gone)
    unchanged = sum(1 for name in names if name in have) - sum(1 for step in steps if step.action == "change")
    return DocumentPlan(steps=tuple(steps), unchanged=unchanged, left_alone=left_alone)


def left_by(plan: DocumentPlan, existing: Sequence[Existing]) -> list[CertificateSpec]:
    """What there is once the plan is carried out, archived ones left out."""
    stay = {each.wanted.name: each.wanted for each in existing if each.state is not CertificateState.ARCHIVED}
    for step in plan.steps:
        if step.wanted is None:
            stay.pop(step.name, None)
        else:
            stay[step.name] = step.wanted
    return list(stay.values())


def _within(spec: CertificateSpec, scope: Mapping[str, str]) -> bool:
    return all(spec.labels.get(name) == value for name, value in scope.items())


def _step(spec: CertificateSpec, paused: bool, existing: Existing | None) -> DocumentStep | None:
    if existing is None:
        reason = "there is no certificate of this name"
        return DocumentStep(
            action="create", name=spec.name, reason=reason, wanted=spec, paused=paused, issues=not paused
        )
    same = _same_order(spec, existing.wanted)
    changes = differences(existing.wanted, same)
    is_paused = existing.state is CertificateState.PAUSED
    if is_paused != paused:
        changes += (Change(field="paused", was=is_paused, will_be=paused),)
    if not changes:
        return None
    anew = same.fingerprint() != existing.fingerprint
    reason = "the specification differs" + (": a new certificate is issued" if anew and not paused else "")
    return DocumentStep(
        action="change",
        name=spec.name,
        reason=reason,
        wanted=same,
        paused=paused,
        existing=existing,
        changes=changes,
        issues=anew and not paused,
    )


def _same_order(spec: CertificateSpec, existing: CertificateSpec) -> CertificateSpec:
    """The same names in another order are the same certificate."""
    same = set(spec.identifiers) == set(existing.identifiers)
    return replace(spec, identifiers=existing.identifiers) if same else spec


def _archived(existing: Existing) -> DocumentStep:
    reason = "it is not in the document; its certificate stays valid, and is not revoked"
    return DocumentStep(action="archive", name=existing.wanted.name, reason=reason, existing=existing)


def differences(before: CertificateSpec, after: CertificateSpec) -> tuple[Change, ...]:
    """Compares values, and shows them as written: two that are written alike must not hide a difference."""
    was, will_be = shown(before), shown(after)
    return tuple(
        Change(field=each.key, was=was.get(each.key), will_be=will_be.get(each.key))
        for each in FIELDS
        if getattr(before, each.attribute) != getattr(after, each.attribute)
    )


# ── Written down ──


def shown(spec: CertificateSpec) -> dict[str, object]:
    """As an entry of a document, without the fields that have their defaults."""
    plain = CertificateSpec(name=spec.name, identifiers=spec.identifiers, issuers=spec.issuers)
    said, usual = in_full(spec), in_full(plain)
    return {key: value for key, value in said.items() if key in _ALWAYS or value != usual[key]}


_ALWAYS: Final = frozenset({"name", "names", "issuers"})


def document(
    existing: Sequence[Existing], scope: Mapping[str, str], targets: Sequence[TargetRow] = ()
) -> dict[str, object]:
    """All of them as a document: comparing it with what there is finds no difference."""
    entries = []
    for each in sorted(existing, key=lambda each: each.wanted.name):
        if _within(each.wanted, scope):
            entry = shown(each.wanted)
            entries.append({**entry, "paused": True} if each.state is CertificateState.PAUSED else entry)
    there = of_targets.document(targets, scope)
    said = {**({"scope": dict(scope)} if scope else {}), **({"targets": there} if there else {})}
    return {"version": VERSION, **said, "certificates": entries}
