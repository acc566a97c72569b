"""Builds everything from Settings; the one file that knows all."""

from __future__ import annotations

import asyncio
import contextlib
import platform
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

from holdfast.config import Settings
from holdfast.core.backoff import STORE
from holdfast.engine import selfcheck
from holdfast.engine.loop import wait_for
from holdfast.engine.replica import Pace, Replica
from holdfast.engine.worker import Identity, Kind
from holdfast.errors import OutcomeUnknown, StoreUnavailable
from holdfast.operations import keys, observe
from holdfast.ports import Clock, Points, no_points
from holdfast.store import migrate
from holdfast.store.database import Database, Engine
from holdfast.store.sqlite import SqliteEngine
from holdfast.telemetry import Metrics, Phase, Telemetry, make_log
from holdfast.web.health import site
from holdfast.web.serve import bind, serving
from holdfast.world import LocalFiles, SystemClock, SystemRandom

Step = Callable[[Database], Awaitable[None]]  # of the start; one that was cut off may be done again


def open_store(settings: Settings, clock: Clock, points: Points) -> Database:
    """The store the settings name. Refuses at once what must not be used; connects only when first asked."""
    return Database(_engine(settings, clock), clock=clock, points=points, deadline=settings.store.deadline)


def _engine(settings: Settings, clock: Clock) -> Engine:
    file = settings.store.sqlite_file
    if file is None:
        from holdfast.store.postgres import PostgresEngine

        return PostgresEngine(settings.store.url, connections=settings.store.connections)
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    return SqliteEngine(file, clock)


class App:
    """One process: the probes answer first, then the store, the schema, the keys and the engine come up."""

    def __init__(self, settings: Settings, *, points: Points = no_points) -> None:
        self._settings = settings
        self._points = points
        self._clock, self._random, self._files = SystemClock(), SystemRandom(), LocalFiles()
        name = settings.replica.name or platform.node()
        self._identity = Identity(holder=self._random.new_id("replica"), name=name)
        log = make_log(settings.log.level, settings.log.format, replica=name)
        self._telemetry = Telemetry(log=log, metrics=Metrics())
        self._health = self._telemetry.health
        self._db: Database | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Run until stop, then drain. Raises UserError when a person must act first."""
        log, health = self._telemetry.log, self._health
        host, port = self._settings.server.address
        line = bind(host, port)
        where = "http://{}:{}".format(*line.getsockname()[:2])
        pages = site(health, self._telemetry.metrics, look=self._look, scrape=self._scrape)
        async with serving(pages, line):
            health.enter("settings")
            log.info("holdfast.starting", probes=f"{where}/health/ready", holder=self._identity.holder)
            async with self._store() as db:
                if not await self._bring_up(db, stop):
                    return  # told to stop before the store was well
                engine = self._engine(db)
                health.enter("engine")
                health.enter("serving")
                log.info("holdfast.serving", url=where, store=db.engine.name)
                draining = asyncio.create_task(self._note_stop(stop))
                try:
                    await engine.run(stop)
                finally:
                    draining.cancel()
            log.info("holdfast.stopped")

    async def _note_stop(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._health.draining = True
        self._telemetry.log.info("holdfast.draining", at_most=str(self._settings.engine.drain))

    @contextlib.asynccontextmanager
    async def _store(self) -> AsyncIterator[Database]:
        db = self._db = open_store(self._settings, self._clock, self._points)
        try:
            yield db
        finally:
            await db.close()

    async def _bring_up(self, db: Database, stop: asyncio.Event) -> bool:
        """Each phase in turn, tried again while the store is away: a restart would not bring it back either."""
        steps: list[tuple[Phase, Step]] = [("store", _reach), ("schema", self._migrate), ("keys", self._unlock)]
        for phase, step in steps:
            tries = 0
            while not stop.is_set():
                try:
                    await step(db)
                    break
                except (StoreUnavailable, OutcomeUnknown) as error:
                    tries += 1
                    self._health.waiting_for = str(error)
                    self._telemetry.log.error("store.unreachable", phase=phase, error=str(error), tries=tries)
                    await wait_for(stop, STORE.wait(tries, self._identity.holder).total_seconds())
            if stop.is_set():
                return False
            self._health.enter(phase)
        return True

    async def _migrate(self, db: Database) -> None:
        for step in await migrate.bring_up(db, points=self._points):
            self._telemetry.log.info("schema.migrated", step=step)

    async def _unlock(self, db: Database) -> None:
        keyring = await keys.unlock(db, self._settings, self._files, self._random)
        if note := keys.owed(self._settings, keyring):
            self._telemetry.log.warning("keys.owed", note=note)

    def _engine(self, db: Database) -> Replica:
        settings = self._settings
        return Replica(
            db=db,
            identity=self._identity,
            pace=_pace(settings),
            kinds=[replace(kind, slots=min(kind.slots, settings.engine.slots)) for kind in self._kinds(db)],
            families=[selfcheck.owed(self._random)],
            clock=self._clock,
            random=self._random,
            points=self._points,
            telemetry=self._telemetry,
        )

    def _kinds(self, db: Database) -> list[Kind]:
        return [selfcheck.kind(db, self._settings.scheduler.selfcheck_interval, self._telemetry)]

    async def _look(self) -> None:
        if self._health.started and self._db is not None:
            self._health.store_problem = await observe.store_problem(self._db)

    async def _scrape(self) -> None:
        if self._health.started and self._db is not None:
            ttl = self._settings.engine.lease_ttl
            await observe.refresh(self._db, self._telemetry.metrics, self._identity.holder, ttl)


async def _reach(db: Database) -> None:
    await db.read(lambda tx: tx.row("SELECT 1 AS one"))


def _pace(settings: Settings) -> Pace:
    return Pace(
        poll=settings.engine.poll_interval,
        ttl=settings.engine.lease_ttl,
        drain=settings.engine.drain,
        retry=settings.scheduler.retry_interval,
        reconcile=settings.scheduler.reconcile_interval,
        timeout=settings.scheduler.timeout_interval,
        cleanup=settings.scheduler.cleanup_interval,
        history_for=settings.engine.history_for,
    )


async def serve(settings: Settings, *, stop_after: float | None = None) -> None:
    """Run the product until SIGTERM or SIGINT; a second signal ends it without waiting for the drain."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    running = asyncio.create_task(App(settings).run(stop), name="app")

    def asked() -> None:
        if stop.is_set():
            running.cancel()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked)
    if stop_after is not None:
        loop.call_later(stop_after, stop.set)
    with contextlib.suppress(asyncio.CancelledError):
        await running
