"""Keys and certificates of the simulator: true ones, that pass every check, made of keys which are always the same.

Making a key pair draws from the machine's own source, so that two runs of a seed would differ; and it is dear.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from holdfast.core.key_kind import KeyKind
from holdfast.pki.keys import PrivateKey
from tests.simulation.clockwork import START

KEYS: Final = 7  # leaf keys in turn: two certificates that follow each other never have the same one
_YEARS: Final = timedelta(days=7300)
_NOBODY: Final = x509.Name([])
_SHA256: Final = hashes.SHA256()


class Keysmith:
    """Gives out P-256 keys in turn, whatever kind is asked for."""

    def __init__(self, first: int) -> None:
        self._given = first

    async def __call__(self, kind: KeyKind) -> PrivateKey:
        self._given += 1
        return LEAF_KEYS[self._given % KEYS]


class Certifier:
    """Signs what a CA issues. The name of the CA is in every certificate."""

    def __init__(self, name: str) -> None:
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.derive_private_key(4711, ec.SECP256R1())
        self._public = self._key.public_key()
        is_ca = _extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self._above = self._signed(self._public, 1, START - _YEARS, START + _YEARS, self.name, [is_ca])
        self._identifier = _extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._public), critical=False)

    def sign(self, content: bytes, *, serial: int, begins: datetime, ends: datetime, other_key: bool = False) -> bytes:
        """The chain for a CSR, in PEM; with a key that nobody asked for, if that is wanted."""
        request = x509.load_der_x509_csr(content)
        names = request.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        key = self._public if other_key else request.public_key()
        return self._signed(key, serial, begins, ends, _NOBODY, [names, self._identifier]) + self._above

    def grant(self, name: str, key: object, *, serial: int, begins: datetime, ends: datetime) -> bytes:
        """The same without a CSR, for what was issued before the play began."""
        names = _extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=True)
        return self._signed(key, serial, begins, ends, _NOBODY, [names, self._identifier]) + self._above

    def _signed(
        self, key: object, serial: int, begins: datetime, ends: datetime, subject: x509.Name, extensions: list[Any]
    ) -> bytes:
        """All at once: each step of a builder makes another builder."""
        builder = x509.CertificateBuilder(
            issuer_name=self.name,
            subject_name=subject,
            public_key=key,  # type: ignore[arg-type]
            serial_number=serial,
            not_valid_before=begins.replace(tzinfo=None),
            not_valid_after=ends.replace(tzinfo=None),
            extensions=extensions,
        )
        signed = builder.sign(self._key, _SHA256, ecdsa_deterministic=True)  # what is told of it has its digest
        return signed.public_bytes(Encoding.PEM)


def _extension(value: Any, *, critical: bool) -> x509.Extension[Any]:
    return x509.Extension(value.oid, critical, value)


LEAF_KEYS: Final = [ec.derive_private_key(number + 1, ec.SECP256R1()) for number in range(KEYS)]
