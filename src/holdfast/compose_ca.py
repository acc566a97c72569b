"""Builds our CAs from Settings: their keys, jobs and duties, and the ACME server with its own certificate."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Final

from holdfast.acme.app import site
from holdfast.acme.nonces import Nonces, nonces_for
from holdfast.agent_face.app import AgentSite, beside
from holdfast.config import Settings
from holdfast.core.client import networks
from holdfast.core.own_ca.acme import Identifier, Order
from holdfast.core.own_ca.ca import CaOptions, CaPolicy
from holdfast.core.own_ca.problem import STATUS, Problem
from holdfast.engine.kind import JobKind
from holdfast.engine.own_ca import crls, signing, validation
from holdfast.engine.own_ca import sweep as ca_sweep
from holdfast.engine.replica import PeriodicDuty
from holdfast.engine.sweep import Owed
from holdfast.errors import StoreError, TryLater
from holdfast.listening.admission import ToldTally
from holdfast.listening.bounds import Bounds
from holdfast.network import SystemNet
from holdfast.operations.acme.certificates import Deliveries, tell_uncollected
from holdfast.operations.acme.context import AcmeContext, Changes
from holdfast.operations.acme.handover import Handover
from holdfast.operations.agents.calls import AgentWork
from holdfast.operations.agents.context import AgentContext, AgentPolicy
from holdfast.operations.agents.desk import AgentDesk
from holdfast.operations.context import OwnCaServices
from holdfast.operations.installation.secret_store import SecretStore
from holdfast.operations.own_ca import manage as cas
from holdfast.operations.own_ca.authorities import Authorities
from holdfast.operations.own_ca.listener import Listener
from holdfast.pki.ceremony import CeremonyPlan
from holdfast.ports import Clock, Files, Random
from holdfast.store.agents import items
from holdfast.store.database import Database
from holdfast.telemetry import Telemetry
from holdfast.validators.caa import Caa
from holdfast.validators.check import Validator
from holdfast.validators.resolver import DnsProblem, Resolver
from holdfast.validators.verdict import ChallengeFailed, ChallengeToCheck, Trace, ValidationSettings
from holdfast.web.serve import ListenerTls, ListeningSocket, serving

RESOLV_CONF: Final = Path("/etc/resolv.conf")
FIRST_NAME: Final = "Holdfast"
REFRESH_EVERY: Final = timedelta(seconds=5)
FLUSH_EVERY: Final = timedelta(seconds=2)
LISTENER_EVERY: Final = timedelta(seconds=10)  # one small read, so that a revoked certificate is not shown for long
HINT_EVERY: Final = timedelta(seconds=5)  # for hints that were lost
HINTS_GATHERED: Final = 0.05  # seconds
ITEMS_KEPT: Final = timedelta(days=7)
HEARD_EVERY: Final = timedelta(seconds=30)  # how old the last-seen time of an agent may be
EVERY_MINUTE: Final = timedelta(minutes=1)


class CaServer:
    """One replica's part in being a CA. `prepare` before the engine starts; `serving` while it runs."""

    def __init__(
        self,
        db: Database,
        secret_store: SecretStore,
        policy: CaPolicy,
        *,
        clock: Clock,
        random: Random,
        telemetry: Telemetry,
    ) -> None:
        self._settings: Settings = secret_store.settings
        self._secret_store = secret_store
        self._clock, self._random, self._telemetry = clock, random, telemetry
        self._deliveries = Deliveries(db)
        self.authorities = Authorities(
            db=db, secret_store=secret_store, policy=policy, clock=clock, telemetry=telemetry
        )
        self.acme_context = AcmeContext(
            db=db,
            random=random,
            policy=policy,
            authorities=self.authorities,
            changes=Changes(),
            delivered=self._deliveries,
            handover=Handover(),
            closed=db.closed,
        )
        self._nonces: Nonces = nonces_for(self.acme_context, clock, shared=db.engine.shared)
        chosen = self._settings.agents
        self.agents = AgentContext(
            acme_context=self.acme_context,
            secret_store=secret_store,
            policy=AgentPolicy(
                ca=chosen.ca or self._settings.acme.first_ca,
                base_url=policy.base_url,
                identity_for=chosen.identity_lifetime,
                poll_for=chosen.poll,
                parked=chosen.parked,
                recoveries=chosen.recoveries,
            ),
        )
        self.agent_desk = AgentDesk(limit=chosen.parked)
        self.agent_work = AgentWork(context=self.agents, desk=self.agent_desk)
        self._tls = ListenerTls()
        first = self._settings.acme.first_ca
        self._listener = Listener(
            acme_context=self.acme_context, telemetry=telemetry, load=self._tls.load, first_ca=first,
            backdate=self._settings.acme.listener_backdate,
        )  # fmt: skip

    async def prepare(self) -> None:
        """Make the first CA if there is none, and open those there are."""
        await self.authorities.refresh()
        first = self._settings.acme.first_ca
        if first and not self.authorities.known() and not self.acme_context.closed():
            with contextlib.suppress(cas.CaExists):  # another replica was quicker: its CA counts
                plan = CeremonyPlan(name=FIRST_NAME, crl_url=self.acme_context.policy.root_crl_url(first))
                await cas.create(self._secret_store, ca=first, plan=plan, options=CaOptions(), actor="system")
                self._telemetry.log.info("ca.created", ca=first)
            await self.authorities.refresh()

    # ── What the engine does for it ──

    def kinds(self) -> list[JobKind]:
        settings, net = self._settings.acme, SystemNet()
        resolvers = settings.resolvers or system_resolvers(self._secret_store.files)
        looks = ValidationSettings(
            resolvers=resolvers,
            http_port=settings.http_port,
            tls_port=settings.tls_port,
            allowed_networks=settings.networks,
            timeout=settings.validation_timeout.total_seconds(),
            caa_identities=settings.caa_identities,
        )
        caa = _CaaAgain(
            Caa(Resolver(net, self._random, resolvers), self._clock, settings.caa_identities),
            self.acme_context.policy,
            looks.timeout,
        )
        return [
            validation.kind(self.acme_context, Validator(net, self._clock, self._random, looks)),
            signing.kind(self.acme_context, caa=caa, use_pkilint=settings.lint == "pkilint"),
            crls.kind(self.acme_context.db, self.authorities, self._telemetry),
            crls.root_kind(self._secret_store, self._telemetry),
        ]

    def families(self) -> list[Owed]:
        return [
            validation.owed(self.acme_context, self._random),
            signing.owed(self._random),
            crls.owed(self._random),
            crls.owed_roots(self._random),
        ]

    def duties(self) -> list[PeriodicDuty]:
        db, policy = self.acme_context.db, self.acme_context.policy
        return [
            PeriodicDuty(
                name="ca_refresh",
                period=REFRESH_EVERY,
                duty=self.authorities.refresh,
                everywhere=True,
                in_quarantine=True,
            ),
            PeriodicDuty(name="ca_listener", period=LISTENER_EVERY, duty=self._listener.tend, everywhere=True),
            PeriodicDuty(name="acme_deliveries", period=FLUSH_EVERY, duty=self._deliveries.flush, everywhere=True),
            PeriodicDuty(name="agents_heard", period=HEARD_EVERY, duty=self._write_heard, everywhere=True),
            PeriodicDuty(name="agents_hint", period=HINT_EVERY, duty=self._hint_agents, everywhere=True),
            PeriodicDuty(name="agent_items", period=EVERY_MINUTE * 60, duty=lambda: self._forget_items()),
            PeriodicDuty(name="acme_nonces", period=10 * EVERY_MINUTE, duty=self._nonces.sweep, everywhere=True),
            PeriodicDuty(name="acme_expire", period=EVERY_MINUTE, duty=lambda: ca_sweep.expire(db)),
            PeriodicDuty(
                name="acme_cleanup",
                period=self._settings.scheduler.cleanup_interval,
                duty=lambda: ca_sweep.forget(db, self._settings.engine.history_for),
            ),
            PeriodicDuty(
                name="acme_uncollected",
                period=EVERY_MINUTE,
                duty=lambda: tell_uncollected(db, policy.uncollected_after),
            ),
        ]

    async def _write_heard(self) -> int:
        return await self.agent_desk.flush(self.acme_context.db)

    async def _hint_agents(self) -> int:
        return await self.agent_desk.hint(self.acme_context.db)

    async def _forget_items(self) -> int:
        return await self.acme_context.db.write(lambda tx: items.forget(tx, tx.now() - ITEMS_KEPT))

    async def _follow_hints(self) -> None:
        """Wake parked agents as soon as another process, or a job of this one, has committed something."""
        waiter = self.acme_context.db.wake.subscribe()
        try:
            while True:
                await waiter.wait()
                waiter.clear()
                with contextlib.suppress(StoreError):
                    await self._hint_agents()
                await self._clock.sleep(HINTS_GATHERED)
        finally:
            self.acme_context.db.wake.unsubscribe(waiter)

    def _agent_site(self, proxies: Sequence[str]) -> AgentSite:
        return AgentSite(
            self.agents,
            self.agent_desk,
            clock=self._clock,
            random=self._random,
            telemetry=self._telemetry,
            proxies=networks(proxies),
        )

    # ── Being asked ──

    @property
    def services(self) -> OwnCaServices:
        """What operations on our CAs need of this process."""
        return OwnCaServices(
            policy=self.acme_context.policy, refresh=self.authorities.refresh, problem=self.authorities.problem
        )  # fmt: skip

    @contextlib.asynccontextmanager
    async def serving(self, line: ListeningSocket, bounds: Bounds) -> AsyncIterator[None]:
        """Answer ACME requests from the moment there is a certificate to answer with."""
        tasks = [
            asyncio.create_task(self._serve(line, bounds), name="acme"),
            asyncio.create_task(self._follow_hints(), name="agents"),
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            with contextlib.suppress(StoreError):  # what was seen last; it is evidence, not worth an error
                await self._deliveries.flush()

    async def ready(self, seconds: float) -> bool:
        """Wait for the listener's certificate, but not for ever, and not without a CA that could sign it."""
        if not self.authorities.all():
            return False
        try:
            async with asyncio.timeout(seconds):
                return await self._listener.loaded.wait()
        except TimeoutError:
            return False

    async def _serve(self, line: ListeningSocket, bounds: Bounds) -> None:
        try:
            await self._listener.loaded.wait()
            proxies = self._settings.server.trusted_proxies
            acme = site(self.acme_context, self._nonces, self._clock, self._telemetry, proxies=proxies)
            face = beside(acme, self._agent_site(proxies))
            unprobed = replace(bounds, probes=0)  # probes ask server.listen
            async with serving(face, line, self._tls, bounds=unprobed, tally=ToldTally("acme", self._telemetry)):
                self._telemetry.log.info("acme.serving", url=self.acme_context.policy.base_url)
                await asyncio.Event().wait()  # until it is cancelled
        except Exception as error:
            self._telemetry.log.error("acme.failed_to_serve", error=str(error), exc_info=error)
            raise


class _CaaAgain:
    """Looks at CAA once more for a certificate whose proofs are older than such an answer may be (RFC 8555 §8.1)."""

    def __init__(self, caa: Caa, policy: CaPolicy, timeout: float) -> None:
        self._caa, self._policy, self._timeout = caa, policy, timeout

    async def __call__(self, order: Order, identifier: Identifier, proof: str) -> Problem | None:
        asked = ChallengeToCheck(
            type=proof,
            identifier_type=identifier.type,
            identifier=identifier.value,
            token="",
            thumbprint="",
            account_url=self._policy.acme_url(order.ca, "account", order.account),
        )
        try:
            async with asyncio.timeout(self._timeout):
                await self._caa.check(asked, Trace())
        except ChallengeFailed as why:
            if why.retryable:
                raise TryLater(str(why), reason="CAA_UNKNOWN") from why
            return why.problem
        except DnsProblem as why:
            if why.retryable:
                raise TryLater(str(why), reason="CAA_UNKNOWN") from why
            return Problem("caa", f"{why}.", STATUS["caa"])
        except TimeoutError:
            raise TryLater(f"CAA of {identifier.value}: no answer", reason="CAA_UNKNOWN") from None
        return None


def system_resolvers(files: Files) -> tuple[str, ...]:
    """The name servers that this machine itself uses."""
    lines = [line.split() for line in (files.read(RESOLV_CONF) or b"").decode(errors="replace").splitlines()]
    found = [words[1] for words in lines if len(words) > 1 and words[0] == "nameserver" and "%" not in words[1]]
    return tuple(found) or ("127.0.0.1",)
