"""The exchange with one ACME server: its directory, its nonces, signed requests, and answers that were checked."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from holdfast import __version__
from holdfast.core import backoff
from holdfast.errors import TryLater
from holdfast.issuers import acme_jws, acme_problem, acme_reading, reading
from holdfast.issuers.acme_jws import Account
from holdfast.issuers.acme_problem import Problem
from holdfast.issuers.acme_reading import Place
from holdfast.issuers.rest import ROOTS, unanswered
from holdfast.pki.keys import PrivateKey
from holdfast.ports import Clock, Request, Response, Transport

MAX_BODY: Final = 256 * 1024
BAD_NONCES: Final = 24  # that are answered by trying again with a new one; it is protocol (§6.5), not policy
_DIRECTORY_FOR: Final = 900.0  # seconds
_NONCE_FOR: Final = 600.0
_MOST_PLACES, _MOST_NONCES = 64, 32
_JOSE: Final = {"Content-Type": "application/jose+json"}
_WHO: Final = {"User-Agent": f"holdfast/{__version__}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    """What a server offers (§7.1.1); every address in it was checked."""

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
class Reply:
    """An answer, good or not; `good()` raises if not."""

    ca: str
    what: str
    response: Response
    after: timedelta | None
    problem: Problem | None

    @property
    def word(self) -> str:
        return self.problem.word if self.problem else ""

    @property
    def status(self) -> int:
        return self.response.status

    def good(self) -> Reply:
        if not 200 <= self.response.status < 300:
            raise acme_problem.failure(self.ca, self.response.status, self.problem, after=self.after, what=self.what)
        return self

    def json(self) -> dict[str, Any]:
        return reading.json_object(self.good().response.body, f"The answer of {self.ca} ({self.what})")

    def location(self, place: Place) -> str:
        return place.checked(self.good().response.headers.get("location"), self.what)


@dataclass(slots=True)
class _Kept:
    directory: Directory | None = None
    read_at: float = 0.0
    nonces: deque[tuple[str, float]] = field(default_factory=lambda: deque(maxlen=_MOST_NONCES))


class Memory:
    """What a process remembers of its CAs between two calls. Losing it costs a request or two."""

    def __init__(self) -> None:
        self._places: OrderedDict[Place, _Kept] = OrderedDict()

    def of(self, place: Place) -> _Kept:
        kept = self._places.setdefault(place, _Kept())
        self._places.move_to_end(place)
        while len(self._places) > _MOST_PLACES:
            self._places.popitem(last=False)
        return kept


class Wire:
    """All that is sent to one CA goes through here."""

    def __init__(self, transport: Transport, clock: Clock, memory: Memory, place: Place) -> None:
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

    async def get(self, url: str, what: str) -> Reply:
        """Without a signature: for the directory and renewal information only."""
        return self._reply(await self._send("GET", self.place.checked(url, what)), what)

    async def fetch(self, url: str, account: Account, what: str) -> Reply:
        """POST-as-GET (§6.3)."""
        return await self.post(url, None, account, what)

    async def post(self, url: str, payload: Mapping[str, Any] | None, by: Account | PrivateKey, what: str) -> Reply:
        """A signed request. A refused nonce costs another round; each refusal brings a fresh one along."""
        self.place.checked(url, what)
        reply = await self._post(url, payload, by, what)
        for _ in range(BAD_NONCES):
            if reply.word != "badNonce":
                break
            reply = await self._post(url, payload, by, what)
        return reply

    async def _post(self, url: str, payload: Mapping[str, Any] | None, by: Account | PrivateKey, what: str) -> Reply:
        nonce = await self._nonce()
        if isinstance(by, Account):
            body = acme_jws.by_account(payload, url=url, nonce=nonce, account=by)
        else:
            body = acme_jws.by_key(payload or {}, url=url, nonce=nonce, key=by)
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

    def _reply(self, response: Response, what: str) -> Reply:
        good = 200 <= response.status < 300
        now, problem = self._clock.now(), None if good else acme_problem.read(response.body)
        after = backoff.retry_after(response.headers.get("retry-after"), now)
        if after is None and problem is not None and problem.word == "rateLimited":
            after = backoff.retry_after_in_words(problem.detail, now)
        return Reply(self.place.name, what, response, after, problem)

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


def _directory(value: Mapping[str, Any], place: Place) -> Directory:
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


def _profiles(found: Mapping[str, Any]) -> dict[str, str]:
    return {reading.words(name, 80): reading.words(said, 200) for name, said in list(found.items())[:100]}
