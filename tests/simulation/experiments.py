"""Four questions that only time answers: a year, a storm, an outage, a mass revocation; each ends in figures.

The engine, its SQL and every check of what a CA sends are the product's own. Settings are slower than usual where a
year has to pass in a minute: replicas look every few hours, leases last half a day.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from holdfast.core.certificate import RenewalPolicy
from holdfast.core.issuers.budget import Limit
from holdfast.core.renewal import SHORT_LIFE
from holdfast.engine.replica import Pace
from holdfast.store.tx import Tx
from tests.simulation import faults, life_invariants
from tests.simulation.authority import Authority
from tests.simulation.clockwork import VirtualLoop
from tests.simulation.fleet import Member, enlist, spread_evenly
from tests.simulation.ground import REPLICAS
from tests.simulation.invariants import Violation
from tests.simulation.life_stage import LifeStage, Rhythm
from tests.simulation.run import Result, noted, pass_time, perform

MINUTE: Final = timedelta(minutes=1)
HOUR: Final = timedelta(hours=1)
DAY: Final = timedelta(days=1)
LETS_ENCRYPT: Final = Limit(burst=300, every=timedelta(seconds=36))
GRACE: Final = 900.0  # seconds that it takes to begin an attempt, and to deal the turns anew
QUICK: Final = Limit(burst=50, every=timedelta(seconds=2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    name: str
    value: float
    unit: str
    goal: str
    met: bool

    def __str__(self) -> str:
        return f"FIGURE {self.name} {self.value:g} {self.unit} goal {self.goal} {'met' if self.met else 'short'}"


@dataclass(slots=True)
class Report:
    """What an experiment found; figures of several installations are added up."""

    violation: str = ""
    audit_hash: str = ""
    counts: dict[str, float] = field(default_factory=dict)
    faults: int = 0


def _perform(
    make: Callable[[VirtualLoop], LifeStage],
    story: Callable[[LifeStage, Report, Result], object],
    *,
    seed: int,
) -> Report:
    report = Report()

    async def told(stage: LifeStage, result: Result) -> None:
        await story(stage, report, result)  # type: ignore[misc]
        report.counts["expired"] = max(report.counts["expired"], stage.truth.look(_gaps))

    result = perform(make, told, Result(seed, "experiment"), every=1_000_000)
    report.violation, report.audit_hash, report.faults = result.violation, result.audit_hash, result.faults.total()
    return report


def _expired(tx: Tx) -> int:
    """By the index of what has ended; at the end of an experiment the tables are read as a whole."""
    row = tx.rows(
        """SELECT COUNT(*) AS n FROM certificate_versions AS held
            WHERE held.not_after <= (SELECT now_us()) AND held.state IN ('active', 'imported')
              AND EXISTS (SELECT 1 FROM certificates WHERE certificates.id = held.certificate
                             AND certificates.current_version = held.id AND certificates.state = 'active')"""
    )[0]
    return int(row["n"])


def _gaps(tx: Tx) -> int:
    """How often a certificate ended before the next one took over, however soon afterwards that was."""
    row = tx.rows(
        """SELECT COUNT(*) AS n FROM (SELECT not_after, LEAD(issued_at) OVER (PARTITION BY certificate
                                                                        ORDER BY issued_at) AS followed_at
                                        FROM certificate_versions) AS held
            WHERE followed_at >= not_after"""
    )[0]
    return int(row["n"])


async def _live(stage: LifeStage, report: Report, until: float, *, step: float) -> None:
    """Let time pass, and look whether anything has expired."""
    while stage.loop.time() < until:
        await pass_time(stage, min(step, until - stage.loop.time()))
        report.counts["expired"] = max(report.counts.get("expired", 0), stage.truth.look(_expired))


# ── A year ──

YEAR_PACE: Final = Pace(
    poll=2 * HOUR, ttl=12 * HOUR, drain=HOUR, retry=12 * HOUR, reconcile=12 * HOUR, timeout=DAY, cleanup=DAY
)
YEAR_RHYTHM: Final = Rhythm(renewal=3 * HOUR, ask=DAY, turn=DAY, others=DAY, history_for=400 * DAY)


# Of a thousand certificates so many have so many days: public ones live 200 at most since 2026, most of ACME 90.
LIVES: Final = {200: 500, 90: 450, 47: 45, 6: 5}
PROFILES: Final = {f"{days}-days": days * DAY for days in LIVES}


def year(number: int = 10_000, days: int = 365, seed: int = 1) -> Report:
    """So many certificates from two CAs, with replicas that die and CAs that are away, twice a day."""
    slower = Limit(burst=100, every=timedelta(seconds=36))
    cas = [
        Authority(name="alpha", life=90 * DAY, lives=PROFILES, orders_limit=LETS_ENCRYPT),
        Authority(name="beta", life=90 * DAY, lives=PROFILES, orders_limit=slower),
    ]

    async def story(stage: LifeStage, report: Report, result: Result) -> None:
        enlist(stage, (_of_the_year(n) for n in range(number)))
        end = days * DAY.total_seconds()
        striking = faults.strike(
            stage, end, noted(stage, result, trace=False), OF_THE_YEAR, every=DAY.total_seconds() / 2
        )
        raging = stage.loop.create_task(striking)
        await _live(stage, report, end, step=DAY.total_seconds())
        await raging
        await _live(stage, report, stage.loop.time() + 3 * DAY.total_seconds(), step=DAY.total_seconds())
        late = stage.truth.look(lambda tx: life_invariants.unfinished(tx, DAY))  # some are always just due
        if late:
            raise Violation(f"I12: three days after the last fault {len(late)} are not done, {late[0]} among them")
        life_invariants.now_and_then(stage)
        report.counts["issued"] = sum(len(ca.by_serial) for ca in cas) - number
        report.counts["requests"] = stage.requests

    return _perform(
        lambda loop: LifeStage(
            loop, seed, replicas=REPLICAS, cas=cas, pace=YEAR_PACE, rhythm=YEAR_RHYTHM, vigilant=False, latencies=False
        ),
        story,
        seed=seed,
    )


def _of_the_year(number: int) -> Member:
    """None is due yet, no two are of the same age, and any number of them is a mixture of all lives."""
    days = _life(number * 389 % 1000)
    age = days * DAY * (0.55 if days >= SHORT_LIFE.days else 0.4) * ((number * 0.6180339887) % 1)
    issuers = ("alpha", "beta") if number % 2 else ("beta",)
    name = f"n{number}.example{number % 97}.com"
    return Member(name=name, issuers=issuers, age=age, wishes={"profile": f"{days}-days"})


def _life(place: int) -> int:
    for days, share in LIVES.items():
        if place < share:
            return days
        place -= share
    raise AssertionError("the shares are of a thousand")


async def _away_for_hours(stage: LifeStage) -> None:
    ca = stage.dice.choice(list(stage.cas.values()))
    ca.down_until = stage.loop.time() + stage.dice.uniform(1, 8) * 3600


async def _database_away_for_hours(stage: LifeStage) -> None:
    """Measured by hours, not by leases of half a day: without a store for days nobody keeps one of six days."""
    stage.truth.down_until = stage.loop.time() + stage.dice.uniform(1, 8) * 3600


async def _limits_for_hours(stage: LifeStage) -> None:
    ca = stage.dice.choice(list(stage.cas.values()))
    ca.storm_until = stage.loop.time() + stage.dice.uniform(1, 24) * 3600
    ca.storm_says = stage.dice.choice([None, 3600.0, 30.0])


async def _issues_hours_later(stage: LifeStage) -> None:
    ca = stage.dice.choice(list(stage.cas.values()))
    ca.late_until = stage.loop.time() + 6 * 3600
    ca.late_for = 3 * 3600.0


OF_THE_YEAR: Final[tuple[faults.Fault[LifeStage], ...]] = (
    faults.kill, faults.kill_at_a_point, faults.stop_in_good_order, faults.pause, faults.pause_at_a_point,
    _database_away_for_hours, faults.cut_off_from_the_database, faults.flaky_commits, faults.lost_commit_answers,
    faults.lost_replies, faults.lost_wake_ups, faults.vandal, faults.set_a_replicas_clock,
    _away_for_hours, _limits_for_hours, _issues_hours_later,
)  # fmt: skip


def year_figures(reports: list[Report], seconds: float, cpu: float) -> list[Figure]:
    expired = sum(report.counts.get("expired", 0) for report in reports)
    broken = [report.violation for report in reports if report.violation]
    each = 1000 * cpu / max(1, sum(report.counts.get("issued", 0) for report in reports))
    return [
        Figure(name="sim_year_seconds", value=round(seconds, 1), unit="s", goal="60", met=seconds <= 60),
        Figure(name="sim_year_cpu_seconds", value=round(cpu, 1), unit="s", goal="120_on_2_cores", met=cpu <= 120),
        Figure(name="sim_year_cpu_per_renewal", value=round(each, 2), unit="ms", goal="2", met=each <= 2),
        Figure(name="sim_year_expired", value=expired, unit="certificates", goal="0", met=not expired),
        Figure(name="sim_year_violations", value=len(broken), unit="promises", goal="0", met=not broken),
    ]


# ── A storm, an outage ──

DAY_PACE: Final = Pace(poll=MINUTE, ttl=6 * MINUTE, drain=MINUTE, retry=HOUR, reconcile=HOUR, timeout=HOUR, cleanup=DAY)
DAY_RHYTHM: Final = Rhythm(renewal=5 * MINUTE, ask=15 * MINUTE, turn=5 * MINUTE, others=DAY)


def storm(number: int = 10_000, seed: int = 1, *, says: float | None = 3600.0) -> Report:
    """All are due, and for a day the CA answers 429, with this Retry-After or none; then it is well again."""
    ca = Authority(name="alpha", life=90 * DAY, orders_limit=QUICK, ari=True)

    async def story(stage: LifeStage, report: Report, result: Result) -> None:
        ca.storm_until, ca.storm_says = DAY.total_seconds(), says
        rules = [RenewalPolicy(ari=True), RenewalPolicy(ari=False)]
        enlist(
            stage,
            (
                Member(name=f"n{n}.example.com", issuers=("alpha",), age=61 * DAY, wishes={"rule": rules[n % 2]})
                for n in range(number)
            ),
        )
        await _live(stage, report, DAY.total_seconds(), step=3600)
        report.counts["requests"] = ca.requests
        await _until_done(stage, report, 3 * DAY.total_seconds())
        report.counts["recovered_after_h"] = round(stage.loop.time() / 3600 - 24, 1)
        life_invariants.inside_the_budget(ca, stage.rewound_at)

    return _perform(_in_minutes(seed, [ca]), story, seed=seed)


def outage(number: int = 2_000, seed: int = 1) -> Report:
    """Certificates of six days, some of them due at every moment; the CA is away for eight hours."""
    ca = Authority(name="alpha", life=6 * DAY, orders_limit=QUICK)

    async def story(stage: LifeStage, report: Report, result: Result) -> None:
        ages = spread_evenly(number, 6 * DAY, share=0.5)
        enlist(stage, (Member(name=f"n{n}.example.com", issuers=("alpha",), age=age) for n, age in enumerate(ages)))
        await _live(stage, report, DAY.total_seconds(), step=3600)
        before = ca.requests
        ca.down_until = stage.loop.time() + 8 * 3600
        await _live(stage, report, ca.down_until, step=3600)
        report.counts["requests"] = ca.requests - before
        await _until_done(stage, report, 2 * DAY.total_seconds(), since=HOUR / 2)
        report.counts["recovered_after_h"] = round((stage.loop.time() - ca.down_until) / 3600, 1)
        life_invariants.inside_the_budget(ca, stage.rewound_at)

    return _perform(_in_minutes(seed, [ca]), story, seed=seed)


async def _until_done(stage: LifeStage, report: Report, within: float, since: timedelta = timedelta(0)) -> None:
    """Until nothing is left that has been due for so long: of many, some are always just due."""
    end = stage.loop.time() + within
    while stage.truth.look(lambda tx: life_invariants.unfinished(tx, since)):
        if stage.loop.time() > end:
            raise Violation(f"I12: {within / 3600:.0f} h after the last fault something is not done")
        await _live(stage, report, stage.loop.time() + 600, step=600)


def _in_minutes(seed: int, cas: list[Authority]) -> Callable[[VirtualLoop], LifeStage]:
    return lambda loop: LifeStage(
        loop, seed, replicas=REPLICAS, cas=cas, pace=DAY_PACE, rhythm=DAY_RHYTHM, vigilant=False, latencies=False
    )


def storm_figures(report: Report, name: str = "sim_storm") -> list[Figure]:
    asked, expired = report.counts.get("requests", -1), report.counts.get("expired", -1)
    return [
        Figure(name=f"{name}_requests", value=asked, unit="requests_in_24_h", goal="300", met=0 <= asked <= 300),
        *_sound(report, name, expired),
    ]


def outage_figures(report: Report) -> list[Figure]:
    asked = report.counts.get("requests", -1)
    return [
        *_sound(report, "sim_outage", report.counts.get("expired", -1)),
        Figure(name="sim_outage_requests", value=asked, unit="requests_in_8_h", goal="200", met=0 <= asked <= 200),
    ]


def _sound(report: Report, name: str, expired: float) -> list[Figure]:
    return [
        Figure(name=f"{name}_expired", value=expired, unit="certificates", goal="0", met=expired == 0),
        Figure(
            name=f"{name}_violations",
            value=int(bool(report.violation)),
            unit="promises",
            goal="0",
            met=not report.violation,
        ),
    ]


# ── A mass revocation ──


def mass_revocation(number: int = 10_000, seed: int = 1, *, every: float = 4.0) -> Report:
    """The CA tells, by ARI, that all it issued is to be replaced now; it allows one order in so many seconds."""
    ca = Authority(name="alpha", life=90 * DAY, orders_limit=Limit(burst=50, every=timedelta(seconds=every)), ari=True)

    async def story(stage: LifeStage, report: Report, result: Result) -> None:
        rule = {"rule": RenewalPolicy(ari=True)}
        ages = spread_evenly(number, 90 * DAY, share=0.58)
        enlist(
            stage,
            (Member(name=f"n{n}.example.com", issuers=("alpha",), age=age, wishes=rule) for n, age in enumerate(ages)),
        )
        before = list(ca.by_serial)
        await _live(stage, report, HOUR.total_seconds(), step=3600)
        told_at = stage.loop.time()
        ca.hurried = dict.fromkeys(before, told_at)
        end = told_at + 4 * DAY.total_seconds()
        while (left := number + len(before) - len(ca.by_serial)) > 0:
            if stage.loop.time() > end:
                raise Violation(f"I12: four days after the CA asked for it {left} are not replaced")
            await _live(stage, report, stage.loop.time() + 600, step=600)
        report.counts["hours"] = round((stage.loop.time() - told_at) / 3600, 1)
        report.counts["hours_by_budget"] = round(number * every / 3600, 1)  # nobody can be faster
        report.counts["by_risk"] = by_risk(ca, told_at)
        life_invariants.inside_the_budget(ca, stage.rewound_at)

    return _perform(_in_minutes(seed, [ca]), story, seed=seed)


def by_risk(ca: Authority, since: float) -> float:
    """Of all pairs that waited at the same time, in how many percent the one went first that had less time left."""
    told = {ca.by_serial[serial].names: (at, ca.by_serial[serial].at) for serial, at in ca.told.items()}
    orders = sorted((o.paid_at, *told[o.names]) for o in ca.orders.values() if o.at >= since and o.names in told)
    sample = orders[:: 1 + len(orders) // 1500]  # of ten thousand there are fifty million pairs
    right = total = 0
    for n, (paid_at, _, issued) in enumerate(sample):
        for later, known, other in sample[n + 1 :]:
            if known + GRACE < paid_at < later - MINUTE.total_seconds():  # those of one minute were claimed together
                total += 1
                right += issued <= other
    return round(100 * right / max(1, total), 1)


def mass_revocation_figures(report: Report) -> list[Figure]:
    share, took, least = (report.counts.get(name, -1) for name in ("by_risk", "hours", "hours_by_budget"))
    in_time = 0 <= took <= 1.1 * least + 1
    return [
        Figure(name="sim_mass_revocation_by_risk", value=share, unit="percent_of_pairs", goal="95", met=share >= 95),
        Figure(name="sim_mass_revocation_hours", value=took, unit="h", goal=f"{1.1 * least + 1:.1f}", met=in_time),
        *_sound(report, "sim_mass_revocation", report.counts.get("expired", -1)),
    ]
