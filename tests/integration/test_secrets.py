"""Secrets and their keys on both stores: at start, in use, damaged, and swapped."""

import asyncio
import base64
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.keys import a_kek, settings_in
from tests.support.secrets_planted import KEK_PASSPHRASE, KEPT_SECRET, NEXT_PASSPHRASE, PREVIOUS_PASSPHRASE
from tests.support.stores import open_store

from holdfast.config import Settings
from holdfast.errors import Duplicate, KeyMissing, KeyUnusable, StoreError, StoreRefused
from holdfast.keyring import Keyring, SecretOwner, create_key_file, read_key_file, rewrite_key_file
from holdfast.operations.installation import key_rotation, keys
from holdfast.ports import no_points
from holdfast.secret import Secret
from holdfast.store import journal, secrets
from holdfast.store.database import Database, Engine
from holdfast.store.secrets import KeptSecret
from holdfast.store.tx import Tx
from holdfast.world import LocalFiles, SystemClock, SystemRandom

OWNER = SecretOwner("tests", "one", "secret")

pytestmark = pytest.mark.anyio

FILES, RANDOM, CLOCK = LocalFiles(), SystemRandom(), SystemClock()
SENTINEL = KEPT_SECRET


async def unlock(db: Database, settings: Settings) -> Keyring:
    return await keys.unlock(db, settings, FILES, RANDOM)


async def keep(db: Database, keyring: Keyring, content: bytes = SENTINEL) -> str:
    kept = keys.sealed(keyring, Secret(content), OWNER)
    await db.write(lambda tx: secrets.put(tx, kept))
    return kept.id


async def reveal(db: Database, settings: Settings, keyring: Keyring, secret_id: str) -> bytes:
    return (await keys.reveal(db, settings, FILES, keyring, secret_id, OWNER)).reveal()


# ── Keeping ──


async def test_a_kept_secret_is_revealed_after_a_restart(db: Database, tmp_path: Path):
    settings = settings_in(tmp_path)
    secret_id = await keep(db, await unlock(db, settings))
    assert secret_id.startswith("bound_")
    assert await reveal(db, settings, await unlock(db, settings), secret_id) == SENTINEL


async def test_a_secret_is_put_once_and_deleted_once(db: Database, tmp_path: Path):
    keyring = await unlock(db, settings_in(tmp_path))
    kept = keys.sealed(keyring, Secret(SENTINEL), OWNER)
    await db.write(lambda tx: secrets.put(tx, kept))
    assert await db.read(lambda tx: secrets.get(tx, kept.id)) == kept.sealed
    with pytest.raises(Duplicate):
        await db.write(lambda tx: secrets.put(tx, kept))
    assert await db.write(lambda tx: secrets.delete(tx, kept.id))
    assert not await db.write(lambda tx: secrets.delete(tx, kept.id))
    assert await db.read(lambda tx: secrets.get(tx, kept.id)) is None
    with pytest.raises(LookupError, match=kept.id):
        await reveal(db, settings_in(tmp_path), keyring, kept.id)


async def test_a_secret_under_a_key_that_the_database_does_not_know_is_not_put(db: Database, tmp_path: Path):
    await unlock(db, settings_in(tmp_path))
    stranger = keys.sealed(Keyring([a_kek()], RANDOM), Secret(SENTINEL), OWNER)
    with pytest.raises(KeyMissing, match=a_kek().id):
        await db.write(lambda tx: secrets.put(tx, stranger))
    assert await db.read(lambda tx: secrets.get(tx, stranger.id)) is None


async def test_the_database_itself_refuses_to_forget_a_key_that_a_secret_needs(db: Database, tmp_path: Path):
    keyring = await unlock(db, settings_in(tmp_path))
    secret_id = await keep(db, keyring)
    with pytest.raises(StoreError):
        await db.write(lambda tx: tx.run("DELETE FROM key_checks"))
    assert not await db.write(lambda tx: secrets.retire(tx, keyring.current.id))
    await db.write(lambda tx: secrets.delete(tx, secret_id))
    assert not await db.write(lambda tx: secrets.retire(tx, keyring.current.id)), "nor the current one"


async def test_a_page_holds_the_secrets_under_one_key_in_order(db: Database, tmp_path: Path):
    keyring = await unlock(db, settings_in(tmp_path))
    ids = sorted([await keep(db, keyring) for _ in range(5)])
    pages, after = [], ""
    while page := await db.read(lambda tx, after=after: secrets.under(tx, keyring.current.id, after=after, limit=2)):
        pages.append([kept.id for kept in page])
        after = page[-1].id
    assert pages == [ids[:2], ids[2:4], ids[4:]]
    assert await db.read(lambda tx: secrets.under(tx, "kek_other", after="", limit=2)) == []


