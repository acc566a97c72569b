"""Backups of this installation: made now or every so often, and listed. Restoring is for a machine without a server."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from pydantic import BaseModel, Field

from holdfast.core.backup import BackupMade, BackupRefused
from holdfast.operations.access import Action
from holdfast.operations.context import Context
from holdfast.operations.inputs import Nothing
from holdfast.operations.operation import operation
from holdfast.operations.scopes import INSTALLATION
from holdfast.pki.in_thread import aside
from holdfast.store import journal
from holdfast.store.database import Store
from holdfast.store.rows import Table
from holdfast.store.tx import Tx, from_micros

TABLE: Final = Table(BackupMade, "backups")
MOST_LISTED: Final = 100


class BackupView(BaseModel):
    id: str
    at: datetime
    path: str = Field(description="On the machine of the replica that made it.")
    size: int = Field(description="In bytes.")
    rows: int
    took_s: float


@operation(
    "backups.create",
    "POST /backups",
    command="backup create",
    action=Action.BACK_UP,
    scope=INSTALLATION,
    in_quarantine=True,
    dry_runs=False,
    example="holdfast backup create",
    done="The backup {path} is written.",
)
async def create(ctx: Context, asked: Nothing) -> BackupView:
    """Save the installation into one encrypted file, in backup.folder of the server.

    The key file is not in it: keep a copy of that elsewhere. An Idempotency-Key is not kept here: each call makes one
    more.
    """
    save = ctx.services.save
    if save is None:
        hint = "Set backup.folder to a folder of the server, on another disk than the database, and start it again."
        raise BackupRefused("There is no place for backups: backup.folder is not set.", hint)
    made = await aside(save)
    await ctx.write(lambda tx: record(tx, made, actor=ctx.actor))
    return _view(made)


@operation(
    "backups.list",
    "GET /backups",
    command="backup ls",
    action=Action.SEE_CLUSTER,
    scope=INSTALLATION,
    example="holdfast backup ls",
)
def list_backups(tx: Tx, ctx: Context, asked: Nothing) -> list[BackupView]:
    """List the backups that were made, the newest first."""
    rows = tx.rows(f"SELECT {TABLE.columns} FROM backups ORDER BY at DESC LIMIT {MOST_LISTED}")
    return [_view(TABLE.read(row)) for row in rows]


def record(tx: Tx, made: BackupMade, *, actor: str = journal.SYSTEM) -> None:
    tx.run(TABLE.insert, **TABLE.values(made))
    tx.run("DELETE FROM backups WHERE at < :before", before=tx.now() - timedelta(days=400))
    facts: dict[str, Any] = {"path": made.path, "size": made.size, "rows": made.rows}
    journal.audit(tx, "backup_created", made.id, actor=actor, **facts)
    journal.event(tx, "backup.created", made.id, **facts)


def last(tx: Tx) -> datetime | None:
    row = tx.row("SELECT MAX(at) AS at FROM backups")
    return None if row is None or row["at"] is None else from_micros(row["at"])


async def due(db: Store, every: timedelta) -> bool:
    """Whether the last one is so old."""

    def look(tx: Tx) -> bool:
        made = last(tx)
        return made is None or tx.now() - made >= every

    return await db.read(look)


def _view(made: BackupMade) -> BackupView:
    return BackupView(id=made.id, at=made.at, path=made.path, size=made.size, rows=made.rows, took_s=made.took_s)
