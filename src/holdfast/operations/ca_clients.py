"""What an operator does about the clients of a CA: let them in, look at them, stop them, revoke for them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

from holdfast.core.acme import Account, AccountState
from holdfast.errors import UserError
from holdfast.operations import revocation
from holdfast.operations.ca import CaRefused, NoSuchCa, check_pattern
from holdfast.operations.vault import Vault
from holdfast.pki import names
from holdfast.pki.crl import Reason
from holdfast.pki.refused import NameRefused
from holdfast.ports import Random
from holdfast.secret import Secret
from holdfast.store import acme_accounts, acme_limits, ca_certificates, cas, eab_keys, journal
from holdfast.store.ca_certificates import Issued
from holdfast.store.database import Store
from holdfast.store.eab_keys import EabKey
from holdfast.store.tx import Tx

MAC_SIZE: Final = 32  # octets: what HS256 can use (RFC 8555 §7.3.4)
MAX_NOTE: Final = 200


class NotFound(UserError):
    status, code = 404, "not-found"

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(f"There is no {what}.")
        self.hint = hint


class AlreadySo(UserError):
    status, code, hint = 409, "already-so", "There is nothing left to do."


# ── Keys that let accounts in ──


@dataclass(frozen=True, slots=True)
class NewEabKey:
    """A key and its MAC key, which is shown this once: later it can only be used, not read."""

    key: EabKey
    mac: Secret[bytes]


async def create_eab_key(
    vault: Vault, ca: str, *, names: Sequence[str], note: str, lives_for: timedelta | None, actor: str
) -> NewEabKey:
    """One key lets one account in; `names` are what a CA that trusts gives it without a challenge."""
    for pattern in names:
        check_pattern(pattern)
    if len(note) > MAX_NOTE or not note.isprintable():
        raise CaRefused(f"A note has at most {MAX_NOTE} printable characters.")
    random = vault.keyring.random
    kid, mac = random.new_id("eab"), Secret(random.token(MAC_SIZE))

    def owner(tx: Tx, ids: list[str]) -> EabKey:
        if cas.get(tx, ca) is None:
            raise NoSuchCa(ca)
        key = EabKey(
            kid=kid,
            ca=ca,
            secret_id=ids[0],
            names=tuple(pattern.lower() for pattern in names),
            note=note,
            created_at=tx.now(),
            expires_at=None if lives_for is None else tx.now() + lives_for,
        )
        eab_keys.insert(tx, key)
        facts = {"ca": ca, "names": list(key.names), "note": note}
        journal.audit(tx, "eab_key_created", kid, actor=actor, after={"good": True, **facts}, **facts)
        return key

    return NewEabKey(await vault.keep([mac], owner), mac)


def eab_key_of(tx: Tx, kid: str) -> EabKey:
    """One that can be revoked."""
    found = eab_keys.get(tx, kid)
    if found is None:
        raise NotFound(f"EAB key {kid}", "'holdfast ca eab list' shows those there are.")
    if found.revoked_at is not None:
        raise AlreadySo(f"EAB key {kid} is revoked already.")
    return found


async def revoke_eab_key(db: Store, kid: str, *, actor: str) -> None:
    """No account can be bound with it any more. One that is bound stays: revoke the account to end it."""

    def write(tx: Tx) -> None:
        eab_key_of(tx, kid)
        eab_keys.revoke(tx, kid)
        journal.audit(tx, "eab_key_revoked", kid, actor=actor, before={"good": True}, after={"good": False})

    await db.write(write)


# ── Accounts and names ──


async def revoke_account(db: Store, account: str, *, actor: str) -> None:
    """End an account for good; its certificates stay as they are."""

    def write(tx: Tx) -> None:
        found = revocable(tx, account)
        if not acme_accounts.end(tx, account, "revoked"):
            raise AlreadySo(f"Account {account} is {found.state} already.")
        states = {"before": {"state": found.state}, "after": {"state": "revoked"}}
        journal.audit(tx, "account_revoked", account, actor=actor, ca=found.ca, **states)

    await db.write(write)


def account_of(tx: Tx, account: str) -> Account:
    found = acme_accounts.get(tx, account)
    if found is None:
        raise NotFound(f"account {account}", "'holdfast ca accounts' shows those there are.")
    return found


def revocable(tx: Tx, account: str) -> Account:
    """An account of a client. Ours are no one's to lose: they have no key, and the next order would go on with it."""
    found = account_of(tx, account)
    if found.internal:
        problem = f"Account {account} is this installation's own: its certificates come by it, and no client uses it."
        raise CaRefused(problem, f"To take no more orders: holdfast ca close {found.ca}")
    if found.state is not AccountState.VALID:
        raise AlreadySo(f"Account {account} is {found.state} already.")
    return found


def pausable(name: str) -> str:
    """As orders spell it: without the "*." of a wildcard, which is paused with its name; refused if none ever would."""
    base = name.strip().removeprefix("*.")
    try:
        return names.dns_name(base, wildcard=False)
    except NameRefused as refused:
        try:
            return names.ip_address(base)
        except NameRefused:
            raise refused from None


