"""Make the certificates what a document says: plan it, apply it, and write down what there is as such a document.

Each step is a verb that people have, too, and a transaction of its own; whatever was interrupted is taken up again by
applying the same document once more. Nothing here revokes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from holdfast.core import desired
from holdfast.core.budget import remaining
from holdfast.core.ca_limits import order_key
from holdfast.core.certificate import Certificate, State, Wanted
from holdfast.core.desired import Document, DocumentRefused, Entry, Existing, Plan, Step
from holdfast.errors import UserError
from holdfast.operations import certificates as verbs
from holdfast.operations import second_person
from holdfast.operations.certificates import identifiers_of
from holdfast.operations.issuing import Keeper
from holdfast.pki.aside import aside
from holdfast.pki.refused import PkiRefused
from holdfast.store import budgets, certificates, issuers, journal
from holdfast.store.issuers import IssuerRow
from holdfast.store.tx import Tx

_PAGE: Final = 500
_AT_ONCE: Final = 8  # steps under way together: their commits are grouped


class PlanIsStale(UserError):
    status, code = 409, "stale"
    hint = "Look at what would be done now: holdfast plan"

    def __init__(self) -> None:
        super().__init__("Since this plan was made, the certificates or the document have changed.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan, with what it costs."""

    plan: Plan
    orders: Mapping[str, int]  # by the CA that is asked first
    budgets: Mapping[str, int]  # what each of them would take now
    approvals: int  # attempts that a second person has to approve


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    step: Step
    error: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class _Truth:
    """What there is, read in one transaction."""

    existing: list[Existing]
    issuers: Mapping[str, IssuerRow]
    order_budgets: Mapping[str, int]


# ── Planning ──


async def plan(keeper: Keeper, tree: Any, *, prune: bool = False) -> Planned:
    """What would be done; DocumentRefused tells all that is wrong with the document."""
    truth = await keeper.db.read(_truth)
    return await aside(_planned, tree, truth, prune)


def _truth(tx: Tx) -> _Truth:
    now, rows = tx.now(), {row.name: row for row in issuers.all_issuers(tx)}
    keys = {order_key(name): name for name in rows}
    left = {keys[each.key]: remaining(each, now, urgent=False) for each in budgets.all_budgets(tx) if each.key in keys}
    return _Truth([_existing(each) for each in _everything(tx)], rows, left)


def _everything(tx: Tx) -> list[Certificate]:
    found, after = list[Certificate](), ""
    while page := certificates.page(tx, after=after, limit=_PAGE):
        found += page
        after = page[-1].name
    return found


def _existing(found: Certificate) -> Existing:
    return Existing(
        id=found.id, version=found.version, wanted=found.wanted, state=found.state, fingerprint=found.fingerprint
    )


def _planned(tree: Any, truth: _Truth, prune: bool) -> Planned:
    document = desired.read(tree)
    wanted = _wanted(document, truth.issuers)
    made = desired.compare(wanted, truth.existing, scope=document.scope, prune=prune)
    ordered = [each.wanted for each in made.steps if each.issues and each.wanted is not None]
    orders = Counter(each.issuers[0] for each in ordered)
    return Planned(
        plan=made,
        orders=dict(sorted(orders.items())),
        budgets={name: left for name, left in truth.order_budgets.items() if name in orders},
        approvals=second_person.count_needed(ordered, [each.wanted for each in truth.existing], truth.issuers),
    )


def _wanted(document: Document, known: Mapping[str, IssuerRow]) -> list[tuple[Wanted, bool]]:
    problems: list[tuple[str, str]] = []
    found = []
    for entry in document.entries:
        try:
            wanted = desired.wanted_of(entry, identifiers_of(entry.names), _default_issuers(entry, known))
            problems += _unknown(entry, wanted, known)
            verbs.few_enough(wanted, [known[name] for name in wanted.issuers if name in known])
            found.append((wanted, entry.paused))
        except (PkiRefused, verbs.WishRefused) as refused:
            problems.append((f"{entry.where}.names", f"{refused} {refused.hint}".rstrip()))
        except ValueError as error:
            problems.append((entry.where, f"This cannot be asked for: {error}."))
    if problems:
        raise DocumentRefused(problems)
    return found


def _default_issuers(entry: Entry, known: Collection[str]) -> tuple[str, ...]:
    """Where an entry names no CA, there must be no choice."""
    if "issuers" not in entry.fields and len(known) != 1:
        raise ValueError(f"say which CA it is to come from ('issuers'), here or in 'defaults'; {_listed(known)}")
    return tuple(known)


