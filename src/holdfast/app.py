"""Builds everything from Settings; the one file that knows all."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import platform
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.routing import Mount

from holdfast import job_kinds, plugins
from holdfast.api import docs_page
from holdfast.api.app import mount
from holdfast.backups import Saver
from holdfast.compose_ca import CaServer
from holdfast.compose_certificates import CertificateKeeper
from holdfast.config import SOCKET_NAME, Settings, describe
from holdfast.core.backoff import STORE
from holdfast.core.own_ca.ca import CaPolicy
from holdfast.demo import fill as demo_data
from holdfast.engine import selfcheck
from holdfast.engine.commit_log import Spoken
from holdfast.engine.loop import wait_for
from holdfast.engine.recovery import LOOK_EVERY, Recovery
from holdfast.engine.replica import HANDING_BACK, IN_GOOD_TIME, Pace, PeriodicDuty, RunningReplica
from holdfast.engine.worker import WorkerIdentity
from holdfast.errors import OutcomeUnknown, SettingRefused, StoreError, StoreRefused, StoreUnavailable, StoreUnfit
from holdfast.from_settings import listener_bounds, make_folder, open_for_migration, open_store, people_services
from holdfast.keyring import Keyring
from holdfast.listening.admission import ToldTally
from holdfast.listening.bounds import Bounds
from holdfast.operations.context import Services
from holdfast.operations.installation import audit, backups, keys, observe, tokens
from holdfast.operations.installation.diagnosis import IN_THE_CLEAR, PUBLISHED_HERE
from holdfast.operations.installation.observe import Inventory
from holdfast.operations.installation.secret_store import SecretStore
from holdfast.operations.own_ca import publication
from holdfast.operations.own_ca.authorities import policy_of
from holdfast.operations.own_ca.publication import Published
from holdfast.operations.people import sessions
from holdfast.pages import site as pages_site
from holdfast.pki.in_thread import aside
from holdfast.ports import Points, Sink, no_points
from holdfast.store import backdating, migrate
from holdfast.store.database import Database
from holdfast.store.work import sweeps
from holdfast.supervisor import NOW, Place, Supervisor
from holdfast.telemetry import Metrics, StartPhase, Telemetry, Traces, make_log
from holdfast.undumpable import forbid_core_dumps
from holdfast.web import face, handing_over, siblings, sites
from holdfast.web.serve import ListeningSocket, bind, bind_local, serving
from holdfast.web.sites import plain_site
from holdfast.world import FileSink, LocalFiles, ServiceManager, SyslogSink, SystemClock, SystemRandom

BACKUP_LOOK: Final = timedelta(minutes=1)
CERTIFICATE_WITHIN: Final = 30.0  # seconds that the start waits for our own certificate; without a CA there is none
TO_CLOSE: Final = 1.0  # second; the store is closed last, and must not find nothing left of the time for a stop
FIRST_TOKEN_EVERY: Final = timedelta(seconds=2)  # to look whether its file is of use; without a file it costs nothing
BY_COMMAND: Final = "on this machine: holdfast token create NAME --role admin"
OnceStarted = Callable[[], Coroutine[Any, Any, None]]  # what to do once all is up, beside it
StartStep = Callable[[Database], Awaitable[None]]  # of the start; one that was cut off may be done again


class App:
    """One process: the probes answer first, then the store, the schema, the keys and the engine come up."""

    def __init__(
        self,
        settings: Settings,
        *,
        points: Points = no_points,
        started: OnceStarted | None = None,
        demo: bool = False,
        place: Place | None = None,
    ) -> None:
        """`demo`: fill an empty database with made-up certificates. Whatever is one runs nothing that asks a CA.

        `place`: this is one of several processes at the same addresses.
        """
        self._started, self._wants_demo, self._is_demo = started, demo, False
        self._settings = settings
        self._points = points
        self._clock, self._random, self._files = SystemClock(), SystemRandom(), LocalFiles()
        self._place = place
        self._host = settings.replica.name or platform.node()
        name = self._host if place is None else f"{self._host}-{place.number}"
        self._identity = WorkerIdentity(holder=self._random.new_id("replica"), name=name)
        log = make_log(settings.log.level, settings.log.format, replica=name)
        metrics = Metrics()
        self._telemetry = Telemetry(log=log, metrics=metrics, traces=_traces(settings, name, metrics))
        self._health = self._telemetry.health
        self._db: Database | None = None
        self._inventory: Inventory | None = None
        self._policy = CaPolicy()  # the settings', once the ports are known
        self._address = settings.server.public_address()  # likewise
        self._people = people_services(settings, self._address)  # with the provider, once there is a way to it
        self._bounds = Bounds()  # likewise
        self._ca: CaServer | None = None
        self._keeper: CertificateKeeper | None = None
        self._saver: Saver | None = None  # if there is a folder for backups
        self._told_at: float | None = None  # when we were asked to stop
        self._manager = ServiceManager() if place is None else place.manager()
        self._open_late: Callable[[], Awaitable[None]] | None = None  # answers clients, in the place of another

    async def run(self, stop: asyncio.Event) -> None:
        """Run until stop, then drain. Raises UserError when a person must act first."""
        log, health = self._telemetry.log, self._health
        if problem := forbid_core_dumps():
            log.warning("holdfast.dumpable", problem=problem)
        for each in plugins.broken():
            log.error("plugin.broken", group=each.group, plugin=each.name, package=each.package, error=each.error)
        join = self._place is not None
        line = bind(*self._settings.server.address, join=join)
        acme_line = bind(*self._settings.acme.address, setting="acme.listen", join=join)
        at = self._settings.keeping.tls_alpn_address
        proof_line = None if at is None else bind(*at, setting="keeping.tls_alpn_listen", join=join)
        where = "http://{}:{}".format(*line.getsockname()[:2])
        self._policy = policy_of(
            self._settings, acme_port=acme_line.getsockname()[1], publish_port=line.getsockname()[1]
        )
        self._address = self._settings.server.public_address(line.getsockname()[1])
        public = [*sites.published_routes(self._published), *sites.challenge_routes(self._proof), docs_page.route()]
        fetched = handing_over.routes(self._secret_store, self._settings.server.trusted_proxies)
        more = [*public, *fetched, self._api(local=False), self._web()]
        ours = (self._policy.base_url, self._policy.publish_url, self._settings.server.public_url)
        pages = plain_site(
            health,
            look=self._look,
            scrape=self._scrape,
            more=more,
            hosts=[platform.node(), *filter(None, (urlsplit(each).hostname for each in ours))],
            proxies=self._settings.server.trusted_proxies,
        )
        self._bounds = listener_bounds(self._settings, listeners=3 if proof_line is None else 4, log=log)
        async with self._faces(serving(pages, line, bounds=self._bounds, tally=ToldTally("server", self._telemetry))):
            health.enter("settings")
            log.info("holdfast.starting", probes=f"{where}/health/ready", holder=self._identity.holder)
            if self._settings.server.in_the_clear:
                log.warning("server.in_the_clear", listen=self._settings.server.listen, fix=IN_THE_CLEAR)
            if self._settings.acme.published_here_only:
                log.warning("acme.published_here_only", url=self._policy.publish_url, fix=PUBLISHED_HERE)
            async with self._store() as db:
                if not await self._bring_up(db, stop):
                    acme_line.close()
                    if proof_line is not None:
                        proof_line.close()
                    return  # told to stop before the store was well
                async with self._showing(proof_line):  # before the engine, whose jobs send CAs here, and after it
                    await self._work(db, acme_line, where, stop)
            await self._telemetry.traces.close()
            log.info("holdfast.stopped")

    @contextlib.asynccontextmanager
    async def _faces(self, pages: contextlib.AbstractAsyncContextManager[None]) -> AsyncIterator[None]:
        """The probes answer at once; but where other processes serve, clients do not wait for one that starts."""
        async with contextlib.AsyncExitStack() as open_faces:
            if self._place is None or not self._place.again:
                await open_faces.enter_async_context(pages)
            else:
                self._open_late = partial(open_faces.enter_async_context, pages)
            if self._place is not None:
                own = bind_local(siblings.socket_of(self._settings.store.data_dir, self._place.number))
                tally = ToldTally("local", self._telemetry)
                await open_faces.enter_async_context(serving(siblings.own_site(self._own_metrics), own, tally=tally))
            yield

    async def _work(self, db: Database, acme_line: ListeningSocket, where: str, stop: asyncio.Event) -> None:
        """From here on the engine runs: the certificate of our own ACME server is one of its jobs."""
        ca, keeper = self._ca, self._keeper
        if ca is None or keeper is None:
            raise AssertionError("the keys come before the engine")
        self._inventory = self._gauges(db)
        with contextlib.suppress(StoreError):
            await self._inventory.begin()
        engine = asyncio.create_task(self._engine(db, ca, keeper).run(stop), name="engine")
        draining = asyncio.create_task(self._note_stop(stop))
        try:
            async with ca.serving(acme_line, self._bounds), self._answering_commands():
                self._health.enter("engine")
                await self._either(ca.ready(CERTIFICATE_WITHIN), engine)
                self._health.enter("serving")
                if self._open_late is not None:
                    await self._open_late()
                await self._show_first_token(db)
                acme = self._policy.base_url
                self._telemetry.log.info("holdfast.serving", url=where, acme=acme, store=db.engine.name)
                self._manager.ready()
                _settle_down()
                showing = None if self._started is None else asyncio.ensure_future(self._started())
                await engine
                if showing is not None:
                    showing.cancel()
        finally:
            draining.cancel()
            await _ended(engine)

    def _showing(self, line: ListeningSocket | None) -> contextlib.AbstractAsyncContextManager[None]:
        if self._keeper is None:
            raise AssertionError("the keys come before the engine")
        return self._keeper.showing(line, self._bounds)

    @contextlib.asynccontextmanager
    async def _answering_commands(self) -> AsyncIterator[None]:
        """Commands on this machine reach us by a socket in the data folder; without it, all else works."""
        path = self._settings.store.data_dir / SOCKET_NAME
        try:
            line = bind_local(path) if self._place is None else self._place.commands
        except OSError as error:
            self._telemetry.log.warning("local.not_listening", path=str(path), error=str(error))
            line = None
        if line is None:
            yield
            return
        commands = Starlette(routes=[self._api(local=True)])
        async with serving(commands, line, bounds=self._bounds, tally=ToldTally("local", self._telemetry)):
            yield

    def _api(self, *, local: bool) -> Mount:
        new_id = partial(self._random.new_id, "req")
        proxies = self._settings.server.trusted_proxies
        return mount(self._front, self._telemetry.log, new_id=new_id, now=self._clock.now, local=local, proxies=proxies)

    def _web(self) -> Mount:
        new_id = partial(self._random.new_id, "req")
        proxies = self._settings.server.trusted_proxies
        pages = pages_site.routes(
            self._front,
            self._telemetry.log,
            now=self._clock.now,
            replica=self._identity.name,
            installation=self._installation,
            facts=self._facts,
            values=lambda: describe(self._settings),
        )
        return face.mount(
            self._front, self._telemetry.log, address=self._address, new_id=new_id, proxies=proxies, pages=pages
        )

    def _installation(self) -> str:
        """What the pages call this installation beside the product's name."""
        return "demo" if self._is_demo else "production" if self._settings.server.public_url else "dev"

    def _facts(self) -> dict[str, str]:
        """Of this installation, for a first look around."""
        chosen = self._settings
        ca = f"{self._policy.base_url}/acme/{chosen.acme.first_ca}/directory" if chosen.acme.first_ca else ""
        store = (
            "PostgreSQL"
            if chosen.store.url
            else f"SQLite in {chosen.store.data_dir}. For several replicas: PostgreSQL."
        )
        return {name: text for name, text in {"ACME directory": ca, "Store": store}.items() if text}

    def _front(self) -> Services | None:
        if self._keeper is None:
            return None
        return replace(
            self._keeper.services,
            leaving=lambda: self._health.draining,
            holder=self._identity.holder,
            people=self._people,
            save=self._saver,
        )

    async def _proof(self, token: str) -> str | None:
        if self._keeper is None:
            raise StoreUnavailable("the store is not open yet")
        return await self._keeper.http01(token)

    def _secret_store(self) -> SecretStore:
        if self._keeper is None:
            raise StoreUnavailable("the store is not open yet")
        return self._keeper.certificate_context.secret_store

    async def _show_first_token(self, db: Database) -> None:
        """While there is no token: show one that makes an admin, at a terminal or else in a file; and in no log."""
        try:
            if not sys.stderr.isatty():
                await self._leave_first_token(db)
            elif (first := await tokens.first(db, self._random)) is not None:
                print(f"First login (24 h): holdfast login URL, with this token: {first.reveal()}", file=sys.stderr)
        except StoreError as error:  # away for a moment: all else goes on, and waits for it
            self._telemetry.log.warning("holdfast.no_token_yet", error=str(error), next=BY_COMMAND)

    async def _leave_first_token(self, db: Database) -> None:
        folder = self._settings.store.data_dir
        try:
            left = await tokens.leave_first_token(db, self._random, self._files, folder)
        except OSError as error:
            facts = {"path": str(folder), "error": str(error), "next": BY_COMMAND}
            self._telemetry.log.warning("holdfast.no_token_yet", **facts)
            return
        if left is not None:
            how = f"within a day: holdfast login URL < {left}"
            self._telemetry.log.info("holdfast.first_token_written", path=str(left), next=how)

    async def _either(self, wait: Coroutine[object, object, object], engine: asyncio.Task[None]) -> None:
        """Wait for one thing, but not longer than the engine runs."""
        waiting = asyncio.ensure_future(wait)
        await asyncio.wait({waiting, engine}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()

    async def _note_stop(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._told_at = self._clock.monotonic()
        self._health.draining = True
        self._manager.stopping()
        self._telemetry.log.info("holdfast.draining", at_most=str(self._settings.engine.drain))

    @contextlib.asynccontextmanager
    async def _store(self) -> AsyncIterator[Database]:
        db = self._db = open_store(
            self._settings,
            self._clock,
            self._points,
            committed=Spoken(self._telemetry.log, self._telemetry.metrics.store_commits.inc),
            damaged=lambda error: self._telemetry.log.error("store.damaged", error=str(error), fix=error.hint),
            witnessed=True,
        )
        try:
            yield db
        finally:
            await db.close(within=self._left())

    def _left(self) -> float | None:
        """Seconds that a stop under way may still take."""
        if self._told_at is None:
            return None
        return max(TO_CLOSE, self._told_at + _stops_within(self._settings) - self._clock.monotonic())

    async def _bring_up(self, db: Database, stop: asyncio.Event) -> bool:
        """Each phase in turn, tried again while the store is away: a restart would not bring it back either."""
        steps: list[tuple[StartPhase, StartStep]] = [
            ("store", _reach),
            ("schema", self._migrate),
            ("keys", self._unlock),
        ]
        for phase, step in steps:
            tries = 0
            while not stop.is_set():
                try:
                    await step(db)
                    break
                except (StoreUnavailable, OutcomeUnknown) as error:
                    tries += 1
                    self._health.waiting_for = str(error)
                    self._manager.waiting(f"{phase}: {error}")
                    self._telemetry.log.error("store.unreachable", phase=phase, error=str(error), tries=tries)
                    await wait_for(stop, STORE.wait(tries, self._identity.holder).total_seconds())
                except StoreError as error:
                    raise _unfit(error, phase) from error
            if stop.is_set():
                return False
            self._health.enter(phase)
        return True

    async def _migrate(self, db: Database) -> None:
        apart = open_for_migration(self._settings, self._clock, self._points)
        try:
            for step in await migrate.bring_up(apart or db, points=self._points, progress=self._migrating):
                self._telemetry.log.info("schema.migrated", step=step)
        finally:
            if apart is not None:
                await apart.close()
        await self._recovery(db).tick()  # before anything acts on what the database says
        if not db.engine.shared:  # the instance lock proves that the process before us is gone
            await db.write(sweeps.expire_all)

    def _migrating(self, step: str, rows: int) -> None:
        self._health.waiting_for = f"schema step {step}: {rows:,} rows changed so far"
        self._manager.waiting(self._health.waiting_for)

    def _recovery(self, db: Database) -> Recovery:
        if db.witness is None:
            raise AssertionError("a process that serves has a witness")
        return Recovery(
            db=db,
            witness=db.witness,
            identity=self._identity,
            ttl=self._settings.engine.lease_ttl,
            audit_file=self._settings.audit.file,
            files=self._files,
            clock=self._clock,
            random=self._random,
            points=self._points,
            telemetry=self._telemetry,
        )

    async def _unlock(self, db: Database) -> None:
        keyring = await keys.unlock(db, self._settings, self._files, self._random)
        if note := keys.owed(self._settings, keyring):
            self._telemetry.log.warning("keys.owed", note=note)
        secret_store = SecretStore(db=db, settings=self._settings, files=self._files, keyring=keyring)
        self._ca = CaServer(
            db,
            secret_store,
            self._policy,
            clock=self._clock,
            random=self._random,
            telemetry=self._telemetry,
        )
        self._saver = self._saving(db, keyring)
        await self._ca.prepare()
        self._keeper = CertificateKeeper(
            db,
            secret_store,
            self._ca,
            clock=self._clock,
            random=self._random,
            telemetry=self._telemetry,
            points=self._points,
            host=self._host,
            address=self._address.url,
        )
        await self._keeper.prepare()
        if self._wants_demo:
            await demo_data.fill(db, secret_store)
        self._is_demo = await db.read(backdating.is_demo)

    def _engine(self, db: Database, ca: CaServer, keeper: CertificateKeeper) -> RunningReplica:
        settings = self._settings
        check = selfcheck.kind(db, settings.scheduler.selfcheck_interval, self._telemetry)
        kept = [] if self._is_demo else [keeper]  # certificates of a demo are not renewed: no CA knows them
        kinds = [check, *ca.kinds(), *(kind for each in kept for kind in each.kinds())]
        job_kinds.check_listed(kind.name for kind in kinds)
        return RunningReplica(
            db=db,
            identity=self._identity,
            pace=_pace(settings),
            kinds=[replace(kind, slots=min(kind.slots, settings.engine.slots)) for kind in kinds],
            families=[
                selfcheck.owed(self._random, settings.scheduler.selfcheck_interval),
                *ca.families(),
                *(one for each in kept for one in each.families()),
            ],
            duties=[
                *ca.duties(),
                *self._audit_duties(db),
                *(one for each in kept for one in each.duties()),
                self._first_token_duty(db),
                self._people_duty(db),
                self._recovery_duty(db),
                *self._backup_duties(db),
                *self._alive(),
            ],
            closed=db.closed,
            handover=ca.acme_context.handover,
            clock=self._clock,
            random=self._random,
            points=self._points,
            telemetry=self._telemetry,
        )

    def _saving(self, db: Database, keyring: Keyring) -> Saver | None:
        chosen = self._settings.backup
        if chosen.folder is None:
            return None
        make_folder(chosen.folder, "backup.folder")
        return Saver(
            engine=db.engine, keyring=keyring, clock=self._clock, random=self._random, folder=chosen.folder,
            keep=chosen.keep, points=self._points,
        )  # fmt: skip

    def _backup_duties(self, db: Database) -> list[PeriodicDuty]:
        """By the replica that leads, into the folder of its own machine."""
        save, every = self._saver, self._settings.backup.interval
        if save is None:
            return []

        async def back_up() -> None:
            if await backups.due(db, every):
                made = await aside(save)
                await db.write(lambda tx: backups.record(tx, made))
                self._telemetry.log.info("backup.made", path=made.path, size=made.size, took=f"{made.took_s:.1f} s")

        return [PeriodicDuty(name="backup", period=min(every, BACKUP_LOOK), duty=back_up)]

    def _recovery_duty(self, db: Database) -> PeriodicDuty:
        duty = self._recovery(db).tick
        return PeriodicDuty(name="recovery", period=LOOK_EVERY, duty=duty, everywhere=True, in_quarantine=True)

    def _alive(self) -> list[PeriodicDuty]:
        if self._manager.watchdog is None:
            return []
        every = self._manager.watchdog / 3
        return [
            PeriodicDuty(name="watchdog", period=every, duty=self._manager.alive, everywhere=True, in_quarantine=True)
        ]

    def _first_token_duty(self, db: Database) -> PeriodicDuty:
        duty = partial(tokens.remove_first_token, db, self._files, self._settings.store.data_dir)
        return PeriodicDuty(name="first_token", period=FIRST_TOKEN_EVERY, duty=duty, everywhere=True)

    def _people_duty(self, db: Database) -> PeriodicDuty:
        period = self._settings.scheduler.cleanup_interval
        return PeriodicDuty(name="people_cleanup", period=period, duty=partial(sessions.forget_old, db))

    def _audit_duties(self, db: Database) -> list[PeriodicDuty]:
        """Audit rows go to a second place, if the settings name one; by the replica that leads."""
        chosen, sinks = self._settings.audit, list[Sink]()
        sinks += [] if chosen.file is None else [FileSink(chosen.file)]
        sinks += [SyslogSink(chosen.syslog, self._identity.name)] if chosen.syslog else []
        names = [f"audit_{sink.name.partition(':')[0]}" for sink in sinks]
        duties = [partial(audit.hand_on, db, sink) for sink in sinks]
        return [
            PeriodicDuty(name=name, period=chosen.interval, duty=duty, in_quarantine=True)
            for name, duty in zip(names, duties, strict=True)
        ]

    async def _published(self, ca: str, name: str) -> Published | None:
        if self._db is None or "schema" not in self._health.passed:
            raise StoreUnavailable("the store is not open yet")
        return await publication.fetch(self._db, ca, name)

    async def _look(self) -> None:
        if self._health.started and self._db is not None:
            self._health.store_problem = await observe.store_problem(self._db)

    async def _own_metrics(self) -> bytes:
        if self._health.started and self._db is not None:
            ttl = self._settings.engine.lease_ttl
            await observe.scrape(self._db, self._telemetry.metrics, self._identity.holder, ttl, self._inventory)
            await self._scrape_backups(self._db)
        return self._telemetry.metrics.render()

    async def _scrape_backups(self, db: Database) -> None:
        with contextlib.suppress(StoreError):
            made = await db.read(backups.last)
            self._telemetry.metrics.backup_last_success.set(0 if made is None else made.timestamp())
        every = self._settings.backup.interval.total_seconds() if self._saver is not None else 0
        self._telemetry.metrics.backup_interval.set(every)

    async def _scrape(self) -> bytes:
        own, place = await self._own_metrics(), self._place
        if place is None:
            return own
        return await siblings.gathered(self._settings.store.data_dir, place.number, place.count, own)

    def _gauges(self, db: Database) -> Inventory:
        wanted = self._settings.metrics
        return Inventory(
            db=db,
            metrics=self._telemetry.metrics,
            clock=self._clock,
            every=wanted.interval,
            series=wanted.certificate_series,
        )


def _traces(settings: Settings, replica: str, metrics: Metrics) -> Traces:
    """The traces, or None where otel.endpoint is not set."""
    wanted = settings.otel
    if not wanted.endpoint:
        return Traces()
    try:
        from holdfast.tracing import OtlpTraces
    except ImportError:
        raise SettingRefused(
            "otel.endpoint", "traces need an extra that is not installed", "pip install 'holdfast[otel]'"
        ) from None
    pairs = (each.partition("=") for each in (wanted.headers.reveal() if wanted.headers else "").split(",") if each)
    headers = {name.strip(): value.strip() for name, _, value in pairs}
    return OtlpTraces(wanted.endpoint, headers=headers, replica=replica, metrics=metrics)


async def _ended(task: asyncio.Task[None]) -> None:
    """If we leave before the engine does, it is cut off; its own error counts more than ours."""
    if not task.done():
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _settle_down() -> None:
    """What was loaded by now stays for good: the collector need not walk over it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


def _unfit(error: StoreError, phase: StartPhase) -> StoreRefused:
    """The store answers, and a person must act: trying again would only repeat it."""
    hint = error.hint if isinstance(error, StoreUnfit) else "Look at the database; the logs of its server may say more."
    return StoreRefused(f"The store cannot be used (phase {phase}): {error}", hint)


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


async def serve(
    settings: Settings,
    *,
    stop_after: float | None = None,
    started: OnceStarted | None = None,
    demo: bool = False,
    place: Place | None = None,
) -> None:
    """Run the product until SIGTERM or SIGINT; a second signal ends it without waiting for the drain."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    running = asyncio.create_task(App(settings, started=started, demo=demo, place=place).run(stop), name="app")

    def asked() -> None:
        if stop.is_set() and place is None:
            running.cancel()
        stop.set()

    if place is not None:
        loop.add_reader(place.fileno(), partial(_obey, place, stop, running))

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked)
    if stop_after is not None:
        loop.call_later(stop_after, stop.set)
    limit = asyncio.create_task(_end_in_time(stop, running, settings), name="stop-limit")
    with contextlib.suppress(asyncio.CancelledError):
        await running
    limit.cancel()


def _obey(place: Place, stop: asyncio.Event, running: asyncio.Task[None]) -> None:
    """Signals may come from elsewhere and twice, so only the supervisor cuts a drain off. If it is gone, we drain."""
    order = place.orders()
    if order == NOW:
        running.cancel()
    if not order:
        asyncio.get_running_loop().remove_reader(place.fileno())
    stop.set()


def supervise(settings: Settings, processes: int, *, stop_after: float | None) -> Place:
    """Returns in each of the processes; where it was called, it ends the program once all of them have ended."""
    if settings.store.sqlite_file is not None:
        raise SettingRefused(
            "--processes",
            "a SQLite database belongs to one process",
            "Name a PostgreSQL database (store.url), or leave --processes out.",
        )
    log = make_log(settings.log.level, settings.log.format, replica=settings.replica.name or platform.node())
    if problem := forbid_core_dumps():
        log.warning("holdfast.dumpable", problem=problem)
    within = _stops_within(settings)
    return Supervisor(settings=settings, count=processes, stops_within=within, log=log, stop_after=stop_after).run()


async def _end_in_time(stop: asyncio.Event, running: asyncio.Task[None], settings: Settings) -> None:
    """Whatever still waits shortly before the drain time is over, is cut off: a stop has one deadline, not many."""
    await stop.wait()
    await asyncio.wait({running}, timeout=_stops_within(settings) - 2 * TO_CLOSE)
    while not running.done():  # each wait on the way out is cut off in its turn
        running.cancel()
        await asyncio.wait({running}, timeout=TO_CLOSE / 2)


def _stops_within(settings: Settings) -> float:
    """Seconds from the signal to the end of the process, whatever hangs."""
    return (settings.engine.drain * IN_GOOD_TIME + 2 * HANDING_BACK).total_seconds()
