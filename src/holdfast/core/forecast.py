"""Renewals in the months to come, issuer by issuer: how many orders, and which of them exceed a limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count, cycle, islice, pairwise
from typing import Final

from holdfast.core.issuers.budget import Limit
from holdfast.core.issuers.ca_limits import CaLimits, Lives, registered_domain
from holdfast.core.own_ca.acme import Identifier
from holdfast.core.renewal import WINDOWS_END, default_fraction
from holdfast.core.windows import MaintenanceWindow, first_opening

WEEK: Final = timedelta(days=7)
SHORTEST: Final = timedelta(hours=1)  # between two renewals: a bad number must not make this run for ever


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCertificate:
    """A certificate, as far as its future matters."""

    issuer: str
    identifiers: tuple[Identifier, ...]
    next_at: datetime
    life: timedelta
    fraction: float | None = None
    before: timedelta | None = None  # its end, instead of a fraction
    windows: tuple[MaintenanceWindow, ...] = ()
    assumed: bool = False  # there is none such: only its domain is like that of others, its names are its own


def renewals(kept: PlannedCertificate, now: datetime, end: datetime, lives: Lives) -> Iterable[datetime]:
    """When this one will be renewed, as far as it can be known."""
    at = max(kept.next_at, now)
    while at < end:
        life = min([kept.life, *_longest(lives, at)])
        at = _in_window(kept, at, life)
        if at < end:
            yield at
        at += max(_kept_for(kept, life), SHORTEST)


def _in_window(kept: PlannedCertificate, at: datetime, life: timedelta) -> datetime:
    """Moved into its next change window, unless waiting for that would be unsafe."""
    opens = first_opening(kept.windows, at) if kept.windows else at
    return max(at, min(opens, at + life * (1 - WINDOWS_END) - _kept_for(kept, life)))


def _kept_for(kept: PlannedCertificate, life: timedelta) -> timedelta:
    """How long one is in use before the next is asked for, as core/renewal.py has it."""
    if kept.before is not None:
        return max(life - kept.before, life / 10)
    return life * (kept.fraction or default_fraction(life))


def _longest(lives: Lives, at: datetime) -> list[timedelta]:
    return [life for since, life in lives if since <= at][-1:]


HOUR: Final = timedelta(hours=1)
_EPOCH: Final = datetime(1970, 1, 5, tzinfo=UTC)  # a Monday
COMMON_LIFE: Final = timedelta(days=90)
MOST_RENEWALS: Final = 2_000_000  # of one forecast: a hundred thousand certificates of 47 days, for a year


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Changes that a forecast assumes."""

    life: timedelta | None = None  # no certificate lives longer
    more: int = 0  # so many certificates more, like those that there are
    issuer: str | None = None  # only this CA is looked at; those in `more` come from it
    orders: Limit | None = None  # what that CA allows


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastProblem:
    """A limit that will not be kept: nothing breaks, but certificates wait, and some may wait too long."""

    kind: str  # hour, week, domain, names
    what: str
    starts: datetime
    needed: int
    allowed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Month:
    issuer: str
    starts: datetime
    orders: int
    names: int  # that are proved
    busiest_day: datetime | None
    busiest_day_orders: int
    busiest_hour_orders: int
    used_percent: int | None  # of what the CA allows, where it is tightest; None: no limit is known
    problem: ForecastProblem | None

    @property
    def fits(self) -> bool:
        return self.problem is None


@dataclass(slots=True)
class _Counts:
    """Of one CA."""

    orders: Counter[int] = field(default_factory=Counter)  # by month
    names: Counter[int] = field(default_factory=Counter)
    hours: Counter[datetime] = field(default_factory=Counter)
    weeks: Counter[datetime] = field(default_factory=Counter)
    domains: Counter[tuple[datetime, str]] = field(default_factory=Counter)  # by week
    sets: Counter[tuple[datetime, str]] = field(default_factory=Counter)  # of names, by week: what comes again in it


def expected(fleet: Iterable[PlannedCertificate], limits: Mapping[str, CaLimits], now: datetime, *, months: int) -> int:
    """About how many renewals a forecast has to count, known before any is: never too few."""
    end = _first_of(now, months)
    return sum(_at_most(kept, limits.get(kept.issuer), now, end) for kept in fleet)


def _at_most(kept: PlannedCertificate, limits: CaLimits | None, now: datetime, end: datetime) -> int:
    lives = () if limits is None else limits.lives
    life = min([kept.life, *(life for since, life in lives if since < end)])
    return max(end - max(kept.next_at, now), timedelta(0)) // max(_kept_for(kept, life), SHORTEST) + 1


def by_month(
    fleet: Sequence[PlannedCertificate],
    limits: Mapping[str, CaLimits],
    now: datetime,
    *,
    months: int,
    check: Callable[[], None] = lambda: None,
) -> list[Month]:
    """One for each CA and calendar month, this month first. `check` is asked for each certificate, and may raise."""
    starts = [_first_of(now, n) for n in range(months + 1)]
    counts: dict[str, _Counts] = {}
    alike = Counter((kept.issuer, _set(kept)) for kept in fleet if not kept.assumed)
    for kept in fleet:
        check()
        found = counts.setdefault(kept.issuer, _Counts())
        domains = {registered_domain(each.base) for each in kept.identifiers}
        times = list(renewals(kept, now, starts[-1], limits[kept.issuer].lives if kept.issuer in limits else ()))
        for at in times:
            _count(found, at, now, domains, len(kept.identifiers))
        if not kept.assumed and (alike[kept.issuer, _set(kept)] > 1 or _comes_again(times)):
            found.sets.update((_week(at), _set(kept)) for at in times)
    return [
        _month(name, counts[name], limits.get(name), n, starts) for name in sorted(counts) for n in range(months)
    ]  # fmt: skip


