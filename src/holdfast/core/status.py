"""The status block: the same answer for people, programs and metrics, computed by one function from stored facts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from holdfast.core import reasons, renewal
from holdfast.core.certificate import Certificate, State, Version
from holdfast.core.issuance import Issuance
from holdfast.core.issuance import State as Step
from holdfast.core.reasons import Reason
from holdfast.core.renewal import Check, Decision


class Phase(StrEnum):
    """What a person sees first."""

    OK = "ok"
    PENDING = "pending"  # the first certificate is on its way
    RENEWING = "renewing"
    WAITING = "waiting"  # due, and something holds it
    AWAITING_APPROVAL = "awaiting_approval"
    FAILING = "failing"
    REVOKED = "revoked"
    EXPIRED = "expired"
    PAUSED = "paused"
    ARCHIVED = "archived"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What is known of the job of an issuance under way."""

    due_at: datetime
    running: bool = False
    dead: bool = False
    reason: str | None = None
    last_error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    phase: Phase
    reason_code: Reason
    reason: str
    acts_next: str
    attempt: int  # failures in a row, so far
    max_attempts: int | None  # None: as long as it takes
    last_error: str | None
    last_attempt_at: datetime | None
    next_attempt_at: datetime | None
    next_attempt_cause: str | None
    attempts_that_fit: int | None  # before it is too late; None while it is not failing
    safe_until: datetime | None
    expires_at: datetime | None
    blocked_by: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in self.__slots__}
        return {name: each.isoformat() if isinstance(each, datetime) else each for name, each in plain.items()}


def status(
    certificate: Certificate,
    current: Version | None,
    issuance: Issuance | None,
    job: Waiting | None,
    now: datetime,
) -> Status:
    """`issuance` is the one under way, if there is one, and `job` its job."""
    decision = renewal.decide(certificate, current, now)
    failing = certificate.failing
    reason, words = _reason(certificate, current, issuance, job, decision, now)
    error = (issuance.error if issuance else None) or (failing.error if failing else None)
    next_at = _next_at(certificate, issuance, job, decision, now)
    return Status(
        phase=_phase(certificate, current, issuance, decision, now),
        reason_code=reason,
        reason=words or reasons.MEANINGS[reason].sentence,
        acts_next=reasons.MEANINGS[reason].acts_next,
        attempt=0 if failing is None else failing.attempts or 1,
        max_attempts=None,
        last_error=error or None,
        last_attempt_at=issuance.started_at if issuance else failing.last_at if failing else _issued_at(current),
        next_attempt_at=next_at,
        next_attempt_cause=_next_cause(issuance, job, decision),
        attempts_that_fit=_fit(certificate, current, next_at, now),
        safe_until=None if current is None else renewal.safe_until(current),
        expires_at=None if current is None else current.not_after,
        blocked_by=_blocked(certificate, issuance, job, decision, now),
    )


def _issued_at(current: Version | None) -> datetime | None:
    return None if current is None else current.issued_at


def _fit(certificate: Certificate, current: Version | None, next_at: datetime | None, now: datetime) -> int | None:
    if certificate.failing is None or current is None or next_at is None:
        return None
    return renewal.attempts_that_fit(certificate.failing, current, max(next_at, now))


def _phase(
    certificate: Certificate, current: Version | None, issuance: Issuance | None, decision: Decision, now: datetime
) -> Phase:
    if certificate.state is State.ARCHIVED:
        return Phase.ARCHIVED
    if current is not None and now >= current.not_after:
        return Phase.EXPIRED
    if issuance is not None and issuance.state is Step.AWAITING_APPROVAL:
        return Phase.AWAITING_APPROVAL
    if certificate.failing is not None:
        return Phase.FAILING
    if certificate.state is State.PAUSED:
        return Phase.PAUSED
    if current is not None and current.revoked:
        return Phase.REVOKED
    if issuance is not None:
        return Phase.PENDING if current is None else Phase.RENEWING
    if current is None:
        return Phase.PENDING
    return Phase.WAITING if decision.waits_for is not None or _held(certificate, now) else Phase.OK


def _reason(
    certificate: Certificate,
    current: Version | None,
    issuance: Issuance | None,
    job: Waiting | None,
    decision: Decision,
    now: datetime,
) -> tuple[Reason, str]:
    """The one thing to know: what is wrong before what is waited for, and that before what is planned."""
    if issuance is not None:
        return _of_issuance(issuance, job)
    if certificate.state is not State.ACTIVE:
        return decision.cause, ""
    if certificate.failing is not None and certificate.failing.reason:
        code = reasons.of(certificate.failing.reason)
        return code, certificate.failing.error if code is Reason.INTERNAL else ""
    if current is not None and now >= current.not_after:
        return Reason.EXPIRED, ""
    if decision.due(now):
        return _held(certificate, now) or decision.cause, ""
    return decision.waits_for or Reason.NOT_DUE, ""


HELD: Final = frozenset({Reason.ISSUER_PAUSED, Reason.UNKNOWN_ISSUER, Reason.CANCELLED})


def _held(certificate: Certificate, now: datetime) -> Reason | None:
    """What keeps one that is due from being begun, and is not for the rules of renewal to know."""
    reason = reasons.of(certificate.next_cause)
    later = certificate.next_action_at is not None and certificate.next_action_at > now
    return reason if later and reason in HELD else None


