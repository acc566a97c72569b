"""Posts one message over HTTP and reads the answer: delivered, later, or refused. Errors never quote a secret."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from holdfast import __version__
from holdfast.core import backoff
from holdfast.core.notifications.notification import Why
from holdfast.errors import Refused, TryLater
from holdfast.notifiers.base import RATE_LIMITED
from holdfast.notifiers.rendering import plain
from holdfast.ports import Clock, Request, Response, Transport
from holdfast.secret import MASK, Secret

DEADLINE: Final = 20.0  # seconds for the whole exchange
MAX_ANSWER: Final = 64 * 1024
_JSON: Final = {"Content-Type": "application/json", "User-Agent": f"holdfast/{__version__}"}
_QUOTED: Final = 160  # characters of an answer
OWN_CA: Final = " If its certificate is of a CA of yours, put that into the setting roots."
_SHORTEST_SECRET: Final = 6  # of a part of an address; shorter ones are words such as "v2"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpPoster:
    """Sends the requests of one channel."""

    channel: str
    transport: Transport
    clock: Clock
    roots: bytes = b""  # PEM, in place of the system's
    deadline_for: float = DEADLINE

    async def post(self, call: PostedCall) -> Response:
        """Return the answer if its status is 2xx; else raise TryLater or Refused."""
        try:
            response = await self.transport.request(
                Request(
                    method="POST",
                    url=call.url.reveal(),
                    headers={**_JSON, **call.headers},
                    body=call.body,
                    deadline_for=self.deadline_for,
                    max_body=MAX_ANSWER,
                    roots=self.roots,
                )
            )
        except TryLater as why:
            advice = OWN_CA if why.reason == "TLS" else ""
            raise TryLater(
                f"Channel {self.channel}: {why}.{advice}", after=why.after, reason=Why.CHANNEL_DOWN
            ) from None
        if not 200 <= response.status < 300:
            raise self._failure(response, call)
        return response

    def odd(self, call: PostedCall, response: Response) -> TryLater:
        """The error for a 2xx answer that the service does not give: a proxy answered in its place."""
        said = f"{call.host} answered {response.status}, but not as it should{call.quoted(response)}"
        return TryLater(f"Channel {self.channel}: {said}.", reason=Why.CHANNEL_DOWN)

    def _failure(self, response: Response, call: PostedCall) -> TryLater | Refused:
        status = response.status
        who = f"Channel {self.channel}: {call.host}"
        after = backoff.retry_after(response.headers.get("retry-after"), self.clock.now())
        if status == 429:
            return TryLater(
                f"{who} said that there were too many messages (429).", after=after, reason=RATE_LIMITED, answered=True
            )
        if status >= 500 or status in (408, 425):
            return TryLater(
                f"{who} answered {status}{call.quoted(response)}.", after=after, reason=Why.CHANNEL_DOWN, answered=True
            )
        if status < 400:
            why = f"{who} points elsewhere ({status}), and is not followed. Put the final address into {call.address}."
            return Refused(why, reason=Why.CHANNEL_MISCONFIGURED)
        if status in (401, 403, 407):
            why = f"{who} does not let us in ({status}{call.quoted(response)}). Set {call.credential} anew."
            return Refused(why, reason=Why.CHANNEL_MISCONFIGURED)
        if status in (404, 405, 410):
            why = f"{who} has nothing at this address ({status}{call.quoted(response)}). Check {call.address}."
            return Refused(why, reason=Why.CHANNEL_MISCONFIGURED)
        return Refused(f"{who} did not take the message ({status}{call.quoted(response)}).", reason=Why.REFUSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class PostedCall:
    """One request, with the names of the settings that an error refers to."""

    url: Secret[str]
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    address: str  # such as "the credential url"
    credential: str
    secrets: tuple[Secret[str], ...] = ()  # besides those in the address

    @property
    def host(self) -> str:
        return urlsplit(self.url.reveal()).hostname or "the remote"

    def quoted(self, response: Response) -> str:
        """The beginning of an answer, without our secrets, which a remote may repeat."""
        said = response.body.decode("utf-8", "replace")
        for secret in self._hidden():
            said = said.replace(secret, MASK)
        shown = plain(said, _QUOTED)
        return f": {shown}" if shown else ""

    def _hidden(self) -> list[str]:
        parts = urlsplit(self.url.reveal())
        pieces = [*parts.path.split("/"), *parts.query.replace("=", "&").split("&"), parts.password or ""]
        known = [self.url.reveal(), parts.path, parts.query, *(each.reveal() for each in self.secrets), *pieces]
        return sorted({each for each in known if len(each) >= _SHORTEST_SECRET}, key=len, reverse=True)


def is_page(response: Response) -> bool:
    """Whether the answer is an HTML page: those come from a proxy, and not from the service."""
    return response.body.lstrip().startswith(b"<")


def as_json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
