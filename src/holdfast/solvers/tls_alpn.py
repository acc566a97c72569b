"""tls-alpn-01 (RFC 8737): the solver, the certificate that proves a name, and the listener that shows it."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from hashlib import sha256
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from holdfast.core.kind import Kind
from holdfast.core.own_ca.acme import Identifier
from holdfast.issuers.base import ChallengeResponse
from holdfast.kind_settings import KindSettings
from holdfast.listening.accepting import Accepting
from holdfast.listening.admission import Admission, Seat, Tally
from holdfast.listening.bounds import Bounds
from holdfast.pki import der, keys
from holdfast.ports import Clock
from holdfast.solvers.base import Delete, Put, never
from holdfast.solvers.kind import SolverKind, SolverParts

# ── The certificate ──


ALPN: Final = "acme-tls/1"
ACME_IDENTIFIER: Final = x509.ObjectIdentifier("1.3.6.1.5.5.7.1.31")  # id-pe-acmeIdentifier
_DAY: Final = timedelta(days=1)


class ShownResponse(NamedTuple):
    """The challenge response for a client that asks for this name."""

    identifier: Identifier
    key_authorization: str


class TlsAlpn:
    """Rows in the store, as for http-01; the listener of each replica shows them."""

    type = "tls-alpn-01"
    side_by_side = True

    def __init__(self, put: Put, delete: Delete) -> None:
        self._put = put
        self._delete = delete

    async def publish(self, response: ChallengeResponse) -> None:
        if response.identifier.wildcard:
            raise never("A wildcard cannot be proved by tls-alpn-01 (RFC 8737 §3).")
        await self._put(response)

    async def visible(self, response: ChallengeResponse) -> bool:
        return True

    async def clean(self, response: ChallengeResponse) -> None:
        await self._delete(response)


def server_name(identifier: Identifier) -> str:
    """What the CA will ask for: an address has no SNI, so its name in the reverse tree is used (RFC 8738 §6)."""
    return ipaddress.ip_address(identifier.value).reverse_pointer if identifier.type == "ip" else identifier.value


def identifier_of(server_name: str) -> Identifier:
    """The other way round. A name in the reverse tree always means the address: only for one does a CA ask for it."""
    labels = server_name.split(".")
    digits = labels[-3::-1]
    if re.fullmatch(r"(\d{1,3}\.){4}in-addr\.arpa", server_name):
        address = ".".join(digits)
    elif re.fullmatch(r"([0-9a-f]\.){32}ip6\.arpa", server_name):
        address = ":".join("".join(digits[at : at + 4]) for at in range(0, 32, 4))
    else:
        return Identifier("dns", server_name)
    try:
        return Identifier("ip", str(ipaddress.ip_address(address)))
    except ValueError:
        return Identifier("dns", server_name)


def certificate_for(shown: ShownResponse, key: ec.EllipticCurvePrivateKey, now: datetime) -> x509.Certificate:
    """Self-signed, for this name alone, with the digest of the key authorization in a critical extension (§3)."""
    named: x509.GeneralName = x509.DNSName(shown.identifier.value)
    if shown.identifier.type == "ip":
        named = x509.IPAddress(ipaddress.ip_address(shown.identifier.value))
    no_subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "acme-tls/1 challenge")])
    digest = der.octet_string(sha256(shown.key_authorization.encode()).digest())
    builder = x509.CertificateBuilder(no_subject, no_subject, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - _DAY).not_valid_after(now + 7 * _DAY)
    builder = builder.add_extension(x509.SubjectAlternativeName([named]), critical=False)
    builder = builder.add_extension(x509.UnrecognizedExtension(ACME_IDENTIFIER, digest), critical=True)
    return builder.sign(key, hashes.SHA256())


def plain_context() -> ssl.SSLContext:
    """It speaks acme-tls/1 and has no certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # §4
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0  # no client comes back
    context.set_alpn_protocols([ALPN])
    return context


def showing_context(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> ssl.SSLContext:
    context = plain_context()
    # The ssl module reads files only, and keys do not belong into any.
    handle = os.memfd_create("challenge", os.MFD_CLOEXEC)
    try:
        os.write(handle, certificate.public_bytes(Encoding.PEM) + keys.to_pem(key).reveal())
        context.load_cert_chain(f"/proc/self/fd/{handle}")
    finally:
        os.close(handle)
    return context


def _make(settings: KindSettings, parts: SolverParts) -> TlsAlpn:
    if not parts.tls_alpn_shown:
        raise ValueError(
            "no listener would show its challenge responses; set keeping.tls_alpn_listen, such as 0.0.0.0:443"
        )
    return TlsAlpn(parts.put, parts.delete)


TLS_ALPN: Final[SolverKind[KindSettings]] = Kind(
    name="tls-alpn", summary="tls-alpn-01, shown by this server.", settings=KindSettings, limits=None, make=_make
)


# ── The listener ──
# A handshake with a certificate made for the name asked for, and no more.
#
# The store knows which challenge response to show, and TLS cannot wait for the store while it shakes hands. So the
# client's first words are read twice: by a session that only learns the name, then by the one that answers.


FindKeyAuthorization = Callable[
    [Identifier], Awaitable[str | None]
]  # the key authorization to show for a name; None: there is none
BoundSocket = socket.socket  # bound, and ours
Begin = Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]

