"""The exchange with one ACME server: its directory, its nonces, signed requests, and answers that were checked."""

from __future__ import annotations

import hmac
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from holdfast import __version__
from holdfast.core import backoff
from holdfast.errors import TryLater
from holdfast.issuers import reading
from holdfast.issuers.acme import reading as acme_reading
from holdfast.issuers.acme.reading import AcmeProblem, ResponseContext
from holdfast.issuers.rest import ROOTS, unanswered
from holdfast.pki.keys import PrivateKey, jwk
from holdfast.ports import Clock, Request, Response, Transport
from holdfast.secret import Secret

# ── Signatures ──
# Requests as a CA can check them (RFC 8555 §6.2, RFC 7515): a flattened JWS by our account's key, or a MAC.


_CURVES: Final = {"secp256r1": ("ES256", hashes.SHA256(), 32), "secp384r1": ("ES384", hashes.SHA384(), 48)}


@dataclass(frozen=True, slots=True)
class CaAccount:
    """Our account at a CA. Key and URL are stored before either is used: the key first, then the URL from the CA."""

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


def by_account(payload: Mapping[str, object] | None, *, url: str, nonce: str, account: CaAccount) -> bytes:
    """A request of the account; without a payload it is a POST-as-GET (§6.3)."""
    return _dumped(_signed(payload, {"kid": account.url, "nonce": nonce, "url": url}, account.key))


def by_key(payload: Mapping[str, object], *, url: str, nonce: str, key: PrivateKey) -> bytes:
    """A request of a key that has no account yet, or asks whether it has one."""
    return _dumped(_signed(payload, {"jwk": jwk(key.public_key()), "nonce": nonce, "url": url}, key))


def signed_key_change(account: CaAccount, new: PrivateKey, *, url: str) -> dict[str, str]:
    """The inner JWS of §7.3.5: the new key says that it takes over from the old one."""
    payload = {"account": account.url, "oldKey": jwk(account.key.public_key())}
    return _signed(payload, {"jwk": jwk(new.public_key()), "url": url}, new)


def binding(eab: Eab, key: PrivateKey, *, url: str) -> dict[str, str]:
    """The external account binding (RFC 8555 §7.3.4): the account key, signed with the MAC key."""
    header = {"alg": "HS256", "kid": eab.kid, "url": url}
    protected, payload = _encoded(header), _encoded(jwk(key.public_key()))
    mac = hmac.digest(eab.mac_key.reveal(), f"{protected}.{payload}".encode(), "sha256")
    return {"protected": protected, "payload": payload, "signature": b64(mac)}


def _signed(payload: Mapping[str, object] | None, header: Mapping[str, object], key: PrivateKey) -> dict[str, str]:
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


def _encoded(value: Mapping[str, object]) -> str:
    return b64(_dumped(value))


