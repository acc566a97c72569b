"""The audit log: searched, exported as a whole, verified, forwarded to a second place, and archived."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field

from holdfast.core.inventory import AuditFilter
from holdfast.core.journal import Anchor, AuditRow, ChainVerdict, chain_verdict, entry_line
from holdfast.errors import UserError
from holdfast.operations.access import Action
from holdfast.operations.context import Context, TextStream, Transaction
from holdfast.operations.inputs import Input, Instant, Nothing, Option, Page, Paged, page_of, place
from holdfast.operations.operation import Face, operation
from holdfast.operations.scopes import INSTALLATION
from holdfast.ports import AuditLine, Sink
from holdfast.store import inventory, journal, subjects
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
    consumer, total = f"{journal.AUDIT_SINKS}{sink.name}", 0
    if not await db.read(lambda tx: journal.is_known(tx, consumer)):
        await db.write(lambda tx: journal.advance(tx, consumer, 0))  # from now on no row that it lacks is archived
    while page := await db.read(lambda tx: journal.audit_outbox(tx, consumer, limit=_PAGE)):
        await sink.write([_line(each) for each in page])
        await db.write(lambda tx, to=page[-1].seq: journal.advance(tx, consumer, to))  # type: ignore[misc]
        total += len(page)
    return total


def _line(entry: AuditRow) -> AuditLine:
    return AuditLine(seq=entry.seq, at=from_micros(entry.at), text=entry_line(entry))


async def verified(db: Store) -> ChainVerdict:
    """Walk the chain to where its head is now, and name the first bad row."""
    return await _walked(db, *await db.read(journal.audit_head))


async def _walked(db: Store, head: int, newest: str) -> ChainVerdict:
    """Walk the chain to a row, a page a transaction."""
    begin = found = await db.read(journal.chain_start)
    while found.ok and found.verified < head:
        found = await db.read(lambda tx, found=found: _next_part(tx, found, head, newest))  # type: ignore[misc]
    return replace(found, archived=begin.archived)


def _next_part(tx: Tx, sofar: ChainVerdict, head: int, newest: str) -> ChainVerdict:
    begin = journal.chain_start(tx)
    if begin.verified > sofar.verified:  # rows ahead were archived since the last page, which walked them
        return begin
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
    verified: int = Field(description="The number of the last row that holds.")
    archived: int = Field(description="The number of the last row that was archived; 0: none was.")
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
    names = subjects.names_of(tx, [each.subject for each in rows])
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
        archived=found.archived,
        last_hash=found.last_hash,
        first_bad_row=found.bad_seq,
        problem=found.problem,
    )


# ── The archive ──


class NotThatEntry(UserError):
    status, code = 409, "not-that-audit-entry"
    hint = "Nothing was archived. Compare your copy with the store: holdfast audit verify --file FILE --against-store"

    def __init__(self, seq: int) -> None:
        super().__init__(f"The audit log has no entry {seq} with this hash.")


class EntryTooYoung(UserError):
    status, code = 409, "audit-entry-too-young"
    hint = "Nothing was archived. Choose an earlier time: --before."

    def __init__(self, seq: int, days: int) -> None:
        super().__init__(f"Entry {seq} of the audit log, or one before it, is younger than {days} days.")


class SinkBehind(UserError):
    status, code = 409, "audit-sink-behind"

    def __init__(self, sink: str, has: int, seq: int) -> None:
        super().__init__(f"The audit sink {sink} has entries up to {has} only, not up to {seq}. Nothing was archived.")
        self.hint = f"See that it gets them: holdfast cluster. If there is no such sink any more: --forget-sink {sink}"


class ChainBroken(UserError):
    status, code = 409, "audit-chain-broken"
    hint = "Nothing was archived: the rows are evidence. See it: holdfast audit verify"

    def __init__(self, problem: str) -> None:
        super().__init__(f"The audit chain is broken: {problem}.")


class ArchiveAudit(Input):
    seq: int = Field(ge=1, lt=2**63, description="The number of the last entry that you have a verified copy of.")
    hash: str = Field(pattern="^[0-9a-f]{64}$", description="The hash of that entry in your copy.")
    keep_days: int = Field(default=90, ge=30, le=3650, description="Refuse to archive entries younger than this.")
    forget_sinks: list[Annotated[str, Field(max_length=1000)]] = Field(
        default=[], max_length=100, description="Audit sinks that exist no more: they are not waited for."
    )


class AuditArchived(BaseModel):
    seq: int = Field(description="The number of the last entry that was archived.")
    hash: str
    entries: int = Field(description="How many entries this archive has.")


@operation(
    "audit.archive",
    "POST /audit/archive",
    command="audit archive",
    action=Action.ARCHIVE_AUDIT,
    scope=INSTALLATION,
    example="holdfast audit archive --before 2026-01-01 --to audit-2025.jsonl",
    asks="Delete audit entries up to {seq} from the store? Only your copy will have them.",
    destructive=True,
    dry_runs=False,
    keyed=False,
    not_on={Face.MCP: "It deletes audit entries, of which only a person has a copy."},
)
async def archive(ctx: Context, asked: ArchiveAudit) -> Transaction[AuditArchived]:
    """Archive old audit entries: those that you have a verified copy of are deleted from the store.

    The chain stays verifiable: the store keeps the number and hash of the last archived entry, and goes on from there.
    """
    db, upto = ctx.certificate_context.db, Anchor(seq=asked.seq, hash=asked.hash)
    await db.read(lambda tx: _refuse_strange(tx, asked))
    found = await _walked(db, upto.seq, upto.hash)
    if not found.ok:
        raise ChainBroken(found.problem)

    def anchored(tx: Tx) -> AuditArchived:
        for sink in asked.forget_sinks:
            journal.forget_sink(tx, sink)
        done = _refuse_strange(tx, asked)
        return AuditArchived(**asdict(upto), entries=0 if done else journal.archive(tx, upto, actor=ctx.actor))

    return anchored


def _refuse_strange(tx: Tx, asked: ArchiveAudit) -> bool:
    """Refuse what must not be archived; whether it is archived already."""
    if journal.anchor(tx) == Anchor(seq=asked.seq, hash=asked.hash):
        return True
    known, _ = journal.known_hashes(tx, asked.seq, asked.seq)
    if known.get(asked.seq) != asked.hash or asked.seq < journal.anchor(tx).seq:
        raise NotThatEntry(asked.seq)
    if journal.is_younger(tx, asked.seq, tx.now() - timedelta(days=asked.keep_days)):
        raise EntryTooYoung(asked.seq, asked.keep_days)
    behind = journal.sink_behind(tx, asked.seq, but=asked.forget_sinks)
    if behind is not None:
        raise SinkBehind(*behind, asked.seq)
    return False
