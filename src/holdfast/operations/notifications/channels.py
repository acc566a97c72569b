"""Channels, through which people get notifications. List, add, change, pause, resume, test, delete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Annotated, Any, Final

from pydantic import Field

from holdfast.core.issuers import breaker
from holdfast.core.issuers.breaker import Breaker
from holdfast.core.issuers.budget import Limit
from holdfast.core.kind import Trait
from holdfast.core.notifications.channel import ChannelHealth, ChannelRow, ChannelState
from holdfast.core.notifications.notification import OPENS_AFTER, RANK, Message, Missed, Routing, Severity
from holdfast.errors import Refused, UserError
from holdfast.operations import kinds, remotes
from holdfast.operations.access import Action, Principal
from holdfast.operations.context import Context, Transaction
from holdfast.operations.inputs import (
    Changed,
    Input,
    Labels,
    Nothing,
    Option,
    OwnerName,
    Rate,
    RemoteName,
    Short,
)
from holdfast.operations.notifications import access, routing, undelivered
from holdfast.operations.notifications.notifications import SeverityName
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
)
from holdfast.operations.scopes import INSTALLATION
from holdfast.store import issuances, journal
from holdfast.store.notifications import channels, notifications
from holdfast.store.tx import Tx

_WAITING: Final = ("pending", "failed")  # states of notifications that a channel still owes
IntervalSeconds = Annotated[float, Field(ge=60, le=31 * 86400)]


class NoSuchChannel(NoSuchRemote):
    code, noun, command = "no-such-channel", "channel", "holdfast notify channel"


class ChannelExists(RemoteExists):
    code, noun, command = "channel-exists", "channel", "holdfast notify channel"


class ChannelChanged(RemoteChanged):
    code, noun, command = "channel-changed", "channel", "holdfast notify channel"


class ChannelRefused(RemoteRefused):
    code, noun, command = "channel-refused", "channel", "holdfast notify channel"


class ChannelInUse(UserError):
    status, code = 409, "channel-in-use"

    def __init__(self, name: str, users: Sequence[str]) -> None:
        super().__init__(f"Channel {name} is the fallback of {', '.join(users)}.")
        self.hint = f"Choose another one first, or none: holdfast notify channel set {users[0]} --fallback none"


# ── Inputs and results ──


class ChannelRef(RemoteRef):
    name: Annotated[str, Option(metavar="CHANNEL")] = Field(max_length=100, description="The channel's name.")


class _Routed(Input):
    """Routing and rhythm of a channel."""

    fallback: RemoteName | None = Field(default=None, description="The channel to use while this one is down.")
    digest_every_s: Annotated[IntervalSeconds | None, Option(flag="--digest")] = Field(
        default=None, description="Gather notifications and send them together, so often; critical ones never wait."
    )
    heartbeat_every_s: Annotated[IntervalSeconds | None, Option(flag="--heartbeat")] = Field(
        default=None, description="Send a sign of life, so often, such as 1d."
    )
    rate: Annotated[Rate | None, Option(read="rate")] = Field(
        default=None, description="At most so many notifications, such as 30/1m."
    )


class NewChannel(_Routed):
    name: Annotated[RemoteName, Option(argument=True, metavar="CHANNEL", help="The name of the new channel.")]
    kind: Short = Field(description="What it is: email, webhook, slack, …")
    settings: RemoteSettings = Field(default={}, description="A setting of its kind, as text or JSON.")
    credentials: GivenCredentials = Field(
        default={}, description="A credential of its kind: a file, - for stdin, env:VARIABLE, or new: to make one."
    )
    severities: Annotated[list[SeverityName], Option(flag="--severity")] = Field(
        default=["warning", "critical"], min_length=1, max_length=3, description="Only notifications of this severity."
    )
    owners: list[OwnerName] = Field(
        default=[], max_length=64, description="Only about certificates of these owners; empty: of all."
    )
    labels: Annotated[Labels, Option(short="-l", help="Only about certificates with this label.")] = Field(default={})


class ChannelChange(_Routed, ChannelRef, RemoteChange):
    """Fields that are left out keep their values. A setting or credential that is null is removed."""

    severities: Annotated[
        list[SeverityName] | None, Option(flag="--severity", help="Only notifications of this severity.")
    ] = Field(default=None, min_length=1, max_length=3)
    owners: Annotated[list[OwnerName] | None, Option(help="Only about certificates of this owner.")] = Field(
        default=None, max_length=64
    )
    labels: Annotated[Labels | None, Option(short="-l", help="Only about certificates with this label.")] = None


class ChannelView(RemoteView):
    """A channel, without its credentials."""

    severities: list[SeverityName]
    owners: list[str]
    labels: dict[str, str]
    fallback: str | None
    digest_every_s: float | None
    heartbeat_every_s: float | None
    rate: Rate
    down_since: datetime | None
    health: ChannelHealth = Field(description="Whether people can rely on it; untested: nothing was delivered yet.")


def _shown_to(tx: Tx, who: Principal, row: ChannelRow) -> ChannelView | None:
    """None if it tells a confined asker nothing. Where it leads to is shown if it tells of the asker's own only."""
    if not access.tells(who, row.routing):
        return None
    whole = _shown(tx, row)
    if access.is_channel_of(who, row.routing):
        return whole
    owners = [each for each in whole.owners if each in who.owners]
    labels = {name: each for name, each in whole.labels.items() if name in who.labels}
    unsaid: dict[str, Any] = {"settings": {}, "credentials": [], "breaker_error": None, "fallback": None}
    return whole.model_copy(update={**unsaid, "owners": owners, "labels": labels})


