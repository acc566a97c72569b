"""The renewal sweep: looks at what is due, decides by one function, and begins what must begin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from holdfast.core import renewal
from holdfast.core.certificate import Certificate, Version
from holdfast.core.reasons import Reason
from holdfast.operations import issuing
from holdfast.operations.issuing import Drawn, Ids, Keeper
from holdfast.operations.standing import Standing
from holdfast.store import certificates, journal, versions
from holdfast.store.tx import Tx

PAGE: Final = 100


@dataclass(frozen=True, slots=True)
class _Page:
    seen: int
    begun: int


async def sweep(keeper: Keeper) -> int:
    """Everything that is due, page by page; how many attempts were begun. Two replicas never see the same page."""
    total = 0
    while True:
        ids = Drawn(keeper)
        page = await keeper.db.write(lambda tx, ids=ids: _due_page(tx, ids))  # type: ignore[misc]
        total += page.begun
        if page.seen < PAGE:
            return total + await keeper.db.write(_find_stranded)


def _due_page(tx: Tx, ids: Drawn) -> _Page:
    due = certificates.due(tx, tx.now(), limit=PAGE)
    held = versions.many(tx, [each.current_version for each in due if each.current_version is not None])
    standing = Standing(tx)
    begun = sum(_act(tx, each, held.get(each.current_version or ""), ids.of(each.id), standing) for each in due)
    return _Page(len(due), begun)


def _act(tx: Tx, found: Certificate, current: Version | None, ids: Ids, standing: Standing) -> bool:
    now = tx.now()
    decision = renewal.decide(found, current, now)
    if not decision.due(now):
        issuing.replan(tx, found, now, current=current)
        return False
    asked = found.changed_by if decision.cause in (Reason.FIRST, Reason.INPUT_CHANGED) else journal.SYSTEM
    because: dict[str, Any] = {"cause": decision.cause, "urgent": decision.urgent, "requested_by": asked}
    return issuing.begin(tx, found, current, ids, **because, standing=standing) is not None


def _find_stranded(tx: Tx) -> int:
    """Certificates that nobody would come back to get their time again; none, unless something went badly wrong."""
    for found in certificates.stranded(tx):
        journal.event(tx, "certificate.stranded", found.id)
        issuing.replan(tx, found, tx.now())
    return 0
