"""Solvers as operators add them: which names they publish challenge responses for, and with what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from holdfast.core.issuers.breaker import Breaker


class SolverState(StrEnum):
    ACTIVE = "active"
    PAUSED = "paused"  # it publishes nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverRow:
    name: str
    kind: str  # dns-rfc2136, dns-lexicon, …
    names: tuple[str, ...]  # patterns: corp.example, *.corp.example, *
    settings: Mapping[str, Any] = field(default_factory=dict)
    credentials: Mapping[str, str] = field(default_factory=dict)  # purpose → id of a secret
    state: SolverState = SolverState.ACTIVE
    version: int = 1
    breaker: Breaker = field(default_factory=Breaker)  # always closed: a solver has no outage of its own
    created_at: datetime
