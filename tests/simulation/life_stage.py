"""The stage of the lifecycle: the jobs and duties of the product keep certificates, from CAs with their own truth."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Final

from holdfast.config import Settings
from holdfast.core.issuers.budget import Limit
from holdfast.core.issuers.issuer import IssuerRow
from holdfast.core.target import TargetRow
from holdfast.deployers.base import Deployer
from holdfast.engine import watch
from holdfast.engine.deployment import drain
from holdfast.engine.deployment.drain import DeployServices
from holdfast.engine.issuance import challenges
from holdfast.engine.issuance import duties as issuance_duties
from holdfast.engine.issuance.issue import IssuanceServices
from holdfast.engine.replica import Pace, PeriodicDuty
from holdfast.issuers.base import ChallengeResponse, Issuer, OrderRequest
from holdfast.keyring import Kek, Keyring
from holdfast.operations.deployment.planning import DEPLOY
from holdfast.operations.installation.keys import check_of
from holdfast.operations.installation.secret_store import SecretStore
from holdfast.operations.issuance.attempts import ISSUE, CertificateContext
from holdfast.secret import Secret
from holdfast.solvers.http01 import HttpStore
from holdfast.store import issuances, issuers, secrets
from holdfast.store.deployments import targets
from holdfast.store.tx import Tx, from_micros
from holdfast.world import LocalFiles
from tests.simulation import invariants, life_invariants, target_invariants
from tests.simulation.authority import Authority
from tests.simulation.clockwork import START, VirtualLoop
from tests.simulation.daemons import Daemon
from tests.simulation.door import DoorIssuer
from tests.simulation.ground import Ground, Parts, Ports
from tests.simulation.node import NEVER, Node, NodeRandom
from tests.simulation.signing import Keysmith
from tests.simulation.target_door import DoorDeployer, Eyes
from tests.simulation.witness import Note

PACE: Final = Pace(  # a sixth of the errands': the same hours of faults have room for whole lives of certificates
    poll=timedelta(minutes=1),
    ttl=timedelta(minutes=3),
    drain=timedelta(minutes=2),
    retry=timedelta(minutes=6),
    reconcile=timedelta(minutes=3),
    timeout=timedelta(minutes=30),
    cleanup=timedelta(hours=2),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rhythm:
    """How often the lifecycle's own duties look."""

    renewal: timedelta = timedelta(minutes=2)
    ask: timedelta = timedelta(minutes=10)
    turn: timedelta = timedelta(minutes=10)
    deployment: timedelta = timedelta(minutes=2)
    watch: timedelta = timedelta(minutes=15)
    others: timedelta = timedelta(hours=2)
    history_for: timedelta = timedelta(days=90)


@dataclass(slots=True)
class Person:
    """Somebody who asks the product for something, and remembers what was acknowledged."""

    asked: dict[str, str] = field(default_factory=dict)  # names of certificates → their ids


