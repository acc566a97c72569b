"""One SQLite file, one process: what happens to the file when processes, disks and people do their worst."""

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

import pytest
from tests.support.jobs import found, opened, put, putting
from tests.support.reaper import PATIENCE
from tests.support.stores import migrated

from holdfast.errors import StoreError, StoreRefused, StoreUnavailable
from holdfast.store import journal
from holdfast.store.database import Database
from holdfast.store.sqlite import SqliteEngine, open_read_only
from holdfast.store.tx import Tx
from holdfast.world import SystemClock

pytestmark = pytest.mark.anyio


def engine(path: Path) -> SqliteEngine:
    return SqliteEngine(path, SystemClock())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "holdfast.sqlite"


@pytest.fixture(autouse=True)
def data_folder(path: Path) -> None:
    path.parent.mkdir()


@asynccontextmanager
async def store(path: Path) -> AsyncIterator[Database]:
    async with opened(engine(path)) as db:
        yield await migrated(db)


async def fill(db: Database, rows: int = 200) -> None:
    """Enough for many pages."""

    def fn(tx: Tx) -> None:
        for n in range(rows):
            put(tx, f"row {n:04d}", "x" * 500)
            journal.audit(tx, "did", f"row {n:04d}", note="y" * 100)

    await db.write(fn)


async def is_whole(db: Database, rows: int = 200) -> bool:
    """Whether everything that fill() wrote is there and reads well."""
    checked = await db.read(lambda tx: tx.rows("PRAGMA integrity_check"))
    keys = await db.read(found)
    return (
        [row["integrity_check"] for row in checked] == ["ok"]
        and keys == [f"row {n:04d}" for n in range(rows)]
        and (await db.read(journal.verify)).verified == rows
    )


