"""Issuances: each is one attempt to obtain a certificate. List them, show one, wait until it is over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Annotated, Final

from pydantic import BaseModel, Field

from holdfast.core import issuance as core
from holdfast.errors import UserError
from holdfast.operations.access import Action, Principal
from holdfast.operations.certificates import refs
from holdfast.operations.certificates.refs import found_by
from holdfast.operations.context import Context, Services
from holdfast.operations.inputs import Input, OneOf, Page, Paged, cursor, from_row, place
from holdfast.operations.operation import operation
from holdfast.operations.scopes import VISIBLE, demand_on_certificate
from holdfast.store import inventory, issuances
from holdfast.store.database import Store
from holdfast.store.tx import Tx

LOOK_EVERY: Final = 0.2  # seconds: a change on another replica is seen by then


@contextmanager
def watching(db: Store) -> Iterator[Callable[[], Awaitable[None]]]:
    """Gives a function that waits until it is worth looking again: after a hint, or after LOOK_EVERY."""
    hint = db.wake.subscribe()

    async def worth_a_look() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_EVERY):
                await hint.wait()
        hint.clear()

    try:
        yield worth_a_look
    finally:
        db.wake.unsubscribe(hint)


class NoSuchIssuance(UserError):
    status, code = 404, "no-such-issuance"

    def __init__(self, issuance: str) -> None:
        super().__init__(f"There is no issuance {issuance!r:.80}.")
        self.hint = "See those of a certificate: holdfast get NAME"


class IssuanceQuery(Paged):
    certificate: str | None = Field(default=None, max_length=300, description="Only of this certificate.")
    state: Annotated[str, OneOf(core.IssuanceState)] | None = Field(default=None, description="Only in this state.")


class IssuanceRef(Input):
    issuance: str = Field(max_length=100, description="The issuance's id.")


class IssuanceView(BaseModel):
    id: str
    certificate: str
    generation: int
    state: str
    issuer: str
    cause: str
    urgent: bool
    names: list[str]
    requested_by: str
    started_at: datetime
    ended_at: datetime | None
    polls: int
    failures: int
    order_number: str | None = Field(description="The issuer's own number of the order; null while there is none.")
    uncertain_since: datetime | None = Field(
        description="Since when it is not known whether the issuer has the order: a person should look there."
    )
    maybe_twice: bool = Field(description="After such a doubt it was ordered once more: there may be two orders.")
    withdrawal: str | None = Field(
        description="Of a stopped issuance, whether its order is withdrawn: owed, done, none (no order) or refused."
    )
    error: str | None
    reason_code: str | None


def shown(found: core.Issuance) -> IssuanceView:
    names = [each.value for each in found.identifiers]
    return from_row(IssuanceView, found, names=names, reason_code=found.reason)


@operation(
    "issuances.list",
    "GET /issuances",
    command="issuances ls",
    action=Action.SEE,
    scope=VISIBLE,
    example="holdfast issuances ls --certificate www.example.com",
)
def list_issuances(tx: Tx, ctx: Context, asked: IssuanceQuery) -> Page[IssuanceView]:
    """List issuances, the newest first."""
    of = None
    if asked.certificate is not None:
        demand_on_certificate(tx, ctx.principal, Action.SEE, asked.certificate)
        of = found_by(tx, asked.certificate).id
    after = place(asked.cursor, int, str)
    seen = refs.all_visible(ctx.principal) if ctx.principal.confined else None
    found = inventory.attempts(tx, seen, certificate=of, state=asked.state, after=after, limit=asked.limit)
    end = inventory.place_of_attempt(found[-1]) if len(found) == asked.limit else None
    return Page[IssuanceView](items=[shown(each) for each in found], next=cursor(end))


@operation(
    "issuances.get",
    "GET /issuances/{issuance}",
    command="issuances show",
    action=Action.SEE,
    scope=VISIBLE,
    follows=True,
    example="holdfast issuances show issuance_01j9",
)
async def get(ctx: Context, asked: IssuanceRef) -> IssuanceView:
    """Show one issuance; with a time to wait, when it is over or that time is."""
    return shown(await until_over(ctx.services, ctx.principal, asked.issuance, ctx.wait))


async def until_over(services: Services, principal: Principal, issuance: str, seconds: float) -> core.Issuance:
    """The issuance as it stands when it is over, when the time is, or when this process must leave."""
    db = services.certificate_context.db
    with watching(db) as worth_a_look:
        found = await db.read(lambda tx: _seen(tx, principal, issuance))
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not found.state.over and not services.leaving():
                    await worth_a_look()
                    found = await db.read(lambda tx: _seen(tx, principal, issuance))
    return found


def _seen(tx: Tx, principal: Principal, issuance: str) -> core.Issuance:
    found = issuances.get(tx, issuance)
    if found is None or not refs.sees_certificate(tx, principal, found.certificate):
        raise NoSuchIssuance(issuance)
    return found
