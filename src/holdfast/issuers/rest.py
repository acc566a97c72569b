"""The exchange with one CA that speaks JSON over HTTPS: where it is, who we are, and answers that are judged."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from holdfast import __version__
from holdfast.core.reasons import Reason
from holdfast.errors import Refused, TryLater
from holdfast.issuers import reading, triage
from holdfast.issuers.triage import AnswerFinding, Dialect
from holdfast.ports import Clock, Identity, Request, Response, Transport
from holdfast.secret import MASK, Secret

Headers = Mapping[str, str] | Mapping[str, Secret[str]] | Mapping[str, str | Secret[str]]
MAX_BODY: Final = 256 * 1024
MAX_ITEMS: Final = 10_000
_HEADERS: Final = {"User-Agent": f"holdfast/{__version__}", "Accept": "application/json"}
_JSON: Final = {"Content-Type": "application/json"}
_FORM: Final = {"Content-Type": "application/x-www-form-urlencoded"}
_PATH: Final = re.compile(r"(?:/[A-Za-z0-9._~%:@!$&'()*+,;=-]*)*")
_SHORTEST_SECRET: Final = 4  # a shorter one would blank out half of the message
_LONG_SECRET: Final = 8  # one in 10^14 places of a certificate looks like such a one


def checked_base(url: object, setting: str = "base_url") -> str:
    """The address that all requests go below, without a last slash; ValueError names the setting and the problem."""
    text = url if isinstance(url, str) else ""
    if text.lower().startswith("http://"):
        raise ValueError(f"{setting} must begin with https://, as credentials are sent there")
    if reading.origin(text) is None:
        raise ValueError(f"{setting} is not an https address: {reading.words(_without_password(text), 120)!r}")
    parts = urlsplit(text)
    if parts.query or not _PATH.fullmatch(parts.path):
        raise ValueError(f"{setting} must have no question mark, and nothing odd in its path")
    return text.rstrip("/")


def _without_password(text: str) -> str:
    return text.rpartition("@")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One CA as configured."""

    base: str  # as checked_base gives it
    headers: Headers = field(default_factory=dict)  # with each request; credentials are secrets
    roots: bytes = b""  # PEM: trusted roots, in place of the system's
    identity: Callable[[], Identity] | None = None  # our client certificate, where it wants one; read at each request
    deadline_for: float = 30.0  # seconds for one answer
    hidden: tuple[Secret[str], ...] = ()  # secrets to remove from its refusals, besides those sent with each request


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, good or not. `finding` is the finding of triage: None for a good answer."""

    dialect: Dialect
    what: str
    response: Response
    finding: AnswerFinding | None
    after: timedelta | None  # the CA's Retry-After

    @property
    def status(self) -> int:
        return self.response.status

    @property
    def codes(self) -> tuple[str, ...]:
        """The CA's own error codes."""
        problem = None if self.finding is None else triage.read_problem(self.dialect, self.response)
        return problem.codes if problem else ()

    @property
    def is_gone(self) -> bool:
        """Whether it says, in its own words, that there is no such thing; a proxy's 404 does not count."""
        return self.status == 404 and triage.read_problem(self.dialect, self.response) is not None

    def good(self) -> Reply:
        if self.finding is not None:
            raise self.finding.error()
        return self

    def broken(self) -> TryLater | Refused:
        return triage.broken(self.dialect, self.what).error()

    def json_object(self) -> dict[str, object]:
        found = self.good()._json()
        if not isinstance(found, dict):
            raise self.broken()
        return found

    def json_list(self) -> list[object]:
        found = self.good()._json()
        if not isinstance(found, list) or len(found) > MAX_ITEMS:
            raise self.broken()
        return found

    def _json(self) -> object:
        try:
            found = json.loads(self.response.body)
        except (ValueError, RecursionError):
            raise self.broken() from None
        if reading.deeper_than(found, reading.MAX_DEPTH):
            raise self.broken()
        return found

    def by_word(self, word: object, said: str = "") -> AnswerFinding:
        """What a status word in this answer means for an order."""
        return triage.by_word(self.dialect, word, what=self.what, said=said, after=self.after)


