"""Rotate the key-encryption key (KEK): a new one, then every secret re-wrapped, then the old one dropped.

A crash at any moment leaves each secret readable under the old KEK or the new one, both at hand, and
running it again goes on from there. The order does it: the new KEK is durable in its file before the
database knows it, and the old one leaves the database, which refuses while a secret needs it, before it
leaves the file.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from holdfast.config import Settings
from holdfast.core.work.cluster import Lease
from holdfast.errors import KeyUnusable, LeaseLost, StoreRefused
from holdfast.keyring import Kek, Keyring, new_kek, read_key_file, rewrite_key_file
from holdfast.operations.installation import keys
from holdfast.ports import Clock, Files, Points, Random
from holdfast.store import journal, secrets
from holdfast.store.database import Store
from holdfast.store.secrets import KekCheck, KeptSecret
from holdfast.store.tx import Tx
from holdfast.store.work import cluster

LEASE: Final = "key-rotation"
LEASE_FOR: Final = timedelta(seconds=10)
PAGE: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """What a run did. While a secret cannot be re-wrapped its old KEK stays: the rotation is unfinished."""

    current: str
    retired: tuple[str, ...]
    rewrapped: int  # by this run; an earlier one that was cut off may have done others
    unusable: tuple[str, ...] = ()  # ids of secrets that the old KEK does not open


async def rotate(
    db: Store,
    keyring: Keyring,
    settings: Settings,
    files: Files,
    *,
    random: Random,
    clock: Clock,
    points: Points,
) -> Rotation:
    """Begin a rotation, or end one that was cut off. The keyring follows as it goes."""
    async with _alone(db, random, clock) as turn:
        return await _Run(db, keyring, settings, files, random, points, turn).run()


class _Turn:
    """Our right to change the key file: a lease, kept alive while we work."""

    def __init__(self, db: Store, clock: Clock, lease: Lease, asked_at: float) -> None:
        self._db = db
        self._clock = clock
        self._asked_at = asked_at
        self.lease = lease

    async def keep(self, *, at_once: bool = False) -> None:
        """Renew the lease if a third of it has passed, or at once; LeaseLost if another has it."""
        asked_at = self._clock.monotonic()
        if not at_once and asked_at - self._asked_at < LEASE_FOR.total_seconds() / 3:
            return
        self.lease = await self._db.write(self.prove)
        self._asked_at = asked_at

    def prove(self, tx: Tx) -> Lease:
        return cluster.renew_lease(tx, self.lease, LEASE_FOR)


@asynccontextmanager
async def _alone(db: Store, random: Random, clock: Clock) -> AsyncIterator[_Turn]:
    """One rotation at a time: two would overwrite each other's key file. A killed one is waited for."""
    holder = random.new_id("rotation")
    give_up_at = clock.monotonic() + 1.5 * LEASE_FOR.total_seconds()
    while True:
        asked_at = clock.monotonic()
        lease = await db.write(lambda tx: cluster.take_lease(tx, LEASE, holder, LEASE_FOR))
        if lease is not None:
            break
        if asked_at >= give_up_at:
            raise StoreRefused("Another 'holdfast key rotate' is at work on this database.", "Wait until it has ended.")
        await clock.sleep(0.5)
    turn = _Turn(db, clock, lease, asked_at)
    try:
        yield turn
    except LeaseLost:
        raise StoreRefused(
            "This rotation was held up for too long, and another one may have begun.",
            "Nothing is lost: run 'holdfast key rotate' again.",
        ) from None
    except (Exception, asyncio.CancelledError):
        await db.write(lambda tx: cluster.release_lease(tx, turn.lease))
        raise
    await db.write(lambda tx: cluster.release_lease(tx, turn.lease))


