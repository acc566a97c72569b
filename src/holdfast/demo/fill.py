"""Fills an empty database with the demo, in one transaction; one that is in use is refused."""

from __future__ import annotations

from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from holdfast.demo import story
from holdfast.errors import UserError
from holdfast.operations.installation.secret_store import SecretStore, certificate_key
from holdfast.secret import Secret
from holdfast.store import backdating, journal
from holdfast.store.database import Store
from holdfast.store.tx import Tx


class InUse(UserError):
    status, code = 409, "database-in-use"
    hint = "Name an empty folder: HOLDFAST_STORE_DATA_DIR=./demo holdfast dev --demo"

    def __init__(self) -> None:
        super().__init__("This database is in use: the demo would mix made-up certificates with real ones.")


async def fill(db: Store, secrets: SecretStore) -> bool:
    """Fill the database, unless it is a demo already. Raises InUse."""
    if await db.read(backdating.is_demo):
        return False
    if not await db.read(backdating.is_unused):
        raise InUse
    now = await db.read(lambda tx: tx.now())
    key = ec.generate_private_key(ec.SECP256R1())
    pem = _certificate(key, now)
    sealed = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )

    def write(tx: Tx, secret: str) -> bool:
        told = story.tell(now, secret, pem)
        backdating.insert(tx, told.rows)
        backdating.insert_jobs(tx, told.jobs, now)
        backdating.insert_journal(tx, told.events, told.deeds)
        journal.audit(tx, backdating.MARK, "installation", certificates=story.NUMBER)
        return True

    return await secrets.keep(Secret(sealed), certificate_key("demo"), write)


def _certificate(key: ec.EllipticCurvePrivateKey, now: datetime) -> str:
    """One for all of them: what the demo shows of a chain is a certificate that no client trusts."""
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Holdfast demo, not trusted")])
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=365))
        .sign(key, hashes.SHA256())
    )
    return built.public_bytes(serialization.Encoding.PEM).decode()
