"""A discovery: one place to look for certificates, once or every so often, and how far it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Literal

from holdfast.core.discovery.find import FindSource
from holdfast.errors import IllegalMove


class DiscoveryState(StrEnum):
    RUNNING = "running"
    RESTING = "resting"  # it begins again by itself
    DONE = "done"
    STOPPED = "stopped"  # by a person
    FAILED = "failed"  # it cannot go on: `problem` says why


DiscoveryEvent = Literal["finished", "rested", "began", "stopped", "failed"]
MOVES: Final[Mapping[tuple[DiscoveryState, DiscoveryEvent], DiscoveryState]] = {
    (DiscoveryState.RUNNING, "finished"): DiscoveryState.DONE,
    (DiscoveryState.RUNNING, "rested"): DiscoveryState.RESTING,
    (DiscoveryState.RUNNING, "stopped"): DiscoveryState.STOPPED,
    (DiscoveryState.RUNNING, "failed"): DiscoveryState.FAILED,
    (DiscoveryState.RESTING, "began"): DiscoveryState.RUNNING,
    (DiscoveryState.RESTING, "stopped"): DiscoveryState.STOPPED,
    (DiscoveryState.DONE, "began"): DiscoveryState.RUNNING,
    (DiscoveryState.STOPPED, "began"): DiscoveryState.RUNNING,
    (DiscoveryState.FAILED, "began"): DiscoveryState.RUNNING,
}


def move(state: DiscoveryState, event: DiscoveryEvent) -> DiscoveryState:
    """The state after an event; nothing else says what state a discovery is in."""
    try:
        return MOVES[state, event]
    except KeyError:
        raise IllegalMove(f"a discovery that is {state} cannot be {event!r}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    id: str
    source: FindSource
    settings: Mapping[str, Any]
    every: timedelta | None = None  # None: once
    state: DiscoveryState = DiscoveryState.RUNNING
    position: Mapping[str, Any] = field(default_factory=dict)  # what is done of this round: a killed one goes on there
    total: int | None = None  # steps of a round, where that is known before
    counts: Mapping[str, int] = field(default_factory=dict)  # of this round: tried, certificates, new, problems
    problem: str = ""
    created_by: str
    created_at: datetime
    begun_at: datetime  # this round
    finished_at: datetime | None = None  # the last round
    version: int = 1

    @property
    def tried(self) -> int:
        return int(self.counts.get("tried", 0))


def counted(before: Mapping[str, int], **more: int) -> dict[str, int]:
    """The sum of two counts."""
    return {name: before.get(name, 0) + more.get(name, 0) for name in sorted({*before, *more})}
