"""Account keys: JSON Web Keys (RFC 7517, 7518, 8037), their thumbprints (RFC 7638), and their signatures."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256, SHA384

from holdfast.core import base64url
from holdfast.core.own_ca.problem import AcmeError
from holdfast.pki import strict_json
from holdfast.pki.keys import RSA_BITS, PublicKey, check_key
from holdfast.pki.refused import KeyRefused

JwsAlgorithm = Literal["ES256", "ES384", "EdDSA", "RS256"]
ALGORITHMS: Final[tuple[JwsAlgorithm, ...]] = ("ES256", "ES384", "EdDSA", "RS256")

# The members that make a key what it is, in the order of RFC 7638 §3.3: over these the thumbprint is taken, and they
# are all that is kept.
_MEMBERS: Final = {"EC": ("crv", "kty", "x", "y"), "OKP": ("crv", "kty", "x"), "RSA": ("e", "kty", "n")}
_PRIVATE: Final = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k", "priv"})
_MAX_EXPONENT: Final = 32  # octets; check_key has the rule, this keeps numbers small until it is asked
_KEPT: Final = 4096  # keys of the accounts that were active last, about 2 KiB each


@dataclass(frozen=True, slots=True)
class _Curve:
    curve: ec.EllipticCurve
    size: int  # of a coordinate, and of half a signature, in octets
    alg: JwsAlgorithm
    ecdsa: ec.ECDSA


_CURVES: Final = {
    "P-256": _Curve(ec.SECP256R1(), 32, "ES256", ec.ECDSA(SHA256())),
    "P-384": _Curve(ec.SECP384R1(), 48, "ES384", ec.ECDSA(SHA384())),
}
_BY_ALG: Final = {each.alg: each for each in _CURVES.values()}
_PADDING: Final = PKCS1v15()
_SHA256: Final = SHA256()


@dataclass(frozen=True, slots=True)
class AccountKey:
    """A public key that may sign requests. Two are equal if their thumbprints are."""

    thumbprint: str  # base64url of SHA-256 (RFC 7638)
    alg: JwsAlgorithm = field(compare=False)  # the one algorithm that this key signs with
    members: Mapping[str, str] = field(compare=False)  # the public JWK in its canonical form
    public: PublicKey = field(compare=False)

    def is_jwk(self, jwk: Mapping[str, object]) -> bool:
        """Whether a JWK is this key: every member has one spelling, so comparing texts is enough."""
        return all(jwk.get(name) == value for name, value in self.members.items())

    def verify(self, alg: str, signature: bytes, signing_input: bytes) -> bool:
        """Whether this key made this signature; never, if it was made with another algorithm than the key's own."""
        if alg != self.alg:
            return False
        try:
            match self.public:
                case ec.EllipticCurvePublicKey() as key:
                    curve = _BY_ALG[self.alg]
                    key.verify(_dss(signature, curve.size), signing_input, curve.ecdsa)
                case ed25519.Ed25519PublicKey() as key:
                    key.verify(signature, signing_input)
                case rsa.RSAPublicKey() as key:
                    key.verify(signature, signing_input, _PADDING, _SHA256)
        except InvalidSignature:
            return False
        return True


def _dss(signature: bytes, size: int) -> bytes:
    """JWS has r and s side by side, each of the curve's size (RFC 7518 §3.4); OpenSSL wants them in DER."""
    if len(signature) != 2 * size:
        raise InvalidSignature
    return encode_dss_signature(int.from_bytes(signature[:size], "big"), int.from_bytes(signature[size:], "big"))


# ── Reading ──


def parse(jwk: Mapping[str, object]) -> AccountKey:
    """The key that a client presents; badPublicKey says why it is refused."""
    if not _PRIVATE.isdisjoint(jwk):
        raise AcmeError.bad_public_key("The JWK has private members: this key is no longer secret, so use another.")
    try:
        key = _read(jwk)
        check_key(key.public, ed25519_allowed=True)
    except KeyRefused as refused:
        raise AcmeError.bad_public_key(f"The account key is refused: {refused}") from None
    except (ValueError, UnsupportedAlgorithm) as error:
        why = str(error).rstrip(".")
        raise AcmeError.bad_public_key(f"The JWK is not a public key that can be used: {why}.") from None
    return key


