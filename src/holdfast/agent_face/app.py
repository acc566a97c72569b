"""The agents' part of the TLS listener: `/agent/v1/…`. Everything that a stranger can ask for is bounded here."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from email.utils import format_datetime
from typing import Any, Final

from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.core import base64url
from holdfast.core.agents import protocol
from holdfast.core.agents.agent import AgentRefusal, Evidence
from holdfast.core.client import ProxyNetwork, client_address
from holdfast.errors import KeyMissing, StoreError, TryLater, UserError
from holdfast.operations.agents import enrolment, identities, polling, requests
from holdfast.operations.agents.context import AgentContext, AgentProblem, NoAgentCa
from holdfast.operations.agents.desk import AgentDesk
from holdfast.operations.agents.enrolment import AwaitsApproval, Enrolled, Enrolment, Recovery
from holdfast.operations.agents.identities import IssuedIdentity
from holdfast.operations.agents.requests import Caller, Nonces, SignedRequest
from holdfast.pki import agent_keys
from holdfast.ports import Clock, Random
from holdfast.telemetry import Telemetry

AWAY: Final = 5  # seconds
STRANGERS: Final = 32  # enrolments and recoveries that are worked on at a time
APPROVAL_EVERY: Final = (20.0, 40.0)  # seconds after which an agent asks again whether it is approved
_LARGE: Final = AgentRefusal(413, "too-large", f"A request of an agent has at most {protocol.LARGEST_REQUEST} bytes.")
_MALFORMED: Final = AgentRefusal(400, "malformed", "The request of the agent is not JSON of this protocol.")
_BUSY: Final = AgentRefusal(503, "busy", "Many agents ask at once: try again later.")
Body = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int = 200
    body: Mapping[str, object]
    retry_after: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    scope: Scope
    raw: bytes
    body: Body
    address: str

    def header(self, name: bytes) -> str:
        return next((value.decode("latin-1") for key, value in self.scope["headers"] if key == name), "")

    def text(self, name: str) -> str:
        found = self.body.get(name)
        return found if isinstance(found, str) else ""


class ClientGone(Exception):
    """The agent hung up before its request was whole."""


class AgentSite:
    def __init__(
        self,
        context: AgentContext,
        desk: AgentDesk,
        *,
        clock: Clock,
        random: Random,
        telemetry: Telemetry,
        proxies: tuple[ProxyNetwork, ...] = (),
    ) -> None:
        self._context, self._desk = context, desk
        self._clock, self._random, self._telemetry, self._proxies = clock, random, telemetry, proxies
        self._nonces = Nonces()
        self._strangers = 0
        self._routes: dict[tuple[str, str], Callable[[Asked], Awaitable[Answer]]] = {
            ("GET", protocol.ROOTS): self._roots,
            ("POST", protocol.ENROL): self._for_strangers(self._enrol),
            ("POST", protocol.CHALLENGE): self._for_strangers(self._challenge),
            ("POST", protocol.RECOVER): self._for_strangers(self._recover),
            ("POST", protocol.RENEW): self._renew,
            ("POST", protocol.POLL): self._poll,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            answer = await self._answer(scope, receive)
        except ClientGone:
            return
        except Exception as error:
            answer = self._refused(error, scope["path"])
        content = json.dumps(answer.body, separators=(",", ":")).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(content)),
            (b"cache-control", b"no-store"),
            (b"date", format_datetime(self._clock.now(), usegmt=True).encode()),
        ]
        if answer.retry_after is not None:
            headers.append((b"retry-after", b"%d" % answer.retry_after))
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    async def _answer(self, scope: Scope, receive: Receive) -> Answer:
        handler = self._routes.get((scope["method"], scope["path"]))
        if handler is None:
            raise AgentProblem(AgentRefusal(404, "no-such-address", "There is nothing for agents at this address."))
        raw = await _read(receive)
        peer = scope["client"][0] if scope.get("client") else ""
        forwarded = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for"]
        address = client_address(peer, forwarded, self._proxies) if self._proxies else str(peer)
        return await handler(Asked(scope=scope, raw=raw, body=_object(raw), address=address))

    def _refused(self, error: Exception, path: str) -> Answer:
        log = self._telemetry.log
        match error:
            case AgentProblem():
                return _problem(error.status, error.code, str(error), error.retry_after)
            case NoAgentCa() | TryLater():
                return _problem(503, "no-agent-ca", str(error), AWAY)
            case UserError():
                return _problem(error.status, error.code, str(error), None)
            case StoreError() | KeyMissing():
                log.error("agents.store_unavailable", path=path, error=str(error))
                return _problem(503, "store-unavailable", "The store cannot be used now.", AWAY)
            case _:
                log.error("agents.failed", path=path, exc_info=error)
                return _problem(500, "internal", "Something went wrong here, and was logged.", AWAY)

    # ── Strangers ──

    def _for_strangers(self, handler: Callable[[Asked], Awaitable[Answer]]) -> Callable[[Asked], Awaitable[Answer]]:
        async def bounded(asked: Asked) -> Answer:
            if self._strangers >= STRANGERS:
                raise AgentProblem(_BUSY, retry_after=int(self._random.uniform(5, 30)))
            self._strangers += 1
            try:
                return await handler(asked)
            finally:
                self._strangers -= 1

        return bounded

    async def _roots(self, asked: Asked) -> Answer:
        """Fetched before anything is trusted: an agent compares it with the pin in its token."""
        return Answer(body={"roots": self._context.root_pem().decode(), "protocol": protocol.PROTOCOL})

    async def _enrol(self, asked: Asked) -> Answer:
        done = await enrolment.enrol(self._context, Enrolment.read(asked.body), asked.address)
        if isinstance(done, AwaitsApproval):
            body = {"state": "pending", "agent": done.row.id, "fingerprint": done.fingerprint}
            return Answer(status=202, body=body, retry_after=int(self._random.uniform(*APPROVAL_EVERY)))
        return await self._let_in(done)

    async def _challenge(self, asked: Asked) -> Answer:
        return Answer(body={"challenge": await enrolment.challenge(self._context, asked.text("agent")[:64])})

    async def _recover(self, asked: Asked) -> Answer:
        return await self._let_in(await enrolment.recover(self._context, Recovery.read(asked.body), asked.address))

    async def _let_in(self, done: Enrolled) -> Answer:
        told = await self._told(done.identity)
        return Answer(body={"state": "active", "agent": done.row.id, "name": done.row.name, **told})

    async def _told(self, identity: IssuedIdentity) -> dict[str, object]:
        return {
            "generation": identity.generation,
            "chain": identity.chain_pem,
            "roots": self._context.root_pem().decode(),
            "server_key": base64url.encode(agent_keys.public_der(await self._context.signer())),
            "life_s": self._context.policy.identity_for.total_seconds(),
            "poll_s": self._context.policy.poll_for.total_seconds(),
        }

    # ── Agents ──

    async def _caller(self, asked: Asked) -> Caller:
        request = SignedRequest(
            method=asked.scope["method"],
            path=asked.scope["raw_path"].decode("latin-1"),
            body=asked.raw,
            digest=asked.header(b"content-digest"),
            signature_input=asked.header(b"signature-input"),
            signature=asked.header(b"signature"),
        )
        return await requests.authenticated(self._context, self._nonces, request)

    async def _renew(self, asked: Asked) -> Answer:
        caller = await self._caller(asked)
        identity = await identities.issue(self._context, caller.row, enrolment.octets_of(asked.body, "csr"))
        return Answer(body=await self._told(identity))

    async def _poll(self, asked: Asked) -> Answer:
        caller = await self._caller(asked)
        if self._desk.full:
            raise AgentProblem(_BUSY, retry_after=int(self._random.uniform(30, 60)))
        self._desk.note(caller.row.id, self._clock.now(), asked.address)
        evidence = Evidence.read(asked.body.get("evidence"))
        row = await requests.met(self._context, caller, asked.text("session")[:64], evidence)
        return Answer(body=await polling.poll(self._context, self._desk, row, asked.body))


def _problem(status: int, code: str, detail: str, retry_after: int | None) -> Answer:
    return Answer(status=status, body={"code": code, "detail": detail, "status": status}, retry_after=retry_after)


async def _read(receive: Receive) -> bytes:
    content = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        content += message.get("body", b"")
        if len(content) > protocol.LARGEST_REQUEST:
            raise AgentProblem(_LARGE)
        if not message.get("more_body"):
            return bytes(content)


def _object(raw: bytes) -> Body:
    if not raw:
        return {}
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        raise AgentProblem(_MALFORMED) from None
    if not isinstance(found, dict):
        raise AgentProblem(_MALFORMED)
    return found


def beside(site: ASGIApp, agents: ASGIApp) -> ASGIApp:
    """One listener for ACME clients and agents: paths below /agent/ are the agents'."""

    async def either(scope: Scope, receive: Receive, send: Send) -> None:
        chosen = agents if scope["type"] == "http" and scope["path"].startswith("/agent/") else site
        await chosen(scope, receive, send)

    return either