def _unknown(entry: Entry, wanted: Wanted, known: Collection[str]) -> list[tuple[str, str]]:
    missing = [name for name in wanted.issuers if name not in known]
    return [(f"{entry.where}.issuers", f"There is no CA named {name!r:.80}; {_listed(known)}.") for name in missing]


def _listed(known: Collection[str]) -> str:
    return f"there are: {', '.join(known)}" if known else "there is none yet: holdfast issuer add"


# ── Applying ──


async def apply(
    keeper: Keeper,
    tree: Any,
    *,
    prune: bool = False,
    actor: str,
    expect: str | None = None,
    skip: Collection[str] = (),
    most: int = 1_000_000,
    may_lift_approval: bool = True,
) -> tuple[list[Done], int]:
    """Carry steps out, at most so many, and say how many are left. With `expect`, only the plan that was reviewed."""
    planned = await plan(keeper, tree, prune=prune)
    if expect is not None and planned.plan.digest() != expect:
        raise PlanIsStale
    steps = [each for each in planned.plan.steps if each.name not in skip]
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(step: Step) -> Done:
        async with gate:
            return await _carried_out(keeper, step, actor, may_lift=may_lift_approval)

    done = await asyncio.gather(*(one(step) for step in steps[:most]))
    return list(done), max(0, len(steps) - most)


async def _carried_out(keeper: Keeper, step: Step, actor: str, *, may_lift: bool = True) -> Done:
    try:
        match step.action:
            case "create":
                await _create(keeper, step, actor)
            case "change":
                await _change(keeper, step, actor, may_lift=may_lift)
            case "archive":
                await verbs.set_state(keeper, _id(step), "archived", actor=actor)
    except UserError as error:
        return Done(step=step, error=str(error), hint=error.hint)
    return Done(step=step)


async def _create(keeper: Keeper, step: Step, actor: str) -> None:
    if step.paused:
        await _create_paused(keeper, _of(step), actor)
    else:
        await verbs.request(keeper, _of(step), actor=actor)


async def _create_paused(keeper: Keeper, wanted: Wanted, actor: str) -> None:
    """It exists, and nothing is ordered before somebody resumes it."""
    new_id = keeper.random.new_id("certificate")

    def write(tx: Tx) -> None:
        verbs.check(tx, wanted)
        new = Certificate(
            id=new_id,
            wanted=wanted,
            state=State.PAUSED,
            generation=1,
            version=1,
            fingerprint=wanted.fingerprint(),
            changed_by=actor,
            created_at=tx.now(),
        )
        if not certificates.insert(tx, new):
            raise verbs.CertificateExists(wanted.name)
        names = [each.value for each in wanted.identifiers]
        facts = {"name": wanted.name, "names": names, "paused": True}
        journal.audit(tx, "certificate_requested", new.id, actor=actor, after=verbs.kept(new), **facts)
        journal.event(tx, "certificate.requested", new.id, certificate=wanted.name, by=actor, paused=True)

    await keeper.db.write(write)


async def _change(keeper: Keeper, step: Step, actor: str, *, may_lift: bool) -> None:
    """Paused first and resumed last: in between, nothing is ordered that the document does not want."""
    was_paused = step.existing is not None and step.existing.state is State.PAUSED
    if step.paused and not was_paused:
        await verbs.set_state(keeper, _id(step), "paused", actor=actor)
    if any(each.field != "paused" for each in step.changes):
        wanted = _of(step)
        changes = {name: getattr(wanted, name) for name in Wanted.__dataclass_fields__}
        expect = step.existing.version if step.existing is not None and step.paused == was_paused else None
        await verbs.change(
            keeper, _id(step), changes, actor=actor, expect_version=expect, may_lift_approval=may_lift
        )  # fmt: skip
    if was_paused and not step.paused:
        await verbs.set_state(keeper, _id(step), "resumed", actor=actor)


def _id(step: Step) -> str:
    if step.existing is None:
        raise AssertionError("only what exists is changed or archived")
    return step.existing.id


def _of(step: Step) -> Wanted:
    if step.wanted is None:
        raise AssertionError("only what is archived has no wish")
    return step.wanted


# ── Exporting ──


async def export(keeper: Keeper, *, scope: Mapping[str, str]) -> dict[str, Any]:
    truth = await keeper.db.read(_truth)
    return await aside(desired.document, truth.existing, dict(scope))
