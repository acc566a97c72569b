"""What goes to a channel in one send: a notice, or several as a digest; how they are chosen, and what comes of digests.

The id of a digest is made of those who are in it: the same ones come again under the same id, others never do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from holdfast.core import notice
from holdfast.core.notice import CRASHES_TO_SUSPECT, DIGEST_TRIES, Notice, Severity
from holdfast.store.notices import COLUMNS, NOT_TOO_SOON, PAGE, each_of, from_rows
from holdfast.store.tx import Tx, to_micros

_TO_PROBE: Final = "COALESCE(tried_at, 0), CASE WHEN severity = 'critical' THEN 0 ELSE 1 END, id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    notices: tuple[Notice, ...]
    digest: str | None = None


# ── choosing ──


def pick(
    tx: Tx, channel: str, now: datetime, limit: int, *, probe: bool = False, size: int | None = None
) -> list[Parcel]:
    """The parcels that are due, oldest first, marked as begun. Digests have `size` characters at the most.

    As a probe: one notice by itself if there is any, the one that was tried longest ago, critical ones first. Whether
    a channel is back must not hang on a digest that it may be unable to take.
    """
    if probe:
        chosen = _alone(tx, channel, now, 1, probe=True) or _digest(tx, channel, now, size)
    else:
        chosen = _digest(tx, channel, now, size) or _alone(tx, channel, now, limit, probe=False)
    each_of(tx, "begun = begun + 1", [each.id for parcel in chosen for each in parcel.notices])
    return chosen


def _alone(tx: Tx, channel: str, now: datetime, limit: int, *, probe: bool) -> list[Parcel]:
    """An all-clear waits for what it clears. One whose sender died twice in a row goes alone: if that kills again,
    nobody else is to blame.
    """
    rows = [
        *tx.rows(
            f"""SELECT {COLUMNS} FROM notices AS n WHERE channel = :channel AND state = 'pending' AND digest_at IS NULL
                  AND {NOT_TOO_SOON} ORDER BY {_TO_PROBE if probe else "id"} LIMIT :limit""",
            channel=channel,
            limit=limit,
        ),
        *tx.rows(
            f"""SELECT {COLUMNS} FROM notices AS n WHERE channel = :channel AND state = 'failed'
                  AND next_retry_at IS NOT NULL AND next_retry_at <= :now AND digest_at IS NULL
                  AND {NOT_TOO_SOON} ORDER BY {_TO_PROBE if probe else "next_retry_at"} LIMIT :limit""",
            channel=channel,
            limit=limit,
            now=now,
        ),
    ]
    found = sorted(from_rows(rows), key=_to_probe if probe else lambda each: (0, False, each.id))
    suspects = [each for each in found if each.begun >= CRASHES_TO_SUSPECT]
    return [Parcel(notices=(each,)) for each in (suspects[:1] or found[:limit])]


def _to_probe(each: Notice) -> tuple[int, bool, str]:
    tried = 0 if each.tried_at is None else to_micros(each.tried_at)
    return tried, each.severity is not Severity.CRITICAL, each.id


def _digest(tx: Tx, channel: str, now: datetime, size: int | None) -> list[Parcel]:
    """A digest that was begun goes out as it was; otherwise a new one of what is due."""
    found = _in_digests(tx, channel, "digest_at <= :now", now=now)
    if any(each.begun >= CRASHES_TO_SUSPECT for each in found):
        take_apart(tx, found, now)  # one of them kills: each goes alone
        return []
    begun = next((each.digest for each in found if each.digest is not None), None)
    if begun is not None:
        found = _in_digests(tx, channel, "digest = :digest", digest=begun)
    members = tuple(notice.in_one_digest(found, size) if begun is None else found)
    if not members:
        return []
    digest = _id(members)
    if digest != begun:  # it is new, or somebody has settled one of them meanwhile
        each_of(tx, "digest = :digest", [each.id for each in members], digest=digest)
    return [Parcel(notices=members, digest=digest)]


def _in_digests(tx: Tx, channel: str, which: str, **params: datetime | str) -> list[Notice]:
    rows = tx.rows(
        f"""SELECT {COLUMNS} FROM notices
             WHERE channel = :channel AND state IN ('pending', 'failed') AND digest_at IS NOT NULL AND {which}
             ORDER BY digest_at, id LIMIT :limit""",
        channel=channel,
        limit=PAGE,
        **params,
    )
    return from_rows(rows)


def _id(members: Sequence[Notice]) -> str:
    return "digest_" + hashlib.sha256("/".join(sorted(each.id for each in members)).encode()).hexdigest()[:16]


def put_back(tx: Tx, parcels: Sequence[Parcel]) -> None:
    """Picked, and not sent after all: as they were, also if this is written down twice."""
    found = [each for parcel in parcels for each in parcel.notices]
    for begun in {each.begun for each in found}:
        each_of(tx, "begun = :begun", [each.id for each in found if each.begun == begun], begun=begun)


# ── digests ──


def digest_failed(tx: Tx, members: Sequence[Notice], error: str, now: datetime, at: datetime) -> None:
    """All of them have one next time, so that they come again together. Failed too often, it is taken apart."""
    each_of(
        tx,
        """tries = tries + 1, digest_at = :at, next_retry_at = CASE WHEN state = 'failed' THEN :at END,
           last_error = :error, tried_at = :now, begun = 0""",
        [each.id for each in members],
        at=at,
        error=error,
        now=now,
    )
    if any(each.tries + 1 >= DIGEST_TRIES for each in members):
        take_apart(tx, members, now)


def take_apart(tx: Tx, members: Sequence[Notice], now: datetime) -> None:
    """Each goes by itself, at once."""
    each_of(
        tx,
        "digest_at = NULL, digest = NULL, tries = 0, next_retry_at = CASE WHEN state = 'failed' THEN :now END",
        [each.id for each in members],
        now=now,
    )


def to_digest(tx: Tx, channel: str, before: datetime, now: datetime) -> int:
    """What waited so long for its channel comes in digests, but for what is critical; one alone goes as it is."""
    which = """channel = :channel AND state IN ('pending', 'failed') AND digest_at IS NULL AND severity <> 'critical'
               AND waiting_since < :before AND event <> 'heartbeat' AND missed IS NULL"""
    stale = tx.rows(f"SELECT COUNT(*) AS n FROM notices WHERE {which}", channel=channel, before=before)[0]["n"]
    if stale < 2:
        return 0
    return tx.run(
        f"""UPDATE notices SET digest_at = :now, tries = 0, next_retry_at = CASE WHEN state = 'failed' THEN :now END
             WHERE {which}""",
        channel=channel,
        before=before,
        now=now,
    )
