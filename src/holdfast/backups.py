"""Saves an installation into one file, and makes one from it: both stores, one format."""

from __future__ import annotations

import tempfile
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from holdfast import __version__, backup_file
from holdfast.config import Settings
from holdfast.core import backup
from holdfast.core.backup import BackupHeader, BackupMade, BackupRefused
from holdfast.core.installation import Change, Judgement, Mode
from holdfast.errors import KeyMissing, KeyUnusable, StoreRefused
from holdfast.keyring import Keyring, Sealed
from holdfast.operations.installation import quarantine
from holdfast.operations.installation.keys import Sources
from holdfast.operations.notifications import routing
from holdfast.ports import Clock, Files, Points, Random
from holdfast.secret import Secret
from holdfast.store import backup as rows
from holdfast.store import installation, journal, migrate, secrets
from holdfast.store.database import Engine, conclude
from holdfast.store.secrets import KekCheck
from holdfast.store.sqlite import SqliteEngine
from holdfast.store.tx import Session, Tx, from_micros, to_micros
from holdfast.witness_file import known_installation

PATIENCE: Final = 3600.0  # seconds that one statement may take
TABLE, COLUMN = "backup", "key"  # what its key is bound to, beside its id


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What came of a restore, or of its rehearsal."""

    header: BackupHeader
    counts: dict[str, int]
    took_s: float


# ── Saving ──


@dataclass(frozen=True, slots=True, kw_only=True)
class Saver:
    """Saves the store of this process; called on a thread of its own."""

    engine: Engine
    keyring: Keyring
    clock: Clock
    random: Random
    folder: Path
    keep: int
    points: Points

    def __call__(self) -> BackupMade:
        began = self.clock.monotonic()
        session = self.engine.connect(write=False, deadline=PATIENCE)
        try:
            session.begin(write=False)
            header, key = self._header(Tx(session))
            lines = rows.dump(Tx(session), session, self.engine.name)
            self.points("backup.writing")
            path = backup_file.write(self.folder, header, lines, key)
            session.rollback()
        finally:
            session.close()
        backup_file.forget(self.folder, self.keep)
        took = self.clock.monotonic() - began
        size, total = path.stat().st_size, sum(header.counts.values())
        return BackupMade(id=header.id, at=header.at, path=str(path), size=size, rows=total, took_s=took)

    def _header(self, tx: Tx) -> tuple[BackupHeader, Secret[bytes]]:
        row, (seq, newest) = installation.get(tx), journal.audit_head(tx)
        key, backup_id = Secret(self.random.token(32)), self.random.new_id("backup")
        sealed = self.keyring.seal(key, table=TABLE, row=backup_id, column=COLUMN)
        header = BackupHeader(
            id=backup_id,
            at=self.clock.now(),
            version=__version__,
            installation="" if row is None else row.id,
            place=tx.place,
            store=self.engine.name,
            epoch=tx.epoch,
            audit_seq=seq,
            audit_hash=newest,
            crls={f"{each['ca']}/{each['shard']}": each["number"]
                  for each in tx.rows("SELECT ca, shard, number FROM crls")},
            counts=rows.counts(tx, self.engine.name),
            schema={f"{each['version']:04d}_{each['name']}": each["digest"]
                    for each in tx.rows("SELECT version, name, digest FROM schema_migrations")},
            kek=sealed.kek_id,
            checks=tuple(_plain(each) for each in secrets.checks(tx)),
            wrapped=b64encode(sealed.wrapped).decode(),
            box=b64encode(sealed.box).decode(),
        )  # fmt: skip
        return header, key


def _plain(check: KekCheck) -> dict[str, Any]:
    salt = None if check.salt is None else b64encode(check.salt).decode()
    times = {"created_at": to_micros(check.created_at)}
    return {
        "kek_id": check.kek_id,
        "current": check.current,
        "salt": salt,
        "box": b64encode(check.box).decode(),
        **times,
    }


def _check(plain: dict[str, Any]) -> KekCheck:
    salt = None if plain["salt"] is None else b64decode(plain["salt"])
    made = from_micros(plain["created_at"])
    return KekCheck(
        kek_id=plain["kek_id"], current=plain["current"], salt=salt, box=b64decode(plain["box"]), created_at=made
    )


# ── Reading ──


def key_of(header: BackupHeader, settings: Settings, files: Files, random: Random) -> Secret[bytes]:
    """The key of its boxes, by the key file or passphrase that the settings name."""
    try:
        keks = Sources(settings, files).all_of([_check(dict(each)) for each in header.checks])
        sealed = Sealed(kek_id=header.kek, wrapped=b64decode(header.wrapped), box=b64decode(header.box))
        return Keyring(keks, random).open(sealed, table=TABLE, row=header.id, column=COLUMN)
    except (KeyMissing, KeyUnusable, StoreRefused) as error:
        hint = "Bring the key file or passphrase of that installation, which is kept apart from backups: keys.file"
        raise BackupRefused(f"The backup is sealed with key {header.kek}, which is not here: {error}", hint) from None


def verified(path: Path, settings: Settings, files: Files, random: Random) -> BackupHeader:
    """Open every part of it and count its rows; nothing is written."""
    header = _checked(path)
    counts: dict[str, int] = {}
    name = ""
    for line in backup_file.read(path, key_of(header, settings, files, random)):
        if line.startswith(b"{"):
            name = backup.table_of(line)
        else:
            counts[name] = counts.get(name, 0) + 1
    _compare(counts, header, path)
    return header


def _checked(path: Path) -> BackupHeader:
    header = backup_file.header_of(path)
    backup.check_version(header, {rows.step(each): each.digest for each in migrate.bundled()})
    return header


def _compare(counts: dict[str, int], header: BackupHeader, path: Path) -> None:
    for name, number in header.counts.items():
        if counts.get(name, 0) != number:
            problem = f"it has {counts.get(name, 0)} of {number} rows of {name}"
            raise backup.damaged(str(path), problem)


# ── Restoring ──


@dataclass(frozen=True, slots=True, kw_only=True)
class Restorer:
    """Makes a database from a backup, in one transaction, in quarantine."""

    settings: Settings
    files: Files
    clock: Clock
    random: Random
    points: Points

    def restore(self, path: Path) -> Restored:
        """Into the store that the settings name, which must be empty."""
        header = _checked(path)
        self._refuse_strangers(header)
        file = self.settings.store.sqlite_file
        if file is None:
            from holdfast.store.postgres import PostgresEngine

            return self._into(PostgresEngine(self.settings.store.url, connections=1), header, path)
        with self._new_file(file) as engine:
            return self._into(engine, header, path)

    def rehearse(self, path: Path, into: Secret[str] | None) -> Restored:
        """Into an empty PostgreSQL database, or into a file that is thrown away."""
        header = _checked(path)
        if into is not None:
            from holdfast.store.postgres import PostgresEngine

            return self._into(PostgresEngine(into, connections=1), header, path)
        with tempfile.TemporaryDirectory(prefix="holdfast-rehearsal-") as folder:
            engine = SqliteEngine(Path(folder) / "holdfast.sqlite", self.clock)
            try:
                return self._into(engine, header, path)
            finally:
                engine.close()

    def _refuse_strangers(self, header: BackupHeader) -> None:
        folder = self.settings.witness.folder or self.settings.store.data_dir
        known = known_installation(folder)
        if known and header.installation and known != header.installation:
            hint = "Restore it into a data folder of its own (store.data_dir), or use a backup of this installation."
            problem = f"The backup is of installation {header.installation}, and {folder} belongs to {known}."
            raise BackupRefused(problem, hint)

    @contextmanager
    def _new_file(self, file: Path) -> Iterator[Engine]:
        """Under another name until it is whole; a file that is there is never touched."""
        if file.exists():
            hint = f"Stop the server and move it away: mv {file} {file}.before"
            raise BackupRefused(f"There is a database {file} already.", hint)
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = file.with_name(f".{file.name}.restoring")
        for each in (new, *(new.with_name(new.name + end) for end in ("-wal", "-shm"))):
            each.unlink(missing_ok=True)
        engine = SqliteEngine(new, self.clock)
        try:
            yield engine
        finally:
            engine.close()
            new.with_name(f"{new.name}.lock").unlink(missing_ok=True)
        self.points("restore.loaded")
        new.rename(file)

    def _into(self, engine: Engine, header: BackupHeader, path: Path) -> Restored:
        began, key = self.clock.monotonic(), key_of(header, self.settings, self.files, self.random)
        session = engine.connect(write=True, deadline=PATIENCE)
        try:
            session.begin(write=True)
            counts = self._loaded(session, engine.name, header, path, key)
            session.commit()
        except BaseException:
            session.rollback()
            raise
        finally:
            session.close()
        return Restored(header=header, counts=counts, took_s=self.clock.monotonic() - began)

    def _loaded(
        self, session: Session, engine: str, header: BackupHeader, path: Path, key: Secret[bytes]
    ) -> dict[str, int]:
        tx = Tx(session)
        rows.refuse_used(tx, engine)
        rows.make_schema(tx, engine, header.schema, self.points)
        counts = rows.load(tx, engine, backup_file.read(path, key), self.points)
        _compare(counts, header, path)
        found = journal.verify(tx)
        if not found.ok:
            raise backup.damaged(str(path), f"its audit log does not hold: {found.problem}")
        migrate.migrate(tx, engine, migrate.bundled(), self.points)
        self._quarantine(tx, header)
        conclude(tx, routing.route)
        return counts

    def _quarantine(self, tx: Tx, header: BackupHeader) -> None:
        age = max(self.clock.now() - header.at, timedelta(0))
        why = f"restored from backup {header.id} of {header.at:%F %T}Z"
        row = installation.get(tx)
        if row is None:
            installation.begin(tx, header.installation or self.random.new_id("inst"))
            row = installation.get(tx)
        if row is None:
            raise AssertionError("it was inserted")
        judgement = Judgement(change=Change.OLDER, why=why, missing=age)
        facts = {"change": Change.OLDER.value, "missing_s": int(age.total_seconds()), "backup": header.id}
        installation.enter(tx, row, Mode.QUARANTINE, why, **facts)
        quarantine.told(tx, Mode.QUARANTINE, judgement)
