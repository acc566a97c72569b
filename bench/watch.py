"""Part of `make bench-deploy`: what it costs to watch ten thousand endpoints every ten minutes.

The endpoints have a name each, which a name server knows, and are one web server with TLS; both run in processes of
their own. The watch runs for a while at its true pace, on SQLite; the processor time of this process is what it costs,
the idle engine and its polls among it.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import ssl
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from tests.support.dns_server import DnsServer
from tests.support.engine import working
from tests.support.http_server import TcpServer
from tests.support.served import Issuing
from tests.support.stores import migrated

from bench.figures import figure, noted
from holdfast.core.backoff import spread
from holdfast.core.endpoint import Endpoint
from holdfast.core.endpoint_watch import WatchedEndpoint
from holdfast.endpoints import probe
from holdfast.engine import watch
from holdfast.from_settings import compose
from holdfast.network import SystemNet
from holdfast.operations.endpoints import watching
from holdfast.ports import no_points
from holdfast.store import endpoints
from holdfast.store.database import Database
from holdfast.store.sqlite import SqliteEngine
from holdfast.store.tx import Tx
from holdfast.store.work import jobs
from holdfast.world import SystemClock, SystemRandom

MANY: Final = 10_000
EVERY: Final = timedelta(minutes=10)
MEASURED_FOR: Final = 60.0  # seconds
SHARE: Final = 25.0  # per cent of one core
LATE: Final = 10.0  # seconds that a look may come after its time
PAGE: Final = 500


def name_of(number: int) -> str:
    return f"www{number}.example.org"


# ── The other side ──


def _serve(line: Connection, folder: Path) -> None:
    asyncio.run(_serving(line, folder))


async def _serving(line: Connection, folder: Path) -> None:
    pair = Issuing(folder).pair("*.example.org")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.fullchain, pair.key)
    async with TcpServer(_silent, tls=context) as server, DnsServer() as names:
        for number in range(MANY):
            names.add(name_of(number), "A", "127.0.0.1")
        line.send((server.port, names.address))
        await asyncio.Event().wait()


async def _silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)


@contextmanager
def other_side(folder: Path) -> Iterator[tuple[int, str]]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, folder), daemon=True)
    process.start()
    try:
        yield here.recv()
    finally:
        process.terminate()
        process.join()


# ── Ours ──


def _add(tx: Tx, port: int, numbers: range) -> None:
    """Each is due at its own place in the interval."""
    now = tx.now()
    for number in numbers:
        row = WatchedEndpoint(
            id=f"ep_{number:05}",
            name=name_of(number),
            place=Endpoint(host=name_of(number), port=port),
            created_at=now,
        )
        endpoints.insert(tx, row)
        jobs.enqueue(tx, watching.job(f"job_{number:05}", row.id))
        tx.run("UPDATE jobs SET due_at = :at WHERE id = :id", at=now + EVERY * spread(row.id), id=f"job_{number:05}")


def _looked(tx: Tx) -> tuple[int, int]:
    """How many were looked at, and how many of them are well."""
    found = endpoints.counts(tx)
    return sum(number for reason, number in found.items() if reason), found.get("OK", 0)


def _lateness(tx: Tx) -> float:
    """Seconds that the job that waits longest is over its time."""
    row = tx.row("SELECT MIN(due_at) AS first FROM jobs WHERE kind = :kind AND state = 'ready'", kind=watching.WATCH)
    return 0.0 if row is None or row["first"] is None else max(0.0, (tx.now().timestamp() - row["first"] / 1e6))


async def _measured(db: Database, resolver: str) -> None:
    eye = probe.make(SystemNet(), SystemRandom(), resolvers=[resolver], networks=["127.0.0.0/8"], each=10.0)
    kinds = [watch.kind(db, eye.look, EVERY)]
    async with working(db, kinds, poll=timedelta(seconds=1)):
        await asyncio.sleep(5)  # until it is warm
        before, _ = await db.read(_looked)
        began, used = time.monotonic(), time.process_time()
        await asyncio.sleep(MEASURED_FOR)
        took, used = time.monotonic() - began, time.process_time() - used
        number, well = await db.read(_looked)
        late = await db.read(_lateness)
    looks = number - before
    share = 100 * used / took
    figure("watch_10000_endpoints", share, "%_of_a_core", SHARE, met=share <= SHARE)
    noted("watch_looks", looks / took, "per_second")
    noted("watch_cost_of_a_look", 1000 * used / max(looks, 1), "ms")
    figure("watch_lateness", late, "s", LATE, met=late <= LATE)
    figure("watch_looks_that_saw_something_else", number - well, "endpoints", 0, met=number == well)


async def _run(folder: Path, port: int, resolver: str) -> None:
    db = compose(
        SqliteEngine(folder / "holdfast.sqlite", SystemClock()),
        clock=SystemClock(),
        points=no_points,
        deadline=timedelta(seconds=30),
    )
    await migrated(db)
    for start in range(0, MANY, PAGE):
        await db.write(lambda tx, start=start: _add(tx, port, range(start, start + PAGE)))  # type: ignore[misc]
    await _measured(db, resolver)
    await db.close()


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="hfwatch-") as made, other_side(Path(made)) as (port, resolver):
        asyncio.run(_run(Path(made), port, resolver))


if __name__ == "__main__":
    main()
