"""http-01 (RFC 8555 §8.3): a web server of the name, or address, answers with the key authorization.

Redirects are followed as Boulder follows them: ten at most, on the two ports alone, each hop checked like the first.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import SplitResult, urljoin, urlsplit

from holdfast.pki import names
from holdfast.pki.refused import NameRefused
from holdfast.ports import NetProblem, Stream, Tls
from holdfast.validators.dialer import SafeDialer, refused
from holdfast.validators.verdict import ChallengeFailed, ChallengeToCheck, Trace

# ── URLs ──
# The URL of a request, and the URLs that a redirect may lead to.


MAX_TARGET: Final = 2000  # characters of path and query


class Ports(NamedTuple):
    http: int
    tls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A URL in its parts, each of which is fit to be sent."""

    https: bool
    host: str  # a DNS name or an address, without brackets
    port: int
    target: str  # path and query

    @property
    def authority(self) -> str:
        """For the Host header: the port only if it is not the usual one."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.https else 80) else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self.https else 'http'}://{self.authority}{self.target}"

    @property
    def server_name(self) -> str | None:
        """For SNI, which has no addresses (RFC 6066 §3)."""
        return None if _address(self.host) else self.host


def follow(origin: Location, location: bytes | None, ports: Ports) -> Location:
    """Where a Location header leads to; Failed if we do not go there."""
    if location is None:
        raise ChallengeFailed("connection", f"{origin.url} redirects without saying where to.")
    if not location or not all(0x21 <= c <= 0x7E for c in location):
        raise ChallengeFailed("connection", f"{origin.url} redirects to something that is no URL.")
    try:
        said = urlsplit(location.decode())
        if said.scheme and not said.netloc:
            raise ValueError("urljoin would take it for a path")
        parts = urlsplit(urljoin(origin.url, location.decode()))
        port = parts.port
    except ValueError:
        raise ChallengeFailed("connection", f"{origin.url} redirects to something that is no URL.") from None
    return _place(origin, parts, port, ports)


def _place(origin: Location, parts: SplitResult, port: int | None, ports: Ports) -> Location:
    if parts.scheme not in {"http", "https"}:
        raise ChallengeFailed("connection", f"{origin.url} redirects to another scheme than http and https.")
    if "@" in parts.netloc:
        raise ChallengeFailed("connection", f"{origin.url} redirects to a URL with a user name.")
    https = parts.scheme == "https"
    port = (ports.tls if https else ports.http) if port is None else port
    if port not in ports:
        raise ChallengeFailed(
            "connection", f"{origin.url} redirects to port {port}; we go to {ports.http} and {ports.tls}."
        )
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if len(target) > MAX_TARGET:
        raise ChallengeFailed("connection", f"{origin.url} redirects to a path of more than {MAX_TARGET} characters.")
    return Location(https=https, host=_host(origin, parts), port=port, target=target)


def _host(origin: Location, parts: SplitResult) -> str:
    """In its one spelling. Numbers that only some read as an address (2130706433, 0x7f.1) are no names, either."""
    text = parts.hostname or ""
    try:
        return _address(text) or names.dns_name(text, wildcard=False)
    except NameRefused:
        raise ChallengeFailed(
            "connection", f"{origin.url} redirects to a host that is no name and no address."
        ) from None


def _address(text: str) -> str | None:
    try:
        return str(ipaddress.ip_address(text)) if "%" not in text else None  # a zone means nothing to us
    except ValueError:
        return None


# ── One GET ──
# One GET over HTTP/1.1 (RFC 9112): the status, the Location, and the first bytes of the body. Nothing more is read.


MAX_HEAD: Final = 16 * 1024
MAX_BODY: Final = 128  # a key authorization has 87
MAX_CHUNK_LINE: Final = 256
MAX_INTERIM: Final = 5  # answers of 1xx before the real one
_PIECE: Final = 4096

_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-9][0-9]{2})(?: [^\r\n]*)?")
_CHUNK: Final = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;.*)?")


@dataclass(frozen=True, slots=True)
class HttpReply:
    status: int
    location: bytes | None
    body: bytes  # as it came, undecoded
    cut_off: bool = False  # there was more


async def fetch_once(stream: Stream, place: Location, user_agent: str) -> HttpReply:
    """Ask, and read as much as is of use; Failed if it is no answer."""
    try:
        await stream.write(_get_request(place, user_agent))
        return await _Reader(stream, place.url).reply()
    except NetProblem as why:
        raise refused(place.url, why) from None


def _get_request(place: Location, user_agent: str) -> bytes:
    lines = (
        f"GET {place.target} HTTP/1.1",
        f"Host: {place.authority}",
        f"User-Agent: {user_agent}",
        "Accept: */*",  # some firewalls turn away requests without it
        "Accept-Encoding: identity",
        "Connection: close",
    )
    return "\r\n".join((*lines, "", "")).encode("ascii")


class _Reader:
    """What has come over the line, and not been used yet."""

    def __init__(self, stream: Stream, url: str) -> None:
        self._stream = stream
        self._url = url
        self._data = b""
        self._ended = False

    async def reply(self) -> HttpReply:
        for _ in range(MAX_INTERIM + 1):
            status, headers = await self._head()
            if status >= 200:
                break
        else:
            raise self._bad("sent only interim answers")
        location = headers.get(b"location")
        if status != 200:  # redirects and errors alike: what they say is of no use
            return HttpReply(status, location, b"")
        body = await self._body(headers)
        return HttpReply(status, location, body[:MAX_BODY], cut_off=len(body) > MAX_BODY)

    async def _head(self) -> tuple[int, dict[bytes, bytes]]:
        line = await self._line(MAX_HEAD, "headers")
        status = _STATUS.fullmatch(line)
        if status is None:
            raise self._bad("did not answer with HTTP/1.1")
        headers, left = dict[bytes, bytes](), MAX_HEAD
        while line := await self._line(left := left - len(line) - 2, "headers"):
            name, _, value = line.partition(b":")
            headers.setdefault(name.lower(), value.strip(b" \t"))
        return int(status[1]), headers

    async def _body(self, headers: dict[bytes, bytes]) -> bytes:
        """At most one byte more than we take, so that it shows that there is more."""
        coding = headers.get(b"transfer-encoding")
        if coding is not None:
            if coding.lower() != b"chunked":
                raise self._bad("sent a body in an unknown transfer coding")
            return await self._chunks()
        length = headers.get(b"content-length")
        if length is None:
            return await self._upto(MAX_BODY + 1)
        if not length.isdigit() or len(length) > 18:
            raise self._bad("sent a content length that is no number")
        wanted = min(int(length), MAX_BODY + 1)
        body = await self._upto(wanted)
        if len(body) < wanted:
            raise self._bad("hung up before the end of its answer", retryable=True)
        return body

    async def _chunks(self) -> bytes:
        body = b""
        while len(body) <= MAX_BODY:
            size = _CHUNK.fullmatch(await self._line(MAX_CHUNK_LINE, "chunk sizes"))
            if size is None:
                raise self._bad("sent a chunk without its size")
            wanted = min(int(size[1], 16), MAX_BODY + 1 - len(body))
            if not wanted:
                break
            piece = await self._upto(wanted)
            body += piece
            if len(piece) < wanted:
                raise self._bad("hung up before the end of its answer", retryable=True)
            if len(body) <= MAX_BODY and await self._line(MAX_CHUNK_LINE, "chunk ends"):
                raise self._bad("sent a chunk that is longer than its size")
        return body

    async def _line(self, limit: int, what: str) -> bytes:
        """One line, without its end: which may be a lone LF (RFC 9112 §2.2), as shell scripts write it."""
        while (at := self._data.find(b"\n")) < 0 and len(self._data) <= limit:
            if not await self._more():
                raise self._bad("hung up before the end of its answer", retryable=True)
        if not 0 <= at <= limit:
            raise self._bad(f"sent too long {what}")
        found, self._data = self._data[:at], self._data[at + 1 :]
        return found.removesuffix(b"\r")

    async def _upto(self, size: int) -> bytes:
        """So many bytes, or all there are."""
        while len(self._data) < size and await self._more():
            pass
        found, self._data = self._data[:size], self._data[size:]
        return found

    async def _more(self) -> bool:
        if not self._ended:
            piece = await self._stream.read(_PIECE)
            self._data += piece
            self._ended = not piece
        return not self._ended

    def _bad(self, did: str, *, retryable: bool = False) -> ChallengeFailed:
        word = "connection" if retryable else "incorrectResponse"
        return ChallengeFailed(word, f"{self._url} {did}.", retryable=retryable)


# ── The challenge ──


MAX_REDIRECTS: Final = 10
MAX_SHOWN: Final = 64  # characters of a wrong answer that we repeat
REDIRECTS: Final = frozenset({301, 302, 307, 308})


async def check(challenge: ChallengeToCheck, dialer: SafeDialer, ports: Ports, user_agent: str, trace: Trace) -> None:
    """Return if the challenge response is there; raise ChallengeFailed if not."""
    if challenge.wildcard:
        raise ChallengeFailed("rejectedIdentifier", "A wildcard cannot be proved by http-01 (RFC 8555 §7.1.3).")
    path = f"/.well-known/acme-challenge/{challenge.token}"
    place = Location(https=False, host=challenge.identifier, port=ports.http, target=path)
    seen = set[str]()
    while True:
        trace.hops.append(place.url)
        reply, private = await _get(place, dialer, user_agent, trace)
        if reply.status not in REDIRECTS:
            break
        seen.add(place.url)
        place = follow(place, reply.location, ports)
        if place.url in seen:
            raise ChallengeFailed("connection", f"{place.url} redirects back to itself.")
        if len(seen) > MAX_REDIRECTS:
            raise ChallengeFailed("connection", f"There are more than {MAX_REDIRECTS} redirects.")
    _judge(reply, challenge.key_authorization, place.url, show=not private and not seen)


async def _get(place: Location, dialer: SafeDialer, user_agent: str, trace: Trace) -> tuple[HttpReply, bool]:
    tls = Tls(server_name=place.server_name) if place.https else None
    line = await dialer.connect(place.host, place.port, trace, tls=tls)
    try:
        return await fetch_once(line.stream, place, user_agent), line.private
    finally:
        line.stream.close()


def _judge(reply: HttpReply, expected: str, url: str, *, show: bool) -> None:
    if reply.status != 200:
        raise ChallengeFailed("incorrectResponse", f"{url} answered with status {reply.status} instead of 200.")
    if reply.cut_off:
        raise ChallengeFailed("incorrectResponse", f"{url} answered with more than {MAX_BODY} bytes.")
    # Trailing whitespace is to be ignored, says §8.3: many write the file with an editor.
    if not hmac.compare_digest(reply.body.rstrip(), expected.encode()):
        raise ChallengeFailed(
            "incorrectResponse", f"{url} did not answer with the key authorization{_shown(reply, show)}."
        )


def _shown(reply: HttpReply, show: bool) -> str:
    """A few characters, if the address is public: a client may make us fetch a page that only we can reach."""
    if not show:
        return ""
    text = "".join(chr(c) if 0x20 <= c < 0x7F else "?" for c in reply.body[:MAX_SHOWN])
    return f', but with "{text}"'
