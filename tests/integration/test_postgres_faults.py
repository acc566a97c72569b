"""PostgreSQL that hangs, restarts, forgets to answer or says no: no write is lost, doubled or lied about."""

import asyncio
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from tests.support.jobs import enqueue, found, get, grouped, hurried, opened, put, putting, update
from tests.support.ports import free_port
from tests.support.postgres import Cluster
from tests.support.proxy import FaultProxy
from tests.support.reaper import PATIENCE
from tests.support.secrets_planted import STORE_PASSWORD
from tests.support.stores import migrated

from holdfast.errors import Duplicate, OutcomeUnknown, StoreError, StoreRefused, StoreUnavailable, TxConflict
from holdfast.secret import Secret
from holdfast.store import journal
from holdfast.store.database import CONFLICT_TRIES
from holdfast.store.postgres import PostgresEngine
from holdfast.store.tx import Tx
from holdfast.store.work import sweeps

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def victim() -> Iterator[Cluster]:
    """A cluster that a test may stop, freeze and kill; it runs again when the test is over."""
    with Cluster(tmpfs=True) as cluster:
        yield cluster


@pytest.fixture
def url(postgres: Cluster, template: str) -> Iterator[str]:
    """An empty, migrated database."""
    url = postgres.create_database(template)
    yield url
    postgres.drop_database(url)


@pytest.fixture
def proxy(postgres: Cluster) -> Iterator[FaultProxy]:
    with FaultProxy("127.0.0.1", postgres.port) as proxy:
        yield proxy


def engine(url: str, *, connections: int = 1) -> PostgresEngine:
    return PostgresEngine(Secret(url), connections=connections)


def through(proxy: FaultProxy, url: str) -> PostgresEngine:
    return engine(f"postgresql://holdfast@127.0.0.1:{proxy.port}/{url.rsplit('/', 1)[1]}")


class InstantClock:
    """For waits that a test need not sit out."""

    def now(self) -> Any:
        raise AssertionError("not asked")

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


class At:
    """Does something once, the first time a named point is passed after it was armed; on the store's thread."""

    def __init__(self, name: str, act: Callable[[], None]) -> None:
        self._name = name
        self._act = act
        self.armed = False

    def __call__(self, name: str) -> None:
        if self.armed and name == self._name:
            self.armed = False
            self._act()


