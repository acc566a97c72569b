"""The shape of a kind of channel, the parts that its senders are made with, and types for its settings."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, NoReturn, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from holdfast.core.kind import Kind, S
from holdfast.core.notifications.notification import ChannelLimits, Why
from holdfast.errors import Refused
from holdfast.kind_settings import KindSettings, Roots
from holdfast.notifiers.base import Sender
from holdfast.notifiers.posting import HttpPoster
from holdfast.ports import Clock, Transport
from holdfast.secret import Secret

HOST: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|[0-9a-fA-F:.]{2,45}")
_VISIBLE: Final = re.compile(r"[!-~]{1,2000}")


class HttpSettings(KindSettings):
    """The settings of every channel over HTTP."""

    roots: Roots = Field(default="", description="Trusted roots for the service's TLS certificate, in PEM.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderParts:
    """What a sender is made with, besides its settings. Refused names a wrong credential without quoting it."""

    channel: str
    credentials: Mapping[str, Secret[str]]  # by name
    transport: Transport
    clock: Clock

    def wrong(self, problem: str) -> NoReturn:
        raise Refused(f"Channel {self.channel}: {problem}.", reason=Why.CHANNEL_MISCONFIGURED)

    def line(self, settings: HttpSettings) -> HttpPoster:
        roots = settings.roots.encode("ascii")
        return HttpPoster(channel=self.channel, transport=self.transport, clock=self.clock, roots=roots)

    def url(self, name: str = "url") -> Secret[str]:
        """An address that is a credential, and is therefore not quoted in errors."""
        found = Secret(self.credentials[name].reveal().strip())
        if problem := problem_with(found.reveal()):
            self.wrong(f"the credential {name} {problem}")
        return found

    def token(self, name: str) -> Secret[str]:
        """A credential that is sent in a header or a field."""
        found = Secret(self.credentials[name].reveal().strip())
        if not _VISIBLE.fullmatch(found.reveal()):
            self.wrong(f"the credential {name} must be one word of visible ASCII characters")
        return found


ChannelKind: TypeAlias = Kind[S, SenderParts, Sender, ChannelLimits]


def problem_with(url: str) -> str:
    """The problem of an address, without quoting it; empty if there is none."""
    if not _VISIBLE.fullmatch(url):
        return "must be an address of visible ASCII characters"
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        return "must be an address such as https://hooks.example.com/…"
    if not HOST.fullmatch(host):
        return "must be an address such as https://hooks.example.com/…"
    if parts.username is not None or parts.password is not None:
        return "must not hold a user or password"
    if parts.scheme != "https" and not (parts.scheme == "http" and is_here(host)):
        return "must begin with https://; http:// is for this machine only"
    return ""


def is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _address(text: str) -> str:
    if problem := problem_with(text):
        raise ValueError(problem)
    return text.rstrip("/")


Address = Annotated[str, AfterValidator(_address)]
