"""The journal on both stores: numbered without gaps, chained, and never changed."""

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.support.jobs import ON_POSTGRES, audits, found, opened, put, update
from tests.support.reaper import PATIENCE

from holdfast.core.journal import ChainVerdict, Event, link
from holdfast.errors import StoreError
from holdfast.store import journal
from holdfast.store.database import Database, Engine
from holdfast.store.tx import Row, Tx

pytestmark = pytest.mark.anyio


async def record(db: Database, *subjects: str) -> None:
    """One audit row and one event for each, all in one transaction."""

    def fn(tx: Tx) -> None:
        for subject in subjects:
            journal.audit(tx, "did", subject, actor="alice", n=1)
            journal.event(tx, "done", subject, job="job_1", n=1)

    await db.write(fn)


async def all_events(db: Database) -> list[Event]:
    return await db.read(lambda tx: journal.events_after(tx, 0, limit=100_000))


async def verify(db: Database) -> ChainVerdict:
    return await db.read(journal.verify)


# ── events ──


async def test_an_event_is_kept_as_told(db: Database) -> None:
    before = await db.read(lambda tx: tx.now())
    details = {"ü": [1, None, {"a": "b"}], "percent": "100 %s :x"}
    await db.write(lambda tx: journal.event(tx, "order.placed", "c1", job="job_1", **details))
    [event] = await all_events(db)
    assert (event.id, event.name, event.subject, event.job) == (1, "order.placed", "c1", "job_1")
    assert event.details == details
    assert before <= event.at <= await db.read(lambda tx: tx.now())


async def test_events_of_one_transaction_are_numbered_in_the_order_they_were_told(db: Database) -> None:
    await record(db, "a", "b", "c")
    await record(db, "d")
    assert [(event.id, event.subject) for event in await all_events(db)] == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]


async def test_a_reader_takes_pages_and_may_want_one_subject_only(db: Database) -> None:
    await record(db, *"abcabc")
    page = await db.read(lambda tx: journal.events_after(tx, 2, limit=2))
    assert [(event.id, event.subject) for event in page] == [(3, "c"), (4, "a")]
    page = await db.read(lambda tx: journal.events_after(tx, 1, subject="a"))
    assert [event.id for event in page] == [4]
    assert await db.read(lambda tx: journal.events_after(tx, 6)) == []


async def test_old_events_are_forgotten_page_by_page_and_young_ones_never(db: Database) -> None:
    await record(db, *"abcdef")
    await update(db, "UPDATE events SET at = at - 3600000000 WHERE id <= 3 OR id = 5")

    async def forgotten() -> int:
        return await db.write(lambda tx: journal.forget_events(tx, tx.now() - timedelta(minutes=30), limit=2))

    assert [await forgotten() for _ in range(3)] == [2, 1, 0]
    assert [event.id for event in await all_events(db)] == [4, 5, 6]  # what an older clock wrote later waits its turn
    await update(db, "UPDATE events SET at = at - 3600000000")
    assert [await forgotten() for _ in range(3)] == [2, 1, 0]


class Looked(Tx):
    """A transaction during which, after each look, something happens elsewhere."""

    def __init__(self, tx: Tx, then: Callable[[], None]) -> None:
        super().__init__(tx._session)
        self._then = then

    def row(self, sql: str, **params: Any) -> Row | None:
        found = super().row(sql, **params)
        self._then()
        return found


@ON_POSTGRES
async def test_an_event_told_while_old_ones_are_forgotten_stays(make_engine: Callable[[], Engine]) -> None:
    async with opened(make_engine()) as one, opened(make_engine()) as two:
        loop = asyncio.get_running_loop()

        def tell() -> None:
            asyncio.run_coroutine_threadsafe(record(two, "new"), loop).result(PATIENCE)

        def forget(tx: Tx) -> int:
            return journal.forget_events(Looked(tx, tell), tx.now() - timedelta(hours=1))

        assert await one.write(forget) == 0
        assert [event.subject for event in await all_events(one)] == ["new"]


