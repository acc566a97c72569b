"""Certificates in numbers, counted by the database: summary, expiry, outcomes, issuance rate, and the forecast."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field

from holdfast.core.forecast import (
    COMMON_LIFE,
    MOST_RENEWALS,
    Month,
    PlannedCertificate,
    WhatIf,
    ahead,
    at_least,
    expected,
    folded,
    supposed,
)
from holdfast.core.inventory import Bucket, grid_around
from holdfast.core.issuers.budget import Limit
from holdfast.core.issuers.ca_limits import CaLimits
from holdfast.core.renewal import decide
from holdfast.errors import UserError
from holdfast.operations import kinds
from holdfast.operations.access import Action
from holdfast.operations.certificates.refs import all_visible
from holdfast.operations.context import Context
from holdfast.operations.inputs import Input, Nothing, Option, from_row
from holdfast.operations.issuers.manage import NoSuchIssuer
from holdfast.operations.operation import operation
from holdfast.operations.scopes import INSTALLATION, VISIBLE
from holdfast.pki.in_thread import Aside, Check
from holdfast.store import certificates, inventory, issuers, statistics, versions
from holdfast.store.tx import Tx


class _Spans(Input):
    by: Bucket = Field(default="day", description="How long a span is; a month has 30 days.")


class Ahead(_Spans):
    number: int = Field(default=90, ge=1, le=1000, description="How many spans.")


class Back(_Spans):
    number: int = Field(default=30, ge=1, le=1000, description="How many spans.")


class SummaryView(BaseModel):
    at: datetime
    certificates: dict[str, int]
    failing: int
    due: int
    under_way: int
    awaiting_approval: int
    never_issued: int
    expired: int
    expiring: dict[str, int] = Field(description="How many expire within so many days.")
    jobs: dict[str, int] = Field(description="Empty for an asker who may not see all certificates.")
    notifications_dead: int | None = Field(
        description="Notifications that could not be delivered; null for an asker who may not see all certificates."
    )


class ExpiryBucket(BaseModel):
    at: datetime = Field(description="When the span begins.")
    expiring: int
    renewals: int


class OutcomeCount(BaseModel):
    at: datetime
    issued: int
    failed: int
    cancelled: int
    reasons: dict[str, int]


class IssuanceRate(BaseModel):
    at: datetime
    issuer: str
    issued: int
    mean_s: float = Field(description="From the beginning of an issuance to its certificate.")
    longest_s: float


@operation(
    "stats.summary",
    "GET /stats/summary",
    command="stats summary",
    action=Action.SEE,
    scope=VISIBLE,
    example="holdfast stats summary",
)
def summary(tx: Tx, ctx: Context, asked: Nothing) -> SummaryView:
    """Count certificates: by state, failing, due, under way, expiring soon; with jobs and dead letters."""
    found = statistics.summary(tx, all_visible(ctx.principal))
    return from_row(SummaryView, found, certificates=found.states)


@operation(
    "stats.expiry",
    "GET /stats/expiry",
    command="stats expiry",
    action=Action.SEE,
    scope=VISIBLE,
    example="holdfast stats expiry --by week --number 12",
)
def expiry(tx: Tx, ctx: Context, asked: Ahead) -> list[ExpiryBucket]:
    """Count the certificates that expire in each span from now on, and the renewals planned in it."""
    grid = grid_around(tx.now(), asked.by, asked.number, back=False)
    return [ExpiryBucket(**asdict(each)) for each in statistics.expiry(tx, all_visible(ctx.principal), grid)]


@operation(
    "stats.outcomes",
    "GET /stats/outcomes",
    command="stats outcomes",
    action=Action.SEE,
    scope=VISIBLE,
    example="holdfast stats outcomes --by day --number 30",
)
def outcomes(tx: Tx, ctx: Context, asked: Back) -> list[OutcomeCount]:
    """Count the issuances that ended in each span until now, by outcome, and the reasons of those that failed."""
    grid = grid_around(tx.now(), asked.by, asked.number, back=True)
    return [OutcomeCount(**asdict(each)) for each in statistics.outcomes(tx, all_visible(ctx.principal), grid)]


@operation(
    "stats.issuance_rate",
    "GET /stats/issuance-rate",
    command="stats issuance-rate",
    action=Action.SEE,
    scope=VISIBLE,
    example="holdfast stats issuance-rate --by week",
)
def issuance_rate(tx: Tx, ctx: Context, asked: Back) -> list[IssuanceRate]:
    """Count what each issuer issued in each span until now, and how long that took; empty spans are left out."""
    grid = grid_around(tx.now(), asked.by, asked.number, back=True)
    return [IssuanceRate(**asdict(each)) for each in statistics.rates(tx, all_visible(ctx.principal), grid)]


class SpanOfTimes(BaseModel):
    at: datetime
    issued: int
    p50_s: float | None = Field(description="Half of them took at most so long; null: none was issued.")
    p95_s: float | None


class IssuanceTimes(BaseModel):
    """How long issuances took, from their beginning to their certificate."""

    issued: int
    p50_s: float | None
    p95_s: float | None
    spans: list[SpanOfTimes]


MOST_TIMES: Final = 5000  # issuances that are looked at, the newest


class BackHours(Input):
    hours: int = Field(default=168, ge=1, le=24 * 90, description="How far to look back.")
    number: int = Field(default=28, ge=1, le=200, description="Into how many equal spans.")


@operation(
    "stats.times",
    "GET /stats/times",
    command="stats times",
    action=Action.SEE,
    scope=VISIBLE,
    example="holdfast stats times --hours 24",
)
def times(tx: Tx, ctx: Context, asked: BackHours) -> IssuanceTimes:
    """Show how long issuances took lately, as median and 95th percentile: in all, and in each span until now."""
    now = tx.now()
    start, step = now - timedelta(hours=asked.hours), timedelta(hours=asked.hours) / asked.number
    found = statistics.took(tx, all_visible(ctx.principal), start, MOST_TIMES)
    parts: list[list[float]] = [[] for _ in range(asked.number)]
    for at, took in found:
        parts[min(asked.number - 1, int((at - start) / step))].append(took)
    spans = [SpanOfTimes(at=start + number * step, **_percentiles(part)) for number, part in enumerate(parts)]
    return IssuanceTimes(**_percentiles([took for _, took in found]), spans=spans)


def _percentiles(took: list[float]) -> dict[str, Any]:
    ordered = sorted(took)

    def at(share: float) -> float | None:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None

    return {"issued": len(ordered), "p50_s": at(0.5), "p95_s": at(0.95)}


PAGE: Final = 1000


class HalfALimit(UserError):
    code = "half-a-limit"

    def __init__(self) -> None:
        super().__init__("Another limit of an issuer needs the issuer, a burst, and a time: one of them is missing.")
        self.hint = "Send issuer, orders_burst and orders_every_s together."


class ForecastTooLong(UserError):
    code = "forecast-too-long"

    def __init__(self, needed: int) -> None:
        super().__init__(
            f"This forecast has about {needed:,} renewals to count; at most {MOST_RENEWALS:,} are counted."
        )
        self.hint = "Ask for fewer months, a longer lifetime, or fewer certificates more."


class ForecastRequest(Input):
    months: int = Field(default=12, ge=1, le=36)
    issuer: str | None = Field(default=None, max_length=63, description="Only this issuer.")
    lifetime_days: float | None = Field(
        default=None, ge=1, le=3650, description="Suppose that no certificate lives longer."
    )
    more: int = Field(default=0, ge=0, le=100_000, description="Suppose so many certificates more.")
    orders_burst: int | None = Field(
        default=None, ge=1, le=1_000_000, description="Suppose that the issuer allows so many orders at once,"
    )
    orders_every_s: float | None = Field(default=None, ge=0.001, le=1e7, description="and one more after so long.")
    max_age_s: Annotated[float, Option(hidden=True)] = Field(
        default=0,
        ge=0,
        le=600,
        description="Certificates as read so long ago are good enough: `at` says when.",
    )


class LimitBroken(BaseModel):
    """A limit that will not be kept."""

    kind: str  # hour, week, domain or names
    what: str
    starts: datetime
    needed: int
    allowed: int


class MonthToCome(BaseModel):
    month: str  # 2027-03
    issuer: str
    starts: datetime
    orders: int
    names: int
    deployments: int = Field(description="To targets; they use nothing of what the issuer allows.")
    busiest_day: datetime | None
    busiest_day_orders: int
    busiest_hour_orders: int
    used_percent: int | None
    fits: bool
    problem: LimitBroken | None


class LimitToCome(BaseModel):
    """What one limit of an issuer is asked for in each week to come."""

    issuer: str
    kind: str = Field(description="orders, or domain.")
    what: str = Field(description="The domain; empty for orders.")
    allowed: int | None = Field(description="In seven days; null: the issuer states no limit.")
    begins: datetime = Field(description="When the first week begins, a Monday.")
    weeks: list[int]
    first_broken: datetime | None = Field(description="The first week that needs more than is allowed.")


class Outlook(BaseModel):
    at: datetime
    certificates: int
    fits: bool
    months: list[MonthToCome]
    limits: list[LimitToCome] = Field(description="The tightest first; of an issuer's domains, the ten busiest.")


@dataclass(frozen=True, slots=True)
class _Facts:
    fleet: list[PlannedCertificate]
    limits: dict[str, CaLimits]
    now: datetime
    event: int  # the newest when they were read


@operation(
    "stats.forecast",
    "GET /forecast",
    command="simulate",
    action=Action.SEE,
    scope=INSTALLATION,
    example="holdfast simulate --lifetime 47d",
)
async def forecast(ctx: Context, asked: ForecastRequest) -> Outlook:
    """Forecast what the certificates need of their issuers in each month, when they need most, and which limit breaks.

    As things are, or as they might be: with shorter lifetimes, more certificates, or another limit.
    """
    what_if = _what_if(asked)
    async with ctx.services.reckoning.turn() as aside:
        facts = await _recent(ctx, aside, timedelta(seconds=asked.max_age_s))
        if what_if.issuer is not None and what_if.issuer not in facts.limits:
            raise NoSuchIssuer(what_if.issuer)
        return await aside(lambda check: _outlook(facts, what_if, asked.months, check))


def _outlook(facts: _Facts, what_if: WhatIf, months: int, check: Check) -> Outlook:
    """Takes seconds."""
    limits, name = facts.limits, what_if.issuer
    if name is not None and what_if.orders is not None:
        limits = {**limits, name: replace(limits[name], orders=what_if.orders)}
    needed = at_least(facts.fleet, what_if, limits, facts.now, months=months) if what_if.more else 0
    if needed > MOST_RENEWALS:
        raise ForecastTooLong(needed)
    fleet = supposed(facts.fleet, what_if, facts.now)
    needed = expected(fleet, limits, facts.now, months=months)
    if needed > MOST_RENEWALS:
        raise ForecastTooLong(needed)
    if what_if.more:
        fleet = folded(fleet, limits, check)
    found = ahead(fleet, limits, facts.now, months=months, check=check)
    return Outlook(
        at=facts.now,
        certificates=sum(each.number for each in fleet),
        fits=all(each.fits for each in found.months),
        months=[_shown(each) for each in found.months],
        limits=[from_row(LimitToCome, each) for each in found.limits],
    )


def _what_if(asked: ForecastRequest) -> WhatIf:
    orders, given = None, (asked.issuer, asked.orders_burst, asked.orders_every_s)
    if asked.orders_burst is not None and asked.orders_every_s is not None and asked.issuer is not None:
        orders = Limit(burst=asked.orders_burst, every=timedelta(seconds=asked.orders_every_s))
    elif given != (asked.issuer, None, None):
        raise HalfALimit
    life = None if asked.lifetime_days is None else timedelta(days=asked.lifetime_days)
    return WhatIf(life=life, more=asked.more, issuer=asked.issuer, orders=orders)


def _shown(month: Month) -> MonthToCome:
    problem = None if month.problem is None else from_row(LimitBroken, month.problem)
    return from_row(MonthToCome, month, month=f"{month.starts:%Y-%m}", problem=problem)


async def _recent(ctx: Context, aside: Aside, most: timedelta) -> _Facts:
    """As they were read a moment ago, where that is good enough or nothing happened since."""
    reckoning, (now, event, limits) = ctx.services.reckoning, await ctx.read(_today)
    held = reckoning.kept
    if isinstance(held, _Facts) and held.limits == limits:
        if held.event == event:
            return replace(held, now=now)
        if timedelta(0) <= now - held.now <= most:
            return held
    fleet = await _fleet(ctx)
    found = _Facts(await aside(lambda check: folded(fleet, limits, check)), limits, now, event)
    reckoning.kept = found
    return found


def _today(tx: Tx) -> tuple[datetime, int, dict[str, CaLimits]]:
    limits = {row.name: kinds.limits_of(row) for row in issuers.all_issuers(tx)}
    return tx.now(), inventory.newest_event(tx), limits


async def _fleet(ctx: Context) -> list[PlannedCertificate]:
    """Read in pages."""
    fleet, after = list[PlannedCertificate](), ""
    while page := await ctx.read(lambda tx, after=after: _kept(tx, after)):  # type: ignore[misc]
        fleet += [kept for _, kept in page]
        after = page[-1][0]
    return fleet


def _kept(tx: Tx, after: str) -> list[tuple[str, PlannedCertificate]]:
    return [(each.name, _future(tx, each)) for each in certificates.plans(tx, after=after, limit=PAGE)]


def _future(tx: Tx, plan: certificates.Plan) -> PlannedCertificate:
    return PlannedCertificate(
        issuer=plan.issuers[0],
        identifiers=plan.identifiers,
        next_at=plan.next_action_at or _decided(tx, plan.name),
        life=plan.lifetime or plan.life or COMMON_LIFE,
        fraction=plan.rule.fraction,
        before=plan.rule.before,
        windows=plan.windows,
        targets=len(plan.targets),
    )


def _decided(tx: Tx, name: str) -> datetime:
    """While an issuance is under way no renewal is planned: its order may wait, in a storm with all the others."""
    found = certificates.by_name(tx, name)
    held = None if found is None else versions.get(tx, found.current_version)
    return (None if found is None else decide(found, held, tx.now()).at) or tx.now()