def _of_issuance(issuance: Issuance, job: Waiting | None) -> tuple[Reason, str]:
    if issuance.state is Step.AWAITING_APPROVAL:
        return Reason.AWAITING_APPROVAL, ""
    if job is not None and job.dead:
        return Reason.INTERNAL, job.last_error or ""
    if job is not None and job.reason in ("BUDGET", "NOT_BEFORE"):
        return Reason.BUDGET if job.reason == "BUDGET" else Reason.CA_RATE_LIMITED, ""
    return (reasons.of(issuance.reason), "") if issuance.reason else (Reason.UNDER_WAY, "")


def _next_at(
    certificate: Certificate, issuance: Issuance | None, job: Waiting | None, decision: Decision, now: datetime
) -> datetime | None:
    if issuance is not None:
        return None if job is None or job.dead else job.due_at
    return certificate.next_action_at if _held(certificate, now) else decision.at


def _next_cause(issuance: Issuance | None, job: Waiting | None, decision: Decision) -> str | None:
    if issuance is not None:
        return issuance.cause
    return None if decision.at is None else decision.cause.value


def _blocked(
    certificate: Certificate, issuance: Issuance | None, job: Waiting | None, decision: Decision, now: datetime
) -> tuple[str, ...]:
    if issuance is not None:
        code, _ = _of_issuance(issuance, job)
        return () if code is Reason.UNDER_WAY else (code.value,)
    blocker = _held(certificate, now) if decision.due(now) else decision.waits_for
    return () if blocker is None else (blocker.value,)


# ── explain ──


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Each check in order, the one that blocks, and what would change it."""

    at: datetime
    verdict: str
    checks: tuple[Check, ...]
    blocking: str | None
    would_change_it: str


_CHANGES = {
    Reason.NOT_DUE: "Time. To renew now: holdfast renew {name}",
    Reason.BACKOFF: "Time, or a changed input. To try now: holdfast renew {name}",
    Reason.WINDOW: "Time, or another maintenance window. To renew now: holdfast renew {name}",
    Reason.PAUSED: "Resuming it: holdfast resume {name}",
    Reason.ARCHIVED: "Nothing: ask for it again under this or another name.",
    Reason.AWAITING_APPROVAL: "A second person's word: holdfast approvals ls",
    Reason.ISSUER_PAUSED: "A CA that goes on: holdfast ca resume {ca}. Or another: holdfast change {name} --ca CA",
    Reason.UNKNOWN_ISSUER: "A CA of this name: holdfast ca add {ca}. Or another: holdfast change {name} --ca CA",
    Reason.CANCELLED: "Time. To try now: holdfast renew {name}",
}


def explain(
    certificate: Certificate, current: Version | None, issuance: Issuance | None, job: Waiting | None, now: datetime
) -> Explanation:
    """Why what happens happens, and why nothing else does. `now` may be any time: the rules do not care."""
    decision = renewal.decide(certificate, current, now)
    held = _held(certificate, now) if decision.due(now) else None
    if issuance is not None:
        code, words = _of_issuance(issuance, job)
        saw = f"{issuance.id}, {issuance.state.value}, at {issuance.issuer}, because of {issuance.cause}"
        blocking = None if code is Reason.UNDER_WAY else code
        verdict = words or reasons.MEANINGS[code].sentence
        check = Check(rule="issuance", saw=saw, verdict=verdict, blocks=blocking is not None)
        return _explained(certificate, now, verdict, (*decision.checks, check), blocking, "It goes on by itself.")
    if held is not None:
        rule, saw = (
            ("cancelled", "by hand") if held is Reason.CANCELLED else ("ca", ", ".join(certificate.wanted.issuers))
        )
        verdict = f"Due, but held: {reasons.MEANINGS[held].sentence}{_next_words(certificate.next_action_at)}"
        check = Check(rule=rule, saw=saw, verdict=reasons.MEANINGS[held].sentence, blocks=True)
        return _explained(certificate, now, verdict, (*decision.checks, check), held, "Time.")
    if decision.due(now):
        verdict = f"Due: {reasons.MEANINGS[decision.cause].sentence}"
        return _explained(certificate, now, verdict, decision.checks, None, "Nothing: the next sweep begins it.")
    waits = decision.waits_for or Reason.NOT_DUE
    verdict = f"{reasons.MEANINGS[waits].sentence}{_next_words(decision.at)}"
    return _explained(certificate, now, verdict, decision.checks, waits, "Time.")


def _next_words(at: datetime | None) -> str:
    return "" if at is None else f" Next at {at:%Y-%m-%dT%H:%M:%SZ}."


def _explained(
    certificate: Certificate,
    at: datetime,
    verdict: str,
    checks: tuple[Check, ...],
    blocking: Reason | None,
    otherwise: str,
) -> Explanation:
    change = otherwise if blocking is None else _CHANGES.get(blocking, otherwise)
    return Explanation(
        at=at,
        verdict=verdict,
        checks=checks,
        blocking=None if blocking is None else blocking.value,
        would_change_it=change.format(name=certificate.name, ca=certificate.wanted.issuers[0]),
    )
