"""Certificates that were issued: collect, revoke, and when to renew (RFC 8555 §7.4.2, §7.6; RFC 9773)."""

from __future__ import annotations

from typing import Final

from cryptography import x509

from holdfast.core.ca import Mode
from holdfast.core.problem import AcmeError
from holdfast.operations import revocation
from holdfast.operations.authorities import Authority
from holdfast.operations.desk import Desk, Requester, require
from holdfast.operations.revocation import Standing
from holdfast.pki import ari, keys
from holdfast.pki.crl import Reason
from holdfast.store import acme_authzs, ca_certificates
from holdfast.store.ca_certificates import Issued
from holdfast.store.marks import brief
from holdfast.store.tx import Tx

RENEWAL_RETRY_AFTER: Final = 6 * 3600  # seconds


async def download(desk: Desk, who: Requester, certificate_id: str) -> Issued:
    def look(tx: Tx) -> Issued:
        require(tx, who)
        found = ca_certificates.get(tx, certificate_id)
        if found is None:
            raise AcmeError.malformed("There is no such certificate.", status=404)
        if found.account != who.account:
            raise AcmeError.unauthorized("The certificate belongs to another account.")
        return found

    return await desk.db.read(brief(look))


def fetched(desk: Desk, account: str, certificate_id: str) -> None:
    """Its bytes were sent. Evidence, written with more of its kind, off the path of any request."""
    desk.delivered("fetched", certificate_id, account)


def acknowledged(desk: Desk, account: str, certificate_id: str) -> None:
    """The client came back with the nonce of the download: it has read at least the headers of that reply."""
    desk.delivered("acknowledged", certificate_id, account)


async def revoke(
    desk: Desk, ca: Authority, der: bytes, reason: int | None, *, who: Requester | None, key_spki: bytes | None
) -> None:
    """Revoke for whoever may (§7.6): its account, an account that has proved all its names, or its own key."""
    certificate = _parsed(der)
    why = _reason(reason)
    job = desk.random.new_id("job")

    def write(tx: Tx) -> None:
        if who is not None:
            require(tx, who)
        found = ca_certificates.by_serial(tx, ca.id, f"{certificate.serial_number:x}")
        if found is None or found.der != der:
            raise AcmeError.malformed("This CA did not issue that certificate.", status=404)
        by_key = key_spki is not None and keys.spki_sha256(key_spki).hex() == found.spki_sha256
        standing = Standing.KEY if by_key else None if who is None else _standing(tx, ca, who, found)
        if standing is None:
            raise AcmeError.unauthorized("Neither this account nor this key may revoke that certificate.")
        actor = f"acme:{who.account}" if who is not None else "acme:certificate-key"
        if not revocation.revoke(tx, found, why, actor=actor, job=job, standing=standing):
            raise AcmeError.already_revoked("That certificate is revoked already.")
        if by_key:
            ca_certificates.deliver(tx, "acknowledged", [(found.id, found.account)])

    await desk.db.write(write)


def _standing(tx: Tx, ca: Authority, who: Requester, found: Issued) -> Standing | None:
    if found.account == who.account:
        return Standing.OWNER
    trusted = ca.options.mode is Mode.TRUST
    proved = acme_authzs.holds_all(tx, who.account, found.identifiers, tx.now(), trusted=trusted)
    return Standing.NAMES if proved else None


def _parsed(der: bytes) -> x509.Certificate:
    try:
        return x509.load_der_x509_certificate(der)
    except ValueError:
        raise AcmeError.malformed("The certificate cannot be read.") from None


def _reason(reason: int | None) -> Reason:
    try:
        return Reason(0 if reason is None else reason)
    except ValueError:
        allowed = ", ".join(str(each.value) for each in Reason)
        raise AcmeError.bad_revocation_reason(f"A reason is one of {allowed}.") from None


async def renewal_info(desk: Desk, ca: Authority, cert_id: str) -> ari.Window:
    """When this certificate should be renewed; anyone may ask (RFC 9773 §4.1)."""
    try:
        key_identifier, serial = ari.parse_cert_id(cert_id)
    except ValueError as error:
        raise AcmeError.malformed(f"Not a certificate identifier: {error}.") from None
    found = None
    if key_identifier == ca.issuer.key_identifier:
        found = await desk.db.read(lambda tx: ca_certificates.by_serial(tx, ca.id, serial))
    if found is None:
        raise AcmeError.malformed("This CA did not issue that certificate.", status=404)
    return ari.window(found.not_before, found.not_after, revoked_at=found.revoked_at)
