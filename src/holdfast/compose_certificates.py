"""Builds from Settings the part that obtains and renews certificates: issuers, solvers, channels, jobs and duties."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import sys
import tomllib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from holdfast.compose_ca import CaServer, system_resolvers
from holdfast.config import Settings
from holdfast.core.discovery.ct import LogKind
from holdfast.core.discovery.ct import problem_with as problem_with_log
from holdfast.core.discovery.discovery import Discovery
from holdfast.core.discovery.find import FindSource
from holdfast.core.discovery.network import NETWORKS_SETTING, ScanRules
from holdfast.core.own_ca.acme import Identifier
from holdfast.core.solver import Provable
from holdfast.ct.logs import EntriesLog, FolderShelf, Log, Shelf, TiledLog, UrlShelf
from holdfast.deployers import local_file
from holdfast.deployers.kind import LocalRules
from holdfast.endpoints import probe
from holdfast.engine import rehearsal, watch
from holdfast.engine.deployment import drain
from holdfast.engine.deployment.deployer_factory import Deployers
from holdfast.engine.deployment.offering import StoredOffers
from holdfast.engine.discovery import cas as ca_lists
from holdfast.engine.discovery import ct_logs, rounds
from holdfast.engine.discovery import duties as discovery_duties
from holdfast.engine.discovery import network as scans
from holdfast.engine.issuance import accounts, challenges, issuer_factory
from holdfast.engine.issuance import duties as issuance_duties
from holdfast.engine.issuance.challenges import SolverRule
from holdfast.engine.issuance.claim import SolverFor
from holdfast.engine.issuance.issue import IssuanceServices
from holdfast.engine.issuance.issuer_factory import Upstream
from holdfast.engine.issuance.kept_solvers import KeptSolvers
from holdfast.engine.kind import JobKind
from holdfast.engine.notifications import delivery
from holdfast.engine.notifications import duties as notification_duties
from holdfast.engine.notifications.senders import Senders
from holdfast.engine.replica import PeriodicDuty
from holdfast.engine.sweep import Owed
from holdfast.errors import Refused, SettingRefused, StoreError
from holdfast.listening.admission import ToldTally
from holdfast.listening.bounds import Bounds
from holdfast.local_bundles import LocalBundles
from holdfast.network import SystemNet
from holdfast.operations.context import Services
from holdfast.operations.installation.secret_store import SecretStore
from holdfast.operations.issuance import challenge_responses, input_changed
from holdfast.operations.issuance.attempts import CertificateContext
from holdfast.operations.issuers import manage as manage_issuers
from holdfast.operations.issuers.manage import IssuerExists
from holdfast.operations.own_ca.internal_orders import OwnCas
from holdfast.ports import Clock, Files, Points, Random, no_points
from holdfast.secret import Secret
from holdfast.solvers import kind as solvers
from holdfast.solvers import tls_alpn
from holdfast.solvers.kind import SolverParts
from holdfast.store import issuers
from holdfast.store.database import Store
from holdfast.telemetry import Telemetry
from holdfast.world import HttpTransport, LocalTree, TracedTransport

OWN: Final = "own"  # the name of our own CA among those that certificates can come from
SETTING: Final = "keeping.solvers_file"
LOCAL_FILE: Final = "deployment.local_file"


class CertificateKeeper:
    """One replica's part in keeping certificates. `prepare` before the engine starts."""

    def __init__(
        self,
        db: Store,
        secret_store: SecretStore,
        ca: CaServer,
        *,
        clock: Clock,
        random: Random,
        telemetry: Telemetry,
        points: Points = no_points,
        host: str = "",
        address: str = "",
    ) -> None:
        self._settings: Settings = secret_store.settings
        self._clock, self._telemetry = clock, telemetry
        self.certificate_context = CertificateContext(
            db=db, random=random, secret_store=secret_store, approval_for=self._settings.keeping.approval_for
        )
        self.transport = transport = TracedTransport(HttpTransport(points), telemetry.traces)
        own_cas = OwnCas(ca.acme_context)
        self._upstream = Upstream(context=self.certificate_context, own_cas=own_cas, transport=transport, clock=clock)
        self.probe = probe.make(
            SystemNet(),
            random,
            resolvers=self._settings.endpoints.resolvers or system_resolvers(secret_store.files),
            networks=self._settings.endpoints.networks,
            each=self._settings.endpoints.timeout.total_seconds(),
        )
        wanted = self._settings.discovery
        self._scanner = probe.make(
            SystemNet(),
            random,
            resolvers=self._settings.endpoints.resolvers or system_resolvers(secret_store.files),
            networks=wanted.networks,
            each=wanted.timeout.total_seconds(),
            only=NETWORKS_SETTING,
        )
        self.senders = Senders(secret_store=secret_store, transport=transport, clock=clock)
        self.deployers = Deployers(
            secret_store=secret_store,
            transport=transport,
            net=SystemNet(),
            bundles=LocalBundles(points),
            clock=clock,
            random=random,
            offers=StoredOffers(db=db, random=random, address=address),
            host=host,
            local=_local_rules(self._settings.deployment.local_file, secret_store.files),
            agents=ca.agent_work,
        )
        self._deploying = drain.DeployServices(
            db=db,
            secret_store=secret_store,
            open_target=self.deployers.open,
            look=self.probe.look,
            clock=clock,
            telemetry=telemetry,
            host=host,
        )
        parts = self._solver_parts(secret_store.files, random)
        kept = KeptSolvers(self.certificate_context, parts, telemetry.log)

        named = self._rules(secret_store.files, parts)

        async def known_solvers() -> list[Provable]:
            rules = [*await kept.rules(), *named]
            return [Provable(type=each.solver.type, names=each.names, solver=each.name) for each in rules]

        async def by_kept_rules() -> SolverFor:
            return challenges.by_rules(await kept.rules())

        self._services = IssuanceServices(
            certificate_context=self.certificate_context,
            make_issuer=self._upstream.make,
            solver_for=challenges.by_rules(named),
            kept_solvers=by_kept_rules,
            telemetry=telemetry,
            agents=ca.agent_work,
            poll_windows=self._settings.poll_windows,
        )
        self._notifications = delivery.DeliveryServices(
            db=db,
            make_sender=self.senders.open,
            clock=clock,
            random=random,
            telemetry=telemetry,
            pages=self._settings.server.public_url.rstrip("/"),
        )
        self.services = Services(
            certificate_context=self.certificate_context,
            issuer_kinds=issuer_factory.kinds(),
            probe=self._upstream.probe,
            fit=issuer_factory.check,
            post=self.senders,
            look=self.probe.look,
            rehearse=rehearsal.rehearse(self._upstream.make, clock, random),
            readable_logs=wanted.logs,
            scanning=ScanRules(networks=wanted.networks, rate=wanted.rate),
            targets=self.deployers,
            solver_fit=kept.check,
            try_solver=kept.test,
            known_solvers=known_solvers,
            default_issuers=(OWN,),
            own_ca=ca.services,
            agents=ca.agents,
        )

    async def prepare(self) -> None:
        """Our own CA is there from the first start; others are added by their operators."""
        solvers = solvers_digest(self._settings.keeping.solvers_file, self.certificate_context.secret_store.files)
        await input_changed.of_solvers(self.certificate_context, solvers)
        first = self._settings.acme.first_ca
        if first and not await self.certificate_context.db.read(issuers.all_issuers):
            with contextlib.suppress(IssuerExists):  # another replica was quicker
                await self.certificate_context.db.write(
                    lambda tx: manage_issuers.add(tx, OWN, kind="local", settings={"ca": first}, actor="system")
                )

    def kinds(self) -> list[JobKind]:
        changed = accounts.kind(self.certificate_context, self._upstream.accounts.change_key)
        seen = watch.kind(self.certificate_context.db, self.probe.look, self._settings.endpoints.check_interval)
        told = notification_duties.kinds(self._notifications)
        steps = {
            FindSource.NETWORK: scans.scan(self._scanner),
            FindSource.CA: ca_lists.read(self.certificate_context.db, self._upstream.make),
            FindSource.CT: ct_logs.read(self.certificate_context.db, self._open_log),
        }
        found = rounds.kind(self.certificate_context.db, self.certificate_context.random, steps)
        return [*issuance_duties.kinds(self._services), changed, seen, found, *drain.kinds(self._deploying), *told]

    def families(self) -> list[Owed]:
        return [
            *issuance_duties.families(self.certificate_context),
            watch.owed(self.certificate_context.random),
            rounds.owed(self.certificate_context.random),
            drain.owed,
            *notification_duties.families(self._notifications),
        ]

    def duties(self) -> list[PeriodicDuty]:
        told, pace = self._settings.notification, self._settings.scheduler
        return [
            *issuance_duties.duties(
                self.certificate_context,
                renewal=pace.renewal_interval,
                ask=pace.ari_interval,
                turn=pace.turns_interval,
                approval=pace.approval_interval,
                cleanup=pace.cleanup_interval,
                history_for=self._settings.engine.history_for,
            ),
            PeriodicDuty(
                name="target_endpoints",
                period=pace.reconcile_interval,
                duty=partial(watch.follow_targets, self.certificate_context.db, self.certificate_context.random),
            ),
            *discovery_duties.duties(
                self.certificate_context.db,
                review=pace.reconcile_interval,
                ends=told.expiry_interval,
                cleanup=pace.cleanup_interval,
                kept_for=self._settings.engine.history_for,
            ),
            PeriodicDuty(
                name="deployments_due",
                period=self._settings.deployment.interval,
                duty=partial(drain.wake_due, self._deploying),
            ),
            *notification_duties.duties(
                self._notifications,
                retry=told.retry_interval,
                process=told.process_interval,
                ends=told.expiry_interval,
                cleanup=pace.cleanup_interval,
                history_for=self._settings.engine.history_for,
                lease_ttl=self._settings.engine.lease_ttl,
            ),
        ]

    async def http01(self, token: str) -> str | None:
        return await challenge_responses.http01(self.certificate_context.db, token)

    @contextlib.asynccontextmanager
    async def showing(self, line: tls_alpn.BoundSocket | None, bounds: Bounds) -> AsyncIterator[None]:
        """Answer CAs that ask for proofs of tls-alpn-01, of whichever replica made them."""
        if line is None:
            yield
            return
        tally = ToldTally("tls_alpn", self._telemetry)
        async with tls_alpn.showing(line, self._tls_alpn01, self._clock, bounds, tally):
            where = "{}:{}".format(*line.getsockname()[:2])
            self._telemetry.log.info("tls_alpn.listening", address=where)
            yield

    async def _tls_alpn01(self, identifier: Identifier) -> str | None:
        try:
            return await challenge_responses.tls_alpn01(self.certificate_context.db, identifier.value)
        except StoreError as error:
            self._telemetry.log.warning("tls_alpn.not_answered", name=identifier.value, error=str(error))
            return None

    def _open_log(self, row: Discovery) -> Log:
        """A log that discovery.logs lists now: a setting may have changed since it was asked for."""
        url, key = str(row.settings["log"]), row.settings.get("key")
        if problem := problem_with_log(url, LogKind(row.settings["kind"]), self._settings.discovery.logs):
            raise Refused(problem)
        shelf: Shelf = UrlShelf(self.transport, url)
        if url.startswith("file:"):
            shelf = FolderShelf(LocalTree(Path(urlsplit(url).path)))
        known = None if key is None else base64.b64decode(key)
        return TiledLog(shelf, known) if row.settings["kind"] == LogKind.STATIC else EntriesLog(shelf, known)

    # ── Solvers ──

    def _solver_parts(self, files: Files, random: Random) -> SolverParts:
        put, delete = challenges.in_store(self.certificate_context)
        return SolverParts(
            files=files,
            net=SystemNet(),
            random=random,
            resolvers=self._settings.acme.resolvers or system_resolvers(files),
            python=sys.executable,
            put=put,
            delete=delete,
            tls_alpn_shown=bool(self._settings.keeping.tls_alpn_listen),
        )

    def _rules(self, files: Files, parts: SolverParts) -> list[SolverRule]:
        """Those of the operator's file, in its order; then, for every name, proofs that this server answers itself."""
        path = self._settings.keeping.solvers_file
        named = [] if path is None else [_rule(each, path, files, parts) for each in _tables(path, files)]
        return [*named, SolverRule(names=("*",), solver=solvers.make("http", {}, parts))]