def damaged(path: Path, folder: Path, *, size: int | None = None, wal: bool = False) -> Path:
    """A copy of a database, cut to a size; with what its process had not yet moved out of the WAL, if so wished."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    copy = folder / path.name
    shutil.copy(path, copy)
    if wal:
        shutil.copy(f"{path}-wal", f"{copy}-wal")
    if size is not None:
        os.truncate(copy, size)
    return copy


def size_of(path: Path) -> int:
    return path.stat().st_size


@contextmanager
def child(script: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A process of its own; it is gone at the end of the block."""
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(
        [sys.executable, "-c", PREAMBLE + textwrap.dedent(script), *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


PREAMBLE = """
import asyncio, resource, sys
from pathlib import Path
from holdfast.errors import StoreUnavailable
from holdfast.store.sqlite import SqliteEngine
from holdfast.world import SystemClock
from tests.support.jobs import found, put
from tests.support.stores import migrated, open_store
path = Path(sys.argv[1])
"""


# ── one process ──

HOLDER = """
    engine = SqliteEngine(path, SystemClock())
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_on_the_same_file_is_refused_and_told_who_has_it(path: Path) -> None:
    with child(HOLDER, path) as holder:
        assert line(holder) == "held"
        with pytest.raises(StoreRefused, match=rf"in use by another Holdfast process \(pid {holder.pid}\)") as no:
            engine(path)
        assert "use PostgreSQL to run several" in no.value.hint


def test_a_killed_process_leaves_no_lock_behind(path: Path) -> None:
    with child(HOLDER, path) as holder:
        assert line(holder) == "held"
        holder.send_signal(signal.SIGKILL)
        holder.wait(PATIENCE)
    engine(path).close()


def test_a_second_store_in_one_process_is_refused_too(path: Path) -> None:
    first = engine(path)
    with pytest.raises(StoreRefused, match=f"pid {os.getpid()}"):
        engine(path)
    first.close()
    engine(path).close()


def test_a_refused_file_is_not_left_locked(path: Path) -> None:
    path.touch()
    for _ in range(2):
        with pytest.raises(StoreRefused, match="0 bytes"):
            engine(path)
    path.unlink()
    engine(path).close()


def test_without_its_folder_it_says_which_one_is_missing(tmp_path: Path) -> None:
    with pytest.raises(StoreRefused, match="No such file or directory") as no:
        engine(tmp_path / "nowhere" / "holdfast.sqlite")
    assert str(tmp_path / "nowhere") in str(no.value)
    assert "store.data_dir" in no.value.hint


async def test_the_file_is_ours_alone_and_a_clean_stop_leaves_nothing_beside_it(path: Path) -> None:
    async with store(path) as db:
        await fill(db)
        modes = {each.name: each.stat().st_mode & 0o777 for each in path.parent.iterdir() if each.suffix != ".lock"}
        assert modes == dict.fromkeys(["holdfast.sqlite", "holdfast.sqlite-wal", "holdfast.sqlite-shm"], 0o600)
    assert sorted(each.name for each in path.parent.iterdir()) == ["holdfast.sqlite", "holdfast.sqlite.lock"]
    async with store(path) as db:
        assert await is_whole(db)


async def test_of_connections_that_close_together_the_writers_is_the_last(path: Path) -> None:
    """If two close at once, neither writes the log back, and a file copied after the stop would be incomplete."""
    for n in range(60):  # a race is seldom lost
        async with store(path) as db:
            await db.write(putting(f"{n}"))
            await asyncio.gather(*(db.read(found) for _ in range(4)))  # every reader has its connection
        assert not path.with_name("holdfast.sqlite-wal").exists()


async def test_another_process_may_look_while_the_store_runs(path: Path) -> None:
    async with store(path) as db:
        await db.write(putting("a"))
        looker = open_read_only(path, SystemClock())
        assert found(Tx(looker)) == ["a"]
        await db.write(putting("b"))
        assert found(Tx(looker)) == ["a", "b"]
        with pytest.raises(StoreError):
            put(Tx(looker), "c")
        looker.close()
    with pytest.raises(StoreRefused, match="There is no database"):
        open_read_only(path.with_name("other.sqlite"), SystemClock())


# ── a file that was damaged ──


def test_an_empty_file_is_refused_and_left_as_it_is(path: Path) -> None:
    path.touch()
    with pytest.raises(StoreRefused, match=r"is empty \(0 bytes\): its content was lost") as no:
        engine(path)
    assert "restore a backup" in no.value.hint
    assert path.stat().st_size == 0


@pytest.mark.parametrize("content", [b"x", b"not a database\n" * 1000, b"SQLite format 3\x00", bytes(8192)])
def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(StoreRefused, match="is damaged: its first bytes are not those of a SQLite database"):
        engine(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("mark", [0, 0x0F055112])
def test_a_database_of_another_program_is_refused_and_left_as_it_is(path: Path, mark: int) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute(f"PRAGMA application_id = {mark}")
        other.execute("CREATE TABLE jobs (id INTEGER PRIMARY KEY)")
        other.execute("CREATE TABLE schema_migrations (version TEXT)")  # as others call theirs, too
    before = path.read_bytes()
    with pytest.raises(StoreRefused, match=r"a database of another program \(it has a table 'jobs'\)"):
        engine(path)
    assert path.read_bytes() == before


async def test_a_file_of_ours_that_was_never_marked_is_opened(path: Path) -> None:
    async with store(path) as db:
        await fill(db)
    with closing(sqlite3.connect(path)) as file:
        file.execute("PRAGMA application_id = 0")
    async with store(path) as db:
        assert await is_whole(db)


async def test_a_file_whose_header_was_overwritten_is_refused(path: Path) -> None:
    async with store(path) as db:
        await fill(db)
    with path.open("r+b") as file:
        file.write(os.urandom(100))
    with pytest.raises(StoreRefused, match="is damaged"):
        engine(path)


async def test_a_file_cut_anywhere_is_refused(path: Path, tmp_path: Path) -> None:
    async with store(path) as db:
        await fill(db)
    full = size_of(path)
    assert full > 100_000
    for size in range(0, full, 512):
        copy = damaged(path, tmp_path / "cut", size=size)
        with pytest.raises(StoreRefused, match=r"its content was lost|is damaged"):
            engine(copy)
        assert size_of(copy) == size
    async with store(damaged(path, tmp_path / "cut")) as db:
        assert await is_whole(db)


async def test_a_file_cut_while_its_wal_was_left_is_refused_or_whole(path: Path, tmp_path: Path) -> None:
    """After a crash the file may rightly be shorter than its header says: the rest is still in the WAL."""
    async with store(path) as db:
        await fill(db)
    async with store(path) as db:
        await db.write(lambda tx: tx.run("UPDATE self_checks SET checked_at = 1 WHERE name = 'row 0007'"))
        full = size_of(path)
        left = damaged(path, tmp_path / "left", wal=True)
    outcomes = set()
    wal = size_of(Path(f"{left}-wal"))
    for size in [*range(0, full, 4096), full - 512, full]:
        copy = damaged(left, tmp_path / "cut", size=size, wal=True)
        try:
            async with opened(engine(copy)) as db:
                assert await is_whole(db), f"cut to {size} of {full} bytes it was opened, and is not whole"
                outcomes.add("whole")
        except StoreRefused:
            outcomes.add("refused")
            assert (size_of(copy), size_of(Path(f"{copy}-wal"))) == (size, wal)  # a person may still rescue it
    assert outcomes == {"refused", "whole"}


async def test_a_first_start_that_was_killed_with_everything_in_the_wal_is_whole(path: Path, tmp_path: Path) -> None:
    async with store(path) as db:
        await fill(db)
        copy = damaged(path, tmp_path / "left", wal=True)
        assert size_of(copy) < 100_000  # most of it is in the WAL
    async with store(copy) as db:
        assert await is_whole(db)


async def test_a_wal_without_its_database_is_refused(path: Path, tmp_path: Path) -> None:
    """A new, empty file beside it would be a database that lost everything, or a mixture."""
    async with store(path) as db:
        await fill(db)
        copy = damaged(path, tmp_path / "left", wal=True)
    copy.unlink()
    with pytest.raises(StoreRefused, match="is missing"):
        engine(copy)
    assert not copy.exists()


# ── kill -9 ──

WRITER = """
    first = int(sys.argv[2])

    async def main():
        db = await migrated(open_store(SqliteEngine(path, SystemClock())))

        async def worker(number):
            n = first
            while True:
                key = f"{number}:{n:06d}"
                await db.write(lambda tx: put(tx, key, "x" * 300))
                print(key, flush=True)
                n += 1

        await asyncio.gather(*(worker(number) for number in range(4)))

    asyncio.run(main())
"""


async def test_what_was_acknowledged_survives_kill_nine(path: Path) -> None:
    acknowledged: set[str] = set()
    for round_ in range(10):
        with child(WRITER, path, round_ * 1000) as writer:
            for _ in range(5 + 23 * round_):
                acknowledged.add(line(writer))
            writer.send_signal(signal.SIGKILL)
            assert writer.stdout
            acknowledged.update(rest for rest in writer.stdout.read().split("\n")[:-1])
        async with store(path) as db:
            assert acknowledged <= set(await db.read(found))
            assert (await db.read(lambda tx: tx.rows("PRAGMA quick_check")))[0]["quick_check"] == "ok"
    assert len(acknowledged) > 1000


# ── a full disk ──


async def test_a_full_disk_refuses_writes_loses_nothing_and_is_forgotten_once_there_is_room(path: Path) -> None:
    async with store(path) as db:
        pages = (await db.write(lambda tx: tx.rows("PRAGMA page_count")))[0]["page_count"]
        await db.write(lambda tx: tx.rows(f"PRAGMA max_page_count = {pages + 20}"))
        written: list[str] = []

        async def write_on() -> None:
            while True:
                key = f"{len(written):04d}"
                await db.write(lambda tx, key=key: put(tx, key, "x" * 2000))
                written.append(key)

        with pytest.raises(StoreUnavailable, match="Free some space; work resumes by itself"):
            await write_on()
        assert written
        for _ in range(3):  # it goes on refusing, and reading goes on
            with pytest.raises(StoreUnavailable):
                await db.write(lambda tx: put(tx, "more", "x" * 20_000))
            assert await db.read(found) == written
        await db.write(lambda tx: tx.rows("PRAGMA max_page_count = 1000000"))
        await db.write(lambda tx: put(tx, "more", "x" * 20_000))
        assert await db.read(found) == [*written, "more"]


async def test_of_a_group_on_a_full_disk_nobody_is_told_a_lie(path: Path) -> None:
    async with store(path) as db:
        pages = (await db.write(lambda tx: tx.rows("PRAGMA page_count")))[0]["page_count"]
        await db.write(lambda tx: tx.rows(f"PRAGMA max_page_count = {pages + 20}"))
        writes = (db.write(lambda tx, n=n: put(tx, f"{n:04d}", "x" * 2000)) for n in range(200))
        answers = await asyncio.gather(*writes, return_exceptions=True)
        refused = [answer for answer in answers if answer is not None]
        assert all(isinstance(answer, StoreUnavailable) for answer in refused)
        assert refused
        told = [f"{n:04d}" for n, answer in enumerate(answers) if answer is None]
        assert await db.read(found) == told


LIMITED = """
    async def main():
        db = await migrated(open_store(SqliteEngine(path, SystemClock())))
        await db.write(lambda tx: put(tx, "before"))
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, hard))
        done = ["before"]
        try:
            for n in range(1000):
                await db.write(lambda tx: put(tx, f"{n:04d}", "x" * 2000))
                done.append(f"{n:04d}")
        except StoreUnavailable as error:
            print("refused", flush=True)
        assert sorted(await db.read(found)) == sorted(done)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        await db.write(lambda tx: put(tx, "later"))
        assert sorted(await db.read(found)) == sorted([*done, "later"])
        print(len(done), flush=True)
        if sys.argv[2] == "close":
            await db.close()
            print("closed", flush=True)
        sys.stdin.read()

    asyncio.run(main())
"""


@pytest.mark.parametrize("end", ["close", "kill"])
async def test_a_file_that_may_not_grow_refuses_the_commit_and_loses_nothing(path: Path, end: str) -> None:
    """The kernel itself says no, in the middle of a COMMIT."""
    with child(LIMITED, path, end) as writer:
        assert line(writer) == "refused"
        rows = int(line(writer))
        if end == "close":
            assert line(writer) == "closed"
        writer.send_signal(signal.SIGKILL)
        writer.wait(PATIENCE)
    async with store(path) as db:
        assert len(await db.read(found)) == rows + 1
        assert (await db.read(lambda tx: tx.rows("PRAGMA integrity_check")))[0]["integrity_check"] == "ok"
