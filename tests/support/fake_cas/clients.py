"""Client certificates: a CA that a fake believes, and the key pairs that it is shown, right and wrong."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)


def client_roots(folder: Path) -> Path:
    """The CA of a fake's clients, made once for a folder, with one good pair: client.pem and client.key."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "clients.pem"
    if not path.exists():
        key = ec.generate_private_key(ec.SECP256R1())
        (folder / "clients.key").write_bytes(_key_pem(key))
        path.write_bytes(_certificate("Clients", key, "Clients", key, ca=True).public_bytes(Encoding.PEM))
        a_pair(folder, "client")
    return path


def a_pair(folder: Path, name: str, *, days: float = 30, stranger: bool = False) -> tuple[Path, Path]:
    """A certificate and its key; negative days: it is over. A stranger's CA has the same name, and another key."""
    key, above = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    if not stranger:
        loaded = load_pem_private_key((folder / "clients.key").read_bytes(), None)
        assert isinstance(loaded, ec.EllipticCurvePrivateKey)
        above = loaded
    certificate = _certificate(name, key, "Clients", above, days=days)
    files = folder / f"{name}.pem", folder / f"{name}.key"
    files[0].write_bytes(certificate.public_bytes(Encoding.PEM))
    files[1].write_bytes(_key_pem(key))
    return files


def as_pkcs12(pair: tuple[Path, Path], password: str) -> Path:
    certificate = x509.load_pem_x509_certificate(pair[0].read_bytes())
    key = load_pem_private_key(pair[1].read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    path = pair[0].with_suffix(".p12")
    sealed = BestAvailableEncryption(password.encode())
    path.write_bytes(pkcs12.serialize_key_and_certificates(b"client", key, certificate, None, sealed))
    return path


def sealed_key(pair: tuple[Path, Path], password: str) -> Path:
    key = load_pem_private_key(pair[1].read_bytes(), None)
    path = pair[1].with_suffix(".sealed")
    sealed = BestAvailableEncryption(password.encode())
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, sealed))
    return path


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    above: ec.EllipticCurvePrivateKey,
    *,
    days: float = 30,
    ca: bool = False,
) -> x509.Certificate:
    now = datetime.now(UTC)
    above_name, own_name = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in (issuer, name))
    builder = x509.CertificateBuilder(above_name, own_name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - 10 * DAY).not_valid_after(now + days * DAY)
    return builder.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True).sign(
        above, hashes.SHA256()
    )
