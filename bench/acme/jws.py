"""An account's key, and requests signed with it (RFC 8555 §6.2), as cheaply as Python can."""

import hashlib
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from functools import cached_property

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256

ES256 = ec.ECDSA(SHA256())


def b64(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


class AccountKey:
    """A P-256 key that signs ES256; `secret` and `from_secret` carry it to the process that uses it."""

    def __init__(self, key: ec.EllipticCurvePrivateKey) -> None:
        self._key = key

    @classmethod
    def new(cls) -> "AccountKey":
        return cls(ec.generate_private_key(ec.SECP256R1()))

    @classmethod
    def from_secret(cls, text: str) -> "AccountKey":
        return cls(ec.derive_private_key(int.from_bytes(urlsafe_b64decode(text)), ec.SECP256R1()))

    @property
    def secret(self) -> str:
        return urlsafe_b64encode(self._key.private_numbers().private_value.to_bytes(32)).decode()

    @cached_property
    def jwk(self) -> str:
        """The public key, written as its thumbprint wants it (RFC 7638 §3.3)."""
        point = self._key.public_key().public_numbers()
        x, y = b64(point.x.to_bytes(32)), b64(point.y.to_bytes(32))
        return f'{{"crv":"P-256","kty":"EC","x":"{x}","y":"{y}"}}'

    @cached_property
    def thumbprint(self) -> str:
        return b64(hashlib.sha256(self.jwk.encode()).digest())

    def signed(self, url: str, nonce: str, payload: object, *, kid: str | None) -> bytes:
        """Return the body of a request; a payload of None is POST-as-GET."""
        who = f'"kid":"{kid}"' if kid else f'"jwk":{self.jwk}'
        head = b64(f'{{"alg":"ES256",{who},"nonce":"{nonce}","url":"{url}"}}'.encode())
        body = "" if payload is None else b64(json.dumps(payload).encode())
        r, s = decode_dss_signature(self._key.sign(f"{head}.{body}".encode(), ES256))
        signature = b64(r.to_bytes(32) + s.to_bytes(32))
        return f'{{"protected":"{head}","payload":"{body}","signature":"{signature}"}}'.encode()