def _dumped(value: Mapping[str, object]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


# ── Requests ──
# The exchange with one ACME server: its directory, its nonces, signed requests, and answers that were checked.


MAX_BODY: Final = 256 * 1024
BAD_NONCES: Final = 24  # that are answered by trying again with a new one; it is protocol (§6.5), not policy
_DIRECTORY_FOR: Final = 900.0  # seconds
_NONCE_FOR: Final = 600.0
_MOST_PLACES, _MOST_NONCES = 64, 32
_JOSE: Final = {"Content-Type": "application/jose+json"}
_WHO: Final = {"User-Agent": f"holdfast/{__version__}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    """The directory of a server (§7.1.1); every address in it was checked."""

    new_nonce: str
    new_account: str
    new_order: str
    revoke_cert: str
    key_change: str | None
    renewal_info: str | None
    terms: str | None  # shown to people, never fetched
    eab_required: bool
    profiles: Mapping[str, str]  # name → description


@dataclass(frozen=True, slots=True)
class AcmeReply:
    """An answer, good or not; `good()` raises if not."""

    ca: str
    what: str
    response: Response
    after: timedelta | None
    problem: AcmeProblem | None

    @property
    def word(self) -> str:
        return self.problem.word if self.problem else ""

    @property
    def status(self) -> int:
        return self.response.status

    def good(self) -> AcmeReply:
        if not 200 <= self.response.status < 300:
            raise acme_reading.failure(self.ca, self.response.status, self.problem, after=self.after, what=self.what)
        return self

    def json(self) -> dict[str, object]:
        return reading.json_object(self.good().response.body, f"The answer of {self.ca} ({self.what})")

    def location(self, place: ResponseContext) -> str:
        return place.checked(self.good().response.headers.get("location"), self.what)


@dataclass(slots=True)
class _Kept:
    directory: Directory | None = None
    read_at: float = 0.0
    nonces: deque[tuple[str, float]] = field(default_factory=lambda: deque(maxlen=_MOST_NONCES))


class Memory:
    """Nonces and directories that a process remembers between two calls. Losing them costs a request or two."""

    def __init__(self) -> None:
        self._places: OrderedDict[ResponseContext, _Kept] = OrderedDict()

    def of(self, place: ResponseContext) -> _Kept:
        kept = self._places.setdefault(place, _Kept())
        self._places.move_to_end(place)
        while len(self._places) > _MOST_PLACES:
            self._places.popitem(last=False)
        return kept


class Wire:
    """All that is sent to one CA goes through here."""

    def __init__(self, transport: Transport, clock: Clock, memory: Memory, place: ResponseContext) -> None:
        self.place = place
        self._transport = transport
        self._clock = clock
        self._memory = memory

    @property
    def clock(self) -> Clock:
        return self._clock

    # ── Asking ──

    async def directory(self) -> Directory:
        kept = self._memory.of(self.place)
        if kept.directory is None or self._clock.monotonic() - kept.read_at > _DIRECTORY_FOR:
            reply = await self.get(self.place.directory, "its directory")
            kept.directory, kept.read_at = _directory(reply.json(), self.place), self._clock.monotonic()
        return kept.directory

    async def get(self, url: str, what: str) -> AcmeReply:
        """Without a signature: for the directory and renewal information only."""
        return self._reply(await self._send("GET", self.place.checked(url, what)), what)

    async def fetch(self, url: str, account: CaAccount, what: str) -> AcmeReply:
        """POST-as-GET (§6.3)."""
        return await self.post(url, None, account, what)

    async def post(
        self, url: str, payload: Mapping[str, Any] | None, by: CaAccount | PrivateKey, what: str
    ) -> AcmeReply:
        """A signed request. A refused nonce costs another round; each refusal brings a fresh one along."""
        self.place.checked(url, what)
        reply = await self._post(url, payload, by, what)
        for _ in range(BAD_NONCES):
            if reply.word != "badNonce":
                break
            reply = await self._post(url, payload, by, what)
        return reply

    async def _post(
        self, url: str, payload: Mapping[str, object] | None, by: CaAccount | PrivateKey, what: str
    ) -> AcmeReply:
        nonce = await self._nonce()
        if isinstance(by, CaAccount):
            body = by_account(payload, url=url, nonce=nonce, account=by)
        else:
            body = by_key(payload or {}, url=url, nonce=nonce, key=by)
        reply = self._reply(await self._send("POST", url, body), what)
        if reply.word == "badNonce":
            self._memory.of(self.place).nonces.clear()  # what was handed out with it is as stale
        self._keep_nonce(reply.response)
        return reply

    async def _send(self, method: str, url: str, body: bytes = b"") -> Response:
        request = Request(
            method=method, url=url, headers=_WHO | (_JOSE if body else {}), body=body,
            deadline_for=self.place.deadline_for, max_body=MAX_BODY, roots=self.place.roots,
        )  # fmt: skip
        try:
            return await self._transport.request(request)
        except TryLater as why:
            said = f"{why}{ROOTS if why.reason == 'TLS' else ''}"
            raise TryLater(said, after=why.after, reason=unanswered(why), sent=why.sent) from why

    def _reply(self, response: Response, what: str) -> AcmeReply:
        good = 200 <= response.status < 300
        now, problem = self._clock.now(), None if good else acme_reading.read_problem(response.body)
        after = backoff.retry_after(response.headers.get("retry-after"), now)
        if after is None and problem is not None and problem.word == "rateLimited":
            after = backoff.retry_after_in_words(problem.detail, now)
        return AcmeReply(self.place.name, what, response, after, problem)

    # ── Nonces (§7.2) ──

    async def _nonce(self) -> str:
        nonces, now = self._memory.of(self.place).nonces, self._clock.monotonic()
        while nonces:
            nonce, kept_at = nonces.pop()  # the youngest: CAs forget the oldest first
            if now - kept_at < _NONCE_FOR:
                return nonce
        response = await self._send("HEAD", (await self.directory()).new_nonce)
        self._reply(response, "a new nonce").good()
        self._keep_nonce(response)
        if not nonces:
            raise reading.unreadable(f"The nonce of {self.place.name}")
        return nonces.pop()[0]

    def _keep_nonce(self, response: Response) -> None:
        found = response.headers.get("replay-nonce", "")
        if acme_reading.is_token(found):
            self._memory.of(self.place).nonces.append((found, self._clock.monotonic()))


def _directory(value: Mapping[str, object], place: ResponseContext) -> Directory:
    meta = value.get("meta")
    meta = meta if isinstance(meta, dict) else {}
    profiles = meta.get("profiles")
    terms = meta.get("termsOfService")

    def must(name: str) -> str:
        if name not in value:
            raise reading.unreadable(f"The directory of {place.name}, which lacks {name},")
        return place.checked(value[name], name)

    def may(name: str) -> str | None:
        return place.checked(value[name], name) if value.get(name) is not None else None

    return Directory(
        new_nonce=must("newNonce"),
        new_account=must("newAccount"),
        new_order=must("newOrder"),
        revoke_cert=must("revokeCert"),
        key_change=may("keyChange"),
        renewal_info=may("renewalInfo"),
        terms=reading.words(terms) if terms else None,
        eab_required=meta.get("externalAccountRequired") is True,
        profiles=_profiles(profiles) if isinstance(profiles, dict) else {},
    )


def _profiles(found: Mapping[str, object]) -> dict[str, str]:
    return {reading.words(name, 80): reading.words(said, 200) for name, said in list(found.items())[:100]}