async def pause(db: Store, account: str, name: str, *, actor: str) -> str:
    """Take no more orders for this name of this account until somebody unpauses it."""
    wanted = pausable(name)

    def write(tx: Tx) -> None:
        account_of(tx, account)
        acme_limits.pause(tx, account, wanted)
        states = {"before": {"paused": False}, "after": {"paused": True}}
        journal.audit(tx, "name_paused", wanted, actor=actor, account=account, **states)

    await db.write(write)
    return wanted


async def unpause(db: Store, account: str, name: str, *, actor: str) -> str:
    """Let orders for this name through again, with its failures forgotten."""

    def write(tx: Tx) -> str:
        wanted = next((each for each in _spellings(name) if acme_limits.unpause(tx, account, each)), None)
        if wanted is None:
            problem = f"pause of {name} for account {account}"
            raise NotFound(problem, "'holdfast ca pauses' shows those there are.")
        states = {"before": {"paused": True}, "after": {"paused": False}}
        journal.audit(tx, "name_unpaused", wanted, actor=actor, account=account, **states)
        return wanted

    return await db.write(write)


def _spellings(name: str) -> list[str]:
    """As it is paused, and as it is listed if it was paused before names were looked at."""
    try:
        return [pausable(name), name.lower()]
    except NameRefused:
        return [name.lower()]


# ── Certificates and keys ──


async def revoke_certificate(
    db: Store, random: Random, ca: str, serial: str, reason: Reason, *, actor: str
) -> Issued:  # fmt: skip
    """Revoke by serial, whoever it belongs to; it is on a list within a minute."""
    job = random.new_id("job")

    def write(tx: Tx) -> Issued:
        found = certificate_of(tx, ca, serial, reason)
        if not revocation.revoke(tx, found, reason, actor=actor, job=job, standing=revocation.Standing.KEY):
            raise _revoked_already(found)
        return found

    return await db.write(write)


def certificate_of(tx: Tx, ca: str, serial: str, reason: Reason) -> Issued:
    """One that can be revoked; one that is, only for a key of which is known by now that it is compromised."""
    wanted = serial_of(serial)
    if cas.get(tx, ca) is None:
        raise NoSuchCa(ca)
    found = ca_certificates.by_serial(tx, ca, wanted)
    if found is None:
        raise NotFound(f"certificate {wanted} of CA {ca!r}", "'holdfast ca certificates' shows those there are.")
    if found.revoked_at is not None and (reason is not Reason.KEY_COMPROMISE or found.reason == int(reason)):
        raise _revoked_already(found)
    return found


def also_revoked(tx: Tx, found: Issued, reason: Reason) -> list[str]:
    """The serials of others with the same key, which end with it when the key is compromised."""
    if reason is not Reason.KEY_COMPROMISE:
        return []
    others = ca_certificates.good_or_milder(tx, found.spki_sha256, int(reason))
    return [each.serial for each in others if each.id != found.id]


def _revoked_already(found: Issued) -> AlreadySo:
    return AlreadySo(f"Certificate {found.serial} is revoked already.")


def serial_of(text: str) -> str:
    """As OpenSSL, browsers or we write it: with colons, with leading zeros, in capitals."""
    plain = text.replace(":", "").strip().lower().removeprefix("0x")
    if not re.fullmatch(r"[0-9a-f]{1,42}", plain):
        raise CaRefused(f"{text!r:.60} is no serial number.", "Write it in hex, such as 5f2c…, colons or not.")
    return f"{int(plain, 16):x}"


def blockable(tx: Tx, key: str) -> str:
    """The fingerprint of a key that is not blocked yet."""
    fingerprint = _fingerprint(key)
    if ca_certificates.blocked(tx, fingerprint):
        raise AlreadySo(f"Key {fingerprint} is blocked already.")
    return fingerprint


async def block_key(db: Store, key: str, why: str, *, actor: str) -> str:
    """Never issue for this public key again; `key` is its SHA-256 in hex, or a certificate or key in PEM."""

    def write(tx: Tx) -> str:
        fingerprint = blockable(tx, key)
        ca_certificates.block_key(tx, fingerprint, why)
        journal.audit(tx, "key_blocked", fingerprint, actor=actor, after={"blocked": True}, why=why)
        return fingerprint

    return await db.write(write)


def _fingerprint(text: str) -> str:
    if re.fullmatch(r"[0-9a-fA-F]{64}", text.strip()):
        return text.strip().lower()
    try:
        key: PublicKeyTypes
        if "BEGIN CERTIFICATE REQUEST" in text:
            key = x509.load_pem_x509_csr(text.encode()).public_key()
        elif "BEGIN CERTIFICATE" in text:
            key = x509.load_pem_x509_certificate(text.encode()).public_key()
        else:
            key = load_pem_public_key(text.encode())
        return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()
    except ValueError:
        hint = "Give a certificate, a request or a public key in PEM, or the SHA-256 of its SubjectPublicKeyInfo."
        raise CaRefused("This is no public key.", hint) from None
