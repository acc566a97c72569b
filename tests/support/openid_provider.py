"""An OpenID provider for tests: a real HTTP server with discovery, codes, PKCE, signed tokens, userinfo and log-out.

It is faithful until it is told to lie: `claims` and `header` change what it signs, and `sign` how.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from secrets import token_urlsafe
from typing import Any
from urllib.parse import parse_qs, parse_qsl, unquote, urlencode, urlsplit

from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from holdfast.core import base64url
from tests.support.http_server import HttpAnswer, HttpRequest, HttpServer


@dataclass
class SigningKey:
    kid: str = "one"
    private: Any = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))

    @property
    def alg(self) -> str:
        return "RS256" if isinstance(self.private, rsa.RSAPrivateKey) else "ES256"

    def jwk(self) -> dict[str, str]:
        public = self.private.public_key().public_numbers()
        if self.alg == "RS256":
            return {"kty": "RSA", "kid": self.kid, "use": "sig", "n": _number(public.n), "e": _number(public.e)}
        x, y = (base64url.encode(each.to_bytes(32, "big")) for each in (public.x, public.y))
        return {"kty": "EC", "kid": self.kid, "use": "sig", "crv": "P-256", "x": x, "y": y}

    def sign(self, data: bytes) -> bytes:
        if self.alg == "RS256":
            return bytes(self.private.sign(data, PKCS1v15(), SHA256()))
        r, s = decode_dss_signature(self.private.sign(data, ec.ECDSA(SHA256())))
        return r.to_bytes(32, "big") + s.to_bytes(32, "big")

    def pem(self) -> bytes:
        public = self.private.public_key()
        return bytes(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


def rsa_key(kid: str = "one") -> SigningKey:
    return SigningKey(kid, rsa.generate_private_key(public_exponent=65537, key_size=2048))


def _number(value: int) -> str:
    return base64url.encode(value.to_bytes((value.bit_length() + 7) // 8, "big"))


def _part(value: Mapping[str, Any]) -> str:
    return base64url.encode(json.dumps(value).encode())


class OpenIdProvider(HttpServer):
    client_id, client_secret = "holdfast", "the secret of the client"

    def __init__(self) -> None:
        super().__init__()
        self.keys = [SigningKey()]
        self.subject, self.name, self.groups = "sub-1", "carol", ["pki-team"]
        self.session = "sid-1"
        self.codes: dict[str, dict[str, str]] = {}
        self.metadata: dict[str, Any] = {}  # lies about itself
        self.claims: dict[str, Any] = {}  # lies of tokens; None leaves a claim out
        self.header: dict[str, Any] = {}
        self.sign: Callable[[bytes], bytes] | None = None
        self.userinfo: dict[str, Any] = {}
        self.names_itself = True

    @property
    def issuer(self) -> str:
        return self.origin

    # ── What the browser does there ──

    def log_in(self, address: str) -> str:
        """The person agrees: where the browser is sent back to."""
        asked = dict(parse_qsl(urlsplit(address).query))
        assert asked["response_type"] == "code"
        assert asked["client_id"] == self.client_id
        code = token_urlsafe(16)
        self.codes[code] = asked
        more = {"iss": self.issuer} if self.names_itself else {}
        return f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state'], **more})}"

    def token(self, nonce: str | None = None, **claims: Any) -> str:
        now = int(time.time())
        said = {
            "iss": self.issuer, "sub": self.subject, "aud": self.client_id, "iat": now, "exp": now + 300,
            "preferred_username": self.name, "groups": self.groups, "sid": self.session, "nonce": nonce,
        } | claims | self.claims  # fmt: skip
        said = {name: value for name, value in said.items() if value is not None}
        key = self.keys[0]
        head = {"alg": key.alg, "typ": "JWT", "kid": key.kid} | self.header
        signed = f"{_part(head)}.{_part(said)}"
        return f"{signed}.{base64url.encode((self.sign or key.sign)(signed.encode()))}"

    def logout_token(self, **claims: Any) -> str:
        event = {"http://schemas.openid.net/event/backchannel-logout": {}}
        return self.token(**{"events": event, "jti": token_urlsafe(8), **claims})

    # ── What servers ask ──

    async def respond(self, request: HttpRequest, writer: asyncio.StreamWriter) -> None:
        found = {
            "/.well-known/openid-configuration": self._metadata,
            "/keys": lambda request: (200, {"keys": [each.jwk() for each in self.keys]}),
            "/token": self._token,
            "/userinfo": lambda request: (200, {"sub": self.subject, **self.userinfo}),
        }.get(request.path)
        status, body = (404, {}) if found is None else found(request)
        writer.write(HttpAnswer(status, {"Content-Type": "application/json"}, json.dumps(body).encode()).encoded())

    def _metadata(self, request: HttpRequest) -> tuple[int, Any]:
        return 200, {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.origin}/authorize",
            "token_endpoint": f"{self.origin}/token",
            "jwks_uri": f"{self.origin}/keys",
            "userinfo_endpoint": f"{self.origin}/userinfo",
            "end_session_endpoint": f"{self.origin}/logout",
            "authorization_response_iss_parameter_supported": self.names_itself,
        } | self.metadata

    def _token(self, request: HttpRequest) -> tuple[int, Any]:
        given = {name: values[0] for name, values in parse_qs(request.body.decode()).items()}
        asked = self.codes.pop(given.get("code", ""), None)
        if asked is None or not self._is_client(request) or given["redirect_uri"] != asked["redirect_uri"]:
            return 400, {"error": "invalid_grant"}
        made = base64url.encode(hashlib.sha256(given.get("code_verifier", "").encode()).digest())
        if asked["code_challenge_method"] != "S256" or not hmac.compare_digest(made, asked["code_challenge"]):
            return 400, {"error": "invalid_grant"}
        return 200, {"access_token": "at", "token_type": "Bearer", "id_token": self.token(asked["nonce"])}

    def _is_client(self, request: HttpRequest) -> bool:
        basic = request.headers.get("authorization", "").removeprefix("Basic ")
        name, _, secret = base64.b64decode(basic).decode().partition(":")
        return (unquote(name), unquote(secret)) == (self.client_id, self.client_secret)
