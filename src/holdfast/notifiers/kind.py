"""The shape of a kind of channel, the parts that its senders are made with, and types for its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from pydantic import Field

from holdfast.core.kind import Kind, S
from holdfast.core.notifications.notification import ChannelLimits, Why
from holdfast.errors import Refused
from holdfast.kind_settings import VISIBLE, KindSettings, Roots, problem_with
from holdfast.notifiers.base import Sender
from holdfast.notifiers.posting import HttpPoster
from holdfast.ports import Clock, Transport
from holdfast.secret import Secret


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
        if not VISIBLE.fullmatch(found.reveal()):
            self.wrong(f"the credential {name} must be one word of visible ASCII characters")
        return found


ChannelKind: TypeAlias = Kind[S, SenderParts, Sender, ChannelLimits]
