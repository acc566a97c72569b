"""PagerDuty, by its Events API v2: one outage is one incident, and its all-clear resolves it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from typing import Any, Final, Literal

from pydantic import Field

from holdfast.core.kind import Credential, Kind, Trait
from holdfast.core.notifications.notification import ChannelLimits
from holdfast.kind_settings import Address
from holdfast.notifiers.base import Message
from holdfast.notifiers.kind import ChannelKind, HttpSettings, SenderParts
from holdfast.notifiers.posting import HttpPoster, PostedCall, as_json, is_page
from holdfast.notifiers.rendering import Rendered, render, shortened
from holdfast.secret import Secret

ADDRESSES: Final = {
    "us": "https://events.pagerduty.com/v2/enqueue",
    "eu": "https://events.eu.pagerduty.com/v2/enqueue",
}
_SUMMARY: Final = 1024  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class PagerDuty:
    line: HttpPoster
    url: str
    routing_key: Secret[str]

    async def send(self, message: Message) -> None:
        body = as_json(self._event(render(message)))
        call = PostedCall(
            url=Secret(self.url),
            body=body,
            address="the setting region or url of this channel",
            credential="the credential routing_key of this channel",
            secrets=(self.routing_key,),
        )
        response = await self.line.post(call)
        if is_page(response):
            raise self.line.odd(call, response)

    async def close(self) -> None:
        """There is nothing open."""

    def _event(self, said: Rendered) -> dict[str, object]:
        """The dedup key is the key of the outage: repetitions are the same alert, and the all-clear resolves it."""
        event: dict[str, Any] = {
            "routing_key": self.routing_key.reveal(),
            "event_action": "resolve" if said.resolved else "trigger",
            "dedup_key": said.key,
            "client": "Holdfast",
            "payload": {
                "summary": shortened(said.title, _SUMMARY),
                "source": said.subject or "holdfast",
                "severity": said.severity.value,
                "timestamp": said.at.astimezone(UTC).isoformat(),
                "class": said.event,
                "custom_details": {"text": list(said.lines), "next": said.next, **dict(said.rows)},
            },
        }
        if said.link:
            event |= {"client_url": said.link, "links": [{"href": said.link, "text": "Open in Holdfast"}]}
        return event


class PagerDutySettings(HttpSettings):
    region: Literal["us", "eu"] = Field(default="us", description="Where the account is.")
    url: Address = Field(default="", description="The address of the service, if it is neither of these.")


def _make(settings: PagerDutySettings, parts: SenderParts) -> PagerDuty:
    url = settings.url or ADDRESSES[settings.region]
    return PagerDuty(line=parts.line(settings), url=url, routing_key=parts.token("routing_key"))


PAGERDUTY: Final[ChannelKind[PagerDutySettings]] = Kind(
    name="pagerduty",
    summary="PagerDuty, by its Events API v2.",
    settings=PagerDutySettings,
    credentials=(Credential(name="routing_key", summary="The integration key of a service."),),
    limits=ChannelLimits(),
    traits=frozenset({Trait.KEEPS_INCIDENTS}),
    address="url",
    make=_make,
)
