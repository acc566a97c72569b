"""`make bench-notifications`: ten thousand notifications through a real web hook, and through outages in skipped
time."""

from __future__ import annotations

import asyncio
import gc
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from tests.support.ca import a_vault
from tests.support.http_server import HttpRequest
from tests.support.inboxes import Inbox
from tests.support.notifications import DAYS, HOUR, SLOW, Newsroom, a_newsroom, in_virtual_time, pass_time
from tests.support.postgres import Cluster
from tests.support.stores import migrated

from bench.figures import figure
from holdfast.engine.notifications.senders import Senders
from holdfast.from_settings import compose
from holdfast.operations.notifications import channels, notifications
from holdfast.ports import no_points
from holdfast.secret import Secret
from holdfast.store.database import Engine
from holdfast.store.postgres import PostgresEngine
from holdfast.store.sqlite import SqliteEngine
from holdfast.world import HttpTransport, SystemClock

MANY: Final = 10_000
PAGE: Final = 500  # notifications that are caused together
MOST_MEMORY: Final = 64.0  # MiB more than before
RATE: Final = 100  # a second: what most channels take is far below
SIGNED_WITH: Final = Secret(b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")


class Ids(list[HttpRequest]):
    """Remembers who called, and nothing of what was said."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: Counter[str] = Counter()

    def append(self, call: HttpRequest) -> None:
        self.heard[call.headers["webhook-id"]] += 1
        self[:] = [call]


async def cause(room: Newsroom) -> None:
    for start in range(0, MANY, PAGE):
        await room.fail(*(f"cert-{n:05}" for n in range(start, start + PAGE)))


def memory() -> float:
    """The most that this process has had, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def drained(engine: Engine, folder: Path) -> tuple[float, float, Counter[str]]:
    """Seconds, MiB, and how often each came."""
    clock = SystemClock()
    db = compose(engine, clock=clock, points=no_points, deadline=timedelta(seconds=30))
    await migrated(db)
    secret_store, transport = await a_vault(db, folder), HttpTransport()
    senders = Senders(secret_store=secret_store, transport=transport, clock=clock)
    room = a_newsroom(db, vault=secret_store)
    room.boxes = senders  # type: ignore[assignment]
    async with Inbox() as web:
        web.requests = ids = Ids()
        await room.run(
            channels.add,
            name="hook",
            kind="webhook",
            rate={"burst": MANY, "every_s": 0.001},
            credentials={"url": web.url("/x"), "secret": SIGNED_WITH.reveal().decode()},
        )
        await cause(room)
        gc.collect()
        before, began = memory(), time.monotonic()
        async with room.running():
            while (await room.db.read(notifications.summarize)).by_state.get("sent", 0) < MANY:  # noqa: ASYNC110
                await asyncio.sleep(0.25)
            took = time.monotonic() - began
        more = memory() - before
    await transport.close()
    await db.close()
    return took, more, ids.heard


def on_sqlite(folder: Path, url: str) -> tuple[float, float, Counter[str]]:
    return asyncio.run(drained(SqliteEngine(folder / "holdfast.sqlite", SystemClock()), folder))


def on_postgresql(folder: Path, url: str) -> tuple[float, float, Counter[str]]:
    return asyncio.run(drained(PostgresEngine(Secret(url), connections=3), folder))


def drain(name: str, how: Callable[[Path, str], tuple[float, float, Counter[str]]], url: str = "") -> None:
    """In a process of its own: what it needed before must not hide what this needs."""
    with (
        tempfile.TemporaryDirectory(prefix="hfnotifications-") as folder,
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process,
    ):
        took, more, heard = process.submit(how, Path(folder), url).result()
    figure(f"notifications_drained_{name}", MANY / took, "per_second", RATE, met=MANY / took >= RATE)
    figure(f"notifications_memory_{name}", more, "MiB", MOST_MEMORY, met=more <= MOST_MEMORY)
    missing = MANY - len(heard)
    figure(f"notifications_not_delivered_{name}", missing, "notifications", 0, met=missing == 0)
    again = sum(n > 1 for n in heard.values())
    figure(f"notifications_delivered_twice_{name}", again, "notifications", 0, met=again == 0)


async def six_hours(room: Newsroom) -> dict[str, Any]:
    box = await room.add("ops")
    box.down = True
    async with room.running(pace=SLOW):
        await cause(room)
        await pass_time(6 * HOUR)
        dead = (await room.states())["dead"]
        box.down = False
        await pass_time(HOUR)
    owed = await room.all(channel="ops")
    lines = Counter(each.id for each in box.came)
    digests = [line for each in box.came if each.event == "digest" for line in each.text.split("\n")]
    lines.update(line.partition(": ")[2] for line in digests)
    heard = [lines[each.id] + lines[each.title] for each in owed]
    return {"dead": dead, "delivered": 100 * sum(n > 0 for n in heard) / MANY, "most": max(heard)}


async def three_days(room: Newsroom) -> dict[str, Any]:
    box = await room.add("ops")
    box.down = True
    async with room.running(pace=DAYS):
        await cause(room)
        await pass_time(74 * HOUR)
        dead = await room.all(state="dead")
        reasons = {each.why for each in dead}
        box.down = False
        await notifications.requeue_all(room.db.write, actor="bench")
        await pass_time(6 * HOUR)
    heard = Counter(each.id for each in box.came)
    delivered = sum(heard[each.id] > 0 for each in await room.all(channel="ops"))
    return {"dead": 100 * len(dead) / MANY, "reasons": reasons, "delivered": 100 * delivered / MANY}


def outages() -> None:
    short = in_virtual_time(six_hours)
    figure("notifications_dead_after_6h", short["dead"], "notifications", 0, met=short["dead"] == 0)
    figure("notifications_delivered_1h_after_6h", short["delivered"], "percent", 100, met=short["delivered"] == 100)
    figure("notifications_most_copies_after_6h", short["most"], "copies", 2, met=short["most"] <= 2)
    long = in_virtual_time(three_days)
    figure("notifications_dead_after_72h", long["dead"], "percent", 100, met=long["dead"] == 100)
    named = long["reasons"] == {"CHANNEL_DOWN"}
    figure("notifications_dead_with_reason_after_72h", 100 if named else 0, "percent", 100, met=named)
    figure("notifications_delivered_by_requeue", long["delivered"], "percent", 100, met=long["delivered"] == 100)


def main() -> int:
    drain("sqlite", on_sqlite)
    with Cluster(tmpfs=True) as cluster:
        drain("postgresql", on_postgresql, cluster.create_database())
    outages()
    return 0


if __name__ == "__main__":
    sys.exit(main())
