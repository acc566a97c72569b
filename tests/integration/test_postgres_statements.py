"""Statements over libpq: values arrive as they were, what comes often is prepared, and what fails says why."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.support.acme_desk import LOOPBACK, open_office
from tests.support.postgres import Cluster
from tests.support.stores import open_store

from holdfast.core.own_ca.acme import OrderState
from holdfast.errors import StoreError, StoreUnavailable
from holdfast.secret import Secret
from holdfast.store.database import Database
from holdfast.store.marks import autocommit, inline
from holdfast.store.postgres import MOST_KNOWN, PREPARE_AFTER, PostgresEngine, StatementFailed, Statements, translate
from holdfast.store.tx import Tx, change

PREPARED = "SELECT count(*) AS number FROM pg_prepared_statements"


@pytest.fixture
def url(postgres: Cluster) -> Iterator[str]:
    url = postgres.create_database()
    yield url
    postgres.drop_database(url)


@pytest.fixture
def line(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def statements(line: psycopg.Connection[Any]) -> Statements:
    statements = Statements(line)
    statements.execute("CREATE TABLE things (word TEXT, number BIGINT, yes BOOLEAN, part FLOAT8, raw BYTEA)", {})
    return statements


INSERT = "INSERT INTO things (word, number, yes, part, raw) VALUES (:word, :number, :yes, :part, :raw)"
FULL = {"word": "Größe 'x' \\ %s :y", "number": -(2**62), "yes": True, "part": 0.1, "raw": bytes(range(256))}
EMPTY = {"word": "", "number": 0, "yes": False, "part": -0.0, "raw": b""}
NOTHING = dict.fromkeys(FULL)


@pytest.mark.parametrize("values", [FULL, EMPTY, NOTHING], ids=["full", "empty", "nothing"])
def test_values_come_back_as_they_went_however_often(statements: Statements, values: dict[str, Any]) -> None:
    for _ in range(PREPARE_AFTER + 2):
        assert statements.execute(INSERT, values) == 1
        assert statements.query("DELETE FROM things RETURNING word, number, yes, part, raw", {}) == [values]


def test_a_text_with_nul_is_refused_and_not_cut_off(statements: Statements) -> None:
    with pytest.raises(StatementFailed, match="NUL"):
        statements.execute(INSERT, {**FULL, "word": "one\0two"})
    assert statements.query("SELECT word FROM things", {}) == []


def test_what_comes_often_is_prepared_and_what_comes_no_more_is_forgotten(statements: Statements) -> None:
    for _ in range(2 * PREPARE_AFTER):
        assert statements.query("SELECT :n + 1 AS n", {"n": 2**40}) == [{"n": 2**40 + 1}]
    assert statements.query(PREPARED, {}) == [{"number": 1}]
    for other in range(MOST_KNOWN):
        statements.query(f"SELECT {other} AS other", {})
    assert statements.query(PREPARED, {}) == [{"number": 0}]
    assert statements.query("SELECT :n + 1 AS n", {"n": 1}) == [{"n": 2}]


def test_a_failure_has_the_servers_words_and_its_state(statements: Statements) -> None:
    with pytest.raises(StatementFailed, match='relation "nowhere" does not exist') as told:
        statements.query("SELECT 1 FROM nowhere", {})
    assert told.value.state == "42P01"


def test_a_line_that_is_gone_is_told_from_a_refusal(line: psycopg.Connection[Any], statements: Statements) -> None:
    with psycopg.connect(line.info.dsn, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s)", [line.info.backend_pid])
    for _ in range(2):  # when it is noticed, and ever after
        with pytest.raises(StatementFailed) as told:
            statements.command(b"BEGIN")
        assert told.value.state in ("", "57P01")
    assert line.closed


@pytest.mark.parametrize(
    ("sql", "text", "names"),
    [
        ("SELECT :b + :a + :b", b"SELECT $1 + $2 + $1", ("b", "a")),
        ("SELECT '1'::text, :a::text", b"SELECT '1'::text, $1::text", ("a",)),
        ("SELECT 1 /* FOR UPDATE SKIP LOCKED */", b"SELECT 1 FOR UPDATE SKIP LOCKED", ()),
        ("SELECT 1 LIKE '%'", b"SELECT 1 LIKE '%'", ()),
    ],
    ids=["a name twice", "casts", "locks", "per cent"],
)
def test_our_sql_is_written_as_the_server_reads_it(sql: str, text: bytes, names: tuple[str, ...]) -> None:
    assert translate(sql) == (text, names)


@pytest.mark.anyio
async def test_statements_that_stand_apart_need_no_transaction(url: str) -> None:
    def add_and_fail(tx: Tx) -> None:
        tx.run("INSERT INTO seen (id) VALUES (1)")
        tx.run("INSERT INTO seen (id) VALUES (1)")

    store = open_store(PostgresEngine(Secret(url), connections=1))
    try:
        await store.write(lambda tx: tx.run("CREATE TABLE seen (id BIGINT PRIMARY KEY)"))
        with pytest.raises(StoreError):
            await store.write(add_and_fail)
        assert await store.read(lambda tx: tx.rows("SELECT id FROM seen")) == []
        with pytest.raises(StoreError):
            await store.write(autocommit(add_and_fail))
        assert await store.read(lambda tx: tx.rows("SELECT id FROM seen")) == [{"id": 1}]
    finally:
        await store.close()


@pytest.mark.anyio
async def test_a_brief_look_that_takes_too_long_has_changed_nothing_and_says_so(url: str) -> None:
    store = open_store(PostgresEngine(Secret(url), connections=1), deadline=0.2)
    try:
        with pytest.raises(StoreUnavailable):
            await store.read(inline(lambda tx: tx.rows("SELECT pg_sleep(60)")))
    finally:
        await store.close()


# ── several changes as one statement ──


@pytest.mark.anyio
async def test_changes_that_go_together_are_one_statement_and_each_is_counted(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[str]()
    plain = Statements._run
    monkeypatch.setattr(Statements, "_run", lambda self, sql, params: asked.append(sql) or plain(self, sql, params))

    def write(tx: Tx) -> tuple[list[int], bool]:
        tx.run("INSERT INTO acme_limits (key, tat, room) VALUES ('a', 1, 1), ('b', 1, 1)")
        asked.clear()
        counts = tx.together(
            change("UPDATE acme_limits SET tat = :tat WHERE key = :key", key="a", tat=7),
            change("INSERT INTO acme_limits (key, tat, room) VALUES (:key, 2, 2) ON CONFLICT DO NOTHING", key="b"),
            change("DELETE FROM acme_failures WHERE account = :key", key="a"),
        )
        return counts, tx.wrote

    assert await db.write(write) == ([1, 0, 0], True)
    assert len(asked) in (0, 1), "none on SQLite, which is asked otherwise"
    rows = await db.read(lambda tx: tx.rows("SELECT key, tat FROM acme_limits ORDER BY key"))
    assert [(row["key"], row["tat"]) for row in rows] == [("a", 7), ("b", 1)]


@pytest.mark.anyio
async def test_an_order_is_written_by_few_statements(
    postgres: Cluster, template: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looks at what is asked for, which are repeated while it is waited for, are not counted; nor what others do."""
    asked, plain = list[str](), Statements._run
    monkeypatch.setattr(Statements, "_run", lambda self, sql, params: asked.append(sql) or plain(self, sql, params))
    url = postgres.create_database(template)
    store = open_store(PostgresEngine(Secret(url), connections=1))
    try:
        async with open_office(store, tmp_path) as office, office.working():
            who = await office.client()
            asked.clear()
            assert (await office.issued(who, LOOPBACK)).state is OrderState.VALID
            of_order = [sql for sql in asked if re.search("acme_|ca_|audit", sql) and not sql.startswith("SELECT acc.")]
            assert len(of_order) <= 19, "\n".join(of_order)
    finally:
        await store.close()
        postgres.drop_database(url)
