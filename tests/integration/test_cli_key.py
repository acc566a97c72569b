"""`holdfast key` in a process of its own: what it prints, how it exits, and what is left when it is killed."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.support import commands
from tests.support.keys import a_kek, settings_in
from tests.support.postgres import Cluster
from tests.support.reaper import until
from tests.support.secrets_planted import KEPT_BY_COMMAND

from holdfast.config import Settings, StoreSettings
from holdfast.from_settings import open_store
from holdfast.keyring import SCRYPT, SecretOwner, read_key_file, rewrite_key_file
from holdfast.operations.installation import keys
from holdfast.ports import no_points
from holdfast.secret import Secret
from holdfast.store import migrate, secrets
from holdfast.store.database import Database
from holdfast.store.sqlite import SqliteEngine
from holdfast.world import LocalFiles, SystemClock, SystemRandom

OWNER = SecretOwner("tests", "one", "secret")

FILES, RANDOM, CLOCK = LocalFiles(), SystemRandom(), SystemClock()
SENTINEL = KEPT_BY_COMMAND


def environment(settings: Settings, **more: str) -> dict[str, str]:
    """Nothing of ours but what these settings say."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    ours = {
        "HOLDFAST_STORE_DATA_DIR": str(settings.store.data_dir),
        "HOLDFAST_STORE_URL": settings.store.url.reveal(),
        "HOLDFAST_KEYS_PASSPHRASE": settings.keys.passphrase.reveal() if settings.keys.passphrase else "",
    }
    return {**clean, **{name: value for name, value in ours.items() if value}, **more}


def holdfast(settings: Settings, *args: str, **more: str) -> subprocess.CompletedProcess[str]:
    return commands.holdfast(*args, env=environment(settings, **more))


def in_store(settings: Settings, work: object) -> object:
    async def run() -> object:
        db = open_store(settings, CLOCK, no_points)
        try:
            await migrate.bring_up(db, points=no_points)
            return await work(db)  # type: ignore[operator]
        finally:
            await db.close()

    return asyncio.run(run())


def keep(settings: Settings, number: int) -> list[str]:
    """Start for the first time, and keep that many secrets."""

    async def work(db: Database) -> list[str]:
        keyring = await keys.unlock(db, settings, FILES, RANDOM)
        kept = [keys.sealed(keyring, Secret(SENTINEL), OWNER) for _ in range(number)]
        await db.write(lambda tx: [secrets.put(tx, each) for each in kept])
        return [each.id for each in kept]

    return in_store(settings, work)  # type: ignore[return-value]


def readable(settings: Settings, ids: list[str]) -> bool:
    """Start as the server does, and read them all."""

    async def work(db: Database) -> bool:
        keyring = await keys.unlock(db, settings, FILES, RANDOM)
        return {(await keys.reveal(db, settings, FILES, keyring, each, OWNER)).reveal() for each in ids} == {SENTINEL}

    return bool(in_store(settings, work))


def used(settings: Settings, **more: str) -> list[tuple[str, str, int]]:
    rows = json.loads(holdfast(settings, "key", "status", "--output", "json", **more).stdout)
    return [(row["key"], row["use"], row["secrets"]) for row in rows]


@pytest.fixture(params=["sqlite", "postgresql"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Settings]:
    if request.param == "sqlite":
        yield settings_in(tmp_path)
        return
    cluster: Cluster = request.getfixturevalue("postgres")
    url = cluster.create_database(request.getfixturevalue("template"))
    yield Settings(store=StoreSettings(data_dir=tmp_path, url=Secret(url)))
    cluster.drop_database(url)


def test_rotate_puts_every_secret_under_a_new_key_and_says_so(settings: Settings):
    ids = keep(settings, 4)
    [old] = read_key_file(FILES, settings.key_file) or ()
    done = holdfast(settings, "key", "rotate")
    [new] = read_key_file(FILES, settings.key_file) or ()
    assert new.id != old.id
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        f"Secrets put under key {new.id}: 4.\n"
        f"Dropped: {old.id}.\n"
        f"Copy {settings.key_file} to a safe place now: older copies do not open this database.\n"
    )
    assert used(settings) == [(new.id, "current", 4)]
    assert readable(settings, ids)


