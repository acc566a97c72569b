"""A deployment: one version of a certificate on one target, in small steps that anyone can resume."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, Literal

from holdfast.errors import IllegalMove


class DeploymentState(StrEnum):
    QUEUED = "queued"
    WRITING = "writing"  # the target may hold the old bundle or the new one, and never a mixture
    TESTING = "testing"  # the new bundle is in place, and its daemon has not read it yet
    RELOADING = "reloading"
    VERIFYING = "verifying"  # we look at its endpoints
    ROLLING_BACK = "rolling_back"
    SERVED = "served"  # every endpoint showed it
    INSTALLED = "installed"  # it is in place, and the target has no endpoint to look at
    HELD = "held"  # by a person, a window, a freeze or an earlier wave
    ROLLED_BACK = "rolled_back"  # the target has the bundle before it again; tried again later
    ROLLBACK_FAILED = "rollback_failed"  # it may serve neither
    FAILED = "failed"  # tried again later
    SUPERSEDED = "superseded"  # a newer one took its place, or its target is not wanted any more

    @property
    def over(self) -> bool:
        return self in OVER

    @property
    def in_place(self) -> bool:
        return self in IN_PLACE


IN_PLACE: Final = frozenset({DeploymentState.SERVED, DeploymentState.INSTALLED})
OVER: Final = IN_PLACE | {DeploymentState.SUPERSEDED}
TOUCHED: Final = (DeploymentState.TESTING, DeploymentState.RELOADING, DeploymentState.VERIFYING)
UNDER_WAY: Final = (DeploymentState.WRITING, *TOUCHED, DeploymentState.ROLLING_BACK)
RESTING: Final = (
    DeploymentState.QUEUED, DeploymentState.HELD, DeploymentState.FAILED, DeploymentState.ROLLED_BACK,
    DeploymentState.ROLLBACK_FAILED,
)  # fmt: skip

DeploymentEvent = Literal[
    "begun", "written", "tested", "reloaded", "seen", "nothing to see", "held", "released", "gave up", "rolling back",
    "rolled back", "rollback failed", "asked again", "superseded",
]  # fmt: skip

MOVES: Final[Mapping[tuple[DeploymentState, DeploymentEvent], DeploymentState]] = {
    **{(state, "begun"): DeploymentState.WRITING for state in RESTING},
    (DeploymentState.WRITING, "written"): DeploymentState.TESTING,
    (DeploymentState.TESTING, "tested"): DeploymentState.RELOADING,
    (DeploymentState.RELOADING, "reloaded"): DeploymentState.VERIFYING,
    (DeploymentState.WRITING, "seen"): DeploymentState.SERVED,  # the bytes were in place, and were served
    (DeploymentState.VERIFYING, "seen"): DeploymentState.SERVED,
    (DeploymentState.VERIFYING, "nothing to see"): DeploymentState.INSTALLED,
    **{(state, "held"): DeploymentState.HELD for state in RESTING},
    (DeploymentState.HELD, "released"): DeploymentState.QUEUED,
    **{(state, "gave up"): DeploymentState.FAILED for state in (*RESTING, DeploymentState.WRITING, *TOUCHED)},
    **{(state, "rolling back"): DeploymentState.ROLLING_BACK for state in TOUCHED},
    (DeploymentState.ROLLING_BACK, "rolled back"): DeploymentState.ROLLED_BACK,
    (DeploymentState.ROLLING_BACK, "gave up"): DeploymentState.FAILED,  # nothing was there before
    (DeploymentState.ROLLING_BACK, "rollback failed"): DeploymentState.ROLLBACK_FAILED,
    **{(state, "asked again"): DeploymentState.QUEUED for state in (*RESTING, *sorted(IN_PLACE))},
    **{(state, "superseded"): DeploymentState.SUPERSEDED
       for state in DeploymentState if state is not DeploymentState.SUPERSEDED},
}  # fmt: skip


def move(state: DeploymentState, event: DeploymentEvent) -> DeploymentState:
    """The state after an event; no other function says one."""
    try:
        return MOVES[state, event]
    except KeyError:
        raise IllegalMove(f"a deployment that is {state} cannot be {event!r}") from None


DeploymentCause = Literal["issued", "targets changed", "asked", "rollback", "drift"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    id: str
    certificate: str
    certificate_version: str  # the version that the target is to serve
    target: str
    number: int  # only grows for a certificate on a target: an older one never overwrites a newer one
    state: DeploymentState = DeploymentState.QUEUED
    version: int = 1  # of the row: every step compares it
    cause: DeploymentCause = "issued"
    requested_by: str = "system"
    previous: str | None = None  # the version that was in place when this one began
    failures: int = 0  # in a row
    tries: int = 0  # of the step that it is at
    looked_since: datetime | None = None  # when it was first looked for, after the reload
    next_at: datetime | None = None  # when something is done about it; None once it is over, or until it is released
    atomic: bool | None = None  # whether its target swaps key and certificate in one go; None until it was written
    drained: bool = False  # its target was taken out of its balancer, and must be put back before this is over
    seen: str = ""  # what was seen at the endpoints, in words
    error: str | None = None
    reason: str | None = None
    created_at: datetime
    changed_at: datetime
    served_at: datetime | None = None
