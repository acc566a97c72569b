"""The audit log: searched, exported as a whole, verified, and forwarded to a second place."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field

from holdfast.core.inventory import AuditFilter
from holdfast.core.journal import AuditRow, ChainVerdict, chain_verdict, entry_line
from holdfast.operations.access import Action
from holdfast.operations.context import Context, TextStream
from holdfast.operations.inputs import Input, Instant, Nothing, Option, Page, Paged, page_of, place
from holdfast.operations.operation import Face, operation
from holdfast.operations.scopes import INSTALLATION
from holdfast.ports import AuditLine, Sink
from holdfast.store import certificates, inventory, journal
from holdfast.store.database import Store
from holdfast.store.tx import Tx, from_micros

_PAGE: Final = 1000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


async def everything(db: Store, wanted: AuditFilter) -> AsyncIterator[AuditRow]:
    """Every audit entry from the oldest on, a page a transaction, so that few are in memory at once.

    Entries are numbered in the order of their commits and never change: pages read one by one are the whole log.
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

    A process that dies in between gives the last page twice: at least once, and in order.
    """
    consumer, total = f"audit {sink.name}", 0
    while page := await db.read(lambda tx: journal.audit_outbox(tx, consumer, limit=_PAGE)):
        await sink.write([_line(each) for each in page])
        await db.write(lambda tx, to=page[-1].seq: journal.advance(tx, consumer, to))  # type: ignore[misc]
        total += len(page)
    return total


def _line(entry: AuditRow) -> AuditLine:
    return AuditLine(seq=entry.seq, at=from_micros(entry.at), text=entry_line(entry))


async def verified(db: Store) -> ChainVerdict:
    """Walk the chain to where its head is now, a page a transaction, and name the first bad row."""
    head, newest = await db.read(journal.audit_head)
    found = ChainVerdict(verified=0)
    while found.verified < head:
        found = await db.read(lambda tx, found=found: _next_part(tx, found, head, newest))  # type: ignore[misc]
        if not found.ok:
            break
    return found


def _next_part(tx: Tx, sofar: ChainVerdict, head: int, newest: str) -> ChainVerdict:
    page = [each for each in journal.audit_page(tx, sofar.verified, _PAGE) if each.seq <= head]
    whole = not page or page[-1].seq >= head
    return chain_verdict(
        page,
        newest_seq=head if whole else page[-1].seq,
        newest_hash=newest if whole else page[-1].hash,
        after_seq=sofar.verified,
        after_hash=sofar.last_hash,
    )


# ── Operations ──


class _AuditFilter(Input):
    actor: Annotated[str, Field(max_length=200)] | None = Field(
        default=None, description="Who did it, such as human:alice, robot:ci or system."
    )
    action: Annotated[str, Field(max_length=100)] | None = Field(default=None, description="Such as issuer_added.")
    subject: Annotated[str, Field(max_length=300)] | None = Field(
        default=None, description="The id of the object that was changed."
    )
    since: Annotated[Instant | None, Option(read="past")] = Field(
        default=None, description="Not before this time, or so long ago."
    )
    until: Annotated[Instant | None, Option(read="past")] = Field(
        default=None, description="Not after this time, or so long ago."
    )


class AuditSearch(_AuditFilter, Paged):
    pass


class AuditExport(_AuditFilter):
    pass


class AuditOrigin(BaseModel):
    """Where a request came from."""

    face: str = Field(description="api, web (a browser), local (a command on the server's machine), acme.")
    address: str = ""
    request: str = Field(default="", description="The id that the answer carried, too.")
    token: str = ""
    session: str = Field(default="", description="Of the browser.")
    trace: str = Field(default="", description="The trace that the request was a part of (W3C traceparent).")
    client: str = Field(default="", description="What the client calls itself.")


class AuditEntry(BaseModel):
    seq: int
    at: datetime
    actor: str
    actor_kind: str = Field(description="human, robot, agent, local, acme or system.")
    action: str
    subject: str
    about: str = Field(default="", description="The name of the certificate, or else the subject.")
    origin: AuditOrigin | None = Field(description="null for what the system does by itself.")
    before: str | None = Field(description="SHA-256 of the object before the change.")
    after: str | None = Field(description="And as it is since.")
    details: dict[str, Any]
    hash: str = Field(description="Over this row and the hash of the row before.")


class AuditVerdict(BaseModel):
    ok: bool
    verified: int = Field(description="How many rows hold, from the first on.")
    last_hash: str
    first_bad_row: int | None
    problem: str


def shown(entry: AuditRow) -> AuditEntry:
    details = json.loads(entry.details)
    origin = details.pop("origin", None)
    kind, colon, _ = entry.actor.partition(":")
    return AuditEntry(
        seq=entry.seq,
        at=_EPOCH + timedelta(microseconds=entry.at),
        actor=entry.actor,
        actor_kind=kind if colon else "system",
        action=entry.action,
        subject=entry.subject,
        origin=AuditOrigin(**origin) if isinstance(origin, dict) else None,
        before=details.pop("before", None),
        after=details.pop("after", None),
        details=details,
        hash=entry.hash,
    )


def _filter(asked: _AuditFilter) -> AuditFilter:
    return AuditFilter(
        actor=asked.actor, action=asked.action, subject=asked.subject, since=asked.since, until=asked.until
    )


@operation("audit.list", "GET /audit", command="audit ls", action=Action.SEE_AUDIT, scope=INSTALLATION)
def search(tx: Tx, ctx: Context, asked: AuditSearch) -> Page[AuditEntry]:
    """List audit entries: every change and who made it, the newest first."""
    before = place(asked.cursor, int)
    rows = inventory.audit_page(tx, _filter(asked), before=None if before is None else before[0], limit=asked.limit)
    names = certificates.names_of(tx, [each.subject for each in rows])
    items = [shown(each).model_copy(update={"about": names.get(each.subject, each.subject)}) for each in rows]
    return page_of(items, asked.limit, lambda row: (row.seq,), rows)


@operation(
    "audit.export",
    "GET /audit/export",
    command="audit export",
    action=Action.SEE_AUDIT,
    scope=INSTALLATION,
    media="application/jsonl",
    not_on={Face.MCP: "It is as long as the audit log; audit.list has it in pages."},
)
async def export(ctx: Context, asked: AuditExport) -> TextStream:
    """Export all audit entries as JSON lines, the oldest first, with numbers and hashes for a check elsewhere."""
    return _lines(ctx.certificate_context.db, _filter(asked))


async def _lines(db: Store, wanted: AuditFilter) -> TextStream:
    lines: list[str] = []
    async for entry in everything(db, wanted):
        lines.append(entry_line(entry))
        if len(lines) == 200:
            yield "\n".join(lines) + "\n"
            lines.clear()
    if lines:
        yield "\n".join(lines) + "\n"


@operation("audit.verify", "GET /audit/verify", command="audit verify", action=Action.SEE_AUDIT, scope=INSTALLATION)
async def verify_chain(ctx: Context, asked: Nothing) -> AuditVerdict:
    """Verify the whole audit chain: whether no row was altered, removed or added; or which is the first that was."""
    found = await verified(ctx.certificate_context.db)
    return AuditVerdict(
        ok=found.ok,
        verified=found.verified,
        last_hash=found.last_hash,
        first_bad_row=found.bad_seq,
        problem=found.problem,
    )
