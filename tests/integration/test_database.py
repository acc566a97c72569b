"""The store on threads: groups, deadlines, keys, callers who go away."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.support.jobs import (
    LONG_AGO,
    ON_POSTGRES,
    TTL,
    Gate,
    audits,
    claimed,
    enqueue,
    found,
    grouped,
    history,
    hurried,
    make_due,
    opened,
    put,
    putting,
    update,
)
from tests.support.reaper import PATIENCE
from tests.support.stores import migrated

from holdfast.core.work.job import Claim, Done
from holdfast.errors import Duplicate, LeaseLost, StoreError, StoreUnavailable
from holdfast.store import journal
from holdfast.store.database import GROUP, Database, Engine, forget_keys
from holdfast.store.tx import Tx, from_micros, to_micros, value_list
from holdfast.store.work import jobs

pytestmark = pytest.mark.anyio


class Commits:
    """Counts them."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, name: str) -> None:
        self.count += name == "store.after-commit"


@pytest.fixture
async def one_writer(make_engine: Callable[[], Engine]) -> AsyncIterator[tuple[Database, Commits]]:
    """A store whose writes all pass through one thread, and its commits."""
    engine, commits = make_engine(), Commits()
    engine.writers = 1
    async with opened(engine, points=commits) as db:
        await migrated(db)
        yield db, commits


# ── groups ──


async def test_writes_that_wait_together_are_committed_together(one_writer: tuple[Database, Commits]) -> None:
    db, commits = one_writer
    before = commits.count
    tasks = await grouped(db, *(putting(f"w{n:02d}") for n in range(20)))
    assert await asyncio.gather(*tasks) == [f"w{n:02d}" for n in range(20)]
    assert commits.count == before + 2  # the one that held the writer, and the group
    assert await db.read(found) == [f"w{n:02d}" for n in range(20)]


async def test_a_group_has_a_limit(one_writer: tuple[Database, Commits]) -> None:
    db, commits = one_writer
    before = commits.count
    await asyncio.gather(*await grouped(db, *(putting(f"w{n:03d}") for n in range(GROUP + 1))))
    assert commits.count == before + 3
    assert len(await db.read(found)) == GROUP + 1


async def test_if_one_of_a_group_fails_it_alone_gets_the_error(one_writer: tuple[Database, Commits]) -> None:
    db, _ = one_writer

    def fails(tx: Tx) -> None:
        put(tx, "never")
        journal.audit(tx, "did", "never")
        raise ValueError("mine")

    def audited(tx: Tx) -> None:
        journal.audit(tx, "did", "audited")

    tasks = await grouped(db, putting("a"), fails, audited, putting("b"), putting("a"), putting("c"))
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(answer) for answer in answers] == [str, ValueError, type(None), str, Duplicate, str]
    assert await db.read(found) == ["a", "b", "c"]
    assert [subject for _, _, subject in await audits(db)] == ["audited"]
    assert (await db.read(journal.verify)).ok