def _shown(tx: Tx, row: ChannelRow) -> ChannelView:
    return ChannelView(
        **dict(remotes.view_of(row, tx.now())),
        severities=[each.value for each in sorted(row.routing.severities, key=RANK.__getitem__)],
        owners=list(row.routing.owners),
        labels=dict(row.routing.labels),
        fallback=row.fallback,
        digest_every_s=_seconds(row.digest_every),
        heartbeat_every_s=_seconds(row.heartbeat_every),
        rate=Rate(burst=row.limit.burst, every_s=row.limit.every.total_seconds()),
        down_since=row.down_since,
        health=row.health,
    )


def _seconds(span: timedelta | None) -> float | None:
    return None if span is None else span.total_seconds()


def _decided(row: ChannelRow) -> dict[str, object]:
    """What people decide about a channel: the audit log has digests of it."""
    return {
        **remotes.decided(row),
        "severities": sorted(row.routing.severities),
        "owners": list(row.routing.owners),
        "labels": dict(row.routing.labels),
        "fallback": row.fallback,
        "digest_every_s": _seconds(row.digest_every),
        "heartbeat_every_s": _seconds(row.heartbeat_every),
        "rate": [row.limit.burst, row.limit.every.total_seconds()],
    }


CHANNELS: Final[NamedRemotes[ChannelRow]] = NamedRemotes(
    noun="channel",
    table=channels,
    active=ChannelState.ACTIVE,
    paused=ChannelState.PAUSED,
    wake=lambda tx, name: routing.wake(tx, {name}),
    decided=_decided,
    missing=NoSuchChannel,
    taken=ChannelExists,
    changed=ChannelChanged,
    refused=ChannelRefused,
)
FAMILY: Final = RemoteFamily(
    name="channels",
    command="notify channel",
    remotes=CHANNELS,
    ref=ChannelRef,
    view=ChannelView,
    shown=_shown,
    see=Action.SEE_CHANNELS,
    change=Action.CHANGE_CHANNELS,
)


# ── Looking ──


@operation(
    "channels.list",
    "GET /channels",
    command="notify channel ls",
    action=Action.SEE_CHANNELS,
    scope=INSTALLATION,
)
def list_channels(tx: Tx, ctx: Context, asked: Nothing) -> list[ChannelView]:
    """List the channels. A confined asker sees those that tell of certificates that the asker may see."""
    seen = (_shown_to(tx, ctx.principal, row) for row in channels.all_channels(tx))
    return [each for each in seen if each is not None]


get: Final = declare_get(FAMILY, "Show one channel, without its credentials.", shown_to=_shown_to)


# ── Checking ──


async def _check(ctx: Context, name: str, kind: str, settings: Mapping[str, Any], credentials: Credentials) -> None:
    try:
        await ctx.services.post.check(name, kind, settings, credentials)
    except Refused as why:
        raise ChannelRefused(str(why)) from None


