"""Leases, replicas and their self-checks: which replicas work here, and which of them holds what.

Leases are taken if absent or expired, renewed and released only by their holder, never deleted: one statement each, by
the database's clock. The fence only grows. Not re-entrant: a holder that takes its own live lease again is refused, so
two tasks of one process can never both believe that they hold it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from holdfast.core.work.cluster import Lease, Replica
from holdfast.errors import LeaseLost
from holdfast.store import journal
from holdfast.store.rows import Table
from holdfast.store.tx import Row, Tx, from_micros

ABSURD: Final = 10  # lease times; no holder ever asks for so long
TABLE: Final = Table(Lease, "leases")


def take_lease(tx: Tx, name: str, holder: str, ttl: timedelta) -> Lease | None:
    """Take the lease if it is free; None if it is held, even by the caller.

    One that ends absurdly late was written before the database's clock was set back: it counts as expired.
    """
    row = tx.row(
        """INSERT INTO leases (name, holder, fence, until, acquired_at)
           VALUES (:name, :holder, :base + 1, now_us() + :ttl, now_us())
           ON CONFLICT (name) DO UPDATE
              SET holder = excluded.holder, until = excluded.until, acquired_at = excluded.acquired_at,
                  fence = CASE WHEN leases.fence < :base THEN :base ELSE leases.fence END + 1
            WHERE leases.until <= excluded.acquired_at OR leases.until > excluded.acquired_at + :absurd
           RETURNING fence, until""",
        name=name,
        holder=holder,
        ttl=ttl,
        absurd=ABSURD * ttl,
        base=fence_base(tx),
    )
    if row is None:
        return None
    return Lease(name=name, holder=holder, fence=row["fence"], until=from_micros(row["until"]))


def renew_lease(tx: Tx, lease: Lease, ttl: timedelta) -> Lease:
    """Hold on. An expired lease cannot be renewed: another holder may have acted since."""
    row = tx.row(
        """UPDATE leases SET until = now_us() + :ttl
            WHERE name = :name AND holder = :holder AND fence = :fence AND until > (SELECT now_us())
           RETURNING until""",
        name=lease.name,
        holder=lease.holder,
        fence=lease.fence,
        ttl=ttl,
    )
    if row is None:
        raise LeaseLost(lease.name)
    return Lease(name=lease.name, holder=lease.holder, fence=lease.fence, until=from_micros(row["until"]))


def release_lease(tx: Tx, lease: Lease) -> bool:
    """Let go, so that another may take it at once. False if it was not ours any more."""
    changed = tx.run(
        "UPDATE leases SET until = 0 WHERE name = :name AND holder = :holder AND fence = :fence",
        name=lease.name,
        holder=lease.holder,
        fence=lease.fence,
    )
    tx.wakes = tx.wakes or changed == 1  # replicas that wait for it need not wait until it expires
    return changed == 1


def lease_free_in(tx: Tx, name: str, ttl: timedelta) -> timedelta:
    """How long until the lease is free, unless it is renewed or released before; 0 if it is free."""
    row = tx.row("SELECT until - now_us() AS rest FROM leases WHERE name = :name", name=name)
    rest = timedelta(microseconds=row["rest"]) if row else timedelta(0)
    return timedelta(0) if rest > ABSURD * ttl else max(rest, timedelta(0))


def expire_leases(tx: Tx) -> int:
    """After a failover no lease can be trusted."""
    return tx.run("UPDATE leases SET until = 0 WHERE until > 0")


def held_leases(tx: Tx) -> list[Lease]:
    rows = tx.rows(f"SELECT {TABLE.columns} FROM leases WHERE until > (SELECT now_us()) ORDER BY name")
    return [TABLE.read(row) for row in rows]


def fence_base(tx: Tx) -> int:
    """Fences start above the store's epoch, so that one from before a failover is never equal to one after it."""
    return tx.epoch << 32


HEARTBEAT: Final = "heartbeat"  # kept beside the loops of a replica: what else there is to know of it


class ReplicaHeard(NamedTuple):
    """What a heartbeat is answered."""

    at: datetime  # by the database's clock
    draining: bool


def replica_seen(tx: Tx, holder: str, name: str, version: str, *, draining: bool, loops: str = "{}") -> ReplicaHeard:
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
    return ReplicaHeard(from_micros(row["seen_at"]), bool(row["draining"]))


def ask_to_drain(tx: Tx, holder: str, *, draining: bool) -> bool:
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


def jobs_at_work(tx: Tx) -> dict[str, int]:
    """How many jobs each of them holds."""
    rows = tx.rows("SELECT holder, COUNT(*) AS n FROM jobs WHERE state = 'running' GROUP BY holder")
    return {row["holder"]: row["n"] for row in rows}


def remove_replica(tx: Tx, holder: str) -> None:
    tx.run("DELETE FROM replicas WHERE holder = :holder", holder=holder)


def forget_silent_replicas(tx: Tx, silent_for: timedelta) -> int:
    return tx.run("DELETE FROM replicas WHERE seen_at < now_us() - :silent_for", silent_for=silent_for)


def all_replicas(tx: Tx) -> list[Replica]:
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


def record_selfcheck(tx: Tx, name: str, *, ok: bool, details: Mapping[str, object]) -> None:
    tx.run(
        """INSERT INTO self_checks (name, checked_at, ok, details) VALUES (:name, now_us(), :ok, :details)
           ON CONFLICT (name) DO UPDATE
              SET checked_at = excluded.checked_at, ok = excluded.ok, details = excluded.details""",
        name=name,
        ok=ok,
        details=json.dumps(details),
    )


def last_selfcheck(tx: Tx, name: str) -> tuple[bool, dict[str, Any]] | None:
    row = tx.row("SELECT ok, details FROM self_checks WHERE name = :name", name=name)
    return None if row is None else (bool(row["ok"]), json.loads(row["details"]))


def all_selfchecks(tx: Tx) -> list[Row]:
    return tx.rows("SELECT name, checked_at, ok, details FROM self_checks ORDER BY name")
