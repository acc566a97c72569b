"""The states that pages show: a word, a family of colours and an icon for each, from the status block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from holdfast.core.endpoint_watch import TROUBLES
from holdfast.core.reasons import Reason


class State(NamedTuple):
    key: str  # as the filter writes it: state:retrying
    word: str
    family: str  # ok active planned retry approval fail revoked still
    icon: str
    solid: bool = False


STATES: Final[Mapping[str, State]] = {
    each.key: each
    for each in (
        State("expired", "Expired", "fail", "expired", solid=True),
        State("failing", "Failing", "fail", "failing"),
        State("revoked", "Revoked", "revoked", "revoked"),
        State("not-served", "Not served", "fail", "unlinked"),
        State("retrying", "Retrying", "retry", "retrying"),
        State("to-approve", "To approve", "approval", "people"),
        State("waiting", "Waiting", "planned", "waiting"),
        State("paused", "Paused", "still", "paused"),
        State("due", "Due", "planned", "clock"),
        State("issuing", "Issuing", "active", "renewing"),
        State("renewing", "Renewing", "active", "renewing"),
        State("ok", "OK", "ok", "ok"),
        State("archived", "Archived", "still", "archived"),
    )
}
_SHORT: Final = {"awaiting_approval": "to-approve", "pending": "issuing"}  # as the pages call them


def state_of(status: Mapping[str, Any]) -> State:
    """The state of a certificate, by the standing in its status block."""
    standing = status["standing"]
    return STATES[_SHORT.get(standing, standing)]


_PLACED: Final = frozenset({"served", "installed"})
_AMISS: Final = frozenset({"failed", "rolled_back", "rollback_failed"})  # deployments that did not come to their end


def served(found: Mapping[str, Any]) -> State | None:
    """Where a certificate is served, of the places that are looked at or deployed to; None: there are none."""
    looks = [each["reason_code"] == Reason.OK for each in found["endpoints"] if each["reason_code"]]
    placed = [each["state"] in _PLACED and each["serial"] is None for each in found["deployments"]]
    known = [each for each in (looks, placed) if each]
    if not known:
        return None
    worst = min(known, key=lambda each: sum(each) / len(each))
    word = f"{sum(worst)} of {len(worst)}"
    if all(worst):
        return State("served", f"Served {word}", "ok", "linked")
    troubled = any(each["reason_code"] in TROUBLES for each in found["endpoints"])
    if troubled or any(each["state"] in _AMISS for each in found["deployments"]):
        return State("not-served", f"Not served {len(worst) - sum(worst)} of {len(worst)}", "fail", "unlinked")
    return State("deploying", f"Served {word}", "planned", "clock")


SEVERITIES: Final[Mapping[str, State]] = {
    "critical": State("critical", "critical", "fail", "failing"),
    "warning": State("warning", "warning", "retry", "warning"),
    "info": State("info", "info", "still", "info"),
}
JOBS: Final[Mapping[str, State]] = {
    "ready": State("ready", "Ready", "planned", "clock"),
    "running": State("running", "Running", "active", "renewing"),
    "waiting": State("waiting", "Waiting", "planned", "waiting"),
    "failed": State("failed", "Retrying", "retry", "retrying"),
    "dead": State("dead", "Dead", "fail", "failing"),
    "quarantined": State("quarantined", "Quarantined", "fail", "failing"),
    "done": State("done", "Done", "ok", "ok"),
    "cancelled": State("cancelled", "Cancelled", "still", "revoked"),
}
NOTIFICATIONS: Final[Mapping[str, State]] = {
    "pending": State("pending", "On its way", "active", "renewing"),
    "sent": State("sent", "Delivered", "ok", "ok"),
    "failed": State("failed", "Retrying", "retry", "retrying"),
    "dead": State("dead", "Dead letter", "fail", "dead-letter"),
    "resolved": State("resolved", "Resolved", "still", "ok"),
}