def _sound(tx: Tx, row: ChannelRow, changed: set[str]) -> None:
    """Refuse a digest or a fallback that cannot work. Only changed fields are checked: others were checked before."""
    if "digest_every" in changed and row.digest_every is not None and kinds.has(row, Trait.KEEPS_INCIDENTS):
        why = "it keeps incidents, and a digest would begin one more and end none"
        raise ChannelRefused(f"A channel of kind {row.kind} has no digest: {why}.", "Take --digest away.")
    if row.fallback is None or "fallback" not in changed:
        return
    if row.fallback == row.name:
        raise ChannelRefused("A channel cannot be its own fallback.", "Name another one.")
    if channels.get(tx, row.fallback) is None:
        raise NoSuchChannel(row.fallback)


# ── Adding and changing ──


@operation(
    "channels.add",
    "POST /channels",
    command="notify channel add",
    action=Action.CHANGE_CHANNELS,
    scope=INSTALLATION,
    status=201,
    done="Added. See that it arrives: holdfast notify test {name}",
    not_on=TAKES_CREDENTIALS,
    example="holdfast notify channel add ops --kind slack --credential url=/run/secrets/slack-url",
)
async def add(ctx: Context, asked: NewChannel) -> Transaction[ChannelView]:
    """Add a channel. Its settings are checked first; its credentials are sealed and never shown again."""
    CHANNELS.check_kind(asked.kind, ctx.services.post.kinds)
    given = remotes.secrets_of(asked.credentials)
    await _check(ctx, asked.name, asked.kind, asked.settings, given)
    sealed = await CHANNELS.sealed(ctx.certificate_context.secret_store, asked.name, given)

    def write(tx: Tx) -> ChannelView:
        row = ChannelRow(
            name=asked.name,
            kind=asked.kind,
            settings=asked.settings,
            credentials=remotes.put(tx, sealed),
            routing=Routing(
                severities=frozenset(map(Severity, asked.severities)),
                owners=tuple(asked.owners),
                labels=dict(asked.labels),
            ),
            fallback=asked.fallback,
            digest_every=_span(asked.digest_every_s),
            heartbeat_every=_span(asked.heartbeat_every_s),
            limit=_limit(asked.rate) or kinds.channel_limits(asked.kind).rate,
            created_at=tx.now(),
        )
        _sound(tx, row, {"fallback", "digest_every", "heartbeat_every"})
        CHANNELS.insert(tx, row, ctx.actor)
        return _shown(tx, row)

    return write


def _changes(asked: ChannelChange, row: ChannelRow) -> dict[str, Any]:
    """The fields that were given. Null removes a fallback, a digest or a heartbeat; elsewhere it means nothing."""
    given = asked.model_fields_set
    found: dict[str, Any] = {}
    if given & {"severities", "owners", "labels"}:
        found["routing"] = _routing(asked, row.routing)
    if "fallback" in given:
        found["fallback"] = asked.fallback
    if "digest_every_s" in given:
        found["digest_every"] = _span(asked.digest_every_s)
    if "heartbeat_every_s" in given:
        found["heartbeat_every"] = _span(asked.heartbeat_every_s)
    if (limit := _limit(asked.rate)) is not None:
        found["limit"] = limit
    return found


def _routing(asked: ChannelChange, before: Routing) -> Routing:
    severities = before.severities if asked.severities is None else frozenset(map(Severity, asked.severities))
    return Routing(
        severities=severities,
        owners=before.owners if asked.owners is None else tuple(asked.owners),
        labels=before.labels if asked.labels is None else dict(asked.labels),
    )