BACKLOG: Final = 256
PIECE: Final = 4096
MOST_HELD: Final = 256  # connections, even if the settings allow more
MOST_ASKED: Final = 32 * 1024  # bytes before we know which name is meant: no honest client needs a tenth of it


@asynccontextmanager
async def showing(
    line: BoundSocket,
    find: FindKeyAuthorization,
    clock: Clock,
    bounds: Bounds = Bounds(),  # noqa: B008  (a frozen value)
    tally: Tally = Tally(),  # noqa: B008  (it has no state)
) -> AsyncIterator[None]:
    """Answer on the socket for as long as the block runs.

    The port is open to the world. A CA is done in a moment, so too many connections push out the oldest at once.
    """
    at_most = min(bounds.connections, MOST_HELD)
    admission = Admission(replace(bounds, connections=at_most, probes=0, displaced_after=0.0), tally)
    listener = _Listener(find, clock, admission)
    line.listen(BACKLOG)
    accepting = Accepting(line, listener.protocol, admission, tls=None, refusal=b"")
    try:
        yield
    finally:
        accepting.close()
        await listener.close()
        await accepting.wait_closed()


class _Line(asyncio.StreamReaderProtocol):
    """A connection with streams, and with a seat that is free when it ends."""

    def __init__(self, begin: Begin, release: Callable[[], None]) -> None:
        super().__init__(asyncio.StreamReader(limit=PIECE), begin)
        self._release = release

    def connection_lost(self, exc: Exception | None) -> None:
        self._release()
        super().connection_lost(exc)


class _Asking(ssl.SSLObject):
    """A session that only hears which name the client wants, and refuses it: unrecognized_name."""

    asked: str | None = None  # until the client has said it; empty if it names none


def _hear(line: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> int:
    if isinstance(line, _Asking):
        line.asked = (name or "").lower()
    return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME


class _Listener:
    def __init__(self, find: FindKeyAuthorization, clock: Clock, admission: Admission) -> None:
        self._find, self._clock, self._admission = find, clock, admission
        self._key = ec.generate_private_key(ec.SECP256R1())  # of this process; it proves nothing, the digest does
        self._asking = plain_context()
        self._asking.sslobject_class = _Asking
        self._asking.sni_callback = _hear
        self._lines: set[asyncio.Task[None]] = set()

    def protocol(self, seat: Seat) -> asyncio.Protocol:
        return _Line(partial(self._begin, seat), lambda: self._admission.release(seat))

    def _begin(self, seat: Seat, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(_Talk(reader, writer)))
        seat.leave = partial(_cancel, task)
        self._lines.add(task)
        task.add_done_callback(self._lines.discard)

    async def close(self) -> None:
        lines = list(self._lines)
        for each in lines:
            each.cancel()
        await asyncio.gather(*lines, return_exceptions=True)

    async def _serve(self, talk: _Talk) -> None:
        """An error on a connection is the client's affair: it gets a TLS alert, or nothing."""
        with suppress(TimeoutError, OSError, EOFError), talk:
            async with asyncio.timeout(self._admission.bounds.head_for):
                await self._shake_hands(talk)

    async def _shake_hands(self, talk: _Talk) -> None:
        heard, refusal = await self._first_words(talk)
        context = await self._context_for(heard.asked)
        if context is None:
            await talk.send(refusal.read())
            return
        await talk.answer(context)

    async def _first_words(self, talk: _Talk) -> tuple[_Asking, ssl.MemoryBIO]:
        """The name that is asked for, and what to tell a client whose name is not being proved."""
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        session = self._asking.wrap_bio(incoming, outgoing, server_side=True)
        if not isinstance(session, _Asking):
            raise AssertionError("the context makes sessions of this class")
        while len(talk.said) <= MOST_ASKED:
            incoming.write(await talk.hear())
            try:
                session.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError:
                break  # it was refused: by us, with its name, or because it is no TLS
        return session, outgoing

    async def _context_for(self, name: str | None) -> ssl.SSLContext | None:
        if not name:
            return None
        identifier = identifier_of(name)
        found = await self._find(identifier)
        if found is None:
            return None
        return showing_context(
            certificate_for(ShownResponse(identifier, found), self._key, self._clock.now()), self._key
        )


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


class _Talk:
    """One connection: the client's bytes so far, and the handshake with it. It is closed in every case."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.said = b""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or issubclass(kind, ssl.SSLError):
            self._writer.close()  # after the bytes that are still to be sent, such as an alert
        else:
            self._writer.transport.abort()

    async def hear(self) -> bytes:
        piece = await self._reader.read(PIECE)
        if not piece:
            raise EOFError
        self.said += piece
        return piece

    async def send(self, content: bytes) -> None:
        self._writer.write(content)
        await self._writer.drain()

    async def answer(self, context: ssl.SSLContext) -> None:
        """The whole handshake, from the words that were heard already; nothing is said after it (§3)."""
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        session = context.wrap_bio(incoming, outgoing, server_side=True)
        incoming.write(self.said)
        while not self._stepped(session, outgoing):
            incoming.write(await self.hear())
        with suppress(ssl.SSLError):
            session.unwrap()  # we have said all we had to say, and do not wait for the same from the client
        await self.send(outgoing.read())

    def _stepped(self, session: ssl.SSLObject, outgoing: ssl.MemoryBIO) -> bool:
        """Whether the handshake is over; what it has to say is sent, an alert too."""
        try:
            session.do_handshake()
        except ssl.SSLWantReadError:
            return False
        finally:
            self._writer.write(outgoing.read())
        return True
