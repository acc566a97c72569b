"""/cluster: the replicas, who holds which lease, and taking a replica out of work."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path

from holdfast.api import installation_shapes as whole
from holdfast.api.call import Caller, Changer
from holdfast.core.ca_end import IssuerEnd
from holdfast.operations import draining, inventory
from holdfast.operations.access import Action
from holdfast.operations.draining import AtWork
from holdfast.operations.inventory import anywhere

router = APIRouter(prefix="/cluster", tags=["cluster"])
Ref = Annotated[
    str,
    Path(max_length=300, description="Its name, its id, a prefix of its id; or self, for the one that answers."),
]


@router.get("")
async def cluster(call: Caller) -> whole.Cluster:
    """The replicas that were seen lately, who holds which lease, and how each loop ended last."""
    call.demand(Action.SEE_CLUSTER)
    found = await inventory.cluster(call.keeper)
    return whole.Cluster(
        at=found.at,
        replicas=[_replica(AtWork(replica=each, running=found.at_work.get(each.holder, 0))) for each in found.replicas],
        leases=[whole.LeaseHeld(**asdict(each)) for each in found.leases],
        loops=[whole.LoopSeen(**asdict(each)) for each in found.loops],
        own_cas=[_issuer_end(each) for each in found.own],
    )


def _issuer_end(found: IssuerEnd) -> whole.OwnCaSeen:
    return whole.OwnCaSeen(
        name=found.ca, not_after=found.not_after, needs_s=found.needs.total_seconds(), root_here=found.root_here
    )


def _replica(found: AtWork) -> whole.ReplicaSeen:
    seen = found.replica
    return whole.ReplicaSeen(
        holder=seen.holder,
        name=seen.name,
        version=seen.version,
        started_at=seen.started_at,
        seen_at=seen.seen_at,
        draining=seen.draining,
        drained=found.drained,
        running=found.running,
        clock_ahead_s=seen.clock_ahead_s,
        loops=len(seen.loops),
    )


def _plain(tx: Any, found: AtWork) -> dict[str, Any]:
    return _replica(found).model_dump(mode="json")


@router.post("/replicas/{replica}/drain")
async def drain(call: Changer, replica: Ref, asked: whole.Draining | None = None) -> whole.ReplicaSeen:
    """It takes no more work, ends what it has, leads no longer, and is not ready. Until it is resumed, or restarted."""
    said = asked or whole.Draining()
    reply = await call.change(
        lambda keeper: draining.drain(
            keeper,
            replica,
            answering=call.front.holder,
            actor=call.actor,
            why=said.why,
            even_last=said.even_last,
        ),
        check=anywhere(call.principal, Action.CHANGE_CLUSTER),
        render=_plain,
    )
    return whole.ReplicaSeen.model_validate(reply)


@router.post("/replicas/{replica}/resume")
async def resume(call: Changer, replica: Ref) -> whole.ReplicaSeen:
    """It takes work again, from its next heartbeat on."""
    reply = await call.change(
        lambda keeper: draining.resume(keeper, replica, answering=call.front.holder, actor=call.actor),
        check=anywhere(call.principal, Action.CHANGE_CLUSTER),
        render=_plain,
    )
    return whole.ReplicaSeen.model_validate(reply)
