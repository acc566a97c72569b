"""The status block: the same answer for people, programs and metrics, computed by one function from stored facts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from shlex import quote
from typing import Final, Literal

from holdfast.core import reasons, renewal
from holdfast.core.certificate import Certificate, CertificateState, Failing, Version, VersionState, failed
from holdfast.core.issuance import Issuance, IssuanceState
from holdfast.core.reasons import Reason
from holdfast.core.renewal import RenewalCheck, RenewalDecision


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
class IssuanceJob:
    """The job of an issuance under way; of one that awaits approval, when the approval expires."""

    due_at: datetime
    running: bool = False
    failed: bool = False  # it is tried again
    dead: bool = False
    reason: str | None = None
    last_error: str | None = None

    @property
    def trouble(self) -> bool:
        """Its last attempt did not end as it should: what the issuance says is older."""
        return self.failed or self.dead


@dataclass(frozen=True, slots=True, kw_only=True)
class OwedToCa:
    """A revocation or a withdrawal that an issuer has not confirmed; certificates that were replaced have such, too."""

    kind: Literal["revocation", "withdrawal"]
    of: str  # the version, or the issuance
    issuer: str
    since: datetime | None
    job: str | None = None
    given_up: bool = False  # the job is dead: a person must act
    reason: str | None = None
    error: str | None = None
    next_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    phase: Phase
    since: datetime | None  # it is in this phase; None: that is not recorded
    reason_code: Reason
    reason: str
    acts_next: str
    attempt: int  # failures in a row, so far
    max_attempts: int | None  # None: as long as it takes
    last_error: str | None
    last_attempt_at: datetime | None
    next_attempt_at: datetime | None
    next_attempt_cause: str | None
    approval_ends_at: datetime | None  # an approval that is undecided by then is rejected; None: no approval is pending
    attempts_that_fit: int | None  # before it is too late; None while it is not failing
    safe_until: datetime | None
    expires_at: datetime | None
    blocked_by: tuple[str, ...]
    owed: tuple[OwedToCa, ...] = ()

    def to_json(self) -> dict[str, object]:
        plain = {name: getattr(self, name) for name in self.__slots__}
        return {name: each.isoformat() if isinstance(each, datetime) else each for name, each in plain.items()}


_NO_TURN: Final = frozenset({Reason.BUDGET, Reason.CA_RATE_LIMITED})  # the CA was not asked yet


def standing(found: Status, now: datetime) -> str:
    """The phase, with what differs for a person apart: store.standings says the same in SQL, for all at once."""
    phase = found.phase
    if phase is Phase.FAILING and found.next_attempt_cause == Reason.DEPLOYING:
        return "not-served"
    if phase is Phase.FAILING:
        return "retrying" if _retries_in_time(found) else "failing"
    if phase is Phase.RENEWING and found.reason_code in _NO_TURN:
        return "waiting"
    if phase is Phase.OK and found.next_attempt_at is not None and found.next_attempt_at <= now:
        return "due"
    return phase.value


def _retries_in_time(found: Status) -> bool:
    """Whether the next attempt is made before it is too late; before the first version nothing is lost yet."""
    again, safe = found.next_attempt_at, found.safe_until
    return again is not None and (safe is None or again < safe)


def status(
    certificate: Certificate,
    current: Version | None,
    issuance: Issuance | None,
    job: IssuanceJob | None,
    now: datetime,
) -> Status:
    """`issuance` is the one under way, if there is one, and `job` its job."""
    decision = renewal.decide(certificate, current, now)
    failing = certificate.failing
    reason, words = _reason(certificate, current, issuance, job, decision, now)
    error = _error(certificate, issuance, job)
    next_at = _next_at(certificate, current, issuance, job, decision, now)
    phase = _phase(certificate, current, issuance, decision, now)
    return Status(
        phase=phase,
        since=_since(certificate, current, issuance, phase),
        reason_code=reason,
        reason=_also_revoked(certificate, current, reason) + (words or reasons.MEANINGS[reason].sentence),
        acts_next=reasons.MEANINGS[reason].acts_next,
        attempt=0 if failing is None else failing.attempts or 1,
        max_attempts=None,
        last_error=error or None,
        last_attempt_at=_last_at(certificate, current, issuance, now),
        next_attempt_at=next_at,
        next_attempt_cause=_next_cause(issuance, job, decision),
        approval_ends_at=job.due_at if job is not None and _undecided(issuance) else None,
        attempts_that_fit=_fit(certificate, current, next_at, now),
        safe_until=None if current is None else renewal.good_until(current),
        expires_at=None if current is None else current.not_after,
        blocked_by=_blocked(certificate, issuance, job, decision, now),
    )


def _error(certificate: Certificate, issuance: Issuance | None, job: IssuanceJob | None) -> str | None:
    """What was said last: by the job, by the attempt, by the one before it."""
    said = None if job is None or not job.trouble else job.last_error
    failing = certificate.failing
    return said or (issuance.error if issuance else None) or (failing.error if failing else None)


def _last_at(
    certificate: Certificate, current: Version | None, issuance: Issuance | None, now: datetime
) -> datetime | None:
    if issuance is not None and not _to_begin(issuance, now):
        return issuance.started_at
    if certificate.failing is not None:
        return certificate.failing.last_at
    return None if current is None else current.issued_at


def _since(
    certificate: Certificate, current: Version | None, issuance: Issuance | None, phase: Phase
) -> datetime | None:
    """Since when the certificate is in this phase; None where that is not recorded."""
    failing = certificate.failing
    match phase:
        case Phase.FAILING:
            return None if failing is None else failing.first_at or failing.last_at
        case Phase.EXPIRED:
            return None if current is None else current.not_after
        case Phase.REVOKED:
            return None if current is None else current.revoked_at or current.revoke_asked_at
        case Phase.OK:
            return None if current is None else current.issued_at
        case Phase.PENDING if issuance is None:
            return certificate.created_at
        case Phase.PENDING | Phase.RENEWING | Phase.AWAITING_APPROVAL:
            return None if issuance is None else issuance.started_at
        case _:
            return None


def _fit(certificate: Certificate, current: Version | None, next_at: datetime | None, now: datetime) -> int | None:
    if certificate.failing is None or current is None or next_at is None:
        return None
    if current.revoked:
        return 0  # it is too late already
    return renewal.attempts_that_fit(certificate.failing, current, max(next_at, now))


def _phase(
    certificate: Certificate,
    current: Version | None,
    issuance: Issuance | None,
    decision: RenewalDecision,
    now: datetime,
) -> Phase:
    if certificate.state is CertificateState.ARCHIVED:
        return Phase.ARCHIVED
    if current is not None and now >= current.not_after:
        return Phase.EXPIRED
    if issuance is not None and issuance.state is IssuanceState.AWAITING_APPROVAL:
        return Phase.AWAITING_APPROVAL
    if certificate.failing is not None:
        return Phase.FAILING
    if certificate.state is CertificateState.PAUSED:
        return Phase.PAUSED
    if current is not None and current.revoked:
        return Phase.REVOKED
    if issuance is not None and current is not None:
        return Phase.WAITING if _to_begin(issuance, now) else Phase.RENEWING
    if current is None:
        return Phase.PENDING
    return Phase.WAITING if decision.waits_for is not None or _held(certificate, now) else Phase.OK


def _reason(
    certificate: Certificate,
    current: Version | None,
    issuance: Issuance | None,
    job: IssuanceJob | None,
    decision: RenewalDecision,
    now: datetime,
) -> tuple[Reason, str]:
    """The one reason to show: a failure before a wait, and a wait before a plan."""
    if issuance is not None:
        return _of_issuance(issuance, job, now)
    if certificate.state is not CertificateState.ACTIVE:
        return decision.cause, ""
    if certificate.failing is not None and certificate.failing.reason:
        code = reasons.of(certificate.failing.reason)
        return code, certificate.failing.error if code is Reason.INTERNAL else ""
    if current is not None and now >= current.not_after:
        return Reason.EXPIRED, ""
    if decision.due(now):
        cause = _revocation(current) if decision.cause is Reason.REVOKED and current is not None else decision.cause
        return _held(certificate, now) or cause, ""
    return decision.waits_for or Reason.NOT_DUE, ""


def _revocation(current: Version) -> Reason:
    """What the CA has done, apart from what it was only asked to do."""
    return Reason.REVOKED if current.revocation_done else Reason.REVOCATION_ASKED


def _also_revoked(certificate: Certificate, current: Version | None, reason: Reason) -> str:
    """That the one in use is revoked is said whatever else there is to say: it is what people must know first."""
    if current is None or not current.revoked or certificate.state is CertificateState.ARCHIVED:
        return ""
    code = _revocation(current)
    return "" if reason is code else f"{code.value}: {reasons.MEANINGS[code].sentence} "


HELD: Final = frozenset({Reason.ISSUER_PAUSED, Reason.UNKNOWN_ISSUER, Reason.CANCELLED, Reason.STAGGERED})


def _held(certificate: Certificate, now: datetime) -> Reason | None:
    """What keeps one that is due from being begun, and is not for the rules of renewal to know."""
    reason = reasons.of(certificate.next_cause)
    later = certificate.next_action_at is not None and certificate.next_action_at > now
    return reason if later and reason in HELD else None


def _to_begin(issuance: Issuance, now: datetime) -> bool:
    """Whether it was asked for with a time to begin that has not come."""
    return issuance.state is IssuanceState.REQUESTED and issuance.started_at > now


def _of_issuance(issuance: Issuance, job: IssuanceJob | None, now: datetime) -> tuple[Reason, str]:
    if issuance.state is IssuanceState.AWAITING_APPROVAL:
        return Reason.AWAITING_APPROVAL, ""
    if job is not None and job.trouble:
        return Reason(job.reason) if job.reason in set(Reason) else Reason.INTERNAL, job.last_error or ""
    if job is not None and job.reason in ("BUDGET", "NOT_BEFORE"):
        return Reason.BUDGET if job.reason == "BUDGET" else Reason.CA_RATE_LIMITED, ""
    if _to_begin(issuance, now) and (job is None or job.due_at > now):
        return Reason.STAGGERED, ""
    return (reasons.of(issuance.reason), "") if issuance.reason else (Reason.UNDER_WAY, "")


def _next_at(
    certificate: Certificate,
    current: Version | None,
    issuance: Issuance | None,
    job: IssuanceJob | None,
    decision: RenewalDecision,
    now: datetime,
) -> datetime | None:
    if issuance is not None and job is None:  # as long as the transaction that asked for it has not ended
        return issuance.started_at if _to_begin(issuance, now) else None
    if issuance is not None and job is not None:
        if _undecided(issuance):
            return _unless_approved(certificate, current, job.due_at)
        return None if job.dead else job.due_at
    return certificate.next_action_at if _held(certificate, now) else decision.at


def _undecided(issuance: Issuance | None) -> bool:
    return issuance is not None and issuance.state is IssuanceState.AWAITING_APPROVAL


def _unless_approved(certificate: Certificate, current: Version | None, ends_at: datetime) -> datetime | None:
    """When the issuance is retried if no approver decides: a timed-out approval counts as a failure."""
    after = failed(certificate.failing, ends_at, error="", reason=Reason.APPROVAL_TIMED_OUT.value)
    return renewal.decide(replace(certificate, failing=after), current, ends_at).at


def _next_cause(issuance: Issuance | None, job: IssuanceJob | None, decision: RenewalDecision) -> str | None:
    if issuance is not None:
        return issuance.cause
    return None if decision.at is None else decision.cause.value


def _blocked(
    certificate: Certificate,
    issuance: Issuance | None,
    job: IssuanceJob | None,
    decision: RenewalDecision,
    now: datetime,
) -> tuple[str, ...]:
    if issuance is not None:
        code, _ = _of_issuance(issuance, job, now)
        return () if code is Reason.UNDER_WAY else (code.value,)
    blocker = _held(certificate, now) if decision.due(now) else decision.waits_for
    return () if blocker is None else (blocker.value,)


# ── explain ──


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusExplanation:
    """Each check in order, the check that decides, and what a person can do."""

    at: datetime
    verdict: str
    checks: tuple[RenewalCheck, ...]
    blocking: str | None
    would_change_it: str
    of_today: tuple[str, ...] = ()  # about another time: what is taken from today all the same


_CHANGES = {
    Reason.NOT_DUE: "Nothing: it is renewed then. To renew now: holdfast renew {name}",
    Reason.BACKOFF: "Nothing: it is retried then. To retry now: holdfast renew {name}",
    Reason.WINDOW: "Nothing, or change the maintenance windows. To renew now: holdfast renew {name}",
    Reason.STAGGERED: "Nothing: it is renewed then. To renew now: holdfast renew {name}",
    Reason.PAUSED: "Resume the certificate: holdfast resume {name}",
    Reason.ARCHIVED: "Nothing: request a new certificate, under this or another name.",
    Reason.AWAITING_APPROVAL: "An approval by a second person: holdfast approvals ls",
    Reason.ISSUER_PAUSED: "Resume it: holdfast issuer resume {ca}. Or another: holdfast change {name} --issuer ISSUER",
    Reason.UNKNOWN_ISSUER: "Add it: holdfast issuer add KIND {ca}. Or another: holdfast change {name} --issuer ISSUER",
    Reason.CSR_NEEDED: "Give a CSR with a new key: holdfast change {name} --csr FILE",
    Reason.CANCELLED: "Nothing: it is retried then. To retry now: holdfast renew {name}",
    Reason.WRONG_CERTIFICATE: "The CA must correct the order. To order again, which may cost: holdfast renew {name}",
    Reason.ORDER_UNCERTAIN: "Look for the order at the CA. To order again, which may cost: holdfast renew {name}",
}


_UNPAUSE: Final = "Remove the cause of the failures, then unpause the name at the CA by the link that the CA gave."

_WHO = {  # whose turn it is
    "ca": "The CA acts next; Holdfast polls it.",
    "approver": "A person approves it in the CA's portal; Holdfast polls it.",
    "you": "You correct the cause above; Holdfast retries by itself.",
    "operator": "An operator of Holdfast corrects the cause above; Holdfast retries by itself.",
}


def explain(
    certificate: Certificate, current: Version | None, issuance: Issuance | None, job: IssuanceJob | None, now: datetime
) -> StatusExplanation:
    """Why what happens happens, and why nothing else does. `now` may be any time: the rules do not care."""
    found = _explanation(certificate, current, issuance, job, now)
    if current is None or now < current.not_after:
        return found
    check = RenewalCheck(
        rule="expired", saw=f"expired at {current.not_after:%Y-%m-%dT%H:%M:%SZ}", verdict="no longer valid"
    )
    return replace(
        found, verdict=f"{reasons.MEANINGS[Reason.EXPIRED].sentence} {found.verdict}", checks=(*found.checks, check)
    )


def _explanation(
    certificate: Certificate, current: Version | None, issuance: Issuance | None, job: IssuanceJob | None, now: datetime
) -> StatusExplanation:
    decision = renewal.decide(certificate, current, now)
    held = _held(certificate, now) if decision.due(now) else None
    if issuance is not None:
        code, words = _of_issuance(issuance, job, now)
        saw = f"{issuance.id}, {issuance.state.value}, at {issuance.issuer}, because of {issuance.cause}"
        saw += "" if issuance.order_number is None else f", order {issuance.order_number}"
        saw += f"; last error: {issuance.error}" if issuance.error and not words else ""
        blocking = None if code is Reason.UNDER_WAY else code
        verdict = words or reasons.MEANINGS[code].sentence
        check = RenewalCheck(rule="issuance", saw=saw, verdict=verdict, blocks=blocking is not None)
        who = _WHO.get(reasons.MEANINGS[code].acts_next, "Nothing: Holdfast continues.")
        others = tuple(replace(each, blocks=False) for each in decision.checks)  # those ask about the next one
        return _explained(certificate, now, verdict, (*others, check), blocking, who)
    if held is not None:
        rule, saw = (
            ("cancelled", "by hand") if held is Reason.CANCELLED else ("ca", ", ".join(certificate.wanted.issuers))
        )
        verdict = f"Due, but held: {reasons.MEANINGS[held].sentence}{_next_words(certificate.next_action_at)}"
        check = RenewalCheck(rule=rule, saw=saw, verdict=reasons.MEANINGS[held].sentence, blocks=True)
        return _explained(certificate, now, verdict, (*decision.checks, check), held, "Nothing.")
    if decision.due(now):
        late = decision.cause is Reason.EMERGENCY and current is not None and now >= current.not_after
        verdict = "Due at once." if late else f"Due: {reasons.MEANINGS[decision.cause].sentence}"
        return _explained(certificate, now, verdict, decision.checks, None, "Nothing: the next sweep begins it.")
    waits = decision.waits_for or Reason.NOT_DUE
    verdict = f"{reasons.MEANINGS[waits].sentence}{_next_words(decision.at)}"
    failing = certificate.failing
    if waits is Reason.BACKOFF and failing is not None and failing.reason == Reason.NAME_PAUSED_AT_CA:
        verdict = f"{reasons.MEANINGS[Reason.NAME_PAUSED_AT_CA].sentence} {failing.error}{_next_words(decision.at)}"
        found = _explained(certificate, now, verdict, decision.checks, waits, "")
        return replace(found, would_change_it=f"{_UNPAUSE} Then: holdfast renew {quote(certificate.name)}")
    if waits is Reason.BACKOFF and failing is not None and failing.reason:
        return _after_failure(certificate, failing, decision, now)
    return _explained(certificate, now, verdict, decision.checks, waits, "Nothing.")


def _after_failure(
    certificate: Certificate, failing: Failing, decision: RenewalDecision, now: datetime
) -> StatusExplanation:
    """What went wrong, in the CA's words, and who must act before the next attempt."""
    meaning = reasons.MEANINGS[reasons.of(failing.reason)]
    verdict = " ".join(each for each in (meaning.sentence, failing.error) if each) + _next_words(decision.at)
    found = _explained(certificate, now, verdict, decision.checks, Reason.BACKOFF, "")
    who = _WHO.get(meaning.acts_next) if meaning.acts_next in ("you", "operator") else None
    if who is None:
        return found
    if failing.reason == Reason.CSR_NEEDED:
        return replace(found, would_change_it=_CHANGES[Reason.CSR_NEEDED].format(name=quote(certificate.name)))
    return replace(found, would_change_it=f"{who} To retry now: holdfast renew {quote(certificate.name)}")


