"""The workload of the simulator and of the kill harness: a small issuance, with everything that can go wrong in one.

An errand is asked for, ordered from a remote CA under an idempotency key, polled, and issued. Each request to the CA
costs its budget one unit. The state and the job that carries it on are always written together.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final, Literal

from holdfast.core.backoff import poll_wait, rest_wait, retry_after
from holdfast.core.issuers.budget import Limit
from holdfast.core.work.job import Again, Done, Outcome, Spec
from holdfast.engine.kind import JobKind, Work
from holdfast.errors import Refused, TryLater
from holdfast.ports import Clock, Random, Request, Response, Transport
from holdfast.store import journal
from holdfast.store.database import Store
from holdfast.store.tx import Tx
from holdfast.store.work import budgets, jobs

KIND: Final = "errand"
BUDGET: Final = "ca:sim"
LIMIT: Final = Limit(burst=20, every=timedelta(seconds=3))
WINDOW: Final = timedelta(seconds=600)

TABLE: Final = """CREATE TABLE IF NOT EXISTS errands (
    id TEXT PRIMARY KEY, state TEXT NOT NULL, ref TEXT, polls INTEGER NOT NULL DEFAULT 0,
    asked_at BIGINT NOT NULL, certificate TEXT)"""


class State(StrEnum):
    ASKED = "asked"
    ORDERED = "ordered"
    ISSUED = "issued"


MOVES: Final = {
    (State.ASKED, "order accepted"): State.ORDERED,
    (State.ORDERED, "certificate received"): State.ISSUED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    id: str
    state: State
    ref: str | None
    polls: int
    asked_for: timedelta


Wait = Callable[[Errand, int], timedelta]  # before the n-th look at the CA


def set_up(tx: Tx, limit: Limit = LIMIT) -> None:
    tx.run(TABLE)
    budgets.define(tx, BUDGET, limit)


def ask(tx: Tx, errand: str, job: str) -> str:
    """The operation: the errand, its job and its audit row, or none of them."""
    tx.run("INSERT INTO errands (id, state, asked_at) VALUES (:id, 'asked', now_us())", id=errand)
    jobs.owe(tx, spec(errand, job))
    journal.audit(tx, "errand_asked", errand)
    return errand


def spec(errand: str, job: str) -> Spec:
    return Spec(id=job, kind=KIND, subject=errand, budgets=(BUDGET,), max_attempts=5)


def owed(random: Random) -> Callable[[Tx], Sequence[Spec]]:
    """For the reconciler: errands under way that have no job at all."""

    def specs(tx: Tx) -> Sequence[Spec]:
        return [spec(errand, random.new_id("job")) for errand in jobless(tx)]

    return specs


def jobless(tx: Tx) -> list[str]:
    rows = tx.rows(
        """SELECT id FROM errands WHERE state <> 'issued'
              AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.kind = :kind AND jobs.subject = errands.id)
            ORDER BY id LIMIT 500""",
        kind=KIND,
    )
    return [row["id"] for row in rows]


def get(tx: Tx, errand: str) -> Errand:
    row = tx.rows(
        "SELECT id, state, ref, polls, now_us() - asked_at AS asked_for FROM errands WHERE id = :id",
        id=errand,
    )[0]
    return Errand(
        id=row["id"],
        state=State(row["state"]),
        ref=row["ref"],
        polls=row["polls"],
        asked_for=timedelta(microseconds=row["asked_for"]),
    )


def _move(tx: Tx, errand: Errand, event: Literal["order accepted", "certificate received"], **columns: str) -> None:
    """One step of the machine, its audit row with it. The state it leaves is part of the condition."""
    state = MOVES[errand.state, event]
    [(column, value)] = columns.items()
    changed = tx.run(
        f"UPDATE errands SET state = :state, polls = 0, {column} = :value WHERE id = :id AND state = :before",
        id=errand.id,
        state=state,
        before=errand.state,
        value=value,
    )
    if changed:
        journal.audit(tx, f"errand_{state}", errand.id)
        journal.event(tx, f"errand.{state}", errand.id)


def poll_ladder(errand: Errand, attempt: int) -> timedelta:
    """How long the CA is left alone before the next look: the product's own ladder."""
    wait = poll_wait(attempt, waited=max(timedelta(0), errand.asked_for), window=WINDOW, key=errand.id)
    return wait if wait is not None else rest_wait(max(timedelta(0), errand.asked_for), key=f"{errand.id}:{attempt}")


def kind(
    db: Store, transport: Transport, clock: Clock, base: str, *, slots: int = 8, wait: Wait = poll_ladder
) -> JobKind:
    """How errands are run. `wait` is for harnesses in real time, which cannot spend five seconds on each."""

    async def handler(work: Work) -> Outcome:
        errand = await db.read(lambda tx: get(tx, work.claim.subject))
        if errand.state is State.ISSUED:
            return Done()  # a predecessor finished it and died before saying so
        work.check()
        answer = await transport.request(_request(errand, base))
        work.point("job.effect-done")
        if answer.status == 429:
            after = retry_after(answer.headers.get("retry-after"), clock.now()) or timedelta(minutes=1)
            return Again(after=after, reason="CA_RATE_LIMITED", write=lambda tx: _hold(tx, after))
        if answer.status == 410:
            raise Refused(f"the CA refuses {errand.id}")
        if answer.status != 200:
            raise TryLater(f"the CA answered {answer.status}")
        return _next_step(errand, answer, wait)

    return JobKind(name=KIND, handler=handler, slots=slots, timeout=timedelta(seconds=100))


def _hold(tx: Tx, after: timedelta) -> None:
    budgets.hold(tx, BUDGET, tx.now() + after)


def _request(errand: Errand, base: str) -> Request:
    if errand.state is State.ASKED:
        return Request(method="POST", url=f"{base}/orders/{errand.id}", deadline_for=60)  # the id is the key
    return Request(method="GET", url=f"{base}/certificates/{errand.ref}", deadline_for=60)


def _next_step(errand: Errand, answer: Response, wait: Wait) -> Outcome:
    found = json.loads(answer.body)
    if errand.state is State.ASKED:
        return Again(
            after=wait(errand, 1),
            reason="CA_STILL_PENDING",
            write=lambda tx: _move(tx, errand, "order accepted", ref=found["ref"]),
        )
    if found["certificate"] is None:
        polls = errand.polls + 1
        return Again(
            after=wait(errand, polls + 1),
            reason="CA_STILL_PENDING",
            write=lambda tx: _count_poll(tx, errand.id, polls),
        )
    return Done(write=lambda tx: _move(tx, errand, "certificate received", certificate=found["certificate"]))


def _count_poll(tx: Tx, errand: str, polls: int) -> None:
    tx.run("UPDATE errands SET polls = :polls WHERE id = :id", id=errand, polls=polls)
