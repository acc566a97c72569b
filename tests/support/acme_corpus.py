"""Requests that are wrong in one way each, and the error that each must be answered by.

A case sends its request from a `Ground`: a server with an account, orders in several states, and a certificate.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import httpx2
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding

from tests.support import pki
from tests.support.acme_client import UNSET, AcmeClient, Signer, b64, eddsa, es256, es384, flattened, rs256
from tests.support.acme_face import LOCAL, Front


@dataclass
class Ground:
    front: Front
    client: AcmeClient  # has an account, and all that follows
    other: AcmeClient  # has an account of its own
    stranger: AcmeClient  # has none
    pending: dict[str, Any]
    ready: dict[str, Any]
    valid: dict[str, Any]
    authz: str
    challenge: str
    certificate: bytes

    @property
    def url(self) -> str:
        """Of the client's account."""
        return self.client.kid or ""

    @property
    def http(self) -> httpx2.AsyncClient:
        return self.front.http


async def prepare(front: Front) -> Ground:
    async with front.office.working():
        client, other = await front.client(), await front.client()
        valid = await front.issued(client)
        ready = await front.ready(client, LOCAL)
        pending = await client.order("a.example")
        [authz] = pending.json()["authorizations"]
        challenge = (await client.get(authz)).json()["challenges"][0]["url"]
        chain = (await client.get(valid["certificate"])).content
    return Ground(
        front=front,
        client=client,
        other=other,
        stranger=await front.stranger(),
        pending={**pending.json(), "url": pending.headers["location"]},
        ready=ready,
        valid=valid,
        authz=authz,
        challenge=challenge,
        certificate=x509.load_pem_x509_certificates(chain)[0].public_bytes(Encoding.DER),
    )


Send = Callable[[Ground], Awaitable[httpx2.Response]]


class Case(NamedTuple):
    what: str
    send: Send
    status: int
    error: str


MALFORMED: Final = (400, "malformed")


# ── HTTP ──


def http_cases() -> Iterator[Case]:
    for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        for where in ("newAccount", "newOrder", "revokeCert", "keyChange"):
            yield Case(f"{method} {where}", _method(method, where), 405, "malformed")
    for media in ("application/json", "application/jose", "text/plain", "application/x-www-form-urlencoded", "jose"):
        yield Case(f"as {media}", _media(media), 415, "malformed")
    sizes = {"64 KiB and one byte": 65537, "a megabyte": 1 << 20}
    for what, size in sizes.items():
        yield Case(f"body of {what}", _raw(b'"' + b"a" * (size - 2) + b'"'), 413, "malformed")
    for path in ("new-authz", "order", "order/x/y", "authz/..", "account//orders", "certificate/x/1/2", "%6eew-order"):
        yield Case(f"nothing at {path}", _path(path), 404, "malformed")


def _method(method: str, where: str) -> Send:
    return lambda g: g.http.request(method, g.client.urls[where])


def _media(media: str) -> Send:
    return lambda g: g.client.post(g.url, None, headers={"content-type": media})


def _path(path: str) -> Send:
    return lambda g: g.client.post(g.front.directory.replace("directory", path), {})


def _raw(body: bytes, where: str = "newOrder") -> Send:
    return lambda g: g.client.post(g.client.urls[where], body=body)


# ── JSON and the JWS around a request ──

BODIES: Final[dict[str, bytes]] = {
    "empty": b"",
    "a space": b" ",
    "null": b"null",
    "a number": b"7",
    "a text": b'"protected"',
    "an array": b"[]",
    "an empty object": b"{}",
    "half an object": b'{"protected":',
    "two objects": b"{}{}",
    "a trailing comma": b'{"protected":"",}',
    "single quotes": b"{'protected':''}",
    "a comment": b"{/* */}",
    "NaN": b'{"protected":NaN}',
    "Infinity": b'{"protected":-Infinity}',
    "1e999": b'{"protected":1e999}',
    "a number of a thousand digits": b'{"protected":' + b"9" * 1000 + b"}",
    "a thousand arrays in each other": b"[" * 1000 + b"]" * 1000,
    "thirty thousand arrays in each other": b"[" * 30000 + b"]" * 30000,
    "thirty thousand open brackets": b"[" * 30000,
    "objects in each other": b'{"a":' * 5000 + b"1" + b"}" * 5000,
    "ten thousand members": json.dumps({f"m{n}": n for n in range(4000)}).encode(),
    "not UTF-8": b'{"protected":"\xff"}',
    "UTF-16": '{"protected":""}'.encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf{}",
    "half a surrogate pair": b'{"protected":"\\ud800"}',
    "a NUL": b'{"protected":"\\u0000"}',
    "a raw control character": b'{"protected":"\n"}',
    "compact serialization": b"e30.e30.AAAA",
    "general serialization": b'{"payload":"","signatures":[{"protected":"e30","signature":""}]}',
    "a member twice": b'{"protected":"e30","protected":"e30","payload":"","signature":""}',
}


