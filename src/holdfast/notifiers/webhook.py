"""A signed webhook, after Standard Webhooks: receivers check who sent it, that it is whole, and that it is not old."""

from __future__ import annotations

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
from holdfast.webhook_signature import signed, signing_key


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
                headers=signed(self.keys, said.id, self.line.clock.now(), body),
                address="the credential url of this channel",
                credential="the credential secret of this channel, and the receiver's,",
            )
        )

    async def close(self) -> None:
        """There is nothing open."""


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
