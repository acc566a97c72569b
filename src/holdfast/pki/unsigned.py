"""Certificates and CRLs before they are signed: complete but for a placeholder, so that they can be linted and kept.

`cryptography` builds and signs in one step, with any object of its key classes. We hand it one that does not
sign, lint the result, and put the true signature in its place; nothing is encoded twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding

from holdfast.pki import keys
from holdfast.pki.aside import aside
from holdfast.pki.der import bit_string, integer, sequence
from holdfast.pki.keys import PublicKey
from holdfast.pki.refused import SignerRefused
from holdfast.pki.signer import DIGESTS, Signer, algorithm_of, verifies

# Well-formed for linters, and no signature of anything. For EC it is r = s = 1 (RFC 3279 §2.2.3).
_PLACEHOLDER: Final[dict[type, bytes]] = {
    ec.EllipticCurvePrivateKey: sequence(integer(1), integer(1)),
    rsa.RSAPrivateKey: bytes(256),
    ed25519.Ed25519PrivateKey: bytes(64),
}
_KEY_CLASSES: Final[dict[type, type]] = {
    ec.EllipticCurvePublicKey: ec.EllipticCurvePrivateKey,
    rsa.RSAPublicKey: rsa.RSAPrivateKey,
    ed25519.Ed25519PublicKey: ed25519.Ed25519PrivateKey,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsigned:
    """The bytes to be signed, and what stands between them and the signature."""

    tbs: bytes
    algorithm: bytes  # AlgorithmIdentifier, in DER
    issuer_key: PublicKey
    preview: x509.Certificate | x509.CertificateRevocationList  # with the placeholder in place of a signature

    def with_signature(self, signature: bytes) -> bytes:
        return sequence(self.tbs, self.algorithm, bit_string(signature))


def unsigned(
    builder: x509.CertificateBuilder | x509.CertificateRevocationListBuilder, issuer_key: PublicKey
) -> Unsigned:
    base = next(private for public, private in _KEY_CLASSES.items() if isinstance(issuer_key, public))
    preview = builder.sign(_stand_in(base), DIGESTS[algorithm_of(issuer_key)])
    tbs = preview.tbs_certificate_bytes if isinstance(preview, x509.Certificate) else preview.tbs_certlist_bytes
    der, tail = preview.public_bytes(Encoding.DER), bit_string(_PLACEHOLDER[base])
    algorithm = der[der.index(tbs, 0, len(tbs) + 8) + len(tbs) : -len(tail)]
    return Unsigned(tbs=tbs, algorithm=algorithm, issuer_key=issuer_key, preview=preview)


@cache
def _stand_in(base: type) -> Any:
    """An object of a private-key class that has no key."""
    methods = dict.fromkeys(base.__abstractmethods__, _never)  # type: ignore[attr-defined]  # it is an ABC
    return type("StandIn", (base,), {**methods, "sign": lambda *_: _PLACEHOLDER[base], "curve": ec.SECP256R1()})()


def _never(*_: object) -> Any:
    raise AssertionError("there is no key here")


def finish(content: Unsigned, signer: Signer) -> bytes:
    """The signed certificate or CRL, in DER. What does not verify is never let out: a device may fail, too."""
    if keys.spki(signer.public_key) != keys.spki(content.issuer_key):
        raise SignerRefused("signer-other-key", "The signer's key is not the one in the issuer's certificate.")
    signature = signer.sign(content.tbs)
    if not verifies(content.issuer_key, signature, content.tbs):
        raise SignerRefused("signer-bad-signature", "The signer returned a signature that does not verify.")
    return content.with_signature(signature)


async def finish_aside(content: Unsigned, signer: Signer) -> bytes:
    """The same without holding up the event loop: on a thread, if this signer is slow."""
    return finish(content, signer) if signer.quick else await aside(finish, content, signer)
