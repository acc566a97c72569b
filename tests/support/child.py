"""A replica that dies where it is told to: the real engine on a real store and a real network, in its own process.

    python -m tests.support.child --store holdfast.sqlite --ca http://127.0.0.1:8000/ca1 --report r --ask e1 \\
        --strike kill:job.settling:2

It lives through everything that has a named point: it migrates, brings its keys, asks for errands, does them, and, with
--leave, rotates its key and stops once all is done. Run again on the same store it goes on from wherever it was killed.
"""

import argparse
import asyncio
import ctypes
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, Literal, Self

from holdfast.config import Settings, StoreSettings
from holdfast.core.backoff import Ladder
from holdfast.core.issuers.budget import Limit
from holdfast.engine.kind import JobKind
from holdfast.engine.replica import Pace, RunningReplica
from holdfast.engine.worker import WorkerIdentity
from holdfast.errors import OutcomeUnknown, StoreUnavailable
from holdfast.keyring import Keyring, SecretOwner
from holdfast.operations.installation import key_rotation, keys
from holdfast.operations.installation.secret_store import SecretStore
from holdfast.ports import POINTS, Clock, Request, Response
from holdfast.secret import Secret
from holdfast.store import journal, migrate
from holdfast.store.database import Database, Engine
from holdfast.store.postgres import PostgresEngine
from holdfast.store.sqlite import SqliteEngine
from holdfast.store.tx import Tx
from holdfast.telemetry import Metrics, Telemetry, make_log
from holdfast.world import HttpTransport, LocalFiles, SystemClock, SystemRandom
from tests.simulation import errands
from tests.support.reaper import PATIENCE
from tests.support.stores import open_store

ANY: Final = "*"
SIGNALS: Final = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
PR_SET_PDEATHSIG: Final = 1
LOOK_EVERY: Final = 0.02  # seconds between two looks at whether all is done


@dataclass(frozen=True, slots=True)
class Strike:
    """What hits the process at the n-th passage of a point; "*" is whichever point comes n-th."""

    act: Literal["kill", "stop"]
    point: str
    nth: int

    @classmethod
    def read(cls, text: str) -> Self:
        act, point, nth = text.split(":")
        if act not in SIGNALS or point not in {ANY, *POINTS}:
            raise ValueError(text)
        return cls(act, point, int(nth))  # type: ignore[arg-type]

    def __str__(self) -> str:
        return f"{self.act}:{self.point}:{self.nth}"


