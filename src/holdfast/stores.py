"""The store that the settings name: for the server, and for commands that need nothing else of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from holdfast.config import Settings
from holdfast.errors import SettingRefused
from holdfast.ports import Clock, Points
from holdfast.store.database import Database, Engine
from holdfast.store.sqlite import SqliteEngine
from holdfast.store.tx import Tx


def open_store(
    settings: Settings, clock: Clock, points: Points, *, committed: Callable[[Tx], None] = lambda tx: None
) -> Database:
    """The store the settings name. Refuses at once what must not be used; connects only when first asked."""
    deadline = settings.store.deadline
    return Database(_engine(settings, clock), clock=clock, points=points, deadline=deadline, committed=committed)


def _engine(settings: Settings, clock: Clock) -> Engine:
    file = settings.store.sqlite_file
    if file is None:
        from holdfast.store.postgres import PostgresEngine

        return PostgresEngine(settings.store.url, connections=settings.store.connections)
    make_folder(file.parent, "store.url" if settings.store.url else "store.data_dir")
    return SqliteEngine(file, clock)


def make_folder(path: Path, setting: str) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as why:
        hint = "Name a folder that can be made and written to by whoever runs Holdfast."
        raise SettingRefused(setting, f"the folder {path} cannot be made: {why.strerror}", hint) from None