def test_status_is_a_table_for_people_and_json_for_programs(settings: Settings):
    keep(settings, 2)
    [kek] = read_key_file(FILES, settings.key_file) or ()
    done = holdfast(settings, "key", "status")
    assert (done.returncode, done.stderr) == (0, "")
    head, row = done.stdout.splitlines()
    assert head.split() == ["KEY", "USE", "FROM", "HERE", "SECRETS", "CREATED"]
    assert row.split()[:5] == [kek.id, "current", "file", "yes", "2"]
    [shown] = json.loads(holdfast(settings, "key", "status", "-o", "json").stdout)
    assert list(shown) == ["key", "use", "from", "here", "secrets", "created"]
    assert list(map(str, shown.values())) == row.split()


def test_neither_command_shows_a_key_or_a_passphrase(tmp_path: Path):
    settings = settings_in(tmp_path / "a")
    keep(settings, 1)
    seen = [holdfast(settings, "key", word) for word in ("status", "rotate", "status")]
    words = settings_in(tmp_path / "b", passphrase="pa55phrase-9d2e")
    keep(words, 1)
    seen += [holdfast(words, "key", word) for word in ("status", "rotate")]
    shown = "".join(done.stdout + done.stderr for done in seen)
    assert "pa55phrase" not in shown
    for kek in read_key_file(FILES, settings.key_file) or ():
        assert base64.b64encode(kek.key.reveal()).decode()[:10] not in shown
        assert kek.key.reveal().hex()[:10] not in shown


def test_where_there_is_no_database_none_is_made(tmp_path: Path):
    settings = settings_in(tmp_path / "wrong")
    for word in ("status", "rotate"):
        done = holdfast(settings, "key", word)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(f"error: There is no database {tmp_path}/wrong/holdfast.sqlite.\nhint: ")
    assert not (tmp_path / "wrong").exists()


def test_a_database_that_never_had_a_key_is_not_given_one(settings: Settings):
    in_store(settings, lambda db: asyncio.sleep(0))
    done = holdfast(settings, "key", "rotate")
    assert done.returncode == 1
    assert done.stderr.startswith("error: This database has no key yet.\nhint: ")
    assert not settings.key_file.exists()


def test_while_the_server_runs_on_sqlite_a_rotation_is_refused(tmp_path: Path):
    settings = settings_in(tmp_path)
    keep(settings, 1)
    before = settings.key_file.read_bytes()
    with closing(SqliteEngine(tmp_path / "holdfast.sqlite", CLOCK)):
        done = holdfast(settings, "key", "rotate")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"in use by another Holdfast process (pid {os.getpid()})" in done.stderr
    assert settings.key_file.read_bytes() == before


def test_with_the_wrong_key_status_still_tells_which_one_is_needed(settings: Settings):
    keep(settings, 1)
    [right] = read_key_file(FILES, settings.key_file) or ()
    rewrite_key_file(FILES, settings.key_file, [a_kek()])
    done = holdfast(settings, "key", "status")
    assert done.returncode == 1
    assert [line.split()[:4] for line in done.stdout.splitlines()[1:]] == [
        [right.id, "current", "file", "no"],
        [a_kek().id, "unused", "file", "yes"],
    ]
    assert f"it needs key {right.id}" in done.stderr
    assert "hint: Restore the key file" in done.stderr
    assert "Traceback" not in done.stderr
    assert holdfast(settings, "key", "rotate").returncode == 1
    assert read_key_file(FILES, settings.key_file) == [a_kek()]