async def test_what_was_rolled_back_leaves_neither_trace_nor_gap(db: Database) -> None:
    await record(db, "before")

    def fails(tx: Tx) -> None:
        put(tx, "x")
        journal.audit(tx, "did", "never")
        journal.event(tx, "done", "never")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await db.write(fails)
    await record(db, "after")
    assert [event.id for event in await all_events(db)] == [1, 2]
    assert [subject for _, _, subject in await audits(db)] == ["before", "after"]
    assert await db.read(found) == []
    assert await verify(db) == ChainVerdict(verified=2, last_hash=(await verify(db)).last_hash)


async def test_a_transaction_that_cannot_write_its_journal_changes_nothing(db: Database) -> None:
    await update(db, "INSERT INTO events (id, at, name, subject, job, details) VALUES (1, 0, '', '', '', '{}')")

    def fn(tx: Tx) -> None:
        put(tx, "x")
        journal.event(tx, "done", "s")

    with pytest.raises(StoreError):
        await db.write(fn)
    assert await db.read(found) == []


async def test_a_transaction_may_owe_more_rows_than_one_statement_can_carry(db: Database) -> None:
    """PostgreSQL takes 65,535 parameters; a mass import is one transaction all the same."""

    def fn(tx: Tx) -> None:
        for n in range(9_500):
            journal.audit(tx, "did", f"s{n}")
            journal.event(tx, "done", f"s{n}")

    await db.run_long(fn, deadline=timedelta(minutes=1))
    events = await all_events(db)
    assert [(event.id, event.subject) for event in events] == [(n + 1, f"s{n}") for n in range(9_500)]
    assert (await verify(db)).verified == 9_500


async def test_eight_writers_at_once_leave_numbers_without_gaps(db: Database) -> None:
    await asyncio.gather(*(write_many(db, f"w{n}") for n in range(8)))
    await check_numbers(db, 8 * 25)


@ON_POSTGRES
async def test_writers_on_two_replicas_leave_numbers_without_gaps(make_engine: Callable[[], Engine]) -> None:
    async with opened(make_engine()) as one, opened(make_engine()) as two:
        await asyncio.gather(*(write_many(db, f"w{n}") for n, db in enumerate([one, two] * 4)))
        await check_numbers(one, 8 * 25)


