"""Decides what follows in one deployment: facts and an answer come in, a step with its reason comes out.

The engine makes the calls (`engine/deployment/`) and writes the steps; every rule about holding, verifying, trying
again and rolling back is here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Literal

from holdfast.core.backoff import PASSING, VERIFYING, deployment_wait
from holdfast.core.certificate import Version
from holdfast.core.deployment import UNDER_WAY, Deployment, DeploymentEvent, DeploymentState
from holdfast.core.reasons import Reason
from holdfast.core.target import TargetRow, TargetState
from holdfast.core.windows import first_opening

OVERRIDE_BEFORE: Final = timedelta(hours=24)  # before what is served expires: windows do not hold any more
OVERRIDE_SHARE: Final = 0.1  # or this share of its life, if that is longer
TRIES: Final = 3  # of a test, a reload or a restore that cannot be done now
MOMENT: Final = timedelta(seconds=1)
CONFIRMED_AFTER: Final = timedelta(seconds=1)  # old workers of a daemon may answer for a moment after a new one has
REFUSALS: Final = frozenset(
    {
        Reason.BUNDLE_UNFIT, Reason.CONFIG_TEST_FAILED, Reason.DRAIN_FAILED, Reason.RELOAD_FAILED,
        Reason.TARGET_REFUSED, Reason.TARGET_UNKNOWN, Reason.TARGET_TAKEN, Reason.HOST_KEY_CHANGED,
        Reason.PROGRAM_UNKNOWN, Reason.KEY_MISSING,
    }
)  # fmt: skip

DeployCall = Literal["write", "test", "drain", "reload", "look", "restore"]
_RESUMED: Final[Mapping[DeploymentState, DeployCall]] = {
    DeploymentState.WRITING: "write",
    DeploymentState.TESTING: "test",
    DeploymentState.RELOADING: "reload",
    DeploymentState.VERIFYING: "look",
    DeploymentState.ROLLING_BACK: "restore",
}


# ── What the store says ──


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What holds a deployment before it begins; or what would hold it, if there were time."""

    reason: Reason | None = None
    until: datetime | None = None  # None: until a person, or another deployment, changes it
    overridden: Reason | None = None


OPEN: Final = Gate()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentFacts:
    """One deployment in one claim. The engine replaces this value as the claim goes on."""

    deployment: Deployment
    version: Version  # what the target is to serve
    previous: Version | None  # what it served before, as far as we know
    now: datetime
    wanted: bool = True  # its certificate still names the target, and there is no newer deployment
    gate: Gate = OPEN
    has_endpoints: bool = True
    can_restore: bool = True  # the target keeps the bundle before, or we do
    drains: bool = False  # the target is taken out of its balancer while its daemon is reloaded
    alone: bool = True  # no other deployment shares its test and its reload
    verify_for: timedelta = timedelta(minutes=1)

    @property
    def left(self) -> timedelta | None:
        """Until what the target served before expires."""
        return None if self.previous is None else self.previous.not_after - self.now


# ── What a target, or a look at its endpoints, answers ──


class Sight(StrEnum):
    """What all endpoints of a target show, judged together."""

    NEW = "new"  # every sample of every address
    OLD = "old"  # only the certificate before
    SOME = "some"  # some new, and the others lag or cannot be reached
    OTHER = "other"  # at least one neither new nor old
    UNREACHABLE = "unreachable"  # nothing could be seen, which is no proof of anything
    GONE = "gone"  # every address refuses connections: the daemon does not run
    NOTHING = "nothing"  # there is no endpoint to look at


