"""Certificates that our CAs have issued, and public keys that they never issue for again."""

from __future__ import annotations

import hashlib
import re
from datetime import datetime
from typing import Annotated

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key
from pydantic import BaseModel, Field

from holdfast.core.own_ca.ca import IssuedCertificate
from holdfast.core.revocation_reason import RevocationReason
from holdfast.core.witness import RevokedSerial
from holdfast.operations.access import Action
from holdfast.operations.context import Context
from holdfast.operations.inputs import (
    Input,
    NoteText,
    Option,
    Page,
    Paged,
    ReasonName,
    from_row,
    paged,
)
from holdfast.operations.operation import operation
from holdfast.operations.own_ca import manage as making
from holdfast.operations.own_ca import revocation
from holdfast.operations.own_ca.cas import reason_of
from holdfast.operations.own_ca.clients import AlreadySo, NotFound
from holdfast.operations.own_ca.manage import CaRefused, serial_of
from holdfast.operations.scopes import INSTALLATION
from holdfast.store import journal
from holdfast.store.own_ca import certificates, lost
from holdfast.store.tx import Row, Tx


class ListIssued(Paged):
    ca: str = Field(max_length=100, description="The name of the CA.")


class RevokeIssued(Input):
    ca: Annotated[str, Option(flag="--ca")] = Field(max_length=100, description="The CA that issued it.")
    serial: str = Field(max_length=200, description="The serial number, in hex.")
    reason: ReasonName = Field(description="Why.")


class IssuedCertificateView(BaseModel):
    certificate: str
    serial: str
    names: list[str]
    account: str
    expires_at: datetime | None = Field(description="null: only its serial number is known.")
    delivery: str
    revoked_at: datetime | None


class RevokedCertificate(IssuedCertificateView):
    reason: ReasonName
    also: list[str] = Field(
        description="The serials of others with the same key, which are revoked with it when the key is compromised."
    )


def _certificate(found: IssuedCertificate) -> IssuedCertificateView:
    names = [each.value for each in found.identifiers]
    return from_row(IssuedCertificateView, found, certificate=found.id, names=names, expires_at=found.not_after)


@operation(
    "issued.list",
    "GET /cas/{ca}/certificates",
    command="ca certificates",
    action=Action.SEE_CAS,
    scope=INSTALLATION,
    offline=True,
    example="holdfast ca certificates internal",
)
def list_issued(tx: Tx, ctx: Context, asked: ListIssued) -> Page[IssuedCertificateView]:
    """List the certificates that a CA of ours has issued, the oldest first."""
    making.found(tx, asked.ca)
    read = lambda after, most: certificates.page(tx, ca=asked.ca, after=after, limit=most)  # noqa: E731
    return paged(asked, read, lambda found: found.id, _certificate)


@operation(
    "issued.revoke",
    "POST /cas/{ca}/certificates/{serial}/revoke",
    command="ca revoke",
    action=Action.REVOKE_ISSUED,
    scope=INSTALLATION,
    destructive=True,
    asks="The certificate {serial} of {names} is revoked for good, and others of the same key: {also}.",
    offline=True,
    example="holdfast ca revoke 5f2c --ca internal --reason superseded",
)
def revoke(tx: Tx, ctx: Context, asked: RevokeIssued) -> RevokedCertificate:
    """Revoke a certificate that a CA of ours has issued. It is on the CRL within a minute."""
    reason = reason_of(asked.reason)
    if (row := lost.serial_known(tx, asked.ca, serial_of(asked.serial))) is not None:
        return _revoked_by_number(tx, ctx, asked, row)
    found = _revocable_certificate(tx, asked.ca, asked.serial, reason)
    also = _also_revoked(tx, found, reason)
    standing = revocation.RevocationRight.KEY
    if not revocation.revoke(tx, found, reason, actor=ctx.actor, job=ctx.ids.new("job"), standing=standing):
        raise _revoked_already(found)
    after = certificates.get(tx, found.id) or found
    return RevokedCertificate(**dict(_certificate(after)), reason=asked.reason, also=also)


def _revoked_by_number(tx: Tx, ctx: Context, asked: RevokeIssued, row: Row) -> RevokedCertificate:
    """Nothing else is known of it since commits were lost; it is on every CRL of its CA."""
    reason, now, serial = reason_of(asked.reason), tx.now(), str(row["serial"])
    if not lost.revoke_serial(tx, asked.ca, serial, reason.number, now):
        raise AlreadySo(f"Certificate {serial} is revoked already.")
    tx.facts.append(RevokedSerial(ca=asked.ca, serial=serial, reason=reason.number, at=now, actor=ctx.actor))
    for shard in range(making.found(tx, asked.ca).options.shards):
        revocation.hurry(tx, asked.ca, shard, ctx.ids.new("job"))
    journal.audit(tx, "certificate_revoked", serial, actor=ctx.actor, ca=asked.ca, serial=serial,
                  reason=reason.name.lower())  # fmt: skip
    return RevokedCertificate(certificate="", serial=serial, names=[], account="", expires_at=None, delivery="",
                              revoked_at=now, reason=asked.reason, also=[])  # fmt: skip


def _revocable_certificate(tx: Tx, ca: str, serial: str, reason: RevocationReason) -> IssuedCertificate:
    """A certificate that is revoked can be revoked again only because its key is known to be compromised by now."""
    wanted = serial_of(serial)
    making.found(tx, ca)
    found = certificates.by_serial(tx, ca, wanted)
    if found is None:
        raise NotFound(f"certificate {wanted} of CA {ca!r}", f"See what there is: holdfast ca certificates {ca}")
    if found.revoked_at is not None and (
        reason is not RevocationReason.KEY_COMPROMISE or found.reason == reason.number
    ):
        raise _revoked_already(found)
    return found


def _also_revoked(tx: Tx, found: IssuedCertificate, reason: RevocationReason) -> list[str]:
    if reason is not RevocationReason.KEY_COMPROMISE:
        return []
    others = certificates.good_or_milder(tx, found.spki_sha256, reason.number)
    return [each.serial for each in others if each.id != found.id]


def _revoked_already(found: IssuedCertificate) -> AlreadySo:
    return AlreadySo(f"Certificate {found.serial} is revoked already.")


# ── Keys ──


class BlockKey(Input):
    key: Annotated[str, Option(argument=True, read="key")] = Field(
        max_length=20_000, description="The SHA-256 of a public key in hex, or a certificate or public key in PEM."
    )
    why: NoteText = Field(description="For the audit log.")


class BlockedKey(BaseModel):
    key: str = Field(description="The SHA-256 of the public key.")


@operation(
    "keys.block",
    "POST /acme/blocked-keys",
    command="ca block-key",
    action=Action.CHANGE_ACME_CLIENTS,
    scope=INSTALLATION,
    status=201,
    destructive=True,
    offline=True,
    example="holdfast ca block-key leaked.pem --why 'found in a public repository'",
)
def block_key(tx: Tx, ctx: Context, asked: BlockKey) -> BlockedKey:
    """Block a public key: our CAs never issue for it again."""
    fingerprint = _fingerprint(asked.key)
    if certificates.blocked(tx, fingerprint):
        raise AlreadySo(f"Key {fingerprint} is blocked already.")
    certificates.block_key(tx, fingerprint, asked.why)
    journal.audit(tx, "key_blocked", fingerprint, actor=ctx.actor, after={"blocked": True}, why=asked.why)
    return BlockedKey(key=fingerprint)


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
