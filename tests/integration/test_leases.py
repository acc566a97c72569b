"""Named leases on both stores."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from tests.support.jobs import ON_POSTGRES, TTL, MovableClock, opened, update
from tests.support.stores import migrated, open_store

from holdfast.core.work.cluster import Lease
from holdfast.errors import LeaseLost
from holdfast.store.database import Database, Engine
from holdfast.store.sqlite import SqliteEngine
from holdfast.store.tx import Tx
from holdfast.store.work import cluster

pytestmark = pytest.mark.anyio


async def take(db: Database, holder: str = "a", *, name: str = "sweep") -> Lease | None:
    return await db.write(lambda tx: cluster.take_lease(tx, name, holder, TTL))


async def taken(db: Database, holder: str = "a") -> Lease:
    lease = await take(db, holder)
    assert lease is not None
    return lease


async def expire(db: Database) -> None:
    await update(db, "UPDATE leases SET until = now_us() - 1")


async def test_a_lease_is_taken_for_a_while_by_the_databases_clock(db: Database) -> None:
    before = await db.read(lambda tx: tx.now())
    lease = await taken(db, "a")
    after = await db.read(lambda tx: tx.now())
    assert (lease.name, lease.holder) == ("sweep", "a")
    assert before + TTL <= lease.until <= after + TTL
    assert await db.read(cluster.held_leases) == [lease]


@pytest.mark.parametrize("other", ["b", "a"])
async def test_a_live_lease_is_refused_to_everyone_its_holder_included(db: Database, other: str) -> None:
    lease = await taken(db, "a")
    assert await take(db, other) is None
    assert await db.read(cluster.held_leases) == [lease]


async def test_leases_of_different_names_do_not_meet(db: Database) -> None:
    assert await take(db, "a", name="sweep")
    assert await take(db, "b", name="leader")
    assert [lease.name for lease in await db.read(cluster.held_leases)] == ["leader", "sweep"]


async def test_a_renewed_lease_ends_later_and_keeps_its_fence(db: Database) -> None:
    lease = await taken(db)
    renewed = await db.write(lambda tx: cluster.renew_lease(tx, lease, 3 * TTL))
    assert renewed.until >= lease.until + 2 * TTL
    assert replace(renewed, until=lease.until) == lease
    assert await db.read(cluster.held_leases) == [renewed]


async def test_an_expired_lease_goes_to_whoever_asks_first(db: Database) -> None:
    old = await taken(db, "a")
    await expire(db)
    assert await db.read(cluster.held_leases) == []
    new = await taken(db, "b")
    assert new.fence > old.fence
    assert await take(db, "a") is None


async def test_an_expired_lease_cannot_be_renewed_even_if_nobody_took_it(db: Database) -> None:
    lease = await taken(db)
    await expire(db)
    with pytest.raises(LeaseLost, match="sweep"):
        await db.write(lambda tx: cluster.renew_lease(tx, lease, TTL))
    assert await db.read(cluster.held_leases) == []


async def test_who_lost_a_lease_can_neither_renew_nor_release_it(db: Database) -> None:
    old = await taken(db, "a")
    await expire(db)
    new = await taken(db, "b")
    with pytest.raises(LeaseLost):
        await db.write(lambda tx: cluster.renew_lease(tx, old, TTL))
    assert not await db.write(lambda tx: cluster.release_lease(tx, old))
    assert await db.read(cluster.held_leases) == [new]


async def test_a_lease_of_the_same_holder_from_an_earlier_time_counts_for_nothing(db: Database) -> None:
    old = await taken(db, "a")
    await expire(db)
    new = await taken(db, "a")
    with pytest.raises(LeaseLost):
        await db.write(lambda tx: cluster.renew_lease(tx, old, TTL))
    assert not await db.write(lambda tx: cluster.release_lease(tx, old))
    assert await db.read(cluster.held_leases) == [new]


async def test_only_the_holder_releases_and_then_it_is_free_at_once(db: Database) -> None:
    lease = await taken(db, "a")
    assert not await db.write(lambda tx: cluster.release_lease(tx, replace(lease, holder="b")))
    assert await db.write(lambda tx: cluster.release_lease(tx, lease))
    with pytest.raises(LeaseLost):
        await db.write(lambda tx: cluster.renew_lease(tx, lease, TTL))
    assert (await taken(db, "b")).fence > lease.fence


async def test_the_row_is_never_deleted_so_the_fence_only_grows(db: Database) -> None:
    fences = []
    for _ in range(3):
        lease = await taken(db)
        fences.append(lease.fence)
        assert await db.write(lambda tx, lease=lease: cluster.release_lease(tx, lease))
        assert len(await db.read(lambda tx: tx.rows("SELECT * FROM leases"))) == 1
    for _ in range(2):
        await expire(db)
        fences.append((await taken(db)).fence)
    await db.write(cluster.expire_leases)
    fences.append((await taken(db)).fence)
    assert fences == sorted(set(fences))


async def test_the_fence_is_above_every_fence_of_an_earlier_epoch(db: Database) -> None:
    """Even above those that a failover lost: the row may be as it was before them."""

    def take_in(epoch: int, name: str) -> Callable[[Tx], Lease | None]:
        def fn(tx: Tx) -> Lease | None:
            tx.epoch = epoch
            return cluster.take_lease(tx, name, "a", timedelta(0))

        return fn

    before = [await db.write(take_in(1, "sweep")) for _ in range(5)]
    await update(db, "UPDATE leases SET fence = fence - 3")  # those commits were lost
    after = await db.write(take_in(2, "sweep"))
    fresh = await db.write(take_in(2, "never seen before"))
    assert after is not None
    assert fresh is not None
    assert min(after.fence, fresh.fence) > max(lease.fence for lease in before if lease)
    back = await db.write(take_in(1, "sweep"))  # an old primary's epoch does not lower it
    assert back is not None
    assert back.fence > after.fence


async def test_a_lease_that_ends_absurdly_late_counts_as_expired(db: Database) -> None:
    """It was written before the database's clock was set back."""
    await taken(db, "a")
    await update(db, "UPDATE leases SET until = now_us() + :late", late=9 * TTL)
    assert await take(db, "b") is None
    await update(db, "UPDATE leases SET until = now_us() + :late", late=11 * TTL)
    assert await take(db, "b")