class LifeStage(Ground):
    """The cheap checks run after every commit where `vigilant`; else with the dear ones, now and then."""

    subjects = """CREATE TRIGGER witness_issuance AFTER UPDATE ON issuances
        WHEN NEW.state NOT IN ('failed', 'cancelled') BEGIN SELECT saw_change(NEW.id,
             (SELECT holder FROM jobs WHERE kind = 'issue' AND subject = NEW.id AND state = 'running'
                 AND state <> 'dead')); END"""  # twice, so that the index of live jobs is used

    def __init__(
        self,
        loop: VirtualLoop,
        seed: int,
        *,
        replicas: int,
        cas: Sequence[Authority],
        daemons: Sequence[Daemon] = (),
        pace: Pace = PACE,
        rhythm: Rhythm | None = None,
        vigilant: bool = True,
        latencies: bool = True,
    ) -> None:
        self.cas = {ca.name: ca for ca in cas}
        self.daemons = {daemon.name: daemon for daemon in daemons}
        for daemon in daemons:
            daemon.accuse = self.accuse
        self.rhythm = rhythm or Rhythm()
        self.vigilant = vigilant
        self.keepers: dict[str, CertificateContext] = {}
        self.people = Person()
        self.rewound_at = NEVER
        self.excused: set[str] = set()  # issuances of which the product was made to forget something
        self._kek = Kek(id="kek_sim", key=Secret(bytes(32)), created_at=START)
        super().__init__(loop, seed, replicas=replicas, pace=pace, latencies=latencies)

    # ── what it is made of ──

    def set_up(self) -> None:
        chance = NodeRandom(random.Random(1), self.loop)
        self.truth.transact(lambda tx: secrets.add_current(tx, check_of(self._kek, None, chance)))
        for ca in self.cas.values():
            row = IssuerRow(name=ca.name, kind="sim", settings=_settings(ca), created_at=START)
            self.truth.transact(lambda tx, row=row: issuers.insert(tx, row))  # type: ignore[misc]
        for daemon in self.daemons.values():
            endpoints = tuple(f"{name}:{daemon.port}" for name in daemon.names)
            target = TargetRow(name=daemon.name, kind="sim", endpoints=endpoints, created_at=START)
            self.truth.transact(lambda tx, row=target: targets.insert(tx, row))  # type: ignore[misc]

    def parts(self, ports: Ports) -> Parts:
        context = self.keeper(ports)
        put, delete = challenges.in_store(context)
        solver = HttpStore(put, delete)

        async def make_issuer(row: IssuerRow) -> Issuer:
            return DoorIssuer(self, ports.node, self.cas[row.name])

        services = IssuanceServices(
            certificate_context=context,
            make_issuer=make_issuer,
            solver_for=challenges.by_rules([challenges.SolverRule(names=("*",), solver=solver)]),
            telemetry=ports.telemetry,
            new_key=Keysmith(len(self.by_holder)),
        )
        self.keepers[ports.node.holder] = context
        duties = issuance_duties.duties(
            context,
            renewal=self.rhythm.renewal,
            ask=self.rhythm.ask,
            turn=self.rhythm.turn,
            approval=self.rhythm.others,
            cleanup=self.rhythm.others,
            history_for=self.rhythm.history_for,
        )
        kept = Parts(kinds=issuance_duties.kinds(services), families=issuance_duties.families(context), duties=duties)
        return self._with_deployments(kept, ports, context) if self.daemons else kept

    def _with_deployments(self, kept: Parts, ports: Ports, context: CertificateContext) -> Parts:
        async def open_target(row: TargetRow) -> Deployer:
            return DoorDeployer(self, ports.node, self.daemons[row.name])

        eyes = Eyes(self, ports.node)
        deploying = DeployServices(
            db=ports.store,
            secret_store=context.secret_store,
            open_target=open_target,
            look=eyes.look,
            clock=ports.clock,
            telemetry=ports.telemetry,
        )
        looks = watch.kind(ports.store, eyes.look, self.rhythm.watch)
        follow = partial(watch.follow_targets, ports.store, ports.random)
        duties = (
            PeriodicDuty(name="target_endpoints", period=self.pace.reconcile, duty=follow),
            PeriodicDuty(
                name="deployments_due", period=self.rhythm.deployment, duty=partial(drain.wake_due, deploying)
            ),
        )
        return Parts(
            kinds=[*kept.kinds, looks, *drain.kinds(deploying)],
            families=[*kept.families, watch.owed(ports.random), drain.owed],
            duties=[*kept.duties, *duties],
        )

    def keeper(self, ports: Ports) -> CertificateContext:
        keyring = Keyring([self._kek], ports.random)
        secret_store = SecretStore(db=ports.store, settings=Settings(), files=LocalFiles(), keyring=keyring)
        return CertificateContext(db=ports.store, random=ports.random, secret_store=secret_store)

    # ── what the ground asks ──

    def jobless(self) -> set[str]:
        issuing = {each.id for each, dead in self.truth.peek(lambda tx: issuances.without_job(tx, ISSUE)) if not dead}
        return issuing | self.truth.peek(target_invariants.jobless) if self.daemons else issuing

    def check_commit(self, note: Note) -> None:
        invariants.of_the_engine(self, note)
        if self.vigilant:
            invariants.every_subject_has_its_job(self)

    def check_all(self) -> None:
        life_invariants.now_and_then(self)

    def heal_remotes(self) -> None:
        for ca in self.cas.values():
            ca.calm()
        for daemon in self.daemons.values():
            daemon.calm()

    @property
    def requests(self) -> int:
        return sum(ca.requests for ca in self.cas.values())

    def forget_payments(self, requests: float) -> None:
        self.rewound_at = self.loop.time()

    def forgotten(self) -> None:
        """What was ordered while commits were lost may be ordered once more."""
        since = self.loop.time() - 60
        for ca in self.cas.values():
            self.excused |= {order.issuance for order in ca.orders.values() if order.at > since}

    # ── what is seen at the CA's door ──

    def sets_out(self, node: Node, request: OrderRequest) -> float:
        """A replica is about to act on the outside world: the job is its own, and the key is in the store.

        The time at which it claimed the job, and paid for it, is what comes back.
        """
        now = self.loop.time()
        seen = self.truth.peek(lambda tx: _seen(tx, node, request))
        doubtful = now < max(self.doubtful_until, self.vandalised_at.get(request.issuance, NEVER) + self.ttl)
        if seen.over or doubtful:
            return seen.claimed_at if seen.claimed_at is not None else now
        if seen.claimed_at is None:
            self.accuse(f"L3: {node.name} asked a CA about {request.issuance} without holding its job")
            return now
        if not seen.key_kept:
            self.accuse(f"I4: {node.name} sent a CSR for {request.issuance} whose key is not in the store")
        return seen.claimed_at

    def sets_out_to(self, node: Node, daemon: Daemon) -> None:
        """A replica is about to change a target: the job of its reload domain is its own."""
        doubtful = max(self.doubtful_until, self.vandalised_at.get(daemon.name, NEVER) + self.ttl)
        if self.loop.time() >= doubtful and not self.truth.peek(lambda tx: _holds(tx, node, daemon.name)):
            self.accuse(f"L3: {node.name} changes the target {daemon.name} without holding its job")

    def shown(self, response: ChallengeResponse) -> bool:
        """Whether the CA, looking from outside, sees the proof."""
        found = self.truth.peek(lambda tx: issuances.response_by_token(tx, response.type, response.token))
        return found is not None


