"""Requests as a CA can check them (RFC 8555 §6.2, RFC 7515): a flattened JWS by our account's key, or a MAC."""

from __future__ import annotations

import hmac
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from holdfast.pki.keys import PrivateKey
from holdfast.pki.thumbprint import jwk
from holdfast.secret import Secret

_CURVES: Final = {"secp256r1": ("ES256", hashes.SHA256(), 32), "secp384r1": ("ES384", hashes.SHA384(), 48)}


@dataclass(frozen=True, slots=True)
class Account:
    """Who we are to a CA. Both are stored before either is used: the key first, then the address the CA gave it."""

    url: str
    key: PrivateKey


@dataclass(frozen=True, slots=True)
class Eab:
    """An account that exists elsewhere, at the same CA (§7.3.4)."""

    kid: str
    mac_key: Secret[bytes]

    @classmethod
    def from_text(cls, kid: str, mac_key: Secret[str]) -> Eab:
        """From what a CA's web page shows: base64url, mostly without its padding; ValueError if it is not that."""
        text = mac_key.reveal().strip().rstrip("=")
        try:
            octets = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        except (Error, ValueError):
            raise ValueError("the MAC key of an external account binding is base64url") from None
        if len(octets) < 16:
            raise ValueError("the MAC key of an external account binding has at least 128 bits")
        return cls(kid.strip(), Secret(octets))


def b64(octets: bytes) -> str:
    return urlsafe_b64encode(octets).rstrip(b"=").decode()


def by_account(payload: Mapping[str, Any] | None, *, url: str, nonce: str, account: Account) -> bytes:
    """A request of the account; without a payload it is a POST-as-GET (§6.3)."""
    return _dumped(_signed(payload, {"kid": account.url, "nonce": nonce, "url": url}, account.key))


def by_key(payload: Mapping[str, Any], *, url: str, nonce: str, key: PrivateKey) -> bytes:
    """A request of a key that has no account yet, or asks whether it has one."""
    return _dumped(_signed(payload, {"jwk": jwk(key.public_key()), "nonce": nonce, "url": url}, key))


def key_change(account: Account, new: PrivateKey, *, url: str) -> dict[str, str]:
    """The inner JWS of §7.3.5: the new key says that it takes over from the old one."""
    payload = {"account": account.url, "oldKey": jwk(account.key.public_key())}
    return _signed(payload, {"jwk": jwk(new.public_key()), "url": url}, new)


def binding(eab: Eab, key: PrivateKey, *, url: str) -> dict[str, str]:
    """The account key, vouched for by whoever holds the MAC key."""
    header = {"alg": "HS256", "kid": eab.kid, "url": url}
    protected, payload = _encoded(header), _encoded(jwk(key.public_key()))
    mac = hmac.digest(eab.mac_key.reveal(), f"{protected}.{payload}".encode(), "sha256")
    return {"protected": protected, "payload": payload, "signature": b64(mac)}


def _signed(payload: Mapping[str, Any] | None, header: Mapping[str, Any], key: PrivateKey) -> dict[str, str]:
    protected = _encoded({"alg": _algorithm(key), **header})
    content = "" if payload is None else _encoded(payload)
    signature = _signature(key, f"{protected}.{content}".encode())
    return {"protected": protected, "payload": content, "signature": b64(signature)}


def _algorithm(key: PrivateKey) -> str:
    match key:
        case ec.EllipticCurvePrivateKey():
            return _CURVES[key.curve.name][0]
        case ed25519.Ed25519PrivateKey():
            return "EdDSA"
        case _:
            return "RS256"


def _signature(key: PrivateKey, content: bytes) -> bytes:
    match key:
        case ec.EllipticCurvePrivateKey():
            _, digest, size = _CURVES[key.curve.name]
            r, s = decode_dss_signature(key.sign(content, ec.ECDSA(digest)))
            return r.to_bytes(size, "big") + s.to_bytes(size, "big")  # RFC 7518 §3.4
        case ed25519.Ed25519PrivateKey():
            return key.sign(content)
        case _:
            return key.sign(content, padding.PKCS1v15(), hashes.SHA256())


def _encoded(value: Mapping[str, Any]) -> str:
    return b64(_dumped(value))


def _dumped(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
