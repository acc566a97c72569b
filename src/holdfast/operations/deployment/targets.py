"""Targets, which certificates are deployed to. List, add, change, pause, resume, test, delete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

from pydantic import Field

from holdfast.core.endpoint import endpoint_of
from holdfast.core.issuers.breaker import Breaker
from holdfast.core.kind import Trait
from holdfast.core.target import TargetRow, TargetState
from holdfast.core.windows import MaintenanceWindow, first_opening
from holdfast.errors import Refused, UserError
from holdfast.operations import kinds, remotes
from holdfast.operations.access import Action, Owned, Principal, Verdict, allow
from holdfast.operations.certificates.views import MaintenanceHours, window_of
from holdfast.operations.context import Context, Transaction
from holdfast.operations.deployment import planning
from holdfast.operations.inputs import Input, Labels, Nothing, Option, OwnerName, RemoteName, Short
from holdfast.operations.operation import operation
from holdfast.operations.remote_operations import (
    TAKES_CREDENTIALS,
    Changing,
    RemoteChange,
    RemoteFamily,
    RemoteRef,
    declare_change,
    declare_get,
    declare_switches,
    declare_test,
)
from holdfast.operations.remotes import (
    Credentials,
    GivenCredentials,
    NamedRemotes,
    NoSuchRemote,
    RemoteChanged,
    RemoteExists,
    RemoteRefused,
    RemoteSettings,
    RemoteView,
    TargetOpener,
)
from holdfast.operations.scopes import INSTALLATION
from holdfast.store import certificates, versions
from holdfast.store.deployments import targets
from holdfast.store.tx import Tx

NAMED: Final = 5  # certificates that an error names


class NoSuchTarget(NoSuchRemote):
    code, noun, command = "no-such-target", "target", "holdfast target"


class TargetExists(RemoteExists):
    code, noun, command = "target-exists", "target", "holdfast target"


class TargetChanged(RemoteChanged):
    code, noun, command = "target-changed", "target", "holdfast target"


class TargetRefused(RemoteRefused):
    code, noun, command = "target-refused", "target", "holdfast target"


class TargetInUse(UserError):
    status, code = 409, "target-in-use"

    def __init__(self, name: str, users: Sequence[str]) -> None:
        more = ", …" if len(users) > NAMED else ""
        super().__init__(f"Target {name} is named by {', '.join(users[:NAMED])}{more}.")
        self.hint = f"Take it off these certificates first, for example: holdfast change {users[0]} --target ''"


# ── Inputs and results ──


class TargetRef(RemoteRef):
    name: Annotated[str, Option(metavar="TARGET")] = Field(max_length=100, description="The target's name.")


Endpoints = Annotated[list[Short], Field(max_length=20)]
Hours = Annotated[list[MaintenanceHours], Field(max_length=50)]


class NewTarget(Input):
    kind: Annotated[Short, Option(argument=True, metavar="KIND")] = Field(
        description="What it is: files, …, or the preset of a daemon, such as nginx."
    )
    name: Annotated[RemoteName, Option(argument=True, metavar="TARGET", help="The name of the new target.")]
    settings: RemoteSettings = Field(default={}, description="A setting of its kind, as text or JSON.")
    credentials: GivenCredentials = Field(
        default={}, description="A credential of its kind: a file, - for stdin, or env:VARIABLE."
    )
    owner: OwnerName = Field(default="", description="Whose it is.")
    labels: Annotated[Labels, Option(short="-l", help="A label, as name=value.")] = Field(default={})
    endpoints: Annotated[Endpoints, Option(flag="--endpoint")] = Field(
        default=[], description="Where a deployed certificate must be seen, such as www.example.com:443."
    )
    windows: Annotated[Hours, Option(flag="--window", read="window")] = Field(
        default=[],
        description="Deploy only then: 'sat,sun 02:00-05:00 Europe/Berlin', else in UTC. Never lets it expire.",
    )
    reload_domain: Annotated[str, Option(flag="--reload-domain")] = Field(
        default="", max_length=100, description="Targets with the same word share one daemon, and its reloads."
    )
    host: str = Field(default="", max_length=253, description="The replica whose files and programs these are.")
    rollout: str = Field(default="", max_length=100, description="Targets with the same word are changed in waves.")


class TargetChange(TargetRef, RemoteChange):
    """Fields that are left out keep their values. A setting or credential that is null is removed."""

    owner: OwnerName | None = Field(default=None, description="Whose it is.")
    labels: Annotated[Labels | None, Option(short="-l", help="A label, as name=value.")] = None
    endpoints: Annotated[Endpoints | None, Option(flag="--endpoint")] = Field(
        default=None, description="Where a deployed certificate must be seen."
    )
    windows: Annotated[Hours | None, Option(flag="--window", read="window")] = Field(
        default=None, description="Deploy only then: 'sat,sun 02:00-05:00 Europe/Berlin', else in UTC."
    )
    reload_domain: Annotated[str | None, Option(flag="--reload-domain")] = Field(
        default=None, max_length=100, description="Targets with the same word share one daemon, and its reloads."
    )
    rollout: str | None = Field(
        default=None, max_length=100, description="Targets with the same word are changed in waves."
    )


class TargetView(RemoteView):
    """A target, without its credentials."""

    owner: str
    labels: dict[str, str]
    endpoints: list[str]
    windows: list[MaintenanceHours]
    reload_domain: str
    host: str
    rollout: str


def _shown(tx: Tx, row: TargetRow) -> TargetView:
    return TargetView(
        **dict(remotes.view_of(row, tx.now())),
        owner=row.owner,
        labels=dict(row.labels),
        endpoints=list(row.endpoints),
        windows=[MaintenanceHours.model_validate(each.to_json()) for each in row.windows],
        reload_domain=row.reload_domain,
        host=row.host,
        rollout=row.rollout,
    )


def _shown_to(tx: Tx, who: Principal, row: TargetRow) -> TargetView | None:
    seen = allow(who, Action.SEE, Owned(row.owner, row.labels)) is Verdict.ALLOWED
    return _shown(tx, row) if seen else None


def _decided(row: TargetRow) -> dict[str, Any]:
    """What people decide about a target: the audit log has digests of it."""
    return {
        **remotes.decided(row),
        "owner": row.owner,
        "labels": dict(row.labels),
        "endpoints": list(row.endpoints),
        "windows": [each.to_json() for each in row.windows],
        "reload_domain": row.reload_domain,
        "host": row.host,
        "rollout": row.rollout,
    }


TARGETS: Final[NamedRemotes[TargetRow]] = NamedRemotes(
    noun="target",
    table=targets,
    active=TargetState.ACTIVE,
    paused=TargetState.PAUSED,
    wake=planning.wake_target,
    decided=_decided,
    missing=NoSuchTarget,
    taken=TargetExists,
    changed=TargetChanged,
    refused=TargetRefused,
)
FAMILY: Final = RemoteFamily(
    name="targets",
    command="target",
    remotes=TARGETS,
    ref=TargetRef,
    view=TargetView,
    shown=_shown,
    see=Action.SEE_TARGETS,
    change=Action.CHANGE_TARGETS,
)


# ── Looking ──


@operation("targets.list", "GET /targets", command="target ls", action=Action.SEE_TARGETS, scope=INSTALLATION)
def list_targets(tx: Tx, ctx: Context, asked: Nothing) -> list[TargetView]:
    """List the targets. A confined asker sees their own."""
    seen = (_shown_to(tx, ctx.principal, row) for row in targets.all_targets(tx))
    return [each for each in seen if each is not None]


get: Final = declare_get(FAMILY, "Show one target, without its credentials.", shown_to=_shown_to)


# ── Adding and changing ──


@operation(
    "targets.add",
    "POST /targets",
    command="target add",
    action=Action.CHANGE_TARGETS,
    scope=INSTALLATION,
    status=201,
    done="Added. See that it works: holdfast target test {name}",
    not_on=TAKES_CREDENTIALS,
    example="holdfast target add nginx web-1 --set folder=/etc/holdfast/live --endpoint www.example.com:443",
)
async def add(ctx: Context, asked: NewTarget) -> Transaction[TargetView]:
    """Add a target. Its settings are checked first; its credentials are sealed and never shown again.

    Programs and folders are those that the host allows in its own file; the API only chooses among them.
    """
    opener = _opener(ctx)
    preset = kinds.target_presets().get(asked.kind)
    kind, settings = asked.kind, dict(asked.settings)
    if preset is not None:
        kind, settings = preset.kind, {**preset.settings, **settings}
    TARGETS.check_kind(kind, opener.kinds, f"; and by preset: {', '.join(kinds.target_presets())}")
    given = remotes.secrets_of(asked.credentials)
    await _check(opener, asked.name, kind, settings, given)
    sealed = await TARGETS.sealed(ctx.certificate_context.secret_store, asked.name, given)

    def write(tx: Tx) -> TargetView:
        row = TargetRow(
            name=asked.name,
            kind=kind,
            settings=settings,
            credentials=remotes.put(tx, sealed),
            owner=asked.owner,
            labels=dict(asked.labels),
            endpoints=tuple(asked.endpoints),
            windows=_windows(asked.windows),
            domain=asked.reload_domain,
            host=asked.host,
            rollout=asked.rollout,
            created_at=tx.now(),
        )
        if kinds.has(row, Trait.RUNS_HERE) and not row.host:
            row = replace(row, host=opener.host)
        _sound(tx, row)
        TARGETS.insert(tx, row, ctx.actor)
        return _shown(tx, row)

    return write


def _changes(asked: TargetChange, row: TargetRow) -> dict[str, Any]:
    """The fields that were given; null means nothing."""
    found: dict[str, Any] = {}
    if asked.endpoints is not None:
        found["endpoints"] = tuple(asked.endpoints)
    if asked.windows is not None:
        found["windows"] = _windows(asked.windows)
    plain = {"owner": asked.owner, "labels": asked.labels, "domain": asked.reload_domain, "rollout": asked.rollout}
    return found | {name: value for name, value in plain.items() if value is not None}


async def _check_change(ctx: Context, row: TargetRow, settings: Mapping[str, Any], credentials: Credentials) -> None:
    await _check(_opener(ctx), row.name, row.kind, settings, credentials)


def _tried_at_once(tx: Tx, before: TargetRow, after: TargetRow) -> dict[str, object]:
    targets.save_breaker(tx, after.name, Breaker())
    planning.wake_target(tx, after.name)
    return {}


change: Final = declare_change(
    FAMILY,
    "Change a target. Options you leave out keep their values. What waits for the target is tried at once.",
    TargetChange,
    Changing(
        check=_check_change, fields=_changes, sound=lambda tx, row, changed: _sound(tx, row), follows=_tried_at_once
    ),
    example="holdfast target set web-1 --endpoint www.example.com:443",
)


def _windows(given: Sequence[MaintenanceHours]) -> tuple[MaintenanceWindow, ...]:
    return tuple(map(window_of, given))


pause, resume = declare_switches(
    FAMILY,
    pause="Pause a target: deployments to it are held until it is resumed, even if what it serves expires.",
    resume="Resume a paused target. Deployments that were held go on.",
)


@operation(
    "targets.delete",
    "DELETE /targets/{name}",
    command="target rm",
    action=Action.CHANGE_TARGETS,
    scope=INSTALLATION,
    destructive=True,
    done="Target {name} is deleted. What it serves stays as it is.",
)
def delete(tx: Tx, ctx: Context, asked: TargetRef) -> TargetView:
    """Delete a target for good, with its credentials. Refused while certificates name it. Nothing on it is changed."""
    row = TARGETS.found(tx, asked.name, lock=True)
    if users := targets.names_at(tx, row.name, limit=NAMED + 1):
        raise TargetInUse(row.name, users)
    targets.delete(tx, row.name)
    TARGETS.deleted(tx, row, ctx.actor, kind=row.kind)
    return _shown(tx, row)


async def _tested(ctx: Context, name: str) -> str:
    row = await ctx.read(lambda tx: TARGETS.found(tx, name))
    opener = _opener(ctx)
    if row.host and row.host != opener.host:
        why = f"{name} is deployed from replica {row.host}, and this is {opener.host}."
        raise TargetRefused(why, f"Ask the server on {row.host}.")
    return await TARGETS.reached(name, opener.probe(row), lambda _why: "Check its settings, and the network.")


test: Final = declare_test(FAMILY, "Test whether a deployment to a target would work. Nothing is changed.", _tested)


# ── Checking ──


def _opener(ctx: Context) -> TargetOpener:
    if ctx.services.targets is None:
        raise TargetRefused("This process reaches no targets.", "Ask a server: holdfast serve")
    return ctx.services.targets


async def _check(
    opener: TargetOpener, name: str, kind: str, settings: Mapping[str, Any], credentials: Mapping[str, Any]
) -> None:
    try:
        await opener.check(name, kind, settings, credentials)
    except Refused as why:
        raise TargetRefused(str(why)) from None


def _sound(tx: Tx, row: TargetRow) -> None:
    """Refuse endpoints that cannot be read, and windows that could not open before a certificate there expires."""
    for each in row.endpoints:
        try:
            endpoint_of(each)
        except ValueError as why:
            raise TargetRefused(f"The endpoint {why}.", "For example: --endpoint www.example.com:443") from None
    if not row.windows:
        return
    gap = _longest_gap(row.windows)
    for each in targets.certificates_at(tx, row.name):
        found = certificates.get(tx, each)
        current = None if found is None else versions.get(tx, found.current_version)
        if found is not None and current is not None and current.life / 3 < gap:
            rare = f"Between two windows are up to {gap}; {found.name} is renewed {current.life / 3} before it expires."
            raise TargetRefused(rare, "Let a window open more often.")


def _longest_gap(windows: Sequence[MaintenanceWindow]) -> timedelta:
    """The longest time without an open window, in whole hours of a week."""
    start = datetime(2026, 1, 5, tzinfo=UTC)
    hours = [start + timedelta(hours=hour) for hour in range(7 * 24)]
    return max(first_opening(windows, each) - each for each in hours)
