"""Bring the keys at start, keep and reveal secrets with them, and say how the keys stand.

The database says which key-encryption keys (KEKs) are in use and which is current; the key file or the
passphrase bring them. A key that is needed and not brought means a refusal to start, never another key.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from holdfast.config import Settings, variable
from holdfast.errors import Duplicate, KeyMissing, StoreRefused
from holdfast.keyring import (
    SALT_SIZE,
    Kek,
    KekOrigin,
    Keyring,
    SecretOwner,
    check_box,
    create_key_file,
    derive,
    new_kek,
    opens,
    read_key_file,
)
from holdfast.ports import Files, Random
from holdfast.secret import Secret
from holdfast.store import journal, secrets
from holdfast.store.database import Store
from holdfast.store.secrets import KekCheck, KeptSecret
from holdfast.store.tx import Tx

PASSPHRASE: Final = variable("keys.passphrase")
PREVIOUS: Final = variable("keys.previous_passphrase")


# ── At start ──


async def unlock(db: Store, settings: Settings, files: Files, random: Random, *, create: bool = True) -> Keyring:
    """Bring every key the database uses, or refuse. On an empty database make the first one."""
    checks, now = await db.read(lambda tx: (secrets.checks(tx), tx.now()))
    if not checks and not create:
        raise StoreRefused(
            "This database has no key yet.",
            "'holdfast serve' makes it at the first start; is this the right one?",
        )
    if not checks:
        check = _first(settings, files, random, now)
        with contextlib.suppress(Duplicate):  # another replica was quicker: its key counts
            await db.write(lambda tx: _add_first(tx, check))
        checks = await db.read(secrets.checks)
    return Keyring(Sources(settings, files).all_of(checks), random)


async def refresh(db: Store, settings: Settings, files: Files, keyring: Keyring) -> None:
    """Follow a rotation that was run elsewhere; the keys we hold already are not derived anew."""
    checks = await db.read(secrets.checks)
    keyring.adopt(Sources(settings, files, held=keyring).all_of(checks))


def _first(settings: Settings, files: Files, random: Random, now: datetime) -> KekCheck:
    if settings.keys.passphrase:
        return from_passphrase(settings.keys.passphrase, random, now)[1]
    path = settings.key_file
    keks = read_key_file(files, path)
    if keks is None:
        keks = create_key_file(files, path, new_kek(random, now))
    if not keks:
        raise StoreRefused(
            f"The key file {path} holds no key.", "Restore it from your copy, or remove it and start again."
        )
    return check_of(keks[0], None, random)


def _add_first(tx: Tx, check: KekCheck) -> None:
    secrets.add_current(tx, check)
    journal.audit(tx, "key_created", check.kek_id, kind="file" if check.salt is None else "passphrase")


def from_passphrase(passphrase: Secret[str], random: Random, now: datetime) -> tuple[Kek, KekCheck]:
    """A new KEK from a passphrase: its salt is new, so the key is new even if the passphrase is not."""
    salt = random.token(SALT_SIZE)
    key = derive(passphrase, salt)
    kek = Kek(id=random.new_id("kek"), key=key, created_at=now, origin="passphrase")
    return kek, check_of(kek, salt, random)


def check_of(kek: Kek, salt: bytes | None, random: Random) -> KekCheck:
    box = check_box(kek, random)
    return KekCheck(kek_id=kek.id, current=True, salt=salt, box=box, created_at=kek.created_at)


class Sources:
    """Where keys come from: the file (read only if needed), the passphrases, and what we hold already."""

    def __init__(self, settings: Settings, files: Files, *, held: Keyring | None = None) -> None:
        self._settings = settings
        self._files = files
        self._held = held
        self._in_file: list[Kek] | None = None
        self._looked = False

    def in_file(self) -> list[Kek] | None:
        if not self._looked:
            self._in_file = read_key_file(self._files, self._settings.key_file)
            self._looked = True
        return self._in_file

    def all_of(self, checks: Sequence[KekCheck]) -> list[Kek]:
        """Every KEK in use, in order; StoreRefused if one is missing or wrong."""
        found = [(check, self.find(check)) for check in checks]
        missing = [check for check, kek in found if kek is None]
        if missing:
            raise self._refusal(missing[0], partly=len(missing) < len(found))
        return [kek for _, kek in found if kek is not None]

    def find(self, check: KekCheck) -> Kek | None:
        """The KEK of this id that opens the check value."""
        held = self._held.find(check.kek_id) if self._held else None
        if held:
            return held
        if check.salt is None:
            keks = (kek for kek in self.in_file() or () if kek.id == check.kek_id)
            return next((kek for kek in keks if opens(kek.key, kek.id, check.box)), None)
        given: list[tuple[KekOrigin, Secret[str] | None]] = [
            ("passphrase", self._settings.keys.passphrase),
            ("previous passphrase", self._settings.keys.previous_passphrase),
        ]
        for origin, passphrase in given:
            if passphrase and opens(key := derive(passphrase, check.salt), check.kek_id, check.box):
                return Kek(id=check.kek_id, key=key, created_at=check.created_at, origin=origin)
        return None

    def _refusal(self, check: KekCheck, *, partly: bool) -> StoreRefused:
        path, needed = self._settings.key_file, f"key {check.kek_id}"
        if check.salt is not None and not self._settings.keys.passphrase:
            return StoreRefused(
                f"This database was encrypted with a passphrase ({needed}), and none is given.",
                f"Set {PASSPHRASE}, or name a file that holds it with keys.passphrase_file.",
            )
        if check.salt is not None:
            return StoreRefused(
                f"The passphrase is not the one this database was encrypted with (it needs {needed}).",
                f"Set {PASSPHRASE} to the right one. To change it, give the one in use as {PREVIOUS}, "
                "then run 'holdfast key rotate'.",
            )
        if self.in_file() is None:
            return StoreRefused(
                f"There is no key file {path}, but this database was encrypted with {needed}.",
                "Restore the file from your copy (keys.file says where it is looked for). Holdfast makes no "
                "new key beside an existing database: it would open none of the secrets in it.",
            )
        if partly:
            return StoreRefused(
                f"The key file {path} lacks {needed}, which this database uses too: keys are being rotated.",
                "Copy the key file from the machine where 'holdfast key rotate' was run.",
            )
        return StoreRefused(
            f"The key in {path} is not the one this database was encrypted with (it needs {needed}).",
            "Restore the key file that belongs to this database, from your copy or from another replica.",
        )


# ── Secrets ──


def sealed(keyring: Keyring, secret: Secret[bytes], owner: SecretOwner) -> KeptSecret:
    """Seal a secret under a new id, ready for `secrets.put` in the transaction that writes its owner."""
    secret_id = keyring.random.new_id(secrets.BOUND)
    return KeptSecret(id=secret_id, sealed=keyring.seal(secret, **secrets.place(secret_id), owner=owner))


async def reveal(
    db: Store, settings: Settings, files: Files, keyring: Keyring, secret_id: str, owner: SecretOwner
) -> Secret[bytes]:
    """Open a kept secret; LookupError if it is gone. A key that came after our start is fetched first.

    KeyUnusable if it was sealed for another owner: a row that refers to it now was altered.
    """
    try:
        return await _open(db, keyring, secret_id, owner)
    except KeyMissing:
        await refresh(db, settings, files, keyring)
        return await _open(db, keyring, secret_id, owner)


async def _open(db: Store, keyring: Keyring, secret_id: str, owner: SecretOwner) -> Secret[bytes]:
    kept = await db.read(lambda tx: secrets.get(tx, secret_id))
    if kept is None:
        raise LookupError(f"there is no secret {secret_id}")
    bound = secret_id.startswith(f"{secrets.BOUND}_")  # those of an earlier version are not
    return keyring.open(kept, **secrets.place(secret_id), owner=owner if bound else None)


# ── How the keys stand ──


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyStatus:
    """One KEK as an operator may see it."""

    id: str
    use: str  # current, previous; unused: it is in the file, but the database does not know it
    kind: str  # file or passphrase
    held: bool  # whether the configured file or passphrase brings it
    secrets: int
    created_at: datetime


async def standing(db: Store, settings: Settings, files: Files) -> list[KeyStatus]:
    """Every KEK in use or in the file. Works with a wrong key too: that is when one asks."""
    checks, counts = await db.read(lambda tx: (secrets.checks(tx), secrets.counts(tx)))
    sources = Sources(settings, files)
    used = [
        KeyStatus(
            id=check.kek_id,
            use="current" if check.current else "previous",
            kind="file" if check.salt is None else "passphrase",
            held=sources.find(check) is not None,
            secrets=counts.get(check.kek_id, 0),
            created_at=check.created_at,
        )
        for check in checks
    ]
    known = {check.kek_id for check in checks}
    return used + [
        KeyStatus(id=kek.id, use="unused", kind="file", held=True, secrets=0, created_at=kek.created_at)
        for kek in sources.in_file() or ()
        if kek.id not in known
    ]


def owed(settings: Settings, keyring: Keyring) -> str:
    """What `holdfast key rotate` would still have to do, as a sentence; empty when nothing is owed."""
    if keyring.previous:
        return "A key rotation is unfinished: run 'holdfast key rotate' to end it."
    if settings.keys.passphrase and keyring.current.origin != "passphrase":
        return "The passphrase is not in use yet: run 'holdfast key rotate' to change to it."
    return ""
