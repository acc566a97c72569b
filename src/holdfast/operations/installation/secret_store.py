"""Keeps secrets, sealed, together with their owner in one transaction, and opens them by their id."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from holdfast.config import Settings
from holdfast.errors import KeyMissing
from holdfast.keyring import Keyring
from holdfast.operations.installation import keys
from holdfast.ports import Files
from holdfast.secret import Secret
from holdfast.store import secrets
from holdfast.store.database import Store
from holdfast.store.secrets import KeptSecret
from holdfast.store.tx import Tx

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretStore:
    """Follows a rotation that was run elsewhere by itself."""

    db: Store
    settings: Settings
    files: Files
    keyring: Keyring

    async def keep(self, contents: Sequence[Secret[bytes]], owner: Callable[[Tx, list[str]], T]) -> T:
        """Keep secrets and write down who owns them, in one transaction; `owner` is given their ids, in order."""
        try:
            return await self._attempt(contents, owner)
        except KeyMissing:
            await keys.refresh(self.db, self.settings, self.files, self.keyring)
            return await self._attempt(contents, owner)

    async def _attempt(self, contents: Sequence[Secret[bytes]], owner: Callable[[Tx, list[str]], T]) -> T:
        kept = [keys.sealed(self.keyring, each) for each in contents]

        def both(tx: Tx) -> T:
            for each in kept:
                secrets.put(tx, each)
            return owner(tx, [each.id for each in kept])

        return await self.db.write(both)

    async def seal(self, content: Secret[bytes]) -> KeptSecret:
        """Seal a secret that the caller writes in its own transaction, at once, by secrets.put."""
        await keys.refresh(self.db, self.settings, self.files, self.keyring)  # under the key that is current now
        return keys.sealed(self.keyring, content)

    async def reveal(self, secret_id: str) -> Secret[bytes]:
        """LookupError if it is gone."""
        return await keys.reveal(self.db, self.settings, self.files, self.keyring, secret_id)
