"""The watch: a job for each endpoint, which looks at it every so often, for ever, and remembers what it saw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

from holdfast.core import endpoint_watch
from holdfast.core.endpoint import Sighting
from holdfast.core.endpoint_watch import WatchedEndpoint
from holdfast.core.work.job import Again, Done, Outcome, Spec
from holdfast.engine.kind import JobKind, Work
from holdfast.operations.endpoints import watching
from holdfast.operations.endpoints.watching import WATCH, Look
from holdfast.ports import Random
from holdfast.store import endpoints
from holdfast.store.database import Store
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


def owed(random: Random) -> Callable[[Tx], Sequence[Spec]]:
    """Every endpoint has a job to come; the reconciler sees to it."""

    def specs(tx: Tx) -> Sequence[Spec]:
        return [watching.job(random.new_id("job"), each) for each in endpoints.without_job(tx, WATCH)]

    return specs
