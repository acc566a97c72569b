"""The real adapters of the ports: random numbers, HTTP, files, programs, and the sinks of the audit log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
import stat
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from hashlib import sha256
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import httpx2

from holdfast.errors import TryLater
from holdfast.machine import LocalFiles as LocalFiles
from holdfast.machine import SystemRandom as SystemRandom
from holdfast.machine import sortable as sortable
from holdfast.machine import sync_folder
from holdfast.ports import AuditLine, Identity, Points, Request, Response, Transport, Unreadable, no_points
from holdfast.system_clock import SystemClock as SystemClock

if TYPE_CHECKING:  # commands load this module, and need no logging
    from holdfast.telemetry import Traces

_MOST_CLIENTS: Final = 64
_CONNECTED_IN: Final = 0.5  # of the deadline: who is not connected by then was sent nothing, and that is worth knowing
_DEEPEST: Final = 10  # causes of causes that are looked at
_HANDSHAKE: Final = ("_ALERT_", "VERIFY_FAILED", "WRONG_VERSION_NUMBER")
_UNSENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.InvalidURL, httpx2.UnsupportedProtocol)


class HttpTransport:
    """One HTTP client. Proxies and netrc of the environment are ignored; redirects are answers, not orders.

    Accounts share it, so it keeps no cookies. Its errors name the remote, and nothing of an address that may be secret.
    """

    def __init__(self, points: Points = no_points) -> None:
        for name in ("httpx2", "httpcore2"):  # below that level they write addresses down, and headers of answers
            logging.getLogger(name).setLevel(logging.WARNING)
        self._points = points
        self._clients: OrderedDict[bytes, httpx2.AsyncClient] = OrderedDict()  # by whom they believe and who we are

    async def _client_for(self, request: Request) -> httpx2.AsyncClient:
        """There are as many as the operator has configured CAs of their own; of a changed identity, the last ones."""
        name = _line_of(request)
        if name not in self._clients:
            self._clients[name] = _client(verify=_trust(request))
        self._clients.move_to_end(name)
        while len(self._clients) > _MOST_CLIENTS:
            _, oldest = self._clients.popitem(last=False)
            await oldest.aclose()
        return self._clients[name]

    async def request(self, request: Request) -> Response:
        remote = _origin(request.url)
        self._points("http.asking")
        client = await self._client_for(request)  # to read the system's roots takes a while, and is not the remote's
        try:
            async with asyncio.timeout(request.deadline_for):
                answer = await _exchange(client, request, remote)
            self._points("http.answered")
            return answer
        except TimeoutError:
            raise TryLater(f"{remote} did not answer in {request.deadline_for:g} s", reason="TIMEOUT") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:  # an alert of TLS 1.3 comes as it is
            raise _unanswered(remote, error) from error

    async def close(self) -> None:
        for client in self._clients.values():
            await client.aclose()


async def _exchange(client: httpx2.AsyncClient, request: Request, remote: str) -> Response:
    connected = httpx2.Timeout(None, connect=_CONNECTED_IN * request.deadline_for)  # the rest is the deadline's
    async with client.stream(
        request.method, request.url, headers=dict(request.headers), content=request.body, timeout=connected
    ) as answer:
        body = bytearray()
        async for piece in answer.aiter_bytes():
            body += piece
            if len(body) > request.max_body:
                raise TryLater(f"{remote} answered with more than {request.max_body} bytes", reason="BAD_ANSWER")
        headers = {name.lower(): value for name, value in answer.headers.items()}
        return Response(status=answer.status_code, headers=headers, body=bytes(body))


def _line_of(request: Request) -> bytes:
    """Requests of the same name may share their lines."""
    if request.identity is None:
        return sha256(request.roots).digest()
    parts = (request.roots, request.identity.chain, request.identity.key.reveal())
    return sha256(b"".join(sha256(part).digest() for part in parts)).digest()


def _trust(request: Request) -> ssl.SSLContext | bool:
    if request.identity is None and not request.roots:
        return True
    try:
        context = ssl.create_default_context(cadata=request.roots.decode("ascii") or None)
    except (ssl.SSLError, ValueError):
        raise TryLater("the roots that vouch for a remote cannot be read") from None
    if request.identity is not None:
        _present(context, request.identity)
    return context


def _present(context: ssl.SSLContext, identity: Identity) -> None:
    handle = os.memfd_create("identity")  # the ssl module reads files only, and keys do not belong into any
    try:
        os.write(handle, identity.chain + b"\n" + identity.key.reveal())
        context.load_cert_chain(f"/proc/self/fd/{handle}")
    except (ssl.SSLError, ValueError):
        raise TryLater("the client certificate for a remote and its key cannot be used together") from None
    finally:
        os.close(handle)


def _unanswered(remote: str, error: Exception) -> TryLater:
    """Why there is no answer. After a refusal in the handshake nothing of the request was read, either."""
    if (alert := _alert(error)) is not None:
        return TryLater(f"{remote} could not be asked: TLS: {alert}", reason="TLS", sent=False)
    reason = "TIMEOUT" if isinstance(error, httpx2.TimeoutException) else "REMOTE_UNAVAILABLE"
    sent = not isinstance(error, _UNSENT)
    return TryLater(f"{remote} could not be asked: {_cause(error)}", reason=reason, sent=sent)


def _cause(error: BaseException) -> str:
    """What the system says of it, in its own fixed words; the name of the error where it says nothing."""
    found: BaseException | None = error
    for _ in range(_DEEPEST):
        if isinstance(found, OSError) and found.strerror and not isinstance(found, ssl.SSLError):
            known = found.errno is not None and found.errno > 0  # below are the resolver's, which say it themselves
            return f"{type(error).__name__}: {os.strerror(found.errno or 0) if known else found.strerror}"
        found = None if found is None else found.__cause__ or found.__context__
    return type(error).__name__


def _alert(error: BaseException | None) -> str | None:
    """The TLS alert about a certificate, theirs or ours: fixed words of OpenSSL's, never text of the remote."""
    for _ in range(_DEEPEST):
        if isinstance(error, ssl.SSLError) and any(word in (error.reason or "") for word in _HANDSHAKE):
            return error.reason.replace("_", " ").lower()
        error = None if error is None else error.__cause__ or error.__context__
    return None


