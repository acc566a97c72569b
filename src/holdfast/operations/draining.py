"""Taking a replica out of work and putting it back: it takes nothing new, ends what it has, and says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from holdfast.errors import UserError
from holdfast.operations.issuing import Keeper
from holdfast.store import journal, replicas
from holdfast.store.replicas import Replica
from holdfast.store.tx import Tx

SELF: Final = "self"  # the replica that is asked
SILENT_AFTER: Final = timedelta(seconds=30)
SHORTEST_PREFIX: Final = 4


class NoSuchReplica(UserError):
    status, code = 404, "no-such-replica"
    hint = "See them: holdfast cluster replicas. Give a name, an id, or a prefix of an id that no other has."

    def __init__(self, ref: str) -> None:
        super().__init__(f"There is no replica {ref!r:.80}, or more than one.")


class LastReplica(UserError):
    status, code = 409, "last-replica"
    hint = "Start another one first; or say that nothing shall be done: --even-last (even_last in the API)."

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is the last replica at work: nothing would be renewed, and nobody told.")


@dataclass(frozen=True, slots=True, kw_only=True)
class AtWork:
    """A replica, and how many jobs it still has."""

    replica: Replica
    running: int

    @property
    def drained(self) -> bool:
        """Nothing runs there, and nothing will."""
        return self.replica.rests and not self.running


async def drain(
    keeper: Keeper, ref: str, *, answering: str, actor: str, why: str = "", even_last: bool = False
) -> AtWork:
    """It hears of it with its next heartbeat. Over when it is taken back by `resume`, or when the process ends."""

    def write(tx: Tx) -> AtWork:
        everyone = replicas.everyone(tx)
        found = _found(everyone, ref, answering)
        if not found.draining and not even_last and not _others_work(everyone, found, tx.now()):
            raise LastReplica(found.name)
        if replicas.ask(tx, found.holder, draining=True):
            _tell(tx, found, "drain_asked", actor, why=why)
        return _seen(tx, found.holder)

    return await keeper.db.write(write)


async def resume(keeper: Keeper, ref: str, *, answering: str, actor: str) -> AtWork:
    def write(tx: Tx) -> AtWork:
        found = _found(replicas.everyone(tx), ref, answering)
        if replicas.ask(tx, found.holder, draining=False):
            _tell(tx, found, "resumed", actor)
        return _seen(tx, found.holder)

    return await keeper.db.write(write)


def _found(everyone: Sequence[Replica], ref: str, answering: str) -> Replica:
    """By its name, its id, or a prefix of that. One that died is known for a while: the name is that of the living."""
    wanted = answering if ref == SELF else ref
    by_name = [each for each in everyone if each.name == wanted]
    alike = [each for each in everyone if len(wanted) >= SHORTEST_PREFIX and each.holder.startswith(wanted)]
    if by_name:
        return max(by_name, key=lambda each: each.seen_at)
    if len(alike) != 1:
        raise NoSuchReplica(ref)
    return alike[0]


def _others_work(everyone: Sequence[Replica], found: Replica, now: datetime) -> bool:
    return any(
        each.holder != found.holder and not each.draining and now - each.seen_at < SILENT_AFTER for each in everyone
    )


def _seen(tx: Tx, holder: str) -> AtWork:
    found = next(each for each in replicas.everyone(tx) if each.holder == holder)
    return AtWork(replica=found, running=replicas.at_work(tx).get(holder, 0))


def _tell(tx: Tx, was: Replica, word: str, actor: str, **why: str) -> None:
    states = {"before": {"draining": was.draining}, "after": {"draining": not was.draining}}
    journal.audit(tx, f"replica_{word}", was.holder, actor=actor, **states, replica=was.name, **why)
    journal.event(tx, f"replica.{word}", was.holder, replica=was.name, by=actor)
