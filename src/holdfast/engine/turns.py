"""Deals the turns of renewals that wait for a budget anew, by risk: a CA's limits decide how many go, not who."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from holdfast.core.renewal import EMERGENCY
from holdfast.core.turns import dealt
from holdfast.operations.issuing import ISSUE, Keeper
from holdfast.store import turns

SOON: Final = timedelta(seconds=30)  # what is nearer than this is left alone: somebody may be taking it up


async def deal(keeper: Keeper) -> int:
    """How many changed places. Nothing waits for a turn on most days, and then this is one look at an index."""
    await keeper.db.write(lambda tx: turns.hurry(tx, ISSUE, round(1 / EMERGENCY)))  # the reserve is for these
    waiting = await keeper.db.read(lambda tx: turns.waiting(tx, ISSUE, tx.now() + SOON))
    changes, total = dealt(waiting), 0
    for start in range(0, len(changes), turns.PAGE):
        page = changes[start : start + turns.PAGE]
        total += await keeper.db.write(lambda tx, page=page: turns.exchange(tx, page))  # type: ignore[misc]
    return total
