"""The replicas that are alive, and the store's epoch: what changes when a standby was promoted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from holdfast.store import journal, leases, sweeps
from holdfast.store.tx import Tx, from_micros


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One running process. The holder id is new at each start; the name is what people know it by."""

    holder: str
    name: str
    version: str
    started_at: datetime
    seen_at: datetime
    draining: bool
    loops: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # how each ended last, by its own clock


def seen(tx: Tx, holder: str, name: str, version: str, *, draining: bool, loops: str = "{}") -> datetime:
    """Say that we are alive; the answer is the database's time, for measuring our own clock against."""
    row = tx.rows(
        """INSERT INTO replicas (holder, name, version, started_at, seen_at, draining, loops)
           VALUES (:holder, :name, :version, now_us(), now_us(), :draining, :loops)
           ON CONFLICT (holder) DO UPDATE
              SET seen_at = excluded.seen_at, draining = excluded.draining, loops = excluded.loops
           RETURNING seen_at""",
        holder=holder,
        name=name,
        version=version,
        draining=draining,
        loops=loops,
    )[0]
    return from_micros(row["seen_at"])


def gone(tx: Tx, holder: str) -> None:
    tx.run("DELETE FROM replicas WHERE holder = :holder", holder=holder)


def forget_silent(tx: Tx, silent_for: timedelta) -> int:
    return tx.run("DELETE FROM replicas WHERE seen_at < now_us() - :silent_for", silent_for=silent_for)


def everyone(tx: Tx) -> list[Replica]:
    rows = tx.rows(
        "SELECT holder, name, version, started_at, seen_at, draining, loops FROM replicas ORDER BY started_at"
    )
    return [
        Replica(
            holder=row["holder"],
            name=row["name"],
            version=row["version"],
            started_at=from_micros(row["started_at"]),
            seen_at=from_micros(row["seen_at"]),
            draining=bool(row["draining"]),
            loops=json.loads(row["loops"]),
        )
        for row in rows
    ]


def note_epoch(tx: Tx) -> tuple[int, bool]:
    """Compare the epoch of this connection with the newest one seen; after a failover take everything back.

    Commits may be missing that their writers saw succeed. So nobody's lease counts any more, and every job that was
    under way comes back marked `recheck`: its handler asks the remote before it does anything again.
    """
    known = tx.rows("SELECT epoch FROM store_epoch WHERE only_one = 1")[0]["epoch"]
    if tx.epoch <= known:
        return known, False
    moved = tx.run("UPDATE store_epoch SET epoch = :epoch WHERE only_one = 1 AND epoch < :epoch", epoch=tx.epoch)
    first = known == 0  # a fresh database: nothing can be missing
    if moved and not first:
        taken = sweeps.take_back_all(tx)
        dropped = leases.expire_all(tx)
        journal.audit(tx, "store_failover", "store", old_epoch=known, new_epoch=tx.epoch, jobs=taken, leases=dropped)
        journal.event(tx, "store.failover", "store", jobs=taken)
    return tx.epoch, bool(moved) and not first
