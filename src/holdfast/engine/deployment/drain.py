"""Drains one reload domain: writes all bundles that are due, tests and reloads once, and looks for each of them.

One job for a domain: its lease is why no two replicas change one daemon at a time. Each step is committed before the
next effect, so that any worker can resume any of them. No transaction is open while a target is reached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from holdfast.core import reasons
from holdfast.core.certificate import Version
from holdfast.core.deployment import Deployment, DeploymentState
from holdfast.core.deployment_decision import (
    CallDone,
    CallFailed,
    DeployAnswer,
    DeployCall,
    DeploymentFacts,
    DeployStep,
    MakeCall,
    MoveOn,
    Seen,
    Sight,
    decide,
    puts_back,
    still_out,
)
from holdfast.core.kind import Trait
from holdfast.core.reasons import Reason
from holdfast.core.target import TargetRow
from holdfast.core.work.job import Again, Done, Outcome, Spec
from holdfast.deployers.base import Bundle, ChecksConfig, Deployer, Drains, Looks, Reloads, refused
from holdfast.engine.deployment import bundles, claim, looking, writes
from holdfast.engine.deployment.claim import Found, Rest
from holdfast.engine.deployment.looking import LookAt
from holdfast.engine.kind import JobKind, Work
from holdfast.errors import KeyMissing, KeyUnusable, LeaseLost, Refused, TryLater, TxConflict
from holdfast.operations import kinds as kinds_of
from holdfast.operations.deployment import planning
from holdfast.operations.installation.secret_store import SecretStore, certificate_key
from holdfast.ports import Clock
from holdfast.secret import Secret
from holdfast.store.database import Store
from holdfast.store.deployments import deployments
from holdfast.store.own_ca import cas
from holdfast.store.tx import Tx
from holdfast.store.work import jobs
from holdfast.telemetry import Telemetry

CALL_FOR: Final = 180.0  # seconds that one call to a target may take
RUN_FOR: Final = 120.0  # seconds after which others have their turn
LOOKS_AT_ONCE: Final = 8  # certificates of one daemon: it may take few connections at a time
WAITING: Final = "WAITING"
_ORDER: Final[Sequence[DeployCall]] = ("write", "restore", "test", "drain", "reload", "look")

OpenTarget = Callable[[TargetRow], Awaitable[Deployer]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployServices:
    """The dependencies of a drain."""

    db: Store
    secret_store: SecretStore
    open_target: OpenTarget
    look: LookAt
    clock: Clock
    telemetry: Telemetry
    host: str = ""  # the name of this replica: jobs of its own files and programs are its alone


def kinds(services: DeployServices) -> list[JobKind]:
    """Two: what any replica can reach, and what is on this machine."""
    hosts = ["", services.host] if services.host else [""]
    return [_kind(services, host) for host in hosts]


def _kind(services: DeployServices, host: str) -> JobKind:
    async def handler(work: Work) -> Outcome:
        return await Drain(services=services, work=work, host=host).go()

    return JobKind(name=planning.job_kind(host), handler=handler, slots=16, timeout=timedelta(minutes=15))


@dataclass(slots=True)
class Deploying:
    """One deployment of a batch: what is known of it, and the call that comes next; None: it is done for now."""

    found: Found
    facts: DeploymentFacts
    call: DeployCall | None = None
    deployer: Deployer | None = None
    bundle: Bundle | None = None
    back: Bundle | None = None  # the bundle before


@dataclass(slots=True, kw_only=True)
class Drain:
    """One claim of one reload domain's job."""

    services: DeployServices
    work: Work
    host: str
    _open: list[Deployer] = field(default_factory=list)

    @property
    def domain(self) -> str:
        return self.work.claim.subject

    async def go(self) -> Outcome:
        until = self.services.clock.monotonic() + RUN_FOR
        while self.services.clock.monotonic() < until:
            found = await self.services.db.write(self._pick)
            if isinstance(found, Rest):
                return self._rest(found)
            await self._deploy([Deploying(each, each.facts) for each in found])
        return Again(after=timedelta(0), reason="MORE")

    def _pick(self, tx: Tx) -> Rest | list[Found]:
        if not jobs.still_ours(tx, self.work.claim):
            raise LeaseLost(self.work.claim.id)
        return claim.pick(tx, self.host, self.domain)

    def _rest(self, found: Rest) -> Outcome:
        """A transaction that wants more waits for our lock on the job, or was committed before this look."""

        def write(tx: Tx) -> None:
            at, now = deployments.next_due(tx, self.host, self.domain), tx.now()
            if at is None or (found.at is not None and at >= found.at):
                return
            if found.at is None:
                jobs.owe(tx, replace(planning.job_of(now, self.host, self.domain), due_at=at))
            else:
                jobs.bring_forward(tx, self.work.claim.kind, self.domain, at)

        return Done(write=write) if found.at is None else Again(at=found.at, reason=WAITING, write=write)

    # ── A batch ──

    async def _deploy(self, batch: list[Deploying]) -> None:
        """In lockstep: all are written before one is tested, and all are tested before anything is reloaded."""
        try:
            for each in batch:
                await self._follow(each, decide(each.facts, CallDone("begin")))
            while waiting := [each for each in batch if each.call is not None]:
                first = min(map(_rank, waiting))
                group = [each for each in waiting if _rank(each) == first]
                for each, answer in await self._called(group[0].call or "look", group):
                    await self._follow(each, decide(each.facts, answer))
        finally:
            await self._close()

    async def _follow(self, each: Deploying, step: DeployStep) -> None:
        """Commit a step; what it says comes next."""
        each.call = None
        if isinstance(step, MakeCall):
            each.call = step.call
            return
        if puts_back(each.facts, step) and (failed := await self._put_back(each)) is not None:
            step = still_out(each.facts, failed)
        try:
            row, now = await self.services.db.write(
                lambda tx: (writes.step(tx, self.work.claim, each.facts, step), tx.now())
            )
        except TxConflict:
            if each.facts.deployment.drained:
                await self._put_back(each)
            return  # a person, or a newer version, was faster: the next look finds out
        self.work.point("deployment.committed")
        self.services.telemetry.metrics.deployment_steps.labels(state=row.state.value).inc()
        each.facts = replace(each.facts, deployment=row, now=now)
        each.call = step.then if isinstance(step, MoveOn) else None

    async def _called(self, call: DeployCall, group: list[Deploying]) -> list[tuple[Deploying, DeployAnswer]]:
        match call:
            case "write":
                return [(each, await self._heard(call, partial(self._write, each))) for each in group]
            case "restore":
                return [(each, await self._heard(call, partial(self._restore, each))) for each in group]
            case "test":
                return await self._once(call, group, _tested_by, _test)
            case "drain":
                return await self._once(call, group, _drained_by, _drain)
            case "reload":
                return await self._once(call, group, _reloaded_by, _reload)
            case "look":
                some = asyncio.Semaphore(LOOKS_AT_ONCE)

                async def looked(each: Deploying) -> DeployAnswer:
                    async with some:
                        answer: DeployAnswer = await self._heard(call, partial(self._look, each))
                        return answer

                seen = await asyncio.gather(*map(looked, group))
                return list(zip(group, seen, strict=True))

    async def _once(
        self,
        call: DeployCall,
        group: list[Deploying],
        words: Callable[[Deployer], str],
        run: Callable[[Deployer], Awaitable[None]],
    ) -> list[tuple[Deploying, DeployAnswer]]:
        """One test, or one reload, for all that share it."""
        answers: dict[str, DeployAnswer] = {"": CallDone(call)}
        found: list[tuple[Deploying, DeployAnswer]] = []
        for each in group:
            opened = await self._heard(call, partial(self._opened, each))
            if isinstance(opened, CallFailed):
                found.append((each, opened))
                continue
            key = words(opened)
            if key not in answers:
                answer = await self._heard(call, partial(run, opened))
                answers[key] = answer if isinstance(answer, CallFailed) else CallDone(call)
                self.work.point("job.effect-done")
            found.append((each, answers[key]))
        return found

    # ── Calls ──

    async def _heard(self, at: DeployCall, ask: Callable[[], Awaitable[Any]]) -> Any:
        """What was returned; or what was raised, as a value."""
        self.work.check()
        try:
            async with asyncio.timeout(CALL_FOR):
                return await ask()
        except LeaseLost:
            raise
        except TryLater as why:
            return CallFailed(
                at=at, reason=_reason(why.reason, Reason.TARGET_UNREACHABLE), why=str(why), after=why.after
            )
        except Refused as why:
            return CallFailed(at=at, reason=_reason(why.reason, Reason.TARGET_REFUSED), why=str(why), refused=True)
        except TimeoutError:
            return CallFailed(at=at, reason=Reason.TARGET_UNREACHABLE, why=f"No answer within {CALL_FOR:g} s.")
        except KeyMissing as why:
            return CallFailed(at=at, reason=Reason.KEY_MISSING, why=str(why))  # another replica may hold it
        except KeyUnusable as why:
            return CallFailed(at=at, reason=Reason.KEY_MISSING, why=str(why), refused=True)
        except Exception as error:
            self.services.telemetry.log.error("deployer.crashed", domain=self.domain, at=at, exc_info=error)
            why_ = f"{type(error).__name__}: {error}"
            return CallFailed(at=at, reason=Reason.INTERNAL, why=why_, refused=True)

    async def _opened(self, each: Deploying) -> Deployer:
        if each.deployer is None:
            each.deployer = await self.services.open_target(each.found.target)
            self._open.append(each.deployer)
        return each.deployer

    async def _write(self, each: Deploying) -> DeployAnswer:
        if each.found.unfit:
            raise refused(f"{each.found.certificate.name}: {each.found.unfit}.", Reason.BUNDLE_UNFIT)
        bundle, deployer = await self._bundle(each), await self._opened(each)
        self.work.check()
        answer = await deployer.write(bundle)
        self.work.point("job.effect-done")
        return answer

    async def _restore(self, each: Deploying) -> DeployAnswer:
        bundle, back, deployer = await self._bundle(each), await self._back(each), await self._opened(each)
        self.work.check()
        await deployer.restore(bundle, back)
        self.work.point("job.effect-done")
        return CallDone("restore")

    async def _put_back(self, each: Deploying) -> CallFailed | None:
        """Into its balancer; once more does no harm."""

        async def undrain() -> None:
            deployer = await self._opened(each)
            if isinstance(deployer, Drains):
                await deployer.undrain()

        answer = await self._heard("drain", undrain)
        return answer if isinstance(answer, CallFailed) else None

    async def _look(self, each: Deploying) -> DeployAnswer:
        rolling = each.facts.deployment.state is DeploymentState.ROLLING_BACK
        bundle = await self._back(each) if rolling else await self._bundle(each)
        if bundle is None:  # the target alone knows what it went back to
            return Seen(sight=Sight.NOTHING, words="What was there before is not known here.")
        old = () if rolling else each.found.old
        deployer = await self._opened(each)
        at = deployer.look if isinstance(deployer, Looks) else self.services.look
        return await looking.look(at, each.found.endpoints, bundle, old, each.facts.now)

    # ── Bundles ──

    async def _bundle(self, each: Deploying) -> Bundle:
        if each.bundle is None:
            key = await self._key(each, each.facts.version)
            row, now = each.facts.deployment, each.facts.now
            each.bundle = await self._made(each, each.facts.version, row, key, now)
        return each.bundle

    async def _back(self, each: Deploying) -> Bundle | None:
        before, previous = each.found.before, each.facts.previous
        if each.back is None and previous is not None and before is not None:
            key = await self._key(each, previous)
            each.back = await self._made(each, previous, before, key, each.facts.now)
        return each.back

    async def _made(
        self, each: Deploying, version: Version, row: Deployment, key: Secret[bytes], now: datetime
    ) -> Bundle:
        roots = await self.services.db.read(cas.trusted_roots)
        there = kinds_of.has(each.found.target, Trait.HAS_KEYS)
        return bundles.made(each.found.certificate, version, row, key, now, roots=roots.encode(), key_there=there)

    async def _key(self, each: Deploying, version: Version) -> Secret[bytes]:
        try:
            return await self.services.secret_store.reveal(
                version.key_secret, certificate_key(each.found.certificate.id)
            )
        except LookupError:
            raise refused("The key of this version is not kept any more.", Reason.BUNDLE_UNFIT) from None

    async def _close(self) -> None:
        opened, self._open = self._open, []
        for each in opened:
            try:
                await each.close()
            except Exception as error:  # an error at the end undoes nothing
                self.services.telemetry.log.warning("target.not_closed", domain=self.domain, error=str(error))


