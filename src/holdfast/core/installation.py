"""Whether a database is the one that this replica knows, and what to do if it is not. Pure.

A database can be older than what its replicas saw committed (a failover that lost commits, a copy that was put back),
or be in another place than before (moved, or a copy of an installation that goes on elsewhere). `judge` says which.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from holdfast.core.witness import Head

FAILOVER_LOSES: Final = timedelta(minutes=10)  # at most; whatever lacks more was restored from a backup


class Mode(StrEnum):
    NORMAL = "normal"
    RECOVERING = "recovering"  # commits were lost: our CAs wait until they were found again
    QUARANTINE = "quarantine"  # restored, older or elsewhere: nothing acts until a person releases it


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """What a database says of itself."""

    id: str
    place: str
    mode: Mode
    generation: int
    since: datetime
    why: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenDatabase:
    """What one look at a database found."""

    row: Installation
    place: str  # where it is now; empty if that cannot be told
    epoch: int
    known_epoch: int  # the newest that it was used in
    seq: int  # of its newest audit entry
    at: datetime  # of that entry
    hash_there: str | None  # of the entry that the head names; None if it is not there, or was archived
    archived: int = 0  # entries up to this number are not kept here any more


class Change(StrEnum):
    NONE = "none"
    BEHIND = "behind"  # this server is older than one that we used: another one should answer
    LATE = "late"  # others have seen to it while we were away; only our own witness is left to replay
    FAILED_OVER = "failed over"
    OLDER = "older"
    ELSEWHERE = "elsewhere"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    change: Change
    why: str = ""
    missing: timedelta = timedelta(0)  # how much may have been lost, at most


SAME: Final = Judgement(change=Change.NONE)


def judge(seen: SeenDatabase, head: Head | None) -> Judgement:
    """`head` is what the witness of this replica knows; None if it never saw a database."""
    if seen.place and seen.row.place and seen.place != seen.row.place:
        return Judgement(change=Change.ELSEWHERE, why=_elsewhere(seen), missing=_missing(seen, head))
    known = head if head is not None and head.installation == seen.row.id else None
    if known is not None and seen.row.generation > known.generation:
        return Judgement(change=Change.LATE)
    if known is not None and seen.epoch < known.epoch:
        why = f"this server is on timeline {seen.epoch}, behind the newest seen, {known.epoch}"
        return Judgement(change=Change.BEHIND, why=why)
    missing = _missing(seen, known)
    before = seen.known_epoch if known is None else min(seen.known_epoch, known.epoch)
    if seen.epoch > before > 0 and missing <= FAILOVER_LOSES:
        why = f"PostgreSQL went over from timeline {before} to {seen.epoch}"
        return Judgement(change=Change.FAILED_OVER, why=why, missing=missing)
    if known is not None and lacks(seen, known):
        return Judgement(change=Change.OLDER, why=_older(seen, known), missing=missing)
    return SAME


def lacks(seen: SeenDatabase, head: Head) -> bool:
    """Whether a commit is missing that we saw confirmed."""
    if head.seq <= seen.archived:
        return False
    return seen.seq < head.seq or (head.seq > 0 and seen.hash_there != head.hash)


def _missing(seen: SeenDatabase, head: Head | None) -> timedelta:
    if head is None or head.installation != seen.row.id or not lacks(seen, head):
        return timedelta(0)
    return max(head.at - seen.at, timedelta(seconds=1))


def _elsewhere(seen: SeenDatabase) -> str:
    return f"the database was last used as {seen.row.place}, and is now {seen.place}: it was moved, restored or copied"


def _older(seen: SeenDatabase, head: Head) -> str:
    return (
        f"the database ends with audit entry {seen.seq} of {seen.at:%F %T}Z, and this replica saw entry {head.seq} "
        f"committed at {head.at:%F %T}Z: an older copy was put back"
    )