async def test_a_wrap_is_replaced_only_if_it_is_still_the_one_that_was_read(db: Database, tmp_path: Path):
    keyring = await unlock(db, settings_in(tmp_path))
    secret_id = await keep(db, keyring)
    before = KeptSecret(id=secret_id, sealed=await db.read(lambda tx: secrets.get(tx, secret_id)))
    first, second = (keyring.rewrap(before.sealed, **secrets.place(secret_id)) for _ in range(2))
    assert await db.write(lambda tx: secrets.rewrap(tx, before, first))
    assert not await db.write(lambda tx: secrets.rewrap(tx, before, second))
    assert await db.read(lambda tx: secrets.get(tx, secret_id)) == first


# ── Damage ──


@pytest.mark.parametrize("column", ["wrapped", "box"])
async def test_one_damaged_row_is_unusable_and_the_others_are_not(db: Database, tmp_path: Path, column: str):
    settings = settings_in(tmp_path)
    keyring = await unlock(db, settings)
    damaged, sound = await keep(db, keyring), await keep(db, keyring)
    sql = f"UPDATE secrets SET {column} = :junk WHERE id = :id"
    await db.write(lambda tx: tx.run(sql, junk=os.urandom(90), id=damaged))
    keyring = await unlock(db, settings)
    with pytest.raises(KeyUnusable, match=f"secrets {damaged} .*{keyring.current.id}"):
        await reveal(db, settings, keyring, damaged)
    assert await reveal(db, settings, keyring, sound) == SENTINEL


@pytest.mark.parametrize("columns", [["wrapped"], ["box"], ["wrapped", "box"]])
async def test_a_row_that_was_copied_over_another_does_not_open(db: Database, tmp_path: Path, columns: list[str]):
    settings = settings_in(tmp_path)
    keyring = await unlock(db, settings)
    mine, theirs = await keep(db, keyring, b"mine"), await keep(db, keyring, b"theirs")

    def copy(tx: Tx) -> None:
        for column in columns:
            source = f"(SELECT {column} FROM secrets WHERE id = :theirs)"
            tx.run(f"UPDATE secrets SET {column} = {source} WHERE id = :mine", mine=mine, theirs=theirs)

    await db.write(copy)
    with pytest.raises(KeyUnusable, match=mine):
        await reveal(db, settings, keyring, mine)
    assert await reveal(db, settings, keyring, theirs) == b"theirs"


# ── The first start ──


async def test_the_first_start_makes_a_private_key_file_and_writes_it_down(db: Database, tmp_path: Path):
    settings = settings_in(tmp_path / "new")
    keyring = await unlock(db, settings)
    assert stat.S_IMODE(settings.key_file.stat().st_mode) == 0o600
    assert read_key_file(FILES, settings.key_file) == [keyring.current]
    [entry] = await db.read(lambda tx: journal.audit_page(tx, 0))
    assert (entry.action, entry.subject, entry.details) == (
        "key_created",
        keyring.current.id,
        '{"kind":"file"}',
    )
    before = settings.key_file.read_bytes()
    assert (await unlock(db, settings)).current == keyring.current
    assert settings.key_file.read_bytes() == before
    assert len(await db.read(lambda tx: journal.audit_page(tx, 0))) == 1


async def test_a_key_file_that_is_there_before_the_first_start_is_used(db: Database, tmp_path: Path):
    settings = settings_in(tmp_path)
    create_key_file(FILES, settings.key_file, a_kek())
    assert (await unlock(db, settings)).current == a_kek()


async def test_a_key_file_without_a_key_is_refused_at_the_first_start(db: Database, tmp_path: Path):
    settings = settings_in(tmp_path)
    rewrite_key_file(FILES, settings.key_file, [])
    with pytest.raises(StoreRefused, match="holds no key"):
        await unlock(db, settings)


async def test_a_command_that_may_not_make_a_key_makes_none(db: Database, tmp_path: Path):
    settings = settings_in(tmp_path)
    with pytest.raises(StoreRefused, match="no key yet"):
        await keys.unlock(db, settings, FILES, RANDOM, create=False)
    assert not settings.key_file.exists()
    assert await db.read(secrets.checks) == []


class Abreast:
    """A store whose first answer comes to both replicas at once: both find it empty before either goes on."""

    def __init__(self, db: Database, both: asyncio.Barrier) -> None:
        self._db, self._both, self.wake = db, both, db.wake
        self.write = db.write
        self._first = True

    async def read(self, fn: Callable[[Tx], Any]) -> Any:
        result = await self._db.read(fn)
        if self._first:
            self._first = False
            await self._both.wait()
        return result


