"""Makes senders of stored channels: their credentials opened, their settings checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.core.notice import Why
from holdfast.errors import Refused
from holdfast.notifiers import configured
from holdfast.notifiers.base import Sender
from holdfast.notifiers.settings import SenderTools
from holdfast.operations.vault import Vault
from holdfast.ports import Clock, Transport
from holdfast.secret import Secret
from holdfast.store.channels import ChannelRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Senders:
    """One for a process: the engine and whoever tries a channel out send by the same way."""

    vault: Vault
    transport: Transport
    clock: Clock

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset(configured.KINDS)

    @property
    def _tools(self) -> SenderTools:
        return SenderTools(transport=self.transport, clock=self.clock)

    async def check(
        self, name: str, kind: str, settings: Mapping[str, Any], credentials: Mapping[str, Secret[bytes]]
    ) -> None:
        """Whether such a channel could be used. Nothing is sent, and nothing kept."""
        secrets = {purpose: _text(name, purpose, each) for purpose, each in credentials.items()}
        await configured.check(name, kind, settings, secrets, self._tools)

    async def open(self, row: ChannelRow) -> Sender:
        """Refused says what is wrong with its settings, and where."""
        opened = {purpose: await self.vault.reveal(secret) for purpose, secret in row.credentials.items()}
        secrets = {purpose: _text(row.name, purpose, each) for purpose, each in opened.items()}
        return configured.make(row.name, row.kind, row.settings, secrets, self._tools)


def _text(channel: str, purpose: str, content: Secret[bytes]) -> Secret[str]:
    try:
        return Secret(content.reveal().decode())
    except UnicodeDecodeError:
        why = f"Channel {channel}: the credential {purpose} is no text."
        raise Refused(why, reason=Why.CHANNEL_MISCONFIGURED) from None
