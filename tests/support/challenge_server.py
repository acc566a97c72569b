"""What stands at the other end of a validation: web servers that answer as told, and TLS servers with odd certificates.

async with WebServer(told(b"HTTP/1.1 200 OK\\r\\n\\r\\nhello")) as web:
    ...  # connect to web.port
    assert web.asked == ["GET / HTTP/1.1\\r\\n…"]
"""

import asyncio
import os
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from hashlib import sha256

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from holdfast.network import SystemNet
from holdfast.ports import Net, Stream, Tls
from holdfast.validators.check import Validator
from holdfast.validators.verdict import ChallengeToCheck, ValidationSettings
from holdfast.world import SystemClock, SystemRandom
from tests.support.http_server import HOST, TcpServer
from tests.support.reaper import PATIENCE

Answer = Callable[[str, asyncio.StreamWriter], Awaitable[None]]  # the head of the request, and the line

ACME_IDENTIFIER = x509.ObjectIdentifier("1.3.6.1.5.5.7.1.31")

NAME = "www.example.internal"
TOKEN = "evaGxfADs6pSRb2LAv9IZf17Dt3juxGJ-PCt92wr-oA"
THUMBPRINT = "9jg46WB3rR_AHD-EBXdN7cBkH1WOu0tA3M9fm21mqTI"
PROOF = f"{TOKEN}.{THUMBPRINT}"
PATH = f"/.well-known/acme-challenge/{TOKEN}"
ACCOUNT = "https://ca.example/acme/account/1"
LOOPBACK = ("127.0.0.0/8", "::1/128")


def a_challenge(type_: str = "http-01", name: str = NAME) -> ChallengeToCheck:
    kind = "ip" if ":" in name or name[-1].isdigit() else "dns"
    return ChallengeToCheck(
        type=type_, identifier_type=kind, identifier=name, token=TOKEN, thumbprint=THUMBPRINT, account_url=ACCOUNT
    )


class Watched(SystemNet):
    """The real network, and the addresses that were dialled on it."""

    def __init__(self) -> None:
        super().__init__()
        self.dialled: list[tuple[str, int]] = []

    async def connect(self, address: str, port: int, *, tls: Tls | None = None, deadline_for: float) -> Stream:
        self.dialled.append((address, port))
        return await super().connect(address, port, tls=tls, deadline_for=deadline_for)


def a_validator(
    *resolvers: str,
    net: Net | None = None,
    http_port: int = 80,
    tls_port: int = 443,
    allowed: Sequence[str] = LOOPBACK,
    timeout: float = PATIENCE,
    caa: Sequence[str] = (),
) -> Validator:
    """The real thing, in a laboratory."""
    settings = ValidationSettings(
        resolvers=resolvers,
        http_port=http_port,
        tls_port=tls_port,
        allowed_networks=tuple(allowed),
        timeout=timeout,
        caa_identities=tuple(caa),
    )
    return Validator(net or SystemNet(), SystemClock(), SystemRandom(), settings)


def told(*pieces: bytes) -> Answer:
    """Always the same answer."""

    async def answer(_: str, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()

    return answer


def page(body: bytes, *, status: str = "200 OK", headers: Iterable[str] = ()) -> bytes:
    """One whole answer."""
    lines = (f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", "")
    return "\r\n".join(lines).encode() + body


def redirect(location: str, *, status: int = 302) -> bytes:
    return page(b"elsewhere", status=f"{status} Elsewhere", headers=[f"Location: {location}"])


class Detour(Watched):
    """The real network, but whatever public address is dialled, a server of ours is reached."""

    async def connect(self, address: str, port: int, *, tls: Tls | None = None, deadline_for: float) -> Stream:
        self.dialled.append((address, port))
        return await SystemNet.connect(self, HOST, port, tls=tls, deadline_for=deadline_for)


class WebServer(TcpServer):
    """Reads the head of a request, then lets `answer` do as it likes. Also over TLS, if it has a context."""

    def __init__(
        self,
        answer: Answer,
        *,
        host: str = HOST,
        tls: ssl.SSLContext | None = None,
        port: int = 0,
        holds: bool = False,  # does not close the line before the other side does
    ) -> None:
        super().__init__(self._answer_once, host=host, port=port, tls=tls)
        self.answer = answer
        self.asked: list[str] = []
        self._holds = holds

    async def _answer_once(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        self.asked.append(head)
        await self.answer(head, writer)
        await writer.drain()
        if self._holds:
            await reader.read()
            self.left.set()

    async def hang_up(self, writer: asyncio.StreamWriter) -> None:
        """Properly: the end of the connection is the end of the answer."""
        writer.close()
        with suppress(ConnectionError, ssl.SSLError, TimeoutError):
            await writer.wait_closed()


class Trap(TcpServer):
    """Listens, and counts its `connections`: a test says that there were none."""

    def __init__(self, host: str = HOST, port: int = 0) -> None:
        super().__init__(self._say_nothing, host=host, port=port)

    async def _say_nothing(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pass


# ── certificates of tls-alpn-01 ──


def digest_of(key_authorization: str) -> bytes:
    """The content of a right acmeIdentifier extension."""
    return b"\x04\x20" + sha256(key_authorization.encode()).digest()


def a_certificate(
    names: Sequence[x509.GeneralName] | None,
    digest: bytes | None,
    *,
    critical: bool = True,
    key: ec.EllipticCurvePrivateKey | None = None,
    signed_by: ec.EllipticCurvePrivateKey | None = None,
    issuer: str = "challenge",
    more: Iterable[x509.UnrecognizedExtension] = (),
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """A certificate for a challenge; right unless told otherwise."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(_named("challenge"))
        .issuer_name(_named(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=7))
    )
    if names is not None:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    if digest is not None:
        builder = builder.add_extension(x509.UnrecognizedExtension(ACME_IDENTIFIER, digest), critical=critical)
    for extension in more:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(signed_by or key, hashes.SHA256()), key


def _named(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def server_context(
    certificate: x509.Certificate,
    key: ec.EllipticCurvePrivateKey,
    *,
    alpn: Sequence[str] = (),
    seen: list[str] | None = None,
) -> ssl.SSLContext:
    """A TLS server's side; the names that clients ask for go to `seen`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    pem = certificate.public_bytes(serialization.Encoding.PEM) + key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    handle = os.memfd_create("chain")  # the ssl module reads files only, and keys do not belong into any
    try:
        os.write(handle, pem)
        context.load_cert_chain(f"/proc/self/fd/{handle}")
    finally:
        os.close(handle)
    if alpn:
        context.set_alpn_protocols(list(alpn))
    if seen is not None:
        context.sni_callback = lambda _line, name, _context: seen.append(name or "")
    return context