class LateFiles(LocalFiles):
    """Looks for the file before another replica makes it, and goes on after that."""

    def __init__(self) -> None:
        self.looked = False

    def read(self, path: Path) -> bytes | None:
        content = super().read(path) if self.looked else None
        self.looked = True
        return content


async def start_both(
    dbs: tuple[Database, Database], settings: tuple[Settings, Settings], files: tuple[LocalFiles, LocalFiles]
) -> list[Any]:
    both = asyncio.Barrier(2)
    starts = [
        keys.unlock(Abreast(db, both), each, file, RANDOM) for db, each, file in zip(dbs, settings, files, strict=True)
    ]
    return await asyncio.gather(*starts, return_exceptions=True)


@pytest.mark.parametrize("late", [False, True])
async def test_two_replicas_that_start_at_once_with_one_key_file_agree(
    make_engine: Callable[[], Engine], db: Database, tmp_path: Path, late: bool
):
    other = db if db.engine.name == "sqlite" else open_store(make_engine())
    settings = settings_in(tmp_path)
    files = (LateFiles(), LateFiles()) if late else (FILES, FILES)
    try:
        a, b = await start_both((db, other), (settings, settings), files)
    finally:
        if other is not db:
            await other.close()
    assert a.current == b.current
    assert [check.kek_id for check in await db.read(secrets.checks)] == [a.current.id]
    assert await reveal(db, settings, b, await keep(db, a)) == SENTINEL


async def test_two_replicas_that_start_at_once_with_one_passphrase_agree(db: Database, tmp_path: Path):
    settings = settings_in(tmp_path, passphrase=KEK_PASSPHRASE)
    a, b = await start_both((db, db), (settings, settings), (FILES, FILES))
    assert (a.current.id, a.current.key) == (b.current.id, b.current.key)
    assert len(await db.read(secrets.checks)) == 1


async def test_of_two_replicas_with_a_key_file_each_one_is_refused(db: Database, tmp_path: Path):
    settings = (settings_in(tmp_path / "a"), settings_in(tmp_path / "b"))
    results = await start_both((db, db), settings, (FILES, FILES))
    [winner] = [each for each in results if isinstance(each, Keyring)]
    [refusal] = [each for each in results if isinstance(each, StoreRefused)]
    assert winner.current.id in str(refusal)


# ── Every other start ──


async def test_another_key_is_refused_at_start_and_the_one_that_is_needed_is_named(db: Database, tmp_path: Path):
    settings = settings_in(tmp_path)
    right = (await unlock(db, settings)).current
    rewrite_key_file(FILES, settings.key_file, [a_kek()])
    before = settings.key_file.read_bytes()
    with pytest.raises(StoreRefused) as refusal:
        await unlock(db, settings)
    assert str(refusal.value) == (
        f"The key in {settings.key_file} is not the one this database was encrypted with (it needs key {right.id})."
    )
    assert refusal.value.hint.startswith("Restore the key file")
    assert settings.key_file.read_bytes() == before
    rewrite_key_file(FILES, settings.key_file, [right])
    assert (await unlock(db, settings)).current == right


async def test_another_key_under_the_right_id_is_refused_at_start(db: Database, tmp_path: Path):
    settings = settings_in(tmp_path)
    right = (await unlock(db, settings)).current
    wrong = base64.b64encode(os.urandom(32))
    content = settings.key_file.read_bytes().replace(base64.b64encode(right.key.reveal()), wrong)
    FILES.write_private(settings.key_file, content, replace=True)
    with pytest.raises(StoreRefused, match=f"is not the one .*{right.id}"):
        await unlock(db, settings)


async def test_a_missing_key_file_is_refused_and_none_is_made(db: Database, tmp_path: Path):
    settings = settings_in(tmp_path)
    right = (await unlock(db, settings)).current
    settings.key_file.unlink()
    with pytest.raises(StoreRefused, match=f"no key file {settings.key_file}.*{right.id}") as refusal:
        await unlock(db, settings)
    assert "Restore" in refusal.value.hint
    assert not settings.key_file.exists()


async def test_a_key_file_that_others_can_read_is_refused(db: Database, tmp_path: Path):
    settings = settings_in(tmp_path)
    await unlock(db, settings)
    settings.key_file.chmod(0o644)
    with pytest.raises(StoreRefused, match="0644") as refusal:
        await unlock(db, settings)
    assert f"chmod 600 {settings.key_file}" in refusal.value.hint


