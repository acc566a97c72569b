"""`holdfast upgrade check`, against real stores, and what older replicas do with jobs that they do not know."""

import json
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.support.commands import holdfast
from tests.support.engine import done, eventually, kind, row, working
from tests.support.jobs import enqueue
from tests.support.postgres import Cluster
from tests.support.processes import environment

from holdfast.store.database import Database
from holdfast.store.work import jobs


@pytest.fixture
def url(postgres: Cluster, template: str) -> Iterator[str]:
    made = postgres.create_database(template)
    yield made
    postgres.drop_database(made)


def checked(folder: Path, url: str) -> tuple[int, dict[str, dict[str, str]]]:
    said = holdfast("upgrade", "check", "-o", "json", env=environment(folder, {"STORE_URL": url}))
    return said.returncode, {each["check"]: each for each in json.loads(said.stdout)}


def test_a_version_that_changes_nothing_may_roll(tmp_path: Path, url: str) -> None:
    code, found = checked(tmp_path, url)
    assert code == 0
    assert found["rolling"]["saw"].startswith("yes")


def test_a_database_of_before_is_looked_at_and_not_changed(tmp_path: Path, url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        newest = connection.execute("DELETE FROM schema_migrations WHERE version > 5 RETURNING name").fetchall()
        code, found = checked(tmp_path, url)
        left = connection.execute("SELECT COUNT(*) FROM schema_migrations WHERE version > 5").fetchone()
    assert (code, left) == (0, (0,))
    assert f"{len(newest)} steps ahead, which only add" in found["schema"]["saw"]


def test_a_newer_database_and_jobs_of_its_kinds_are_told(tmp_path: Path, url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("INSERT INTO schema_migrations (version, name, digest) VALUES (9998, 'adds', 'x')")
        connection.execute(
            """INSERT INTO jobs (id, kind, subject, state, priority, due_at, max_attempts, created_at)
               VALUES ('job_x', 'teleport', 's', 'ready', 1, 0, 3, 0)"""
        )
        code, found = checked(tmp_path, url)
        assert code == 0
        assert "1 of kind teleport" in found["jobs"]["saw"]
        connection.execute("INSERT INTO schema_migrations (version, name, digest) VALUES (9999, 'x_contract', 'x')")
    code, found = checked(tmp_path, url)
    assert code == 10
    assert "9999_x_contract" in found["rolling"]["saw"]


def test_sqlite_is_stopped_and_started(tmp_path: Path) -> None:
    said = holdfast("upgrade", "check", env=environment(tmp_path, {}))
    assert said.returncode == 10
    assert "a SQLite database belongs to one process" in said.stdout


@pytest.mark.anyio
async def test_jobs_of_unknown_kinds_are_left_alone_by_claims_and_sweeps(db: Database) -> None:
    parked, known = await enqueue(db, "later", kind="teleport"), await enqueue(db, "now")
    async with working(db, [kind("k", done)]) as running:
        await eventually(lambda: _is_over(db, known))
        found = await row(db, parked)
        assert (found["state"], found["attempts"]) == ("ready", 0)
        await running.drained()
    assert (await db.read(jobs.counts))["teleport", "ready"] == 1


async def _is_over(db: Database, job: str) -> bool:
    return not await db.read(lambda tx: tx.rows("SELECT 1 FROM jobs WHERE id = :id", id=job))
