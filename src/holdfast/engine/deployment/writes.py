"""Writes the steps of deployments; each in one transaction, guarded by the claim of the job."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from holdfast.core.certificate import Version
from holdfast.core.deployment import Deployment, DeploymentState, move
from holdfast.core.deployment_decision import (
    DeploymentFacts,
    DeployStep,
    Finish,
    Hold,
    MoveOn,
    Supersede,
    TryAgain,
    WaitFor,
)
from holdfast.core.issuers import breaker
from holdfast.core.own_ca.ca import DeliveryLevel
from holdfast.core.reasons import MEANINGS, Reason
from holdfast.core.work.job import Claim
from holdfast.errors import LeaseLost
from holdfast.operations.deployment import planning
from holdfast.store import journal
from holdfast.store.deployments import deployments, targets
from holdfast.store.own_ca import certificates as own_certificates
from holdfast.store.tx import Tx
from holdfast.store.work import jobs

TOLD_AFTER: Final = 3  # failures in a row that may pass by themselves


def step(tx: Tx, claim: Claim, facts: DeploymentFacts, what: DeployStep) -> Deployment:
    """The row after a step. TxConflict or LeaseLost: it is another's by now."""
    if not jobs.still_ours(tx, claim):
        raise LeaseLost(claim.id)
    row = facts.deployment
    match what:
        case MoveOn():
            return _move_on(tx, claim, row, what)
        case WaitFor():
            return deployments.save(tx, row, by=claim, **_later(row, what, tx.now()))
        case Hold():
            return _hold(tx, claim, row, what)
        case Finish():
            return _finish(tx, claim, row, facts.version, what)
        case TryAgain():
            return _try_again(tx, claim, row, what)
        case Supersede():
            planning.supersede(tx, row, what.why)
    return row


def _later(row: Deployment, what: WaitFor, now: datetime) -> dict[str, Any]:
    """On the way back the row keeps what went wrong on the way there."""
    why = {"reason": what.reason.value, "error": what.why or row.error}
    return {**what.changes, "next_at": now + what.after, **({} if row.state is DeploymentState.ROLLING_BACK else why)}


def _move_on(tx: Tx, claim: Claim, row: Deployment, what: MoveOn) -> Deployment:
    changes: dict[str, Any] = dict(what.changes)
    if what.event is not None:
        changes["state"] = move(row.state, what.event)
        told = {"error": changes["error"]} if changes.get("error") else {}
        _tell(tx, claim, row, f"deployment.{changes['state'].value}", **told)
    if what.overridden is not None:
        facts = {"deployment": row.id, "target": row.target, "held_by": what.overridden.value}
        journal.audit(tx, "deployment_hold_overridden_by_expiry", row.certificate, **facts)
        _tell(tx, claim, row, "deployment.hold_overridden", held_by=what.overridden.value)
    return deployments.save(tx, row, by=claim, **changes)


def _hold(tx: Tx, claim: Claim, row: Deployment, what: Hold) -> Deployment:
    state = move(row.state, "held")
    if (row.state, row.reason) != (state, what.reason.value):
        _tell(tx, claim, row, "deployment.held", why=what.reason.value, until=_shown(what.until))
    return deployments.save(tx, row, by=claim, state=state, reason=what.reason.value, next_at=what.until, error=None)


def _finish(tx: Tx, claim: Claim, row: Deployment, version: Version, what: Finish) -> Deployment:
    now = tx.now()
    level = DeliveryLevel.DEPLOYED if what.event == "seen" else DeliveryLevel.ACKNOWLEDGED
    own_certificates.deliver_version(tx, level, version.serial, version.spki_sha256)
    for each in deployments.standing(tx, [row.certificate])[row.certificate]:
        if each.target == row.target and each.state.in_place and each.number < row.number:
            planning.supersede(tx, each, "A newer deployment is in place.")
    state = move(row.state, what.event)
    well: dict[str, Any] = {"drained": False, "failures": 0, "tries": 0, "reason": None, "error": None, "next_at": None}
    after = deployments.save(tx, row, by=claim, state=state, seen=what.words, served_at=now, **well)
    facts = {"deployment": row.id, "target": row.target, "version": row.certificate_version}
    journal.audit(tx, f"deployment_{state.value}", row.certificate, seen=what.words[:400], number=row.number, **facts)
    journal.event(tx, "deployment.served", row.certificate, job=claim.id, state=state.value, **facts)
    _target_well(tx, row.target)
    return after


def _try_again(tx: Tx, claim: Claim, row: Deployment, what: TryAgain) -> Deployment:
    now, state = tx.now(), move(row.state, what.event)
    after = deployments.save(
        tx, row, by=claim, state=state, failures=row.failures + 1, tries=0, reason=what.reason.value, error=what.why,
        next_at=now + what.after, looked_since=None, served_at=None, drained=False,
    )  # fmt: skip
    facts = {"target": row.target, "reason": what.reason.value, "error": what.why, "next": _shown(after.next_at)}
    journal.audit(tx, f"deployment_{state.value}", row.certificate, deployment=row.id, **facts)
    _tell(tx, claim, row, _event(what, after.failures), state=state.value, **facts)
    if what.reason in (Reason.TARGET_UNREACHABLE, Reason.TARGET_BUSY):
        _target_failed(tx, row.target, what.why, now)
    return after


def _event(what: TryAgain, failures: int) -> str:
    """Failures that may pass are told when they last; what needs a person, at once."""
    if what.event == "rollback failed":
        return "deployment.rollback_failed"
    told = MEANINGS[what.reason].alert or failures >= TOLD_AFTER
    return "deployment.failed" if told else "deployment.retried_later"


def _target_failed(tx: Tx, name: str, error: str, now: datetime) -> None:
    row = targets.get(tx, name, lock=True)
    if row is not None:
        targets.save_breaker(tx, name, breaker.failed(row.breaker, now, error))


def _target_well(tx: Tx, name: str) -> None:
    row = targets.get(tx, name)
    if row is not None and row.breaker != breaker.Breaker():
        targets.save_breaker(tx, name, breaker.Breaker())


def _tell(tx: Tx, claim: Claim, row: Deployment, event: str, **facts: Any) -> None:
    known = {"deployment": row.id, "target": row.target}
    journal.event(tx, event, row.certificate, job=claim.id, **{**known, **facts})


def _shown(at: datetime | None) -> str:
    return "" if at is None else at.isoformat()
