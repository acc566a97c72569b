"""Opening stores in tests."""

from datetime import timedelta

from holdfast.from_settings import compose
from holdfast.ports import Clock, Points, no_points
from holdfast.store import migrate
from holdfast.store.database import Database, Engine
from holdfast.world import SystemClock
from tests.support.reaper import PATIENCE


def open_store(
    engine: Engine, *, clock: Clock | None = None, points: Points = no_points, deadline: float = PATIENCE
) -> Database:
    return compose(engine, clock=clock or SystemClock(), points=points, deadline=timedelta(seconds=deadline))


async def migrated(store: Database) -> Database:
    """The same two steps as the product takes at start."""
    await migrate.bring_up(store, points=no_points)
    return store
