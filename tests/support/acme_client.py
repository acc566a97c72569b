"""An ACME client that sends whatever it is told, good or bad: JWS made by hand on `cryptography`.

client = AcmeClient(http, "https://localhost:8631/acme/ca1/directory")
await client.start()
account = await client.register()
reply = await client.post(client.urls["newOrder"], {"identifiers": [{"type": "dns", "value": "a.example"}]})
bad = await client.post(url, {}, header={"alg": "none"}, envelope={"signature": ""})
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import httpx2
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

JOSE: Final = "application/jose+json"
ERROR: Final = "urn:ietf:params:acme:error:"
UNSET: Final = object()

PrivateKey = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey


def b64(octets: bytes) -> str:
    return base64.urlsafe_b64encode(octets).rstrip(b"=").decode()


def unb64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


# ── Keys ──


@dataclass(frozen=True)
class Signer:
    """An account key, or the key of a certificate."""

    private: PrivateKey

    @property
    def alg(self) -> str:
        match self.private:
            case ec.EllipticCurvePrivateKey():
                return "ES256" if self.private.curve.name == "secp256r1" else "ES384"
            case ed25519.Ed25519PrivateKey():
                return "EdDSA"
            case _:
                return "RS256"

    @property
    def jwk(self) -> dict[str, str]:
        match self.private:
            case ec.EllipticCurvePrivateKey():
                numbers = self.private.public_key().public_numbers()
                size = (self.private.curve.key_size + 7) // 8
                crv = {256: "P-256", 384: "P-384", 521: "P-521"}[self.private.curve.key_size]
                x, y = (b64(number.to_bytes(size, "big")) for number in (numbers.x, numbers.y))
                return {"crv": crv, "kty": "EC", "x": x, "y": y}
            case ed25519.Ed25519PrivateKey():
                return {"crv": "Ed25519", "kty": "OKP", "x": b64(self.private.public_key().public_bytes_raw())}
            case _:
                public = self.private.public_key().public_numbers()
                octets = [n.to_bytes((n.bit_length() + 7) // 8, "big") for n in (public.e, public.n)]
                return {"e": b64(octets[0]), "kty": "RSA", "n": b64(octets[1])}

    @property
    def thumbprint(self) -> str:
        canonical = json.dumps(self.jwk, sort_keys=True, separators=(",", ":"))
        return b64(hashlib.sha256(canonical.encode()).digest())

    def sign(self, content: bytes) -> bytes:
        match self.private:
            case ec.EllipticCurvePrivateKey():
                small = self.private.curve.key_size == 256
                made = self.private.sign(content, ec.ECDSA(hashes.SHA256() if small else hashes.SHA384()))
                r, s = decode_dss_signature(made)
                size = (self.private.curve.key_size + 7) // 8
                return r.to_bytes(size, "big") + s.to_bytes(size, "big")
            case ed25519.Ed25519PrivateKey():
                return self.private.sign(content)
            case _:
                return self.private.sign(content, padding.PKCS1v15(), hashes.SHA256())


def es256() -> Signer:
    return Signer(ec.generate_private_key(ec.SECP256R1()))


def es384() -> Signer:
    return Signer(ec.generate_private_key(ec.SECP384R1()))


def eddsa() -> Signer:
    return Signer(ed25519.Ed25519PrivateKey.generate())


def rs256(bits: int = 2048) -> Signer:
    return Signer(rsa.generate_private_key(65537, bits))


# ── JWS ──


def octets(payload: Any) -> bytes:
    """A payload as it is signed: None and "" for POST-as-GET, bytes as they are, anything else as JSON."""
    if payload is None or payload == "":
        return b""
    return payload if isinstance(payload, bytes) else json.dumps(payload).encode()


def flattened(
    signer: Signer, header: Mapping[str, Any] | bytes, payload: Any, envelope: Mapping[str, Any] = {}
) -> dict[str, Any]:
    """A signed JWS. `envelope` puts other members in place of its own, after signing; UNSET takes one away."""
    protected = header if isinstance(header, bytes) else json.dumps(dict(header)).encode()
    made: dict[str, Any] = {"protected": b64(protected), "payload": b64(octets(payload))}
    made["signature"] = b64(signer.sign(f"{made['protected']}.{made['payload']}".encode()))
    made |= dict(envelope)
    return {name: value for name, value in made.items() if value is not UNSET}


def binding(kid: str, mac_key: bytes, url: str, jwk: Mapping[str, Any], /, **header: Any) -> dict[str, str]:
    """An external account binding (§7.3.4)."""
    head = {"alg": "HS256", "kid": kid, "url": url} | header
    protected = b64(json.dumps({name: value for name, value in head.items() if value is not UNSET}).encode())
    payload = b64(json.dumps(dict(jwk)).encode())
    digest = {"HS384": "sha384", "HS512": "sha512"}.get(head["alg"], "sha256")
    mac = hmac.digest(mac_key, f"{protected}.{payload}".encode(), digest)
    return {"protected": protected, "payload": payload, "signature": b64(mac)}


# ── The client ──


@dataclass
class AcmeClient:
    http: httpx2.AsyncClient
    directory_url: str
    signer: Signer = field(default_factory=es256)
    kid: str | None = None
    urls: dict[str, Any] = field(default_factory=dict)
    nonces: list[str] = field(default_factory=list)

    async def start(self) -> AcmeClient:
        self.urls = (await self.http.get(self.directory_url)).json()
        return self

    def other(self, signer: Signer | None = None) -> AcmeClient:
        """Somebody else at the same server."""
        return AcmeClient(self.http, self.directory_url, signer or es256(), urls=self.urls)

    async def nonce(self) -> str:
        if self.nonces:
            return self.nonces.pop()
        return (await self.http.head(self.urls["newNonce"])).headers["replay-nonce"]

    async def post(
        self,
        url: str,
        payload: Any = None,
        *,
        header: Mapping[str, Any] | bytes = {},
        signer: Signer | None = None,
        jwk: bool = False,
        body: bytes | None = None,
        headers: Mapping[str, str] = {},
        envelope: Mapping[str, Any] = {},
    ) -> httpx2.Response:
        """One request. `header` changes the protected header (UNSET takes a member away; bytes are all of it).

        `envelope` does the same to the JWS, after it was signed.
        """
        if body is None:
            head = header if isinstance(header, bytes) else await self._header(url, header, jwk=jwk, signer=signer)
            body = json.dumps(flattened(signer or self.signer, head, payload, envelope)).encode()
        reply = await self.http.post(url, content=body, headers={"content-type": JOSE, **headers})
        if "replay-nonce" in reply.headers:
            self.nonces.append(reply.headers["replay-nonce"])
        return reply

    async def _header(
        self, url: str, changes: Mapping[str, Any], *, jwk: bool, signer: Signer | None
    ) -> dict[str, Any]:
        used = signer or self.signer
        named: dict[str, Any] = {"jwk": used.jwk} if jwk or self.kid is None else {"kid": self.kid}
        nonce = changes["nonce"] if "nonce" in changes else await self.nonce()
        whole = {"alg": used.alg, **named, "nonce": nonce, "url": url} | dict(changes)
        return {name: value for name, value in whole.items() if value is not UNSET}

    async def register(self, **fields: Any) -> httpx2.Response:
        content = {"termsOfServiceAgreed": True} | fields
        reply = await self.post(self.urls["newAccount"], content, jwk=True)
        if reply.status_code in (200, 201):
            self.kid = reply.headers["location"]
        return reply

    async def order(self, *values: str, **fields: Any) -> httpx2.Response:
        """A new order; what looks like an address is one."""
        identifiers = [{"type": _type(value), "value": value} for value in values]
        return await self.post(self.urls["newOrder"], {"identifiers": identifiers} | fields)

    async def get(self, url: str, **more: Any) -> httpx2.Response:
        """POST-as-GET."""
        return await self.post(url, None, **more)

    async def change_key(self, new: Signer, **changes: Any) -> httpx2.Response:
        """keyChange; `inner` changes its protected header, `change` its payload, the rest the outer request."""
        url = self.urls["keyChange"]
        inner_header = {"alg": new.alg, "jwk": new.jwk, "url": url} | changes.pop("inner", {})
        content = {"account": self.kid, "oldKey": self.signer.jwk} | changes.pop("change", {})
        inner = flattened(
            changes.pop("inner_signer", new),
            {name: value for name, value in inner_header.items() if value is not UNSET},
            {name: value for name, value in content.items() if value is not UNSET},
            changes.pop("inner_envelope", {}),
        )
        reply = await self.post(url, inner, **changes)
        if reply.status_code == 200:
            self.signer = new
        return reply


def _type(value: str) -> str:
    return "ip" if ":" in value or value.replace(".", "").isdigit() else "dns"


def links(reply: httpx2.Response, relation: str) -> list[str]:
    """The targets of Link headers with this relation."""
    found = reply.headers.get_list("link")
    return [each[1 : each.index(">")] for each in found if each.endswith(f'rel="{relation}"')]


def problem(reply: httpx2.Response) -> tuple[int, str]:
    """Status and type of an error; whatever is no problem document fails the test here."""
    assert reply.headers["content-type"] == "application/problem+json", (reply.status_code, reply.text)
    content = reply.json()
    assert content["type"].startswith(ERROR), content
    assert content["status"] == reply.status_code, content
    assert content["detail"], content
    assert "identifier" not in content  # only subproblems may have one (§6.7.1)
    return reply.status_code, content["type"].removeprefix(ERROR)
