"""Attempts that wait at one CA for too long, without an order there, begin at another of their list."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from holdfast.core import reasons, renewal
from holdfast.core.issuance import is_impatient, left_of, may_leave, sooner
from holdfast.core.reasons import Reason
from holdfast.core.renewal import EMERGENCY
from holdfast.core.work.cluster import dealt
from holdfast.operations.issuance import attempts as issuance_attempts
from holdfast.operations.issuance import issuer_choice
from holdfast.operations.issuance.attempts import ISSUE, CertificateContext, IssuanceIds
from holdfast.store import certificates, issuances, versions
from holdfast.store.tx import Tx
from holdfast.store.work import jobs, turns
from holdfast.store.work.turns import Unplaced

AT_RISK: Final = timedelta(days=7)  # what expires sooner goes by its end, whosever it is
SOON: Final = timedelta(seconds=30)  # what is nearer than this is left alone: somebody may be taking it up


async def deal(context: CertificateContext) -> int:
    """How many changed places. Nothing waits for a turn on most days, and then this is one look at an index."""
    await context.db.write(lambda tx: turns.hurry(tx, ISSUE, round(1 / EMERGENCY)))  # the reserve is for these
    now, waiting = await context.db.read(lambda tx: (tx.now(), turns.waiting(tx, ISSUE, tx.now() + SOON)))
    changes, total = dealt(waiting, now + AT_RISK), 0
    for start in range(0, len(changes), turns.PAGE):
        page = changes[start : start + turns.PAGE]
        total += await context.db.write(lambda tx, page=page: turns.exchange(tx, page))  # type: ignore[misc]
    return total


SETTLED: Final = timedelta(minutes=5)  # since it came, before it goes on: where all have long lines nobody runs around
PAGE: Final = 20
MOST: Final = 200  # at a time: the lines that they join are seen before the next ones do
NEVER: Final = timedelta.max


async def leave(context: CertificateContext) -> int:
    """How many went on, those with the least time left first. Nothing waits on most days, and then this is one look."""
    now, waiting = await context.db.read(_waiting)
    tired = sorted((each for each in waiting if _is_impatient(each, now)), key=lambda each: _left(each, now) or NEVER)
    total = 0
    for start in range(0, min(len(tired), MOST), PAGE):
        page, ids = tired[start : start + PAGE], IssuanceIds(context)
        total += await context.db.write(lambda tx, page=page, ids=ids: _leave_page(tx, page, ids))  # type: ignore[misc]
    return total


def _waiting(tx: Tx) -> tuple[datetime, list[Unplaced]]:
    now = tx.now()
    return now, turns.unplaced(tx, ISSUE, now + SOON, now - SETTLED)


def _is_impatient(waiting: Unplaced, now: datetime) -> bool:
    waited, wait = now - waiting.started_at, waiting.due_at - now
    return is_impatient(_left(waiting, now), waited=waited, wait=wait, in_line=waiting.reason == "BUDGET")


def _left(waiting: Unplaced, now: datetime) -> timedelta | None:
    if waiting.begins is None or waiting.ends is None:
        return None
    return renewal.last_moment(waiting.begins, waiting.ends) - now


def _leave_page(tx: Tx, page: list[Unplaced], ids: IssuanceIds) -> int:
    now = tx.now()
    return sum(_leaves(tx, each, now, ids) for each in page)


def _leaves(tx: Tx, waiting: Unplaced, now: datetime, ids: IssuanceIds) -> bool:
    found, issuance = certificates.get(tx, waiting.certificate), issuances.get(tx, waiting.issuance)
    if found is None or issuance is None or issuance.state.over or not may_leave(issuance, found):
        return False
    to = sooner(
        issuer_choice.others(tx, found, issuance.issuer, now),
        left=left_of(versions.get(tx, found.current_version), now),
        wait=waiting.due_at - waiting.started_at,
        now=now,
    )
    if to is None or not jobs.cancel(tx, waiting.job):
        return False  # there is no better place, or somebody has just taken it up
    locked = issuances.get(tx, issuance.id, lock=True)
    reason = Reason.CA_RATE_LIMITED if waiting.reason == "NOT_BEFORE" else reasons.of(waiting.reason)
    why = f"{issuance.issuer} lets it wait until {waiting.due_at:%Y-%m-%dT%H:%M:%SZ}."
    return locked is not None and issuance_attempts.move_on(
        tx, locked, ids.of(issuance.id), to.name, reason=reason, why=why
    )
