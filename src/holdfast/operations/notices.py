"""What people may do about notices: look, send again, or settle with a note; one, by a filter, or all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from holdfast.core.notice import MOVES, Event, Notice, State
from holdfast.errors import UserError
from holdfast.operations.issuing import Keeper
from holdfast.store import alerts, channels, journal, notice_lists, notices
from holdfast.store.journal import Event as Happened
from holdfast.store.notice_lists import Filter
from holdfast.store.tx import Tx

PAGE: Final = 200
DEAD: Final = Filter(state=State.DEAD)
_LONGEST_NOTE: Final = 500


class NoSuchNotice(UserError):
    status, code = 404, "no-such-notice"

    def __init__(self, notice: str) -> None:
        super().__init__(f"There is no notice {notice!r:.80}.")
        self.hint = "See what there is: holdfast notify ls"


class NoticeNotIn(UserError):
    status, code = 409, "notice-state"

    def __init__(self, notice: Notice, wish: str) -> None:
        super().__init__(f"Notice {notice.id} is {notice.state}: it cannot be {wish}.")
        self.hint = "One that is pending is on its way already." if notice.state is State.PENDING else ""


class NobodyToTell(UserError):
    status, code = 409, "no-channel"

    def __init__(self, notice: Notice) -> None:
        super().__init__(f"Notice {notice.id} has nowhere to go: {_missing(notice)}.")
        self.hint = "Add one: holdfast notify channel add --help"


def _missing(notice: Notice) -> str:
    return f"there is no channel {notice.channel!r}" if notice.channel else "no channel wants to hear of it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Counted by the database over all rows."""

    by_state: Mapping[str, int]
    by_channel: Mapping[str, Mapping[str, int]]
    dead: int
    oldest_waiting: Mapping[str, datetime]


# ── Looking ──


async def page(keeper: Keeper, which: Filter, *, before: str = "", limit: int = 50) -> list[Notice]:
    """The newest first; go on with the last id as `before`."""
    return await keeper.db.read(lambda tx: notice_lists.page(tx, which, before=before, limit=limit))


async def get(keeper: Keeper, notice: str) -> Notice:
    return await keeper.db.read(lambda tx: _found(tx, notice))


async def history(keeper: Keeper, notice: str) -> list[Happened]:
    """Each attempt, death, requeue and note, oldest first; what a requeue cleared from the row is still here."""

    def read(tx: Tx) -> list[Happened]:
        _found(tx, notice)
        return journal.events_after(tx, 0, subject=notice)

    return await keeper.db.read(read)


async def summary(keeper: Keeper) -> Summary:
    return await keeper.db.read(summarize)


def summarize(tx: Tx) -> Summary:
    by_channel: dict[str, dict[str, int]] = {}
    by_state: Counter[str] = Counter()
    for (channel, state), number in notice_lists.counts(tx).items():
        by_channel.setdefault(channel, {})[state] = number
        by_state[state] += number
    return Summary(
        by_state=dict(by_state),
        by_channel=by_channel,
        dead=by_state[State.DEAD.value],
        oldest_waiting=notice_lists.oldest_waiting(tx),
    )


# ── Acting ──


async def requeue(keeper: Keeper, notice: str, *, actor: str) -> Notice:
    """pending, as if it had never been tried; its history stays. One that nobody wanted is offered again."""

    def write(tx: Tx) -> Notice:
        found = _allowed(tx, notice, "requeued")
        if not _requeue(tx, [found], actor):
            raise NobodyToTell(found)
        journal.audit(tx, "notice_requeued", notice, actor=actor, channel=found.channel, was=found.state.value)
        return notices.get(tx, notice) or found

    return await keeper.db.write(write)


async def requeue_all(keeper: Keeper, which: Filter = DEAD, *, actor: str) -> int:
    """Those of a filter, a page at a time, each page whole; how many. Those without a channel stay as they are.

    A filter that names no state means the dead ones: nobody wants all that was ever sent once more.
    """
    return await _all(keeper, which, "requeued", lambda tx, found: _requeue(tx, found, actor), actor=actor)


