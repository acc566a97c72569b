"""What an operation is given besides its input: who asks, what the process can do, and how the asker wants it done."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from holdfast.core.backup import BackupMade
from holdfast.core.discovery.network import ScanRules
from holdfast.core.own_ca.ca import CaPolicy
from holdfast.core.public_address import PublicAddress
from holdfast.operations.access import Action, Owned, Principal, demand
from holdfast.operations.agents.context import AgentContext
from holdfast.operations.endpoints.watching import Look, nothing_seen
from holdfast.operations.issuance.attempts import CertificateContext, Ids
from holdfast.operations.people.passwords import Passwords
from holdfast.operations.people.provider import Provider
from holdfast.operations.reckoning import Reckoning
from holdfast.operations.remotes import (
    ChannelOpener,
    Fit,
    KnownSolvers,
    Probe,
    Rehearse,
    SolverFit,
    TargetOpener,
    TrySolver,
    any_fit,
    any_solver_fit,
    no_rehearsal,
    no_solver,
    solvers_not_known,
)
from holdfast.store.tx import Tx

R = TypeVar("R")
Transaction = Callable[[Tx], R]  # what a prepared operation hands back: the runner carries it out
TextStream = AsyncIterator[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCaServices:
    """What this process offers to operations on our own CAs."""

    policy: CaPolicy
    refresh: Callable[[], Awaitable[None]]  # opens the authorities of this process anew
    problem: Callable[[str], str | None]  # why a CA cannot sign here


@dataclass(frozen=True, slots=True, kw_only=True)
class PeopleServices:
    """What this process knows about logging in."""

    address: PublicAddress = field(default_factory=lambda: PublicAddress("http://localhost:8630"))
    idle_for: timedelta = timedelta(hours=1)  # a session ends that is not used for so long,
    lives_for: timedelta = timedelta(hours=12)  # and at the latest after this
    link_for: timedelta = timedelta(days=1)  # how long a link can be followed
    step_for: timedelta = timedelta(minutes=10)  # how long the next step of a log-in is waited for
    provider: Provider | None = None
    passwords: Passwords = field(default_factory=Passwords)


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What this process offers to operations."""

    certificate_context: CertificateContext
    issuer_kinds: frozenset[str]  # kinds of issuers that this process can talk to
    probe: Probe
    post: ChannelOpener  # how channels are reached
    holder: str = ""  # which replica this is
    leaving: Callable[[], bool] = lambda: False  # the process is about to stop: no operation begins a long wait
    fit: Fit = any_fit  # whether an issuer can be made of what it is given
    targets: TargetOpener | None = None  # how targets are reached
    default_issuers: tuple[str, ...] = ()  # where a certificate comes from if its owner does not say
    own_ca: OwnCaServices | None = None
    agents: AgentContext | None = None
    reckoning: Reckoning = field(default_factory=Reckoning)  # for the long work of this process
    people: PeopleServices = field(default_factory=PeopleServices)
    look: Look = nothing_seen  # at an endpoint, now
    scanning: ScanRules = field(default_factory=ScanRules)  # what scans of networks may do
    rehearse: Rehearse = no_rehearsal  # an issuance at our own CA, for a drill
    readable_logs: tuple[str, ...] = ()  # CT logs that may be read
    looking: Counter[str] = field(default_factory=Counter)  # looks under way that each asker waits for
    solver_fit: SolverFit = any_solver_fit  # whether a solver can be made of what it is given
    try_solver: TrySolver = no_solver
    known_solvers: KnownSolvers = solvers_not_known
    save: Callable[[], BackupMade] | None = None  # writes a backup, on a thread; None: there is no place for one
    streams: Counter[str] = field(default_factory=Counter)  # of events, that each token follows in this process


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks through a face, and where the wish comes from."""

    principal: Principal
    services: Services
    origin: Mapping[str, str]  # for the audit log


class IdPool:
    """Ids for one transaction, which may run more than once: a second run finds the same ones in the same order."""

    def __init__(self, new_id: Callable[[str], str]) -> None:
        self._new_id = new_id
        self._drawn: list[tuple[str, str]] = []
        self._next = 0

    def rewind(self) -> None:
        self._next = 0

    def new(self, kind: str) -> str:
        if self._next < len(self._drawn) and self._drawn[self._next][0] != kind:
            del self._drawn[self._next :]  # this run took another branch than the one before
        if self._next == len(self._drawn):
            self._drawn.append((kind, self._new_id(kind)))
        self._next += 1
        return self._drawn[self._next - 1][1]


def placeholders() -> Callable[[str], str]:
    """Ids of what a dry run makes: they stand for nothing, and two dry runs of one request show the same."""
    numbers = itertools.count(1)
    return lambda kind: f"{kind}_{next(numbers):026}"


class Steps:
    """Transactions of an operation of several steps; the runner gives them: each authorises the asker again."""

    async def read(self, fn: Callable[[Tx], R]) -> R:
        raise NotImplementedError

    async def write(self, fn: Callable[[Tx], R]) -> R:
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Of one request. `tx.now()` is the time."""

    principal: Principal
    services: Services
    ids: IdPool
    steps: Steps
    dry_run: bool = False
    wait: float = 0.0  # seconds that the asker is ready to wait
    expected_version: int | None = None  # what If-Match names; None: any
    origin: Mapping[str, str] = field(default_factory=dict)  # for the audit log: face, address, request, token
    after: list[Callable[[], Awaitable[Any]]] = field(default_factory=list)

    @property
    def actor(self) -> str:
        return self.principal.actor

    @property
    def certificate_context(self) -> CertificateContext:
        return self.services.certificate_context

    def demand(self, action: Action, resource: Owned | None = None) -> None:
        """Raise Forbidden unless the asker may do this, too."""
        demand(self.principal, action, resource)

    def issuance_ids(self) -> Ids:
        new = self.ids.new
        return Ids(
            issuance=new("issuance"),
            job=new("job"),
            approval=new("approval"),
            approval_for=self.certificate_context.approval_for,
        )

    def after_commit(self, act: Callable[[], Awaitable[object]]) -> None:
        """Have something done once the change is committed; never after a dry run."""
        self.after.append(act)

    async def read(self, fn: Callable[[Tx], R]) -> R:
        return await self.steps.read(fn)

    async def write(self, fn: Callable[[Tx], R]) -> R:
        return await self.steps.write(fn)
