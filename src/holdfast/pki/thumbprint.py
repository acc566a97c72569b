"""The thumbprint of a key (RFC 7638): how ACME names the key of an account."""

from __future__ import annotations

import hashlib
import json

from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from holdfast.core import base64url
from holdfast.pki.keys import PublicKey


def thumbprint(key: PublicKey) -> str:
    canonical = json.dumps(jwk(key), sort_keys=True, separators=(",", ":"))
    return base64url.encode(hashlib.sha256(canonical.encode()).digest())


def jwk(key: PublicKey) -> dict[str, str]:
    """The members that make up a public key (RFC 7638 §3.2, RFC 8037 §2)."""
    match key:
        case ec.EllipticCurvePublicKey():
            numbers, size = key.public_numbers(), (key.curve.key_size + 7) // 8
            x, y = (base64url.encode(number.to_bytes(size, "big")) for number in (numbers.x, numbers.y))
            return {"crv": f"P-{key.curve.key_size}", "kty": "EC", "x": x, "y": y}
        case rsa.RSAPublicKey():
            e, n = key.public_numbers().e, key.public_numbers().n
            return {"e": _number(e), "kty": "RSA", "n": _number(n)}
        case _:
            x = base64url.encode(key.public_bytes(Encoding.Raw, PublicFormat.Raw))
            return {"crv": "Ed25519", "kty": "OKP", "x": x}


def _number(number: int) -> str:
    return base64url.encode(number.to_bytes((number.bit_length() + 7) // 8, "big"))
