"""Renewals in the months to come, issuer by issuer: how many orders, and which of them exceed a limit."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import chain, count, cycle, islice, pairwise, repeat
from typing import Final

from holdfast.core.issuers.budget import Limit
from holdfast.core.issuers.ca_limits import CaLimits, Lives, registered_domain
from holdfast.core.own_ca.acme import Identifier
from holdfast.core.renewal import WINDOWS_END, default_fraction
from holdfast.core.windows import MaintenanceWindow, first_opening

WEEK: Final = timedelta(days=7)
_HOURS: Final = 7 * 24  # of a week
_MINUTE: Final = timedelta(minutes=1)
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
    targets: int = 0  # that each renewal is deployed to
    assumed: bool = False  # there is none such: only its domain is like that of others, its names are its own
    number: int = 1  # of those that are renewed in the same hours, and differ in their names alone


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
    deployments: int  # to targets; they use nothing of what the CA allows
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
    """Of one CA. Hours and weeks are numbered from the epoch on."""

    hours: Counter[int] = field(default_factory=Counter)
    names: Counter[int] = field(default_factory=Counter)  # that are proved, by hour
    deployments: Counter[int] = field(default_factory=Counter)  # by hour
    domains: Counter[tuple[int, str]] = field(default_factory=Counter)  # by week
    sets: Counter[tuple[int, str]] = field(default_factory=Counter)  # of names, by week: what comes again in it


def expected(fleet: Iterable[PlannedCertificate], limits: Mapping[str, CaLimits], now: datetime, *, months: int) -> int:
    """About how many renewals a forecast has to count, known before any is: never too few."""
    end = _first_of(now, months)
    return sum(kept.number * _at_most(kept, limits.get(kept.issuer), now, end) for kept in fleet)


def at_least(
    fleet: Sequence[PlannedCertificate], what_if: WhatIf, limits: Mapping[str, CaLimits], now: datetime, *, months: int
) -> int:
    """How many renewals those that are only supposed have at least: known before any of them is made."""
    end, models = _first_of(now, months), fleet or list(islice(_unknown(what_if, now), 1))
    lives = [(kept, min(kept.life, what_if.life or kept.life)) for kept in models]
    late = (replace(kept, life=life, next_at=now + life) for kept, life in lives)
    return what_if.more * min(_at_most(kept, limits.get(what_if.issuer or kept.issuer), now, end) for kept in late)


def folded(
    fleet: Iterable[PlannedCertificate], limits: Mapping[str, CaLimits], check: Callable[[], None] = lambda: None
) -> list[PlannedCertificate]:
    """Those that differ in their names alone as one, with their number: a forecast counts by the hour.

    Those whose whole set of names is another's, too, stay apart: CAs count such sets.
    """
    several = [(kept, _set(kept)) for kept in fleet]
    alike = Counter((kept.issuer, names) for kept, names in several)
    found: dict[object, list[PlannedCertificate]] = {}
    for kept, names in several:
        check()
        once = kept.assumed or alike[kept.issuer, names] == 1
        found.setdefault(_likeness(kept, limits.get(kept.issuer)) if once else id(kept), []).append(kept)
    return [replace(each[0], number=sum(kept.number for kept in each)) for each in found.values()]


def _likeness(kept: PlannedCertificate, limits: CaLimits | None) -> object:
    hour, rule = _hour(kept.next_at), (kept.life // _MINUTE, kept.fraction, kept.before, kept.windows)
    return kept.issuer, _domains(kept, limits), len(kept.identifiers), kept.targets, hour, rule, kept.assumed


def _domains(kept: PlannedCertificate, limits: CaLimits | None) -> frozenset[str]:
    """Where the CA counts by them."""
    counted = limits is not None and limits.per_domain is not None
    return frozenset(registered_domain(each.base) for each in kept.identifiers) if counted else frozenset()


def _at_most(kept: PlannedCertificate, limits: CaLimits | None, now: datetime, end: datetime) -> int:
    lives = () if limits is None else limits.lives
    life = min([kept.life, *(life for since, life in lives if since < end)])
    return max(end - max(kept.next_at, now), timedelta(0)) // max(_kept_for(kept, life), SHORTEST) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitAhead:
    """What one limit of a CA is asked for in each week to come."""

    issuer: str
    kind: str  # orders, domain
    what: str  # the domain; empty for orders
    allowed: int | None  # in a week; None: no limit is known
    begins: datetime  # the first week, a Monday
    weeks: tuple[int, ...]

    @property
    def first_broken(self) -> datetime | None:
        over = (n for n, needed in enumerate(self.weeks) if self.allowed is not None and needed > self.allowed)
        return next((self.begins + n * WEEK for n in over), None)

    @property
    def share(self) -> float:
        """Of what is allowed, in the week that needs most."""
        return max(self.weeks, default=0) / self.allowed if self.allowed else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class YearAhead:
    months: list[Month]
    limits: list[LimitAhead]  # the tightest first


MOST_DOMAINS: Final = 10  # of one CA, each a limit of its own: those that need most


def by_month(
    fleet: Sequence[PlannedCertificate],
    limits: Mapping[str, CaLimits],
    now: datetime,
    *,
    months: int,
    check: Callable[[], None] = lambda: None,
) -> list[Month]:
    return ahead(fleet, limits, now, months=months, check=check).months


def ahead(
    fleet: Sequence[PlannedCertificate],
    limits: Mapping[str, CaLimits],
    now: datetime,
    *,
    months: int,
    check: Callable[[], None] = lambda: None,
) -> YearAhead:
    """Each CA and calendar month, this month first; and each limit, by week.

    `check` is asked for each certificate, and may raise.
    """
    starts = [_first_of(now, n) for n in range(months + 1)]
    counts = _counted(fleet, limits, now, starts[-1], check)
    found = [limit for name in sorted(counts) for limit in _limits(name, counts[name], limits.get(name), now, starts)]
    return YearAhead(
        months=[each for name in sorted(counts) for each in _months(name, counts[name], limits.get(name), starts)],
        limits=sorted(found, key=lambda each: (-each.share, each.issuer, each.kind, each.what)),
    )


def _counted(
    fleet: Sequence[PlannedCertificate],
    limits: Mapping[str, CaLimits],
    now: datetime,
    end: datetime,
    check: Callable[[], None],
) -> dict[str, _Counts]:
    counts: dict[str, _Counts] = {}
    alike = Counter((kept.issuer, _set(kept)) for kept in fleet if not kept.assumed)
    for kept in fleet:
        check()
        found, known = counts.setdefault(kept.issuer, _Counts()), limits.get(kept.issuer)
        times = list(renewals(kept, now, end, () if known is None else known.lives))
        _count(found, kept, times, _domains(kept, known))
        if not kept.assumed and (alike[kept.issuer, _set(kept)] > 1 or _comes_again(times)):
            found.sets.update((_week(_hour(at)), _set(kept)) for at in times)
    return counts


def _limits(
    name: str, counts: _Counts, limits: CaLimits | None, now: datetime, starts: Sequence[datetime]
) -> Iterator[LimitAhead]:
    first, last = _week(_hour(now)), _week(_hour(starts[-1]))
    begins, span = _EPOCH + first * WEEK, range(first, last + 1)
    orders = None if limits is None or limits.orders is None else _a_week(limits.orders)
    each_week = _by_week(counts)
    weeks = tuple(each_week[n] for n in span)
    yield LimitAhead(issuer=name, kind="orders", what="", allowed=orders, begins=begins, weeks=weeks)
    if limits is None or limits.per_domain is None:
        return
    most: Counter[str] = Counter()
    for (_, domain), number in counts.domains.items():
        most[domain] = max(most[domain], number)
    for domain, _ in most.most_common(MOST_DOMAINS):
        needed = tuple(counts.domains[n, domain] for n in span)
        allowed = _a_week(limits.per_domain)
        yield LimitAhead(issuer=name, kind="domain", what=domain, allowed=allowed, begins=begins, weeks=needed)


def _first_of(now: datetime, months: int) -> datetime:
    year, month = divmod(now.year * 12 + now.month - 1 + months, 12)
    return datetime(year, month + 1, 1, tzinfo=UTC)


def _set(kept: PlannedCertificate) -> str:
    return ", ".join(sorted(each.value for each in kept.identifiers))


def _comes_again(times: Sequence[datetime]) -> bool:
    """Within a week: all others are left out of the count of sets, as there are as many as certificates."""
    return any(after - before < WEEK for before, after in pairwise(times))


def _hour(at: datetime) -> int:
    return (at - _EPOCH) // HOUR


def _week(hour: int) -> int:
    return hour // _HOURS


def _count(counts: _Counts, kept: PlannedCertificate, times: Sequence[datetime], domains: frozenset[str]) -> None:
    for at in times:
        hour = _hour(at)
        counts.hours[hour] += kept.number
        counts.names[hour] += kept.number * len(kept.identifiers)
        if kept.targets:
            counts.deployments[hour] += kept.number * kept.targets
        for domain in domains:
            counts.domains[_week(hour), domain] += kept.number


def _by_week(counts: _Counts) -> Counter[int]:
    weeks: Counter[int] = Counter()
    for hour, number in counts.hours.items():
        weeks[_week(hour)] += number
    return weeks


@dataclass(slots=True)
class _MonthOfOne:
    """What one CA is asked for in one month."""

    hours: Counter[int] = field(default_factory=Counter)
    names: int = 0
    deployments: int = 0
    spans: list[ForecastProblem] = field(default_factory=list)  # what is needed, and what is allowed


def _months(name: str, counts: _Counts, limits: CaLimits | None, starts: Sequence[datetime]) -> Iterator[Month]:
    found = [_MonthOfOne() for _ in starts[1:]]
    begins = [_hour(each) for each in starts]
    for hour, number in counts.hours.items():
        month = found[bisect_right(begins, hour) - 1]
        month.hours[hour] = number
        month.names += counts.names[hour]
        month.deployments += counts.deployments[hour]
    for span in _spans(counts, limits):
        place = bisect_right(starts, span.starts) - 1
        if 0 <= place < len(found):  # a week that began last month was looked at then
            found[place].spans.append(span)
    return (_month(name, begins, each) for begins, each in zip(starts, found, strict=False))


def _month(name: str, begins: datetime, found: _MonthOfOne) -> Month:
    days: Counter[int] = Counter()
    for hour, number in found.hours.items():
        days[hour // 24] += number
    day = min(days, key=lambda each: (-days[each], each), default=None)
    over = [each for each in found.spans if each.needed > each.allowed]
    return Month(
        issuer=name,
        starts=begins,
        orders=found.hours.total(),
        names=found.names,
        deployments=found.deployments,
        busiest_day=None if day is None else _EPOCH + day * 24 * HOUR,
        busiest_day_orders=0 if day is None else days[day],
        busiest_hour_orders=max(found.hours.values(), default=0),
        used_percent=max((100 * each.needed // each.allowed for each in found.spans), default=None),
        problem=min(over, key=lambda each: (each.starts, each.kind), default=None),
    )


def _spans(counts: _Counts, limits: CaLimits | None) -> Iterable[ForecastProblem]:
    """Orders needed and allowed in each hour and week: an hour by the burst, a week by the refill."""
    orders = None if limits is None else limits.orders
    domain = None if limits is None else limits.per_domain
    same = None if limits is None else limits.per_set
    if orders is not None:
        within = orders.burst + HOUR // orders.every
        for hour, n in counts.hours.items():
            yield _span("hour", "orders", _EPOCH + hour * HOUR, n, within)
        for week, n in _by_week(counts).items():
            yield _span("week", "orders", _EPOCH + week * WEEK, n, _a_week(orders))
    if domain is not None:
        for (week, what), n in counts.domains.items():
            yield _span("domain", what, _EPOCH + week * WEEK, n, _a_week(domain))
    if same is not None:
        for (week, what), n in counts.sets.items():
            if n > 1:
                yield _span("names", what, _EPOCH + week * WEEK, n, _a_week(same))


def _span(kind: str, what: str, starts: datetime, needed: int, allowed: int) -> ForecastProblem:
    return ForecastProblem(kind=kind, what=what, starts=starts, needed=needed, allowed=allowed)


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
    each_one = chain.from_iterable(repeat(kept, kept.number) for kept in fleet)
    models = islice(cycle(each_one) if fleet else _unknown(what_if, now), what_if.more)
    return [
        replace(
            kept,
            issuer=what_if.issuer or kept.issuer,
            next_at=now + kept.life * (n / what_if.more),
            assumed=True,
            number=1,
        )
        for n, kept in enumerate(models)
    ]


def _unknown(what_if: WhatIf, now: datetime) -> Iterator[PlannedCertificate]:
    """For an issuer without certificates: each of a domain of its own, as nothing is known of their names."""
    for n in count(1):
        name = Identifier("dns", f"supposed-{n}.example")
        yield PlannedCertificate(issuer=what_if.issuer or "own", identifiers=(name,), next_at=now, life=COMMON_LIFE)