def _client(*, verify: ssl.SSLContext | bool) -> httpx2.AsyncClient:
    no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=()))
    return httpx2.AsyncClient(verify=verify, trust_env=False, follow_redirects=False, cookies=no_cookies)


def _origin(url: str) -> str:
    """Scheme, host and port. The rest may be secret: a password, a token, the path of a webhook."""
    try:
        parts = urlsplit(url)
        port = "" if parts.port is None else f":{parts.port}"
    except ValueError:  # half an IPv6 address, a port that cannot be
        raise TryLater("the address of a remote cannot be read") from None
    return f"{parts.scheme}://{parts.hostname or ''}{port}"


def room_on_disk(path: Path) -> tuple[int, int]:
    """Free bytes, as far as this user may fill them, and all there are."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


class ServiceManager:
    """Tells systemd how this process is (sd_notify(3)); where no service manager asked for it, nothing is sent.

    One of several processes of a server has a line to their supervisor, which is told instead of systemd.
    """

    def __init__(
        self,
        environment: Mapping[str, str] = os.environ,
        *,
        line: socket.socket | None = None,
        watchdog: timedelta | None = None,
    ) -> None:
        self._line = line
        if line is not None:
            environment, self.watchdog = {}, watchdog
        where = environment.get("NOTIFY_SOCKET", "")
        self._where = "\0" + where[1:] if where.startswith("@") else where
        mine = environment.get("WATCHDOG_PID") in (None, str(os.getpid()))
        micros = environment.get("WATCHDOG_USEC", "") if mine else ""
        if line is None:
            self.watchdog = timedelta(microseconds=int(micros)) if micros.isdigit() and int(micros) else None

    def ready(self) -> None:
        self._tell("READY=1\nSTATUS=Serving.")

    def stopping(self) -> None:
        self._tell("STOPPING=1\nSTATUS=Draining: work under way ends, or is handed on.")

    def waiting(self, why: str) -> None:
        self._tell(f"STATUS={' '.join(why.split())[:200]}")

    async def alive(self) -> int:
        """For a loop of the engine: if loops do not tick any more, systemd starts the process anew."""
        self.feed()
        return 0

    def feed(self) -> None:
        self._tell("WATCHDOG=1")

    def _tell(self, text: str) -> None:
        if self._line is not None:
            with contextlib.suppress(OSError):
                self._line.send(text.encode(), socket.MSG_DONTWAIT)
        elif self._where:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
                line.setblocking(False)  # it is only told: the engine never waits for it
                line.sendto(text.encode(), self._where)


_MOST_NAMES: Final = 50_000  # in one folder


class LocalTree:
    """A folder of this machine. What a path leads to is looked at once it is open, so that no link can be swapped."""

    def __init__(self, root: Path) -> None:
        self._given, self._root = root, os.path.realpath(root)

    def shown(self, path: str) -> str:
        """File names come from others: nothing in them may reach a terminal as an order."""
        text = str(self._given / path).encode("utf-8", "backslashreplace").decode()
        return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text)

    def names(self, folder: str) -> list[str] | None:
        with self._open(folder, os.O_DIRECTORY) as handle:
            if handle is None:
                return None
            found = os.listdir(handle)
        if len(found) > _MOST_NAMES:
            raise Unreadable(f"it holds more than {_MOST_NAMES} files")
        return sorted(found)

    def read(self, path: str, limit: int) -> bytes | None:
        with self._open(path, 0) as handle:
            if handle is None:
                return None
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise Unreadable("it is not a plain file")
            with os.fdopen(os.dup(handle), "rb") as file:
                content = file.read(limit + 1)
        if len(content) > limit:
            raise Unreadable(f"it is longer than {limit} bytes")
        return content

    @contextlib.contextmanager
    def _open(self, path: str, flags: int) -> Iterator[int | None]:
        try:  # O_NONBLOCK: a pipe that somebody left there must not hold us up
            handle = os.open(os.path.join(self._root, path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
        except (FileNotFoundError, NotADirectoryError):
            yield None
            return
        except (OSError, ValueError) as error:
            raise Unreadable(getattr(error, "strerror", None) or "its name cannot be used") from None
        try:
            real = os.readlink(f"/proc/self/fd/{handle}")
            if os.path.commonpath([real, self._root]) != self._root:
                raise Unreadable("it is a link that leads out of the folder")
            yield handle
        finally:
            os.close(handle)


class TracedTransport:
    """The same transport, with a span for each request: whom it went to, and what came of it; no path, no header."""

    def __init__(self, inner: Transport, traces: Traces) -> None:
        self._inner, self._traces = inner, traces

    async def request(self, request: Request) -> Response:
        host = urlsplit(request.url).hostname or ""
        with self._traces.call(f"{request.method} {host}", method=request.method, remote=host) as span:
            try:
                answer = await self._inner.request(request)
            except Exception as error:
                span.failed(type(error).__name__)
                raise
            span.tell(status=answer.status)
            return answer


PATIENCE: Final = 10.0  # seconds
PRIORITY: Final = 13 * 8 + 6  # facility "log audit", severity "informational" (RFC 5424 §6.2.1)
LONGEST_DATAGRAM: Final = 60_000  # bytes


class FileSink:
    """Lines of JSON, appended and synced: a crash loses none. Opened each time, so that it may be rotated."""

    def __init__(self, path: Path) -> None:
        self.name = f"file:{path}"
        self._path = path

    async def write(self, lines: Sequence[AuditLine]) -> None:
        await asyncio.to_thread(self._append, "".join(f"{each.text}\n" for each in lines).encode())

    def _append(self, content: bytes) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(self._path, flags, 0o600)
        try:
            size = os.fstat(handle).st_size
            torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"  # a crash cut the last line: it comes again
            _write_all(handle, b"\n" + content if torn else content)
            os.fsync(handle)
        finally:
            os.close(handle)
        if size == 0:
            sync_folder(self._path.parent)


def _write_all(handle: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(handle, left) :]


class SyslogSink:
    """RFC 5424, to a socket of this machine or over UDP or TCP. Syslog confirms nothing: a file is safer."""

    def __init__(self, address: str, host: str) -> None:
        self.name = f"syslog:{address}"
        self._address = urlsplit(address)
        self._host = "".join(char for char in host if char.isascii() and char.isprintable() and char != " ") or "-"

    async def write(self, lines: Sequence[AuditLine]) -> None:
        await asyncio.to_thread(self._send, [self._message(each) for each in lines])

    def _message(self, line: AuditLine) -> bytes:
        at = line.at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        head = f'<{PRIORITY}>1 {at} {self._host} holdfast - audit [audit@32473 seq="{line.seq}"] '
        return f"{head}{line.text}".encode()

    def _send(self, messages: Sequence[bytes]) -> None:
        with self._connected() as line:
            for message in messages:
                if line.type == socket.SOCK_STREAM:
                    line.sendall(b"%d %s" % (len(message), message))  # octet counting (RFC 6587 §3.4.1)
                else:
                    line.send(message[:LONGEST_DATAGRAM])

    def _connected(self) -> socket.socket:
        match self._address.scheme:
            case "unix":
                line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                target: object = self._address.path
            case "udp":
                target = (self._address.hostname, self._address.port or 514)
                line = socket.socket(_family(target), socket.SOCK_DGRAM)
            case _:
                return socket.create_connection((self._address.hostname, self._address.port or 601), PATIENCE)
        line.settimeout(PATIENCE)
        try:
            line.connect(target)  # type: ignore[arg-type]
        except OSError:
            line.close()
            raise
        return line


def _family(target: tuple[str | None, int]) -> int:
    return socket.getaddrinfo(*target, type=socket.SOCK_DGRAM)[0][0]
