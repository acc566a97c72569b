"""Solvers as operators add them: which names they publish challenge responses for, and with what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from holdfast.core.certificate import ANY_CHALLENGE, CertificateSpec
from holdfast.core.issuers.breaker import Breaker
from holdfast.core.own_ca.acme import Identifier, permits


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Provable:
    """What one solver can prove: names, as patterns, by one type of challenge."""

    type: str
    names: tuple[str, ...]
    solver: str = ""  # its name; those of keeping.solvers_file have none


def challenge_never_fits(spec: CertificateSpec) -> str | None:
    """A name of the certificate that its challenge can never prove, with the reason; None if there is none."""
    for each in spec.identifiers:
        if each.wildcard and spec.challenge not in (ANY_CHALLENGE, "dns-01"):
            return f"A wildcard such as {each.value} is proved by dns-01 only, not by {spec.challenge}."
        if each.type == "ip" and spec.challenge == "dns-01":
            return f"An address such as {each.value} cannot be proved by dns-01 (RFC 8738)."
    return None


def unproved(spec: CertificateSpec, known: Sequence[Provable]) -> list[Identifier]:
    """Names of the certificate that none of these solvers can prove by a challenge that it may use."""
    usable = [each for each in known if spec.solver in (None, each.solver) and _allowed(spec, each.type)]
    return [name for name in spec.identifiers if not any(_proves(each, name) for each in usable)]


def _allowed(spec: CertificateSpec, challenge: str) -> bool:
    return spec.challenge in (ANY_CHALLENGE, challenge)


def _proves(known: Provable, name: Identifier) -> bool:
    possible = known.type == "dns-01" if name.wildcard else name.type == "dns" or known.type != "dns-01"
    return possible and permits(known.names, name)
