"""A migration that is killed half-way: the next start finds either nothing of it or all of it, and goes on."""

import asyncio
from datetime import timedelta

from tests.faults.conftest import Serve
from tests.support.ca_server import Ca
from tests.support.child import Strike
from tests.support.grounds import Ground, PostgresGround, look
from tests.support.jobs import hurried
from tests.support.processes import Child
from tests.support.reaper import PATIENCE
from tests.support.stores import open_store

from holdfast.ports import no_points
from holdfast.secret import Secret
from holdfast.store import journal, migrate
from holdfast.store.migrate import Migration
from holdfast.store.postgres import PostgresEngine
from holdfast.store.tx import Tx


def settings(place: Ground) -> dict[str, str]:
    return {"STORE_URL": place.store if isinstance(place, PostgresGround) else f"sqlite:///{place.store}"}


def the_schema_is_whole(tx: Tx) -> bool:
    return migrate.current(tx, migrate.bundled())


def test_a_start_after_a_migration_that_was_killed_half_way_serves(place: Ground, ca: Ca, serve: Serve) -> None:
    strike = Strike("kill", "store.migrating", 13)  # of about 27; make kill does it at each
    with Child(place, ca.base, place.folder / "a", strike=strike) as victim:
        assert victim.wait() == -9
    served = serve(place.folder, **settings(place))
    served.wait_until_ready()
    assert len(served.events("schema.migrated")) == len(migrate.bundled())
    assert served.stop() == 0
    assert look(place, the_schema_is_whole)
    assert look(place, journal.verify).ok


def test_a_start_after_a_migration_that_was_killed_as_it_committed_finds_it_done(
    place: Ground, ca: Ca, serve: Serve
) -> None:
    strike = Strike("kill", "store.after-commit", 2)  # the first commit makes the table of steps
    with Child(place, ca.base, place.folder / "a", strike=strike) as victim:
        assert victim.wait() == -9
        assert victim.passed()["store.migrating"] > 20
    served = serve(place.folder, **settings(place))
    served.wait_until_ready()
    assert served.events("schema.migrated") == []
    assert served.stop() == 0
    assert look(place, the_schema_is_whole)


def server_grants_a_second(tx: Tx) -> None:
    """To all that this connection asks from now on, as after a start with such a deadline."""
    tx.run("SET statement_timeout = '1s'")


def test_a_schema_step_may_take_longer_than_a_store_call(shared: Ground) -> None:
    slow = Migration(version=1, name="slow", digest="", statements=(("", "SELECT pg_sleep(2)"),))

    async def bring_up() -> migrate.Applied:
        db = open_store(PostgresEngine(Secret(shared.store), connections=1))
        try:
            await db.run_long(migrate.prepare, deadline=timedelta(seconds=PATIENCE))
            await db.run_long(server_grants_a_second, deadline=timedelta(seconds=PATIENCE))
            with hurried(db, 1.0):
                return await db.run_long(
                    lambda tx: migrate.migrate(tx, "postgresql", [slow], no_points),
                    deadline=timedelta(seconds=PATIENCE),
                )
        finally:
            await db.close()

    assert asyncio.run(bring_up()) == (["0001_slow"], None)
