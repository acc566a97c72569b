"""The inventory in numbers, for whoever asks: all of it, or as much of it as they may see."""

from __future__ import annotations

from holdfast.core.inventory import Bucket, Ending, Filter, Outcomes, Rate, Summary, grid_around
from holdfast.operations.access import Action, Principal, demand
from holdfast.operations.issuing import Keeper
from holdfast.store import statistics
from holdfast.store.tx import Tx


def _seen(principal: Principal) -> Filter:
    """What they may see: the same owners and labels as in every list."""
    demand(principal, Action.SEE, principal.scope)
    return Filter(owners=principal.owners, labels=principal.labels, whatever_state=True)


async def summary(keeper: Keeper, principal: Principal) -> Summary:
    seen = _seen(principal)
    return await keeper.db.read(lambda tx: statistics.summary(tx, seen))


async def expiry(keeper: Keeper, principal: Principal, bucket: Bucket, number: int) -> list[Ending]:
    """From now on."""
    seen = _seen(principal)

    def read(tx: Tx) -> list[Ending]:
        return statistics.expiry(tx, seen, grid_around(tx.now(), bucket, number, back=False))

    return await keeper.db.read(read)


async def outcomes(keeper: Keeper, principal: Principal, bucket: Bucket, number: int) -> list[Outcomes]:
    """Until now."""
    seen = _seen(principal)

    def read(tx: Tx) -> list[Outcomes]:
        return statistics.outcomes(tx, seen, grid_around(tx.now(), bucket, number, back=True))

    return await keeper.db.read(read)


async def rates(keeper: Keeper, principal: Principal, bucket: Bucket, number: int) -> list[Rate]:
    """Until now."""
    seen = _seen(principal)

    def read(tx: Tx) -> list[Rate]:
        return statistics.rates(tx, seen, grid_around(tx.now(), bucket, number, back=True))

    return await keeper.db.read(read)
