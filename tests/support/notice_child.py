"""A replica that tells people things and dies where it is told to: the real engine, store and senders, in a process.

    python -m tests.support.notice_child --store holdfast.sqlite --folder f --report f/r --hook http://127.0.0.1:9/x \\
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

from holdfast.config import Settings, Store
from holdfast.engine import notices as wiring
from holdfast.engine.notify import Tools
from holdfast.engine.replica import Pace, Replica
from holdfast.engine.senders import Senders
from holdfast.engine.worker import Identity
from holdfast.errors import OutcomeUnknown, StoreUnavailable
from holdfast.operations import channels, keys
from holdfast.operations.channels import ChannelExists, ChannelWish
from holdfast.operations.issuing import Keeper
from holdfast.operations.vault import Vault
from holdfast.secret import Secret
from holdfast.store import journal, migrate
from holdfast.store.database import Database
from holdfast.store.tx import Tx
from holdfast.telemetry import Metrics, Telemetry, make_log
from holdfast.world import HttpTransport, LocalFiles, SystemRandom
from tests.support.child import LOOK_EVERY, Passages, Report, SkewedClock, Strike, _engine, die_with_parent
from tests.support.reaper import PATIENCE
from tests.support.secrets_planted import SERVED_HOOK_KEY

CHANNEL: Final = "hook"
SIGNED_WITH: Final = SERVED_HOOK_KEY
OWED: Final = ("a", "b", "c", "d")
TOLD: Final = len(OWED)
WAITING: Final = """SELECT id FROM notices WHERE state IN ('pending', 'failed')
                    UNION ALL SELECT id FROM jobs WHERE kind = 'notify'"""


class Life:
    def __init__(self, wishes: argparse.Namespace, report: Report) -> None:
        self._wishes, self._report = wishes, report
        self._settings = Settings(store=Store(data_dir=wishes.folder))
        self._points = Passages(report, wishes.strike)
        self._clock = SkewedClock(timedelta(seconds=wishes.offset))
        self._random, self._files = SystemRandom(), LocalFiles()
        self._telemetry = Telemetry(log=make_log("debug", "json", replica=wishes.name), metrics=Metrics())

    async def live(self) -> None:
        stop = asyncio.Event()
        async with AsyncExitStack() as stack:
            engine = _engine(self._wishes.store, self._clock)
            db = Database(engine, clock=self._clock, points=self._points, deadline=timedelta(seconds=PATIENCE))
            stack.push_async_callback(db.close)
            await migrate.bring_up(db, points=self._points)
            keyring = await keys.unlock(db, self._settings, self._files, self._random)
            vault = Vault(db=db, settings=self._settings, files=self._files, keyring=keyring)
            transport = HttpTransport(self._points)
            stack.push_async_callback(transport.close)
            senders = Senders(vault=vault, transport=transport, clock=self._clock)
            await self._ask(Keeper(db=db, random=self._random, vault=vault), senders)
            self._report.say("begun", self._wishes.name)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._replica(db, senders).run(stop))
                group.create_task(self._leave(db, stop))
        self._report.say("ended")

    async def _ask(self, keeper: Keeper, senders: Senders) -> None:
        wish = ChannelWish(name=CHANNEL, kind="webhook")
        given = {"url": Secret(self._wishes.hook.encode()), "secret": Secret(SIGNED_WITH.encode())}
        with suppress(ChannelExists):
            await channels.add(keeper, wish, credentials=given, post=senders, actor="local:test")
        for each in OWED:
            await keeper.db.write(lambda tx, each=each: _owe(tx, each), key=f"owe:{each}")  # type: ignore[misc]

    def _replica(self, db: Database, senders: Senders) -> Replica:
        tools = Tools(
            db=db,
            make_sender=senders.open,
            clock=self._clock,
            random=self._random,
            telemetry=self._telemetry,
        )
        sweep = timedelta(seconds=1)
        return Replica(
            db=db,
            identity=Identity(holder=self._random.new_id("replica"), name=self._wishes.name),
            pace=Pace(poll=sweep / 5, ttl=timedelta(seconds=30), retry=sweep, reconcile=sweep),
            kinds=wiring.kinds(tools),
            families=wiring.families(tools),
            duties=wiring.duties(tools, retry=sweep, lease_ttl=timedelta(days=1)),
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
    parser = argparse.ArgumentParser(prog="python -m tests.support.notice_child")
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
