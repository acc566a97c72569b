"""Microsoft Teams, by the webhook of a workflow: an adaptive card of text runs, in which Markdown is not read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from holdfast.core.issuers.budget import Limit
from holdfast.core.kind import Credential, Kind
from holdfast.core.notifications.notification import ChannelLimits
from holdfast.notifiers.base import Message, Severity
from holdfast.notifiers.kind import ChannelKind, HttpSettings, SenderParts
from holdfast.notifiers.posting import HttpPoster, PostedCall, as_json
from holdfast.notifiers.rendering import Rendered, render, shortened, without_functions
from holdfast.secret import Secret

_MOST_BYTES: Final = 24 * 1024  # of a message, of which Teams takes 28 KB
_LINE_LIMITS: Final = (600, 200, 100, 60)  # characters; the first with which all lines fit
_COLOURS: Final = {Severity.INFO: "Accent", Severity.WARNING: "Warning", Severity.CRITICAL: "Attention"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Teams:
    """The address is the credential: it is enough to post messages."""

    line: HttpPoster
    url: Secret[str]

    async def send(self, message: Message) -> None:
        where = "the credential url of this channel"
        call = PostedCall(url=self.url, body=_content(render(message)), address=where, credential=where)
        response = await self.line.post(call)
        if response.status != 202 and response.body.strip() not in (b"", b"1"):  # a failure may come as 200, in words
            raise self.line.odd(call, response)

    async def close(self) -> None:
        """There is nothing open."""


def _content(said: Rendered) -> bytes:
    """Every line is in it: rather shorter ones than fewer."""
    bodies = (as_json(_message(said, limit)) for limit in _LINE_LIMITS)
    body = next(bodies)
    while len(body) > _MOST_BYTES and (smaller := next(bodies, None)) is not None:
        body = smaller
    return body


def _message(said: Rendered, limit: int) -> dict[str, object]:
    colour = "Good" if said.resolved else _COLOURS[said.severity]
    body = [_text(said.heading, limit, weight="Bolder", size="Medium", color=colour)]
    body += [_text(line, limit) for line in said.lines]
    body += [_row(name, value, limit) for name, value in said.rows]
    if said.next:
        body.append(_row("Next", said.next, limit))
    card: dict[str, Any] = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "fallbackText": without_functions(shortened(said.heading, limit)),
        "body": body,
        "msteams": {"width": "Full"},
    }
    if said.link:
        card["actions"] = [{"type": "Action.OpenUrl", "title": "Open in Holdfast", "url": said.link}]
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None, "content": card}
    return {"type": "message", "attachments": [attachment]}


def _text(text: str, limit: int, **style: str) -> dict[str, object]:
    """A run of text is shown as it is; a TextBlock, and the rows of a FactSet, would read Markdown in it."""
    return {"type": "RichTextBlock", "inlines": [_run(text, limit, **style)]}


def _row(name: str, value: str, limit: int) -> dict[str, object]:
    inlines = [_run(f"{name}: ", limit, weight="Bolder"), _run(value, limit)]
    return {"type": "RichTextBlock", "spacing": "Small", "inlines": inlines}


def _run(text: str, limit: int, **style: str) -> dict[str, object]:
    return {"type": "TextRun", "text": without_functions(shortened(text, limit)), **style}


def _make(settings: HttpSettings, parts: SenderParts) -> Teams:
    return Teams(line=parts.line(settings), url=parts.url())


TEAMS: Final[ChannelKind[HttpSettings]] = Kind(
    name="teams",
    summary="Microsoft Teams, by the webhook of a workflow.",
    settings=HttpSettings,
    credentials=(Credential(name="url", summary="The address of the incoming webhook."),),
    limits=ChannelLimits(rate=Limit(burst=4, every=timedelta(milliseconds=500))),
    address="url",
    make=_make,
)