def serialize(key: AccountKey) -> str:
    """The text to store: the canonical JWK, over which the thumbprint is taken as well."""
    return _canonical(key.members)


@lru_cache(_KEPT)
def deserialize(stored: str) -> AccountKey:
    """The key of a stored text. It was checked when it came, so it is not checked again; the last ones are kept."""
    return _read(json.loads(stored))


def _canonical(members: Mapping[str, str]) -> str:
    return json.dumps(dict(members), separators=(",", ":"))


def _read(jwk: Mapping[str, object]) -> AccountKey:
    kty = jwk.get("kty")
    if not isinstance(kty, str) or kty not in _MEMBERS:
        raise ValueError("kty must be EC, OKP or RSA")
    members = {name: _text(jwk, name) for name in _MEMBERS[kty]}
    alg, public = _READERS[kty](members)
    digest = hashlib.sha256(_canonical(members).encode()).digest()
    return AccountKey(base64url.encode(digest), alg, members, public)


def _text(jwk: Mapping[str, object], name: str) -> str:
    value = jwk.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{name} is missing, or is not a text")
    return value


def _octets(members: Mapping[str, str], name: str, size: int | None = None) -> bytes:
    try:
        octets = strict_json.decode(members[name])
    except ValueError:
        raise ValueError(f"{name} is not in base64url") from None
    if size is not None and len(octets) != size:
        raise ValueError(f"{name} must have {size} octets, and has {len(octets)}")
    return octets


def _ec(members: Mapping[str, str]) -> tuple[JwsAlgorithm, PublicKey]:
    curve = _CURVES.get(members["crv"])
    if curve is None:
        raise ValueError("crv must be P-256 or P-384 for an EC key")
    point = b"\x04" + _octets(members, "x", curve.size) + _octets(members, "y", curve.size)
    try:
        return curve.alg, ec.EllipticCurvePublicKey.from_encoded_point(curve.curve, point)
    except ValueError:
        raise ValueError(f"x and y are not a point of {members['crv']}") from None


def _rsa(members: Mapping[str, str]) -> tuple[JwsAlgorithm, PublicKey]:
    n = _number(members, "n", RSA_BITS[1] // 8)
    e = _number(members, "e", _MAX_EXPONENT)
    return "RS256", rsa.RSAPublicNumbers(e, n).public_key()


def _number(members: Mapping[str, str], name: str, longest: int) -> int:
    """A number without leading zeros (RFC 7518 §2): with them, one key would have several thumbprints."""
    octets = _octets(members, name)
    if not octets or octets[0] == 0:
        raise ValueError(f"{name} must not be empty or begin with a zero octet")
    if len(octets) > longest:
        raise ValueError(f"{name} must have at most {longest} octets, and has {len(octets)}")
    return int.from_bytes(octets, "big")


# ── Ed25519 ──

_P: Final = 2**255 - 19
_D: Final = -121665 * pow(121666, -1, _P) % _P
_ROOT: Final = (
    0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826  # ± this is y in every point of order 8
)
_SMALL_ORDER: Final = frozenset({0, 1, _P - 1, _ROOT, _P - _ROOT})


def _okp(members: Mapping[str, str]) -> tuple[JwsAlgorithm, PublicKey]:
    if members["crv"] != "Ed25519":
        raise ValueError("crv must be Ed25519 for an OKP key")
    x = _octets(members, "x", 32)
    if not _is_sound_point(x):
        raise ValueError("x is not a point of Ed25519, or a point with which anyone could sign")
    return "EdDSA", ed25519.Ed25519PublicKey.from_public_bytes(x)


def _is_sound_point(octets: bytes) -> bool:
    """The library looks at the point only when it verifies, and takes points of small order, too (RFC 8032 §5.1.3)."""
    y = int.from_bytes(octets, "little") & (1 << 255) - 1
    if y >= _P or y in _SMALL_ORDER:
        return False
    squared = y * y % _P
    return pow((squared - 1) * (_D * squared + 1), (_P - 1) // 2, _P) == 1  # x² = (y²-1)/(dy²+1) has a root


_READERS: Final = {"EC": _ec, "OKP": _okp, "RSA": _rsa}
