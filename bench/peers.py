"""The job benchmark's peers: what Procrastinate and PgQueuer make of the work that our engine is given.

    python -m bench.peers procrastinate|pgqueuer --dsn URL [--jobs 10000] [--slots 16] [--inflight 16]

One line of JSON on stdout: {"peer", "version", "enqueue_s", "drain_s", "total_s", "jobs"}. Exit status 3: the
peer, or what it needs, is not installed (the reason is on stderr). The URL names any database of the server,
by a user who may create databases: the run makes its own, and drops it.

The method, the same for every engine:

1. One producer calls enqueue once per job, no payload, at most `inflight` calls at once, each answered when the
   job is committed: by the peers in a commit of its own, because neither puts waiting calls together.
   `enqueue_s` is from the first call to the last answer. Connections are open before the clock starts.
2. ANALYZE, off the clock, as autovacuum would have done within the minute. It decides: without statistics
   PostgreSQL lets Procrastinate's claim read and sort the whole backlog (2,000 to 4,000 jobs: 300 to 900/s
   drained, depending on when autovacuum came by); with them it walks an index (1,000 to 1,800/s).
3. One worker, in the same process and with `slots` slots, runs the jobs, which do nothing but count
   themselves. `drain_s` is from its start until the engine's own table has no unfinished job; how long the
   worker takes to shut down is not counted.
4. Every job ran exactly once, and the engine has it as finished, or there is no figure.

Each peer is set up as fast as we could make it without giving up that a job, once enqueued, survives a crash.
The trials: PostgreSQL 18.4, PostgreSQL's default settings, 2 cores shared with other work, 1,000 to 4,000 jobs,
medians of 3 to 9 interleaved rounds, or with a ~ one run. Figures are comparable within an item, less so between
items: the other work changed. Where no medium is named, the data files were in memory.
"""

import argparse
import asyncio
import contextlib
import json
import logging
import secrets
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.metadata import version
from itertools import cycle
from urllib.parse import urlsplit

import psycopg

# Connections the producer spreads its calls over. Both peers NOTIFY with every enqueue, and PostgreSQL lets only
# one such commit through at a time, so a connection for every call in flight gains little or loses. With 1/2/3/4/8,
# calls/s, PgQueuer: 2,970/2,880/2,860/3,310/3,180, on disk 2,000/2,040/2,080/1,640/1,760 (best round: 4 on disk, 8
# in memory), with 16 less on both; Procrastinate: 2,310/2,550/2,870/2,740/2,990, on disk 1,480/1,640/1,350/1,650/2,540.
CONNECTIONS = {"pgqueuer": 4, "procrastinate": 8}
PATIENCE = 30.0  # seconds that the last jobs may take to be finished, once all have run

Times = tuple[float, float]  # of enqueueing, of draining


class Tally:
    """Which jobs ran, and how often."""

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.runs: Counter[int] = Counter()
        self.complete = asyncio.Event()

    def ran(self, job: int) -> None:
        """Count a job; all that a job of this benchmark does."""
        self.runs[job] += 1
        if len(self.runs) == self.expected:
            self.complete.set()

    def check(self) -> None:
        """Insist that every job ran exactly once."""
        if len(self.runs) != self.expected or self.runs.total() != self.expected:
            raise RuntimeError(f"{self.runs.total()} runs of {len(self.runs)} jobs, not of {self.expected}")