class _Run:
    """One run of a rotation, from wherever the last one stopped."""

    def __init__(
        self,
        db: Store,
        keyring: Keyring,
        settings: Settings,
        files: Files,
        random: Random,
        points: Points,
        turn: _Turn,
    ) -> None:
        self._db, self._keyring, self._settings, self._files = db, keyring, settings, files
        self._random, self._points, self._turn = random, points, turn
        self._rewrapped = 0
        self._unusable: list[str] = []

    async def run(self) -> Rotation:
        await keys.refresh(self._db, self._settings, self._files, self._keyring)
        if not self._keyring.previous and not self._only_the_file_is_left():
            await self._begin()
        retired: list[str] = []
        while self._keyring.previous:
            before, self._unusable = self._rewrapped, []
            for old in self._keyring.previous:
                await self._rewrap_all(old)
            retired += await self._db.write(self._retire)
            left = [kek for kek in self._keyring.previous if kek.id not in retired]
            self._keyring.adopt([self._keyring.current, *left])
            if self._unusable and self._rewrapped == before:
                break  # the rows left cannot be re-wrapped; others are new, and get another round
        await self._turn.keep(at_once=True)
        self._drop_from_file(retired)
        return Rotation(
            current=self._keyring.current.id,
            retired=tuple(retired),
            rewrapped=self._rewrapped,
            unusable=tuple(self._unusable),
        )

    def _in_file(self) -> list[Kek]:
        return read_key_file(self._files, self._settings.key_file) or []

    def _only_the_file_is_left(self) -> bool:
        """Whether a run was cut off after its last transaction: the file holds what the database forgot."""
        present = self._in_file()
        return len(present) > 1 and present[0].id == self._keyring.current.id

    async def _begin(self) -> None:
        now = await self._db.read(lambda tx: tx.now())
        old = self._keyring.current
        if not self._settings.keys.passphrase:
            kek = new_kek(self._random, now)
            check = keys.check_of(kek, None, self._random)
            await self._put_in_file(kek)
        elif old.origin == "passphrase":
            raise StoreRefused(
                "There is no new passphrase to change to: the one that is given is in use already.",
                f"Set {keys.PASSPHRASE} to a new one, and {keys.PREVIOUS} to the one in use.",
            )
        else:
            kek, check = keys.from_passphrase(self._settings.keys.passphrase, self._random, now)
        await self._db.write(lambda tx: self._succeed(tx, old, check))
        self._keyring.adopt([kek, old])

    async def _put_in_file(self, kek: Kek) -> None:
        """Make it the first in the file. Unused ones, left by a run that was cut off before this, go at the end.

        Nothing waits between the proof of the lease and the write: a rival could write the file only in that gap.
        """
        await self._turn.keep(at_once=True)
        rewrite_key_file(self._files, self._settings.key_file, [kek, *self._in_file()])

    def _succeed(self, tx: Tx, old: Kek, check: KekCheck) -> None:
        self._turn.prove(tx)
        secrets.step_down(tx, old.id)
        secrets.add_current(tx, check)

    async def _rewrap_all(self, old: Kek) -> None:
        after = ""
        while page := await self._page(old, after):
            for kept in page:
                await self._rewrap(kept)
            after = page[-1].id

    async def _page(self, old: Kek, after: str) -> list[KeptSecret]:
        return await self._db.read(lambda tx: secrets.under(tx, old.id, after=after, limit=PAGE))

    async def _rewrap(self, kept: KeptSecret) -> None:
        await self._turn.keep()
        try:
            renewed = self._keyring.rewrap(kept.sealed, **secrets.place(kept.id))
        except KeyUnusable:
            self._unusable.append(kept.id)
            return
        if await self._db.write(lambda tx: secrets.rewrap(tx, kept, renewed)):
            self._rewrapped += 1
            self._points("key.rewrapped")

    def _retire(self, tx: Tx) -> list[str]:
        """Forget the old KEKs that nothing needs any more; the audit row stands for the whole rotation."""
        retired = [kek.id for kek in self._keyring.previous if secrets.retire(tx, kek.id)]
        if retired:
            current = self._keyring.current.id
            number = secrets.counts(tx).get(current, 0)
            journal.audit(tx, "key_rotated", current, retired=retired, secrets=number)
        return retired

    def _drop_from_file(self, retired: list[str]) -> None:
        """Keep the KEKs in use in the key file, the current one among them."""
        present = self._in_file()
        in_file = self._keyring.current.origin == "file"
        used = [kek for kek in (self._keyring.current, *self._keyring.previous) if kek.origin == "file"]
        # With a passphrase the file is not ours to tidy, save for the keys that this run replaced.
        known = {*retired, *(kek.id for kek in used)}
        wanted = used if in_file else used + [kek for kek in present if kek.id not in known]
        if [kek.id for kek in present] != [kek.id for kek in wanted]:
            rewrite_key_file(self._files, self._settings.key_file, wanted)
