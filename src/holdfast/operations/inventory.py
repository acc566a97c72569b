"""What may be looked at: lists and single things, each filtered by what the asker may see."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from holdfast.core.ca_end import IssuerEnd
from holdfast.core.certificate import Certificate, Version
from holdfast.core.inventory import Filter, Sort
from holdfast.core.issuance import Issuance
from holdfast.core.issuance import State as Step
from holdfast.core.status import Waiting
from holdfast.errors import UserError
from holdfast.operations import ca_ends, tokens
from holdfast.operations.access import Action, Forbidden, Owned, Principal, Verdict, allow, demand
from holdfast.operations.approvals import NoSuchApproval
from holdfast.operations.asking import Check
from holdfast.operations.certificates import NoSuchCertificate, View, found_by, meant_by, waiting
from holdfast.operations.issuing import ISSUE, Keeper
from holdfast.operations.jobs import NoSuchJob
from holdfast.store import (
    approvals,
    certificates,
    inventory,
    issuances,
    job_lookup,
    journal,
    leases,
    replicas,
    versions,
)
from holdfast.store.approvals import Approval
from holdfast.store.inventory import Place
from holdfast.store.jobs import Job
from holdfast.store.journal import Event
from holdfast.store.leases import Lease
from holdfast.store.replicas import Replica
from holdfast.store.tx import Tx

T = TypeVar("T")


class NoSuchIssuance(UserError):
    status, code = 404, "no-such-issuance"

    def __init__(self, issuance: str) -> None:
        super().__init__(f"There is no attempt {issuance!r:.80}.")
        self.hint = "See those of a certificate: holdfast get NAME"


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    items: Sequence[T]
    next: Place | None = None  # where the next page begins; None: this was the last
    total: int | None = None


# ── May they? ──


def on_certificate(principal: Principal, action: Action, ref: str) -> Check:
    """A check for transactions about one certificate. What the asker may not see is as if it were not there."""

    def check(tx: Tx) -> None:
        try:
            found = [found_by(tx, ref)]
        except NoSuchCertificate as why:
            found = list(why.alike)
        for each in (Owned.of(each) for each in found) if found else (None,):
            _demand(principal, action, each, ref)

    return check


def on_approval(principal: Principal, approval: str) -> Check:
    def check(tx: Tx) -> None:
        found = approvals.get(tx, approval)
        _demand(principal, Action.APPROVE, None if found is None else _owned(tx, found.certificate), approval)

    return check


def anywhere(principal: Principal, action: Action, resource: Owned | None = None) -> Check:
    """A check for what belongs to nobody in particular, or to whom the request itself says."""

    def check(tx: Tx) -> None:
        demand(principal, action, resource)

    return check


def _demand(principal: Principal, action: Action, resource: Owned | None, ref: str) -> None:
    verdict = allow(principal, action, resource or Owned("", {}))
    if verdict is Verdict.FORBIDDEN:
        raise Forbidden(principal, action)
    if verdict is Verdict.HIDDEN:
        raise NoSuchCertificate(ref)


def _owned(tx: Tx, certificate: str) -> Owned | None:
    found = certificates.get(tx, certificate)
    return None if found is None else Owned.of(found)


def _sees(principal: Principal, resource: Owned | None) -> bool:
    return resource is not None and allow(principal, Action.SEE, resource) is Verdict.ALLOWED


# ── Certificates ──


async def listed(
    keeper: Keeper,
    principal: Principal,
    wanted: Filter,
    *,
    sort: Sort = "name",
    after: Place | None = None,
    limit: int = 100,
    total: bool = False,
) -> Page[View]:
    mine = _confined(wanted, principal)

    def read(tx: Tx) -> Page[View]:
        if mine is None:
            return Page([], None, 0 if total else None)
        found = inventory.find(tx, mine, sort=sort, after=after, limit=limit)
        shown = [each for each in found if _sees(principal, Owned.of(each))]
        views = views_of(tx, shown)
        number = inventory.count(tx, mine) if total else None
        return Page(views, _end(tx, found, sort) if len(found) == limit else None, number)

    return await keeper.db.read(read)


def _confined(wanted: Filter, principal: Principal) -> Filter | None:
    """The filter within what the asker may see; None if there is nothing in both."""
    owners = wanted.owners
    if principal.owners:
        owners = tuple(each for each in owners or principal.owners if each in principal.owners)
        if not owners:
            return None
    if any(wanted.labels.get(name, value) != value for name, value in principal.labels.items()):
        return None
    return replace(wanted, owners=owners, labels={**wanted.labels, **principal.labels})


def _end(tx: Tx, found: Sequence[Certificate], sort: Sort) -> Place:
    last = found[-1]
    if sort == "name":
        return (last.name, last.id)
    held = versions.get(tx, last.current_version)
    return (inventory.NEVER if held is None else inventory.micros(held.not_after), last.id)


def views_of(tx: Tx, found: Sequence[Certificate]) -> list[View]:
    """With all that their status is computed from, in a few statements however many they are; without their chains."""
    held = versions.many(tx, [each.current_version for each in found if each.current_version is not None], chains=False)
    attempts = inventory.under_way(tx, [each.id for each in found])
    known = inventory.jobs_of(tx, ISSUE, [each.id for each in attempts.values()])
    waits = {each: waiting(job) for each, job in known.items()}
    undecided = [each.id for each in attempts.values() if each.state is Step.AWAITING_APPROVAL]
    waits |= {each: Waiting(due_at=at) for each, at in approvals.ends(tx, undecided).items()}
    now = tx.now()
    return [
        View(
            certificate=each,
            current=held.get(each.current_version or ""),
            issuance=attempts.get(each.id),
            job=waits.get(attempts[each.id].id) if each.id in attempts else None,
            now=now,
        )
        for each in found
    ]


async def versions_of(keeper: Keeper, ref: str) -> list[Version]:
    return await keeper.db.read(lambda tx: versions.of(tx, found_by(tx, ref).id))


# ── Attempts ──


async def attempts(
    keeper: Keeper,
    principal: Principal,
    *,
    certificate: str | None = None,
    state: str | None = None,
    after: Place | None = None,
    limit: int = 100,
) -> Page[Issuance]:
    def read(tx: Tx) -> Page[Issuance]:
        of = None
        if certificate is not None:
            on_certificate(principal, Action.SEE, certificate)(tx)
            of = found_by(tx, certificate).id
        found = inventory.attempts(tx, certificate=of, state=state, after=after, limit=limit)
        shown = _visible(tx, principal, found, [each.certificate for each in found])
        return Page(shown, inventory.place_of_attempt(found[-1]) if len(found) == limit else None)

    return await keeper.db.read(read)


async def attempt(keeper: Keeper, principal: Principal, issuance: str) -> Issuance:
    def read(tx: Tx) -> Issuance:
        found = issuances.get(tx, issuance)
        if found is None or not _sees(principal, _owned(tx, found.certificate)):
            raise NoSuchIssuance(issuance)
        return found

    return await keeper.db.read(read)


def _visible(tx: Tx, principal: Principal, items: Sequence[T], subjects: Iterable[str]) -> list[T]:
    """Those about certificates that the asker may see; whoever is not confined sees all."""
    if not principal.confined:
        return list(items)
    known: dict[str, bool] = {}
    for subject in subjects:
        if subject not in known:
            known[subject] = _sees(principal, _owned(tx, subject))
    return [item for item, subject in zip(items, subjects, strict=True) if known[subject]]


# ── Approvals ──


async def approval_list(
    keeper: Keeper, principal: Principal, *, state: str = "pending", after: Place | None = None, limit: int = 100
) -> Page[Approval]:
    seen = Filter(owners=principal.owners, labels=principal.labels, whatever_state=True)
    found = await keeper.db.read(lambda tx: inventory.approval_page(tx, seen, state=state, after=after, limit=limit))
    return Page(found, inventory.place_of_approval(found[-1]) if len(found) == limit else None)


async def approval(keeper: Keeper, principal: Principal, approval_id: str) -> Approval:
    def read(tx: Tx) -> Approval:
        demand(principal, Action.SEE, principal.scope)
        found = approvals.get(tx, approval_id)
        if found is None or not _sees(principal, _owned(tx, found.certificate)):
            raise NoSuchApproval(approval_id)
        return found

    return await keeper.db.read(read)


# ── Events ──


async def events(
    keeper: Keeper, principal: Principal, *, after: int, subject: str | None = None, limit: int = 200
) -> tuple[list[Event], int]:
    """The next ones that the asker may see, and the id to go on from: later than the last one shown, perhaps.

    Whoever follows them asks again and again, with a token that may have been revoked meanwhile.
    """

    def read(tx: Tx) -> tuple[list[Event], int]:
        tokens.check_still_good(tx, principal)
        about = None if subject is None else _subject(tx, principal, subject)
        found = journal.events_after(tx, after, subject=about, limit=limit)
        shown = _visible(tx, principal, found, [each.subject for each in found])
        return shown, found[-1].id if found else after

    return await keeper.db.read(read)


def _subject(tx: Tx, principal: Principal, ref: str) -> str:
    """Certificates may be named as people name them; other subjects by their ids."""
    found = meant_by(tx, ref)  # asked again and again by those who follow: nothing more is looked up
    if len(found) != 1:
        return ref
    on_certificate(principal, Action.SEE, ref)(tx)
    return found[0].id


async def now(keeper: Keeper) -> datetime:
    """By the database's clock."""
    return await keeper.db.read(lambda tx: tx.now())


