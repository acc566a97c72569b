"""The ACME server as an ASGI application: `/acme/{ca}/…`, RFC 8555 and the RFCs that build on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from starlette.types import Receive, Scope, Send

from holdfast.acme import accounts, certificates, orders
from holdfast.acme.answer import AcmeAnswer, AcmeRefusal, Header, problem_answer
from holdfast.acme.nonces import NonceChaos, Nonces
from holdfast.acme.rates import RequestRates
from holdfast.acme.request import (
    NAME,
    AccountKeys,
    AcmeHandler,
    AcmeRequest,
    AcmeServices,
    ClientGone,
    Signed,
    SignedBy,
    admit,
    read_body,
    still_in,
)
from holdfast.acme.resources import CaUrls, place_of
from holdfast.core.client import ProxyNetwork, client_address, networks
from holdfast.core.own_ca.problem import AcmeError, Problem
from holdfast.errors import KeyMissing, StoreError
from holdfast.operations.acme.context import AcmeContext, coming_from
from holdfast.ports import Clock
from holdfast.telemetry import Telemetry

# ── Browsers ──
# Clients that run in a browser (RFC 8555 §6.1): any page may send requests, since cookies count for nothing.


KEPT_FOR: Final = 86_400  # seconds for which a browser need not ask again
# With every answer. Headers that are not named here are kept from the page that asked.
CORS_OPEN: Final[tuple[Header, ...]] = (
    (b"access-control-allow-origin", b"*"),
    (b"access-control-expose-headers", b"Link, Location, Replay-Nonce, Retry-After"),
)


def is_preflight(method: str, headers: Mapping[bytes, bytes]) -> bool:
    """Whether this is a CORS preflight request; any other OPTIONS is a method that is not allowed."""
    return method == "OPTIONS" and b"origin" in headers and b"access-control-request-method" in headers


def preflight(allow: bytes) -> AcmeAnswer:
    """The answer to a preflight: a page cannot send a JOSE body without one."""
    may: tuple[Header, ...] = (
        (b"access-control-allow-methods", allow),
        (b"access-control-allow-headers", b"Content-Type"),
        (b"access-control-max-age", b"%d" % KEPT_FOR),
    )
    return AcmeAnswer(204, headers=may)


# ── The directory and newNonce ──
# RFC 8555 §7.1.1, §7.2: open to all, and to signed requests as well (§6.3).


async def directory(services: AcmeServices, request: AcmeRequest) -> AcmeAnswer:
    await _look(services, request)
    return AcmeAnswer(200, request.place.directory)


async def new_nonce(services: AcmeServices, request: AcmeRequest) -> AcmeAnswer:
    """The nonce itself is added by `_headers`, as for every answer."""
    await _look(services, request)
    return AcmeAnswer(200 if request.method == "HEAD" else 204)


async def _look(services: AcmeServices, request: AcmeRequest) -> None:
    """A signed request must be a POST-as-GET of a valid account."""
    if request.signed is not None:
        request.only_look()
        await still_in(services, request.signed)


# ── Routes ──
# One table: the resource of each path, the methods that it takes, and the signature that it needs.


@dataclass(frozen=True, slots=True)
class Route:
    handler: AcmeHandler
    signer: SignedBy
    public: bool = False  # GET and HEAD, by anyone
    pages: bool = False  # its URLs may have a query
    indexed: bool = True  # its answers link to the directory
    mints: bool = False  # every answer has a nonce, not only those to POST

    @property
    def allow(self) -> bytes:
        return b", ".join([b"GET, HEAD"] * self.public + [b"POST"] * (self.signer != "none"))


# By the kind of resource and the rest of its path: "" is an id.
ROUTES: Final[dict[tuple[str, ...], Route]] = {
    ("directory",): Route(directory, "account", public=True, indexed=False),
    ("new-nonce",): Route(new_nonce, "account", public=True, mints=True),
    ("new-account",): Route(accounts.new_account, "key"),
    ("account", ""): Route(accounts.account, "account"),
    ("account", "", "orders"): Route(accounts.orders, "account", pages=True),
    ("key-change",): Route(accounts.key_change, "account"),
    ("new-order",): Route(orders.new_order, "account"),
    ("order", ""): Route(orders.order, "account"),
    ("order", "", "finalize"): Route(orders.finalize, "account"),
    ("authz", ""): Route(orders.authz, "account"),
    ("challenge", ""): Route(orders.challenge, "account"),
    ("certificate", ""): Route(certificates.certificate, "account"),
    ("certificate", "", "*"): Route(certificates.certificate, "account"),
    ("revoke-cert",): Route(certificates.revoke_cert, "either"),
    ("renewal-info", ""): Route(certificates.renewal_info, "none", public=True),
}


def find_route(parts: list[str]) -> tuple[Route, tuple[str, ...]] | None:
    """The route of a path below a CA's root, and its arguments."""
    match parts:
        case [kind]:
            route = ROUTES.get((kind,))
        case [kind, name]:
            route = ROUTES.get((kind, "")) if NAME.fullmatch(name) else None
        case [kind, name, last]:
            route = ROUTES.get((kind, "", last), ROUTES.get((kind, "", "*"))) if NAME.fullmatch(name) else None
        case _:
            route = None
    return None if route is None else (route, tuple(parts[1:]))


