"""A request of an ACME client: its body, signature and nonce, and the account that sent it (RFC 8555 §6.2 to §6.5)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from starlette.types import Receive

from holdfast.acme import jws
from holdfast.acme.answer import CLOSE, AcmeAnswer, AcmeRefusal
from holdfast.acme.jws import MAX_BODY, Unverified
from holdfast.acme.nonces import NonceChaos, Nonces
from holdfast.acme.rates import RequestRates
from holdfast.acme.resources import CaUrls
from holdfast.core.own_ca.acme import AccountState
from holdfast.core.own_ca.problem import AcmeError
from holdfast.errors import StoreError
from holdfast.operations.acme import accounts, certificates
from holdfast.operations.acme.context import AcmeContext, Requester
from holdfast.pki import jwk
from holdfast.pki.jwk import AccountKey
from holdfast.ports import Clock
from holdfast.telemetry import Telemetry

# ── The body ──
# No larger than MAX_BODY, and no slower than BODY_PATIENCE allows.


BODY_PATIENCE: Final = 10.0  # seconds for the whole body


class ClientGone(Exception):
    """The client closed the connection before its request was complete."""


async def read_body(receive: Receive, length: bytes | None, *, patience: float = BODY_PATIENCE) -> bytes:
    """The body, from any number of pieces. `length` is the Content-Length that the client sent."""
    if length is not None and (not length.isdigit() or len(length) > 9 or int(length) > MAX_BODY):
        raise _too_large()
    try:
        async with asyncio.timeout(patience):
            return await _pieces(receive)
    except TimeoutError:
        problem = AcmeError.malformed(f"The body did not arrive within {patience:g} s.", status=408).problem
        raise AcmeRefusal(problem, CLOSE) from None


async def _pieces(receive: Receive) -> bytes:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGone
    body: bytes = message.get("body", b"")
    while message.get("more_body", False) and len(body) <= MAX_BODY:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body += message.get("body", b"")
    if len(body) > MAX_BODY:
        raise _too_large()
    return body


def _too_large() -> AcmeRefusal:
    """The rest of the body is not read: the connection ends."""
    problem = AcmeError.malformed(f"A request has at most {MAX_BODY} bytes.", status=413).problem
    return AcmeRefusal(problem, CLOSE)


# ── Account keys ──
# The keys of accounts, kept in memory: checking a signature needs no look at the store.


KEPT: Final = 20_000


class AccountKeys:
    """A kept key may be out of date: every operation compares the key, and looks at the account's state, once more.

    A signature that the kept key did not make is therefore refused only after a look at the account as it is now.
    """

    def __init__(self, acme_context: AcmeContext) -> None:
        self._acme_context = acme_context
        self._kept: dict[tuple[str, str], AccountKey] = {}

    async def check(self, ca: str, account: str, claim: Unverified) -> tuple[AccountKey, Requester]:
        """The key and the account of a request, if the account's key signed it."""
        key = self._kept.get((ca, account))
        if key is None or not key.verify(claim.alg, claim.signature, claim.signing_input):
            key = await self._looked_up(ca, account, claim)
        return key, Requester(account, key.thumbprint)

    def forget(self, ca: str, account: str) -> None:
        self._kept.pop((ca, account), None)

    async def _looked_up(self, ca: str, account: str, claim: Unverified) -> AccountKey:
        found = await accounts.by_id(self._acme_context, ca, account)
        if found is None or found.jwk == "{}":  # an account of our own, which has no key
            raise AcmeError.account_does_not_exist("There is no such account.")
        key = jwk.deserialize(found.jwk)
        jws.check(claim, key)
        if found.state is not AccountState.VALID:  # §7.3.6
            raise AcmeError.unauthorized(f"The account is {found.state}.", status=401)
        if len(self._kept) >= KEPT:
            del self._kept[next(iter(self._kept))]  # the one that was learned first
        self._kept[ca, account] = key
        return key


# ── A request ──
# One admitted request: its CA, its resource, its account and its content.


@dataclass(frozen=True, slots=True, kw_only=True)
class AcmeServices:
    """The services that handlers need besides the request."""

    acme_context: AcmeContext
    nonces: Nonces
    clock: Clock
    telemetry: Telemetry
    keys: AccountKeys
    chaos: NonceChaos
    rates: RequestRates


class Signed(NamedTuple):
    """A request whose signature and nonce are good."""

    jws: Unverified
    key: AccountKey
    who: Requester | None  # None if it was signed with a key, and not for an account


