"""Keys not to be used: compromised ones by nobody, and those of accounts in no certificate (RFC 8555 §11.1)."""

from __future__ import annotations

from holdfast.core.problem import AcmeError
from holdfast.operations.desk import Desk
from holdfast.pki import csr, keys
from holdfast.pki.keys import PublicKey
from holdfast.pki.thumbprint import thumbprint
from holdfast.store import acme_accounts, ca_certificates
from holdfast.store.tx import Tx


def check_certificate_key(tx: Tx, request: csr.Request) -> None:
    """Of any account here: what a TLS server can be made to sign must not speak for an account."""
    if ca_certificates.blocked(tx, keys.spki_sha256(request.spki).hex()):
        raise AcmeError.bad_csr("This key is blocked: it is known to be compromised.")
    if acme_accounts.has_key(tx, thumbprint(request.public_key)):
        raise AcmeError.bad_csr("The key of a certificate must not be the key of an account.")


async def check_account_key(desk: Desk, key: PublicKey) -> None:
    """Before an account gets this key (§6.2)."""
    fingerprint = keys.spki_sha256(key).hex()
    if await desk.db.read(lambda tx: ca_certificates.blocked(tx, fingerprint)):
        raise AcmeError.bad_public_key("This key is blocked: it is known to be compromised. Use another.")