def _span(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


def _limit(rate: Rate | None) -> Limit | None:
    return None if rate is None else Limit(burst=rate.burst, every=timedelta(seconds=rate.every_s))


def _afresh(before: Breaker, now: datetime) -> Breaker:
    """The change may have repaired the channel: it is tried at once, and failures do not count until it works."""
    if before.until is None:
        return Breaker()
    return breaker.another_chance(before, now, opens_after=OPENS_AFTER)


async def _check_change(ctx: Context, row: ChannelRow, settings: Mapping[str, Any], credentials: Credentials) -> None:
    await _check(ctx, row.name, row.kind, settings, credentials)


def _tried_at_once(tx: Tx, before: ChannelRow, after: ChannelRow) -> dict[str, object]:
    channels.save_breaker(tx, after.name, _afresh(before.breaker, tx.now()), before.down_since)
    routing.wake(tx, {after.name})
    return {}


change: Final = declare_change(
    FAMILY,
    """Change a channel from its next message on. Options you leave out keep their values.

    A channel that is down is tried at once. A webhook with a new secret is signed with both secrets until
    `old_secret` is taken away.
    """,
    ChannelChange,
    Changing(check=_check_change, fields=_changes, sound=_sound, follows=_tried_at_once),
    test="notify test",
    example="holdfast notify channel set ops --severity critical",
)
pause, resume = declare_switches(
    FAMILY,
    pause="Pause a channel. Its notifications wait until it is resumed; none of them dies meanwhile.",
    resume="Resume a paused channel. The notifications that waited are sent.",
)


@operation(
    "channels.delete",
    "DELETE /channels/{name}",
    command="notify channel rm",
    action=Action.CHANGE_CHANNELS,
    scope=INSTALLATION,
    destructive=True,
    done="Channel {name} is deleted, and {number} of its notifications became dead letters.",
)
async def delete(ctx: Context, asked: ChannelRef) -> Changed:
    """Delete a channel for good. The notifications it is still owed become dead letters; the result counts them.

    Repeated, the channel is not found.
    """
    if ctx.dry_run:
        return Changed(number=await ctx.read(lambda tx: _owed(tx, _removable(tx, asked.name))))

    def write(tx: Tx) -> tuple[int, bool]:
        row = _removable(tx, asked.name, lock=True)
        page, more = undelivered.before_delete(tx, row, tx.now())
        if not more:
            channels.delete(tx, asked.name)
            CHANNELS.deleted(tx, row, ctx.actor)
        return page, more

    total, more = 0, True
    while more:
        page, more = await ctx.write(write)
        total += page
    return Changed(number=total)


def _owed(tx: Tx, row: ChannelRow) -> int:
    owed = notifications.counts(tx)
    return sum(owed.get((row.name, state), 0) for state in _WAITING)


def _removable(tx: Tx, name: str, *, lock: bool = False) -> ChannelRow:
    """A channel that is the fallback of others cannot go: what they cannot deliver would go nowhere."""
    row = CHANNELS.found(tx, name, lock=lock)
    if users := [each.name for each in channels.all_channels(tx) if each.fallback == name]:
        raise ChannelInUse(name, users)
    return row


async def _tested(ctx: Context, name: str) -> str:
    row = await ctx.read(lambda tx: CHANNELS.found(tx, name))
    test = ctx.ids.new("test")
    message = Message(
        id=test,
        event="test",
        severity=Severity.INFO,
        title=f"A test of channel {name}",
        text=f"{ctx.actor} asked for it. If you read this, the channel works.",
        subject=name,
        at=await ctx.read(lambda tx: tx.now()),
        key=test,
    )
    try:
        missed = await CHANNELS.reached(name, _sent(ctx, row, message), lambda _: "Check its address and the network.")
    except ChannelRefused as why:
        error = str(why)
        await ctx.write(lambda tx: _test_failed(tx, row, error))
        raise

    def write(tx: Tx) -> None:
        after, now = CHANNELS.found(tx, name, lock=True), tx.now()
        if after.version == row.version:  # what works is what it has now
            undelivered.works(tx, after, now, by=ctx.actor)
            if after.breaker != Breaker():
                routing.wake(tx, {name})
        journal.event(tx, "channel.tested", name, by=ctx.actor, message=message.id)

    await ctx.write(write)
    if missed is not None:
        later = "To those for whom the answer began with 4, notifications are sent again; a test is not."
        hint = later if missed.again else f"Look at its settings: holdfast notify channel show {name}"
        raise ChannelRefused(f"A message was sent through {name} ({test}), and not all have it. {missed.said}", hint)
    return f"A message was sent through {name} ({test})."


def _test_failed(tx: Tx, row: ChannelRow, error: str) -> None:
    """The channel is shown as failing until something is delivered; what waits for it is not held up."""
    after = CHANNELS.found(tx, row.name, lock=True)
    if after.version == row.version:
        channels.save_error(tx, after, issuances.storable(error))


async def _sent(ctx: Context, row: ChannelRow, message: Message) -> Missed | None:
    """Send the test message; where it opened an incident, also the all-clear that closes it."""
    over = replace(message, id=f"{message.id}-over", title=f"The test of channel {row.name} is over", resolved=True)
    box = await ctx.services.post.open(row)
    try:
        missed = await box.send(message)
        if kinds.has(row, Trait.KEEPS_INCIDENTS):
            await box.send(over)
        return missed
    finally:
        await box.close()


test: Final = declare_test(
    FAMILY,
    "Send a test message through a channel at once, past everything that waits, and say what happened.",
    _tested,
    command="notify test",
)
