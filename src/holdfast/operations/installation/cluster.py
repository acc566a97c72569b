"""The cluster: its replicas, leases and loops; taking a replica out of work and putting it back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field

from holdfast.core.own_ca.ca import SigningCertificateExpiry
from holdfast.core.work.cluster import Replica
from holdfast.errors import UserError
from holdfast.operations.access import Action
from holdfast.operations.context import Context
from holdfast.operations.inputs import Input, NoteText, Nothing, Option, StrictFlag, from_row
from holdfast.operations.operation import operation
from holdfast.operations.own_ca import authorities
from holdfast.operations.scopes import INSTALLATION
from holdfast.store import journal
from holdfast.store.tx import Tx
from holdfast.store.work import cluster as cluster_rows

SELF: Final = "self"  # the replica that is asked
SILENT_AFTER: Final = timedelta(seconds=30)
SHORTEST_PREFIX: Final = 4


class NoSuchReplica(UserError):
    status, code = 404, "no-such-replica"
    hint = "See them: holdfast cluster replicas. Give a name, an id, or a prefix of an id that no other has."

    def __init__(self, ref: str) -> None:
        super().__init__(f"There is no replica {ref!r:.80}, or more than one.")


class AmbiguousReplica(UserError):
    status, code = 409, "ambiguous-replica"

    def __init__(self, ref: str, living: Sequence[Replica]) -> None:
        super().__init__(f"{len(living)} replicas are called {ref!r:.80}: {', '.join(each.holder for each in living)}.")
        self.hint = "Give an id, or the beginning of one. HOLDFAST_REPLICA_NAME gives each replica a name of its own."


class LastReplica(UserError):
    status, code = 409, "last-replica"
    hint = "Start another one first; or say that nothing shall be done: --even-last (even_last in the API)."

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is the last replica at work: nothing would be renewed, and no notification sent.")


@dataclass(frozen=True, slots=True, kw_only=True)
class AtWork:
    """A replica, and how many jobs it still has."""

    replica: Replica
    running: int

    @property
    def drained(self) -> bool:
        """Nothing runs there, and nothing will."""
        return self.replica.rests and not self.running


# ── Operations ──


class ReplicaRef(Input):
    replica: Annotated[str, Option(metavar="REPLICA")] = Field(
        max_length=300, description="Its name, its id, a prefix of its id; or self, for the one that answers."
    )


class DrainRequest(ReplicaRef):
    why: NoteText = Field(default="", description="The reason, for the audit log.")
    even_last: StrictFlag = Field(
        default=False, description="Even if no other replica is at work: nothing is done then."
    )


class LoopSeen(BaseModel):
    name: str
    replica: str = Field(description="Which replica did it last.")
    ended_at: datetime | None = Field(description="When it was last done to its end; null: not since that start.")
    next_at: datetime | None
    took_s: float | None
    error: str = Field(description="Why it was not, the last time; empty: it was.")


class ReplicaSeen(BaseModel):
    holder: str
    name: str
    version: str
    started_at: datetime
    seen_at: datetime
    draining: bool = Field(description="It takes no more work: it stops, or a person drained it.")
    drained: bool = Field(description="It was asked to take no more work, and has ended what it had.")
    running: int = Field(description="Jobs that it has now.")
    clock_ahead_s: float | None = Field(description="Its clock, of the database's; null: it has not said yet.")
    loops: int = Field(description="How many it did since it began.")


class LeaseHeld(BaseModel):
    name: str
    holder: str
    fence: int
    until: datetime


class OwnCaSeen(BaseModel):
    name: str
    not_after: datetime = Field(
        description="When its signing certificate expires; nothing that it signs expires later."
    )
    needs_s: float = Field(description="With less than this left, what it signs is cut to that end.")
    root_here: bool = Field(description="The key of its root is kept here, so that its issuer can be renewed here.")


class Cluster(BaseModel):
    at: datetime = Field(description="By the database's clock, as all times here.")
    replicas: list[ReplicaSeen]
    leases: list[LeaseHeld]
    loops: list[LoopSeen]
    own_cas: list[OwnCaSeen] = Field(description="The CAs of this installation that are open.")


@operation("cluster.get", "GET /cluster", command="cluster status", action=Action.SEE_CLUSTER, scope=INSTALLATION)
def cluster(tx: Tx, ctx: Context, asked: Nothing) -> Cluster:
    """Show the replicas that were seen lately, who holds which lease, and how each loop ended last."""
    everyone, at_work = cluster_rows.all_replicas(tx), cluster_rows.jobs_at_work(tx)
    return Cluster(
        at=tx.now(),
        replicas=[_shown(AtWork(replica=each, running=at_work.get(each.holder, 0))) for each in everyone],
        leases=[LeaseHeld(**asdict(each)) for each in cluster_rows.held_leases(tx)],
        loops=_loops(everyone),
        own_cas=[_own_ca(each) for each in authorities.expiries(tx)],
    )


def _own_ca(found: SigningCertificateExpiry) -> OwnCaSeen:
    return OwnCaSeen(
        name=found.ca, not_after=found.not_after, needs_s=found.needs.total_seconds(), root_here=found.root_here
    )


def _loops(everyone: Sequence[Replica]) -> list[LoopSeen]:
    """Of each name the one that was tried last: most loops are done by whichever replica leads."""
    told = [(name, float(each["tried"]), replica, each) for replica in everyone for name, each in replica.loops.items()]
    last = {name: (replica, each) for name, _, replica, each in sorted(told, key=lambda one: one[1])}
    return [_loop(name, *last[name]) for name in sorted(last)]


def _loop(name: str, replica: Replica, told: Mapping[str, Any]) -> LoopSeen:
    ended = told.get("ended")
    return LoopSeen(
        name=name,
        replica=replica.name,
        ended_at=None if ended is None else datetime.fromtimestamp(ended, UTC),
        next_at=datetime.fromtimestamp(told["tried"] + told["period"], UTC),
        took_s=told.get("took"),
        error=str(told.get("error", "")),
    )


def _shown(found: AtWork) -> ReplicaSeen:
    work = {"drained": found.drained, "running": found.running, "loops": len(found.replica.loops)}
    return from_row(ReplicaSeen, found.replica, **work)


@operation(
    "cluster.drain",
    "POST /cluster/replicas/{replica}/drain",
    command="cluster drain",
    action=Action.CHANGE_CLUSTER,
    scope=INSTALLATION,
)
def drain_replica(tx: Tx, ctx: Context, asked: DrainRequest) -> ReplicaSeen:
    """Drain a replica: it takes no more work, ends what it has, leads no longer, and is not ready.

    It stays so until it is resumed, or restarted.
    """
    return _shown(drain(tx, asked.replica, answering=ctx.services.holder, actor=ctx.actor, why=asked.why,
                        even_last=asked.even_last))  # fmt: skip


def drain(tx: Tx, ref: str, *, answering: str, actor: str, why: str = "", even_last: bool = False) -> AtWork:
    """The replica hears of it with its next heartbeat."""
    everyone = cluster_rows.all_replicas(tx)
    found = _found(everyone, ref, answering, tx.now())
    if not found.draining and not even_last and not _others_work(everyone, found, tx.now()):
        raise LastReplica(found.name)
    if cluster_rows.ask_to_drain(tx, found.holder, draining=True):
        _tell(tx, found, "drain_asked", actor, why=why)
    return _seen(tx, found.holder)


@operation(
    "cluster.resume",
    "POST /cluster/replicas/{replica}/resume",
    command="cluster resume",
    action=Action.CHANGE_CLUSTER,
    scope=INSTALLATION,
)
def resume_replica(tx: Tx, ctx: Context, asked: ReplicaRef) -> ReplicaSeen:
    """Resume a drained replica: it takes work again, from its next heartbeat on."""
    return _shown(resume(tx, asked.replica, answering=ctx.services.holder, actor=ctx.actor))


def resume(tx: Tx, ref: str, *, answering: str, actor: str) -> AtWork:
    found = _found(cluster_rows.all_replicas(tx), ref, answering, tx.now())
    if cluster_rows.ask_to_drain(tx, found.holder, draining=False):
        _tell(tx, found, "resumed", actor)
    return _seen(tx, found.holder)


def _found(everyone: Sequence[Replica], ref: str, answering: str, now: datetime) -> Replica:
    """By its name, its id, or a prefix of that. One that died is known for a while: the name is that of the living."""
    wanted = answering if ref == SELF else ref
    by_name = [each for each in everyone if each.name == wanted]
    alike = [each for each in everyone if len(wanted) >= SHORTEST_PREFIX and each.holder.startswith(wanted)]
    living = [each for each in by_name if now - each.seen_at < SILENT_AFTER]
    if len(living) > 1:
        raise AmbiguousReplica(ref, living)
    if by_name:
        return max(by_name, key=lambda each: each.seen_at)
    if len(alike) != 1:
        raise NoSuchReplica(ref)
    return alike[0]


def _others_work(everyone: Sequence[Replica], found: Replica, now: datetime) -> bool:
    return any(
        each.holder != found.holder and not each.draining and now - each.seen_at < SILENT_AFTER for each in everyone
    )


def _seen(tx: Tx, holder: str) -> AtWork:
    found = next(each for each in cluster_rows.all_replicas(tx) if each.holder == holder)
    return AtWork(replica=found, running=cluster_rows.jobs_at_work(tx).get(holder, 0))


def _tell(tx: Tx, was: Replica, word: str, actor: str, **why: str) -> None:
    states = {"before": {"draining": was.draining}, "after": {"draining": not was.draining}}
    journal.audit(tx, f"replica_{word}", was.holder, actor=actor, **states, replica=was.name, **why)
    journal.event(tx, f"replica.{word}", was.holder, replica=was.name, by=actor)
