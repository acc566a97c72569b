"""The certificate that a CA signs with, and the signer that holds its key: in memory here, in a device in hsm.py."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Final, Protocol

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

from holdfast.core.key_kind import KeyKind
from holdfast.pki import keys
from holdfast.pki.keys import PrivateKey, PublicKey
from holdfast.pki.refused import KeyRefused, MustNotSign, SignerRefused
from holdfast.secret import Secret

# ── Signers ──
# A Protocol of one method, and the back end that holds the key in memory (hsm.py is the other).
#
# A signer sees finished bytes and returns a signature. So a device needs no notion of certificates, and what was
# linted is signed, byte for byte.


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
    """A signature with SHA-256 for every curve: for CAs that want the certificate's key to sign something."""
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


# ── Signing certificates ──
# A CA that signs: its certificate, the certificates above it, and the addresses where it publishes.


SHARD: Final = "{shard}"


@dataclass(frozen=True, kw_only=True)
class SigningCertificate:
    """Made by open_issuer, which refuses certificates that must not sign."""

    id: str
    certificate: x509.Certificate
    above: tuple[x509.Certificate, ...] = ()  # the rest of the chain that clients get; the root is not in it
    ca_issuers_url: str | None = None  # where others fetch `certificate`, in DER, over plain HTTP
    crl_url: str | None = None  # with "{shard}" if there is more than one
    shards: int = 1  # may grow, never shrink: old certificates keep their number

    def __post_init__(self) -> None:
        if self.shards < 1 or (self.shards > 1 and SHARD not in (self.crl_url or "")):
            raise MustNotSign("issuer-shards", f"The CRL address of several shards must contain {SHARD}.")

    @cached_property
    def public_key(self) -> PublicKey:
        key = self.certificate.public_key()
        keys.check_key(key, ed25519_allowed=True)
        return key  # type: ignore[return-value]  # check_key let through only these

    @cached_property
    def algorithm(self) -> Algorithm:
        return algorithm_of(self.public_key)

    @cached_property
    def key_identifier(self) -> bytes:
        return self.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest

    @cached_property
    def sha256(self) -> str:
        """Of its name and key, which go into certificates: certified until a later day, it is still the same issuer."""
        return hashlib.sha256(self.certificate.subject.public_bytes() + keys.spki(self.public_key)).hexdigest()

    @cached_property
    def constraints(self) -> x509.NameConstraints | None:
        try:
            return self.certificate.extensions.get_extension_for_class(x509.NameConstraints).value
        except x509.ExtensionNotFound:
            return None

    def shard_of(self, serial: int) -> int | None:
        """The shard in which a new certificate's revocation would appear; None without a CRL."""
        return serial % self.shards if self.crl_url is not None else None

    def url_of(self, shard: int | None) -> str | None:
        return self.crl_url.replace(SHARD, str(shard)) if self.crl_url is not None and shard is not None else None


def open_issuer(issuer: SigningCertificate, *, dev: bool, now: datetime) -> SigningCertificate:
    """The same signing certificate, or MustNotSign. `dev` lets a self-signed certificate sign."""
    problem = issuer_problem(issuer.certificate, dev=dev, now=now)
    if problem is not None:
        raise MustNotSign("issuer-unfit", f"The certificate of CA {issuer.id!r} {problem}.")
    return issuer


def is_self_signed(certificate: x509.Certificate) -> bool:
    if certificate.subject != certificate.issuer:
        return False
    try:
        certificate.verify_directly_issued_by(certificate)
    except Exception:  # a bad signature, another key type, an unknown algorithm: none of them is its own
        return False
    return True


def issuer_problem(certificate: x509.Certificate, *, dev: bool, now: datetime) -> str | None:
    """Why this certificate must not sign others, as the end of a sentence; None if it may."""
    if not dev and certificate.subject == certificate.issuer:
        return "is self-signed: put the root away, and sign with an intermediate ('holdfast pki init' makes both)"
    try:
        keys.check_key(certificate.public_key(), ed25519_allowed=True)
        extensions = certificate.extensions
        basic = extensions.get_extension_for_class(x509.BasicConstraints)
        usage = extensions.get_extension_for_class(x509.KeyUsage).value
        extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
    except KeyRefused as refused:
        return f"has a key that is not good enough: {str(refused).removesuffix('.')}"
    except x509.ExtensionNotFound as missing:
        return f"has no {getattr(missing.oid, '_name', missing.oid.dotted_string)} extension"
    except Exception:  # cryptography cannot read the certificate
        return "cannot be read"
    if not basic.value.ca or not basic.critical:
        return "is not a CA certificate (basicConstraints CA:TRUE, critical)"
    if not usage.key_cert_sign or not usage.crl_sign:
        return "may not sign certificates and CRLs (keyUsage)"
    if now < certificate.not_valid_before_utc:
        return f"begins only at {certificate.not_valid_before_utc:%F %T}Z"
    if now >= certificate.not_valid_after_utc:
        return f"expired at {certificate.not_valid_after_utc:%F %T}Z"
    return None