def _rank(each: Deploying) -> int:
    """A look at equal bytes comes before all tests: those that are not served join the others in time."""
    if each.call == "look" and each.facts.deployment.state is DeploymentState.WRITING:
        return 0
    return 1 + _ORDER.index(each.call or "look")


def _reason(code: str, otherwise: Reason) -> Reason:
    found = reasons.of(code)
    return otherwise if found is Reason.INTERNAL else found


def _tested_by(deployer: Deployer) -> str:
    return deployer.tested_by if isinstance(deployer, ChecksConfig) else ""


def _reloaded_by(deployer: Deployer) -> str:
    return deployer.reloaded_by if isinstance(deployer, Reloads) else ""


def _drained_by(deployer: Deployer) -> str:
    return deployer.drained_by if isinstance(deployer, Drains) else ""


async def _drain(deployer: Deployer) -> None:
    if isinstance(deployer, Drains):
        await deployer.drain()


async def _test(deployer: Deployer) -> None:
    if isinstance(deployer, ChecksConfig):
        await deployer.test()


async def _reload(deployer: Deployer) -> None:
    if isinstance(deployer, Reloads):
        await deployer.reload()


# ── The reconciler and the sweep ──


def owed(tx: Tx) -> list[Spec]:
    """Reload domains with deployments that are due, and no job that drains them."""
    now = tx.now()
    due = deployments.domains_due(tx, now)
    return [
        planning.job_of(now, host, domain)
        for host, domain in due
        if jobs.live(tx, planning.job_kind(host), domain) is None
    ]


async def wake_due(services: DeployServices) -> int:
    """Wake the jobs of domains whose deployments are due: held ones whose window opens, and those tried again."""

    def write(tx: Tx) -> int:
        now = tx.now()
        return sum(
            jobs.bring_forward(tx, planning.job_kind(host), domain, now)
            for host, domain in deployments.domains_due(tx, now)
        )

    return await services.db.write(write)