class Report:
    """One line for everything that happened, in a file at once: the dead cannot be asked."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def say(self, word: str, about: str = "") -> None:
        os.write(self._file, f"{time.monotonic():.6f} {word} {about}\n".encode())


class Passages:
    """The Points port: counts every passage of every named point, reports it, and strikes. Called on any thread."""

    def __init__(self, report: Report, strikes: Sequence[Strike]) -> None:
        self._report = report
        self._strikes = strikes
        self._passed: Counter[str] = Counter()
        self._guard = threading.Lock()

    def __call__(self, name: str) -> None:
        if name not in POINTS:
            raise AssertionError(f"{name} is not a named point")
        with self._guard:
            self._passed.update((name, ANY))
            self._report.say("passed", name)
            for strike in self._strikes:
                if strike.point in (name, ANY) and strike.nth == self._passed[strike.point]:
                    self._report.say(strike.act, str(strike))
                    # To this very thread: sent to the process, SIGSTOP may reach another first while we commit.
                    signal.pthread_kill(threading.get_ident(), SIGNALS[strike.act])


class SkewedClock(SystemClock):
    """A wall clock that somebody set wrong."""

    def __init__(self, offset: timedelta) -> None:
        self._offset = offset

    def now(self) -> datetime:
        return super().now() + self._offset


class PoisonedTransport(HttpTransport):
    """A network on which one errand kills whoever touches it."""

    def __init__(self, poison: str) -> None:
        super().__init__()
        self._poison = poison

    async def request(self, request: Request) -> Response:
        if self._poison and request.url.endswith(f"/{self._poison}"):
            os.kill(os.getpid(), signal.SIGKILL)
        return await super().request(request)


class Life:
    """One run of the replica, from an empty store or from whatever a predecessor left."""

    def __init__(self, wishes: argparse.Namespace, report: Report) -> None:
        self._wishes = wishes
        self._report = report
        self._points = Passages(report, wishes.strike)
        self._clock = SkewedClock(timedelta(seconds=wishes.offset))
        self._random, self._files = SystemRandom(), LocalFiles()
        self._settings = Settings(store=StoreSettings(data_dir=wishes.folder))
        self._holder = self._random.new_id("replica")
        self._telemetry = Telemetry(log=make_log("debug", "json", replica=wishes.name), metrics=Metrics())

    async def live(self) -> None:
        """Run until a signal, or, with --leave, until all that was asked is done."""
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        async with AsyncExitStack() as stack:
            db = open_store(
                _engine(self._wishes.store, self._clock),
                clock=self._clock,
                points=self._points,
                deadline=self._wishes.deadline,
            )
            stack.push_async_callback(db.close)
            transport = PoisonedTransport(self._wishes.poison)
            stack.push_async_callback(transport.close)
            await migrate.bring_up(db, points=self._points)
            keyring = await keys.unlock(db, self._settings, self._files, self._random)
            await self._ask(db, keyring)
            self._report.say("begun", self._holder)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._replica(db, transport).run(stop))
                if self._wishes.leave:
                    group.create_task(self._leave(db, keyring, stop))
        self._report.say("ended")

    def _replica(self, db: Database, transport: HttpTransport) -> RunningReplica:
        wishes = self._wishes
        sweep = timedelta(seconds=wishes.sweep)
        return RunningReplica(
            db=db,
            identity=WorkerIdentity(holder=self._holder, name=wishes.name),
            pace=Pace(
                poll=timedelta(seconds=wishes.poll),
                ttl=timedelta(seconds=wishes.ttl),
                drain=timedelta(seconds=wishes.drain),
                retry=sweep,
                reconcile=sweep,
            ),
            kinds=[self._errands(db, transport)],
            families=[errands.owed(self._random)],
            clock=self._clock,
            random=self._random,
            points=self._points,
            telemetry=self._telemetry,
        )

    def _errands(self, db: Database, transport: HttpTransport) -> JobKind:
        """Errands as in the simulator, with waits that fit real time."""
        wait = timedelta(seconds=self._wishes.wait)
        kind = errands.kind(db, transport, self._clock, self._wishes.ca, wait=lambda errand, attempt: wait)
        return replace(
            kind, interruptible=self._wishes.interruptible, ladder=Ladder(first=wait, factor=2, cap=100 * wait)
        )

    # ── what it wants done ──

    async def _ask(self, db: Database, keyring: Keyring) -> None:
        """Each wish has a key, so that asking again after a death asks for nothing new."""
        limit = Limit(burst=self._wishes.burst, every=errands.LIMIT.every)
        await db.run_long(lambda tx: _set_up(tx, limit), deadline=timedelta(seconds=PATIENCE))
        for name in self._wishes.ask:
            await _insist(db, lambda tx, name=name: errands.ask(tx, name, f"job_{name}"), f"ask:{name}")
        for name in self._wishes.orphan:
            await _insist(db, lambda tx, name=name: _orphan(tx, name), f"ask:{name}")
        for name in self._wishes.secret:
            await self._keep(db, keyring, name)

    async def _keep(self, db: Database, keyring: Keyring, name: str) -> None:
        """A secret that is its owner's name, kept together with its owner: both are there, or none."""
        if await db.read(lambda tx: tx.row("SELECT secret FROM owners WHERE name = :name", name=name)):
            return

        def own(tx: Tx, secret: str) -> None:
            tx.run("INSERT INTO owners (name, secret) VALUES (:name, :secret)", name=name, secret=secret)

        secret_store = SecretStore(db=db, settings=self._settings, files=self._files, keyring=keyring)
        await secret_store.keep(Secret(name.encode()), SecretOwner("owners", name, "secret"), own)

    async def _leave(self, db: Database, keyring: Keyring, stop: asyncio.Event) -> None:
        while not stop.is_set() and not await _all_done(db):
            await self._clock.sleep(LOOK_EVERY)
        if self._wishes.secret and not stop.is_set():
            await key_rotation.rotate(
                db,
                keyring,
                self._settings,
                self._files,
                random=self._random,
                clock=self._clock,
                points=self._points,
            )
        self._report.say("done")
        stop.set()


