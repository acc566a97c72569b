"""What is done about finds without being asked: who manages them, which expire, and which are long gone."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Final

from holdfast.core.discovery import judgement
from holdfast.engine.replica import PeriodicDuty
from holdfast.operations.discovery import recording
from holdfast.store import finds, journal
from holdfast.store.database import Store
from holdfast.store.tx import Tx

PAGE: Final = 200


def duties(
    db: Store, *, review: timedelta, ends: timedelta, cleanup: timedelta, kept_for: timedelta
) -> list[PeriodicDuty]:
    return [
        PeriodicDuty(name="finds_review", period=review, duty=partial(review_finds, db)),
        PeriodicDuty(name="finds_expiring", period=ends, duty=partial(tell_ends, db)),
        PeriodicDuty(name="finds_cleanup", period=cleanup, duty=partial(forget, db, kept_for)),
    ]


async def review_finds(db: Store) -> int:
    """Certificates are imported and archived after they were found: the managers of finds follow."""
    return await db.write(recording.review)


async def tell_ends(db: Store) -> int:
    """Tell people of finds that expire and that nothing here renews, once at each threshold."""
    return await db.write(_tell)


def _tell(tx: Tx) -> int:
    now, told = tx.now(), 0
    for row in finds.ending(tx, now + judgement.SOON, PAGE):
        days = judgement.tell_now(row, now)
        if days is None:
            continue
        finds.save(tx, row, told_days=days)
        where = finds.first_places(tx, [row.id]).get(row.id, "")
        left = (row.facts.not_after - now).total_seconds()
        journal.event(
            tx, "find.expiring", row.id, called=row.name, left_s=left, where=where, manager=row.manager.value,
            state=row.state.value, issuer=row.facts.issuer, adopt=judgement.remedy_of(row).adopt,
        )  # fmt: skip
        told += 1
    return told


async def forget(db: Store, kept_for: timedelta) -> int:
    return await db.write(lambda tx: finds.forget_gone(tx, kept_for))
