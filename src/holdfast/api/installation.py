"""/tokens, /self: who may ask, and as whom."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Path

from holdfast.api import render, shapes
from holdfast.api.call import Caller, Repeater
from holdfast.api.certificates import Cursor, Limit
from holdfast.operations import tokens
from holdfast.operations.access import Action, Role
from holdfast.operations.inventory import anywhere
from holdfast.operations.tokens import Grant

router = APIRouter()


@router.get("/self", tags=["tokens"])
async def me(call: Caller) -> shapes.Self:
    """Whom the token stands for, and what it may do."""
    call.demand(Action.SEE_SELF)
    return render.principal(call.principal)


@router.get("/tokens", tags=["tokens"])
async def token_list(call: Caller, cursor: Cursor = None, limit: Limit = 100) -> shapes.Page[shapes.Token]:
    """Who was let in, until when, and when they last came; never a token."""
    call.demand(Action.SEE_TOKENS)
    after = render.place(cursor, str)
    found = await tokens.listed(call.keeper.db, after="" if after is None else after[0], limit=limit)
    end = (found[-1].id,) if len(found) == limit else None
    return shapes.Page[shapes.Token](items=[render.token(each) for each in found], next=render.cursor(end))


@router.post("/tokens", status_code=201, tags=["tokens"])
async def make_token(call: Repeater, asked: shapes.NewToken) -> shapes.MadeToken:
    """Shown this once; so an Idempotency-Key is not kept here. The first token of an installation ends with this."""
    call.demand(Action.MAKE_TOKENS)
    grant = Grant(
        name=asked.name,
        role=Role(asked.role),
        kind=asked.kind or "",
        rights=frozenset(asked.rights),
        owners=tuple(asked.owners),
        labels=dict(asked.labels),
        lives_for=None if asked.expires_in_s is None else timedelta(seconds=asked.expires_in_s),
    )
    keeper = call.doing(anywhere(call.principal, Action.MAKE_TOKENS))
    made = await tokens.create(keeper.db, keeper.random, grant, by=call.principal)
    return render.made_token(made.row, "" if call.manner.dry_run else made.token.reveal())


@router.post("/tokens/{token}/revoke", tags=["tokens"])
async def revoke_token(call: Repeater, token: Annotated[str, Path(max_length=100)]) -> shapes.Token:
    """For good, from the next request on. Repeating it changes nothing, so an Idempotency-Key is not kept here."""
    call.demand(Action.REVOKE_TOKENS)
    keeper = call.doing(anywhere(call.principal, Action.REVOKE_TOKENS))
    return render.token(await tokens.revoke(keeper.db, token, actor=call.actor))
