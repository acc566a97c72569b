"""Certificates and keys as servers want them: PEM files, and PKCS#12 (RFC 7292) for those that know nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    KeySerializationEncryption,
    PrivateFormat,
    pkcs12,
)

from holdfast.pki.keys import PrivateKey
from holdfast.pki.refused import ChainRefused
from holdfast.secret import Secret

ROUNDS: Final = 100_000  # of PBKDF2, for each of two boxes and the MAC; old Java takes at most 5 million


def certificates_pem(chain: Sequence[x509.Certificate]) -> bytes:
    """Leaf first, as nginx's ssl_certificate and RFC 8555 §9.1 want them."""
    return b"".join(each.public_bytes(Encoding.PEM) for each in chain)


def to_pkcs12(
    key: PrivateKey,
    chain: Sequence[x509.Certificate],
    passphrase: Secret[str],
    *,
    name: str,
    compatible: bool = False,
) -> Secret[bytes]:
    """A .p12 file with AES-256 and SHA-256; `compatible`: 3DES and SHA-1, for Windows before 2019, Java before 8u301.

    It takes tenths of a second on purpose: call it through aside().
    """
    if not passphrase:
        raise ValueError("a PKCS#12 file needs a passphrase")
    if not chain or chain[0].public_key() != key.public_key():
        raise ChainRefused("chain-other-key", "The first certificate of the chain is not for this key.")
    content = pkcs12.serialize_key_and_certificates(
        name.encode(), key, chain[0], list(chain[1:]) or None, _encryption(passphrase, compatible=compatible)
    )
    return Secret(content)


def _encryption(passphrase: Secret[str], *, compatible: bool) -> KeySerializationEncryption:
    builder = PrivateFormat.PKCS12.encryption_builder()
    if compatible:
        builder = builder.kdf_rounds(2048).key_cert_algorithm(pkcs12.PBES.PBESv1SHA1And3KeyTripleDESCBC)
        builder = builder.hmac_hash(hashes.SHA1())  # noqa: S303  (the point of `compatible`)
    else:
        builder = builder.kdf_rounds(ROUNDS).key_cert_algorithm(pkcs12.PBES.PBESv2SHA256AndAES256CBC)
        builder = builder.hmac_hash(hashes.SHA256())
    return builder.build(passphrase.reveal().encode())
