"""Keeps secrets, sealed, together with their owner in one transaction, and opens them by their id."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from holdfast.config import Settings
from holdfast.errors import KeyMissing
from holdfast.keyring import Keyring, SecretOwner
from holdfast.operations.installation import keys
from holdfast.pki import keys as pki_keys
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

    async def keep(self, content: Secret[bytes], owner: SecretOwner, write: Callable[[Tx, str], T]) -> T:
        """Keep a secret and write down who owns it, in one transaction; `write` is given its id."""
        try:
            return await self._attempt(content, owner, write)
        except KeyMissing:
            await keys.refresh(self.db, self.settings, self.files, self.keyring)
            return await self._attempt(content, owner, write)

    async def _attempt(self, content: Secret[bytes], owner: SecretOwner, write: Callable[[Tx, str], T]) -> T:
        kept = keys.sealed(self.keyring, content, owner)

        def both(tx: Tx) -> T:
            secrets.put(tx, kept)
            return write(tx, kept.id)

        return await self.db.write(both)

    async def seal(self, content: Secret[bytes], owner: SecretOwner) -> KeptSecret:
        """Seal a secret that the caller writes in its own transaction, at once, by secrets.put."""
        await keys.refresh(self.db, self.settings, self.files, self.keyring)  # under the key that is current now
        return keys.sealed(self.keyring, content, owner)

    async def reveal(self, secret_id: str, owner: SecretOwner) -> Secret[bytes]:
        """LookupError if it is gone, KeyUnusable if it is not this owner's."""
        return await keys.reveal(self.db, self.settings, self.files, self.keyring, secret_id, owner)


# ── Owners ──


NO_KEY: Final = Secret(b"")  # kept where a key would be, for a certificate whose key its owner has: it came with a CSR


def certificate_key(certificate: str) -> SecretOwner:
    """Of all versions of a certificate, and of the issuances that lead to them."""
    return SecretOwner("certificates", certificate, "key")


def account_key(account: str) -> SecretOwner:
    return SecretOwner("issuer_accounts", account, "key")


def ca_key(ca: str) -> SecretOwner:
    return SecretOwner("cas", ca, "key")


def root_key(root: x509.Certificate) -> SecretOwner:
    """Of every CA below this root."""
    spki = root.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return SecretOwner("cas", pki_keys.spki_sha256(spki).hex(), "root_key")


def eab_mac(kid: str) -> SecretOwner:
    return SecretOwner("eab_keys", kid, "mac")


def totp_key(person: str) -> SecretOwner:
    return SecretOwner("people", person, "totp")


def listener_key(host: str) -> SecretOwner:
    return SecretOwner("listener_certificates", host, "key")


def agent_signer_key() -> SecretOwner:
    """Of the key that signs work for agents."""
    return SecretOwner("agent_signer", "1", "key")
