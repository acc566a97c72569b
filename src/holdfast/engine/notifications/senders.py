"""Makes the sender of a stored channel: opens its credentials and checks its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast import kind_settings, plugins
from holdfast.core.notifications.channel import ChannelRow
from holdfast.core.notifications.notification import Why
from holdfast.errors import Refused
from holdfast.notifiers.base import ChecksItself, Sender
from holdfast.notifiers.kind import SenderParts
from holdfast.operations import remotes
from holdfast.operations.installation.secret_store import SecretStore
from holdfast.ports import Clock, Transport
from holdfast.secret import Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Senders:
    """One for a process: the engine and `holdfast notify test` send in the same way."""

    secret_store: SecretStore
    transport: Transport
    clock: Clock

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset(plugins.kinds(plugins.NOTIFIERS))

    async def check(
        self, name: str, kind: str, settings: Mapping[str, Any], credentials: Mapping[str, Secret[bytes]]
    ) -> None:
        """Check the settings and credentials of a channel. Nothing is sent or stored."""
        sender = self.make(name, kind, settings, credentials)
        if isinstance(sender, ChecksItself):
            await sender.check()

    async def open(self, row: ChannelRow) -> Sender:
        return self.make(row.name, row.kind, row.settings, await remotes.opened(self.secret_store, row))

    def make(
        self, name: str, kind: str, settings: Mapping[str, Any], credentials: Mapping[str, Secret[bytes]]
    ) -> Sender:
        """Make a sender; Refused names the setting that is wrong."""
        known = plugins.kinds(plugins.NOTIFIERS)
        if kind not in known:
            raise _wrong(name, known.problem(kind))
        secrets = {purpose: _text(name, purpose, each) for purpose, each in credentials.items()}
        parts = SenderParts(channel=name, credentials=secrets, transport=self.transport, clock=self.clock)
        try:
            given = {each for each, secret in secrets.items() if secret}
            read = kind_settings.read(known[kind], settings, given, given_by="--credential {0}=FILE")
        except ValueError as why:
            raise _wrong(name, str(why)) from None
        made: Sender = known[kind].make(read, parts)
        return made


def _text(channel: str, purpose: str, content: Secret[bytes]) -> Secret[str]:
    try:
        return Secret(content.reveal().decode())
    except UnicodeDecodeError:
        raise _wrong(channel, f"the credential {purpose} is no text") from None


def _wrong(channel: str, problem: str) -> Refused:
    return Refused(f"Channel {channel}: {problem}.", reason=Why.CHANNEL_MISCONFIGURED)
