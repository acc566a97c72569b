"""STARTTLS: the words that each protocol wants to hear before a TLS handshake.

What a server sends after its go-ahead and before the handshake is never read as part of the protocol (CVE-2011-0411):
whatever is left in the buffer is thrown away with it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from holdfast.core.endpoint import EndpointProtocol
from holdfast.pki import der
from holdfast.ports import Stream

_LONGEST_LINE: Final = 4096
_MOST: Final = 64 * 1024  # bytes of a whole conversation: a greeting may be a page of house rules, but has an end
_HELLO_FROM: Final = "holdfast.invalid"  # a name of nobody's (RFC 6761): mail servers want one


class NoUpgrade(Exception):
    """The server does not begin TLS; the text says why. Nothing that it said is repeated but numbers."""


class _Conversation:
    """Bounded reads, and nothing more."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._buffer = bytearray()
        self._got = 0

    async def say(self, data: bytes) -> None:
        await self._stream.write(data)

    async def line(self) -> bytes:
        found = await self.until(b"\n", _LONGEST_LINE)
        return found.rstrip(b"\r\n")

    async def until(self, mark: bytes, limit: int = _MOST) -> bytes:
        while (at := self._buffer.find(mark)) < 0:
            if len(self._buffer) >= limit:
                raise NoUpgrade("it sends more than any server of this protocol would")
            await self._more(_LONGEST_LINE)
        return self._take(at + len(mark))

    async def exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            await self._more(size - len(self._buffer))
        return self._take(size)

    async def _more(self, size: int) -> None:
        piece = await self._stream.read(size)
        self._got += len(piece)
        if not piece:
            raise NoUpgrade("it hung up before TLS began")
        if self._got > _MOST:
            raise NoUpgrade("it sends more than any server of this protocol would")
        self._buffer += piece

    def _take(self, size: int) -> bytes:
        found = bytes(self._buffer[:size])
        del self._buffer[:size]
        return found


# ── Protocols of lines ──


async def _reply(talk: _Conversation, wanted: int, to: str) -> list[bytes]:
    """A reply of SMTP or FTP: lines up to the one with its code and a space (RFC 5321 §4.2.1, RFC 959 §4.2)."""
    first = await talk.line()
    code, lines = first[:3], [first]
    if len(code) != 3 or not code.isdigit():
        raise NoUpgrade("it speaks another protocol")
    while lines[-1][:3] != code or lines[-1][3:4] == b"-":
        lines.append(await talk.line())
    if int(code) != wanted:
        raise NoUpgrade(f"it answered {int(code)} to {to}, not {wanted}")
    return lines


async def _smtp(talk: _Conversation, name: str) -> None:
    """RFC 3207."""
    await _reply(talk, 220, "the connection")
    await talk.say(f"EHLO {_HELLO_FROM}\r\n".encode())
    offered = await _reply(talk, 250, "EHLO")
    if not any(line[4:].strip().upper() == b"STARTTLS" for line in offered):
        raise NoUpgrade("it does not offer STARTTLS")
    await talk.say(b"STARTTLS\r\n")
    await _reply(talk, 220, "STARTTLS")


async def _ftp(talk: _Conversation, name: str) -> None:
    """RFC 4217 §4."""
    await _reply(talk, 220, "the connection")
    await talk.say(b"AUTH TLS\r\n")
    await _reply(talk, 234, "AUTH TLS")


async def _imap(talk: _Conversation, name: str) -> None:
    """RFC 9051 §6.2.1. A server that greets with PREAUTH cannot begin TLS any more."""
    if not (await talk.line()).upper().startswith(b"* OK"):
        raise NoUpgrade("it did not greet as an IMAP server that one may log in to")
    await talk.say(b"a1 STARTTLS\r\n")
    while not (answer := await talk.line()).startswith(b"a1 "):
        pass
    if not answer.upper().startswith(b"A1 OK"):
        raise NoUpgrade("it refused STARTTLS")


async def _pop3(talk: _Conversation, name: str) -> None:
    """RFC 2595 §4."""
    if not (await talk.line()).startswith(b"+OK"):
        raise NoUpgrade("it did not greet as a POP3 server")
    await talk.say(b"STLS\r\n")
    if not (await talk.line()).startswith(b"+OK"):
        raise NoUpgrade("it refused STLS")


