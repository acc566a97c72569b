"""Targets: where certificates are installed, each under the name that an operator gave it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from holdfast.core.issuers.breaker import Breaker
from holdfast.core.windows import MaintenanceWindow

CANARY: Final = 1  # targets of a rollout that go first
SECOND_WAVE: Final = 0.1  # of all targets of a rollout


class TargetState(StrEnum):
    ACTIVE = "active"
    PAUSED = "paused"  # deployments to it are held


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRow:
    name: str
    kind: str  # files, ssh, kubernetes, …
    settings: Mapping[str, Any] = field(default_factory=dict)
    credentials: Mapping[str, str] = field(default_factory=dict)  # purpose → id of a secret
    owner: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    endpoints: tuple[str, ...] = ()  # where a deployed certificate must be seen, such as www.example.com:443
    windows: tuple[MaintenanceWindow, ...] = ()  # deployments begin only then, as long as that is safe
    domain: str = ""  # its reload domain: the daemon that it shares reloads with; its own name, if nothing is said
    host: str = ""  # the replica that it is deployed from, by name; empty: any of them
    rollout: str = ""  # targets with the same word are deployed in waves
    state: TargetState = TargetState.ACTIVE
    version: int = 1
    breaker: Breaker = field(default_factory=Breaker)
    created_at: datetime

    @property
    def reload_domain(self) -> str:
        return self.domain or self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployLimits:
    """What holds for every target of a kind."""

    verify_for: timedelta = timedelta(minutes=1)  # how long after its reload a target may serve the old certificate
    certificates: int | None = None  # how many one target can hold; None: any number


def wave_of(target: str, rollout: Sequence[str]) -> int:
    """0: the canary, 1: up to a tenth of all, 2: the rest. In the order of their names, the same everywhere."""
    place = sorted(rollout).index(target)
    if place < CANARY:
        return 0
    return 1 if place < CANARY + max(1, round(len(rollout) * SECOND_WAVE)) else 2
