"""The ACME server as an ASGI application: `/acme/{ca}/…`, RFC 8555 and what builds on it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from starlette.types import Receive, Scope, Send

from holdfast.acme import body, cors, gate, routes
from holdfast.acme.account_keys import AccountKeys
from holdfast.acme.answer import Answer, Header, Refusal, problem_answer
from holdfast.acme.call import Call, Face, Signed
from holdfast.acme.chaos import Chaos
from holdfast.acme.place import Place, place_of
from holdfast.acme.replay import Nonces
from holdfast.acme.routes import Route
from holdfast.core.problem import AcmeError, Problem
from holdfast.errors import KeyMissing, StoreError
from holdfast.operations.desk import Desk, coming_from
from holdfast.ports import Clock
from holdfast.telemetry import Telemetry

NO_STORE: Final[Header] = (b"cache-control", b"no-store")
AWAY_RETRY_AFTER: Final = 5  # seconds


def site(desk: Desk, nonces: Nonces, clock: Clock, telemetry: Telemetry) -> AcmeSite:
    keys, chaos = AccountKeys(desk), Chaos(desk.policy.chaos_nonces)
    return AcmeSite(Face(desk=desk, nonces=nonces, clock=clock, telemetry=telemetry, keys=keys, chaos=chaos))


class Target(NamedTuple):
    """What a path leads to, as far as it leads anywhere."""

    path: str
    place: Place | None = None
    route: Route | None = None
    args: tuple[str, ...] = ()


class AcmeSite:
    """URLs are compared as they were sent, undecoded: we never gave out one that needs decoding."""

    def __init__(self, face: Face) -> None:
        self._face = face
        self._base = face.desk.policy.base_url
        self._below = urlsplit(self._base).path.rstrip("/")  # the base URL may have a path of its own
        self._prefix = f"{self._below}/acme/"
        self._places: dict[str, Place] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise AssertionError(f"only HTTP is spoken here, not {scope['type']}")
        target = self._find(scope["raw_path"].decode("latin-1"))
        try:
            answer = await self._answer(target, scope, receive)
        except body.Gone:
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
        found = None if place is None else routes.find(rest)
        return Target(path, place) if found is None else Target(path, place, *found)

    def _place(self, ca: str) -> Place | None:
        authority = self._face.desk.authorities.get(ca)
        if authority is None:
            return None
        place = self._places.get(ca)
        if place is None or place.ca is not authority:
            place = self._places[ca] = place_of(authority, self._face.desk.policy)
        return place

    def _not_found(self, path: str) -> AcmeError:
        """A CA that is there and cannot be used now is no reason for its clients to forget it."""
        ca = path.removeprefix(self._prefix).partition("/")[0]
        if path.startswith(self._prefix) and self._face.desk.authorities.problem(ca) is not None:
            detail = "This CA cannot be used now."
            return AcmeError.server_internal(detail, status=503, retry_after=AWAY_RETRY_AFTER)
        return AcmeError.malformed("There is nothing at this address.", status=404)

    # ── Answering ──

    async def _answer(self, target: Target, scope: Scope, receive: Receive) -> Answer:
        path, place, route, args = target
        if place is None or route is None:
            raise self._not_found(path)
        method, query = scope["method"], scope["query_string"].decode("latin-1")
        headers = _headers_of(scope)
        signed: Signed | None = None
        if method == "POST" and route.signer != "nobody":
            content = await body.read(receive, headers.get(b"content-length"))
            media, url = headers.get(b"content-type", b""), self._url(path, query, route)
            signed = await gate.admit(self._face, place, route.signer, url, media, content)
        elif cors.is_preflight(method, headers):
            return cors.preflight(route.allow)
        elif not route.public or method not in ("GET", "HEAD"):
            problem = AcmeError.malformed(f"{method:.20} is not allowed here.", status=405).problem
            raise Refusal(problem, (b"allow", route.allow))
        call = Call(
            place=place,
            method=method,
            args=args,
            query=query,
            accept=headers.get(b"accept", b"").decode("latin-1"),
            address=scope["client"][0] if scope.get("client") else "",
            signed=signed,
        )
        try:
            return await route.handler(self._told(call, headers), call)
        except (AcmeError, Refusal):
            if signed is not None:
                await gate.still_in(self._face, signed)
            raise

    def _told(self, call: Call, headers: dict[bytes, bytes]) -> Face:
        """What a handler needs, for one request: what it changes says where that came from, in the audit log."""
        if call.signed is None:
            return self._face
        agent = headers.get(b"user-agent", b"").decode("latin-1")
        found = {
            "face": "acme",
            "address": call.address,
            "client": "".join(char for char in agent if " " <= char <= "~")[:80],
        }
        origin = {name: value for name, value in found.items() if value}
        return replace(self._face, desk=coming_from(self._face.desk, origin))

    def _url(self, path: str, query: str, route: Route) -> str:
        """What the `url` of a request must be (§6.4); nothing equals that of an address that we never gave out."""
        url = self._base + path[len(self._below) :]
        if not query:
            return url
        return f"{url}?{query}" if route.pages else ""

    def _refused(self, error: Exception, path: str) -> Answer:
        log = self._face.telemetry.log
        match error:
            case Refusal():
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

    async def _headers(self, method: str, target: Target, answer: Answer) -> list[Header]:
        place, route = target.place, target.route
        headers: list[Header] = [*answer.headers, *cors.OPEN]
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
        """Without one, if there is no store to share it through: the client asks newNonce later."""
        try:
            headers.append((b"replay-nonce", (await self._face.nonces.mint(note)).encode()))
        except StoreError as error:
            self._face.telemetry.log.error("acme.no_nonce", error=str(error))


def _headers_of(scope: Scope) -> dict[bytes, bytes]:
    """The first of each name: none that we read may come twice."""
    found: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        found.setdefault(name, value)
    return found
