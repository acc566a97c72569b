"""The audit log for those who may see it: searched, read as a whole, verified, and handed on to a second place."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from holdfast.core.chain import Entry, Verdict, line, verify
from holdfast.core.inventory import AuditFilter
from holdfast.ports import AuditLine, Sink
from holdfast.store import inventory, journal
from holdfast.store.database import Store
from holdfast.store.tx import Tx, from_micros

_PAGE: Final = 1000


async def search(db: Store, wanted: AuditFilter, *, before: int | None = None, limit: int = 100) -> list[Entry]:
    """The newest first."""
    return await db.read(lambda tx: inventory.audit_page(tx, wanted, before=before, limit=limit))


async def everything(db: Store, wanted: AuditFilter) -> AsyncIterator[Entry]:
    """Every row from the oldest on, a page a transaction: however many they are, few are in memory.

    Rows are numbered in the order of their commits and never change: what is read page by page is the whole.
    """
    last, _ = await db.read(journal.audit_head)
    after = 0
    while after < last:
        page = await db.read(lambda tx, after=after: inventory.audit_page(tx, wanted, after=after, limit=_PAGE))  # type: ignore[misc]
        for entry in page:
            if entry.seq <= last:
                yield entry
        if len(page) < _PAGE:
            return
        after = page[-1].seq


async def hand_on(db: Store, sink: Sink) -> int:
    """Give a sink all that it has not got yet, from the first row on; then remember that it has.

    Whoever dies in between gives the last page twice: at least once, and in order.
    """
    consumer, total = f"audit {sink.name}", 0
    while page := await db.read(lambda tx: journal.audit_outbox(tx, consumer, limit=_PAGE)):
        await sink.write([_line(each) for each in page])
        await db.write(lambda tx, to=page[-1].seq: journal.advance(tx, consumer, to))  # type: ignore[misc]
        total += len(page)
    return total


def _line(entry: Entry) -> AuditLine:
    return AuditLine(seq=entry.seq, at=from_micros(entry.at), text=line(entry))


async def verified(db: Store) -> Verdict:
    """Walk the chain to where its head is now, a page a transaction, and name the first bad row."""
    head, newest = await db.read(journal.audit_head)
    found = Verdict(verified=0)
    while found.verified < head:
        found = await db.read(lambda tx, found=found: _next_part(tx, found, head, newest))  # type: ignore[misc]
        if not found.ok:
            break
    return found


def _next_part(tx: Tx, sofar: Verdict, head: int, newest: str) -> Verdict:
    page = [each for each in journal.audit_page(tx, sofar.verified, _PAGE) if each.seq <= head]
    whole = not page or page[-1].seq >= head
    return verify(
        page,
        newest_seq=head if whole else page[-1].seq,
        newest_hash=newest if whole else page[-1].hash,
        after_seq=sofar.verified,
        after_hash=sofar.last_hash,
    )