async def resolve(keeper: Keeper, notice: str, *, note: str, actor: str) -> Notice:
    """A person has dealt with it, and says how."""
    _check(note)

    def write(tx: Tx) -> Notice:
        found = _allowed(tx, notice, "resolved")
        _resolve(tx, [found], note, actor)
        journal.audit(tx, "notice_resolved", notice, actor=actor, channel=found.channel, note=note)
        return notices.get(tx, notice) or found

    return await keeper.db.write(write)


async def resolve_all(keeper: Keeper, which: Filter = DEAD, *, note: str, actor: str) -> int:
    _check(note)
    act: Act = lambda tx, found: _resolve(tx, found, note, actor)  # noqa: E731
    return await _all(keeper, which, "resolved", act, actor=actor, note=note)


Act = Callable[[Tx, Sequence[Notice]], int]


async def _all(keeper: Keeper, which: Filter, event: Event, act: Act, *, actor: str, **facts: Any) -> int:
    """From the newest down, so that those which stay as they are do not come again."""
    total, before = 0, ""
    which = which if which.state is not None else replace(which, state=State.DEAD)

    def write(tx: Tx) -> tuple[int, str]:
        found = notice_lists.page(tx, which, before=before, limit=PAGE, lock=True)
        changed = act(tx, [each for each in found if (each.state, event) in MOVES])
        if changed:
            filtered = {name: str(value) for name, value in which.sql()[1].items()}
            journal.audit(tx, f"notices_{event}", "notices", actor=actor, number=changed, which=filtered, **facts)
        return changed, found[-1].id if len(found) == PAGE else ""

    while True:
        changed, before = await keeper.db.write(write)
        total += changed
        if not before:
            return total


def _requeue(tx: Tx, found: Sequence[Notice], actor: str) -> int:
    if not found:
        return 0
    rows = channels.all_channels(tx)
    known = {each.name for each in rows}
    again = [each for each in found if each.channel in known]
    if again:
        notices.requeue(tx, again, tx.now())
        ends = alerts.owe_ends(tx, again, tx.now())
        alerts.wake(tx, {each.channel for each in again})
        _tell(tx, [*again, *ends], "notice.requeued", actor)
    return len(again) + sum(_offer(tx, each, rows, actor) for each in found if not each.channel)


def _offer(tx: Tx, unwanted: Notice, rows: Sequence[channels.ChannelRow], actor: str) -> bool:
    """To those channels that want it now: each is owed a notice of its own, and this one is settled."""
    wanted = [each for each in alerts.addressed(unwanted, rows) if each.channel]
    if not wanted:
        return False
    names = ", ".join(each.channel for each in wanted)
    notices.insert(tx, [alerts.afresh(each, tx.now()) for each in wanted])
    alerts.owe_ends(tx, wanted, tx.now())
    alerts.wake(tx, {each.channel for each in wanted})
    _resolve(tx, [unwanted], f"sent on to {names}", actor)
    return True


def _resolve(tx: Tx, found: Sequence[Notice], note: str, actor: str) -> int:
    if found:
        notices.resolve(tx, found, note, actor)
        _tell(tx, found, "notice.resolved", actor, note=note)
    return len(found)


def _tell(tx: Tx, which: Sequence[Notice], name: str, actor: str, **facts: str) -> None:
    """What the row forgets, its history keeps."""
    for each in which:
        journal.event(
            tx, name, each.id, channel=each.channel, about=each.subject, by=actor, was=each.state.value,
            attempts=each.retry_count, error=each.last_error or "", reason=each.why or "", **facts,
        )  # fmt: skip


def _found(tx: Tx, notice: str, *, lock: bool = False) -> Notice:
    found = notices.get(tx, notice, lock=lock)
    if found is None:
        raise NoSuchNotice(notice)
    return found


def _allowed(tx: Tx, notice: str, event: Event) -> Notice:
    found = _found(tx, notice, lock=True)
    if (found.state, event) not in MOVES:
        raise NoticeNotIn(found, event)
    return found


def _check(note: str) -> None:
    if not note.strip() or len(note) > _LONGEST_NOTE:
        raise NoteRefused


class NoteRefused(UserError):
    status, code = 400, "note-refused"

    def __init__(self) -> None:
        super().__init__(f"A note of 1 to {_LONGEST_NOTE} characters is needed.")
        self.hint = "Say what was done about it: it is kept, and shown to whoever looks later."
