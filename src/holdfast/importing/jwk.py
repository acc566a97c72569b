"""Private keys written as JSON Web Keys (RFC 7517, 7518 §6), as certbot keeps those of its accounts."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric import ec, rsa

from holdfast.pki.keys import PrivateKey

_CURVES: Final[Mapping[str, ec.EllipticCurve]] = {"P-256": ec.SECP256R1(), "P-384": ec.SECP384R1()}
_MOST_OCTETS: Final = 1024  # of one number: an RSA key of 8192 bits


def private_key(jwk: Mapping[str, Any]) -> PrivateKey:
    """ValueError, which never quotes the key, if it is not one or its parts do not fit together."""
    match jwk.get("kty"):
        case "RSA":
            return _rsa(jwk)
        case "EC":
            return _ec(jwk)
    raise ValueError("it is not an RSA or EC key")


def _rsa(jwk: Mapping[str, Any]) -> PrivateKey:
    n, e, d = (_number(jwk, name) for name in ("n", "e", "d"))
    if "p" in jwk and "q" in jwk:
        p, q = _number(jwk, "p"), _number(jwk, "q")
    else:
        p, q = rsa.rsa_recover_prime_factors(n, e, d)
    if p < 3 or q < 3:
        raise ValueError("its primes cannot be right")
    numbers = rsa.RSAPrivateNumbers(
        p=p,
        q=q,
        d=d,
        dmp1=rsa.rsa_crt_dmp1(d, p),
        dmq1=rsa.rsa_crt_dmq1(d, q),
        iqmp=rsa.rsa_crt_iqmp(p, q),
        public_numbers=rsa.RSAPublicNumbers(e=e, n=n),
    )
    return numbers.private_key()


def _ec(jwk: Mapping[str, Any]) -> PrivateKey:
    curve = _CURVES.get(str(jwk.get("crv")))
    if curve is None:
        raise ValueError("its curve is not P-256 or P-384")
    public = ec.EllipticCurvePublicNumbers(_number(jwk, "x"), _number(jwk, "y"), curve)
    return ec.EllipticCurvePrivateNumbers(_number(jwk, "d"), public).private_key()


def _number(jwk: Mapping[str, Any], name: str) -> int:
    written = jwk.get(name)
    if not isinstance(written, str) or not 0 < len(written) <= _MOST_OCTETS * 4 // 3 + 4:
        raise ValueError(f"its member {name!r} is missing or too long")
    try:
        octets = base64.b64decode(
            written.rstrip("=") + "=" * (-len(written.rstrip("=")) % 4), altchars=b"-_", validate=True
        )
    except (binascii.Error, ValueError):
        raise ValueError(f"its member {name!r} is not base64url") from None
    return int.from_bytes(octets, "big")
