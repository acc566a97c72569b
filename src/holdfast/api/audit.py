"""/audit: who changed what, when, and from where; searched, exported as a whole, and verified."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query
from fastapi.responses import StreamingResponse
from starlette.responses import Response

from holdfast.api import installation_shapes as whole
from holdfast.api import render, shapes
from holdfast.api.call import Call, Caller
from holdfast.api.certificates import Cursor, Limit
from holdfast.core.chain import line
from holdfast.core.inventory import AuditFilter
from holdfast.operations import audit
from holdfast.operations.access import Action

router = APIRouter(prefix="/audit", tags=["audit"])
LINES: Final = "application/jsonl"
EXPORT: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "One row a line, the oldest first", "content": {LINES: {"schema": {"type": "string"}}}}
}


def wanted(
    actor: Annotated[str | None, Query(max_length=200, description="Such as human:alice, robot:ci or system.")] = None,
    action: Annotated[str | None, Query(max_length=100)] = None,
    subject: Annotated[str | None, Query(max_length=300, description="The id of what was changed.")] = None,
    since: shapes.Instant | None = None,
    until: shapes.Instant | None = None,
) -> AuditFilter:
    return AuditFilter(actor=actor, action=action, subject=subject, since=since, until=until)


Wanted = Annotated[AuditFilter, Depends(wanted)]


@router.get("")
async def search(
    call: Caller, filters: Wanted, cursor: Cursor = None, limit: Limit = 100
) -> shapes.Page[whole.AuditEntry]:
    """Every change and who made it, the newest first."""
    call.demand(Action.SEE_AUDIT)
    before = render.place(cursor, int)
    found = await audit.search(call.keeper.db, filters, before=None if before is None else before[0], limit=limit)
    end = (found[-1].seq,) if len(found) == limit else None
    return shapes.Page[whole.AuditEntry](items=[render.audit(each) for each in found], next=render.cursor(end))


class JsonLines(StreamingResponse):
    media_type = LINES


@router.get("/export", response_class=JsonLines, responses=EXPORT)
async def export(call: Caller, filters: Wanted) -> Response:
    """All rows, the oldest first, as JSON lines; with numbers and hashes: the chain can be checked elsewhere."""
    call.demand(Action.SEE_AUDIT)
    headers = {"Content-Disposition": 'attachment; filename="holdfast-audit.jsonl"'}
    return JsonLines(_lines(call, filters), headers=headers)


async def _lines(call: Call, filters: AuditFilter) -> AsyncIterator[str]:
    lines: list[str] = []
    async for entry in audit.everything(call.keeper.db, filters):
        lines.append(line(entry))
        if len(lines) == 200:
            yield "\n".join(lines) + "\n"
            lines.clear()
    if lines:
        yield "\n".join(lines) + "\n"


@router.get("/verify")
async def verify(call: Caller) -> whole.AuditVerdict:
    """Walk the whole chain: whether no row was altered, removed or added; or which is the first that was."""
    call.demand(Action.SEE_AUDIT)
    found = await audit.verified(call.keeper.db)
    return whole.AuditVerdict(
        ok=found.ok,
        verified=found.verified,
        last_hash=found.last_hash,
        first_bad_row=found.bad_seq,
        problem=found.problem,
    )
