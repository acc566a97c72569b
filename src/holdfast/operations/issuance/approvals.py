"""Approvals by a second person: list them, approve, reject; one that expires is rejected."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, Field

from holdfast.core.access import Approval as Row
from holdfast.core.access import ApprovalState
from holdfast.core.backoff import FailureClass
from holdfast.core.certificate import Certificate, Version, changed_since
from holdfast.core.issuance import Issuance, IssuanceState, move
from holdfast.core.reasons import Reason
from holdfast.errors import UserError
from holdfast.operations.access import Action
from holdfast.operations.certificates import refs
from holdfast.operations.context import Context
from holdfast.operations.inputs import Input, NoteText, OneOf, Page, Paged, cursor, from_row, place
from holdfast.operations.issuance import attempts
from holdfast.operations.issuance.attempts import CertificateContext
from holdfast.operations.operation import Face, operation
from holdfast.operations.scopes import APPROVAL, VISIBLE
from holdfast.store import access, certificates, inventory, issuances, issuers, journal, versions
from holdfast.store.tx import Tx


class NoSuchApproval(UserError):
    status, code = 404, "no-such-approval"

    def __init__(self, approval: str) -> None:
        super().__init__(f"There is no approval {approval!r:.80}.")
        self.hint = "See what waits: holdfast approvals ls"


class NotYours(UserError):
    status, code = 403, "own-request"

    def __init__(self) -> None:
        super().__init__("You asked for this, or for a part of it: another person must approve it.")
        self.hint = "Ask another person who may approve."


class Decided(UserError):
    status, code = 409, "approval-decided"

    def __init__(self, approval: Row) -> None:
        super().__init__(f"Approval {approval.id} is {approval.state} already.")
        self.hint = "The first word counts."


# ── Looking ──


class ApprovalQuery(Paged):
    state: Annotated[str, OneOf(ApprovalState)] = Field(default="pending", description="In this state.")


class ApprovalRef(Input):
    approval: str = Field(
        max_length=300, description="Its id, a prefix of it, or the certificate that waits: if just one is meant."
    )


class ApprovalDecision(ApprovalRef):
    note: NoteText = Field(default="", description="Why; for the audit log and the requester.")


class ApprovalView(BaseModel):
    id: str
    certificate: str
    name: str = Field(description="That of the certificate.")
    issuance: str
    state: str
    requested_by: str
    asked_at: datetime
    expires_at: datetime
    decided_by: str | None
    decided_at: datetime | None
    note: str


def _shown(tx: Tx, row: Row) -> ApprovalView:
    about = certificates.get(tx, row.certificate)
    return from_row(ApprovalView, row, name="" if about is None else about.name)


@operation(
    "approvals.list",
    "GET /approvals",
    command="approvals ls",
    action=Action.SEE,
    scope=VISIBLE,
    example="holdfast approvals ls",
)
def list_approvals(tx: Tx, ctx: Context, asked: ApprovalQuery) -> Page[ApprovalView]:
    """List approvals: pending ones, those that expire first coming first; or decided ones, the last decided first."""
    seen, after = refs.all_visible(ctx.principal), place(asked.cursor, int, str)
    found = inventory.approval_page(tx, seen, state=asked.state, after=after, limit=asked.limit)
    end = inventory.place_of_approval(found[-1]) if len(found) == asked.limit else None
    return Page[ApprovalView](items=[_shown(tx, each) for each in found], next=cursor(end))


@operation(
    "approvals.get",
    "GET /approvals/{approval}",
    command="approvals show",
    action=Action.SEE,
    scope=VISIBLE,
    example="holdfast approvals show approval_01j9",
)
def get(tx: Tx, ctx: Context, asked: ApprovalRef) -> ApprovalView:
    """Show one approval: who asked, when it expires, and who decided what."""
    found = access.find_approval(tx, asked.approval)
    if found is None or not refs.sees_certificate(tx, ctx.principal, found.certificate):
        raise NoSuchApproval(asked.approval)
    return _shown(tx, found)


# ── Deciding ──


@operation(
    "approvals.approve",
    "POST /approvals/{approval}/approve",
    command="approvals approve",
    action=Action.APPROVE,
    scope=APPROVAL,
    not_on={Face.MCP: "A second person decides, and an assistant is none."},
    done="Approved: the issuance is under way now.",
    example="holdfast approvals approve approval_01j9 --note 'as agreed'",
)
def approve(tx: Tx, ctx: Context, asked: ApprovalDecision) -> None:
    """Approve an issuance, which then goes on.

    The requester may not approve it, nor may a person who changed the certificate since it was last approved.
    """
    found, issuance = _open(tx, asked.approval)
    certificate = certificates.get(tx, found.certificate, lock=True)
    if certificate is None:
        raise NoSuchApproval(asked.approval)
    current = versions.get(tx, certificate.current_version)
    if ctx.actor in _asked_by(tx, found, certificate, current):
        raise NotYours
    in_time = tx.now() < found.expires_at
    if not in_time or not access.decide_approval(tx, found.id, ApprovalState.APPROVED, by=ctx.actor, note=asked.note):
        raise Decided(found)
    after = issuances.save(tx, issuance, state=move(issuance.state, "approved"))
    chosen = issuers.get(tx, issuance.issuer)
    attempts.start(tx, after, ctx.ids.new("job"), current=current, chosen=chosen, found=certificate)
    _tell(tx, found, "approved", ctx.actor, asked.note)


def _asked_by(tx: Tx, approval: Row, found: Certificate, current: Version | None) -> set[str]:
    """The requester, and everybody who changed the specification since it was last issued or approved."""
    issued = 0 if current is None else current.generation
    approved = access.approved_generation(tx, found.id, before=found.generation)
    return {approval.requested_by, *changed_since(found, max(issued, approved))}


@operation(
    "approvals.reject",
    "POST /approvals/{approval}/reject",
    command="approvals reject",
    action=Action.APPROVE,
    scope=APPROVAL,
    destructive=True,
    not_on={Face.MCP: "A second person decides, and an assistant is none."},
    done="Rejected.",
    example="holdfast approvals reject approval_01j9 --note 'wrong owner'",
)
def reject(tx: Tx, ctx: Context, asked: ApprovalDecision) -> None:
    """Reject an issuance, which ends. It counts as a failure: the next one waits as after any other failure."""
    found, issuance = _open(tx, asked.approval)
    if not access.decide_approval(tx, found.id, ApprovalState.REJECTED, by=ctx.actor, note=asked.note):
        raise Decided(found)
    _tell(tx, found, "rejected", ctx.actor, asked.note)
    _end(tx, issuance, Reason.APPROVAL_REJECTED, asked.note or f"rejected by {ctx.actor}")


async def time_out(context: CertificateContext) -> int:
    """Reject the issuances whose approval has expired, a page at a time; they are never issued."""

    def write(tx: Tx) -> int:
        overdue = access.overdue_approvals(tx, tx.now())
        for found in overdue:
            issuance = issuances.get(tx, found.issuance, lock=True)
            access.decide_approval(tx, found.id, ApprovalState.TIMED_OUT, by=journal.SYSTEM, note="")
            _tell(tx, found, "timed_out", journal.SYSTEM, "")
            if issuance is not None and issuance.state is IssuanceState.AWAITING_APPROVAL:
                _end(tx, issuance, Reason.APPROVAL_TIMED_OUT, "it was not approved in time")
        return len(overdue)

    total = 0
    while done := await context.db.write(write):
        total += done
    return total


def _open(tx: Tx, approval: str) -> tuple[Row, Issuance]:
    found = access.find_approval(tx, approval)
    if found is None:
        raise NoSuchApproval(approval)
    issuance = issuances.get(tx, found.issuance, lock=True)
    if (
        found.state is not ApprovalState.PENDING
        or issuance is None
        or issuance.state is not IssuanceState.AWAITING_APPROVAL
    ):
        raise Decided(found)
    return found, issuance


def _end(tx: Tx, issuance: Issuance, reason: Reason, why: str) -> None:
    attempts.give_up(tx, issuance, failure=FailureClass.REFUSED, reason=reason.value, error=why)


def _tell(tx: Tx, found: Row, word: str, actor: str, note: str) -> None:
    journal.audit(
        tx, f"approval_{word}", found.certificate, actor=actor, approval=found.id, issuance=found.issuance, note=note,
        before={"approval": found.id, "state": found.state}, after={"approval": found.id, "state": word},
    )  # fmt: skip
    journal.event(tx, f"approval.{word}", found.certificate, approval=found.id, by=actor)
