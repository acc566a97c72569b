"""Our side of the benchmarks, run in a process of its own: `python -m bench.ours jobs|claims --store URL-or-PATH`."""

import argparse
import asyncio
import json
import statistics
import time
from datetime import timedelta
from pathlib import Path

import uvloop

from holdfast.core.work.job import Done, Outcome, Spec
from holdfast.engine.kind import JobKind, Work
from holdfast.engine.worker import Worker, WorkerIdentity
from holdfast.from_settings import compose
from holdfast.ports import no_points
from holdfast.secret import Secret
from holdfast.store import migrate
from holdfast.store.database import Database, Engine
from holdfast.store.postgres import PostgresEngine
from holdfast.store.sqlite import SqliteEngine
from holdfast.store.tx import Tx
from holdfast.store.work import jobs
from holdfast.telemetry import Metrics, SilentLog, Telemetry
from holdfast.world import SystemClock, SystemRandom

TTL = timedelta(seconds=30)
FAR = 10**15  # microseconds: a job due in thirty years


async def open_store(where: str) -> Database:
    engine: Engine
    if where.startswith("postgresql:"):
        engine = PostgresEngine(Secret(where), connections=2)
    else:
        engine = SqliteEngine(Path(where), SystemClock())
    db = compose(engine, clock=SystemClock(), points=no_points, deadline=timedelta(seconds=300))
    await migrate.bring_up(db, points=no_points)
    return db


async def run_jobs(where: str, number: int, slots: int, inflight: int) -> dict[str, object]:
    """One enqueue call and one durable answer a job, `inflight` at once; then one worker drains them."""
    db, random = await open_store(where), SystemRandom()
    numbers = iter(range(number))

    async def lane() -> None:
        for n in numbers:
            spec = Spec(id=random.new_id("job"), kind="noop", subject=str(n))
            await db.write(lambda tx, spec=spec: jobs.owe(tx, spec))

    began = time.perf_counter()
    await asyncio.gather(*(lane() for _ in range(inflight)))
    enqueued = time.perf_counter()
    if db.engine.name == "postgresql":
        await db.run_long(lambda tx: tx.run("ANALYZE"), deadline=timedelta(minutes=1))  # as for the peers
    start = time.perf_counter()
    ran: set[str] = set()
    await drain(db, random, number, slots, ran)
    drained = time.perf_counter()
    finished = await db.read(lambda tx: tx.rows("SELECT COUNT(*) AS n FROM job_history WHERE state = 'done'"))
    if len(ran) != number or finished[0]["n"] != number:
        raise SystemExit(f"{len(ran)} ran and {finished[0]['n']} finished of {number}")
    await db.close()
    return {
        "engine": "holdfast",
        "store": db.engine.name,
        "jobs": number,
        "enqueue_s": enqueued - began,
        "drain_s": drained - start,
        "total_s": drained - start + enqueued - began,
    }


async def drain(db: Database, random: SystemRandom, number: int, slots: int, ran: set[str]) -> None:
    stop, all_ran = asyncio.Event(), asyncio.Event()

    async def noop(work: Work) -> Outcome:
        ran.add(work.claim.id)
        if len(ran) == number:
            all_ran.set()
        return Done()

    worker = Worker(
        db=db,
        identity=WorkerIdentity(holder=random.new_id("replica"), name="bench"),
        kinds=[JobKind(name="noop", handler=noop, slots=slots)],
        clock=SystemClock(),
        points=no_points,
        telemetry=Telemetry(log=SilentLog(), metrics=Metrics()),
        ttl=TTL,
        poll=timedelta(seconds=1),
        drain=timedelta(seconds=30),
    )
    running = asyncio.create_task(worker.run(stop))
    await all_ran.wait()
    stop.set()
    await running  # the drain: on return every result is written


async def run_claims(where: str, finished: int, future: int, rounds: int) -> dict[str, object]:
    """What one claim of 16 costs, with so many rows lying about."""
    db = await open_store(where)
    await db.run_long(lambda tx: fill(tx, db.engine.name, finished, future), deadline=timedelta(minutes=10))
    if db.engine.name == "postgresql":
        await db.run_long(lambda tx: tx.run("ANALYZE"), deadline=timedelta(minutes=10))
    costs = []
    for n in range(rounds):
        for k in range(16):
            await db.write(lambda tx, n=n, k=k: jobs.enqueue(tx, Spec(id=f"j{n}-{k}", kind="noop", subject=f"{n}-{k}")))
        began = time.perf_counter()
        claims = await db.write(lambda tx: jobs.claim(tx, holder="bench", free={"noop": 16}, ttl=TTL))
        costs.append(time.perf_counter() - began)
        if len(await db.write(lambda tx, claims=claims: jobs.finish(tx, claims))) != 16:
            raise SystemExit("a claim did not get its 16 jobs")
    await db.close()
    return {
        "store": db.engine.name,
        "finished": finished,
        "future": future,
        "median_ms": 1000 * statistics.median(costs),
    }


def fill(tx: Tx, engine: str, finished: int, future: int) -> None:
    if engine == "postgresql":
        numbers = "(SELECT generate_series(1, {n}) AS n) AS numbers"
    else:
        numbers = "(WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < {n}) SELECT n FROM c)"
    if finished:
        tx.run(
            f"""INSERT INTO job_history (id, kind, subject, state, attempts, fence, created_at, finished_at)
                SELECT 'h' || n, 'noop', 's' || n, 'done', 1, 1, n, n FROM {numbers.format(n=finished)}"""
        )
    if future:
        tx.run(
            f"""INSERT INTO jobs (id, kind, subject, state, priority, due_at, max_attempts, created_at)
                SELECT 'f' || n, 'noop', 'f' || n, 'ready', 1, now_us() + {FAR} + n, 3, n
                  FROM {numbers.format(n=future)}"""
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["jobs", "claims"])
    parser.add_argument("--store", required=True)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--inflight", type=int, default=16)
    parser.add_argument("--finished", type=int, default=0)
    parser.add_argument("--future", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=200)
    wanted = parser.parse_args()
    if wanted.what == "jobs":
        result = uvloop.run(run_jobs(wanted.store, wanted.jobs, wanted.slots, wanted.inflight))
    else:
        result = uvloop.run(run_claims(wanted.store, wanted.finished, wanted.future, wanted.rounds))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
