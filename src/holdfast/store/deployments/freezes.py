"""The change freeze: one row, or none."""

from __future__ import annotations

from datetime import datetime

from holdfast.store.tx import Tx, instant


def until(tx: Tx) -> datetime | None:
    """Deployments are held until then; None: there is no freeze."""
    row = tx.row("SELECT until FROM deployment_freeze WHERE only_one = 1")
    return None if row is None else instant(row["until"])


def freeze(tx: Tx, end: datetime) -> None:
    tx.run(
        """INSERT INTO deployment_freeze (only_one, until) VALUES (1, :end)
           ON CONFLICT (only_one) DO UPDATE SET until = :end""",
        end=end,
    )


def thaw(tx: Tx) -> bool:
    return tx.run("DELETE FROM deployment_freeze") > 0