async def test_a_stale_claim_in_a_group_costs_the_others_nothing(one_writer: tuple[Database, Commits]) -> None:
    db, _ = one_writer
    mine, stale = await claimed(db, "mine"), await claimed(db, "stale")
    await update(db, "UPDATE jobs SET fence = fence + 1 WHERE id = :id", id=stale.id)

    def finishing(claim: Claim) -> Callable[[Tx], None]:
        return lambda tx: jobs.settle(tx, claim, Done(write=lambda tx: put(tx, claim.subject)))

    answers = await asyncio.gather(*await grouped(db, finishing(stale), finishing(mine)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [LeaseLost, type(None)]
    assert await history(db) == {mine.id: "done"}
    assert await db.read(found) == ["mine"]


async def test_a_function_of_a_group_sees_what_those_before_it_did(one_writer: tuple[Database, Commits]) -> None:
    db, _ = one_writer
    tasks = await grouped(db, putting("a"), lambda tx: found(tx))
    assert await asyncio.gather(*tasks) == ["a", ["a"]]


async def test_the_functions_own_error_reaches_its_caller(db: Database) -> None:
    def fails(tx: Tx) -> None:
        put(tx, "never")
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        await db.write(fails)
    with pytest.raises(LookupError, match="mine"):
        await db.read(lambda tx: (_ for _ in ()).throw(LookupError("mine")))
    assert await db.read(found) == []


async def test_a_statement_that_is_wrong_is_an_error_and_not_an_outage(db: Database) -> None:
    for wrong in ("SELECT nonsense FROM nowhere", "INSERT INTO jobs (id) VALUES ('x')"):
        with pytest.raises(StoreError) as caught:
            await update(db, wrong)
        assert not isinstance(caught.value, StoreUnavailable)


async def test_a_unique_index_says_duplicate(db: Database) -> None:
    await db.write(putting("a"))
    with pytest.raises(Duplicate):
        await db.write(putting("a"))


# ── reading ──


@pytest.mark.parametrize(
    "change",
    [
        lambda tx: put(tx, "x"),
        lambda tx: tx.run("DELETE FROM jobs"),
        lambda tx: tx.run("CREATE TABLE more (x INTEGER)"),
        lambda tx: journal.audit(tx, "did", "s"),
        lambda tx: journal.event(tx, "done", "s"),
    ],
    ids=["insert", "delete", "create", "audit", "event"],
)
async def test_a_read_cannot_change_anything(db: Database, change: Callable[[Tx], Any]) -> None:
    with pytest.raises(StoreError):
        await db.read(change)
    assert await db.read(found) == []
    await db.write(putting("x"))  # and the store is none the worse for it


async def test_a_read_sees_one_moment(db: Database) -> None:
    await db.write(putting("before"))
    gate = Gate()

    def twice(tx: Tx) -> tuple[list[str], list[str]]:
        first = found(tx)
        gate.wait()
        return first, found(tx)

    reading = asyncio.create_task(db.read(twice))
    await gate.entered()
    await db.write(putting("meanwhile"))
    gate.open()
    assert await reading == (["before"], ["before"])
    assert await db.read(found) == ["before", "meanwhile"]


async def test_the_clock_of_a_transaction_is_the_databases_and_stands_still(db: Database) -> None:
    one, two = await db.read(lambda tx: (tx.now(), tx.now()))
    assert one == two
    assert one <= await db.read(lambda tx: tx.now())


# ── callers who go away, and calls that take too long ──


async def test_a_caller_who_goes_away_before_its_turn_leaves_nothing(one_writer: tuple[Database, Commits]) -> None:
    db, _ = one_writer
    gate = Gate()
    first = asyncio.create_task(db.write(gate.wait))
    await gate.entered()
    gone = asyncio.create_task(db.write(putting("gone")))
    stays = asyncio.create_task(db.write(putting("stays")))
    await asyncio.sleep(0)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    gate.open()
    await asyncio.gather(first, stays)
    assert await db.read(found) == ["stays"]


async def test_a_caller_who_goes_away_before_commit_leaves_nothing(db: Database) -> None:
    gate = Gate()

    def fn(tx: Tx) -> None:
        put(tx, "gone")
        gate.wait()

    task = asyncio.create_task(db.write(fn))
    await gate.entered()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.open()
    await db.write(putting("after"))
    assert await db.read(found) == ["after"]


async def test_a_caller_who_goes_away_does_not_take_its_neighbours_along(
    one_writer: tuple[Database, Commits],
) -> None:
    db, _ = one_writer
    gate = Gate()

    def slow(tx: Tx) -> None:
        put(tx, "gone")
        gate.wait()

    before, gone, after = await grouped(db, putting("before"), slow, putting("after"))
    await gate.entered()
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    gate.open()
    assert await asyncio.gather(before, after) == ["before", "after"]
    assert await db.read(found) == ["after", "before"]


async def test_past_its_deadline_a_call_is_given_up_and_changes_nothing(make_engine: Callable[[], Engine]) -> None:
    async with opened(make_engine()) as db:
        await migrated(db)
        gate = Gate()

        def slow(tx: Tx) -> None:
            put(tx, "slow")
            gate.wait()

        with (
            hurried(db, 0.3),
            pytest.raises(StoreUnavailable, match=r"no answer from the store in 0\.3 s; nothing was changed"),
        ):
            await db.write(slow)
        gate.open()
        await db.write(putting("after"))
        assert await db.read(found) == ["after"]


ENDLESS = {
    "sqlite": "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n",
    "postgresql": "SELECT pg_sleep(3600)",
}


@pytest.mark.parametrize("kind", ["write", "read"])
async def test_a_statement_that_does_not_end_is_cut_off_at_the_deadline(
    make_engine: Callable[[], Engine], kind: str
) -> None:
    engine = make_engine()
    engine.writers = engine.readers = 1  # the next call needs the same thread
    async with opened(engine) as db:
        await migrated(db)
        call = db.write if kind == "write" else db.read
        with hurried(db, 0.3), pytest.raises(StoreUnavailable):
            await call(lambda tx: tx.rows(ENDLESS[engine.name]))
        await until_it_works(lambda: call(lambda tx: tx.rows("SELECT 1 AS one")))


async def until_it_works(attempt: Callable[[], Any]) -> None:
    """The thread may need a moment to notice that its call was given up."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await attempt()
            except StoreUnavailable:
                await asyncio.sleep(0.01)


async def test_closing_finishes_what_was_handed_over_and_refuses_what_comes_after(
    make_engine: Callable[[], Engine],
) -> None:
    async with opened(make_engine()) as db:
        await migrated(db)
        writes = [asyncio.create_task(db.write(putting(f"w{n}"))) for n in range(5)]
        await asyncio.sleep(0)
        await db.close()
        assert await asyncio.gather(*writes) == [f"w{n}" for n in range(5)]
        for call in (db.write, db.read):
            with pytest.raises(StoreUnavailable, match="the store is closed"):
                await call(found)
    async with opened(make_engine()) as again:
        assert len(await again.read(found)) == 5


# ── keys ──


async def test_a_keyed_write_happens_once_and_its_answer_is_kept(db: Database) -> None:
    runs = []

    def fn(tx: Tx) -> dict[str, Any]:
        runs.append(1)
        put(tx, f"run {len(runs)}")
        return {"id": "c1", "n": [1, None]}

    answers = [await db.write(fn, key="request-1") for _ in range(3)]
    assert answers == [{"id": "c1", "n": [1, None]}] * 3
    assert await db.read(found) == ["run 1"]
    await db.write(fn, key="request-2")
    assert await db.read(found) == ["run 1", "run 2"]


async def test_ten_keyed_writes_at_once_happen_once(db: Database) -> None:
    answers = await asyncio.gather(*(db.write(lambda tx, n=n: (put(tx, f"w{n}"), n)[1], key="same") for n in range(10)))
    assert len(set(answers)) == 1
    assert await db.read(found) == [f"w{answers[0]}"]


async def test_a_keyed_write_that_failed_may_be_tried_again_under_its_key(db: Database) -> None:
    def fails(tx: Tx) -> None:
        put(tx, "never")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await db.write(fails, key="k")
    assert await db.write(putting("a"), key="k") == "a"


async def test_a_keyed_write_whose_answer_cannot_be_kept_does_not_happen(db: Database) -> None:
    with pytest.raises(TypeError):
        await db.write(lambda tx: put(tx, "x") or object(), key="k")
    assert await db.read(found) == []


async def test_old_keys_are_forgotten_and_young_ones_are_not(db: Database) -> None:
    for key in ("old", "young"):
        await db.write(putting(key), key=key)
    await update(db, "UPDATE write_keys SET at = :at WHERE key = 'old'", at=LONG_AGO)
    assert await db.write(lambda tx: forget_keys(tx, LONG_AGO + timedelta(days=1))) == 1
    assert await db.write(lambda tx: "not run", key="young") == "young"
    assert await db.write(lambda tx: "run", key="old") == "run"


# ── hints ──


async def test_workers_are_woken_after_commit_and_only_then(db: Database) -> None:
    woken, left = db.wake.subscribe(), db.wake.subscribe()
    db.wake.unsubscribe(left)

    def wakes(tx: Tx) -> None:
        tx.wakes = True

    def fails(tx: Tx) -> None:
        tx.wakes = True
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await db.write(fails)
    await db.write(putting("x"))
    await db.read(found)
    assert not woken.is_set()
    await db.write(wakes)
    assert woken.is_set()
    assert not left.is_set()


@ON_POSTGRES
async def test_a_hint_reaches_the_other_replica(make_engine: Callable[[], Engine]) -> None:
    async with opened(make_engine()) as one, opened(make_engine()) as two:
        await enqueue(one, "first")
        hint = two.wake.subscribe()
        async with asyncio.timeout(PATIENCE):
            while True:  # the other may not be listening yet
                hint.clear()
                await make_due(one)
                await one.write(lambda tx: setattr(tx, "wakes", True))
                try:
                    async with asyncio.timeout(0.5):
                        await hint.wait()
                    break
                except TimeoutError:
                    continue


async def test_closing_right_after_new_work_is_no_error(make_engine: Callable[[], Engine]) -> None:
    """The hint that was about to be sent has nowhere to go."""
    problems: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
    async with opened(make_engine()) as db:
        await migrated(db)
        await enqueue(db, "s")
    await asyncio.sleep(0.05)  # longer than a hint is held back
    assert problems == []


# ── values ──


async def test_values_come_back_as_they_went_in(db: Database) -> None:
    await db.write(lambda tx: tx.run("CREATE TABLE kept (i BIGINT, t TEXT, b BYTEA, f BOOLEAN, d DOUBLE PRECISION)"))
    rows = [(2**62, "ü %s :x '", b"\x00\xff", True, 0.1), (-1, "", b"", False, 1e300)]
    text, values = value_list(rows)
    await update(db, f"INSERT INTO kept (i, t, b, f, d) {text}", **values)
    back = await db.read(lambda tx: tx.rows("SELECT i, t, b, f, d FROM kept ORDER BY i DESC"))
    assert [(row["i"], row["t"], bytes(row["b"]), bool(row["f"]), row["d"]) for row in back] == rows


async def test_instants_and_durations_are_whole_microseconds(db: Database) -> None:
    at = LONG_AGO + timedelta(microseconds=123456)
    row = await db.read(
        lambda tx: tx.rows("SELECT CAST(:at AS BIGINT) AS at, CAST(:ttl AS BIGINT) AS ttl", at=at, ttl=TTL)
    )
    assert (from_micros(row[0]["at"]), row[0]["ttl"]) == (at, 30_000_000)
    assert from_micros(to_micros(at)) == at


async def test_what_cannot_be_stored_is_refused_before_it_is_sent(db: Database) -> None:
    with pytest.raises(TypeError, match="a list cannot be stored"):
        await db.read(lambda tx: tx.rows("SELECT :x AS x", x=[1]))


async def test_what_a_call_held_is_let_go_without_the_collectors_help(db: Database) -> None:
    class Held:
        """Something that only the function of a call knows."""

    refs = list[weakref.ref[Held]]()
    gc.disable()
    try:
        for _ in range(20):
            held = Held()
            refs.append(weakref.ref(held))
            await db.write(lambda tx, held=held: None)  # type: ignore[misc]
            del held
        left = sum(ref() is not None for ref in refs)
    finally:
        gc.enable()
    assert left <= db.engine.writers  # each thread knows what it did last
