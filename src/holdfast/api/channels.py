"""/channels: where people are told; add, change, pause, test and remove them."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Path, Response
from pydantic import SecretStr

from holdfast.api import notice_shapes as shapes
from holdfast.api.call import Call, Caller, Changer, IfMatch, Repeater, etag, expected_version
from holdfast.api.shapes import Probed
from holdfast.core.budget import Limit
from holdfast.core.notice import Routing, Severity
from holdfast.operations import channels, inventory, notices
from holdfast.operations.access import Action
from holdfast.operations.channels import ChannelRefused, ChannelWish
from holdfast.operations.inventory import anywhere
from holdfast.secret import Secret

router = APIRouter(prefix="/channels", tags=["channels"])
Name = Annotated[str, Path(max_length=100)]


# ── Looking ──


@router.get("")
async def listed(call: Caller) -> list[shapes.Channel]:
    call.demand(Action.SEE_CHANNELS)
    now = await inventory.now(call.keeper)
    return [shapes.channel(row, now) for row in await channels.all_channels(call.keeper)]


@router.get("/{name}")
async def get(call: Caller, name: Name, response: Response) -> shapes.Channel:
    call.demand(Action.SEE_CHANNELS)
    found = shapes.channel(await channels.get(call.keeper, name), await inventory.now(call.keeper))
    response.headers["ETag"] = etag(found.version)
    return found


# ── Adding and changing ──


@router.post("", status_code=201)
async def add(call: Changer, asked: shapes.NewChannel) -> shapes.Channel:
    """Its settings are checked before it is kept. Its credentials are sealed, and never shown again."""
    call.demand(Action.CHANGE_CHANNELS)
    wish = ChannelWish(
        name=asked.name,
        kind=asked.kind,
        settings=asked.settings,
        routing=Routing(
            severities=frozenset(map(Severity, asked.severities)),
            owners=tuple(asked.owners),
            labels=dict(asked.labels),
        ),
        fallback=asked.fallback,
        digest_every=_span(asked.digest_every_s),
        heartbeat_every=_span(asked.heartbeat_every_s),
        limit=_limit(asked.rate),
    )
    given = {purpose: _secret(each) for purpose, each in asked.credentials.items()}
    reply = await call.change(
        lambda keeper: channels.add(keeper, wish, credentials=given, post=call.front.post, actor=call.actor),
        check=anywhere(call.principal, Action.CHANGE_CHANNELS),
        render=_shown,
    )
    return shapes.Channel.model_validate(reply)


@router.patch("/{name}")
async def change(
    call: Changer, name: Name, asked: shapes.ChannelChange, response: Response, if_match: IfMatch = None
) -> shapes.Channel:
    """Change what is given, from the next message on; one that is down is tried at once. Needs If-Match."""
    call.demand(Action.CHANGE_CHANNELS)
    expected = expected_version(if_match)
    row = await channels.get(call.keeper, name)
    version = row.version if expected is None else expected
    given = {purpose: _secret(each) for purpose, each in (asked.credentials or {}).items() if each is not None}
    dropped = frozenset(purpose for purpose, each in (asked.credentials or {}).items() if each is None)
    changes = _changes(asked, row)
    reply = await call.change(
        lambda keeper: channels.change(
            keeper,
            name,
            post=call.front.post,
            actor=call.actor,
            version=version,
            credentials=given,
            without=dropped,
            **changes,
        ),
        check=anywhere(call.principal, Action.CHANGE_CHANNELS),
        render=_shown,
    )
    shown = shapes.Channel.model_validate(reply)
    response.headers["ETag"] = etag(shown.version)
    return shown


def _changes(asked: shapes.ChannelChange, row: Any) -> dict[str, Any]:
    """Only what is given: null takes a fallback, a digest or a heartbeat away, and is nothing for the rest."""
    given = asked.model_fields_set
    found: dict[str, Any] = {}
    if asked.settings is not None:
        merged = {**row.settings, **asked.settings}
        found["settings"] = {name: value for name, value in merged.items() if value is not None}
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


def _routing(asked: shapes.ChannelChange, before: Routing) -> Routing:
    severities = before.severities if asked.severities is None else frozenset(map(Severity, asked.severities))
    return Routing(
        severities=severities,
        owners=before.owners if asked.owners is None else tuple(asked.owners),
        labels=before.labels if asked.labels is None else dict(asked.labels),
    )


def _span(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


def _limit(rate: shapes.Rate | None) -> Limit | None:
    return None if rate is None else Limit(burst=rate.burst, every=timedelta(seconds=rate.every_s))


def _secret(given: SecretStr) -> Secret[bytes]:
    return Secret(given.get_secret_value().encode())


def _shown(tx: Any, row: Any) -> dict[str, Any]:
    return shapes.channel(row, tx.now()).model_dump(mode="json")


@router.delete("/{name}")
async def delete(call: Repeater, name: Name) -> shapes.Changed:
    """For good. What it is still owed is dead from now on, with that as the reason; how many those are.

    Repeated, it is not found, and an Idempotency-Key is not kept here.
    """
    check = anywhere(call.principal, Action.CHANGE_CHANNELS)
    if call.manner.dry_run:
        await channels.removable(call.looking(check), name)
        owed = (await notices.summary(call.keeper)).by_channel.get(name, {})
        return shapes.Changed(number=owed.get("pending", 0) + owed.get("failed", 0))
    return shapes.Changed(number=await channels.delete(call.doing(check), name, actor=call.actor))


# ── Pausing and trying out ──


@router.post("/{name}/pause")
async def pause(call: Changer, name: Name) -> shapes.Channel:
    """What it is owed waits until it is resumed; nothing of it dies meanwhile."""
    return await _moved(call, name, paused=True)


@router.post("/{name}/resume")
async def resume(call: Changer, name: Name) -> shapes.Channel:
    return await _moved(call, name, paused=False)


async def _moved(call: Call, name: str, *, paused: bool) -> shapes.Channel:
    verb = channels.pause if paused else channels.resume
    reply = await call.change(
        lambda keeper: verb(keeper, name, actor=call.actor),
        check=anywhere(call.principal, Action.CHANGE_CHANNELS),
        render=_shown,
    )
    return shapes.Channel.model_validate(reply)


@router.post("/{name}/test")
async def test(call: Caller, name: Name) -> Probed:
    """Send a message by the way that all take, past those that wait; what happened, in words."""
    call.demand(Action.CHANGE_CHANNELS)
    try:
        return Probed(ok=True, detail=await channels.test(call.keeper, name, call.front.post, actor=call.actor))
    except ChannelRefused as why:
        return Probed(ok=False, detail=f"{why} {why.hint}".strip())
