"""The job of a discovery: one step after the other, each committed with what it found before the next begins.

A killed process loses one step at most: the next one goes on from the position in the row. A stop is seen before each
step. What a round did not see where it looked is gone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from holdfast.core.discovery import discovery as rules
from holdfast.core.discovery.discovery import Discovery, DiscoveryState
from holdfast.core.discovery.find import CertificateFacts, FindSource
from holdfast.core.work.job import Again, Done, Outcome, Spec
from holdfast.engine.kind import JobKind, Work
from holdfast.errors import Refused, TryLater
from holdfast.operations.discovery import discoveries as manage
from holdfast.operations.discovery import recording
from holdfast.operations.discovery.discoveries import DISCOVER
from holdfast.operations.discovery.recording import Spot
from holdfast.ports import Random
from holdfast.store import discoveries, journal
from holdfast.store.database import Store
from holdfast.store.marks import inline
from holdfast.store.tx import Tx

SLOTS: Final = 4
LATER: Final = timedelta(minutes=5)  # a remote that cannot answer is asked again


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighted:
    """A certificate that a step saw, and where."""

    facts: CertificateFacts
    spot: Spot


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What a step did. `over`: the round is at its end."""

    position: Mapping[str, Any]
    sighted: Sequence[Sighted] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    total: int | None = None
    over: bool = False
    whole: bool = True  # everything was looked at in this round, so what was not seen is gone


Step = Callable[[Discovery], Awaitable[StepResult]]


def kind(db: Store, random: Random, steps: Mapping[FindSource, Step]) -> JobKind:
    async def handler(work: Work) -> Outcome:
        row, now = await db.read(inline(lambda tx: (discoveries.get(tx, work.claim.subject), tx.now())))
        if row is None or row.state not in (DiscoveryState.RUNNING, DiscoveryState.RESTING):
            return Done()
        if row.state is DiscoveryState.RESTING:
            return _rest(row, now)
        if row.position.get("left"):
            return _leave(row)
        work.check()
        try:
            done = await steps[row.source](row)
        except TryLater as why:
            said, after = str(why), why.after or LATER
            return Again(after=after, reason="WAITING", write=lambda tx: _wait(tx, row, said))
        except Refused as why:
            said = str(why)
            return Done(write=lambda tx: _fail(tx, row, said))
        return Again(write=lambda tx: _write(tx, row, done, random))

    return JobKind(name=DISCOVER, handler=handler, slots=SLOTS, timeout=timedelta(minutes=10), interruptible=True)


def _rest(row: Discovery, now: datetime) -> Outcome:
    due = (row.finished_at or row.begun_at) + (row.every or timedelta(0))
    if due > now:
        return Again(at=due, reason="SCHEDULED")
    return Again(write=lambda tx: _begin(tx, row.id))


def _begin(tx: Tx, discovery: str) -> None:
    row = discoveries.get(tx, discovery)
    if row is not None and row.state is DiscoveryState.RESTING:
        manage.next_round(tx, row)


def _write(tx: Tx, before: Discovery, done: StepResult, random: Random) -> None:
    """What a step saw, with the position after it; nothing if the discovery was stopped meanwhile."""
    row = discoveries.get(tx, before.id)
    if row is None or row.version != before.version:
        return
    recorded = [recording.record(tx, each.facts, each.spot, random.new_id) for each in done.sighted]
    unmanaged = sum(each.new and each.find.unmanaged and each.find.served for each in recorded)
    counts = rules.counted(
        row.counts, **done.counts, new=sum(each.new for each in recorded), unmanaged=unmanaged,
        certificates=len(recorded),
    )  # fmt: skip
    position = {**done.position, **({"left": done.whole or "no"} if done.over else {})}
    total = row.total if done.total is None else done.total
    discoveries.save(tx, row, position=position, counts=counts, total=total, problem="")


def _leave(row: Discovery) -> Outcome:
    """The last steps of a round: what it did not see is gone; then it rests, or is done."""

    def write(tx: Tx) -> None:
        now = discoveries.get(tx, row.id)
        if now is None or now.version != row.version:
            return
        if row.position["left"] is True and recording.left(tx, row.id, row.begun_at):
            return  # there is more: the next step goes on
        _finish(tx, now)

    return Again(write=write)


def _finish(tx: Tx, row: Discovery) -> None:
    event: rules.DiscoveryEvent = "finished" if row.every is None else "rested"
    kept = {name: value for name, value in row.position.items() if name in ("log", "done")}
    discoveries.save(tx, row, state=rules.move(row.state, event), position=kept, finished_at=tx.now())
    told: dict[str, Any] = {name: row.counts.get(name, 0) for name in _TOLD}
    journal.event(tx, "discovery.finished", row.id, source=row.source.value, **told)


_TOLD: Final = ("tried", "certificates", "new", "unmanaged")


def _wait(tx: Tx, before: Discovery, why: str) -> None:
    row = discoveries.get(tx, before.id)
    if row is not None and row.version == before.version:
        discoveries.save(tx, row, problem=why[:500])


def _fail(tx: Tx, before: Discovery, why: str) -> None:
    row = discoveries.get(tx, before.id)
    if row is not None and row.version == before.version:
        discoveries.save(tx, row, state=rules.move(row.state, "failed"), problem=why[:500], finished_at=tx.now())
        journal.event(tx, "discovery.failed", row.id, error=why[:500], source=row.source.value)


def owed(random: Random) -> Callable[[Tx], Sequence[Spec]]:
    """Every discovery that goes on has a job; the reconciler sees to it."""

    def specs(tx: Tx) -> Sequence[Spec]:
        rows = [discoveries.get(tx, each) for each in discoveries.without_job(tx, DISCOVER)]
        return [manage.job(random.new_id("job"), each) for each in rows if each is not None]

    return specs
