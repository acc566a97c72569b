"""Named leases: taken if absent or expired, renewed and released only by their holder, never deleted.

One statement each, by the database's clock. The fence only grows. Not re-entrant: a holder that takes its own live
lease again is refused, so two tasks of one process can never both believe that they hold it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from holdfast.errors import LeaseLost
from holdfast.store.tx import Tx, from_micros

ABSURD: Final = 10  # lease times; nobody ever asks for so long


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Who may act under a name, until when (by the database's clock), and the number that proves it."""

    name: str
    holder: str
    fence: int
    until: datetime


def take(tx: Tx, name: str, holder: str, ttl: timedelta) -> Lease | None:
    """Take the lease if nobody holds it; None if somebody does, even if that is the caller.

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


def renew(tx: Tx, lease: Lease, ttl: timedelta) -> Lease:
    """Hold on. An expired lease cannot be renewed: somebody may have acted since."""
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


def release(tx: Tx, lease: Lease) -> bool:
    """Let go, so that another may take it at once. False if it was not ours any more."""
    changed = tx.run(
        "UPDATE leases SET until = 0 WHERE name = :name AND holder = :holder AND fence = :fence",
        name=lease.name,
        holder=lease.holder,
        fence=lease.fence,
    )
    tx.wakes = tx.wakes or changed == 1  # whoever waits for it need not wait for the end it had
    return changed == 1


def free_in(tx: Tx, name: str, ttl: timedelta) -> timedelta:
    """How long until somebody may take it, unless it is renewed or let go before; 0 if it is free."""
    row = tx.row("SELECT until - now_us() AS rest FROM leases WHERE name = :name", name=name)
    rest = timedelta(microseconds=row["rest"]) if row else timedelta(0)
    return timedelta(0) if rest > ABSURD * ttl else max(rest, timedelta(0))


def expire_all(tx: Tx) -> int:
    """After a failover nobody's lease can be trusted."""
    return tx.run("UPDATE leases SET until = 0 WHERE until > 0")


def held(tx: Tx) -> list[Lease]:
    rows = tx.rows("SELECT name, holder, fence, until FROM leases WHERE until > (SELECT now_us()) ORDER BY name")
    return [Lease(name=r["name"], holder=r["holder"], fence=r["fence"], until=from_micros(r["until"])) for r in rows]


def fence_base(tx: Tx) -> int:
    """Fences start above the store's epoch, so that one from before a failover is never equal to one after it."""
    return tx.epoch << 32
