"""Rotating the key: at every moment each secret can be read, and a rotation that was cut off can be ended."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.keys import a_kek, settings_in
from tests.support.reaper import PATIENCE

from holdfast.config import Settings
from holdfast.errors import KeyMissing, StoreRefused
from holdfast.keyring import SCRYPT, Keyring, SecretOwner, create_key_file, read_key_file, rewrite_key_file
from holdfast.operations.installation import key_rotation, keys
from holdfast.operations.installation.key_rotation import Rotation
from holdfast.operations.installation.secret_store import SecretStore
from holdfast.ports import Clock, Files, Points, no_points
from holdfast.secret import Secret
from holdfast.store import journal, secrets
from holdfast.store.database import Database, Store
from holdfast.store.tx import Tx
from holdfast.store.work import cluster
from holdfast.world import LocalFiles, SystemClock, SystemRandom

OWNER = SecretOwner("tests", "one", "secret")

pytestmark = pytest.mark.anyio

FILES, RANDOM, CLOCK = LocalFiles(), SystemRandom(), SystemClock()


class Killed(BaseException):
    """The process ends here: nothing after this line happens."""


async def unlock(db: Database, settings: Settings) -> Keyring:
    return await keys.unlock(db, settings, FILES, RANDOM)


async def rotate(
    db: Store,
    keyring: Keyring,
    settings: Settings,
    *,
    files: Files = FILES,
    clock: Clock = CLOCK,
    points: Points = no_points,
) -> Rotation:
    return await key_rotation.rotate(db, keyring, settings, files, random=RANDOM, clock=clock, points=points)


async def keep(db: Database, keyring: Keyring, content: bytes) -> str:
    kept = keys.sealed(keyring, Secret(content), OWNER)
    await db.write(lambda tx: secrets.put(tx, kept))
    return kept.id


async def keep_following(db: Database, settings: Settings, keyring: Keyring, content: bytes) -> str:
    return await SecretStore(db=db, settings=settings, files=FILES, keyring=keyring).keep(
        Secret(content), OWNER, lambda tx, secret: secret
    )


async def keep_some(db: Database, keyring: Keyring, number: int) -> dict[str, bytes]:
    contents = [f"content {n}".encode() for n in range(number)]
    return {await keep(db, keyring, content): content for content in contents}


async def readable(db: Database, settings: Settings, keyring: Keyring, kept: dict[str, bytes]) -> bool:
    found = {each: await keys.reveal(db, settings, FILES, keyring, each, OWNER) for each in kept}
    return {each: secret.reveal() for each, secret in found.items()} == kept


async def after_the_lease(db: Database) -> None:
    """Stands for the ten seconds after which the lease of a killed rotation has run out."""
    await db.write(cluster.expire_leases)


async def finished(db: Database, settings: Settings, keyring: Keyring, kept: dict[str, bytes]) -> bool:
    """One key in the database, in the file and in use, and every secret under it."""
    current = keyring.current.id
    return (
        [check.kek_id for check in await db.read(secrets.checks)] == [current]
        and [kek.id for kek in read_key_file(FILES, settings.key_file) or ()] == [current]
        and await db.read(secrets.counts) == {current: len(kept)}
        and keyring.previous == ()
        and await readable(db, settings, await unlock(db, settings), kept)
    )


# ── A whole rotation ──


async def test_a_rotation_puts_every_secret_under_a_new_key_and_drops_the_old_one(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(key_rotation, "PAGE", 3)
    settings = settings_in(tmp_path)
    keyring = await unlock(db, settings)
    old = keyring.current
    kept = await keep_some(db, keyring, 10)
    rows: list[str] = []
    done = await rotate(db, keyring, settings, points=rows.append)
    assert (done.current, done.retired, done.rewrapped) == (keyring.current.id, (old.id,), 10)
    assert keyring.current.id != old.id
    assert rows == ["key.rewrapped"] * 10
    assert await finished(db, settings, keyring, kept)
    rewrite_key_file(FILES, settings.key_file, [old])
    with pytest.raises(StoreRefused, match=f"it needs key {done.current}"):
        await unlock(db, settings)


async def test_a_rotation_leaves_one_audit_row_with_ids_and_counts(db: Database, tmp_path: Path):
    settings = settings_in(tmp_path)
    keyring = await unlock(db, settings)
    old = keyring.current.id
    await keep_some(db, keyring, 3)
    await rotate(db, keyring, settings)
    [_, entry] = await db.read(lambda tx: journal.audit_page(tx, 0))
    assert (entry.action, entry.subject) == ("key_rotated", keyring.current.id)
    assert entry.details == f'{{"retired":["{old}"],"secrets":3}}'
    assert (await db.read(journal.verify)).ok


async def test_each_rotation_makes_another_key(db: Database, tmp_path: Path):
    settings = settings_in(tmp_path)
    keyring = await unlock(db, settings)
    kept = await keep_some(db, keyring, 2)
    used = {keyring.current.id}
    for _ in range(3):
        used.add((await rotate(db, keyring, settings)).current)
    assert len(used) == 4
    assert await finished(db, settings, keyring, kept)


# ── Killed ──


async def test_a_rotation_killed_after_any_row_can_be_read_and_ended(db: Database, tmp_path: Path):
    settings = settings_in(tmp_path)
    kept = await keep_some(db, await unlock(db, settings), 5)
    for n in range(1, len(kept) + 1):
        old = (await unlock(db, settings)).current
        seen = 0

        def kill_at_the_nth(name: str, n: int = n) -> None:
            nonlocal seen
            seen += 1
            if seen == n:
                raise Killed

        with pytest.raises(Killed):
            await rotate(db, await unlock(db, settings), settings, points=kill_at_the_nth)
        assert (await db.read(secrets.counts)).get(old.id, 0) == len(kept) - n
        keyring = await unlock(db, settings)
        assert [kek.id for kek in keyring.previous] == [old.id]
        assert "unfinished" in keys.owed(settings, keyring)
        assert await readable(db, settings, keyring, kept)
        await after_the_lease(db)
        done = await rotate(db, keyring, settings)
        assert (done.rewrapped, done.retired) == (len(kept) - n, (old.id,))
        assert await finished(db, settings, keyring, kept)


@dataclass
class Fuse:
    """Kills at the n-th moment; the moments are right before and right after every lasting effect."""

    left: int

    def burn(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Killed


class FusedStore:
    def __init__(self, db: Database, fuse: Fuse) -> None:
        self._db, self._fuse, self.wake = db, fuse, db.wake

    async def read(self, fn: Callable[[Tx], Any]) -> Any:
        return await self._db.read(fn)

    async def write(self, fn: Callable[[Tx], Any], *, key: str | None = None) -> Any:
        self._fuse.burn()
        result = await self._db.write(fn, key=key)
        self._fuse.burn()
        return result


class FusedFiles(LocalFiles):
    def __init__(self, fuse: Fuse) -> None:
        self._fuse = fuse

    def write_private(self, path: Path, content: bytes, *, replace: bool) -> None:
        self._fuse.burn()
        super().write_private(path, content, replace=replace)
        self._fuse.burn()


async def kill_at_every_moment(db: Database, after: Callable[[int], Settings], kept: dict[str, bytes]) -> int:
    """Rotate again and again, each time killed one moment later, until a rotation comes through."""
    for moment in range(1, 100):
        settings = after(moment)
        fuse = Fuse(moment)
        try:
            await rotate(FusedStore(db, fuse), await unlock(db, settings), settings, files=FusedFiles(fuse))
        except Killed:
            pass
        else:
            return moment
        keyring = await unlock(db, settings)
        assert await readable(db, settings, keyring, kept), moment
        await after_the_lease(db)
        if keyring.previous or not settings.keys.passphrase or keyring.current.origin != "passphrase":
            await rotate(db, keyring, settings)
        assert await readable(db, settings, await unlock(db, settings), kept), moment
        assert len(await db.read(secrets.checks)) == 1, moment
    raise AssertionError("it never came through")


async def test_a_rotation_killed_before_or_after_any_write_to_disk_or_database_can_be_ended(
    db: Database, tmp_path: Path
):
    settings = settings_in(tmp_path)
    kept = await keep_some(db, await unlock(db, settings), 3)
    moments = await kill_at_every_moment(db, lambda moment: settings, kept)
    # lease twice, file, new key, three rows, old key, lease, file, lease; two moments each, and one to spare
    assert moments == 11 * 2 + 1
    assert await finished(db, settings, await unlock(db, settings), kept)


async def test_a_change_of_passphrase_killed_at_any_moment_can_be_ended(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(SCRYPT, "n", 2**4)  # a hundred derivations would take half a minute
    first = settings_in(tmp_path, passphrase="word 0")
    kept = await keep_some(db, await unlock(db, first), 1)

    def after(moment: int) -> Settings:
        return settings_in(tmp_path, passphrase=f"word {moment}", previous=f"word {moment - 1}")

    moments = await kill_at_every_moment(db, after, kept)
    assert moments == 6 * 2 + 1  # lease, new key, one row, old key, lease twice
    assert not first.key_file.exists()


async def test_a_rotation_killed_before_the_old_key_left_the_file_is_ended_and_not_begun_anew(
    db: Database, tmp_path: Path
):
    settings = settings_in(tmp_path)
    keyring = await unlock(db, settings)
    old = keyring.current
    kept = await keep_some(db, keyring, 2)
    await rotate(db, keyring, settings)
    new = keyring.current
    rewrite_key_file(FILES, settings.key_file, [new, old])  # as if killed right before the last write
    done = await rotate(db, await unlock(db, settings), settings)
    assert (done.current, done.retired, done.rewrapped) == (new.id, (), 0)
    assert await finished(db, settings, keyring, kept)


async def test_a_killed_rotation_is_waited_for_until_its_lease_runs_out(db: Database, tmp_path: Path):
    settings = settings_in(tmp_path)
    keyring = await unlock(db, settings)
    await db.write(lambda tx: cluster.take_lease(tx, key_rotation.LEASE, "killed", timedelta(minutes=1)))

    class Waiting(SystemClock):
        waits = 0

        async def sleep(self, seconds: float) -> None:
            self.waits += 1
            if self.waits == 3:
                await after_the_lease(db)

    clock = Waiting()
    old = keyring.current.id
    assert (await rotate(db, keyring, settings, clock=clock)).retired == (old,)
    assert clock.waits == 3


async def test_while_one_rotation_is_at_work_another_is_refused_and_changes_nothing(db: Database, tmp_path: Path):
    settings = settings_in(tmp_path)
    keyring = await unlock(db, settings)
    before = settings.key_file.read_bytes()
    await db.write(lambda tx: cluster.take_lease(tx, key_rotation.LEASE, "other", timedelta(minutes=1)))

    class Hurried(SystemClock):
        passed = 0.0

        def monotonic(self) -> float:
            return self.passed

        async def sleep(self, seconds: float) -> None:
            self.passed += seconds

    with pytest.raises(StoreRefused, match="Another 'holdfast key rotate'"):
        await rotate(db, keyring, settings, clock=Hurried())
    assert settings.key_file.read_bytes() == before
    assert len(await db.read(secrets.checks)) == 1


class Slow(SystemClock):
    """More than a third of the lease passes between two looks at the clock."""

    passed = 0.0

    def monotonic(self) -> float:
        self.passed += 4.0
        return self.passed


async def test_a_long_rotation_keeps_its_lease_alive(db: Database, tmp_path: Path):
    settings = settings_in(tmp_path)
    keyring = await unlock(db, settings)
    await keep_some(db, keyring, 6)
    ends = set()

    class Watched(FusedStore):
        async def write(self, fn: Callable[[Tx], Any], *, key: str | None = None) -> Any:
            result = await super().write(fn, key=key)
            ends.update(lease.until for lease in await db.read(cluster.held_leases))
            return result

    await rotate(Watched(db, Fuse(-1)), keyring, settings, clock=Slow())
    assert len(ends) >= 1 + 6


@pytest.mark.parametrize("moment", range(1, 11))  # after the last proof only the file is written
async def test_a_rotation_that_lost_its_lease_stops_and_loses_no_secret(db: Database, tmp_path: Path, moment: int):
    settings = settings_in(tmp_path)
    keyring = await unlock(db, settings)
    kept = await keep_some(db, keyring, 3)

    class Robbed(FusedStore):
        writes = 0

        async def write(self, fn: Callable[[Tx], Any], *, key: str | None = None) -> Any:
            self.writes += 1
            result = await super().write(fn, key=key)
            if self.writes == moment:
                await after_the_lease(db)
                await db.write(lambda tx: cluster.take_lease(tx, key_rotation.LEASE, "thief", timedelta(minutes=1)))
            return result

    with pytest.raises(StoreRefused, match="held up for too long"):
        await rotate(Robbed(db, Fuse(-1)), keyring, settings, clock=Slow())
    assert [lease.holder for lease in await db.read(cluster.held_leases)] == ["thief"]
    assert len(await db.read(secrets.checks)) == (2 if 3 <= moment <= 7 else 1)
    assert await readable(db, settings, await unlock(db, settings), kept)


async def test_after_an_error_the_lease_is_given_back_at_once(db: Database, tmp_path: Path):
    settings = settings_in(tmp_path)
    keyring = await unlock(db, settings)
    await keep_some(db, keyring, 1)

    def fail(name: str) -> None:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError):
        await rotate(db, keyring, settings, points=fail)
    assert await db.read(cluster.held_leases) == []
    await rotate(db, keyring, settings)
    assert await db.read(cluster.held_leases) == []


# ── Others at work ──


async def test_a_replica_that_has_not_noticed_a_rotation_follows_it_when_it_meets_it(db: Database, tmp_path: Path):
    """It still holds only the old key; what it puts during or after the rotation goes under the new one."""
    settings = settings_in(tmp_path)
    keyring = await unlock(db, settings)
    old = keyring.current
    kept = await keep_some(db, keyring, 3)

    class Busy(FusedStore):
        async def write(self, fn: Callable[[Tx], Any], *, key: str | None = None) -> Any:
            result = await super().write(fn, key=key)
            if (await db.read(secrets.checks))[0].kek_id != old.id:
                stale = Keyring([old], RANDOM)
                with pytest.raises(KeyMissing, match=old.id):
                    await keep(db, stale, b"under the old key")
                secret_id = await keep_following(db, settings, stale, b"late")
                kept[secret_id] = b"late"
                assert await readable(db, settings, Keyring([old], RANDOM), kept)
                assert stale.current.id != old.id
            return result

    done = await rotate(Busy(db, Fuse(-1)), keyring, settings)
    assert (done.rewrapped, len(kept)) == (3, 3 + 7)  # the new key, three rows, the old key, the lease twice
    assert await finished(db, settings, keyring, kept)


async def test_puts_at_full_speed_do_not_keep_a_rotation_from_ending_and_are_all_readable(db: Database, tmp_path: Path):
    settings = settings_in(tmp_path)
    keyring, stale = await unlock(db, settings), await unlock(db, settings)
    kept = await keep_some(db, keyring, 20)
    over = asyncio.Event()

    async def put() -> None:
        while not over.is_set():
            kept[await keep_following(db, settings, stale, b"more")] = b"more"

    putting = [asyncio.create_task(put()) for _ in range(3)]
    for _ in range(2):
        async with asyncio.timeout(PATIENCE):
            await rotate(db, keyring, settings)
    over.set()
    await asyncio.gather(*putting)
    await keys.refresh(db, settings, FILES, stale)
    assert len(kept) > 20
    assert await finished(db, settings, stale, kept)


async def test_the_owner_of_a_secret_is_written_with_it_or_neither_is(db: Database, tmp_path: Path):
    settings = settings_in(tmp_path)
    keyring = await unlock(db, settings)
    owners: list[str] = []

    def refuse(tx: Tx, secret: str) -> None:
        owners.append(secret)
        raise RuntimeError("no owner")

    with pytest.raises(RuntimeError, match="no owner"):
        await SecretStore(db=db, settings=settings, files=FILES, keyring=keyring).keep(Secret(b"x"), OWNER, refuse)
    assert owners
    assert await db.read(secrets.counts) == {}


async def test_a_put_that_is_not_committed_yet_holds_up_the_end_of_the_rotation(db: Database, tmp_path: Path):
    """It cannot be seen, and must not be overlooked: dropping the key under it would lose the secret."""
    settings = settings_in(tmp_path)
    keyring, stale = await unlock(db, settings), await unlock(db, settings)
    late = keys.sealed(stale, Secret(b"late"), OWNER)
    inside, go_on = threading.Event(), threading.Event()

    def slow_put(tx: Tx) -> None:
        secrets.put(tx, late)
        inside.set()
        go_on.wait(PATIENCE)

    putting = asyncio.create_task(db.write(slow_put))
    await asyncio.to_thread(inside.wait, PATIENCE)
    rotating = asyncio.create_task(rotate(db, keyring, settings))
    if db.engine.name == "postgresql":  # on SQLite the one writer is busy, so the rotation waits as well
        sql = "SELECT 1 AS one FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%key_checks%'"
        while not await db.read(lambda tx: tx.rows(sql)):
            assert not rotating.done()
            await asyncio.sleep(0.01)
    go_on.set()
    await putting
    await rotating
    assert await finished(db, settings, keyring, {late.id: b"late"})


async def test_a_secret_deleted_during_a_rotation_stays_deleted(db: Database, tmp_path: Path):
    settings = settings_in(tmp_path)
    keyring = await unlock(db, settings)
    kept = await keep_some(db, keyring, 3)
    gone = sorted(kept)[1]

    class Deleting(FusedStore):
        async def read(self, fn: Callable[[Tx], Any]) -> Any:
            result = await super().read(fn)
            if isinstance(result, list) and len(result) == 3:  # the page was read with it
                await self._db.write(lambda tx: secrets.delete(tx, gone))
            return result

    done = await rotate(Deleting(db, Fuse(-1)), keyring, settings)
    assert done.rewrapped == 2
    del kept[gone]
    assert await finished(db, settings, keyring, kept)


async def test_a_replica_without_the_new_key_says_so_and_damages_nothing(db: Database, tmp_path: Path):
    here, elsewhere = settings_in(tmp_path / "a"), settings_in(tmp_path / "b")
    keyring = await unlock(db, here)
    kept = await keep_some(db, keyring, 2)
    create_key_file(FILES, elsewhere.key_file, keyring.current)
    other = await unlock(db, elsewhere)

    def kill(name: str) -> None:
        raise Killed

    with pytest.raises(Killed):
        await rotate(db, keyring, here, points=kill)
    new = (await unlock(db, here)).current.id
    with pytest.raises(StoreRefused, match=f"lacks key {new}") as refusal:
        await readable(db, elsewhere, other, kept)
    assert "Copy the key file" in refusal.value.hint
    with pytest.raises(StoreRefused, match=f"lacks key {new}"):
        await unlock(db, elsewhere)
    FILES.write_private(elsewhere.key_file, here.key_file.read_bytes(), replace=True)
    assert await readable(db, elsewhere, other, kept)
    await after_the_lease(db)
    await rotate(db, keyring, here)
    assert await readable(db, elsewhere, other, kept), "both keys are held, so the end goes unnoticed"


# ── Damage ──


async def test_a_damaged_secret_keeps_its_key_and_does_not_stop_the_others(db: Database, tmp_path: Path):
    settings = settings_in(tmp_path)
    keyring = await unlock(db, settings)
    old = keyring.current.id
    kept = await keep_some(db, keyring, 4)
    damaged = sorted(kept)[1]
    await db.write(lambda tx: tx.run("UPDATE secrets SET wrapped = :junk WHERE id = :id", junk=bytes(60), id=damaged))
    del kept[damaged]
    for rewrapped in (3, 0):
        done = await rotate(db, keyring, settings)
        assert (done.rewrapped, done.retired, done.unusable) == (rewrapped, (), (damaged,))
        assert await db.read(secrets.counts) == {old: 1, done.current: 3}
        assert [kek.id for kek in read_key_file(FILES, settings.key_file) or ()] == [done.current, old]
        assert await readable(db, settings, await unlock(db, settings), kept)
    await db.write(lambda tx: secrets.delete(tx, damaged))
    assert (await rotate(db, keyring, settings)).retired == (old,)
    assert await finished(db, settings, keyring, kept)


async def test_a_key_file_that_lost_the_new_key_meanwhile_gets_it_back(db: Database, tmp_path: Path):
    settings = settings_in(tmp_path)
    keyring = await unlock(db, settings)
    kept = await keep_some(db, keyring, 2)
    before = settings.key_file.read_bytes()
    await rotate(
        db,
        keyring,
        settings,
        points=lambda name: FILES.write_private(settings.key_file, before, replace=True),
    )
    assert await finished(db, settings, keyring, kept)


# ── Passphrases ──


async def test_a_new_passphrase_takes_over_by_a_rotation(db: Database, tmp_path: Path):
    first = settings_in(tmp_path, passphrase="one")
    kept = await keep_some(db, await unlock(db, first), 2)
    changing = settings_in(tmp_path, passphrase="two", previous="one")
    keyring = await unlock(db, changing)
    assert keyring.current.origin == "previous passphrase"
    assert "not in use yet" in keys.owed(changing, keyring)
    await rotate(db, keyring, changing)
    second = settings_in(tmp_path, passphrase="two")
    keyring = await unlock(db, second)
    assert keys.owed(changing, keyring) == ""
    assert await readable(db, second, keyring, kept)
    with pytest.raises(StoreRefused, match="is not the one"):
        await unlock(db, first)
    with pytest.raises(StoreRefused, match="no new passphrase") as refusal:
        await rotate(db, await unlock(db, changing), changing)
    assert "HOLDFAST_KEYS_PREVIOUS_PASSPHRASE" in refusal.value.hint


async def test_a_rotation_changes_from_a_key_file_to_a_passphrase_and_back(db: Database, tmp_path: Path):
    with_file = settings_in(tmp_path)
    keyring = await unlock(db, with_file)
    kept = await keep_some(db, keyring, 2)
    with_words = settings_in(tmp_path, passphrase="one")
    await rotate(db, keyring, with_words)
    assert read_key_file(FILES, with_file.key_file) == [], "the file's key is gone"
    with_file.key_file.unlink()
    keyring = await unlock(db, with_words)
    assert await readable(db, with_words, keyring, kept)
    back = settings_in(tmp_path, previous="one")
    await rotate(db, await unlock(db, back), back)
    keyring = await unlock(db, with_file)
    assert await finished(db, with_file, keyring, kept)


async def test_a_change_of_passphrase_leaves_a_strange_key_file_alone(db: Database, tmp_path: Path):
    first = settings_in(tmp_path, passphrase="one")
    await unlock(db, first)
    create_key_file(FILES, first.key_file, a_kek())
    changing = settings_in(tmp_path, passphrase="two", previous="one")
    await rotate(db, await unlock(db, changing), changing)
    assert read_key_file(FILES, first.key_file) == [a_kek()]