def _local_rules(path: Path | None, files: Files) -> LocalRules:
    """What this host allows deployments to do; nothing, if no file says so."""
    if path is None:
        return LocalRules()
    try:
        content = files.read(path)
        if content is None:
            raise SettingRefused(LOCAL_FILE, f"there is no file {path}")
        return local_file.rules_of(content.decode())
    except (OSError, ValueError) as error:
        raise SettingRefused(LOCAL_FILE, f"{path} cannot be used: {error}") from None


def solvers_digest(path: Path | None, files: Files) -> str:
    """Of the rules and their secrets, made slowly: it is kept, and must not help anybody to guess one of those."""
    tables = [] if path is None else _tables(path, files)
    named = [Path(file) for table in tables for file in table.get("secret_files", {}).values()]
    content = json.dumps(tables, sort_keys=True, default=str).encode()
    if not named:
        return hashlib.sha256(content).hexdigest()
    content += b"".join(hashlib.sha256(_secret(files, each).reveal().encode()).digest() for each in named)
    return hashlib.pbkdf2_hmac("sha256", content, b"holdfast solver rules", 100_000).hex()


def _tables(path: Path, files: Files) -> list[Mapping[str, Any]]:
    try:
        content = files.read(path)
        tables = tomllib.loads((content or b"").decode()).get("solver", [])
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingRefused(SETTING, f"{path} cannot be read: {error}") from None
    if content is None:
        raise SettingRefused(SETTING, f"there is no file {path}")
    if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
        raise SettingRefused(SETTING, f"{path}: expected tables called [[solver]]")
    return tables


def _rule(table: Mapping[str, Any], path: Path, files: Files, parts: SolverParts) -> SolverRule:
    """One [[solver]]: kind, names, the kind's own options, and the files of its secrets."""
    options = {name: value for name, value in table.items() if name not in ("kind", "names", "secret_files")}
    try:
        names = tuple(str(each).lower() for each in table["names"])
        secrets = {name: _secret(files, Path(file)) for name, file in table.get("secret_files", {}).items()}
        solver = solvers.make(str(table["kind"]), options, replace(parts, credentials=secrets))
        return SolverRule(names=names, solver=solver)
    except KeyError as missing:
        raise SettingRefused(SETTING, f"{path}: a [[solver]] has no {missing.args[0]!r}") from None
    except (TypeError, ValueError) as error:
        raise SettingRefused(SETTING, f"{path}: {error}") from None


def _secret(files: Files, path: Path) -> Secret[str]:
    try:
        content = files.read(path)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None
    if not content:
        raise ValueError(f"there is no secret in {path}")
    return Secret(content.decode().rstrip("\r\n"))
