"""What operators may do about channels: add, change, pause, resume, delete, test."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final, Protocol

from holdfast.core import breaker
from holdfast.core.breaker import Breaker
from holdfast.core.budget import Limit
from holdfast.core.notice import ONE_BY_ONE, OPENS_AFTER, Message, Missed, Routing, Severity
from holdfast.errors import Refused, TryLater, UserError
from holdfast.operations import burying, reviving
from holdfast.operations.issuing import Keeper
from holdfast.secret import Secret
from holdfast.store import alerts, channels, journal, secrets
from holdfast.store.channels import ChannelRow
from holdfast.store.tx import Tx

_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_PLENTY: Final = Limit(burst=60, every=timedelta(milliseconds=100))
LIMITS: Final[Mapping[str, Limit]] = {  # where a service says how much it takes
    "slack": Limit(burst=5, every=timedelta(seconds=1)),
    "teams": Limit(burst=4, every=timedelta(milliseconds=500)),
}
SHORTEST: Final = timedelta(minutes=1)  # of a digest, or of a heartbeat

Credentials = Mapping[str, Secret[bytes]]


class Letterbox(Protocol):
    """One channel, ready to be used."""

    async def send(self, message: Message) -> Missed | None: ...
    async def close(self) -> None: ...


class Post(Protocol):
    """How channels are reached; the faces and operations do not know. Refused says what is wrong with one."""

    @property
    def kinds(self) -> frozenset[str]: ...

    async def check(self, name: str, kind: str, settings: Mapping[str, Any], credentials: Credentials) -> None: ...

    async def open(self, row: ChannelRow) -> Letterbox: ...


class NoSuchChannel(UserError):
    status, code = 404, "no-such-channel"

    def __init__(self, name: str) -> None:
        super().__init__(f"There is no channel named {name!r:.80}.")
        self.hint = "See what there is: holdfast notify channel ls"


class ChannelExists(UserError):
    status, code = 409, "channel-exists"

    def __init__(self, name: str) -> None:
        super().__init__(f"There is a channel named {name!r} already.")
        self.hint = "Change that one, or choose another name."


class ChannelRefused(UserError):
    status, code = 400, "channel-refused"

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(problem)
        self.hint = hint or "See: holdfast notify channel add --help"


class ChannelInUse(UserError):
    status, code = 409, "channel-in-use"

    def __init__(self, name: str, users: Sequence[str]) -> None:
        super().__init__(f"Channel {name} is the fallback of {', '.join(users)}.")
        self.hint = f"Choose another one first, or none: holdfast notify channel set {users[0]} --fallback none"


class ChannelChanged(UserError):
    status, code = 412, "channel-changed"

    def __init__(self, row: ChannelRow) -> None:
        super().__init__(f"Channel {row.name} was changed since you looked: it is at version {row.version}.")
        self.hint = "Look again, and decide with what you see then."


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelWish:
    """What an operator asks for."""

    name: str
    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    routing: Routing = field(default_factory=Routing)
    fallback: str | None = None
    digest_every: timedelta | None = None
    heartbeat_every: timedelta | None = None
    limit: Limit | None = None  # None: as the kind's service allows


async def add(
    keeper: Keeper, wish: ChannelWish, *, credentials: Credentials | None = None, post: Post, actor: str
) -> ChannelRow:
    """Add a channel; its credentials are sealed with it."""
    given = credentials or {}
    if not _NAME.fullmatch(wish.name):
        raise ChannelRefused("The name of a channel has 1 to 63 lower-case letters, digits and inner hyphens.")
    if wish.kind not in post.kinds:
        hint = f"There are: {', '.join(sorted(post.kinds))}."
        raise ChannelRefused(f"There is no kind of channel {wish.kind!r:.40}.", hint)
    await _check(post, wish.name, wish.kind, wish.settings, given)
    purposes = list(given)

    def write(tx: Tx, ids: list[str]) -> ChannelRow:
        row = ChannelRow(
            name=wish.name,
            kind=wish.kind,
            settings=wish.settings,
            credentials=dict(zip(purposes, ids, strict=True)),
            routing=wish.routing,
            fallback=wish.fallback,
            digest_every=wish.digest_every,
            heartbeat_every=wish.heartbeat_every,
            limit=wish.limit or LIMITS.get(wish.kind, _PLENTY),
            created_at=tx.now(),
        )
        _sound(tx, row, {"fallback", "digest_every", "heartbeat_every"})
        if not channels.insert(tx, row):
            raise ChannelExists(wish.name)
        _tell(tx, row, "added", actor, kind=wish.kind, settings=dict(wish.settings), credentials=purposes)
        return row

    return await keeper.vault.keep(list(given.values()), write)


async def change(
    keeper: Keeper,
    name: str,
    *,
    post: Post,
    actor: str,
    version: int | None = None,
    credentials: Credentials | None = None,
    without: frozenset[str] = frozenset(),
    **changes: Any,
) -> ChannelRow:
    """New settings hold from the next message on. Credentials that are given replace those of the same purpose.

    `without` names those that are not needed any more.
    """
    given = credentials or {}
    before = await get(keeper, name)
    if given or without or "settings" in changes:
        left = [each for each in before.credentials if each not in without]
        held = {each: await keeper.vault.reveal(before.credentials[each]) for each in left}
        await _check(post, name, before.kind, changes.get("settings", before.settings), {**held, **given})
    purposes = list(given)

    def write(tx: Tx, ids: list[str]) -> ChannelRow:
        row = _found(tx, name, lock=True)
        if row.version != (before.version if version is None else version):
            raise ChannelChanged(row)
        kept = _kept(row, dict(zip(purposes, ids, strict=True)), without)
        after = channels.save(tx, row, **{**changes, "credentials": kept})
        _sound(tx, after, set(changes))
        for secret in sorted(set(row.credentials.values()) - set(kept.values())):
            secrets.delete(tx, secret)
        channels.stands(tx, name, _afresh(row.breaker, tx.now()), row.down_since)
        alerts.wake(tx, {name})
        _tell(tx, after, "changed", actor, changed=sorted(changes), credentials=purposes)
        return after

    return await keeper.vault.keep(list(given.values()), write)


def _afresh(before: Breaker, now: datetime) -> Breaker:
    """It may have been put right, and is tried at once; until one has arrived, attempts use nothing up."""
    if before.until is None:
        return Breaker()
    return breaker.another_chance(before, now, opens_after=OPENS_AFTER)


def _kept(row: ChannelRow, new: Mapping[str, str], without: frozenset[str]) -> dict[str, str]:
    """A webhook whose secret changes is signed with both, until somebody takes the old one away."""
    kept = {purpose: secret for purpose, secret in row.credentials.items() if purpose not in without}
    if row.kind == "webhook" and "secret" in new and "secret" in kept and "old_secret" not in {*new, *without}:
        kept["old_secret"] = kept["secret"]
    return {**kept, **new}


async def pause(keeper: Keeper, name: str, *, actor: str) -> ChannelRow:
    """What it is owed waits until somebody resumes it; nothing of it dies meanwhile."""
    return await _set(keeper, name, "paused", actor)


async def resume(keeper: Keeper, name: str, *, actor: str) -> ChannelRow:
    return await _set(keeper, name, "active", actor)


async def _set(keeper: Keeper, name: str, state: channels.State, actor: str) -> ChannelRow:
    def write(tx: Tx) -> ChannelRow:
        row = _found(tx, name, lock=True)
        if row.state == state:
            return row
        after = channels.save(tx, row, state=state)
        if state == "active":
            alerts.wake(tx, {name})
        _tell(tx, after, "resumed" if state == "active" else "paused", actor)
        return after

    return await keeper.db.write(write)


async def delete(keeper: Keeper, name: str, *, actor: str) -> int:
    """For good. What it is still owed is dead from here on, with that as the reason; how many that were."""

    def write(tx: Tx) -> tuple[int, bool]:
        row = _removable(tx, name, lock=True)
        page, more = burying.before_delete(tx, row, tx.now())
        if not more:
            channels.delete(tx, name)
            for secret in row.credentials.values():
                secrets.delete(tx, secret)
            _tell(tx, row, "deleted", actor)
        return page, more

    total, more = 0, True
    while more:
        page, more = await keeper.db.write(write)
        total += page
    return total


async def removable(keeper: Keeper, name: str) -> ChannelRow:
    """The same question without the deed."""
    return await keeper.db.read(lambda tx: _removable(tx, name))


def _removable(tx: Tx, name: str, *, lock: bool = False) -> ChannelRow:
    """Not one on which others count: what they cannot deliver would go nowhere."""
    row = _found(tx, name, lock=lock)
    if users := [each.name for each in channels.all_channels(tx) if each.fallback == name]:
        raise ChannelInUse(name, users)
    return row


async def test(keeper: Keeper, name: str, post: Post, *, actor: str) -> str:
    """Send a message at once, past everything that waits; if it goes, the channel counts as well."""
    row = await get(keeper, name)
    test = keeper.random.new_id("test")
    message = Message(
        id=test,
        event="test",
        severity=Severity.INFO,
        title=f"A test of channel {name}",
        text=f"{actor} asked for it. If you read this, the channel works.",
        subject=name,
        at=await keeper.db.read(lambda tx: tx.now()),
        key=test,
    )
    missed = await _sent(post, row, message)

    def write(tx: Tx) -> None:
        after, now = _found(tx, name, lock=True), tx.now()
        if after.version == row.version:  # what works is what it has now
            reviving.works(tx, after, now, by=actor)
            if after.breaker != Breaker():
                alerts.wake(tx, {name})
        journal.event(tx, "channel.tested", name, by=actor, message=message.id)

    await keeper.db.write(write)
    if missed is not None:
        later = "To those for whom the answer began with 4, notices are sent again; a test is not."
        hint = later if missed.again else f"Look at its settings: holdfast notify channel show {name}"
        raise ChannelRefused(f"A message was sent through {name} ({test}), and not all have it. {missed.said}", hint)
    return f"A message was sent through {name} ({test})."


async def _sent(post: Post, row: ChannelRow, message: Message) -> Missed | None:
    """Where it has opened an incident, its end is sent, too: nobody is to look after a test."""
    over = replace(message, id=f"{message.id}-over", title=f"The test of channel {row.name} is over", resolved=True)
    try:
        box = await post.open(row)
        try:
            missed = await box.send(message)
            if row.kind in ONE_BY_ONE:
                await box.send(over)
            return missed
        finally:
            await box.close()
    except TryLater as why:
        raise ChannelRefused(f"{row.name} could not be reached: {why}", "Check its address and the network.") from None
    except Refused as why:
        raise ChannelRefused(f"{row.name} refused: {why}", "Check its settings and credentials.") from None


async def all_channels(keeper: Keeper) -> list[ChannelRow]:
    return await keeper.db.read(channels.all_channels)


async def get(keeper: Keeper, name: str) -> ChannelRow:
    return await keeper.db.read(lambda tx: _found(tx, name))


# ── Checking ──


async def _check(post: Post, name: str, kind: str, settings: Mapping[str, Any], credentials: Credentials) -> None:
    try:
        await post.check(name, kind, settings, credentials)
    except Refused as why:
        raise ChannelRefused(str(why)) from None


def _sound(tx: Tx, row: ChannelRow, changed: set[str]) -> None:
    """What no kind of channel can do with. Of what was kept before, some may have become wrong by what others did."""
    for what, every in (("digest", row.digest_every), ("heartbeat", row.heartbeat_every)):
        if every is not None and every < SHORTEST:
            raise ChannelRefused(f"A {what} comes every minute at the most.", f"For example: --{what} 1h")
    if "digest_every" in changed and row.digest_every is not None and row.kind in ONE_BY_ONE:
        why = "it keeps incidents, and a digest would begin one more and end none"
        raise ChannelRefused(f"A channel of kind {row.kind} has no digest: {why}.", "Take --digest away.")
    if row.fallback is None or "fallback" not in changed:
        return
    if row.fallback == row.name:
        raise ChannelRefused("A channel cannot be its own fallback.", "Name another one.")
    if channels.get(tx, row.fallback) is None:
        raise NoSuchChannel(row.fallback)


def _found(tx: Tx, name: str, *, lock: bool = False) -> ChannelRow:
    row = channels.get(tx, name, lock=lock)
    if row is None:
        raise NoSuchChannel(name)
    return row


def _tell(tx: Tx, row: ChannelRow, word: str, actor: str, **facts: Any) -> None:
    journal.audit(tx, f"channel_{word}", row.name, actor=actor, **facts)
    journal.event(tx, f"channel.{word}", row.name, by=actor)