async def procrastinate(dsn: str, jobs: int, slots: int, inflight: int) -> Times:
    """Measure Procrastinate.

    What made it fast, from the documented defaults to this (enqueued/s, drained/s):
    - as installed, pool of 4: 1,600, 690
    - our own pool, as `open_async` takes one, so without a check, a round trip, at every checkout: 2,000, 880
    - autocommit: every query of its is a single statement, and BEGIN and COMMIT are two round trips: 2,300, 990
      (set by `configure`, because in `kwargs` it collides with the listener's own)
    - both: 2,700, 1,200; and uvloop: 3,200, 1,300
    - the producer's calls on connections of its own (`configure(connection=…)`): 15 % less CPU than by a pool
    - the worker's pool: 2/3/4/8/17 connections: 1,330/1,170/1,230/1,050/970; on disk 1,150/1,040/930/820/520;
      with one, 830 on disk where two gave 960. It claims one job at a time, so only the finishing has any use for more.
    - delete_jobs: "always" and "successful" run the same statement, and were level; "never": ~20 % slower.
    - listen_notify: on or off made no difference; left on, as it is by default.

    What it keeps of a job: with these settings nothing, the row goes and its events with it. With "never" a
    row in procrastinate_jobs and three in procrastinate_events (deferred, started, succeeded), until removed.
    """
    from procrastinate import App, JobContext, PsycopgConnector
    from psycopg_pool import AsyncConnectionPool

    tally = Tally(jobs)
    app = App(connector=PsycopgConnector())

    @app.task(name="noop", pass_context=True)
    async def noop(context: JobContext) -> None:
        tally.ran(context.job.id or 0)

    async def autocommit(connection: psycopg.AsyncConnection) -> None:
        await connection.set_autocommit(True)

    async with contextlib.AsyncExitStack() as stack:
        pool = AsyncConnectionPool(dsn, min_size=2, max_size=2, configure=autocommit, open=False)
        await stack.enter_async_context(pool)
        await pool.wait()
        await stack.enter_async_context(app.open_async(pool))
        await app.schema_manager.apply_schema_async()
        deferrers = []
        for _ in range(CONNECTIONS["procrastinate"]):
            connection = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
            await stack.enter_async_context(connection)
            deferrers.append(noop.configure(connection=connection))
        enqueue_s = await produce([deferrer.defer_async for deferrer in deferrers], jobs, inflight)

        drain_s = await drain(
            lambda: app.run_worker_async(
                concurrency=slots, wait=False, delete_jobs="always", install_signal_handlers=False
            ),
            tally,
            dsn,
            "SELECT count(*) FROM procrastinate_jobs",  # a finished one is deleted, a failed one too
        )
    return enqueue_s, drain_s