async def test_a_passphrase_opens_the_database_and_leaves_no_file(db: Database, tmp_path: Path):
    settings = settings_in(tmp_path / "none", passphrase=KEK_PASSPHRASE)
    secret_id = await keep(db, await unlock(db, settings))
    assert await reveal(db, settings, await unlock(db, settings), secret_id) == SENTINEL
    assert not (tmp_path / "none").exists()


async def test_a_wrong_passphrase_or_none_is_refused_at_start(db: Database, tmp_path: Path):
    needed = (await unlock(db, settings_in(tmp_path, passphrase=KEK_PASSPHRASE))).current.id
    with pytest.raises(StoreRefused, match=f"passphrase is not the one .*{needed}") as refusal:
        await unlock(db, settings_in(tmp_path, passphrase="battery staple"))
    assert "HOLDFAST_KEYS_PASSPHRASE" in refusal.value.hint
    assert "battery" not in f"{refusal.value}{refusal.value.hint}"
    with pytest.raises(StoreRefused, match=f"{needed}.*none is given") as refusal:
        await unlock(db, settings_in(tmp_path))
    assert "HOLDFAST_KEYS_PASSPHRASE" in refusal.value.hint
    assert not settings_in(tmp_path).key_file.exists()


async def test_a_passphrase_does_not_open_a_database_of_a_key_file_without_the_file(db: Database, tmp_path: Path):
    settings = settings_in(tmp_path)
    keyring = await unlock(db, settings)
    changed = settings_in(tmp_path, passphrase=KEK_PASSPHRASE)
    assert (await unlock(db, changed)).current == keyring.current
    assert "not in use yet" in keys.owed(changed, keyring)
    assert keys.owed(settings, keyring) == ""
    settings.key_file.unlink()
    with pytest.raises(StoreRefused, match="no key file"):
        await unlock(db, changed)


async def test_the_standing_of_keys_tells_what_is_here_even_if_it_is_the_wrong_key(db: Database, tmp_path: Path):
    settings = settings_in(tmp_path)
    keyring = await unlock(db, settings)
    await keep(db, keyring)
    [row] = await keys.standing(db, settings, FILES)
    assert (row.id, row.use, row.kind, row.held, row.secrets) == (
        keyring.current.id,
        "current",
        "file",
        True,
        1,
    )
    rewrite_key_file(FILES, settings.key_file, [a_kek()])
    rows = await keys.standing(db, settings, FILES)
    assert [(row.id, row.use, row.held) for row in rows] == [
        (keyring.current.id, "current", False),
        (a_kek().id, "unused", True),
    ]


# ── Nothing in the open ──


async def everything(db: Database, folder: Path) -> bytes:
    """All that is on disk or in the tables, as an attacker with a copy would have it."""

    def dump(tx: Tx) -> bytes:
        if db.engine.name == "sqlite":  # the file, and what is not in it yet
            return b"".join(path.read_bytes() for path in folder.glob("holdfast.sqlite*"))
        names = tx.rows("SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'")
        rows = [row for name in names for row in tx.rows(f"SELECT * FROM {name['table_name']}")]
        values = [value for row in rows for value in row.values()]
        assert any(isinstance(value, bytes) for value in values), "the boxes are among them"
        return b"\n".join(value if isinstance(value, bytes) else str(value).encode() for value in values)

    return await db.read(dump)


@pytest.mark.parametrize("passphrase", ["", PREVIOUS_PASSPHRASE])
async def test_no_secret_and_no_key_is_ever_in_the_database(db: Database, tmp_path: Path, passphrase: str):
    settings = settings_in(tmp_path, passphrase=passphrase)
    first = await unlock(db, settings)
    marker = await keep(db, first)
    stored = await db.read(lambda tx: secrets.get(tx, marker))
    if passphrase:
        settings = settings_in(tmp_path, passphrase=NEXT_PASSPHRASE, previous=passphrase)
    second = await unlock(db, settings)
    await key_rotation.rotate(db, second, settings, FILES, random=RANDOM, clock=CLOCK, points=no_points)
    assert await reveal(db, settings, second, marker) == SENTINEL
    await reveal(db, settings, second, await keep(db, second, SENTINEL * 1000))
    found = await everything(db, tmp_path)
    assert stored.box in found, "what is searched is what is stored"
    plain = [SENTINEL, passphrase.encode() or SENTINEL, NEXT_PASSPHRASE.encode()]
    plain += [keyring.current.key.reveal() for keyring in (first, second)]
    for value in plain:
        for shape in (value, value.hex().encode(), value.hex().upper().encode(), base64.b64encode(value)[:-4]):
            assert shape not in found
