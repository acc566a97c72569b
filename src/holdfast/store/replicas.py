"""The replicas that are alive, and the store's epoch: what changes when a standby was promoted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from holdfast.store import journal, leases, sweeps
from holdfast.store.tx import Row, Tx, from_micros

HEARTBEAT: Final = "heartbeat"  # kept beside the loops of a replica: what else there is to know of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One running process. The holder id is new at each start; the name is what people know it by."""

    holder: str
    name: str
    version: str
    started_at: datetime
    seen_at: datetime
    draining: bool  # it is to take no more work: it stops, or somebody asked for it
    loops: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # how each ended last, by its own clock
    heartbeat: Mapping[str, Any] = field(default_factory=dict)  # what else it told with its last one

    @property
    def rests(self) -> bool:
        """It knows that it is to take no more work: from then on it has taken none."""
        return self.draining and bool(self.heartbeat.get("rests"))

    @property
    def clock_ahead_s(self) -> float | None:
        """How far its clock is ahead of the database's."""
        found = self.heartbeat.get("ahead")
        return None if found is None else float(found)


class Heard(NamedTuple):
    """What a heartbeat is answered."""

    at: datetime  # by the database's clock
    draining: bool


def seen(tx: Tx, holder: str, name: str, version: str, *, draining: bool, loops: str = "{}") -> Heard:
    """Say that we are alive. The answer has the database's time, for measuring our own clock against.

    Whether it is to take no more work may be asked of a replica from outside: what was asked, it does not overwrite.
    """
    row = tx.rows(
        """INSERT INTO replicas (holder, name, version, started_at, seen_at, draining, loops)
           VALUES (:holder, :name, :version, now_us(), now_us(), :draining, :loops)
           ON CONFLICT (holder) DO UPDATE
              SET seen_at = excluded.seen_at, loops = excluded.loops,
                  draining = (replicas.draining OR excluded.draining)
           RETURNING seen_at, draining""",
        holder=holder,
        name=name,
        version=version,
        draining=draining,
        loops=loops,
    )[0]
    return Heard(from_micros(row["seen_at"]), bool(row["draining"]))


def ask(tx: Tx, holder: str, *, draining: bool) -> bool:
    """Have it take no more work, or take it again; it hears of it with its next heartbeat. False: it is so already."""
    return bool(
        tx.run(
            "UPDATE replicas SET draining = :draining WHERE holder = :holder AND draining <> :draining",
            holder=holder,
            draining=draining,
        )
    )


def tell_idle(tx: Tx, holder: str, name: str) -> None:
    """Of one that was asked to take no more work: it has ended what it had."""
    journal.audit(tx, "replica_drained", holder, replica=name)
    journal.event(tx, "replica.drained", holder, replica=name)


def at_work(tx: Tx) -> dict[str, int]:
    """How many jobs each of them holds."""
    rows = tx.rows("SELECT holder, COUNT(*) AS n FROM jobs WHERE state = 'running' GROUP BY holder")
    return {row["holder"]: row["n"] for row in rows}


def gone(tx: Tx, holder: str) -> None:
    tx.run("DELETE FROM replicas WHERE holder = :holder", holder=holder)


def forget_silent(tx: Tx, silent_for: timedelta) -> int:
    return tx.run("DELETE FROM replicas WHERE seen_at < now_us() - :silent_for", silent_for=silent_for)


def everyone(tx: Tx) -> list[Replica]:
    rows = tx.rows(
        "SELECT holder, name, version, started_at, seen_at, draining, loops FROM replicas ORDER BY started_at"
    )
    return [_replica(row) for row in rows]


def _replica(row: Row) -> Replica:
    loops = json.loads(row["loops"])
    heartbeat = loops.pop(HEARTBEAT, {})
    return Replica(
        holder=row["holder"],
        name=row["name"],
        version=row["version"],
        started_at=from_micros(row["started_at"]),
        seen_at=from_micros(row["seen_at"]),
        draining=bool(row["draining"]),
        loops=loops,
        heartbeat=heartbeat,
    )


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
