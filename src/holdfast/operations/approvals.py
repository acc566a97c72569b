"""A second person's word: approve, reject, or time out to rejected; on every path alike."""

from __future__ import annotations

from holdfast.core.backoff import FailureClass
from holdfast.core.certificate import Certificate, Version
from holdfast.core.issuance import Issuance, State, move
from holdfast.core.reasons import Reason
from holdfast.errors import UserError
from holdfast.operations import issuing
from holdfast.operations.issuing import Keeper
from holdfast.store import approvals, certificates, issuances, issuers, journal, versions
from holdfast.store.approvals import Approval
from holdfast.store.tx import Tx


class NoSuchApproval(UserError):
    status, code = 404, "no-such-approval"

    def __init__(self, approval: str) -> None:
        super().__init__(f"There is no approval {approval!r:.80}.")
        self.hint = "See what waits: holdfast approvals ls"


class NotYours(UserError):
    status, code = 403, "own-request"

    def __init__(self) -> None:
        super().__init__("You asked for this yourself: somebody else must approve it.")
        self.hint = "Ask another person who may approve."


class Decided(UserError):
    status, code = 409, "approval-decided"

    def __init__(self, approval: Approval) -> None:
        super().__init__(f"Approval {approval.id} is {approval.state} already.")
        self.hint = "The first word counts."


async def pending(keeper: Keeper) -> list[Approval]:
    return await keeper.db.read(approvals.pending)


async def approve(keeper: Keeper, approval: str, *, actor: str, note: str = "") -> Issuance:
    """The attempt goes on. Whoever asked for it, or changed what is asked for, may not say this word."""
    job = keeper.random.new_id("job")

    def write(tx: Tx) -> Issuance:
        found, issuance = _open(tx, approval)
        certificate = certificates.get(tx, found.certificate, lock=True)
        if certificate is None:
            raise NoSuchApproval(approval)
        current = versions.get(tx, certificate.current_version)
        if actor in _asked_by(found, certificate, current):
            raise NotYours
        if tx.now() >= found.expires_at or not approvals.decide(tx, found.id, "approved", by=actor, note=note):
            raise Decided(found)
        after = issuances.save(tx, issuance, state=move(issuance.state, "approved"))
        chosen = issuers.get(tx, issuance.issuer)
        issuing.start(tx, after, job, current=current, chosen=chosen, found=certificate)
        _tell(tx, found, "approved", actor, note)
        return after

    return await keeper.db.write(write)


def _asked_by(approval: Approval, certificate: Certificate, current: Version | None) -> set[str]:
    """Whose wish it is: of who asked, and of who changed what is asked for since anybody last approved it."""
    new = current is None or current.generation < certificate.generation
    return {approval.requested_by, *([certificate.changed_by] if new else [])}


async def reject(keeper: Keeper, approval: str, *, actor: str, note: str) -> None:
    """The attempt is over. It counts as a failure: the next one waits as after any other."""

    def write(tx: Tx) -> None:
        found, issuance = _open(tx, approval)
        if not approvals.decide(tx, found.id, "rejected", by=actor, note=note):
            raise Decided(found)
        _tell(tx, found, "rejected", actor, note)
        _end(tx, issuance, Reason.APPROVAL_REJECTED, note or f"rejected by {actor}")

    await keeper.db.write(write)


async def time_out(keeper: Keeper) -> int:
    """What nobody decided in time is rejected, never issued; a page at a time."""

    def write(tx: Tx) -> int:
        overdue = approvals.overdue(tx, tx.now())
        for found in overdue:
            issuance = issuances.get(tx, found.issuance, lock=True)
            approvals.decide(tx, found.id, "timed_out", by=journal.SYSTEM, note="")
            _tell(tx, found, "timed_out", journal.SYSTEM, "")
            if issuance is not None and issuance.state is State.AWAITING_APPROVAL:
                _end(tx, issuance, Reason.APPROVAL_TIMED_OUT, "nobody approved it in time")
        return len(overdue)

    total = 0
    while done := await keeper.db.write(write):
        total += done
    return total


def _open(tx: Tx, approval: str) -> tuple[Approval, Issuance]:
    found = approvals.get(tx, approval)
    if found is None:
        raise NoSuchApproval(approval)
    issuance = issuances.get(tx, found.issuance, lock=True)
    if found.state != "pending" or issuance is None or issuance.state is not State.AWAITING_APPROVAL:
        raise Decided(found)
    return found, issuance


def _end(tx: Tx, issuance: Issuance, reason: Reason, why: str) -> None:
    issuing.give_up(tx, issuance, failure=FailureClass.REFUSED, reason=reason.value, error=why)


def _tell(tx: Tx, found: Approval, word: str, actor: str, note: str) -> None:
    journal.audit(
        tx, f"approval_{word}", found.certificate, actor=actor, approval=found.id, issuance=found.issuance, note=note,
        before={"approval": found.id, "state": found.state}, after={"approval": found.id, "state": word},
    )  # fmt: skip
    journal.event(tx, f"approval.{word}", found.certificate, approval=found.id, by=actor)