def test_a_key_file_that_others_can_read_is_refused_with_the_remedy(tmp_path: Path):
    settings = settings_in(tmp_path)
    keep(settings, 1)
    settings.key_file.chmod(0o644)
    done = holdfast(settings, "key", "rotate")
    assert done.returncode == 1
    assert f"hint: Run: chmod 600 {settings.key_file}" in done.stderr


def test_a_passphrase_is_changed_by_two_variables(tmp_path: Path):
    old, new = settings_in(tmp_path, passphrase="one"), settings_in(tmp_path, passphrase="two")
    ids = keep(old, 2)
    done = holdfast(old, "key", "rotate")
    assert done.returncode == 1
    assert "error: There is no new passphrase to change to" in done.stderr
    assert "HOLDFAST_KEYS_PREVIOUS_PASSPHRASE" in done.stderr
    previous = {"HOLDFAST_KEYS_PREVIOUS_PASSPHRASE": "one"}
    assert "not in use yet" in holdfast(new, "key", "status", **previous).stderr
    done = holdfast(new, "key", "rotate", **previous)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 2, "there is no file to copy"
    assert readable(new, ids)
    assert holdfast(old, "key", "status").returncode == 1


def test_a_damaged_secret_is_reported_and_ends_with_findings(tmp_path: Path):
    settings = settings_in(tmp_path)
    ids = keep(settings, 3)
    with closing(sqlite3.connect(tmp_path / "holdfast.sqlite")) as file:
        file.execute("UPDATE secrets SET wrapped = x'00' WHERE id = ?", [ids[1]])
        file.commit()
    done = holdfast(settings, "key", "rotate")
    assert done.returncode == 10
    assert f"({ids[1]})" in done.stderr
    assert "Secrets put under key" in done.stdout
    assert "Dropped" not in done.stdout
    assert "unfinished" in holdfast(settings, "key", "status").stderr
    assert readable(settings, [ids[0], ids[2]])


def test_a_rotation_that_is_killed_leaves_everything_readable_and_is_ended_by_the_next(tmp_path: Path):
    settings = settings_in(tmp_path)
    ids = keep(settings, 1500)
    [old] = read_key_file(FILES, settings.key_file) or ()
    command = [sys.executable, "-m", "holdfast.cli.main", "key", "rotate"]
    with (
        subprocess.Popen(command, env=environment(settings), stdout=subprocess.PIPE) as process,
        closing(sqlite3.connect(tmp_path / "holdfast.sqlite")) as file,
    ):
        moved = "SELECT COUNT(*) FROM secrets WHERE kek_id <> ?"
        until(lambda: file.execute(moved, [old.id]).fetchone()[0] >= 50, "a part of the rows")
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    (new, _, moved_to), (old_id, use, left) = used(settings)
    assert (old_id, use, left + moved_to) == (old.id, "previous", 1500)
    assert left > 0
    assert [kek.id for kek in read_key_file(FILES, settings.key_file) or ()] == [new, old.id]
    assert "unfinished" in holdfast(settings, "key", "status").stderr
    assert readable(settings, ids)
    done = holdfast(settings, "key", "rotate")  # waits until the lease of the killed one has run out
    assert (done.returncode, done.stderr) == (0, "")
    assert f"Secrets put under key {new}: {left}.\nDropped: {old.id}." in done.stdout
    assert used(settings) == [(new, "current", 1500)]
    assert readable(settings, ids)


@pytest.mark.parametrize("args", [["key", "--help"], ["key", "rotate", "--help"], ["key", "status", "--help"]])
def test_help_imports_nothing_that_is_slow_to_import(args: list[str], tmp_path: Path):
    done = holdfast(settings_in(tmp_path), *args, PYTHONPROFILEIMPORTTIME="1")
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "holdfast.cli.installation.config" in imported
    assert not {"pydantic", "rich", "cryptography", "asyncio", "sqlite3", "psycopg"} & imported


def test_the_cost_of_a_passphrase_is_the_one_that_was_decided():
    assert SCRYPT == {"n": 2**15, "r": 8, "p": 1}