def json_cases() -> Iterator[Case]:
    for what, body in BODIES.items():
        yield Case(f"body is {what}", _raw(body), *MALFORMED)


ENVELOPES: Final[dict[str, dict[str, Any]]] = {
    "without protected": {"protected": UNSET},
    "without payload (detached)": {"payload": UNSET},
    "without signature": {"signature": UNSET},
    "with payload null": {"payload": None},
    "with protected as an object": {"protected": {"alg": "ES256"}},
    "with signature as a number": {"signature": 7},
    "with signature as an array": {"signature": ["AAAA"]},
    "with an unprotected header": {"header": {"kid": "x"}},
    "with an empty unprotected header": {"header": {}},
    "with signatures besides": {"signatures": []},
    "with padding in the signature": {"signature": "AAAA===="},
    "with the other alphabet": {"signature": "+/+/"},
    "with a space in the signature": {"signature": "AA AA"},
    "with a line break in the signature": {"signature": "AAAA\n"},
    "with unused bits set": {"signature": "AAB"},
    "with a signature of an odd length": {"signature": "AAAAA"},
    "with an empty signature": {"signature": ""},
    "with a signature of zeros": {"signature": b64(bytes(64))},
    "with a short signature": {"signature": b64(b"\1" * 63)},
    "with a long signature": {"signature": b64(b"\1" * 65)},
    "with a huge signature": {"signature": b64(b"\1" * 20000)},
    "with another payload": {"payload": b64(b'{"contact":[]}')},
    "with protected empty": {"protected": ""},
    "with protected not JSON": {"protected": b64(b"nonsense")},
    "with protected an array": {"protected": b64(b"[]")},
    "with protected an empty object": {"protected": b64(b"{}")},
    "with alg twice in protected": {"protected": b64(b'{"alg":"ES256","alg":"none"}')},
}


def envelope_cases() -> Iterator[Case]:
    for what, changes in ENVELOPES.items():
        yield Case(f"JWS {what}", _envelope(changes), *MALFORMED)
    yield Case("JWS signed in DER", _der_signature, *MALFORMED)
    yield Case("JWS signed by another key", lambda g: g.client.post(g.url, None, signer=es256()), *MALFORMED)
    yield Case("JWS signed by another account", lambda g: g.other.post(g.url, None, header={"kid": g.url}), *MALFORMED)


def _envelope(changes: dict[str, Any]) -> Send:
    return lambda g: g.client.post(g.url, {}, envelope=changes)


