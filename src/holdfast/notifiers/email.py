"""E-mail by SMTP: encrypted, or to this machine only; with headers that mail servers and their signatures expect.

Message-ID is made of the id of the notification, so that mail programs recognise a repetition. All mails about one
outage refer to the same id, so that mail programs show them as a thread. From is also the envelope sender, which SPF
and DKIM compare.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP as WIRE
from email.utils import format_datetime
from functools import lru_cache
from typing import Annotated, Final, Literal, Self

import aiosmtplib
from aiosmtplib import (
    SMTPAuthenticationError,
    SMTPRecipientRefused,
    SMTPRecipientsRefused,
    SMTPResponse,
    SMTPSenderRefused,
)
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from holdfast.core.kind import Credential, Kind
from holdfast.core.notifications.notification import ChannelLimits, Why
from holdfast.errors import Refused, TryLater
from holdfast.kind_settings import HOST, KindSettings, Number, Roots, is_here, whole
from holdfast.notifiers.base import Message, Missed, Severity
from holdfast.notifiers.kind import ChannelKind, SenderParts
from holdfast.notifiers.posting import OWN_CA
from holdfast.notifiers.rendering import Rendered, in_header, plain, render
from holdfast.ports import Clock
from holdfast.secret import MASK, Secret

Security = Literal["starttls", "tls", "none"]
_Answers = Mapping[str, SMTPResponse | SMTPRecipientRefused]  # by the address of the recipient
PORTS: Final[dict[Security, int]] = {"starttls": 587, "tls": 465, "none": 25}
DEADLINE: Final = 30.0  # seconds for one mail, with its connection
MOST_LETTERS: Final = 50  # on one connection: many servers close it after a hundred mails
_QUOTED: Final = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The mail server, and our account there."""

    host: str
    port: int
    security: Security
    username: str = ""
    password: Secret[str] | None = None
    roots: str = ""  # PEM, in place of the system's
    hello: str  # our name in EHLO