# ── The application ──


NO_STORE: Final[Header] = (b"cache-control", b"no-store")
AWAY_RETRY_AFTER: Final = 5  # seconds
CLOSED_RETRY_AFTER: Final = 30  # seconds
NOT_NOW: Final = "The database of this CA is being compared with what was issued. Try again later."


def site(
    acme_context: AcmeContext, nonces: Nonces, clock: Clock, telemetry: Telemetry, *, proxies: Sequence[str] = ()
) -> AcmeSite:
    """`proxies`: networks whose X-Forwarded-For says who the client is."""
    services = AcmeServices(
        acme_context=acme_context,
        nonces=nonces,
        clock=clock,
        telemetry=telemetry,
        keys=AccountKeys(acme_context),
        chaos=NonceChaos(acme_context.policy.chaos_nonces),
        rates=RequestRates(acme_context.policy, clock),
    )
    return AcmeSite(services, networks(proxies))


class Target(NamedTuple):
    """The CA, the route and the arguments that a path names, as far as it names them."""

    path: str
    place: CaUrls | None = None
    route: Route | None = None
    args: tuple[str, ...] = ()


class AcmeSite:
    """URLs are compared as they were sent, undecoded: we never gave out one that needs decoding."""

    def __init__(self, services: AcmeServices, proxies: tuple[ProxyNetwork, ...] = ()) -> None:
        self._services, self._proxies = services, proxies
        self._base = services.acme_context.policy.base_url
        self._below = urlsplit(self._base).path.rstrip("/")  # the base URL may have a path of its own
        self._prefix = f"{self._below}/acme/"
        self._places: dict[str, CaUrls] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise AssertionError(f"only HTTP is spoken here, not {scope['type']}")
        target = self._find(scope["raw_path"].decode("latin-1"))
        try:
            answer = await self._answer(target, scope, receive)
        except ClientGone:
            return
        except Exception as error:
            answer = self._refused(error, target.path)
        headers = await self._headers(scope["method"], target, answer)
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})
        if answer.sent is not None:
            answer.sent()

    # ── Where to ──

    def _find(self, path: str) -> Target:
        if not path.startswith(self._prefix):
            return Target(path)
        ca, *rest = path[len(self._prefix) :].split("/")
        place = self._place(ca)
        found = None if place is None else find_route(rest)
        return Target(path, place) if found is None else Target(path, place, *found)

    def _place(self, ca: str) -> CaUrls | None:
        authority = self._services.acme_context.authorities.get(ca)
        if authority is None:
            return None
        place = self._places.get(ca)
        if place is None or place.ca is not authority:
            place = self._places[ca] = place_of(authority, self._services.acme_context.policy)
        return place

    def _not_found(self, path: str) -> AcmeError:
        """503 for a CA that cannot be used now, so that its clients try again; 404 for any other address."""
        ca = path.removeprefix(self._prefix).partition("/")[0]
        if path.startswith(self._prefix) and self._services.acme_context.authorities.problem(ca) is not None:
            detail = "This CA cannot be used now."
            return AcmeError.server_internal(detail, status=503, retry_after=AWAY_RETRY_AFTER)
        return AcmeError.malformed("There is nothing at this address.", status=404)

    # ── Answering ──

    async def _answer(self, target: Target, scope: Scope, receive: Receive) -> AcmeAnswer:
        path, place, route, args = target
        if place is None or route is None:
            raise self._not_found(path)
        method, query = scope["method"], scope["query_string"].decode("latin-1")
        headers = _headers_of(scope)
        signed: Signed | None = None
        address = self._address(scope)
        if method == "POST" and self._services.acme_context.closed():
            raise AcmeError.server_internal(NOT_NOW, status=503, retry_after=CLOSED_RETRY_AFTER)
        if method == "POST" and route.signer != "none":
            self._services.rates.count_address(address)
            content = await read_body(receive, headers.get(b"content-length"))
            media, url = headers.get(b"content-type", b""), self._url(path, query, route)
            signed = await admit(self._services, place, route.signer, url, media, content)
        elif is_preflight(method, headers):
            return preflight(route.allow)
        elif not route.public or method not in ("GET", "HEAD"):
            problem = AcmeError.malformed(f"{method:.20} is not allowed here.", status=405).problem
            raise AcmeRefusal(problem, (b"allow", route.allow))
        request = AcmeRequest(
            place=place,
            method=method,
            args=args,
            query=query,
            accept=headers.get(b"accept", b"").decode("latin-1"),
            address=address,
            signed=signed,
        )
        try:
            return await route.handler(self._told(request, headers), request)
        except (AcmeError, AcmeRefusal):
            if signed is not None:
                await still_in(self._services, signed)
            raise

    def _address(self, scope: Scope) -> str:
        """Of the client; what a header says counts only from a proxy that the settings name."""
        peer = scope["client"][0] if scope.get("client") else ""
        if not self._proxies:
            return str(peer)
        forwarded = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for"]
        return client_address(peer, forwarded, self._proxies)

    def _told(self, request: AcmeRequest, headers: dict[bytes, bytes]) -> AcmeServices:
        """The services of one request: the audit log says where its changes came from."""
        if request.signed is None:
            return self._services
        agent = headers.get(b"user-agent", b"").decode("latin-1")
        found = {
            "face": "acme",
            "address": request.address,
            "client": "".join(char for char in agent if " " <= char <= "~")[:80],
        }
        origin = {name: value for name, value in found.items() if value}
        return replace(self._services, acme_context=coming_from(self._services.acme_context, origin))

    def _url(self, path: str, query: str, route: Route) -> str:
        """The `url` that a request must have (§6.4); empty, and never equal, for an address that we never gave out."""
        url = self._base + path[len(self._below) :]
        if not query:
            return url
        return f"{url}?{query}" if route.pages else ""

    def _refused(self, error: Exception, path: str) -> AcmeAnswer:
        log = self._services.telemetry.log
        match error:
            case AcmeRefusal():
                return problem_answer(error.problem, *error.headers)
            case AcmeError():
                log.debug("acme.refused", path=path, type=error.problem.type, detail=error.problem.detail)
                return problem_answer(error.problem)
            case StoreError() | KeyMissing():
                log.error("acme.store_unavailable", path=path, error=str(error))
                detail = "The store cannot be used now."
                return problem_answer(Problem("serverInternal", detail, 503, retry_after=AWAY_RETRY_AFTER))
            case _:
                log.error("acme.failed", path=path, exc_info=error)
                return problem_answer(Problem("serverInternal", "Something went wrong here, and was logged.", 500))

    # ── Headers ──

    async def _headers(self, method: str, target: Target, answer: AcmeAnswer) -> list[Header]:
        place, route = target.place, target.route
        headers: list[Header] = [*answer.headers, *CORS_OPEN]
        if answer.body:
            headers.append((b"content-type", answer.media))
        if answer.status != 204:
            headers.append((b"content-length", b"%d" % len(answer.body)))
        if place is not None and (route is None or route.indexed):
            headers.append(place.index)
        if method == "POST" or (route is not None and route.mints):
            headers.append(NO_STORE)
            await self._add_nonce(headers, answer.note)
        return headers

    async def _add_nonce(self, headers: list[Header], note: str) -> None:
        """Add a nonce, if the store can be used; else the client asks newNonce later."""
        try:
            headers.append((b"replay-nonce", (await self._services.nonces.mint(note)).encode()))
        except StoreError as error:
            self._services.telemetry.log.error("acme.no_nonce", error=str(error))


def _headers_of(scope: Scope) -> dict[bytes, bytes]:
    """The first of each name: none that we read may come twice."""
    found: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        found.setdefault(name, value)
    return found
