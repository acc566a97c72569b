"""Who signs for a CA: a Protocol of one method, and the back end that holds the key in memory (pkcs11.py is the other).

A signer sees finished bytes and returns a signature. So a device needs no notion of certificates, and what was
linted is, byte for byte, what is signed.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Protocol

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

from holdfast.pki import keys
from holdfast.pki.keys import KeyKind, PrivateKey, PublicKey
from holdfast.pki.refused import KeyRefused, SignerRefused
from holdfast.secret import Secret


class Algorithm(StrEnum):
    """How certificates are signed; fixed by the kind of the CA's key."""

    ECDSA_SHA256 = "ecdsa-sha256"
    ECDSA_SHA384 = "ecdsa-sha384"
    RSA_SHA256 = "rsa-sha256"  # PKCS#1 v1.5: unlike PSS, the same content gives the same signature
    ED25519 = "ed25519"


DIGESTS: Final[dict[Algorithm, hashes.SHA256 | hashes.SHA384 | None]] = {
    Algorithm.ECDSA_SHA256: hashes.SHA256(),
    Algorithm.ECDSA_SHA384: hashes.SHA384(),
    Algorithm.RSA_SHA256: hashes.SHA256(),
    Algorithm.ED25519: None,  # it brings its own
}


class Signer(Protocol):
    """A CA key. Raises TryLater if it cannot be reached now, SignerRefused if a person must act."""

    @property
    def public_key(self) -> PublicKey: ...

    @property
    def quick(self) -> bool:
        """Whether a signature takes well under a millisecond, so that it may be made on the event loop."""

    def sign(self, content: bytes) -> bytes:
        """Sign with the algorithm that algorithm_of(public_key) names. ECDSA signatures are in DER.

        Devices draw a number for ECDSA: the same content gives another signature then, and the first one stored counts.
        """


def algorithm_of(key: PublicKey) -> Algorithm:
    match keys.kind_of(key):
        case KeyKind.EC_P256:
            return Algorithm.ECDSA_SHA256
        case KeyKind.EC_P384:
            return Algorithm.ECDSA_SHA384
        case KeyKind.ED25519:
            return Algorithm.ED25519
        case _ if isinstance(key, rsa.RSAPublicKey):
            return Algorithm.RSA_SHA256
    raise SignerRefused("signer-key", "A CA signs with EC P-256 or P-384, RSA or Ed25519.")


class KeySigner:
    """A private key in the memory of this process, from a file or from the keyring."""

    def __init__(self, key: PrivateKey) -> None:
        self._key = key
        self._public_key = key.public_key()
        self._algorithm = algorithm_of(self._public_key)

    def __repr__(self) -> str:
        return f"KeySigner({self._algorithm})"

    @property
    def public_key(self) -> PublicKey:
        return self._public_key

    @property
    def quick(self) -> bool:
        return self._algorithm in {Algorithm.ECDSA_SHA256, Algorithm.ED25519}  # P-384 and RSA take 1 to 5 ms

    def sign(self, content: bytes) -> bytes:
        match self._key:
            case ec.EllipticCurvePrivateKey(curve=curve):
                return self._key.sign(content, ec.ECDSA(_curve_digest(curve), deterministic_signing=True))
            case rsa.RSAPrivateKey():
                return self._key.sign(content, padding.PKCS1v15(), hashes.SHA256())
            case _:
                return self._key.sign(content)


def _curve_digest(curve: ec.EllipticCurve) -> hashes.SHA256 | hashes.SHA384:
    return hashes.SHA384() if curve.key_size == 384 else hashes.SHA256()


def proof_of(key: PrivateKey, content: bytes) -> bytes:
    """A signature with SHA-256, whatever the curve: for CAs that want the certificate's key to sign something."""
    if isinstance(key, rsa.RSAPrivateKey):
        return key.sign(content, padding.PKCS1v15(), hashes.SHA256())
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return key.sign(content, ec.ECDSA(hashes.SHA256()))
    return key.sign(content)


def open_signer(pem: bytes | Secret[bytes], passphrase: Secret[str] | None = None) -> KeySigner:
    """The signer of a key file, encrypted or (out of the keyring) not."""
    try:
        key = keys.from_pem(pem, passphrase)
        keys.check_key(key.public_key(), ed25519_allowed=True)
    except KeyRefused as refused:
        raise SignerRefused(refused.code, f"The CA key: {refused}", refused.hint) from None
    return KeySigner(key)


def verifies(key: PublicKey, signature: bytes, content: bytes) -> bool:
    try:
        match key:
            case ec.EllipticCurvePublicKey(curve=curve):
                key.verify(signature, content, ec.ECDSA(_curve_digest(curve)))
            case rsa.RSAPublicKey():
                key.verify(signature, content, padding.PKCS1v15(), hashes.SHA256())
            case _:
                key.verify(signature, content)
    except InvalidSignature:
        return False
    return True