@dataclass(frozen=True, slots=True)
class CallDone:
    at: Literal["begin"] | DeployCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The bundle is in place."""

    changed: bool = True  # False: the same bytes were there before
    atomic: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    sight: Sight
    words: str = ""  # such as "10 of 10 samples at 2 addresses"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFailed:
    """`refused`: it will be refused until a person changes something; else it may work later."""

    at: DeployCall
    reason: Reason
    why: str
    after: timedelta | None = None
    refused: bool = False


DeployAnswer = CallDone | Written | Seen | CallFailed


# ── Steps ──


@dataclass(frozen=True, slots=True)
class MakeCall:
    call: DeployCall


@dataclass(frozen=True, slots=True)
class MoveOn:
    """Commit an event, or changes only, before the next call."""

    event: DeploymentEvent | None
    then: DeployCall
    changes: Mapping[str, Any] = field(default_factory=dict)
    overridden: Reason | None = None  # what would have held it, if there were time


@dataclass(frozen=True, slots=True)
class WaitFor:
    """Come back later, in the same state."""

    after: timedelta
    reason: Reason
    why: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Hold:
    reason: Reason
    until: datetime | None


@dataclass(frozen=True, slots=True)
class Finish:
    """It is in place: seen, or there is nothing to see."""

    event: Literal["seen", "nothing to see"]
    words: str


@dataclass(frozen=True, slots=True)
class TryAgain:
    """This attempt is over; the deployment is tried again after a while, as long as it is wanted."""

    event: Literal["gave up", "rolled back", "rollback failed"]
    reason: Reason
    why: str
    after: timedelta


@dataclass(frozen=True, slots=True)
class Supersede:
    why: str


LastStep = WaitFor | Hold | Finish | TryAgain | Supersede
DeployStep = MakeCall | MoveOn | LastStep


# ── The decision ──


def decide(facts: DeploymentFacts, answer: DeployAnswer) -> DeployStep:
    """What follows from an answer."""
    match answer:
        case CallDone("begin"):
            return _begin(facts)
        case CallDone("test"):
            return _tested(facts)
        case CallDone("drain"):
            return MakeCall("reload")
        case CallDone("restore"):
            return _restored(facts)
        case CallDone():
            event: DeploymentEvent | None = None if _rolling_back(facts) else "reloaded"
            return MoveOn(event, "look", _looked_anew(facts))
        case Written():
            return _written(facts, answer)
        case Seen():
            return _seen(facts, answer)
        case CallFailed():
            return _failed(facts, answer)


def _tested(facts: DeploymentFacts) -> DeployStep:
    """That it is taken out is committed before it is: whoever goes on after a crash puts it back."""
    if not facts.drains:
        return MoveOn("tested", "reload", {"tries": 0})
    return MoveOn("tested", "drain", {"tries": 0, "drained": True})


def puts_back(facts: DeploymentFacts, step: DeployStep) -> bool:
    """Whether the target must be put back into its balancer before this step is committed: seen well, or given up."""
    return facts.deployment.drained and isinstance(step, Finish | TryAgain | Supersede)


def still_out(facts: DeploymentFacts, failed: CallFailed) -> WaitFor:
    """The target could not be put back. The deployment is not over before it is."""
    wait = PASSING.wait(facts.deployment.tries + 1, facts.deployment.id)
    why = f"The target is still out of its balancer: {failed.why}"
    return WaitFor(wait, failed.reason, why, {"tries": facts.deployment.tries + 1})


def _restored(facts: DeploymentFacts) -> DeployStep:
    """After a failed test, or drain, there is nothing to reload: the daemon never read the new bundle."""
    if _stored(facts) in (Reason.CONFIG_TEST_FAILED, Reason.DRAIN_FAILED):
        return MoveOn(None, "look", _looked_anew(facts))
    return MakeCall("reload")


def _looked_anew(facts: DeploymentFacts) -> dict[str, Any]:
    return {"tries": 0, "looked_since": facts.now, "served_at": None}


def _begin(facts: DeploymentFacts) -> DeployStep:
    deployment = facts.deployment
    if deployment.state is DeploymentState.ROLLING_BACK:
        back = deployment.looked_since is not None  # and reloaded: it is looked for
        return MakeCall("look" if back else "restore")  # whatever else is wanted by now: a target is not left half way
    if not facts.wanted:
        return Supersede("A newer deployment takes its place, or its certificate does not name the target any more.")
    if deployment.state is DeploymentState.RELOADING and deployment.drained:
        return MakeCall("drain")
    if deployment.state in UNDER_WAY:
        return MakeCall(_RESUMED[deployment.state])
    if facts.gate.reason is not None:
        return Hold(facts.gate.reason, facts.gate.until)
    before = None if facts.previous is None else facts.previous.id
    changes = {"tries": 0, "looked_since": None, "previous": before}
    return MoveOn("begun", "write", changes, overridden=facts.gate.overridden)


def _written(facts: DeploymentFacts, answer: Written) -> DeployStep:
    """Equal bytes prove nothing: a crash may have come between the swap and the reload."""
    if not answer.changed and facts.has_endpoints:
        return MoveOn(None, "look", {"atomic": answer.atomic})
    return MoveOn("written", "test", {"atomic": answer.atomic, "tries": 0})


def _seen(facts: DeploymentFacts, seen: Seen) -> DeployStep:
    state = facts.deployment.state
    if state is DeploymentState.WRITING:
        return Finish("seen", seen.words) if seen.sight is Sight.NEW else MoveOn("written", "test", {"tries": 0})
    if seen.sight is Sight.NEW and facts.deployment.served_at is None:
        return WaitFor(CONFIRMED_AFTER, Reason.DEPLOYING, changes={"served_at": facts.now, "seen": seen.words})
    if seen.sight in (Sight.NEW, Sight.NOTHING):
        if _rolling_back(facts):
            return _again(facts, "rolled back", _stored(facts), facts.deployment.error or "")
        return Finish("seen" if seen.sight is Sight.NEW else "nothing to see", seen.words)
    if facts.now - (facts.deployment.looked_since or facts.now) < facts.verify_for:
        tries = facts.deployment.tries + 1
        changes = {"tries": tries, "seen": seen.words, "served_at": None}
        return WaitFor(VERIFYING.rung(tries), Reason.DEPLOYING, seen.words, changes)
    return _not_served(facts, seen)


def _not_served(facts: DeploymentFacts, seen: Seen) -> DeployStep:
    """Neither a lagging endpoint nor one that cannot be reached is worse off with the new certificate in place."""
    if _rolling_back(facts):
        return _again(facts, "rollback failed", Reason.ROLLBACK_FAILED, f"After the rollback: {seen.words}")
    if seen.sight is Sight.GONE:
        return _roll_back(facts, Reason.RELOAD_FAILED, f"Nothing listens any more: {seen.words}")
    if seen.sight is Sight.OTHER:
        return _roll_back(facts, Reason.DEPLOY_NOT_SERVED, seen.words)
    return _again(facts, "gave up", Reason.DEPLOY_NOT_SERVED, seen.words)


def _failed(facts: DeploymentFacts, failed: CallFailed) -> DeployStep:
    if failed.reason is Reason.TARGET_HAS_NEWER:
        return Supersede(failed.why)
    if failed.at == "write":
        return _again(facts, "gave up", failed.reason, failed.why, asked=failed.after)
    tries = facts.deployment.tries + 1
    if not failed.refused and tries < TRIES:
        wait = max(PASSING.wait(tries, facts.deployment.id), failed.after or timedelta(0))
        return WaitFor(wait, failed.reason, failed.why, {"tries": tries})
    if not _rolling_back(facts):
        return _roll_back(facts, failed.reason, failed.why)
    if failed.at == "reload" and facts.has_endpoints:  # it may serve the certificate before all the same: that is proof
        return MoveOn(None, "look", _looked_anew(facts))
    if failed.at == "restore" and failed.refused and facts.previous is None:  # it was the first on this target
        return _again(
            facts, "gave up", _stored(facts), f"{facts.deployment.error} It was not rolled back: {failed.why}"
        )
    return _again(facts, "rollback failed", Reason.ROLLBACK_FAILED, failed.why)


def _roll_back(facts: DeploymentFacts, reason: Reason, why: str) -> DeployStep:
    if (problem := no_way_back(facts)) is not None:
        return _again(facts, "gave up", reason, f"{why} It was not rolled back: {problem}.")
    return MoveOn("rolling back", "restore", {"tries": 0, "looked_since": None, "reason": reason.value, "error": why})


def no_way_back(facts: DeploymentFacts) -> str | None:
    """Why the target is better off with what it has now; None: it may be rolled back."""
    previous = facts.previous
    if not facts.can_restore:
        return "nothing is known of what was there before"
    if previous is None:
        return None  # the target keeps it, and only the target knows what it is
    if previous.not_after <= facts.now + facts.verify_for:
        return "the certificate before has expired, or is about to"
    return "the certificate before is revoked" if previous.revoked else None


def _again(
    facts: DeploymentFacts,
    event: Literal["gave up", "rolled back", "rollback failed"],
    reason: Reason,
    why: str,
    *,
    asked: timedelta | None = None,
) -> TryAgain:
    """One that failed beside others is tried alone at once, so that it holds up no other."""
    refused = reason in REFUSALS or event == "rolled back"
    wait = deployment_wait(facts.deployment.failures + 1, refused=refused, left=facts.left)
    if not facts.alone and facts.deployment.failures == 0:
        wait = MOMENT
    return TryAgain(event, reason, why, max(wait, asked or timedelta(0)))


def _rolling_back(facts: DeploymentFacts) -> bool:
    return facts.deployment.state is DeploymentState.ROLLING_BACK


def _stored(facts: DeploymentFacts) -> Reason:
    code = facts.deployment.reason
    return Reason(code) if code in set(Reason) else Reason.DEPLOY_FAILED


# ── What holds it before it begins ──


def gate(
    target: TargetRow,
    previous: Version | None,
    now: datetime,
    *,
    frozen_until: datetime | None = None,
    wave: Gate = OPEN,
) -> Gate:
    """A person's pause always holds. Windows, freezes and waves never let what is served expire."""
    if target.state is TargetState.PAUSED:
        return Gate(reason=Reason.DEPLOY_HELD)
    held = wave
    if target.windows and (opens := first_opening(target.windows, now)) > now:
        held = Gate(reason=Reason.DEPLOY_WINDOW, until=opens)
    if frozen_until is not None and now < frozen_until:
        held = Gate(reason=Reason.DEPLOY_FROZEN, until=frozen_until)
    if held.reason is None or previous is None:
        return held
    last = previous.not_after - max(OVERRIDE_BEFORE, previous.life * OVERRIDE_SHARE)
    if previous.revoked or now >= last:
        return Gate(overridden=held.reason)
    return Gate(reason=held.reason, until=last if held.until is None else min(held.until, last))