async def write_many(db: Database, name: str) -> None:
    """25 transactions with two events each; every fourth fails once it has told everything."""
    for n in range(25):
        await record(db, f"{name}:{n}:1", f"{name}:{n}:2")
        if n % 4 == 0:
            with pytest.raises(ZeroDivisionError):
                await db.write(lambda tx: (journal.event(tx, "done", "never"), 1 // 0))


async def check_numbers(db: Database, transactions: int) -> None:
    events = await all_events(db)
    assert [event.id for event in events] == list(range(1, 2 * transactions + 1))
    for first, second in zip(events[::2], events[1::2], strict=True):  # the two of a transaction are neighbours
        assert (first.subject[:-2], first.subject[-1:], second.subject[-1:]) == (second.subject[:-2], "1", "2")
    assert (await verify(db)).verified == 2 * transactions


async def test_a_reader_that_follows_misses_nothing_while_others_write(db: Database) -> None:
    await follow(db, [db] * 8)


@ON_POSTGRES
async def test_a_reader_on_one_replica_misses_nothing_that_others_write(make_engine: Callable[[], Engine]) -> None:
    async with opened(make_engine()) as one, opened(make_engine()) as two, opened(make_engine()) as three:
        await follow(one, [two, three] * 4)


async def follow(reader: Database, writers: list[Database]) -> None:
    """Resume after the last id seen, again and again, from before the first write to after the last."""
    seen: list[Event] = []

    async def catch_up() -> int:
        last = seen[-1].id if seen else 0
        page = await reader.read(lambda tx: journal.events_after(tx, last, limit=7))
        seen.extend(page)
        return len(page)

    writing = asyncio.gather(*(write_many(db, f"w{n}") for n, db in enumerate(writers)))
    while not writing.done():
        await catch_up()
    await writing
    while await catch_up():
        pass
    assert [event.id for event in seen] == list(range(1, 2 * 25 * len(writers) + 1))


# ── the outbox ──


async def test_a_consumer_sees_a_row_again_until_it_says_that_it_acted(db: Database) -> None:
    await record(db, "a", "b")
    assert [row.subject for row in await db.read(lambda tx: journal.audit_outbox(tx, "mail"))] == ["a", "b"]
    again = await db.read(lambda tx: journal.audit_outbox(tx, "mail", limit=1))
    assert [row.subject for row in again] == ["a"]
    await db.write(lambda tx: journal.advance(tx, "mail", again[-1].seq))
    assert [row.subject for row in await db.read(lambda tx: journal.audit_outbox(tx, "mail"))] == ["b"]
    assert len(await db.read(lambda tx: journal.audit_outbox(tx, "pager"))) == 2  # each has a cursor of its own


async def test_a_cursor_never_goes_back(db: Database) -> None:
    await record(db, *"abcde")
    for to in (3, 1, 4, 2):
        await db.write(lambda tx, to=to: journal.advance(tx, "mail", to))
    assert [row.seq for row in await db.read(lambda tx: journal.audit_outbox(tx, "mail"))] == [5]


async def test_a_consumer_that_dies_between_act_and_advance_acts_again_and_skips_nothing(db: Database) -> None:
    await record(db, *"abcdefgh")
    acted: list[int] = []
    for death in (2, 1, 3, 99):  # after so many rows
        for row in await db.read(lambda tx: journal.audit_outbox(tx, "mail", limit=3)):
            acted.append(row.seq)
            death -= 1
            if death == 0:
                break
            await db.write(lambda tx, row=row: journal.advance(tx, "mail", row.seq))
    assert acted == [1, 2, 2, 2, 3, 4, 4, 5, 6]


# ── the audit log ──


async def test_an_audit_row_says_who_did_what_to_whom(db: Database) -> None:
    await db.write(lambda tx: journal.audit(tx, "approve", "c1", actor="alice", note="ü", n=[1]))
    await db.write(lambda tx: journal.audit(tx, "renew", "c1"))
    rows = await db.read(lambda tx: journal.audit_page(tx, 0))
    assert [(row.seq, row.actor, row.action, row.subject) for row in rows] == [
        (1, "alice", "approve", "c1"),
        (2, "system", "renew", "c1"),
    ]
    assert json.loads(rows[0].details) == {"note": "ü", "n": [1]}
    assert await db.read(lambda tx: journal.audit_page(tx, 1, limit=5)) == rows[1:]


async def test_a_chain_as_written_holds(db: Database) -> None:
    assert (await verify(db)).ok  # nothing was written yet
    await record(db, "a", "b", "c")
    await record(db, "d")
    verdict = await verify(db)
    assert (verdict.ok, verdict.verified) == (True, 4)
    assert (4, verdict.last_hash) == await db.read(journal.audit_head)


async def test_a_chain_of_twenty_thousand_rows_holds_and_one_wrong_letter_in_it_is_found(db: Database) -> None:
    def fn(tx: Tx) -> None:
        for n in range(2000):
            journal.audit(tx, "did", f"s{n}", note="x" * 50)

    for _ in range(10):
        await db.write(fn)
    assert (await verify(db)).verified == 20_000
    await forge(db, "UPDATE audit SET actor = 'systen' WHERE seq = 12345")
    verdict = await verify(db)
    assert (verdict.verified, verdict.bad_seq) == (12_344, 12_345)


@pytest.mark.parametrize(
    ("statement", "bad"),
    [
        ("UPDATE audit SET subject = 'z' WHERE seq = 3", 3),
        ("UPDATE audit SET at = at + 1 WHERE seq = 1", 1),
        ("UPDATE audit SET details = '{\"n\":2}' WHERE seq = 5", 5),
        ("UPDATE audit SET hash = 'beef' WHERE seq = 4", 4),
        ("DELETE FROM audit WHERE seq = 1", 1),
        ("DELETE FROM audit WHERE seq = 3", 3),
        ("DELETE FROM audit WHERE seq = 5", 5),
        ("DELETE FROM audit WHERE seq > 2", 3),
        ("DELETE FROM audit", 1),
        ("INSERT INTO audit SELECT 6, at, actor, action, subject, details, hash FROM audit WHERE seq = 5", 6),
        ("UPDATE journal_head SET audit_seq = 4", 6),
        ("UPDATE journal_head SET audit_hash = 'beef'", 5),
    ],
)
async def test_a_forged_chain_names_the_first_row_that_is_wrong(db: Database, statement: str, bad: int) -> None:
    await record(db, *"abcde")
    await forge(db, statement)
    verdict = await verify(db)
    assert (verdict.ok, verdict.bad_seq) == (False, bad)
    assert verdict.problem.startswith(f"row {bad} ")


async def test_a_row_put_in_between_and_two_that_changed_places_are_named(db: Database) -> None:
    await record(db, *"abcde")
    await forge(db, "UPDATE audit SET seq = -seq WHERE seq IN (2, 3)")
    await forge(db, "UPDATE audit SET seq = 5 + seq WHERE seq IN (-2, -3)")  # 2 is 3 now, and 3 is 2
    assert (await verify(db)).bad_seq == 2
    await forge(db, "UPDATE audit SET seq = seq + 100 WHERE seq > 3")
    await forge(db, "INSERT INTO audit SELECT 4, at, actor, action, subject, details, hash FROM audit WHERE seq = 104")
    await forge(db, "UPDATE audit SET seq = seq - 99 WHERE seq > 100")
    await forge(db, "UPDATE audit SET seq = -seq WHERE seq IN (2, 3)")
    await forge(db, "UPDATE audit SET seq = 5 + seq WHERE seq IN (-2, -3)")
    assert (await verify(db)).bad_seq == 5  # 4 is itself; then comes it again


async def test_a_forger_who_hashes_the_rest_anew_is_betrayed_by_the_head(db: Database) -> None:
    await record(db, "a", "b", "c")
    rows = await db.read(lambda tx: journal.audit_page(tx, 0))
    previous = rows[0].hash
    for row in rows[1:]:
        actor = "nobody" if row.seq == 2 else row.actor
        previous = link(previous, row.seq, row.at, actor, row.action, row.subject, row.details)
        await forge(db, f"UPDATE audit SET actor = '{actor}', hash = '{previous}' WHERE seq = {row.seq}")
    verdict = await verify(db)
    assert (verdict.bad_seq, verdict.problem) == (3, "row 3 is not the row that was written last")


@pytest.mark.parametrize(
    "statement", ["UPDATE audit SET actor = 'nobody'", "UPDATE audit SET actor = actor", "DELETE FROM audit"]
)
async def test_audit_rows_cannot_be_changed_or_deleted(db: Database, statement: str) -> None:
    await record(db, "a")
    with pytest.raises(StoreError, match="audit rows are never"):
        await update(db, statement)
    assert (await verify(db)).verified == 1


@ON_POSTGRES
async def test_the_audit_log_cannot_be_emptied_at_a_stroke(db: Database) -> None:
    await record(db, "a")
    with pytest.raises(StoreError, match="audit rows are never"):
        await update(db, "TRUNCATE audit")
    assert (await verify(db)).verified == 1


async def forge(db: Database, statement: str) -> None:
    """What somebody with all rights on the database can do."""
    triggers = {
        "sqlite": ["audit_is_never_changed", "audit_is_never_deleted"],
        "postgresql": ["audit_is_never_changed ON audit", "audit_is_never_deleted ON audit"],
    }

    def fn(tx: Tx) -> None:
        for trigger in triggers[db.engine.name]:
            tx.run(f"DROP TRIGGER IF EXISTS {trigger}")
        assert tx.run(statement)

    await db.write(fn)