@dataclass(slots=True, kw_only=True)
class Email:
    """One connection for a batch; an error closes it, and the next mail opens another."""

    channel: str
    server: Server
    sender: str
    recipients: tuple[str, ...]
    clock: Clock
    deadline_for: float = DEADLINE
    _line: aiosmtplib.SMTP | None = field(default=None, init=False, repr=False)
    _letters: int = field(default=0, init=False)  # sent on this connection

    async def send(self, message: Message) -> Missed | None:
        """Send to all recipients, or only to those who did not get it before."""
        to = [each for each in self.recipients if not message.only or each in message.only]
        if not to:
            return None  # those recipients are no longer set for this channel
        letter = self._letter(render(message)).as_bytes(policy=WIRE)
        refused: _Answers
        try:
            async with asyncio.timeout(self.deadline_for):
                line = await self._connected()
                refused, _ = await line.sendmail(self.sender, to, letter)
        except SMTPRecipientsRefused as error:
            self._drop()
            refused = {each.recipient: each for each in error.recipients}
            if not message.only:
                raise self._all_refused(refused) from None
        except TimeoutError:
            self._drop()
            raise TryLater(f"{self._who} did not answer in {self.deadline_for:g} s.", reason=Why.CHANNEL_DOWN) from None
        except (aiosmtplib.SMTPException, OSError, ssl.SSLError) as error:
            self._drop()
            raise self._failure(error) from None
        except BaseException:
            self._drop()
            raise
        return self._missed(refused) if refused else None

    async def close(self) -> None:
        line, self._line = self._line, None
        if line is None or not line.is_connected:
            return
        try:
            async with asyncio.timeout(2.0):
                await line.quit()
        except (aiosmtplib.SMTPException, OSError, TimeoutError):
            line.close()

    async def _connected(self) -> aiosmtplib.SMTP:
        if self._letters >= MOST_LETTERS:
            await self.close()
        self._letters += 1
        if self._line is not None and self._line.is_connected:
            return self._line
        self._letters = 1
        server = self.server
        self._line = aiosmtplib.SMTP(
            hostname=server.host,
            port=server.port,
            local_hostname=server.hello,
            timeout=self.deadline_for,
            use_tls=server.security == "tls",
            start_tls=False,  # below, where the lack of it can be told from other troubles
            tls_context=None if server.security == "none" else _trusting(server.roots),
        )
        await self._line.connect()
        if server.security == "starttls":
            await self._line.ehlo()
            if not self._line.supports_extension("starttls"):
                raise aiosmtplib.SMTPNotSupported("it does not offer STARTTLS")
            await self._line.starttls()
        if server.password:
            await self._line.login(server.username, server.password.reveal())
        return self._line

    def _drop(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None

    # ── The mail ──

    def _letter(self, said: Rendered) -> EmailMessage:
        domain = self.sender.rpartition("@")[2]
        letter = EmailMessage(policy=WIRE)
        letter["From"] = Address("Holdfast", addr_spec=self.sender)
        letter["To"] = [Address(addr_spec=each) for each in self.recipients]
        letter["Subject"] = in_header(said.heading)
        letter["Date"] = format_datetime(self.clock.now())
        letter["Message-ID"] = f"<{said.id}@{domain}>"
        outage = f"<{hashlib.sha256(said.key.encode()).hexdigest()[:32]}.thread@{domain}>"
        letter["In-Reply-To"] = letter["References"] = outage
        letter["Auto-Submitted"] = "auto-generated"  # RFC 3834: absence notes and the like do not answer it
        letter["X-Auto-Response-Suppress"] = "All"
        if said.severity is Severity.CRITICAL and not said.resolved:
            letter["Importance"] = "high"
        letter.set_content(f"{said.text}\n", subtype="plain", charset="utf-8", cte="quoted-printable")
        return letter

    # ── Errors ──

    @property
    def _who(self) -> str:
        return f"Channel {self.channel}: the mail server {self.server.host}:{self.server.port}"

    def _failure(self, error: Exception) -> TryLater | Refused:
        said = self._quoted(error)
        match error:
            case aiosmtplib.SMTPResponseException(code=code) if not _final(code):
                return TryLater(f"{self._who} says: {code} {said}.", reason=Why.CHANNEL_DOWN, answered=True)
            case SMTPAuthenticationError(code=code):
                return _wrong(f"{self._who} does not let us in ({code} {said})", "username, or the credential password")
            case SMTPSenderRefused(code=code):
                return _wrong(f"{self._who} takes nothing from {self.sender} ({code} {said})", "from, or username")
            case aiosmtplib.SMTPDataError(code=code):
                return Refused(f"{self._who} did not take the message ({code} {said}).", reason=Why.REFUSED)
            case aiosmtplib.SMTPNotSupported():
                return _wrong(f"{self._who} does not support the settings: {said}", "security, port or username")
            case _:
                advice = OWN_CA if "CERTIFICATE_VERIFY_FAILED" in said else ""
                return TryLater(f"{self._who} could not be used: {said}.{advice}", reason=Why.CHANNEL_DOWN)

    def _missed(self, refused: _Answers) -> Missed:
        again = tuple(who for who, each in refused.items() if not _final(each.code))
        never = tuple(who for who in refused if who not in again)
        advice = " Check the setting to." if never else ""
        said = f"{self._who} took it, but not for {self._named(refused)}.{advice}"
        return Missed(said=said, again=again, never=never)

    def _all_refused(self, refused: _Answers) -> TryLater | Refused:
        """The error when every recipient was refused."""
        named = self._named(refused)
        if any(not _final(each.code) for each in refused.values()):
            return TryLater(f"{self._who} takes nothing now for {named}.", reason=Why.CHANNEL_DOWN, answered=True)
        return _wrong(f"{self._who} takes nothing for {named}", "to")

    def _named(self, refused: _Answers) -> str:
        shown = [f"{plain(who, 80)} ({each.code} {self._quoted(each)})" for who, each in refused.items()]
        return "; ".join(shown[:3]) + (f" and {len(shown) - 3} more" if len(shown) > 3 else "")

    def _quoted(self, error: Exception | SMTPResponse) -> str:
        """The text of an answer, without our password, which a server may repeat."""
        said = str(getattr(error, "message", "") or getattr(error, "strerror", "") or error or type(error).__name__)
        password = self.server.password
        if password:
            said = said.replace(password.reveal(), MASK)
        return plain(said, _QUOTED).rstrip(".")


def _wrong(problem: str, setting: str) -> Refused:
    return Refused(f"{problem}. Check the setting {setting}.", reason=Why.CHANNEL_MISCONFIGURED)


def _final(code: int) -> bool:
    """RFC 5321 §4.2.1: 5yz will be the same next time, everything else may not."""
    return 500 <= code < 600


@lru_cache(maxsize=8)
def _trusting(roots: str) -> ssl.SSLContext:
    """Cached: reading the system's roots takes longer than sending a mail."""
    return ssl.create_default_context(cadata=roots or None)


# ── Settings ──

MOST_RECIPIENTS: Final = 50
_ATOM: Final = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_LABEL: Final = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_ADDRESS: Final = re.compile(rf"{_ATOM}(?:\.{_ATOM})*@{_LABEL}(?:\.{_LABEL})*")
_LONGEST: Final = 254  # characters of an address


def _mailbox(value: object) -> str:
    text = value.strip() if isinstance(value, str) else ""
    if not _ADDRESS.fullmatch(text) or len(text) > _LONGEST:
        raise ValueError("must hold addresses such as ops@example.com, without names")
    return text


def _mailboxes(given: object) -> tuple[str, ...]:
    listed = given.split(",") if isinstance(given, str) else given if isinstance(given, list | tuple) else [given]
    found = tuple(dict.fromkeys(map(_mailbox, listed)))
    if not 0 < len(found) <= MOST_RECIPIENTS:
        raise ValueError(f"must have 1 to {MOST_RECIPIENTS} addresses")
    return found


def _host(text: str) -> str:
    if not HOST.fullmatch(text):
        raise ValueError("must be a host name or an address")
    return text


class EmailSettings(KindSettings):
    host: Annotated[str, AfterValidator(_host)] = Field(description="Host name of the mail server.")
    port: Annotated[Number, Field(le=65535)] | None = Field(
        default=None, description="Else 587, 465 or 25, by the setting security."
    )
    security: Security = Field(default="starttls", description="none is for this machine only.")
    sender: Annotated[str, BeforeValidator(_mailbox)] = Field(
        alias="from", description="The sender's address; also the envelope sender."
    )
    to: Annotated[tuple[str, ...], BeforeValidator(_mailboxes)] = Field(
        description="The recipients' addresses, as a list or separated by commas."
    )
    username: str = Field(
        default="",
        pattern=whole("[ -~]{1,320}"),
        description="User name of the account; needs the credential password.",
    )
    roots: Roots = Field(default="", description="Trusted roots for the server's TLS certificate, in PEM.")
    hello: Annotated[str, AfterValidator(_host)] = Field(
        default="", description="Our own name, in EHLO; else the domain of the setting from."
    )

    @model_validator(mode="after")
    def _encrypted(self) -> Self:
        """Without encryption, mails and the password must not leave this machine."""
        if self.security == "none" and not is_here(self.host):
            raise ValueError("security may be none for this machine only (127.0.0.1, ::1, localhost)")
        return self


def _account(settings: EmailSettings, credentials: Mapping[str, object]) -> None:
    if bool(settings.username) != ("password" in credentials):
        raise ValueError("the setting username and the credential password go together")


def _make(settings: EmailSettings, parts: SenderParts) -> Email:
    server = Server(
        host=settings.host,
        port=settings.port or PORTS[settings.security],
        security=settings.security,
        username=settings.username,
        password=parts.credentials.get("password"),
        roots=settings.roots,
        hello=settings.hello or settings.sender.rpartition("@")[2],
    )
    return Email(
        channel=parts.channel, server=server, sender=settings.sender, recipients=settings.to, clock=parts.clock
    )


EMAIL: Final[ChannelKind[EmailSettings]] = Kind(
    name="email",
    summary="E-mail by SMTP, encrypted, or to this machine only.",
    settings=EmailSettings,
    credentials=(Credential(name="password", summary="Of the account in the setting username.", required=False),),
    fits=_account,
    limits=ChannelLimits(),
    address="host",
    make=_make,
)