@dataclass(frozen=True, slots=True, kw_only=True)
class AcmeRequest:
    place: CaUrls
    method: str
    args: tuple[str, ...]  # the parts of the path after the kind of resource
    query: str
    accept: str
    address: str  # of the client: the peer, or whom a proxy of ours names
    signed: Signed | None  # None only where anyone may ask

    @property
    def jws(self) -> Unverified:
        return self._signed.jws

    @property
    def key(self) -> AccountKey:
        return self._signed.key

    @property
    def who(self) -> Requester:
        who = self._signed.who
        if who is None:
            raise AssertionError("this resource is for accounts: `admit` lets no other request in")
        return who

    @property
    def _signed(self) -> Signed:
        if self.signed is None:
            raise AssertionError("this resource is for signed requests: `admit` lets no other request in")
        return self.signed

    @property
    def content(self) -> dict[str, object]:
        return jws.payload_json(self.jws)

    def must_be_object(self) -> None:
        """Refuse a payload that is no JSON object, where its fields do not matter."""
        jws.payload_json(self.jws)

    def only_look(self) -> None:
        """Refuse anything but POST-as-GET (§6.3)."""
        if not self.jws.is_post_as_get:
            raise AcmeError.malformed("This resource can only be fetched: the payload must be empty.")


AcmeHandler = Callable[[AcmeServices, AcmeRequest], Awaitable[AcmeAnswer]]


# ── Admission ──
# A request is admitted (RFC 8555 §6.2 to §6.5) if it is a signed JWS for this URL, with a fresh nonce.


SignedBy = Literal["account", "key", "either", "none"]
INVALID: Final = "JWS has an invalid anti-replay nonce"  # acme.sh knows badNonce only by these words of Boulder's
JOSE: Final = b"application/jose+json"
NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,120}")  # every id that we ever gave out


async def admit(services: AcmeServices, place: CaUrls, signer: SignedBy, url: str, media: bytes, body: bytes) -> Signed:
    """The request, once everything about it has been checked that does not depend on its content."""
    try:
        _check_media_type(media)
        claim = jws.parse(body)
    except AcmeError:
        await _void(services, jws.nonce_in(body))
        raise
    try:
        signed = await _checked(services, place, signer, url, claim)
    except AcmeError:
        await _void(services, claim.nonce)
        raise
    await _redeem(services, signed)
    if signed.who is not None:
        services.rates.count_account(signed.who.account)
    return signed


async def _void(services: AcmeServices, nonce: str) -> None:
    """A nonce that appeared in a request is good for no other request, also if that request was bad (§6.5)."""
    if nonce:
        with suppress(StoreError):  # the problem of the request is of more use to the client
            await services.nonces.redeem(nonce)


def _check_media_type(value: bytes) -> None:
    if value.partition(b";")[0].strip().lower() != JOSE:
        raise AcmeError.malformed("The Content-Type of a signed request is application/jose+json.", status=415)


async def _checked(services: AcmeServices, place: CaUrls, signer: SignedBy, url: str, claim: Unverified) -> Signed:
    if claim.url != url:
        raise AcmeError.unauthorized("The url in the protected header is not the URL of this request.")
    if claim.jwk is not None:
        if signer == "account":
            raise AcmeError.malformed("This request must name its account: kid instead of jwk.")
        jws.check(claim, claim.jwk)
        return Signed(claim, claim.jwk, None)
    if signer == "key":
        raise AcmeError.malformed("This request must contain its key: jwk instead of kid.")
    account = (claim.kid or "").removeprefix(place.account_root)
    if account == claim.kid or not NAME.fullmatch(account):
        raise AcmeError.account_does_not_exist("The kid is not the URL of an account of this CA.")
    return Signed(claim, *await services.keys.check(place.ca.id, account, claim))


async def still_in(services: AcmeServices, signed: Signed) -> None:
    """Refuse a request of a deactivated account before any other problem (§7.3.6): the kept key may be outdated."""
    if signed.who is not None:
        await accounts.update(services.acme_context, signed.who, None)


async def _redeem(services: AcmeServices, signed: Signed) -> None:
    minted = await services.nonces.redeem(signed.jws.nonce)
    if minted is None:
        raise AcmeError.bad_nonce(f"{INVALID}: not one of ours, too old, or used before.")
    if minted.note and signed.who is not None:  # the nonce of a download has come back
        certificates.acknowledged(services.acme_context, signed.who.account, minted.note)
    if services.chaos.refuses(signed.key.thumbprint, signed.jws.url, services.acme_context.random):
        raise AcmeError.bad_nonce(f"{INVALID}: refused to see what the client does.")
