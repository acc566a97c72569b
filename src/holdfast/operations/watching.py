"""Waiting for something to happen, on any replica: the journal and the rows say so, hints only make it quicker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final

from holdfast.core.issuance import Issuance
from holdfast.operations import inventory
from holdfast.operations.access import Principal
from holdfast.operations.front import Front
from holdfast.operations.tokens import Unauthenticated
from holdfast.store.journal import Event

LOOK_EVERY: Final = 0.2  # seconds: what happened on another replica is seen by then
SIGN_OF_LIFE: Final = 15.0  # seconds; proxies cut lines that are silent


async def until_over(front: Front, principal: Principal, issuance: str, seconds: float) -> Issuance:
    """The attempt as it stands when it is over, or when the time is, or this process must leave."""
    keeper = front.keeper
    hint = keeper.db.wake.subscribe()
    found = await inventory.attempt(keeper, principal, issuance)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not found.state.over and not front.leaving():
                    await _hint_or(hint, LOOK_EVERY)
                    found = await inventory.attempt(keeper, principal, issuance)
    finally:
        keeper.db.wake.unsubscribe(hint)
    return found


async def follow(front: Front, principal: Principal, *, after: int, subject: str | None) -> AsyncIterator[Event | None]:
    """Every event after an id that the asker may see, as it happens; None now and then, as a sign of life.

    Ends when this process does: whoever follows goes on after the last id, at another replica. Ends as well when the
    asker's token does.
    """
    keeper = front.keeper
    hint = keeper.db.wake.subscribe()
    loop = asyncio.get_running_loop()
    spoken = loop.time()
    try:
        while not front.leaving():
            page, after = await inventory.events(keeper, principal, after=after, subject=subject)
            for event in page:
                yield event
            if page:
                spoken = loop.time()
                continue
            if loop.time() - spoken > SIGN_OF_LIFE:
                spoken = loop.time()
                yield None
            await _hint_or(hint, LOOK_EVERY)
    except Unauthenticated:
        return
    finally:
        keeper.db.wake.unsubscribe(hint)


async def _hint_or(hint: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await hint.wait()
    hint.clear()