async def pgqueuer(dsn: str, jobs: int, slots: int, inflight: int) -> Times:
    """Measure PgQueuer; with `slots` 0 without its limit of running jobs, which is not like for like.

    What was tried (enqueued/s, drained/s):
    - asyncio: 3,000, 4,800; uvloop, which its own command uses: 3,500, 5,600
    - the producer on asyncpg's pool, 0.17 ms of our CPU a call, a third of it to reset the connection at
      every return; without the reset 0.12; on plain connections 0.09 (that is here); one connection of asyncpg
      ~3,400/s, of psycopg ~2,800/s
    - the worker on one asyncpg connection, as its guide advises: 5,900 drained, on disk 3,900; on a pool of
      2/4/8: 5,300/6,000/-, on disk 3,000/1,400/2,500; on psycopg: ~1,900, on disk 1,600
    - batch_size 4/8 with max_concurrent_tasks=16: ~2,800/5,900. 8 is the most it accepts, half of the limit.
      concurrency_limit=16 at the entry point instead, batch 8 or 16: ~3,300
    - limits of 32 (batch 16) and 64 (batch 32): 8,700, 10,500
    - no limit, batch 8/16/32/64/128: 6,300/8,900/10,300/~14,400/12,900; on disk, batch 128: 9,500
    - `pgq autovac`, durability "balanced" (its log unlogged): no difference that the noise let through.
      Left as installed: "durable", because the history of a job is part of what is compared.

    What it keeps of a job: no row in pgqueuer, but three in pgqueuer_log (queued, picked, successful), never
    pruned by itself, and counts per second in pgqueuer_statistics.
    """
    import asyncpg
    from pgqueuer import PgQueuer
    from pgqueuer.db import AsyncpgDriver
    from pgqueuer.models import Job
    from pgqueuer.queries import Queries
    from pgqueuer.types import QueueExecutionMode

    tally = Tally(jobs)
    async with contextlib.AsyncExitStack() as stack:

        async def connect() -> AsyncpgDriver:
            connection = await asyncpg.connect(dsn)
            stack.push_async_callback(connection.close)
            return AsyncpgDriver(connection)

        producers = [Queries(await connect()) for _ in range(CONNECTIONS["pgqueuer"])]
        await producers[0].install()
        worker = PgQueuer(await connect())

        @worker.entrypoint("noop")
        async def noop(job: Job) -> None:
            tally.ran(job.id)

        def call(queries: Queries) -> Callable[[], Awaitable[object]]:
            return lambda: queries.enqueue("noop", None)

        enqueue_s = await produce([call(queries) for queries in producers], jobs, inflight)

        drain_s = await drain(
            lambda: worker.run(
                batch_size=max(1, slots // 2) if slots else 128,
                max_concurrent_tasks=slots or None,
                mode=QueueExecutionMode.drain,
            ),
            tally,
            dsn,
            "SELECT count(*) FROM pgqueuer",  # a finished one is moved to the log
        )
        status = "SELECT count(*) AS jobs FROM pgqueuer_log WHERE status = 'successful'"
        (row,) = await producers[0].driver.fetch(status)
        if row["jobs"] != jobs:
            raise RuntimeError(f"PgQueuer's log has {row['jobs']} jobs as successful, not {jobs}")
    return enqueue_s, drain_s


PEERS = {"procrastinate": procrastinate, "pgqueuer": pgqueuer}


async def produce(calls: list[Callable[[], Awaitable[object]]], jobs: int, inflight: int) -> float:
    """Make `jobs` calls, spread evenly, at most `inflight` at once, and return the seconds they took."""
    turns = zip(range(jobs), cycle(calls), strict=False)

    async def lane() -> None:
        for _, call in turns:
            await call()

    start = time.perf_counter()
    await asyncio.gather(*(lane() for _ in range(inflight)))
    return time.perf_counter() - start


async def drain(run: Callable[[], Awaitable[object]], tally: Tally, dsn: str, unfinished: str) -> float:
    """Run a worker that ends by itself; return the seconds until the engine had all jobs as finished."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as watcher:

        async def left() -> int:
            row = await (await watcher.execute(unfinished.encode())).fetchone()
            return int(row[0]) if row else 0

        if (enqueued := await left()) != tally.expected:
            raise RuntimeError(f"{enqueued} jobs are enqueued, not {tally.expected}")
        await watcher.execute("ANALYZE")

        start = time.perf_counter()
        worker = asyncio.ensure_future(run())
        everything = asyncio.ensure_future(tally.complete.wait())
        await asyncio.wait((worker, everything), return_when=asyncio.FIRST_COMPLETED)
        everything.cancel()
        if tally.complete.is_set():
            deadline = time.perf_counter() + PATIENCE
            while await left() and time.perf_counter() < deadline:  # noqa: ASYNC110 - a table has no event
                await asyncio.sleep(0.002)
        seconds = time.perf_counter() - start
        await worker
        tally.check()
        if remaining := await left():
            raise RuntimeError(f"{remaining} jobs ran and are not finished")
        return seconds


@contextlib.asynccontextmanager
async def database(dsn: str) -> AsyncIterator[str]:
    """Make a database of our own on that server, and drop it afterwards."""
    name = f"bench_{secrets.token_hex(6)}"
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as server:
        await server.execute(f"CREATE DATABASE {name}".encode())
        try:
            yield urlsplit(dsn)._replace(path=f"/{name}").geturl()
        finally:
            await server.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


async def measure(peer: str, dsn: str, jobs: int, slots: int, inflight: int) -> dict[str, object]:
    """Run one peer in a database of its own."""
    async with database(dsn) as own:
        enqueue_s, drain_s = await PEERS[peer](own, jobs, slots, inflight)
    return {
        "peer": peer,
        "version": version(peer),
        "enqueue_s": round(enqueue_s, 4),
        "drain_s": round(drain_s, 4),
        "total_s": round(enqueue_s + drain_s, 4),
        "jobs": jobs,
    }


def main() -> None:
    """Measure the peer that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers", allow_abbrev=False)
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("--dsn", required=True, help="postgresql://… of any database of the server")
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--slots", type=int, default=16, help="jobs at once; 0, for PgQueuer only: no limit")
    parser.add_argument("--inflight", type=int, default=16, help="enqueue calls at once")
    options = parser.parse_args()
    if options.jobs < 1 or options.inflight < 1 or options.slots < (0 if options.peer == "pgqueuer" else 1):
        parser.error("--jobs, --inflight and --slots must be positive")

    logging.disable(logging.WARNING)  # neither peer pays for logs; an error of either is still seen
    try:
        import uvloop

        result = uvloop.run(measure(**vars(options)))
    except ImportError as error:
        print(f"{options.peer} is not installed: {error}", file=sys.stderr)
        sys.exit(3)
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