async def newest_event(keeper: Keeper) -> int:
    return await keeper.db.read(inventory.newest_event)


# ── Jobs, cluster ──


async def job_list(
    keeper: Keeper, *, kind: str | None = None, state: str | None = None, after: str = "", limit: int = 100
) -> list[Job]:
    return await keeper.db.read(lambda tx: inventory.job_page(tx, kind=kind, state=state, after=after, limit=limit))


async def job(keeper: Keeper, job_id: str) -> Job:
    found = await keeper.db.read(lambda tx: job_lookup.found(tx, job_id) or job_lookup.ended(tx, job_id))
    if found is None:
        raise NoSuchJob(job_id)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSeen:
    """A loop as the replica tells it that did it last."""

    name: str
    replica: str
    ended_at: datetime | None
    next_at: datetime | None
    took_s: float | None
    error: str


@dataclass(frozen=True, slots=True)
class Cluster:
    at: datetime
    replicas: Sequence[Replica]
    leases: Sequence[Lease]
    loops: Sequence[LoopSeen]
    at_work: Mapping[str, int]  # jobs that each holder has
    own: Sequence[IssuerEnd]


async def cluster(keeper: Keeper) -> Cluster:
    def read(tx: Tx) -> Cluster:
        everyone = replicas.everyone(tx)
        return Cluster(tx.now(), everyone, leases.held(tx), _loops(everyone), replicas.at_work(tx), ca_ends.all_of(tx))

    return await keeper.db.read(read)


def _loops(everyone: Sequence[Replica]) -> list[LoopSeen]:
    """Of each name the one that was tried last: most loops are done by whichever replica leads."""
    told = [(name, float(each["tried"]), replica, each) for replica in everyone for name, each in replica.loops.items()]
    last = {name: (replica, each) for name, _, replica, each in sorted(told, key=lambda one: one[1])}
    return [_loop(name, *last[name]) for name in sorted(last)]


def _loop(name: str, replica: Replica, told: Mapping[str, Any]) -> LoopSeen:
    ended = told.get("ended")
    return LoopSeen(
        name=name,
        replica=replica.name,
        ended_at=None if ended is None else datetime.fromtimestamp(ended, UTC),
        next_at=datetime.fromtimestamp(told["tried"] + told["period"], UTC),
        took_s=told.get("took"),
        error=str(told.get("error", "")),
    )