def _next_words(at: datetime | None) -> str:
    return "" if at is None else f" Next at {at:%Y-%m-%dT%H:%M:%SZ}."


def _explained(
    certificate: Certificate,
    at: datetime,
    verdict: str,
    checks: tuple[RenewalCheck, ...],
    blocking: Reason | None,
    otherwise: str,
) -> StatusExplanation:
    change = otherwise if blocking is None else _CHANGES.get(blocking, otherwise)
    return StatusExplanation(
        at=at,
        verdict=verdict,
        checks=checks,
        blocking=None if blocking is None else blocking.value,
        would_change_it=change.format(name=quote(certificate.name), ca=certificate.wanted.issuers[0]),
    )


def as_it_was(certificate: Certificate, then: Version | None, at: datetime) -> tuple[Certificate, Version | None]:
    """`then` is the version in use at that time. Plans and holds are of now, and were not made yet."""
    same = then is not None and then.id == certificate.current_version
    was = replace(
        certificate,
        current_version=None if then is None else then.id,
        generation=certificate.generation if then is None else then.generation,
        failing=_failing(certificate.failing, at),
        ari=certificate.ari if same else None,
        next_action_at=None,
        next_cause=None,
    )
    return was, None if then is None else _version(then, at)


def _version(found: Version, at: datetime) -> Version:
    """One that was revoked later was not yet."""
    asked = found.revoke_asked_at if found.revoke_asked_at and found.revoke_asked_at <= at else None
    revoked = found.revoked_at if found.revoked_at and found.revoked_at <= at else None
    state = found.state if revoked or found.state is not VersionState.REVOKED else VersionState.ACTIVE
    return replace(found, revoke_asked_at=asked, revoked_at=revoked, state=state)


def _failing(failing: Failing | None, at: datetime) -> Failing | None:
    """Only the failures in a row up to now are stored: how many there were at an earlier time is not known."""
    return failing if failing is not None and failing.last_at <= at else None


def taken_from_today(certificate: Certificate, then: Version | None) -> tuple[str, ...]:
    """What the answer about an earlier time takes from today, as what it was then is not kept."""
    told = [
        "Names, issuers, renewal policy, maintenance windows and state (active, paused) are those of today.",
        f"Failures before the last one are not counted: holdfast events {quote(certificate.name)}",
    ]
    if then is not None and then.id != certificate.current_version:
        told.append("The renewal window (ARI) of that version is not stored any more.")
    return tuple(told)


UNTIL_THEN = ("This assumes that nothing happens and nothing is changed until then.",)