@dataclass(frozen=True, slots=True)
class _Seen:
    claimed_at: float | None
    key_kept: bool
    over: bool  # somebody stopped the attempt: the worker finds out at its next step


def _seen(tx: Tx, node: Node, request: OrderRequest) -> _Seen:
    row = tx.row(
        """SELECT issuances.csr, issuances.state, jobs.started_at,
                  EXISTS (SELECT 1 FROM secrets WHERE secrets.id = issuances.key_secret) AS kept
             FROM issuances LEFT JOIN jobs
               ON jobs.kind = 'issue' AND jobs.subject = issuances.id AND jobs.state = 'running'
              AND jobs.state <> 'dead' AND jobs.holder = :holder AND jobs.lease_until > now_us()
            WHERE issuances.id = :subject""",
        subject=request.issuance,
        holder=node.holder,
    )
    if row is None:
        return _Seen(None, key_kept=False, over=True)
    claimed = None if row["started_at"] is None else (from_micros(row["started_at"]) - START).total_seconds()
    over = row["state"] in ("issued", "failed", "cancelled")
    return _Seen(claimed, key_kept=bool(row["kept"]) and row["csr"] == request.csr, over=over)


def _holds(tx: Tx, node: Node, domain: str) -> bool:
    row = tx.row(
        """SELECT id FROM jobs WHERE kind = :kind AND subject = :domain AND state = 'running' AND holder = :holder
              AND lease_until > now_us()""",
        kind=DEPLOY,
        domain=domain,
        holder=node.holder,
    )
    return row is not None


def _settings(ca: Authority) -> dict[str, object]:
    limits = {"orders": ca.orders_limit, "per_set": ca.set_limit, "per_domain": ca.domain_limit}
    return {"limits": {name: _pair(limit) for name, limit in limits.items()} | {"requests": [40, 0.25]}}


def _pair(limit: Limit | None) -> list[float] | None:
    return None if limit is None else [limit.burst, limit.every.total_seconds()]
