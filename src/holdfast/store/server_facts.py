"""What the PostgreSQL server behind the store says of itself, for `holdfast doctor`."""

from __future__ import annotations

from holdfast.core.postgres_server import SETTINGS, Server, Standby
from holdfast.store.database import Database
from holdfast.store.postgres import PostgresEngine
from holdfast.store.tx import Tx, value_list


async def of(db: Database) -> Server | None:
    """None where the store is no PostgreSQL."""
    if not isinstance(db.engine, PostgresEngine):
        return None
    settings, standbys, timeline = await db.read(lambda tx: (_settings(tx), _standbys(tx), tx.epoch))
    return Server(settings=settings, standbys=standbys, timeline=timeline, through_pooler=db.engine.through_pooler)


def _settings(tx: Tx) -> dict[str, str]:
    text, values = value_list([(name,) for name in SETTINGS])
    return {row["name"]: row["setting"] for row in tx.rows(
        f"SELECT name, setting FROM pg_settings WHERE name IN ({text})", **values
    )}  # fmt: skip


def _standbys(tx: Tx) -> list[Standby]:
    """A user without the role pg_monitor sees that they are there, and not how far they are behind."""
    rows = tx.rows(
        """SELECT application_name AS name, COALESCE(state, 'streaming') AS state,
                  COALESCE(sync_state, 'async') AS sync,
                  CAST(pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn) AS BIGINT) AS behind
             FROM pg_stat_replication ORDER BY application_name"""
    )
    return [Standby(**row) for row in rows]
