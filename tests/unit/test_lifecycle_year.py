"""A year of decisions, without an engine: a CA that is away for hours every week, and no certificate expires."""

import heapq
import random
from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest
from tests.unit.test_renewal import DAY, HOUR, T0, a_certificate, a_version

from holdfast.core.certificate import Certificate, Version, failed
from holdfast.core.renewal import decide
from holdfast.core.windows import MaintenanceWindow

YEAR = 365 * DAY
AWAY = 8 * HOUR


def outages(dice: random.Random) -> list[tuple[float, float]]:
    """The CA is away for eight hours, every few days."""
    found, at = [], 0.0
    while at < YEAR.total_seconds():
        at += dice.uniform(2, 12) * DAY.total_seconds()
        found.append((at, at + AWAY.total_seconds()))
    return found


def a_year(
    life: timedelta, number: int, seed: int, windows: tuple[MaintenanceWindow, ...] = ()
) -> tuple[int, Counter[int]]:
    """How many expired, and how many were renewed on each day."""
    dice, expired, days = random.Random(seed), 0, Counter[int]()
    away = outages(dice)
    queue: list[tuple[float, int]] = []
    held: list[tuple[Certificate, Version]] = []
    for n in range(number):
        held.append((a_certificate(windows=windows), a_version(life, id=f"version_{n}_0")))
        heapq.heappush(queue, (_next(held[n], 0.0), n))
    while queue and queue[0][0] < YEAR.total_seconds():
        at, n = heapq.heappop(queue)
        certificate, version = held[n]
        now = T0 + timedelta(seconds=at)
        expired += now >= version.not_after
        if any(begins <= at < ends for begins, ends in away) or dice.random() < 0.05:
            held[n] = (
                replace(certificate, failing=failed(certificate.failing, now, error="", reason="CA_DOWN")),
                version,
            )
        else:
            days[int(at // 86400)] += 1
            fresh = a_version(life, id=f"version_{n}_{at}", not_before=now, not_after=now + life)
            held[n] = (replace(certificate, failing=None), fresh)
        heapq.heappush(queue, (_next(held[n], at), n))
    return expired, days


def _next(pair: tuple[Certificate, Version], at: float) -> float:
    decision = decide(*pair, T0 + timedelta(seconds=at))
    assert decision.at is not None
    return max((decision.at - T0).total_seconds(), at + 1)


@pytest.mark.parametrize(("days", "number"), [(90, 400), (47, 300), (6, 40)])
def test_nothing_expires_though_the_ca_is_away_for_hours_every_week(days: int, number: int) -> None:
    expired, _ = a_year(days * DAY, number, seed=days)
    assert expired == 0


def test_nothing_expires_because_of_a_maintenance_window() -> None:
    minutes = MaintenanceWindow(days=frozenset({2}), opens=0, closes=5)
    expired, _ = a_year(6 * DAY, 20, seed=7, windows=(minutes,))
    assert expired == 0


def test_those_that_were_issued_together_drift_apart_over_the_year() -> None:
    _, days = a_year(90 * DAY, 1000, seed=1)
    first = max(count for day, count in days.items() if day < 70)
    last = max(count for day, count in days.items() if day > 300)
    assert first < 300  # a thousand over six days, and what the CA's absence piles up
    assert last < first
