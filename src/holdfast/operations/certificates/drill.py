"""A fire drill: a mass replacement is rehearsed, and nothing that is served is touched.

Real: the choice of certificates, the state of budgets, a test of each issuer and of each target, and a few certificates
that our own CA issues for fresh keys, which are thrown away. Computed: whose turn comes when, and when each is served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated, Final

from pydantic import BaseModel, Field

from holdfast.core import drill as rules
from holdfast.core.certificate import Certificate, CertificateState
from holdfast.core.drill import DrilledCertificate, DrilledIssuer, DrilledTarget, DrillGround, Replacement
from holdfast.core.inventory import InventoryFilter
from holdfast.core.issuers.budget import Budget
from holdfast.core.issuers.issuer import IssuerRow, IssuerState
from holdfast.core.kind import Trait
from holdfast.core.solver import Provable, unproved
from holdfast.core.target import TargetRow, TargetState
from holdfast.errors import Refused, TryLater, UserError
from holdfast.operations import kinds
from holdfast.operations.access import Action
from holdfast.operations.context import Context
from holdfast.operations.inputs import Input, Option, RemoteName, label_pair
from holdfast.operations.operation import operation
from holdfast.operations.scopes import INSTALLATION
from holdfast.pki.in_thread import Check
from holdfast.store import inventory, issuers, journal, versions
from holdfast.store.deployments import freezes, targets
from holdfast.store.tx import Tx
from holdfast.store.work import budgets

PAGE: Final = 500
SHOWN: Final = 200  # certificates that are listed one by one
MOST_TRIED: Final = 100  # targets
AT_ONCE: Final = 8
EACH: Final = 10.0  # seconds for one target or issuer
ASSUMED: Final = timedelta(minutes=1)  # an issuance of a CA that was not measured
AT_LEAST: Final = timedelta(seconds=1)  # a deployment: writing, testing, reloading and looking


class NothingToDrill(UserError):
    code = "nothing-to-drill"
    hint = "Choose by --issuer NAME, or --label name=value: holdfast ls --label name=value"


class DrillTooLarge(UserError):
    code = "drill-too-large"
    hint = "Choose fewer by --label name=value."

    def __init__(self) -> None:
        super().__init__(f"A drill has at most {rules.MOST:,} certificates.")


class DrillRequest(Input):
    label: list[str] = Field(default=[], max_length=16, description="Only certificates with this label; name=value.")
    issuer: RemoteName | None = Field(default=None, description="Only certificates that come from this issuer.")
    at: Annotated[RemoteName | None, Option(flag="--at")] = Field(
        default=None,
        description="Our own CA, by the name of its issuer, where some are really issued; left out: the first.",
    )
    within_s: Annotated[int, Option(flag="--within", read="duration")] = Field(
        default=86400, ge=60, le=90 * 86400, description="All must be replaced within this; left out: a day."
    )
    sample: int = Field(default=3, ge=0, le=20, description="So many are really issued by our own CA, for fresh keys.")


class Tried(BaseModel):
    """Something that was really done."""

    name: str
    ok: bool
    took_s: float
    said: str


class DrilledView(BaseModel):
    name: str
    issuer: str
    turn: int = Field(description="Its place in the line: the certificate that expires first goes first.")
    expires_at: datetime | None
    ordered_after_s: float | None
    served_after_s: float | None
    waits_for: str = Field(description="The budget that decides about its turn.")
    makes_it: bool
    why: list[str]


class DrillReport(BaseModel):
    at: datetime
    certificates: int
    within_s: int
    makes_it: int
    too_late: int = Field(description="They would be served, and too late.")
    blocked: int = Field(description="A person must do something first, or nothing here installs them.")
    safe_after_s: float | None = Field(
        description="Time to safe: until the last is served; null: some are not, without a person."
    )
    served_after_s: float | None = Field(description="The same of those that nothing blocks.")
    issued: list[Tried] = Field(description="Really issued by our own CA, for fresh keys; never stored, never served.")
    issuers: list[Tried] = Field(description="Issuers that were really tested.")
    targets: list[Tried] = Field(description="Targets that were really tested; nothing was written there.")
    failing: list[DrilledView] = Field(description="Those that would not make it, the first in line first.")
    computed: list[str] = Field(description="What of this is computed, and from what.")


@dataclass(slots=True)
class _Fleet:
    rows: list[tuple[Certificate, datetime | None]] = field(default_factory=list)
    issuers: dict[str, IssuerRow] = field(default_factory=dict)
    targets: dict[str, TargetRow] = field(default_factory=dict)
    budgets: dict[str, Budget] = field(default_factory=dict)
    frozen_until: datetime | None = None


@operation(
    "drill.run",
    "POST /drill",
    command="drill",
    action=Action.RENEW,
    scope=INSTALLATION,
    dry_runs=False,
    keyed=False,
    example="holdfast drill --issuer letsencrypt --within 24h",
)
async def drill(ctx: Context, asked: DrillRequest) -> DrillReport:
    """Rehearse the replacement of all certificates of an issuer or a label, and say who would not make it, and why.

    Nothing that is served is touched: targets are only tested, and the few certificates that our own CA really issues
    are for fresh keys that are thrown away.
    """
    fleet = await _gathered(ctx, asked)
    now = await ctx.read(lambda tx: tx.now())
    tried_targets = await _try_all([(name, ctx, row) for name, row in sorted(fleet.targets.items())[:MOST_TRIED]])
    tried_issuers = await _try_all([(name, ctx, row) for name, row in sorted(fleet.issuers.items())])
    own, issued = await _issued(ctx, asked, fleet)
    known = await ctx.services.known_solvers()
    ground = DrillGround(
        issuers={name: _issuer(row, own, issued) for name, row in fleet.issuers.items()},
        targets={name: _target(row, tried_targets.get(name)) for name, row in fleet.targets.items()},
        budgets=fleet.budgets,
        now=now,
        frozen_until=fleet.frozen_until,
    )
    drilled = [_certificate(row, ends, fleet, tried_issuers, known) for row, ends in fleet.rows]
    async with ctx.services.reckoning.turn() as aside:
        found = await aside(lambda check: _rehearsed(drilled, ground, check))
    report = _report(asked, now, found, issued, tried_issuers, tried_targets)
    await ctx.write(lambda tx: _told(tx, ctx, asked, report))
    return report


def _rehearsed(drilled: Sequence[DrilledCertificate], ground: DrillGround, check: Check) -> list[Replacement]:
    return rules.rehearse(drilled, ground, check)


# ── What there is ──


async def _gathered(ctx: Context, asked: DrillRequest) -> _Fleet:
    labels, fleet = dict(label_pair(each) for each in asked.label), _Fleet()
    wanted, after = InventoryFilter(labels=labels, issuer=asked.issuer), None
    while page := await ctx.read(lambda tx, after=after: _page(tx, wanted, after)):  # type: ignore[misc]
        fleet.rows += page
        if len(fleet.rows) > rules.MOST:
            raise DrillTooLarge
        after = (page[-1][0].name, page[-1][0].id)
    if not fleet.rows:
        raise NothingToDrill("No certificate has this label and this issuer.")

    def read(tx: Tx) -> None:
        names = {row.wanted.issuers[0] for row, _ in fleet.rows}
        fleet.issuers = {each.name: each for each in issuers.all_issuers(tx) if each.name in names}
        used = {name for row, _ in fleet.rows for name in row.wanted.targets}
        fleet.targets = {each.name: each for each in targets.all_targets(tx) if each.name in used}
        fleet.budgets = {each.key: each for each in budgets.all_budgets(tx)}
        fleet.frozen_until = freezes.until(tx)

    await ctx.read(read)
    return fleet


def _page(tx: Tx, wanted: InventoryFilter, after: tuple[str, str] | None) -> list[tuple[Certificate, datetime | None]]:
    rows = inventory.find(tx, wanted, sort="name", after=after, limit=PAGE)
    held = versions.many(tx, [each.current_version for each in rows if each.current_version], chains=False)
    return [(each, held[each.current_version].not_after if each.current_version in held else None) for each in rows]


# ── What is really tried ──


async def _try_all(wanted: Sequence[tuple[str, Context, IssuerRow | TargetRow]]) -> dict[str, Tried]:
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(name: str, ctx: Context, row: IssuerRow | TargetRow) -> Tried:
        async with slots:
            return await _tried(name, ctx, row)

    found = await asyncio.gather(*(one(*each) for each in wanted))
    return {each.name: each for each in found}


async def _tried(name: str, ctx: Context, row: IssuerRow | TargetRow) -> Tried:
    clock = asyncio.get_running_loop()
    begun = clock.time()
    try:
        async with asyncio.timeout(EACH):
            said, ok = await _probed(ctx, row), True
    except (Refused, TryLater) as why:
        said, ok = str(why), False
    except TimeoutError:
        said, ok = f"It did not answer within {EACH:g} s.", False
    return Tried(name=name, ok=ok, took_s=round(clock.time() - begun, 3), said=said)


async def _probed(ctx: Context, row: IssuerRow | TargetRow) -> str:
    if isinstance(row, IssuerRow):
        return await ctx.services.probe(row)
    if ctx.services.targets is None:
        raise Refused("This process cannot reach targets.")
    return await ctx.services.targets.probe(row)


async def _issued(ctx: Context, asked: DrillRequest, fleet: _Fleet) -> tuple[str, list[Tried]]:
    """Really issue some, at our own CA, for those that expire first."""
    rows = await ctx.read(issuers.all_issuers)
    ours = [each for each in rows if kinds.has(each, Trait.OURS) and asked.at in (None, each.name)]
    if asked.at is not None and not ours:
        raise NothingToDrill(f"{asked.at} is no issuer that is a CA of ours: nothing is ordered elsewhere in a drill.")
    if not ours or not asked.sample:
        return "", []
    first = sorted(fleet.rows, key=lambda each: (each[1] is None, each[1], each[0].name))[: asked.sample]
    return ours[0].name, [await _issue_one(ctx, ours[0], row) for row, _ in first]


async def _issue_one(ctx: Context, issuer: IssuerRow, row: Certificate) -> Tried:
    clock = asyncio.get_running_loop()
    begun = clock.time()
    try:
        said, ok = await ctx.services.rehearse(issuer, row.wanted), True
    except (Refused, TryLater) as why:
        said, ok = str(why), False
    return Tried(name=row.name, ok=ok, took_s=round(clock.time() - begun, 3), said=said)


# ── What it means ──


def _issuer(row: IssuerRow, own: str, issued: Sequence[Tried]) -> DrilledIssuer:
    good = [each.took_s for each in issued if each.ok]
    measured = timedelta(seconds=max(good)) if good and row.name == own else None
    takes = measured or ASSUMED
    return DrilledIssuer(limits=kinds.limits_of(row), requests=kinds.requests_of(row).order, takes=takes)


def _target(row: TargetRow, tried: Tried | None) -> DrilledTarget:
    obstacle = ""
    if row.state is not TargetState.ACTIVE:
        obstacle = f"Target {row.name} is {row.state}: resume it."
    elif tried is not None and not tried.ok:
        obstacle = f"Target {row.name} failed its test: {tried.said}"
    takes = AT_LEAST if tried is None else max(AT_LEAST, timedelta(seconds=tried.took_s))
    return DrilledTarget(domain=row.reload_domain, takes=takes, windows=row.windows, obstacle=obstacle)


def _certificate(
    row: Certificate, ends: datetime | None, fleet: _Fleet, tried: Mapping[str, Tried], known: Sequence[Provable] | None
) -> DrilledCertificate:
    wanted = row.wanted
    return DrilledCertificate(
        name=row.name,
        identifiers=wanted.identifiers,
        issuer=wanted.issuers[0],
        ends=ends,
        targets=tuple(each for each in wanted.targets if each in fleet.targets),
        obstacles=tuple(_obstacles(row, fleet, tried, known)),
    )


def _obstacles(
    row: Certificate, fleet: _Fleet, tried: Mapping[str, Tried], known: Sequence[Provable] | None
) -> list[str]:
    """Why nothing can be ordered for it without a person."""
    wanted, said = row.wanted, list[str]()
    issuer = fleet.issuers.get(wanted.issuers[0])
    if row.state is CertificateState.PAUSED:
        said.append("It is paused: resume it.")
    if wanted.approval_required:
        said.append("A second person must approve its issuance.")
    if wanted.csr is not None and not wanted.reuse_key:
        said.append("Its key is not here: its owner must hand in a CSR with a new key.")
    if issuer is None:
        said.append(f"Its issuer {wanted.issuers[0]} is not configured here.")
    elif issuer.state is IssuerState.PAUSED:
        said.append(f"Issuer {issuer.name} is paused: resume it.")
    elif (test := tried.get(issuer.name)) is not None and not test.ok:
        said.append(f"Issuer {issuer.name} failed its test: {test.said}")
    if issuer is not None and known is not None and kinds.has(issuer, Trait.HAS_ACCOUNT):
        said += [f"No solver can prove {each.value}." for each in unproved(wanted, known)[:3]]
    missing = [each for each in wanted.targets if each not in fleet.targets]
    return [*said, *(f"Target {each} does not exist." for each in missing[:3])]


def _report(
    asked: DrillRequest,
    now: datetime,
    found: Sequence[Replacement],
    issued: Sequence[Tried],
    tried_issuers: Mapping[str, Tried],
    tried_targets: Mapping[str, Tried],
) -> DrillReport:
    by = now + timedelta(seconds=asked.within_s)
    failing = [each for each in found if not each.makes_it(by)]
    free = [each for each in found if not each.problems and each.served_at is not None]
    safe, of_free = rules.time_to_safe(found, now), rules.time_to_safe(free, now)
    return DrillReport(
        at=now,
        certificates=len(found),
        within_s=asked.within_s,
        makes_it=len(found) - len(failing),
        too_late=sum(not each.problems for each in failing),
        blocked=sum(bool(each.problems) for each in failing),
        safe_after_s=None if safe is None else safe.total_seconds(),
        served_after_s=of_free.total_seconds() if free and of_free is not None else None,
        issued=list(issued),
        issuers=list(tried_issuers.values()),
        targets=list(tried_targets.values()),
        failing=[_shown(each, now, by) for each in failing[:SHOWN]],
        computed=_computed(issued),
    )


def _shown(each: Replacement, now: datetime, by: datetime) -> DrilledView:
    late = (
        [] if each.problems else [f"It would be served too late: its turn at {each.waits_for or 'its issuer'} is late."]
    )
    return DrilledView(
        name=each.name,
        issuer=each.issuer,
        turn=each.turn,
        expires_at=each.ends,
        ordered_after_s=_after(each.ordered_at, now),
        served_after_s=_after(each.served_at, now),
        waits_for=each.waits_for,
        makes_it=each.makes_it(by),
        why=[*each.problems, *late],
    )


def _after(at: datetime | None, now: datetime) -> float | None:
    return None if at is None else round((at - now).total_seconds(), 1)


def _computed(issued: Sequence[Tried]) -> list[str]:
    measured = any(each.ok for each in issued)
    return [
        "Turns are computed from the limits of each issuer and what is left of them now; nothing is taken from them.",
        "An issuance takes what it took at our own CA just now; at other issuers, a minute is assumed."
        if measured
        else "No issuance was measured: a minute is assumed for each.",
        "A deployment takes as long as the test of its target, at least a second; one at a time in each reload domain.",
    ]


def _told(tx: Tx, ctx: Context, asked: DrillRequest, report: DrillReport) -> None:
    journal.audit(
        tx, "drill_held", "drill", actor=ctx.actor, issuer=asked.issuer or "", labels=asked.label,
        certificates=report.certificates, makes_it=report.makes_it, blocked=report.blocked, too_late=report.too_late,
    )  # fmt: skip
    journal.event(tx, "drill.held", "drill", by=ctx.actor, certificates=report.certificates, makes_it=report.makes_it)