async def until(attempt: Callable[[], Any]) -> Any:
    """Ask until the store answers; it may need a moment to find a new connection."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await attempt()
            except (StoreUnavailable, OutcomeUnknown):
                await asyncio.sleep(0.01)


# ── no answer ──


async def test_a_server_that_hangs_before_commit_has_changed_nothing(proxy: FaultProxy, url: str) -> None:
    async with opened(through(proxy, url)) as db, opened(engine(url)) as direct:
        await db.write(putting("before"))
        proxy.hang()
        with hurried(db, 0.4):
            with pytest.raises(StoreUnavailable, match=r"no answer from the store in 0\.4 s; nothing was changed"):
                await db.write(putting("hung"))
            with pytest.raises(StoreUnavailable):
                await db.read(found)
        proxy.pass_through()
        await until(lambda: db.write(putting("after")))
        assert await direct.read(found) == ["after", "before"]


async def test_a_server_that_hangs_in_commit_leaves_the_outcome_unknown(proxy: FaultProxy, url: str) -> None:
    loop, under_way = asyncio.get_running_loop(), list[Any]()

    def hang() -> None:
        proxy.hang()
        loop.call_soon_threadsafe(loop.call_later, 0.4, db._overdue, under_way[-1], 0.4)  # its time begins now

    at = At("store.before-commit", hang)
    async with opened(through(proxy, url), points=at) as db, opened(engine(url)) as direct:
        await db.write(putting("before"))
        put_in = db._writes.put
        db._writes.put = lambda call: (under_way.append(call), put_in(call))  # type: ignore[method-assign]
        at.armed = True
        with pytest.raises(OutcomeUnknown, match=r"no answer to COMMIT in 0\.4 s; it may have happened"):
            await db.write(putting("unknown"))
        proxy.pass_through()
        await until(lambda: db.write(putting("after")))
        assert set(await direct.read(found)) - {"unknown"} == {"after", "before"}


async def test_a_frozen_server_costs_a_deadline_and_nothing_else(victim: Cluster) -> None:
    url = victim.create_database()
    async with opened(engine(url)) as db:
        await migrated(db)
        victim.pause()
        try:
            with hurried(db, 0.5):
                with pytest.raises(StoreUnavailable, match="nothing was changed"):
                    await db.write(putting("frozen"))
                with pytest.raises(StoreUnavailable):
                    await db.read(found)
        finally:
            victim.resume()
        await until(lambda: db.write(putting("thawed")))
        assert await until(lambda: db.read(found)) == ["thawed"]


async def test_a_hint_that_is_never_answered_does_not_keep_the_writer_for_ever(postgres: Cluster, url: str) -> None:
    """NOTIFY is sent when nobody waits for it; the only writer must be free again after a deadline."""
    pids: list[int] = []

    def freeze() -> None:
        os.kill(pids[0], signal.SIGSTOP)  # the write is committed; its hint meets a frozen server process

    at = At("store.after-commit", freeze)
    try:
        async with opened(engine(url), points=at) as db:
            pids += await db.write(lambda tx: [tx.rows("SELECT pg_backend_pid() AS pid")[0]["pid"]])
            at.armed = True
            await enqueue(db, "s")
            with hurried(db, 0.4):
                async with asyncio.timeout(PATIENCE):
                    while db._notify_planned:  # noqa: ASYNC110 - until the writer has it
                        await asyncio.sleep(0.001)
            await until(lambda: db.write(putting("after")))
            assert await db.read(found) == ["after"]
    finally:
        os.kill(pids[0], signal.SIGCONT)


# ── an answer that was lost ──


async def test_a_lost_answer_to_commit_is_an_unknown_outcome_that_did_happen(proxy: FaultProxy, url: str) -> None:
    async with opened(through(proxy, url)) as db:
        await db.write(putting("before"))
        proxy.drop_replies_after(b"COMMIT")
        with pytest.raises(OutcomeUnknown, match="the answer to COMMIT was lost"):
            await db.write(putting("lost"))
        assert proxy.cuts == 1
        assert await db.read(found) == ["before", "lost"]
        await db.write(putting("after"))


async def test_a_commit_that_never_arrived_is_an_unknown_outcome_that_did_not_happen(
    proxy: FaultProxy, url: str
) -> None:
    async with opened(through(proxy, url)) as db:
        await db.write(putting("before"))
        proxy.cut_before(b"COMMIT")
        with pytest.raises(OutcomeUnknown):
            await db.write(putting("lost"))
        assert await db.read(found) == ["before"]


@pytest.mark.parametrize("fault", ["reply lost", "commit lost"])
async def test_a_keyed_write_resolves_an_unknown_outcome_both_ways(proxy: FaultProxy, url: str, fault: str) -> None:
    committed = []

    def fn(tx: Tx) -> str:
        tx.run("UPDATE journal_head SET event_id = event_id + 1")
        committed.append(tx.rows("SELECT event_id FROM journal_head")[0]["event_id"])
        return f"run {len(committed)}"

    async with opened(through(proxy, url)) as db:
        await db.write(putting("before"))
        (proxy.drop_replies_after if fault == "reply lost" else proxy.cut_before)(b"COMMIT", times=2)
        answer = await db.write(fn, key="k")
        assert answer == ("run 1" if fault == "reply lost" else "run 3")
        assert [row["event_id"] for row in await db.read(lambda tx: tx.rows("SELECT event_id FROM journal_head"))] == [
            1
        ]
        assert await db.write(fn, key="k") == answer


async def test_a_keyed_write_never_says_unavailable_when_it_may_have_happened(proxy: FaultProxy, url: str) -> None:
    """Unknown, then unreachable: the caller must not learn that nothing was changed."""

    class Clock(InstantClock):
        async def sleep(self, seconds: float) -> None:
            proxy.refuse()  # between the first try and the second

    async with opened(through(proxy, url)) as db:
        await db.write(putting("before"))
        db._clock = Clock()
        proxy.drop_replies_after(b"COMMIT")
        with pytest.raises(OutcomeUnknown):
            await db.write(putting("x"), key="k")
        proxy.pass_through()
        assert await until(lambda: db.write(putting("again"), key="k")) == "x"
        assert await db.read(found) == ["before", "x"]


async def test_when_the_connection_dies_with_a_failing_group_nobody_is_told_a_lie(proxy: FaultProxy, url: str) -> None:
    """The group is rolled back because of one; if that fails, too, the others did not happen either."""
    async with opened(through(proxy, url)) as db, opened(engine(url)) as direct:
        proxy.cut_before(b"ROLLBACK")
        calls = await grouped(db, putting("a"), fails, putting("b"))
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert proxy.cuts == 1
        assert [type(answer) for answer in answers] == [StoreUnavailable] * 3
        assert await direct.read(found) == []


async def test_what_was_committed_alone_is_not_denied_when_a_neighbour_loses_the_connection(
    proxy: FaultProxy, url: str
) -> None:
    async with opened(through(proxy, url)) as db, opened(engine(url)) as direct:
        proxy.cut_before(b"cut here")
        cut = lambda tx: tx.rows("SELECT 'cut here' AS x")  # noqa: E731
        calls = await grouped(db, putting("a"), fails, cut, putting("b"))
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert proxy.cuts == 1
        assert [type(answer) for answer in answers] == [str, ValueError, StoreUnavailable, StoreUnavailable]
        assert await direct.read(found) == ["a"]


def fails(tx: Tx) -> None:
    raise ValueError("mine")


# ── an answer that says no ──


async def test_a_deadlock_ends_with_both_writes_done(postgres: Cluster, url: str) -> None:
    name = url.rsplit("/", 1)[1]
    postgres.run(f"ALTER DATABASE {name} SET deadlock_timeout = '20ms'")
    both_hold = threading.Barrier(2)
    deadlocks = []

    def locking(one: str, other: str) -> Callable[[Tx], None]:
        tries = []

        def fn(tx: Tx) -> None:
            tries.append(1)
            lock(tx, one)
            if len(tries) == 1:
                both_hold.wait(PATIENCE)
            else:
                deadlocks.append(1)
            lock(tx, other)

        return fn

    def lock(tx: Tx, key: str) -> None:
        tx.run("UPDATE self_checks SET details = details || 'x' WHERE name = :key", key=key)

    async with opened(engine(url)) as one, opened(engine(url)) as two:
        await one.write(lambda tx: (put(tx, "a", ""), put(tx, "b", "")))
        await asyncio.gather(one.write(locking("a", "b")), two.write(locking("b", "a")))
        rows = await one.read(lambda tx: tx.rows("SELECT details FROM self_checks"))
    assert [row["details"] for row in rows] == ["xx", "xx"]
    assert len(deadlocks) == 1


def fail_first(url: str, tries: int, sqlstate: str) -> None:
    """Let the first inserts into self_checks fail; a sequence counts, because a rollback does not undo it."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE SEQUENCE tries")
        connection.execute(
            f"""CREATE FUNCTION fail_first() RETURNS TRIGGER LANGUAGE plpgsql AS
                $$ BEGIN IF nextval('tries') <= {tries} THEN RAISE EXCEPTION 'not now' USING ERRCODE = '{sqlstate}';
                   END IF; RETURN NEW; END $$""".encode()
        )
        connection.execute(
            "CREATE TRIGGER fail_first BEFORE INSERT ON self_checks FOR EACH ROW EXECUTE FUNCTION fail_first()"
        )


