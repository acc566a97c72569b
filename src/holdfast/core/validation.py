"""Decides what follows from one test of a challenge that a client answered: proved, tested again, or disproved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from holdfast.core.backoff import VALIDATION
from holdfast.core.problem import Problem

Tries = tuple[Mapping[str, Any], ...]  # what each test of the challenge saw, the first one first


@dataclass(frozen=True, slots=True)
class Proved:
    tries: Tries


@dataclass(frozen=True, slots=True)
class TryAgain:
    """The failure may pass with nobody changing anything: the challenge stays in processing (RFC 8555 §8.2)."""

    tries: Tries
    after: timedelta


@dataclass(frozen=True, slots=True)
class Disproved:
    tries: Tries
    problem: Problem


Step = Proved | TryAgain | Disproved


def decide(before: Tries, evidence: Mapping[str, Any], problem: Problem | None, *, retryable: bool, most: int) -> Step:
    """Say what follows from a test, by what it saw and what was wrong; `most` is how often a challenge is tested."""
    if problem is None:
        return Proved((*before, evidence))
    tries = (*before, {**evidence, "problem": problem.type, "error": problem.detail})
    if retryable and len(tries) < most:
        return TryAgain(tries, VALIDATION.rung(len(tries)))
    return Disproved(tries, problem)
