"""Targets with their breakers."""

from __future__ import annotations

import json
from typing import Final

from holdfast.core.target import TargetRow
from holdfast.store.remote_rows import BREAKER, RemoteRows
from holdfast.store.rows import LABELS, SETTINGS, Part, Table
from holdfast.store.tx import Tx

TABLE: Final = Table(
    TargetRow,
    "targets",
    codecs={"settings": SETTINGS, "credentials": SETTINGS, "labels": LABELS},
    parts={"breaker": Part(BREAKER)},
)
ROWS: Final = RemoteRows(
    TABLE,
    decided=(
        "settings",
        "credentials",
        "owner",
        "labels",
        "endpoints",
        "windows",
        "domain",
        "host",
        "rollout",
        "state",
    ),
)
insert, save, save_breaker, get, named, delete = (
    ROWS.insert, ROWS.save, ROWS.save_breaker, ROWS.get, ROWS.named, ROWS.delete,
)  # fmt: skip
all_targets: Final = ROWS.all


def names_at(tx: Tx, name: str, limit: int = 1000) -> list[str]:
    """The names of certificates that name this target, and are not archived."""
    rows = tx.rows(
        "SELECT name FROM certificates WHERE state <> 'archived' AND targets LIKE :quoted ORDER BY name LIMIT :limit",
        quoted=f"%{json.dumps(name)}%",
        limit=limit,
    )
    return [row["name"] for row in rows]


def certificates_at(tx: Tx, name: str, limit: int = 1000) -> list[str]:
    """The ids of certificates that name this target, and are not archived."""
    rows = tx.rows(
        """SELECT id FROM certificates WHERE state <> 'archived' AND targets LIKE :quoted ORDER BY name LIMIT :limit""",
        quoted=f"%{json.dumps(name)}%",
        limit=limit,
    )
    return [row["id"] for row in rows]
