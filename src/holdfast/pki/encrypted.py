"""Private keys under a passphrase: PKCS#8 with scrypt and AES-256-CBC, which OpenSSL reads, too.

`cryptography` writes such files with 2 048 rounds of PBKDF2, which a graphics card tries by the million a
second. A CA key that is put away for years deserves the slow function (RFC 7914 §7 for its encoding).
"""

from __future__ import annotations

import base64
import hashlib
from typing import Final

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.padding import PKCS7
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from holdfast.pki.der import integer, object_identifier, octet_string, sequence
from holdfast.pki.keys import PrivateKey
from holdfast.ports import Random
from holdfast.secret import Secret

# 16 MiB five times over, about 0.3 s for a guess. OpenSSL refuses to use more than 32 MiB, hence p and not n.
SCRYPT: Final = {"n": 2**14, "r": 8, "p": 5}
_KEY_SIZE: Final = 32
_PBES2: Final = object_identifier("1.2.840.113549.1.5.13")
_SCRYPT: Final = object_identifier("1.3.6.1.4.1.11591.4.11")
_AES_256_CBC: Final = object_identifier("2.16.840.1.101.3.4.1.42")


def to_encrypted_pem(key: PrivateKey, passphrase: Secret[str], random: Random) -> bytes:
    """What keys.from_pem opens again with the same passphrase."""
    if not passphrase:
        raise ValueError("an empty passphrase protects nothing")
    salt, start = random.token(16), random.token(16)
    text = passphrase.reveal().encode("utf-8", "surrogatepass")
    secret = hashlib.scrypt(text, salt=salt, **SCRYPT, maxmem=2**26, dklen=_KEY_SIZE)
    der = sequence(sequence(_PBES2, _parameters(salt, start)), octet_string(_encrypted(key, secret, start)))
    return _pem("ENCRYPTED PRIVATE KEY", der)


def _parameters(salt: bytes, start: bytes) -> bytes:
    costs = [integer(SCRYPT["n"]), integer(SCRYPT["r"]), integer(SCRYPT["p"]), integer(_KEY_SIZE)]
    return sequence(
        sequence(_SCRYPT, sequence(octet_string(salt), *costs)), sequence(_AES_256_CBC, octet_string(start))
    )


def _encrypted(key: PrivateKey, secret: bytes, start: bytes) -> bytes:
    content = key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    padding = PKCS7(128).padder()
    encryptor = Cipher(algorithms.AES(secret), modes.CBC(start)).encryptor()
    return encryptor.update(padding.update(content) + padding.finalize()) + encryptor.finalize()


def _pem(label: str, der: bytes) -> bytes:
    body = base64.b64encode(der).decode()
    lines = [body[at : at + 64] for at in range(0, len(body), 64)]
    return "\n".join([f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""]).encode()
