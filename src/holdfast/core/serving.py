"""What the targets of a certificate serve, and how far its newest version has come: it is well once it is served."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from holdfast.core import reasons, renewal
from holdfast.core.certificate import Version
from holdfast.core.deployment import Deployment, DeploymentState
from holdfast.core.reasons import Reason
from holdfast.core.renewal import RenewalCheck
from holdfast.core.status import Phase, Status, StatusExplanation


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """The deployments of one certificate: all but those that are superseded."""

    standing: tuple[Deployment, ...] = ()
    older: tuple[Version, ...] = ()  # what targets serve, where that is not the version in use

    @property
    def wanted(self) -> list[Deployment]:
        """Those that are not in place yet."""
        return [each for each in self.standing if not each.state.over]

    @property
    def phase(self) -> Phase:
        if any(each.failures for each in self.wanted):
            return Phase.FAILING
        held = all(each.state is DeploymentState.HELD for each in self.wanted)
        return Phase.WAITING if held else Phase.RENEWING

    @property
    def worst(self) -> Deployment:
        """The one to show: one that fails before one that waits; the SQL of counts chooses in the same way."""
        return max(self.wanted, key=lambda each: (each.failures > 0, each.reason or "", each.target))

    @property
    def reason(self) -> Reason:
        return reasons.of(self.worst.reason) if self.worst.reason else Reason.DEPLOYING


NOT_DEPLOYED: Final = Serving()


def counted(found: Status, serving: Serving, now: datetime, *, under_way: bool) -> Status:
    """The status block with what is served. `under_way`: an issuance is, and there is more to say of that."""
    told = _told(found, serving, under_way=under_way)
    if told.phase is Phase.ARCHIVED or told.expires_at is None or told.expires_at > now:
        return told
    ended = replace(told, phase=Phase.EXPIRED, since=told.expires_at)  # though a newer version is held
    if under_way or found.phase in (Phase.PAUSED, Phase.FAILING) or told.reason_code is not found.reason_code:
        return ended  # there is more to say than that
    return replace(ended, reason_code=Reason.EXPIRED, reason=reasons.MEANINGS[Reason.EXPIRED].sentence)


def _told(found: Status, serving: Serving, *, under_way: bool) -> Status:
    ends = [each.not_after for each in serving.older]
    safe = [renewal.good_until(each) for each in serving.older]
    found = replace(
        found,
        expires_at=_first(found.expires_at, ends),
        safe_until=_first(found.safe_until, safe),
    )
    if under_way or found.phase not in (Phase.OK, Phase.WAITING) or not serving.wanted:
        return found
    worst, reason = serving.worst, serving.reason
    return replace(
        found,
        phase=serving.phase,
        since=worst.changed_at,
        reason_code=reason,
        reason=f"{worst.target}: {reasons.MEANINGS[reason].sentence}",
        acts_next=reasons.MEANINGS[reason].acts_next,
        attempt=worst.failures,
        last_error=worst.error,
        last_attempt_at=worst.changed_at,
        next_attempt_at=worst.next_at,
        next_attempt_cause=Reason.DEPLOYING.value,
        blocked_by=() if reason is Reason.DEPLOYING else (reason.value,),
    )


def _first(known: datetime | None, others: list[datetime]) -> datetime | None:
    return known if known is None or not others else min(known, *others)


def explained(found: StatusExplanation, serving: Serving) -> StatusExplanation:
    """The same, with a line for each target."""
    checks = tuple(_check(each) for each in serving.standing)
    if not serving.wanted:
        return replace(found, checks=(*found.checks, *checks))
    verdict = f"{serving.worst.target}: {reasons.MEANINGS[serving.reason].sentence} {found.verdict}"
    return replace(found, verdict=verdict, checks=(*found.checks, *checks))


def _check(each: Deployment) -> RenewalCheck:
    if each.state.over:
        saw = f"{each.target}: {each.seen or each.state.value}"
        return RenewalCheck(rule="deployment", saw=saw, verdict="in place")
    said = f": {each.error}" if each.error else ""
    next_at = "" if each.next_at is None else f", next at {each.next_at:%Y-%m-%dT%H:%M:%SZ}"
    code = Reason.DEPLOYING if each.reason is None else reasons.of(each.reason)
    verdict = f"{reasons.MEANINGS[code].sentence.rstrip('.')}{next_at}"
    return RenewalCheck(rule="deployment", saw=f"{each.target}: {each.state.value}{said}", verdict=verdict)
