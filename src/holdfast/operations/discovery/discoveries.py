"""Discoveries: begin them, watch how far they are, stop them; and how many certificates are not managed here."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field

from holdfast.core.discovery import ct, network
from holdfast.core.discovery.ct import LOGS_SETTING, MOST_DOMAINS, LogKind
from holdfast.core.discovery.discovery import Discovery, DiscoveryState, move
from holdfast.core.discovery.find import FindSource
from holdfast.core.discovery.network import MOST_PORTS, MOST_WHERE, NETWORKS_SETTING, ScanPlan
from holdfast.core.issuers.budget import Limit
from holdfast.core.kind import Trait
from holdfast.core.work.job import Priority, Spec
from holdfast.ct import heads
from holdfast.errors import UserError
from holdfast.operations import kinds
from holdfast.operations.access import Action
from holdfast.operations.context import Context
from holdfast.operations.discovery.finds import FindView, shown
from holdfast.operations.inputs import (
    Input,
    Nothing,
    OneOf,
    Option,
    Page,
    Paged,
    RemoteName,
    Short,
    from_row,
    paged,
)
from holdfast.operations.operation import operation
from holdfast.operations.scopes import INSTALLATION
from holdfast.store import discoveries, finds, issuers, journal
from holdfast.store.tx import Tx
from holdfast.store.work import budgets, jobs

DISCOVER: Final = "discover"  # the job of a discovery; its subject is the discovery
MOST: Final = 100  # discoveries that are kept
SCAN_BUDGET: Final = "discovery/network"
LOG_BUDGET: Final = "discovery/log"
LOG_PACE: Final = Limit(burst=1, every=timedelta(seconds=1))  # steps of all logs together
SHOWN: Final = 20  # finds of the summary
EverySeconds = Annotated[int, Field(ge=600, le=366 * 86400)]


class NoSuchDiscovery(UserError):
    status, code = 404, "no-such-discovery"

    def __init__(self, ref: str) -> None:
        super().__init__(f"There is no discovery {ref!r:.80}.")
        self.hint = "See what there is: holdfast discover ls"


class DiscoveryRefused(UserError):
    code = "discovery-refused"

    def __init__(self, why: str, hint: str) -> None:
        super().__init__(why)
        self.hint = hint


class DiscoveryBusy(UserError):
    status, code = 409, "discovery-busy"

    def __init__(self, row: Discovery, why: str) -> None:
        super().__init__(f"Discovery {row.id} is {row.state}: {why}")
        self.hint = f"See how far it is: holdfast discover show {row.id}"


# ── Inputs and results ──


class DiscoveryRef(Input):
    discovery: Annotated[str, Option(metavar="DISCOVERY")] = Field(
        max_length=100, description="The id of the discovery."
    )


class Repeated(Input):
    every_s: Annotated[EverySeconds | None, Option(flag="--every", read="duration")] = Field(
        default=None, description="Do it again every so often; left out: once."
    )


class NetworkScan(Repeated):
    where: Annotated[list[Short], Option(argument=True, metavar="NETWORK")] = Field(
        min_length=1, max_length=MOST_WHERE, description="Networks (10.1.2.0/24), addresses and names to look at."
    )
    ports: Annotated[list[Short], Option(flag="--port")] = Field(
        default=["443"], min_length=1, max_length=MOST_PORTS, description="A port, or PROTOCOL:PORT; left out: 443."
    )


class DiscoveryView(BaseModel):
    id: str
    source: str = Field(description="network, ca or ct.")
    settings: dict[str, Any]
    every_s: float | None
    state: str = Field(description="running, resting (it begins again by itself), done, stopped or failed.")
    done: int = Field(description="Steps of this round that are done.")
    total: int | None = Field(description="Steps of a round; null: that is not known before.")
    counts: dict[str, int] = Field(description="Of this round: tried, certificates, new, and what was met by kind.")
    problem: str
    created_by: str
    created_at: datetime
    begun_at: datetime
    finished_at: datetime | None
    next_at: datetime | None = Field(description="When it goes on, or begins again.")


class DiscoverySummary(BaseModel):
    unmanaged: int = Field(description="Certificates that are served and not managed here, and not decided about.")
    finds: dict[str, int] = Field(description="How many finds there are, by state.")
    managers: dict[str, int] = Field(description="Of those that are not gone: who manages them.")
    first: list[FindView] = Field(description="Those of the unmanaged that expire first.")
    discoveries: list[DiscoveryView]


def view(tx: Tx, row: Discovery) -> DiscoveryView:
    job = jobs.live(tx, DISCOVER, row.id)
    return from_row(
        DiscoveryView,
        row,
        source=row.source.value,
        settings=dict(row.settings),
        every_s=None if row.every is None else row.every.total_seconds(),
        state=row.state.value,
        done=int(row.position.get("done", 0)),
        counts=dict(row.counts),
        next_at=None if job is None else job.due_at,
    )


def found(tx: Tx, ref: str) -> Discovery:
    row = discoveries.get(tx, ref)
    if row is None:
        raise NoSuchDiscovery(ref)
    return row


# ── Looking ──


@operation(
    "discovery.summary",
    "GET /discovery",
    command="discover",
    action=Action.SEE_FINDS,
    scope=INSTALLATION,
    example="holdfast discover",
)
def summary(tx: Tx, ctx: Context, asked: Nothing) -> DiscoverySummary:
    """Show how many certificates are served and not managed here, the most urgent of them, and all discoveries."""
    counted = finds.counts(tx)
    states, managers = dict[str, int](), dict[str, int]()
    for (state, manager), number in counted.items():
        states[state] = states.get(state, 0) + number
        managers |= {} if state == "gone" else {manager: managers.get(manager, 0) + number}
    return DiscoverySummary(
        unmanaged=finds.count_unmanaged(tx),
        finds=states,
        managers=managers,
        first=[shown(tx, each) for each in finds.unmanaged(tx, SHOWN)],
        discoveries=[view(tx, each) for each in discoveries.page(tx, limit=MOST)],
    )


@operation("discovery.list", "GET /discovery/runs", command="discover ls", action=Action.SEE_FINDS, scope=INSTALLATION)
def list_discoveries(tx: Tx, ctx: Context, asked: Paged) -> Page[DiscoveryView]:
    """List discoveries: where certificates are looked for, and how far each is."""

    def read(after: str, limit: int) -> list[Discovery]:
        return discoveries.page(tx, after=after, limit=limit)

    return paged(asked, read, lambda row: row.id, lambda row: view(tx, row))


@operation(
    "discovery.get",
    "GET /discovery/runs/{discovery}",
    command="discover show",
    action=Action.SEE_FINDS,
    scope=INSTALLATION,
)
def get(tx: Tx, ctx: Context, asked: DiscoveryRef) -> DiscoveryView:
    """Show one discovery: what it looks at, how far it is, and what it met."""
    return view(tx, found(tx, asked.discovery))


# ── Beginning ──


@operation(
    "discovery.network",
    "POST /discovery/network",
    command="discover network",
    action=Action.DISCOVER,
    scope=INSTALLATION,
    status=202,
    example="holdfast discover network 10.1.2.0/24 --port 443 --port smtp:25 --every 1d",
    done="Discovery {id} has begun: {total} places. See how far it is: holdfast discover show {id}",
)
def scan(tx: Tx, ctx: Context, asked: NetworkScan) -> DiscoveryView:
    """Look for certificates on a network: one handshake with each port of each address.

    Only networks that the setting discovery.networks lists are scanned, at the rate of discovery.rate.
    """
    rules = ctx.services.scanning
    try:
        plan = ScanPlan(asked.where, asked.ports)
    except ValueError as why:
        said = str(why).rstrip(".")
        raise DiscoveryRefused(f"{said[:1].upper()}{said[1:]}.", "See: holdfast discover network --help") from None
    if problem := network.problem_with(plan, rules):
        raise DiscoveryRefused(problem, f"List networks in the setting {NETWORKS_SETTING}, or ask for less.")
    budgets.define_all(tx, {SCAN_BUDGET: pace(rules.rate)})
    settings = {"where": asked.where, "ports": asked.ports}
    return begin(tx, ctx, FindSource.NETWORK, settings, every_s=asked.every_s, total=plan.total)


class LogReading(Repeated):
    log: Annotated[Short, Option(argument=True, metavar="LOG")] = Field(
        description="The address of the log, as the setting discovery.logs has it."
    )
    kind: Annotated[str, OneOf(LogKind)] = Field(
        default=LogKind.STATIC, description="How it is read: static (tiles), or rfc6962 (get-entries)."
    )
    key: Annotated[str | None, Field(max_length=2000)] = Field(
        default=None, description="The log's public key in base64: the head of its tree must be signed by it."
    )
    domains: Annotated[list[Short], Option(flag="--domain")] = Field(
        default=[],
        max_length=MOST_DOMAINS,
        description="Only certificates for this domain and names below it; left out: for all names that are kept here.",
    )
    start: int | None = Field(
        default=None, ge=0, lt=1 << 40, description="The first entry to read; left out: only what is new from now on."
    )


@operation(
    "discovery.ct",
    "POST /discovery/ct",
    command="discover ct",
    action=Action.DISCOVER,
    scope=INSTALLATION,
    status=202,
    example="holdfast discover ct https://log.example.com/2026h1 --domain example.org --every 1h",
    done="Discovery {id} has begun. See how far it is: holdfast discover show {id}",
)
def read_log(tx: Tx, ctx: Context, asked: LogReading) -> DiscoveryView:
    """Look for certificates in a log of Certificate Transparency, for the names that are kept here.

    Only logs that the setting discovery.logs lists are read. Each round goes on from where the last one ended.
    """
    kind = LogKind(asked.kind)
    if problem := ct.problem_with(asked.log, kind, ctx.services.readable_logs):
        raise DiscoveryRefused(problem, f"List the log in the setting {LOGS_SETTING}.")
    try:
        key = None if asked.key is None else base64.b64encode(heads.read_key(asked.key)).decode()
    except ValueError as why:
        hint = "Take it from the log's own page, or from a log list."
        raise DiscoveryRefused(f"The key cannot be used: {why}.", hint) from None
    domains = [each.lower().removeprefix("*.").rstrip(".") for each in asked.domains]
    settings = {
        "log": asked.log.rstrip("/"), "kind": kind.value, "key": key, "domains": domains, "start": asked.start,
    }  # fmt: skip
    budgets.define_all(tx, {LOG_BUDGET: LOG_PACE})
    return begin(tx, ctx, FindSource.CT, settings, every_s=asked.every_s)


class CaListing(Repeated):
    issuer: Annotated[RemoteName, Option(argument=True, metavar="ISSUER")] = Field(
        description="The issuer whose list of certificates is read."
    )


@operation(
    "discovery.ca",
    "POST /discovery/ca",
    command="discover ca",
    action=Action.DISCOVER,
    scope=INSTALLATION,
    status=202,
    example="holdfast discover ca digicert --every 1d",
    done="Discovery {id} has begun. See how far it is: holdfast discover show {id}",
)
def list_ca(tx: Tx, ctx: Context, asked: CaListing) -> DiscoveryView:
    """Look for certificates in the list of a CA: our own, or a vendor whose API has one. ACME has none."""
    row = issuers.get(tx, asked.issuer)
    if row is None:
        raise DiscoveryRefused(f"There is no issuer {asked.issuer!r}.", "See what there is: holdfast issuer ls")
    if not kinds.has(row, Trait.LISTS) and not kinds.has(row, Trait.OURS):
        why = f"Issuer {row.name} ({row.kind}) has no list of certificates that can be read"
        acme = ": ACME (RFC 8555) has none." if kinds.has(row, Trait.HAS_ACCOUNT) else "."
        raise DiscoveryRefused(f"{why}{acme}", "Look in CT logs or on your networks instead: holdfast discover --help")
    return begin(tx, ctx, FindSource.CA, {"issuer": row.name}, every_s=asked.every_s)


def pace(rate: int) -> Limit:
    """One step of a scan pays for all of its connections."""
    return Limit(burst=1, every=timedelta(seconds=network.AT_ONCE / rate))


def begin(
    tx: Tx,
    ctx: Context,
    source: FindSource,
    settings: Mapping[str, Any],
    *,
    every_s: int | None,
    total: int | None = None,
) -> DiscoveryView:
    """Add a discovery, and its job."""
    if discoveries.count(tx, ("running", "resting", "done", "stopped", "failed")) >= MOST:
        raise DiscoveryRefused(f"There are {MOST} discoveries already.", "Delete one: holdfast discover rm DISCOVERY")
    now = tx.now()
    row = Discovery(
        id=ctx.ids.new("disc"), source=source, settings=settings, total=total, created_by=ctx.actor, created_at=now,
        begun_at=now, every=None if every_s is None else timedelta(seconds=every_s),
    )  # fmt: skip
    discoveries.insert(tx, row)
    jobs.enqueue(tx, job(ctx.ids.new("job"), row))
    journal.audit(tx, "discovery_begun", row.id, actor=ctx.actor, source=source.value, settings=dict(settings))
    journal.event(tx, "discovery.begun", row.id, by=ctx.actor, source=source.value)
    return view(tx, row)


def job(job_id: str, row: Discovery) -> Spec:
    paid = {FindSource.NETWORK: (SCAN_BUDGET,), FindSource.CT: (LOG_BUDGET,)}.get(row.source, ())
    return Spec(id=job_id, kind=DISCOVER, subject=row.id, priority=Priority.BACKGROUND, budgets=paid)


# ── Stopping ──


@operation(
    "discovery.stop",
    "POST /discovery/runs/{discovery}/stop",
    command="discover stop",
    action=Action.DISCOVER,
    scope=INSTALLATION,
    done="Discovery {id} is stopped. What it found is kept.",
)
def stop(tx: Tx, ctx: Context, asked: DiscoveryRef) -> DiscoveryView:
    """Stop a discovery. A step under way ends first; what was found is kept."""
    row = found(tx, asked.discovery)
    if row.state not in (DiscoveryState.RUNNING, DiscoveryState.RESTING):
        raise DiscoveryBusy(row, "there is nothing to stop.")
    after = discoveries.save(tx, row, state=move(row.state, "stopped"))
    _cancel(tx, row)
    journal.audit(tx, "discovery_stopped", row.id, actor=ctx.actor)
    journal.event(tx, "discovery.stopped", row.id, by=ctx.actor)
    return view(tx, after)


def _cancel(tx: Tx, row: Discovery) -> None:
    """A job that runs ends by itself: it reads the state before each step."""
    waiting = jobs.live(tx, DISCOVER, row.id)
    if waiting is not None:
        jobs.cancel(tx, waiting.id)


@operation(
    "discovery.again",
    "POST /discovery/runs/{discovery}/again",
    command="discover again",
    action=Action.DISCOVER,
    scope=INSTALLATION,
    done="Discovery {id} begins again.",
)
def again(tx: Tx, ctx: Context, asked: DiscoveryRef) -> DiscoveryView:
    """Begin another round of a discovery now. A log of Certificate Transparency is read on from where it was."""
    row = found(tx, asked.discovery)
    if row.state is DiscoveryState.RUNNING:
        raise DiscoveryBusy(row, "it is under way.")
    after = next_round(tx, row)
    if not jobs.bring_forward(tx, DISCOVER, row.id, tx.now()):
        jobs.enqueue(tx, job(ctx.ids.new("job"), row))
    journal.audit(tx, "discovery_begun", row.id, actor=ctx.actor, source=row.source.value, settings=dict(row.settings))
    journal.event(tx, "discovery.begun", row.id, by=ctx.actor, source=row.source.value)
    return view(tx, after)


def next_round(tx: Tx, row: Discovery) -> Discovery:
    """The same discovery at its beginning; a log keeps its place."""
    kept = {name: value for name, value in row.position.items() if name == "log"}
    return discoveries.save(
        tx, row, state=move(row.state, "began"), position=kept, counts={}, problem="", begun_at=tx.now()
    )


@operation(
    "discovery.delete",
    "DELETE /discovery/runs/{discovery}",
    command="discover rm",
    action=Action.DISCOVER,
    scope=INSTALLATION,
    destructive=True,
    done="Discovery {discovery} is deleted. Its finds are kept until they are seen to be gone.",
)
def delete(tx: Tx, ctx: Context, asked: DiscoveryRef) -> None:
    """Delete a discovery. What only it saw is not seen by any other, and counts as gone."""
    row = found(tx, asked.discovery)
    _cancel(tx, row)
    discoveries.delete(tx, row.id)
    journal.audit(tx, "discovery_deleted", row.id, actor=ctx.actor, source=row.source.value)
    journal.event(tx, "discovery.deleted", row.id, by=ctx.actor)
