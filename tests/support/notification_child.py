"""A replica that tells people things and dies where it is told to: the real engine, store and senders, in a process.

    python -m tests.support.notification_child --store holdfast.sqlite --folder f --report f/r --hook \\
        http://127.0.0.1:9/x \\
        --strike kill:http.answered:2

What it owes is asked for under keys: run again on the same store it goes on from wherever it was killed.
"""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from pathlib import Path
from typing import Final

from holdfast.config import Settings, StoreSettings
from holdfast.engine.notifications import duties as wiring
from holdfast.engine.notifications.delivery import DeliveryServices
from holdfast.engine.notifications.senders import Senders
from holdfast.engine.replica import Pace, RunningReplica
from holdfast.engine.worker import WorkerIdentity
from holdfast.errors import OutcomeUnknown, StoreUnavailable
from holdfast.operations.installation import keys
from holdfast.operations.installation.secret_store import SecretStore
from holdfast.operations.issuance.attempts import CertificateContext
from holdfast.operations.notifications import channels
from holdfast.operations.notifications.channels import ChannelExists
from holdfast.store import journal, migrate
from holdfast.store.database import Database
from holdfast.store.tx import Tx
from holdfast.telemetry import Metrics, Telemetry, make_log
from holdfast.world import HttpTransport, LocalFiles, SystemRandom
from tests.support.child import LOOK_EVERY, Passages, Report, SkewedClock, Strike, _engine, die_with_parent
from tests.support.running import run, services_of
from tests.support.secrets_planted import SERVED_HOOK_KEY
from tests.support.stores import open_store

CHANNEL: Final = "hook"
SIGNED_WITH: Final = SERVED_HOOK_KEY
OWED: Final = ("a", "b", "c", "d")
TOLD: Final = len(OWED)
WAITING: Final = """SELECT id FROM notifications WHERE state IN ('pending', 'failed')
                    UNION ALL SELECT id FROM jobs WHERE kind = 'notify'"""


class Life:
    def __init__(self, wishes: argparse.Namespace, report: Report) -> None:
        self._wishes, self._report = wishes, report
        self._settings = Settings(store=StoreSettings(data_dir=wishes.folder))
        self._points = Passages(report, wishes.strike)
        self._clock = SkewedClock(timedelta(seconds=wishes.offset))
        self._random, self._files = SystemRandom(), LocalFiles()
        self._telemetry = Telemetry(log=make_log("debug", "json", replica=wishes.name), metrics=Metrics())

    async def live(self) -> None:
        stop = asyncio.Event()
        async with AsyncExitStack() as stack:
            engine = _engine(self._wishes.store, self._clock)
            db = open_store(engine, clock=self._clock, points=self._points)
            stack.push_async_callback(db.close)
            await migrate.bring_up(db, points=self._points)
            keyring = await keys.unlock(db, self._settings, self._files, self._random)
            secret_store = SecretStore(db=db, settings=self._settings, files=self._files, keyring=keyring)
            transport = HttpTransport(self._points)
            stack.push_async_callback(transport.close)
            senders = Senders(secret_store=secret_store, transport=transport, clock=self._clock)
            await self._ask(CertificateContext(db=db, random=self._random, secret_store=secret_store), senders)
            self._report.say("begun", self._wishes.name)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._replica(db, senders).run(stop))
                group.create_task(self._leave(db, stop))
        self._report.say("ended")

    async def _ask(self, context: CertificateContext, senders: Senders) -> None:
        given = {"url": self._wishes.hook, "secret": SIGNED_WITH}
        with suppress(ChannelExists):
            services = services_of(context, post=senders)
            await run(services, channels.add, name=CHANNEL, kind="webhook", credentials=given)
        for each in OWED:
            await context.db.write(lambda tx, each=each: _owe(tx, each), key=f"owe:{each}")  # type: ignore[misc]

    def _replica(self, db: Database, senders: Senders) -> RunningReplica:
        services = DeliveryServices(
            db=db,
            make_sender=senders.open,
            clock=self._clock,
            random=self._random,
            telemetry=self._telemetry,
        )
        sweep = timedelta(seconds=1)
        return RunningReplica(
            db=db,
            identity=WorkerIdentity(holder=self._random.new_id("replica"), name=self._wishes.name),
            pace=Pace(poll=sweep / 5, ttl=timedelta(seconds=30), retry=sweep, reconcile=sweep),
            kinds=wiring.kinds(services),
            families=wiring.families(services),
            duties=wiring.duties(services, retry=sweep, lease_ttl=timedelta(days=1)),
            clock=self._clock,
            random=self._random,
            points=self._points,
            telemetry=self._telemetry,
        )

    async def _leave(self, db: Database, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self._clock.sleep(LOOK_EVERY)
            with suppress(StoreUnavailable, OutcomeUnknown):
                if not await db.read(lambda tx: tx.rows(WAITING)):
                    stop.set()


def _owe(tx: Tx, name: str) -> str:
    journal.event(tx, "certificate.stranded", name)
    return name


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.support.notification_child")
    parser.add_argument("--store", required=True, help="a PostgreSQL URL, or the path of an SQLite file")
    parser.add_argument("--hook", required=True, help="where messages are sent to")
    parser.add_argument("--report", required=True, type=Path, help="file for one line per passage")
    parser.add_argument("--folder", required=True, type=Path, help="where the key file is")
    parser.add_argument("--name", default="child", help="the replica's name, as people see it")
    parser.add_argument("--strike", action="append", type=Strike.read, default=[], help="kill|stop:POINT:N")
    parser.add_argument("--offset", type=float, default=0.0, help="seconds by which our clock is wrong")
    return parser


def main(argv: Sequence[str]) -> None:
    wishes = parser().parse_args(argv)
    report = Report(wishes.report)
    log = os.open(f"{wishes.report}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, sys.stderr.fileno())
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(Life(wishes, report).live())


if __name__ == "__main__":
    main(sys.argv[1:])