def _first_of(now: datetime, months: int) -> datetime:
    year, month = divmod(now.year * 12 + now.month - 1 + months, 12)
    return datetime(year, month + 1, 1, tzinfo=UTC)


def _set(kept: PlannedCertificate) -> str:
    return ", ".join(sorted(each.value for each in kept.identifiers))


def _comes_again(times: Sequence[datetime]) -> bool:
    """Within a week: all others are left out of the count of sets, as there are as many as certificates."""
    return any(after - before < WEEK for before, after in pairwise(times))


def _week(at: datetime) -> datetime:
    return _EPOCH + (at - _EPOCH) // WEEK * WEEK


def _count(counts: _Counts, at: datetime, now: datetime, domains: set[str], names: int) -> None:
    month = (at.year - now.year) * 12 + at.month - now.month
    week = _week(at)
    counts.orders[month] += 1
    counts.names[month] += names
    counts.hours[at.replace(minute=0, second=0, microsecond=0)] += 1
    counts.weeks[week] += 1
    counts.domains.update((week, domain) for domain in domains)


def _month(name: str, counts: _Counts, limits: CaLimits | None, number: int, starts: Sequence[datetime]) -> Month:
    begins, ends = starts[number], starts[number + 1]
    days: Counter[datetime] = Counter()
    hours = {at: n for at, n in counts.hours.items() if begins <= at < ends}
    for at, n in hours.items():
        days[at.replace(hour=0)] += n
    day = min(days, key=lambda each: (-days[each], each), default=None)
    spans = list(_spans(counts, hours, limits, begins, ends))
    over = [each for each in spans if each.needed > each.allowed]
    return Month(
        issuer=name,
        starts=begins,
        orders=counts.orders[number],
        names=counts.names[number],
        busiest_day=day,
        busiest_day_orders=0 if day is None else days[day],
        busiest_hour_orders=max(hours.values(), default=0),
        used_percent=max((100 * each.needed // each.allowed for each in spans), default=None),
        problem=min(over, key=lambda each: (each.starts, each.kind), default=None),
    )


def _spans(
    counts: _Counts, hours: Mapping[datetime, int], limits: CaLimits | None, begins: datetime, ends: datetime
) -> Iterable[ForecastProblem]:
    """Orders needed and allowed in each hour and week: an hour by the burst, a week by the refill."""
    orders = None if limits is None else limits.orders
    domain = None if limits is None else limits.per_domain
    same = None if limits is None else limits.per_set
    if orders is not None:
        within = orders.burst + HOUR // orders.every
        yield from (
            ForecastProblem(kind="hour", what="orders", starts=at, needed=n, allowed=within) for at, n in hours.items()
        )
        yield from (
            ForecastProblem(kind="week", what="orders", starts=at, needed=n, allowed=_a_week(orders))
            for at, n in counts.weeks.items()
            if begins <= at < ends
        )
    if domain is not None:
        yield from (
            ForecastProblem(kind="domain", what=what, starts=at, needed=n, allowed=_a_week(domain))
            for (at, what), n in counts.domains.items()
            if begins <= at < ends
        )
    if same is not None:
        yield from (
            ForecastProblem(kind="names", what=what, starts=at, needed=n, allowed=_a_week(same))
            for (at, what), n in counts.sets.items()
            if begins <= at < ends and n > 1
        )


def _a_week(limit: Limit) -> int:
    return max(limit.burst, WEEK // limit.every)


# ── What if ──


def supposed(fleet: Sequence[PlannedCertificate], what_if: WhatIf, now: datetime) -> list[PlannedCertificate]:
    """The fleet as it would be."""
    chosen = [kept for kept in fleet if what_if.issuer in (None, kept.issuer)]
    chosen += _more(chosen, what_if, now)
    if what_if.life is None:
        return chosen
    life = what_if.life
    return [replace(kept, life=min(kept.life, life)) for kept in chosen]


def _more(fleet: Sequence[PlannedCertificate], what_if: WhatIf, now: datetime) -> list[PlannedCertificate]:
    """Like those there are, in turn, and spread over a life: a thousand are not requested in one minute."""
    models = islice(cycle(fleet) if fleet else _unknown(what_if, now), what_if.more)
    return [
        replace(kept, issuer=what_if.issuer or kept.issuer, next_at=now + kept.life * (n / what_if.more), assumed=True)
        for n, kept in enumerate(models)
    ]


def _unknown(what_if: WhatIf, now: datetime) -> Iterator[PlannedCertificate]:
    """For an issuer without certificates: each of a domain of its own, as nothing is known of their names."""
    for n in count(1):
        name = Identifier("dns", f"supposed-{n}.example")
        yield PlannedCertificate(issuer=what_if.issuer or "own", identifiers=(name,), next_at=now, life=COMMON_LIFE)