async def _insist(db: Database, fn: Callable[[Tx], str], key: str) -> str:
    while True:
        try:
            return await db.write(fn, key=key)
        except (StoreUnavailable, OutcomeUnknown):
            await asyncio.sleep(LOOK_EVERY)


def _set_up(tx: Tx, limit: Limit) -> None:
    errands.set_up(tx, limit)
    tx.run("CREATE TABLE IF NOT EXISTS owners (name TEXT PRIMARY KEY, secret TEXT NOT NULL)")


def _orphan(tx: Tx, errand: str) -> str:
    """An errand whose job somebody removed: only the reconciler can help it."""
    tx.run("INSERT INTO errands (id, state, asked_at) VALUES (:id, 'asked', now_us())", id=errand)
    journal.audit(tx, "errand_asked", errand)
    return errand


async def _all_done(db: Database) -> bool:
    try:
        return not await db.read(
            lambda tx: tx.rows(
                "SELECT id FROM errands WHERE state <> 'issued' UNION ALL SELECT id FROM jobs WHERE state <> 'dead'"
            )
        )
    except (StoreUnavailable, OutcomeUnknown):
        return False  # so far as we know


def _engine(store: str, clock: Clock) -> Engine:
    if "://" in store:
        return PostgresEngine(Secret(store), connections=2)
    return SqliteEngine(Path(store), clock)


def words(text: str) -> list[str]:
    return text.split(",") if text else []


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.support.child", description=__doc__.partition("\n")[0])
    parser.add_argument("--store", required=True, help="a PostgreSQL URL, or the path of an SQLite file")
    parser.add_argument("--ca", required=True, help="where the CA is")
    parser.add_argument("--report", required=True, type=Path, help="file for one line per passage")
    parser.add_argument("--folder", required=True, type=Path, help="where the key file is")
    parser.add_argument("--name", default="child", help="the replica's name, as people see it")
    parser.add_argument("--strike", action="append", type=Strike.read, default=[], help="kill|stop:POINT:N")
    parser.add_argument("--ask", type=words, default=[], help="errands to ask for")
    parser.add_argument("--orphan", type=words, default=[], help="errands to ask for whose job is gone")
    parser.add_argument("--secret", type=words, default=[], help="owners of a secret; with --leave the key is rotated")
    parser.add_argument("--poison", default="", help="the errand that kills its worker")
    parser.add_argument("--leave", action="store_true", help="stop when all is done")
    parser.add_argument("--interruptible", action="store_true", help="errands are handed back at a stop")
    parser.add_argument("--offset", type=float, default=0.0, help="seconds by which our clock is wrong")
    parser.add_argument("--ttl", type=float, default=3.0)
    parser.add_argument("--poll", type=float, default=1.0)
    parser.add_argument("--sweep", type=float, default=1.0, help="seconds between sweeps")
    parser.add_argument("--drain", type=float, default=30.0)
    parser.add_argument("--wait", type=float, default=0.05, help="seconds between two looks at the CA")
    parser.add_argument("--burst", type=int, default=errands.LIMIT.burst, help="requests to the CA at once")
    parser.add_argument("--deadline", type=float, default=PATIENCE, help="seconds for one store call")
    return parser


def die_with_parent() -> None:
    """Even a stopped child must not outlive a harness that was killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main(argv: Sequence[str]) -> None:
    wishes = parser().parse_args(argv)
    report = Report(wishes.report)
    log = os.open(f"{wishes.report}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, sys.stderr.fileno())
    die_with_parent()
    asyncio.run(Life(wishes, report).live())


if __name__ == "__main__":
    main(sys.argv[1:])