class Rest:
    """All that is sent to one CA goes through here. It repeats nothing: the engine owns every retry."""

    def __init__(self, transport: Transport, clock: Clock, site: Site, dialect: Dialect) -> None:
        self.site = site
        self.dialect = dialect
        self._transport = transport
        self._clock = clock

    @property
    def clock(self) -> Clock:
        return self._clock

    @property
    def name(self) -> str:
        """What the CA is called in sentences."""
        return f"{self.dialect.ca} ({urlsplit(self.site.base).hostname})"

    async def get(self, path: str, what: str, query: Mapping[str, str] | None = None, **more: Any) -> Reply:
        return await self.ask("GET", path, what, query=query, **more)

    async def post(self, path: str, what: str, body: Any, **more: Any) -> Reply:
        return await self.ask("POST", path, what, body=body, **more)

    async def put(self, path: str, what: str, body: Any, **more: Any) -> Reply:
        return await self.ask("PUT", path, what, body=body, **more)

    async def ask(
        self,
        method: str,
        path: str,
        what: str,
        *,
        body: object = None,
        form: Mapping[str, Secret[str]] | None = None,
        query: Mapping[str, str] | None = None,
        headers: Headers | None = None,
        base: str | None = None,
        hide: Collection[Secret[str]] = (),
    ) -> Reply:
        """One request. `path` begins with a slash and is below the base; `base` is another one, for logging in.

        `hide` are secrets of the body, which an answer may quote.
        """
        content, kind = _content(body, form)
        told = {**_HEADERS, **kind, **_revealed(self.site.headers), **_revealed(headers or {})}
        if odd := [name for name, value in told.items() if not (value.isascii() and value.isprintable())]:
            why = f"{self.dialect.ca}: the value of {odd[0]} has line breaks or other control characters in it."
            raise Refused(f"{why} Check the credential.", reason=Reason.ACCOUNT_REFUSED)
        asked = f"?{urlencode(query)}" if query else ""
        request = Request(
            method=method, url=f"{base or self.site.base}{path}{asked}", headers=told, body=content,
            deadline_for=self.site.deadline_for, max_body=MAX_BODY, roots=self.site.roots,
            identity=None if self.site.identity is None else self.site.identity(),
        )  # fmt: skip
        secrets = [*_secrets(headers or {}), *_secrets(form or {}), *_spelled(hide)]
        return self._reply(await self._send(request), what, secrets)

    async def _send(self, request: Request) -> Response:
        try:
            return await self._transport.request(request)
        except TryLater as why:
            said = f"{self.dialect.ca}: {why}{_advice(why, request, self.dialect.base_setting)}"
            raise TryLater(said, after=why.after, reason=unanswered(why), sent=why.sent) from why

    def _reply(self, response: Response, what: str, secrets: list[str]) -> Reply:
        shown = self._scrubbed(response, secrets)
        now = self._clock.now()
        finding = triage.judge(self.dialect, shown, what=what, now=now)
        return Reply(self.dialect, what, shown, finding, triage.asked_after(response, now))

    def _scrubbed(self, response: Response, more: list[str]) -> Response:
        """An answer may quote our request; our credentials are removed before it is shown.

        A good one may be a certificate, in which a short password could stand by chance.
        """
        body, headers = response.body, dict(response.headers)
        known = {*_secrets(self.site.headers), *_spelled(self.site.hidden), *more}
        for each in [each for each in known if response.status >= 300 or len(each) >= _LONG_SECRET]:
            body = body.replace(each.encode(), MASK.encode())
            headers = {name: value.replace(each, MASK) for name, value in headers.items()}
        return Response(status=response.status, headers=headers, body=body)


def unanswered(why: TryLater) -> Reason:
    """The error for a request that got no answer, with its reason."""
    return {"BAD_ANSWER": Reason.ANSWER_MALFORMED, "TLS": Reason.CA_TLS_FAILED}.get(why.reason, Reason.CA_DOWN)


ROOTS: Final = ". Check the setting roots, the trusted roots of its TLS certificate."


def _advice(why: TryLater, request: Request, where: str) -> str:
    """Which setting to look at. Of TLS: whether it was their certificate that was not believed, or ours."""
    if why.reason == "REMOTE_UNAVAILABLE" and not why.sent:
        return f". Check the setting {where}, and the network."
    if request.identity is not None and why.reason == "REMOTE_UNAVAILABLE" and why.sent:
        return ". If this lasts, check the setting client_certificate_file: it may hang up on those it does not know."
    if why.reason != "TLS":
        return ""
    if "verify failed" in str(why) or request.identity is None:
        return ROOTS
    return ". Check the setting client_certificate_file: it may not know our certificate."


@contextmanager
def beforehand() -> Iterator[None]:
    """An error in this block happens before the order is sent."""
    try:
        yield
    except TryLater as why:
        why.sent = False
        raise


def segment(value: object) -> str:
    """One part of a path, percent-encoded; a colon is legal there (RFC 3986 §3.3), and serials have some."""
    return quote(str(value), safe=":")


def _content(body: object, form: Mapping[str, Secret[str]] | None) -> tuple[bytes, Mapping[str, str]]:
    if form is not None:
        return urlencode(_revealed(form)).encode(), _FORM
    return (b"", _JSON) if body is None else (json.dumps(body).encode(), _JSON)


def _revealed(values: Headers) -> dict[str, str]:
    return {name: value.reveal() if isinstance(value, Secret) else value for name, value in values.items()}


def _secrets(values: Headers) -> list[str]:
    return _spelled(value for value in values.values() if isinstance(value, Secret))


def _spelled(secrets: Iterable[Secret[str]]) -> list[str]:
    """As they are, and as JSON writes them."""
    found = [each.reveal() for each in secrets]
    return [each for each in (*found, *(json.dumps(each)[1:-1] for each in found)) if len(each) >= _SHORTEST_SECRET]
