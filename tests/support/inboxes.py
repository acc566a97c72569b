"""Where notifications arrive in tests: real SMTP and HTTP servers on loopback that keep all, and fail on order.

async with Mailbox() as mail:
    ...  # send to mail.port
    assert mail.letters[0].subject == "…"

async with Inbox() as web:
    web.answers += [Answer(503, {"Retry-After": "7"})]
    ...  # post to web.url("/hook")
    assert web.requests[0].json() == {…}
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from types import TracebackType
from typing import Any, Literal, Self

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session
from anyio.from_thread import start_blocking_portal
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from tests.support.challenge_server import a_certificate, server_context
from tests.support.http_server import HOST, HttpAnswer, HttpRequest, HttpServer, hang
from tests.support.secrets_watch import look

ROUTED = "/v2"  # PagerDuty, in tests


class Identity:
    """A certificate for this machine that vouches for itself; `roots` is what a client must believe."""

    def __init__(self) -> None:
        names: list[x509.GeneralName] = [x509.IPAddress(ipaddress.ip_address(HOST)), x509.DNSName("localhost")]
        certificate, key = a_certificate(names, None)
        self.context = server_context(certificate, key)
        self.roots = certificate.public_bytes(Encoding.PEM).decode()


# ── Mail ──


@dataclass
class Letter:
    """One message as it came in: the envelope and the content."""

    sender: str
    recipients: list[str]
    content: bytes
    user: str | None
    tls: bool

    @property
    def message(self) -> EmailMessage:
        found = message_from_bytes(self.content, policy=default)
        assert isinstance(found, EmailMessage)
        return found

    @property
    def subject(self) -> str:
        return str(self.message["Subject"])

    @property
    def text(self) -> str:
        return str(self.message.get_content()).replace("\r\n", "\n")


Safety = Literal["none", "starttls", "tls"]


class Mailbox:
    """An SMTP server. `refusals` says what an address is told at RCPT, `answers` what the next messages are told."""

    def __init__(self, *, safety: Safety = "none", users: Mapping[str, str] | None = None, port: int = 0) -> None:
        self.letters: list[Letter] = []
        self.refusals: dict[str, str] = {}
        self.answers: list[str] = []  # such as "451 later"; when there is none any more, all is well
        self.greeted: list[str] = []
        self.port = port
        self.identity = Identity() if safety != "none" else None
        self._safety = safety
        self._users = users

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        context = self.identity.context if self.identity else None
        implicit = context if self._safety == "tls" else None
        self._lines = set[SMTP]()

        def line() -> SMTP:
            with warnings.catch_warnings(action="ignore"):  # of passwords without STARTTLS: it is TLS, or loopback
                made = SMTP(
                    self,
                    hostname="mail.test",
                    enable_SMTPUTF8=True,
                    tls_context=context if self._safety == "starttls" else None,
                    require_starttls=self._safety == "starttls",
                    auth_required=self._users is not None,
                    auth_require_tls=self._safety == "starttls",
                    authenticator=self._known,
                    loop=loop,
                )
            self._lines.add(made)
            return made

        self._server = await loop.create_server(line, HOST, self.port, ssl=implicit)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for line in self._lines:
            if line.transport is not None:
                line.transport.abort()
        await self._server.wait_closed()

    def _known(self, server: SMTP, session: Session, envelope: Envelope, mechanism: str, auth_data: Any) -> AuthResult:
        assert isinstance(auth_data, LoginPassword)
        user, password = auth_data.login.decode(), auth_data.password.decode()
        good = (self._users or {}).get(user) == password
        return AuthResult(success=good, auth_data=user if good else None, handled=False)

    # ── what the server asks ──

    async def handle_EHLO(
        self, server: SMTP, session: Session, envelope: Envelope, hostname: str, responses: list[str]
    ) -> list[str]:
        session.host_name = hostname
        self.greeted.append(hostname)
        return responses

    async def handle_RCPT(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if address in self.refusals:
            return self.refusals[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        told = self.answers.pop(0) if self.answers else "250 kept"
        if told.startswith("2"):
            content = envelope.content
            assert isinstance(content, bytes)
            letter = Letter(
                sender=str(envelope.mail_from),
                recipients=[str(each) for each in envelope.rcpt_tos],
                content=content,
                user=session.auth_data,
                tls=self._safety == "tls" or session.ssl is not None,
            )
            look(f"letter to {letter.recipients}", letter.content)
            self.letters.append(letter)
        return told


# ── HTTP ──


@dataclass(frozen=True)
class Answer(HttpAnswer):
    body: bytes = b"ok"
    hang_up: bool = False  # after the request was taken: the reply is lost
    never: bool = False  # the line stays open, and silent
    echo: bool = False  # says what it was sent, credentials and all


class Inbox(HttpServer):
    """An HTTP server. `answers` are given one after the other; when there is none any more, `usual` is."""

    def __init__(self, usual: Answer | None = None, *, tls: Identity | None = None, port: int = 0) -> None:
        super().__init__(port=port, tls=tls.context if tls else None)
        self.answers: list[Answer] = []
        self.usual = usual or Answer()

    def url(self, path: str = "/") -> str:
        return f"{self.origin}{path}"

    async def respond(self, request: HttpRequest, writer: asyncio.StreamWriter) -> None:
        if request.path != ROUTED:  # there the key of the receiver is a part of the message
            look("message to a web hook", request.body)
        answer = self.answers.pop(0) if self.answers else self.usual
        if answer.hang_up:
            raise ConnectionResetError
        if answer.never:
            await hang(writer)
        writer.write((replace(answer, body=_echo(request)) if answer.echo else answer).encoded())


def _echo(request: HttpRequest) -> bytes:
    return f"{request.target} {request.headers.get('authorization', '')} ".encode() + request.body


# ── Signatures (Standard Webhooks) ──


def well_signed(call: HttpRequest, secret: str, *, now: float, tolerance: float = 300.0) -> bool:
    """As a receiver checks it: one of the signatures is ours, and the message is not an old one sent again."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    sent_at = call.headers["webhook-timestamp"]
    if abs(now - int(sent_at)) > tolerance:
        return False
    signed = f"{call.headers['webhook-id']}.{sent_at}.".encode() + call.body
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    found = [each.split(",", 1) for each in call.headers["webhook-signature"].split(" ")]
    return any(version == "v1" and hmac.compare_digest(each, expected) for version, each in found)


@contextmanager
def mail_server() -> Iterator[Mailbox]:
    """A mailbox on a thread of its own, for tests that type commands on theirs."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(Mailbox()) as mail:
        yield mail
