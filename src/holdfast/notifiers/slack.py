"""Slack, and services that accept its incoming webhooks: blocks of plain text, without markup."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from holdfast.core.issuers.budget import Limit
from holdfast.core.kind import Credential, Kind
from holdfast.core.notifications.notification import ChannelLimits
from holdfast.notifiers.base import Message, Severity
from holdfast.notifiers.kind import ChannelKind, HttpSettings, SenderParts
from holdfast.notifiers.posting import HttpPoster, PostedCall, as_json, is_page
from holdfast.notifiers.rendering import Rendered, for_slack, render, shortened
from holdfast.secret import Secret

_HEADING: Final = 150  # characters of a header block
_SECTION: Final = 2900  # of a section, which may have 3000
_SIGNS: Final = {Severity.INFO: "🔵", Severity.WARNING: "🟠", Severity.CRITICAL: "🔴"}
_OVER: Final = "🟢"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slack:
    """The address is the credential: it is enough to post messages."""

    line: HttpPoster
    url: Secret[str]

    async def send(self, message: Message) -> None:
        where = "the credential url of this channel"
        call = PostedCall(url=self.url, body=as_json(_content(render(message))), address=where, credential=where)
        response = await self.line.post(call)
        if is_page(response):  # others that take its webhooks answer in other words than "ok"
            raise self.line.odd(call, response)

    async def close(self) -> None:
        """There is nothing open."""


def _content(said: Rendered) -> dict[str, object]:
    sign = _OVER if said.resolved else _SIGNS[said.severity]
    heading = for_slack(f"{sign} {said.heading}")
    blocks: list[dict[str, Any]] = [{"type": "header", "text": _plain(_cut(heading, _HEADING))}]
    blocks += [{"type": "section", "text": _plain(text)} for text in _sections(said.lines)]
    rows = [f"{name}: {value}" for name, value in said.rows]
    if said.next:
        rows.append(f"Next: {said.next}")
    blocks += [{"type": "section", "text": _plain(text)} for text in _sections(rows)]
    if said.link:
        button = {"type": "button", "text": _plain("Open in Holdfast"), "url": said.link}
        blocks.append({"type": "actions", "elements": [button]})
    # The text is what a phone shows; the links of others are not looked at by anybody.
    return {"text": heading, "mrkdwn": False, "unfurl_links": False, "unfurl_media": False, "blocks": blocks}


def _plain(text: str) -> dict[str, object]:
    return {"type": "plain_text", "text": text, "emoji": False}


def _sections(lines: Sequence[str]) -> Iterator[str]:
    """Lines, whole, in as few sections as hold them."""
    held = ""
    for line in map(for_slack, lines):
        if held and len(held) + 1 + len(line) > _SECTION:
            yield held
            held = ""
        held = f"{held}\n{line}" if held else _cut(line, _SECTION)
    if held:
        yield held


def _cut(escaped: str, limit: int) -> str:
    """Not in the middle of an escape: half of one would be shown as it is, and mean nothing."""
    if len(escaped) <= limit:
        return escaped
    cut = shortened(escaped, limit)[:-1]
    open_at = cut.rfind("&")
    return (cut[:open_at] if open_at >= 0 and ";" not in cut[open_at:] else cut) + "…"


def _make(settings: HttpSettings, parts: SenderParts) -> Slack:
    return Slack(line=parts.line(settings), url=parts.url())


SLACK: Final[ChannelKind[HttpSettings]] = Kind(
    name="slack",
    summary="Slack, and services that accept its incoming webhooks.",
    settings=HttpSettings,
    credentials=(Credential(name="url", summary="The address of the incoming webhook."),),
    limits=ChannelLimits(rate=Limit(burst=5, every=timedelta(seconds=1))),
    address="url",
    make=_make,
)