async def _xmpp(talk: _Conversation, name: str) -> None:
    """RFC 6120 §5. Enough of XML to find three elements; what is not among them ends in no upgrade."""
    namespace = "urn:ietf:params:xml:ns:xmpp-tls"
    await talk.say(
        f"<?xml version='1.0'?><stream:stream to='{name}' version='1.0' xmlns='jabber:client' "
        "xmlns:stream='http://etherx.jabber.org/streams'>".encode()
    )
    await talk.until(b"<stream:features")
    bare = (await talk.until(b">")).endswith(b"/>")
    if bare or namespace.encode() not in await talk.until(b"</stream:features>"):
        raise NoUpgrade("it does not offer STARTTLS")
    await talk.say(f"<starttls xmlns='{namespace}'/>".encode())
    if b"<proceed" not in await talk.until(b">"):
        raise NoUpgrade("it refused STARTTLS")


# ── Protocols of bytes ──


_START_TLS_REQUEST: Final = der.sequence(
    der.tlv(0x02, b"\x01"), der.tlv(0x77, der.tlv(0x80, b"1.3.6.1.4.1.1466.20037"))
)


async def _ldap(talk: _Conversation, name: str) -> None:
    """RFC 4511 §4.14: an extended request with message id 1, and the extended response to it."""
    await talk.say(_START_TLS_REQUEST)
    tag, size = await talk.exactly(2)
    if 0x80 < size <= 0x84:  # the long form: so many octets of length
        size = int.from_bytes(await talk.exactly(size & 0x7F), "big")
    if tag != 0x30 or not 8 <= size <= _LONGEST_LINE:
        raise NoUpgrade("it speaks another protocol")
    answer = await talk.exactly(size)
    at = answer.find(b"\x0a\x01")  # the first ENUMERATED is the result code
    if answer[:4] != b"\x02\x01\x01\x78" or at < 0 or at + 2 >= len(answer):
        raise NoUpgrade("it speaks another protocol")
    if answer[at + 2]:
        raise NoUpgrade(f"it answered StartTLS with result code {answer[at + 2]}")


async def _postgres(talk: _Conversation, name: str) -> None:
    """SSLRequest, answered by one byte; no byte more is read, so that none can be smuggled in (CVE-2021-23222)."""
    await talk.say((8).to_bytes(4, "big") + (80877103).to_bytes(4, "big"))
    answer = await talk.exactly(1)
    if answer != b"S":
        raise NoUpgrade("it has TLS switched off" if answer == b"N" else "it speaks another protocol")


_CLIENT_SSL, _PROTOCOL_41, _SECURE = 0x0800, 0x0200, 0x8000


async def _mysql(talk: _Conversation, name: str) -> None:
    """The greeting of protocol 10, then an SSLRequest: the beginning of a log-in, cut off after its flags."""
    head = await talk.exactly(4)
    size = int.from_bytes(head[:3], "little")
    if not 0 < size <= _LONGEST_LINE:
        raise NoUpgrade("it speaks another protocol")
    greeting = await talk.exactly(size)
    if greeting[:1] == b"\xff":
        raise NoUpgrade(f"it refused us with error {int.from_bytes(greeting[1:3], 'little')}")
    after = greeting.find(b"\0", 1) + 1 + 4 + 8 + 1  # its version, our thread, half of its salt, a zero
    if greeting[:1] != b"\x0a" or len(greeting) < after + 2:
        raise NoUpgrade("it speaks another protocol")
    if not int.from_bytes(greeting[after : after + 2], "little") & _CLIENT_SSL:
        raise NoUpgrade("it has TLS switched off")
    flags = (_CLIENT_SSL | _PROTOCOL_41 | _SECURE).to_bytes(4, "little")
    request = flags + (1 << 24).to_bytes(4, "little") + b"\x2d" + bytes(23)
    await talk.say(len(request).to_bytes(3, "little") + b"\x01" + request)


_UPGRADES: Final[Mapping[EndpointProtocol, Callable[[_Conversation, str], Awaitable[None]]]] = {
    EndpointProtocol.SMTP: _smtp,
    EndpointProtocol.IMAP: _imap,
    EndpointProtocol.POP3: _pop3,
    EndpointProtocol.LDAP: _ldap,
    EndpointProtocol.POSTGRES: _postgres,
    EndpointProtocol.MYSQL: _mysql,
    EndpointProtocol.FTP: _ftp,
    EndpointProtocol.XMPP: _xmpp,
}


async def begin(protocol: EndpointProtocol, stream: Stream, name: str) -> None:
    """Bring the server to where it waits for a handshake; NoUpgrade if it does not get there."""
    await _UPGRADES[protocol](_Conversation(stream), name)
