"""Open the store for a command that works on it directly, not through a running Holdfast."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from holdfast.config import Settings
from holdfast.errors import StoreError, StoreRefused, StoreUnfit
from holdfast.from_settings import open_store
from holdfast.operations.installation import quarantine
from holdfast.ports import no_points
from holdfast.store import installation, migrate
from holdfast.store.database import Database
from holdfast.world import SystemClock


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[Database]:
    """An existing store, with the schema of this version; a command never makes a new one by mistake."""
    file = settings.store.sqlite_file
    if file is not None and not file.exists():
        raise StoreRefused(
            f"There is no database {file}.",
            "Check store.data_dir and store.url; 'holdfast serve' makes the database at its first start.",
        )
    db = open_store(settings, SystemClock(), no_points, witnessed=True)
    try:
        await migrate.bring_up(db, points=no_points)
        row = await db.read(installation.get)
        if row is not None and db.witness is not None:
            db.witness.close_gate(quarantine.reason(row))
        yield db
    except StoreError as error:
        later = "Try again when the store is well; what was done so far is kept."
        raise StoreRefused(str(error), error.hint if isinstance(error, StoreUnfit) else later) from error
    finally:
        await db.close()