async def _der_signature(g: Ground) -> httpx2.Response:
    """As OpenSSL makes them: a common mistake of clients."""
    header = {"alg": "ES256", "kid": g.url, "nonce": await g.client.nonce(), "url": g.url}
    made = flattened(g.client.signer, header, None)
    raw = base64.urlsafe_b64decode(made["signature"] + "==")
    dss = encode_dss_signature(int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big"))
    return await g.client.post(g.url, body=json.dumps(made | {"signature": b64(dss)}).encode())


# ── The protected header ──


def header_cases() -> Iterator[Case]:
    algorithms: tuple[Any, ...] = (
        "none",
        "NONE",
        "HS256",
        "HS384",
        "ES512",
        "ES256K",
        "RS512",
        "PS256",
        "Ed448",
        "es256",
    )
    for alg in algorithms:
        yield Case(f"alg {alg}", _header(alg=alg), 400, "badSignatureAlgorithm")
    yield Case("alg of another key type", _header(alg="RS256"), 400, "badSignatureAlgorithm")
    odd: dict[str, dict[str, Any]] = {
        "no alg": {"alg": UNSET}, "alg a number": {"alg": 7}, "alg null": {"alg": None}, "alg empty": {"alg": ""},
        "alg an array": {"alg": ["ES256"]},
        "crit": {"crit": ["exp"], "exp": 1}, "crit empty": {"crit": []}, "b64 false": {"b64": False},
        "b64 false and critical": {"b64": False, "crit": ["b64"]},
        "neither kid nor jwk": {"kid": UNSET}, "kid a number": {"kid": 7}, "kid null": {"kid": None},
        "kid empty": {"kid": ""}, "kid an object": {"kid": {}},
        "no url": {"url": UNSET}, "url a number": {"url": 7}, "url null": {"url": None}, "url empty": {"url": ""},
        "nonce a number": {"nonce": 7}, "nonce null": {"nonce": None}, "nonce padded": {"nonce": "AAAA===="},
        "nonce in the other alphabet": {"nonce": "++++"}, "nonce with a space": {"nonce": "AA AA"},
        "nonce not ASCII": {"nonce": "ÄÄÄÄ"}, "nonce of an odd length": {"nonce": "AAAAA"},
        "nonce a list": {"nonce": []},
    }  # fmt: skip
    for what, changes in odd.items():
        yield Case(what, _header(**changes), *MALFORMED)
    for what, nonce in {
        "missing": UNSET, "empty": "", "unknown": "AAAA", "long": "A" * 4000, "of zeros": b64(bytes(37)),
    }.items():  # fmt: skip
        yield Case(f"nonce {what}", _header(nonce=nonce), 400, "badNonce")
    yield Case("nonce used before", _used_nonce, 400, "badNonce")
    yield Case("nonce with a bit changed", _changed_nonce, 400, "badNonce")
    yield Case("nonce cut short", _cut_nonce, 400, "badNonce")
    yield from _kid_cases()
    yield from _url_cases()


def _header(**changes: Any) -> Send:
    return lambda g: g.client.post(g.url, None, header=changes)


async def _used_nonce(g: Ground) -> httpx2.Response:
    nonce = await g.client.nonce()
    await g.client.get(g.url, header={"nonce": nonce})
    return await g.client.get(g.url, header={"nonce": nonce})


async def _changed_nonce(g: Ground) -> httpx2.Response:
    nonce = await g.client.nonce()
    return await g.client.get(g.url, header={"nonce": nonce[:20] + ("B" if nonce[20] == "A" else "A") + nonce[21:]})


async def _cut_nonce(g: Ground) -> httpx2.Response:
    return await g.client.get(g.url, header={"nonce": (await g.client.nonce())[:-4]})


def _kid_cases() -> Iterator[Case]:
    changes: dict[str, Callable[[str], str]] = {
        "over http": lambda kid: kid.replace("https", "http"),
        "of another host": lambda kid: kid.replace("localhost", "ca.example"),
        "of another CA": lambda kid: kid.replace("ca1", "ca2"),
        "with a slash": lambda kid: kid + "/",
        "with a query": lambda kid: kid + "?x",
        "with a fragment": lambda kid: kid + "#x",
        "in upper case": str.upper,
        "of no account": lambda kid: kid + "x",
        "without an id": lambda kid: kid.rpartition("/")[0] + "/",
        "that climbs": lambda kid: kid.rpartition("/")[0] + "/../account/" + kid.rpartition("/")[2],
        "that is the id alone": lambda kid: kid.rpartition("/")[2],
        "of a thousand characters": lambda kid: kid + "x" * 1000,
        "with a quote": lambda kid: kid + "' OR '1'='1",
    }
    for what, change in changes.items():
        yield Case(f"kid {what}", _kid(change), 400, "accountDoesNotExist")
    yield Case("jwk where kid is needed", lambda g: g.client.post(g.url, None, jwk=True), *MALFORMED)
    yield Case("kid where jwk is needed", lambda g: g.client.post(g.client.urls["newAccount"], {}), *MALFORMED)
    yield Case("jwk and kid", lambda g: g.client.post(g.url, {}, header={"jwk": g.client.signer.jwk}), *MALFORMED)


def _kid(change: Callable[[str], str]) -> Send:
    return lambda g: g.client.post(g.client.urls["newOrder"], {}, header={"kid": change(g.url)})


def _url_cases() -> Iterator[Case]:
    changes: dict[str, Callable[[str], str]] = {
        "of another resource": lambda url: url.replace("new-order", "new-account"),
        "of another CA": lambda url: url.replace("ca1", "ca2"),
        "of another host": lambda url: url.replace("localhost", "ca.example"),
        "without the port": lambda url: url.replace(":8631", ""),
        "over http": lambda url: url.replace("https", "http"),
        "in upper case": lambda url: url.replace("https", "HTTPS"),
        "with a slash": lambda url: url + "/",
        "with a query": lambda url: url + "?",
        "encoded": lambda url: url.replace("-", "%2D"),
        "relative": lambda url: "/acme/ca1/new-order",
        "with a user": lambda url: url.replace("localhost", "me@localhost"),
    }
    for what, change in changes.items():
        yield Case(f"url {what}", _url(change), 403, "unauthorized")


def _url(change: Callable[[str], str]) -> Send:
    return lambda g: g.client.post(g.client.urls["newOrder"], {}, header={"url": change(g.client.urls["newOrder"])})


# ── Keys ──


def key_cases() -> Iterator[Case]:
    bad = "badPublicKey"
    p256, p384, ed = es256(), es384(), eddsa()
    signers = {
        "RSA of 1024 bits": rs256(1024),
        "P-521": Signer(ec.generate_private_key(ec.SECP521R1())),
    }
    yield Case("RSA of 1024 bits", _register(signers["RSA of 1024 bits"], "RS256"), 400, bad)
    yield Case("P-521", _register(signers["P-521"], "ES256"), 400, bad)
    modulus = rs256().jwk["n"]
    jwks: dict[str, tuple[str, Any]] = {
        "EC without y": ("ES256", {"kty": "EC", "crv": "P-256", "x": p256.jwk["x"]}),
        "EC with x as a number": ("ES256", p256.jwk | {"x": 7}),
        "EC off the curve": ("ES256", p256.jwk | {"y": p256.jwk["x"]}),
        "EC at infinity": ("ES256", p256.jwk | {"x": b64(bytes(32)), "y": b64(bytes(32))}),
        "EC with short coordinates": ("ES256", p256.jwk | {"x": b64(bytes(31))}),
        "EC with long coordinates": ("ES256", p256.jwk | {"x": b64(b"\0" + b"\1" * 32)}),
        "EC with padding": ("ES256", p256.jwk | {"x": p256.jwk["x"] + "="}),
        "EC of another curve": ("ES256", p384.jwk),
        "EC on secp256k1": ("ES256", p256.jwk | {"crv": "secp256k1"}),
        "EC on P-384 with the numbers of P-256": ("ES384", p256.jwk | {"crv": "P-384"}),
        "a private key": ("ES256", p256.jwk | {"d": "AAAA"}),
        "Ed448": ("EdDSA", ed.jwk | {"crv": "Ed448"}),
        "X25519": ("EdDSA", ed.jwk | {"crv": "X25519"}),
        "Ed25519 of small order": ("EdDSA", ed.jwk | {"x": b64(b"\1" + bytes(31))}),
        "Ed25519 too short": ("EdDSA", ed.jwk | {"x": "AAAA"}),
        "Ed25519 with ES256": ("ES256", ed.jwk),
        "RSA with ES256": ("ES256", {"kty": "RSA", "n": modulus, "e": "AQAB"}),
        "EC with RS256": ("RS256", p256.jwk),
        "RSA with exponent 1": ("RS256", {"kty": "RSA", "n": modulus, "e": "AQ"}),
        "RSA with an even exponent": ("RS256", {"kty": "RSA", "n": modulus, "e": "Ag"}),
        "RSA with a huge exponent": ("RS256", {"kty": "RSA", "n": modulus, "e": b64(b"\xff" * 256)}),
        "RSA with a leading zero": ("RS256", {"kty": "RSA", "n": b64(b"\0" + b"\xff" * 256), "e": "AQAB"}),
        "RSA of 16384 bits": ("RS256", {"kty": "RSA", "n": b64(b"\xff" * 2048), "e": "AQAB"}),
        "RSA even": ("RS256", {"kty": "RSA", "n": b64(b"\xff" * 255 + b"\xfe"), "e": "AQAB"}),
        "RSA with close primes": ("RS256", _rsa(pki.close_primes(2048))),
        "RSA from a broken chip": ("RS256", _rsa(pki.roca_modulus(2048))),
        "RSA without e": ("RS256", {"kty": "RSA", "n": modulus}),
        "a symmetric key": ("ES256", {"kty": "oct", "k": "AAAA"}),
        "no kty": ("ES256", {"crv": "P-256", "x": p256.jwk["x"], "y": p256.jwk["y"]}),
        "kty a number": ("ES256", p256.jwk | {"kty": 7}),
        "an empty JWK": ("ES256", {}),
    }
    for what, (alg, jwk) in jwks.items():
        yield Case(f"key: {what}", _register(p256, alg, jwk), 400, bad)
    for what, odd in {"a text": "key", "null": None, "an array": [], "a number": 7}.items():
        yield Case(f"jwk is {what}", _register(p256, "ES256", odd), *MALFORMED)


def _rsa(modulus: int) -> dict[str, str]:
    return {"kty": "RSA", "n": b64(modulus.to_bytes((modulus.bit_length() + 7) // 8, "big")), "e": "AQAB"}


def _register(signer: Signer, alg: str, jwk: Any = UNSET) -> Send:
    shown = signer.jwk if jwk is UNSET else jwk
    return lambda g: g.stranger.post(
        g.stranger.urls["newAccount"], {}, jwk=True, signer=signer, header={"alg": alg, "jwk": shown}
    )
