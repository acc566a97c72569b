"""PagerDuty, by its Events API v2: one outage is one incident, and its all-clear resolves it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from typing import Any, ClassVar, Final

from holdfast.notifiers.base import Message
from holdfast.notifiers.posting import Call, Line, as_json, is_page
from holdfast.notifiers.rendering import Rendered, render, shortened
from holdfast.secret import Secret

ADDRESSES: Final = {
    "us": "https://events.pagerduty.com/v2/enqueue",
    "eu": "https://events.eu.pagerduty.com/v2/enqueue",
}
_SUMMARY: Final = 1024  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class PagerDuty:
    kind: ClassVar[str] = "pagerduty"
    line: Line
    url: str
    routing_key: Secret[str]

    async def send(self, message: Message) -> None:
        body = as_json(self._event(render(message)))
        call = Call(
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

    def _event(self, said: Rendered) -> dict[str, Any]:
        """The key of the outage makes a repetition the same alert, and the all-clear its end."""
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
