"""The next twelve months: how many orders the fleet will need in each week, against what its CAs allow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from holdfast.core.acme import Identifier
from holdfast.core.budget import Limit
from holdfast.core.ca_limits import CaLimits
from holdfast.core.certificate import Window
from holdfast.core.registered_domain import registered_domain
from holdfast.core.renewal import WINDOWS_END, default_fraction, first_opening

WEEK: Final = timedelta(days=7)
YEAR: Final = timedelta(days=365)
SHORTEST: Final = timedelta(hours=1)  # between two renewals: a bad number must not make this run for ever

# How long publicly trusted certificates may live (CA/B ballot SC-081), from when on.
PUBLIC_LIFE: Final = (
    (datetime(2026, 3, 15, tzinfo=UTC), timedelta(days=200)),
    (datetime(2027, 3, 15, tzinfo=UTC), timedelta(days=100)),
    (datetime(2029, 3, 15, tzinfo=UTC), timedelta(days=47)),
)
# What Let's Encrypt's default profile gives.
LETS_ENCRYPT_LIFE: Final = (
    (datetime(2020, 1, 1, tzinfo=UTC), timedelta(days=90)),
    (datetime(2027, 2, 10, tzinfo=UTC), timedelta(days=64)),
    (datetime(2028, 2, 16, tzinfo=UTC), timedelta(days=45)),
)
Lives = Sequence[tuple[datetime, timedelta]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A certificate, as far as its future matters."""

    issuer: str
    identifiers: tuple[Identifier, ...]
    next_at: datetime
    life: timedelta
    fraction: float | None = None
    windows: tuple[Window, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Week:
    starts: datetime
    orders: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tight:
    """A limit that one week will not keep."""

    what: str  # "orders", or a registered domain
    starts: datetime
    needed: int
    allowed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    issuer: str
    weeks: tuple[Week, ...]
    allowed_a_week: int | None  # orders; None: no limit is known
    tight: tuple[Tight, ...]

    @property
    def total(self) -> int:
        return sum(week.orders for week in self.weeks)

    @property
    def peak(self) -> Week:
        return max(self.weeks, key=lambda week: week.orders)

    @property
    def fits(self) -> bool:
        return not self.tight


def forecast(
    fleet: Iterable[Kept],
    limits: Mapping[str, CaLimits],
    now: datetime,
    *,
    lives: Mapping[str, Lives] | None = None,
    span: timedelta = YEAR,
) -> list[Forecast]:
    """One for each CA, in the order of their names. Exemptions of renewals are not counted on: they may end."""
    orders: dict[str, Counter[int]] = {}
    domains: dict[str, Counter[tuple[str, int]]] = {}
    for kept in fleet:
        for at in renewals(kept, now, now + span, (lives or {}).get(kept.issuer, ())):
            week = (at - now) // WEEK
            orders.setdefault(kept.issuer, Counter())[week] += 1
            counted = domains.setdefault(kept.issuer, Counter())
            counted.update({(registered_domain(each.base), week) for each in kept.identifiers})
    number = -(-span // WEEK)
    return [_forecast(name, orders[name], domains[name], limits.get(name), now, number) for name in sorted(orders)]


def renewals(kept: Kept, now: datetime, end: datetime, lives: Lives) -> Iterable[datetime]:
    """When this one will be renewed, as far as it can be known."""
    at = max(kept.next_at, now)
    while at < end:
        life = min([kept.life, *_longest(lives, at)])
        at = _in_window(kept, at, life)
        if at < end:
            yield at
        at += max(life * (kept.fraction or default_fraction(life)), SHORTEST)


def _in_window(kept: Kept, at: datetime, life: timedelta) -> datetime:
    """Moved into its next change window, unless waiting for that would be unsafe."""
    opens = first_opening(kept.windows, at) if kept.windows else at
    return min(opens, at + life * (1 - (kept.fraction or default_fraction(life)) - WINDOWS_END))


def _longest(lives: Lives, at: datetime) -> list[timedelta]:
    return [life for since, life in lives if since <= at][-1:]


def _forecast(
    name: str,
    orders: Counter[int],
    domains: Counter[tuple[str, int]],
    limits: CaLimits | None,
    now: datetime,
    number: int,
) -> Forecast:
    allowed = _a_week(limits.orders if limits else None)
    tight = [
        Tight(what="orders", starts=now + week * WEEK, needed=needed, allowed=allowed)
        for week, needed in sorted(orders.items())
        if allowed is not None and needed > allowed
    ]
    by_domain = _a_week(limits.per_domain if limits else None)
    tight += [
        Tight(what=domain, starts=now + week * WEEK, needed=needed, allowed=by_domain)
        for (domain, week), needed in sorted(domains.items(), key=lambda item: (item[0][1], item[0][0]))
        if by_domain is not None and needed > by_domain
    ]
    weeks = tuple(Week(starts=now + n * WEEK, orders=orders[n]) for n in range(number))
    return Forecast(issuer=name, weeks=weeks, allowed_a_week=allowed, tight=tuple(tight))


def _a_week(limit: Limit | None) -> int | None:
    """What is refilled in a week; the burst is for bad days."""
    return None if limit is None else max(limit.burst, WEEK // limit.every)
