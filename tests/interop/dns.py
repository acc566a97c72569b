"""A DNS server that says 127.0.0.1 to every name, and whose TXT records are set over HTTP by the clients' hooks.

Every other type has no data, CAA among them. `POST /set` and `POST /clear` take lines of `name value`.
"""

import asyncio
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tests.support.reaper import PATIENCE

ADDRESS: Final = ("127.0.0.1", 53)
MANAGEMENT: Final = ("127.0.0.1", 8055)
A, SOA, TXT, IN = 1, 6, 16, 1
TTL: Final = 1
RESPONSE, AUTHORITATIVE, RECURSION = 0x8000, 0x0400, 0x0080
_ROOT: Final = b"\0"
_SOA_DATA: Final = _ROOT + _ROOT + struct.pack("!5I", 1, 60, 60, 60, 1)  # the last: how long "no data" holds

Records = dict[str, list[str]]


def answer(query: bytes, texts: Records) -> bytes:
    """The response to one query, as a datagram."""
    ident, flags = struct.unpack("!HH", query[:4])
    name, end = _name(query)
    (kind,) = struct.unpack("!H", query[end : end + 2])
    found = [_record(kind, data) for data in _data(name, kind, texts)]
    authority = [] if found else [_record(SOA, _SOA_DATA, owner=_ROOT)]
    flags = RESPONSE | AUTHORITATIVE | RECURSION | (flags & 0x7900)  # their opcode and their wish for recursion
    header = struct.pack("!6H", ident, flags, 1, len(found), len(authority), 0)
    return header + query[12 : end + 4] + b"".join(found + authority)


def _name(query: bytes) -> tuple[str, int]:
    """The name asked for, in lower case (resolvers vary it on purpose), and where it ends."""
    labels, at = [], 12
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode("ascii").lower())
        at += 1 + query[at]
    return ".".join(labels), at + 1


def _data(name: str, kind: int, texts: Records) -> list[bytes]:
    if kind == A:
        return [bytes([127, 0, 0, 1])]
    if kind == TXT:
        return [bytes([len(text)]) + text.encode() for text in texts.get(name, ())]
    if kind == SOA and name.count(".") <= 1:  # zones begin there, for clients that look for the zone of a name
        return [_SOA_DATA]
    return []


def _record(kind: int, data: bytes, owner: bytes = b"\xc0\x0c") -> bytes:
    """One record; its owner is the name in the question, unless another is given."""
    return owner + struct.pack("!HHIH", kind, IN, TTL, len(data)) + data


async def _datagrams(line: socket.socket, texts: Records) -> None:
    loop = asyncio.get_running_loop()
    while True:
        query, sender = await loop.sock_recvfrom(line, 4096)
        await loop.sock_sendto(line, answer(query, texts), sender)


async def _stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, texts: Records) -> None:
    """The same over TCP: some clients ask that way."""
    try:
        while True:
            (length,) = struct.unpack("!H", await reader.readexactly(2))
            said = answer(await reader.readexactly(length), texts)
            writer.write(struct.pack("!H", len(said)) + said)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def _manage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, texts: Records) -> None:
    """One HTTP request: the hooks are ours, so a length and two paths are all there is."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("ascii").splitlines()
    fields = dict(line.lower().split(": ", 1) for line in head[1:] if line)
    body = (await reader.readexactly(int(fields.get("content-length", "0")))).decode("ascii")
    for name, value in (line.split() for line in body.splitlines()):
        _change(texts, head[0].split()[1], name.rstrip(".").lower(), value)
    writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
    await writer.drain()
    writer.close()


def _change(texts: Records, path: str, name: str, value: str) -> None:
    values = texts.setdefault(name, [])
    if path == "/set" and value not in values:
        values.append(value)  # a wildcard and its parent are proved at the same name, at the same time
    elif path == "/clear" and value in values:
        values.remove(value)


async def serve(started: threading.Event, stop: asyncio.Event) -> None:
    """Answer until told to stop."""
    texts: Records = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.setblocking(False)
        line.bind(ADDRESS)
        datagrams = asyncio.create_task(_datagrams(line, texts))
        streams = await asyncio.start_server(lambda r, w: _stream(r, w, texts), *ADDRESS)
        management = await asyncio.start_server(lambda r, w: _manage(r, w, texts), *MANAGEMENT)
        started.set()
        await stop.wait()
        datagrams.cancel()
        streams.close()
        management.close()


@contextmanager
def running() -> Iterator[None]:
    """The server, on a thread of its own."""
    started, loop, stop = threading.Event(), asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve(started, stop)), daemon=True)
    thread.start()
    if not started.wait(PATIENCE):
        raise TimeoutError("the DNS server did not start")
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(PATIENCE)
