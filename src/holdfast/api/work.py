"""/issuances, /jobs, /approvals: what is under way, and what a person may say about it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Response

from holdfast.api import render, shapes
from holdfast.api.call import Caller, Changer
from holdfast.api.certificates import Cursor, Limit
from holdfast.operations import approvals, inventory, jobs, watching
from holdfast.operations.access import Action
from holdfast.operations.inventory import anywhere, on_approval

router = APIRouter()
Id = Annotated[str, Path(max_length=100)]
ApprovalState = Literal["pending", "approved", "rejected", "timed_out", "withdrawn"]
Step = Literal[
    "awaiting_approval", "requested", "key_stored", "ordered", "proving", "finalizing", "waiting", "issued", "failed",
    "cancelled",
]  # fmt: skip


# ── Attempts ──


@router.get("/issuances", tags=["issuances"])
async def attempts(
    call: Caller,
    certificate: Annotated[str | None, Query(max_length=300)] = None,
    state: Step | None = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> shapes.Page[shapes.Issuance]:
    """Attempts to obtain a certificate, the newest first."""
    who = call.principal
    call.demand_somewhere(Action.SEE)
    after = render.place(cursor, int, str)
    page = await inventory.attempts(call.keeper, who, certificate=certificate, state=state, after=after, limit=limit)
    items = [render.issuance(each) for each in page.items]
    return shapes.Page[shapes.Issuance](items=items, next=render.cursor(page.next))


@router.get("/issuances/{issuance}", tags=["issuances"])
async def attempt(call: Caller, issuance: Id, response: Response) -> shapes.Issuance:
    """One attempt. With Prefer: wait=30, when it is over, or after that time."""
    who = call.principal
    call.demand_somewhere(Action.SEE)
    found = await watching.until_over(call.front, who, issuance, call.wait)
    if not found.state.over:
        response.headers["Retry-After"] = "1"
    return render.issuance(found)


# ── Jobs ──


@router.get("/jobs", tags=["jobs"])
async def job_list(
    call: Caller,
    kind: Annotated[str | None, Query(max_length=60)] = None,
    state: Literal["ready", "running", "failed", "dead"] | None = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> shapes.Page[shapes.Job]:
    """Jobs that are not finished, in the order in which they were made."""
    call.demand(Action.SEE_JOBS)
    after = render.place(cursor, str)
    found = await inventory.job_list(
        call.keeper, kind=kind, state=state, after="" if after is None else after[0], limit=limit
    )
    end = (found[-1].id,) if len(found) == limit else None
    return shapes.Page[shapes.Job](items=[render.job(each) for each in found], next=render.cursor(end))


@router.get("/jobs/{job}", tags=["jobs"])
async def get_job(call: Caller, job: Id) -> shapes.Job:
    """Where it stands, when it is due, and why it waits."""
    call.demand(Action.SEE_JOBS)
    return render.job(await inventory.job(call.keeper, job))


@router.post("/jobs/{job}/retry", tags=["jobs"])
async def retry(call: Changer, job: Id) -> shapes.Job:
    """Run it now: one that waits, without waiting longer; a dead one, with all its attempts. Budgets hold."""
    reply = await call.change(
        lambda keeper: jobs.retry(keeper.db, job, actor=call.actor),
        check=anywhere(call.principal, Action.CHANGE_JOBS),
        render=lambda tx, found: render.job(found).model_dump(mode="json"),
    )
    return shapes.Job.model_validate(reply)


@router.post("/jobs/{job}/cancel", status_code=204, tags=["jobs"])
async def cancel(call: Changer, job: Id, asked: shapes.Cancellation) -> None:
    """Take a job that nobody runs out of the queue."""
    await call.change(
        lambda keeper: jobs.cancel(keeper.db, job, actor=call.actor, why=asked.why),
        check=anywhere(call.principal, Action.CHANGE_JOBS),
        render=_nothing,
    )


def _nothing(tx: Any, result: Any) -> None:
    """There is nothing to show."""


# ── Approvals ──


@router.get("/approvals", tags=["approvals"])
async def approval_list(
    call: Caller, state: ApprovalState = "pending", cursor: Cursor = None, limit: Limit = 100
) -> shapes.Page[shapes.Approval]:
    """What waits for a second person, the most pressing first; or what was decided, the last first."""
    call.demand_somewhere(Action.SEE)
    after = render.place(cursor, int, str)
    page = await inventory.approval_list(call.keeper, call.principal, state=state, after=after, limit=limit)
    items = [render.approval(each) for each in page.items]
    return shapes.Page[shapes.Approval](items=items, next=render.cursor(page.next))


@router.get("/approvals/{approval}", tags=["approvals"])
async def get_approval(call: Caller, approval: Id) -> shapes.Approval:
    """Who asked, until when it can be decided; and who said what."""
    return render.approval(await inventory.approval(call.keeper, call.principal, approval))


@router.post("/approvals/{approval}/approve", status_code=204, tags=["approvals"])
async def approve(call: Changer, approval: Id, word: shapes.Word) -> None:
    """The attempt goes on. Whoever asked for it may not say this."""
    await call.change(
        lambda keeper: approvals.approve(keeper, approval, actor=call.actor, note=word.note),
        check=on_approval(call.principal, approval),
        render=_nothing,
    )


@router.post("/approvals/{approval}/reject", status_code=204, tags=["approvals"])
async def reject(call: Changer, approval: Id, word: shapes.Word) -> None:
    """The attempt is over, and counts as a failure."""
    await call.change(
        lambda keeper: approvals.reject(keeper, approval, actor=call.actor, note=word.note),
        check=on_approval(call.principal, approval),
        render=_nothing,
    )