async def test_of_ten_that_ask_at_once_one_gets_it(db: Database) -> None:
    answers = await asyncio.gather(*(take(db, f"h{n}") for n in range(10)))
    [winner] = [lease for lease in answers if lease]
    assert await db.read(cluster.held_leases) == [winner]


async def test_of_ten_that_ask_for_an_expired_one_at_once_one_gets_it(db: Database) -> None:
    await taken(db, "old")
    await expire(db)
    answers = await asyncio.gather(*(take(db, f"h{n}") for n in range(10)))
    assert len([lease for lease in answers if lease]) == 1


@ON_POSTGRES
async def test_of_two_replicas_one_gets_it_whatever_their_clocks_say(make_engine: Callable[[], Engine]) -> None:
    """One hour apart in each direction: an hour is 120 lease times."""
    async with opened(make_engine()) as middle:
        now = await middle.read(lambda tx: tx.now())
        fast, slow = MovableClock(now + timedelta(hours=1)), MovableClock(now - timedelta(hours=1))
        ahead = open_store(make_engine(), clock=fast, deadline=10)
        behind = open_store(make_engine(), clock=slow, deadline=10)
        try:
            for one, other in [(ahead, behind), (behind, ahead)]:
                lease = await taken(one, "one")
                assert abs(lease.until - now - TTL) < timedelta(minutes=5)  # the test itself takes a moment
                assert await take(other, "other") is None
                await one.write(lambda tx, lease=lease: cluster.renew_lease(tx, lease, TTL))
                await expire(middle)
                with pytest.raises(LeaseLost):
                    await one.write(lambda tx, lease=lease: cluster.renew_lease(tx, lease, TTL))
                lease = await taken(other, "other")
                assert await other.write(lambda tx, lease=lease: cluster.release_lease(tx, lease))
            for _ in range(20):
                answers = await asyncio.gather(take(ahead, "ahead"), take(behind, "behind"), take(middle, "middle"))
                [winner] = [lease for lease in answers if lease]
                await middle.write(lambda tx, winner=winner: cluster.release_lease(tx, winner))
        finally:
            await ahead.close()
            await behind.close()


async def test_on_a_file_a_lease_ends_when_the_clock_says_so(tmp_path: Path) -> None:
    clock = MovableClock()
    async with opened(SqliteEngine(tmp_path / "holdfast.sqlite", clock)) as db:
        await migrated(db)
        lease = await taken(db, "a")
        assert lease.until == clock.at + TTL
        clock.at += TTL - timedelta(microseconds=1)
        assert await take(db, "b") is None
        clock.at += timedelta(microseconds=1)
        assert await take(db, "b")
