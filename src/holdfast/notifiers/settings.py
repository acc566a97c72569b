"""What an operator wrote down about one channel, read with care: what is wrong is said by the name of the setting."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit

from cryptography import x509

from holdfast.core.notice import Why
from holdfast.errors import Refused
from holdfast.notifiers.posting import Line
from holdfast.ports import Clock, Transport
from holdfast.secret import Secret

HOST: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|[0-9a-fA-F:.]{2,45}")
_VISIBLE: Final = re.compile(r"[!-~]{1,2000}")

Secrets = Mapping[str, Secret[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderTools:
    """What senders are made with."""

    transport: Transport
    clock: Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Configured:
    """One channel as its operator wrote it down; its settings are of the right types, and none is missing."""

    channel: str
    settings: Mapping[str, Any]
    secrets: Secrets
    tools: SenderTools

    def wrong(self, problem: str) -> NoReturn:
        raise Refused(f"Channel {self.channel}: {problem}.", reason=Why.CHANNEL_MISCONFIGURED)

    def line(self) -> Line:
        return Line(
            channel=self.channel,
            transport=self.tools.transport,
            clock=self.tools.clock,
            roots=self.roots().encode("ascii"),
        )

    def roots(self) -> str:
        text = str(self.settings.get("roots") or "")
        try:
            if text:
                x509.load_pem_x509_certificates(text.encode("ascii"))
        except ValueError:
            self.wrong("the setting roots must be certificates in PEM")
        return text

    def url(self, name: str = "url") -> Secret[str]:
        """An address that is a credential, and is not repeated in what is said about it."""
        found = Secret(self.secrets[name].reveal().strip())
        problem = _problem_with(found.reveal())
        if problem:
            self.wrong(f"the credential {name} {problem}")
        return found

    def token(self, name: str) -> Secret[str]:
        """One that goes into a header, or a field."""
        found = Secret(self.secrets[name].reveal().strip())
        if not _VISIBLE.fullmatch(found.reveal()):
            self.wrong(f"the credential {name} must be one word of visible ASCII characters")
        return found

    def service(self, addresses: Mapping[str, str]) -> str:
        """The address of a service: where its region says, or elsewhere."""
        region = self.settings.get("region", "us")
        if region not in addresses:
            self.wrong(f"the setting region must be {' or '.join(addresses)}")
        found = str(self.settings.get("url") or addresses[region])
        if problem := _problem_with(found):
            self.wrong(f"the setting url {problem}")
        return found.rstrip("/")


def _problem_with(url: str) -> str:
    """What is wrong with an address, in words that do not repeat it; empty if nothing is."""
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
