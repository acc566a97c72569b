"""Stores with a witness in tests, and a disk that is full for it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from holdfast.from_settings import compose
from holdfast.ports import Points, no_points
from holdfast.store.database import Database, Engine
from holdfast.store.witness import Witnessing
from holdfast.witness_file import WitnessFile
from holdfast.world import SystemClock
from tests.support.reaper import PATIENCE

LIMIT = 1024 * 1024


def witnessed(engine: Engine, folder: Path, *, points: Points = no_points, limit: int = LIMIT) -> Database:
    """A store whose process keeps a witness in this folder."""
    folder.mkdir(exist_ok=True)
    clock = SystemClock()
    witness = Witnessing(WitnessFile(folder, limit=limit), clock, points)
    return compose(engine, clock=clock, points=points, deadline=timedelta(seconds=PATIENCE), witness=witness)


@contextmanager
def no_room(file: WitnessFile) -> Iterator[None]:
    """The kernel refuses every write, as on a full disk."""
    kept, full = os.dup(file._log), os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, file._log)
    try:
        yield
    finally:
        os.dup2(kept, file._log)
        os.close(kept)
        os.close(full)
