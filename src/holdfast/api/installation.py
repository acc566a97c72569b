"""/stats, /cluster, /tokens, /self: the installation as a whole, and who may ask it."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Path

from holdfast.api import render, shapes
from holdfast.api.call import Caller
from holdfast.api.certificates import Cursor, Limit
from holdfast.operations import inventory, tokens
from holdfast.operations.access import Action, Role
from holdfast.operations.tokens import Grant

router = APIRouter()


@router.get("/stats/summary", tags=["stats"])
async def summary(call: Caller) -> shapes.Summary:
    """The whole inventory in numbers, counted by the database."""
    call.demand(Action.SEE)
    found = await inventory.summary(call.keeper)
    return shapes.Summary(
        at=found.at,
        certificates=dict(found.states),
        failing=found.failing,
        due=found.due,
        under_way=found.under_way,
        awaiting_approval=found.awaiting_approval,
        never_issued=found.never_issued,
        expired=found.expired,
        expiring=dict(found.expiring),
        jobs=dict(found.jobs),
    )


@router.get("/cluster", tags=["cluster"])
async def cluster(call: Caller) -> shapes.Cluster:
    """The replicas that were seen lately, and who holds which lease."""
    call.demand(Action.SEE_CLUSTER)
    found = await inventory.cluster(call.keeper)
    return shapes.Cluster(
        replicas=[shapes.ReplicaSeen(**asdict(each)) for each in found.replicas],
        leases=[shapes.LeaseHeld(**asdict(each)) for each in found.leases],
    )


@router.get("/self", tags=["tokens"])
async def me(call: Caller) -> shapes.Self:
    """Whom the token stands for, and what it may do."""
    call.demand(Action.SEE_SELF)
    return render.principal(call.principal)


@router.get("/tokens", tags=["tokens"])
async def token_list(call: Caller, cursor: Cursor = None, limit: Limit = 100) -> shapes.Page[shapes.Token]:
    call.demand(Action.SEE_TOKENS)
    after = render.place(cursor, str)
    found = await tokens.listed(call.keeper.db, after="" if after is None else after[0], limit=limit)
    end = (found[-1].id,) if len(found) == limit else None
    return shapes.Page[shapes.Token](items=[render.token(each) for each in found], next=render.cursor(end))


@router.post("/tokens", status_code=201, tags=["tokens"])
async def make_token(call: Caller, asked: shapes.NewToken) -> shapes.MadeToken:
    """Shown this once; so an Idempotency-Key is not kept here. The first token of an installation ends with this."""
    call.demand(Action.MAKE_TOKENS)
    grant = Grant(
        name=asked.name,
        role=Role(asked.role),
        kind=asked.kind,
        rights=frozenset(asked.rights),
        owners=tuple(asked.owners),
        labels=dict(asked.labels),
        lives_for=None if asked.expires_in_s is None else timedelta(seconds=asked.expires_in_s),
    )
    made = await tokens.create(call.keeper.db, call.keeper.random, grant, by=call.principal)
    return render.made_token(made.row, made.token.reveal())


@router.post("/tokens/{token}/revoke", tags=["tokens"])
async def revoke_token(call: Caller, token: Annotated[str, Path(max_length=100)]) -> shapes.Token:
    """For good, from the next request on."""
    call.demand(Action.REVOKE_TOKENS)
    return render.token(await tokens.revoke(call.keeper.db, token, actor=call.actor))
