"""The watch: a job for each endpoint, which looks at it every so often, for ever, and remembers what it saw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta

from holdfast.core import endpoint_watch
from holdfast.core.certificate import Certificate
from holdfast.core.endpoint import Endpoint, Sighting
from holdfast.core.endpoint_watch import WatchedEndpoint
from holdfast.core.target import TargetRow
from holdfast.core.work.job import Again, Done, Outcome, Spec
from holdfast.engine.deployment import looking
from holdfast.engine.kind import JobKind, Work
from holdfast.operations.endpoints import manage, watching
from holdfast.operations.endpoints.watching import WATCH, Look
from holdfast.ports import Random
from holdfast.store import certificates, endpoints, journal
from holdfast.store.database import Store
from holdfast.store.deployments import deployments, targets
from holdfast.store.marks import inline
from holdfast.store.tx import Tx

SLOTS = 64  # looks at a time: most of each is waiting


def kind(db: Store, look: Look, every: timedelta) -> JobKind:
    async def handler(work: Work) -> Outcome:
        row = await db.read(inline(lambda tx: endpoints.get(tx, work.claim.subject)))
        if row is None:
            return Done()
        work.check()
        return await _looked(db, row, await look(row.place), every)

    return JobKind(name=WATCH, handler=handler, slots=SLOTS, timeout=timedelta(minutes=2), interruptible=True)


async def _looked(db: Store, row: WatchedEndpoint, sightings: Sequence[Sighting], every: timedelta) -> Outcome:
    verdict, now = await db.read(inline(lambda tx: (watching.judge(tx, row, sightings), tx.now())))
    again = endpoint_watch.next_look(row.id, endpoint_watch.looked(row.last, verdict, now), every)

    def write(tx: Tx) -> None:
        watching.record(tx, row, verdict)

    return Again(at=again, reason="SCHEDULED", write=write)


# ── Endpoints of targets ──


async def follow_targets(db: Store, random: Random) -> int:
    """Watch each certificate where its targets serve it, and no more where they do not; how many rows changed."""
    names = await db.read(lambda tx: {each.name for each in targets.all_targets(tx)} | endpoints.targets(tx))
    changed = 0
    for name in sorted(names):
        if any(await db.read(lambda tx, name=name: _difference(tx, name))):  # type: ignore[misc]
            changed += await db.write(lambda tx, name=name: _follow(tx, name, random))  # type: ignore[misc]
    return changed


def _follow(tx: Tx, name: str, random: Random) -> int:
    new, gone = _difference(tx, name)
    for row in gone:
        manage.remove(tx, row, actor=journal.SYSTEM)
    for certificate, place in new:
        manage.watch(tx, random, place, target=name, certificate=certificate)
    return len(gone) + len(new)


def _difference(tx: Tx, name: str) -> tuple[list[tuple[Certificate, Endpoint]], list[WatchedEndpoint]]:
    """What is served at a target and not watched, and what is watched and not served there any more."""
    target = targets.get(tx, name)
    wanted = {} if target is None else _served_at(tx, target)
    known = {(each.certificate or "", each.place): each for each in endpoints.of_target(tx, name)}
    new = [(found, place) for (each, place), found in wanted.items() if (each, place) not in known]
    return new, [each for key, each in known.items() if key not in wanted]


def _served_at(tx: Tx, target: TargetRow) -> dict[tuple[str, Endpoint], Certificate]:
    """The certificates that are in place there, by where each must be seen."""
    found = dict[tuple[str, Endpoint], Certificate]()
    for each in deployments.placed_at(tx, target.name) if target.endpoints else ():
        certificate = certificates.get(tx, each)
        if certificate is not None and target.name in certificate.wanted.targets:
            names = [name.value for name in certificate.wanted.identifiers]
            places = looking.endpoints_for(target.endpoints, names)
            found |= {(each, replace(place, samples=1)): certificate for place in places}
    return found


# ── For the reconciler ──


def owed(random: Random) -> Callable[[Tx], Sequence[Spec]]:
    """Every endpoint has a job to come; the reconciler sees to it."""

    def specs(tx: Tx) -> Sequence[Spec]:
        return [watching.job(random.new_id("job"), each) for each in endpoints.without_job(tx, WATCH)]

    return specs