@pytest.mark.parametrize("sqlstate", ["40001", "40P01", "55P03"])
async def test_a_conflict_is_tried_again_until_it_is_over(url: str, sqlstate: str) -> None:
    fail_first(url, 3, sqlstate)
    async with opened(engine(url)) as db:
        assert await db.write(putting("x")) == "x"
        assert await db.read(found) == ["x"]
        assert (await db.read(lambda tx: tx.rows("SELECT last_value AS n FROM tries")))[0]["n"] == 4


async def test_conflicts_without_end_are_reported(url: str) -> None:
    fail_first(url, 1000, "40001")
    async with opened(engine(url)) as db:
        db._clock = InstantClock()
        with pytest.raises(TxConflict, match="not now"):
            await db.write(putting("x"))
        assert (await db.read(lambda tx: tx.rows("SELECT last_value AS n FROM tries")))[0]["n"] == CONFLICT_TRIES


async def test_conflicts_at_a_fifth_of_all_writes_lose_none(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE SEQUENCE tries")
        connection.execute(
            """CREATE FUNCTION fail_some() RETURNS TRIGGER LANGUAGE plpgsql AS
               $$ BEGIN IF nextval('tries') % 5 = 0 THEN RAISE EXCEPTION 'not now' USING ERRCODE = '40001';
                  END IF; RETURN NEW; END $$"""
        )
        connection.execute(
            "CREATE TRIGGER fail_some BEFORE INSERT ON self_checks FOR EACH ROW EXECUTE FUNCTION fail_some()"
        )

    def fn(key: str) -> Callable[[Tx], None]:
        return lambda tx: (put(tx, key), journal.event(tx, "done", key))[1]

    async with opened(engine(url, connections=3)) as db:
        await asyncio.gather(*(db.write(fn(f"w{n:03d}")) for n in range(100)))
        assert await db.read(found) == [f"w{n:03d}" for n in range(100)]
        assert len(await db.read(lambda tx: journal.events_after(tx, 0))) == 100


@pytest.mark.parametrize(
    ("sqlstate", "what"),
    [("53100", "disk full"), ("53200", "out of memory"), ("57P03", "cannot connect now"), ("58030", "io error")],
)
async def test_a_server_without_room_is_unavailable_and_works_again_later(url: str, sqlstate: str, what: str) -> None:
    fail_first(url, 1, sqlstate)
    async with opened(engine(url)) as db:
        with pytest.raises(StoreUnavailable, match="PostgreSQL cannot do this now: not now"):
            await db.write(putting("x"))
        assert await db.read(found) == []
        await db.write(putting("x"))


async def test_a_server_error_that_is_our_fault_is_no_outage(url: str) -> None:
    fail_first(url, 1, "P0001")
    async with opened(engine(url)) as db:
        with pytest.raises(StoreError, match="not now") as caught:
            await db.write(putting("x"))
        assert not isinstance(caught.value, StoreUnavailable | TxConflict | Duplicate)


# ── gone and back ──


async def test_under_load_a_server_restart_costs_no_keyed_write_and_doubles_none(victim: Cluster) -> None:
    url = victim.create_database()
    done = asyncio.Event()
    finished = 0

    async with opened(engine(url, connections=3)) as db:
        await migrated(db)

        async def write(n: int) -> None:
            nonlocal finished

            def fn(tx: Tx) -> None:
                tx.run("UPDATE journal_head SET event_id = event_id + 1 WHERE only_one = 1")
                put(tx, f"w{n:03d}")

            await until(lambda: db.write(fn, key=f"key {n}"))
            finished += 1
            if finished == 40:
                done.set()

        async def worker(first: int) -> None:
            for n in range(first, 240, 24):
                await write(n)

        load = asyncio.gather(*(worker(n) for n in range(24)))
        await done.wait()
        await asyncio.to_thread(victim.restart, "immediate")
        await load
        assert await until(lambda: db.read(found)) == [f"w{n:03d}" for n in range(240)]
        head = await db.read(lambda tx: tx.rows("SELECT event_id FROM journal_head"))
        assert head[0]["event_id"] == 240


async def test_killed_connections_are_replaced(postgres: Cluster, url: str) -> None:
    async with opened(engine(url, connections=2)) as db:
        await asyncio.gather(*(db.write(putting(f"w{n}")) for n in range(4)))
        await db.read(found)
        postgres.run(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{url.rsplit('/', 1)[1]}'"
        )
        for n in range(4, 8):
            await until(lambda n=n: db.write(putting(f"w{n}")))
        assert await until(lambda: db.read(found)) == [f"w{n}" for n in range(8)]


async def test_a_promoted_server_is_a_new_epoch_and_a_standby_is_none_at_all(victim: Cluster) -> None:
    url = victim.create_database()
    async with opened(engine(url)) as db:
        await migrated(db)
        before = await db.write(lambda tx: tx.epoch)
        assert await db.write(sweeps.note_epoch) == (before, False)
        [taken_id] = [await enqueue(db, "s")]
        await update(db, "UPDATE jobs SET state = 'running', holder = 'a', lease_until = now_us() + 30000000")

        victim.stop()
        (victim.folder / "data" / "standby.signal").touch()
        victim.restart()
        with pytest.raises(StoreUnavailable):
            await db.write(putting("on a standby"))
        with pytest.raises(StoreUnavailable, match="read-only"):
            await db.write(putting("on a standby"))

        victim.run("SELECT pg_promote()")
        assert await until(lambda: db.write(lambda tx: tx.epoch)) == before + 1
        assert await db.write(sweeps.note_epoch) == (before + 1, True)
        assert (await until(lambda: get(db, taken_id))).reason == "STORE_FAILOVER"


# ── what a person reads ──

SENTINEL = STORE_PASSWORD


async def test_a_server_that_is_not_there_is_named_and_the_password_is_not() -> None:
    port = free_port()
    async with opened(engine(f"postgresql://holdfast:{SENTINEL}@127.0.0.1:{port}/certs")) as db:
        for call in (db.write, db.read):
            with pytest.raises(
                StoreUnavailable, match=f"PostgreSQL at 127.0.0.1:{port}/certs cannot be reached"
            ) as caught:
                await call(found)
            assert SENTINEL not in "".join(traceback.format_exception(caught.value))


async def test_a_refused_password_is_not_repeated(postgres: Cluster) -> None:
    missing = f"postgresql://nobody:{SENTINEL}@127.0.0.1:{postgres.port}/missing"
    async with opened(engine(missing)) as db:
        with pytest.raises(StoreUnavailable, match="nobody") as caught:
            await db.write(found)
        assert SENTINEL not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "address",
    [
        f"postgres//holdfast:{SENTINEL}@host/db",
        f"postgresql://holdfast:{SENTINEL}@host/db?nonsense=1",
        f"host=h password={SENTINEL} nonsense",
    ],
)
def test_an_address_that_cannot_be_read_is_refused_without_repeating_it(address: str) -> None:
    with pytest.raises(StoreRefused, match=r"store\.url is not a PostgreSQL address") as caught:
        engine(address)
    assert SENTINEL not in "".join(traceback.format_exception(caught.value))
    assert SENTINEL not in str(caught.value.hint)


async def test_a_server_restarted_while_nobody_asked_it_anything_costs_nobody_an_error(
    postgres: Cluster, url: str
) -> None:
    async with opened(engine(url)) as db:
        await asyncio.gather(*(db.write(putting(str(n))) for n in range(20)))  # every writer has a connection now
        postgres.restart()
        await asyncio.gather(*(db.write(putting(f"later-{n}")) for n in range(20)))
        await db.read(lambda tx: tx.row("SELECT 1 AS one"))
