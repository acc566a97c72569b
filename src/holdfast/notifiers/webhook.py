"""A signed webhook, after Standard Webhooks: receivers check who sent it, that it is whole, and that it is not old."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from dataclasses import dataclass
from datetime import UTC
from typing import Final

from holdfast.core.kind import Credential, Kind
from holdfast.core.notifications.notification import ChannelLimits
from holdfast.notifiers.base import Message
from holdfast.notifiers.kind import ChannelKind, HttpSettings, SenderParts
from holdfast.notifiers.posting import HttpPoster, PostedCall, as_json
from holdfast.notifiers.rendering import Rendered, render
from holdfast.secret import Secret

PREFIX: Final = "whsec_"
_SIZES: Final = range(24, 65)  # bytes of a secret, as the specification asks for


def signing_key(text: Secret[str]) -> Secret[bytes]:
    """Decode a key from `whsec_` and base64; ValueError gives the reason without quoting it."""
    try:
        key = base64.b64decode(text.reveal().strip().removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"must be {PREFIX} and base64, as: {PREFIX}$(openssl rand -base64 32)") from None
    if len(key) not in _SIZES:
        raise ValueError(f"must have {_SIZES.start} to {_SIZES.stop - 1} bytes, and has {len(key)}")
    return Secret(key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """Signed with every key it has: while receivers change to the new one, the old one still counts."""

    line: HttpPoster
    url: Secret[str]
    keys: tuple[Secret[bytes], ...]

    async def send(self, message: Message) -> None:
        said = render(message)
        body = as_json(_content(said))
        await self.line.post(
            PostedCall(
                url=self.url,
                body=body,
                headers=self._signed(said.id, body),
                address="the credential url of this channel",
                credential="the credential secret of this channel, and the receiver's,",
            )
        )

    def _signed(self, message: str, body: bytes) -> dict[str, str]:
        sent_at = str(int(self.line.clock.now().timestamp()))
        signatures = [signature(key, message, sent_at, body) for key in self.keys]
        return {"webhook-id": message, "webhook-timestamp": sent_at, "webhook-signature": " ".join(signatures)}

    async def close(self) -> None:
        """There is nothing open."""


def signature(key: Secret[bytes], message: str, sent_at: str, body: bytes) -> str:
    signed = hmac.new(key.reveal(), f"{message}.{sent_at}.".encode() + body, hashlib.sha256)
    return f"v1,{base64.b64encode(signed.digest()).decode()}"


def _content(said: Rendered) -> dict[str, object]:
    """As the specification shapes it: type, timestamp and data; a repetition has the same content."""
    data = {
        "id": said.id,
        "key": said.key,
        "severity": said.severity.value,
        "resolved": said.resolved,
        "title": said.title,
        "lines": list(said.lines),
        "subject": said.subject,
        "reason_code": said.reason,
        "reason": said.meaning,
        "facts": dict(said.facts),
        "next": said.next,
        "link": said.link,
    }
    return {"type": said.event, "timestamp": said.at.astimezone(UTC).isoformat(), "data": data}


def _make(settings: HttpSettings, parts: SenderParts) -> Webhook:
    keys = [_key(parts, name) for name in ("secret", "old_secret") if parts.credentials.get(name)]
    return Webhook(line=parts.line(settings), url=parts.url(), keys=tuple(keys))


def _key(parts: SenderParts, name: str) -> Secret[bytes]:
    try:
        return signing_key(parts.credentials[name])
    except ValueError as error:
        parts.wrong(f"the credential {name} {error}")


WEBHOOK: Final[ChannelKind[HttpSettings]] = Kind(
    name="webhook",
    summary="A signed webhook, after Standard Webhooks.",
    settings=HttpSettings,
    credentials=(
        Credential(name="url", summary="The address that messages are posted to."),
        Credential(name="secret", summary="The signing secret: whsec_ and base64.", kept_as="old_secret"),
        Credential(name="old_secret", summary="The one before, while receivers change to the new.", required=False),
    ),
    limits=ChannelLimits(),
    address="url",
    make=_make,
)
