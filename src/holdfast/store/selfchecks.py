"""What the installation last found out about itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from holdfast.store.tx import Row, Tx


def record(tx: Tx, name: str, *, ok: bool, details: Mapping[str, Any]) -> None:
    tx.run(
        """INSERT INTO self_checks (name, checked_at, ok, details) VALUES (:name, now_us(), :ok, :details)
           ON CONFLICT (name) DO UPDATE
              SET checked_at = excluded.checked_at, ok = excluded.ok, details = excluded.details""",
        name=name,
        ok=ok,
        details=json.dumps(details),
    )


def last(tx: Tx, name: str) -> tuple[bool, dict[str, Any]] | None:
    row = tx.row("SELECT ok, details FROM self_checks WHERE name = :name", name=name)
    return None if row is None else (bool(row["ok"]), json.loads(row["details"]))


def everything(tx: Tx) -> list[Row]:
    return tx.rows("SELECT name, checked_at, ok, details FROM self_checks ORDER BY name")
