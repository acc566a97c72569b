"""The world that the servers validate against, in one process: every name is 127.0.0.1, every challenge is answered.

It keeps nothing of a challenge: the name says which account asks (n7-3.bench.test is account 3), and a table given
once on stdin says that account's thumbprint. It ends when stdin does.
"""

import argparse
import asyncio
import json
import sys
from ipaddress import IPv4Address
from typing import cast

import uvloop

LOOPBACK = IPv4Address("127.0.0.1").packed
A, IN = 1, 1
TTL = 60


def dns_answer(query: bytes) -> bytes:
    """Answer one question: 127.0.0.1 if it asks for an IPv4 address, otherwise that there is no such record."""
    end = query.index(b"\0", 12) + 5  # the name, its type and its class
    question = query[12:end]
    found = int.from_bytes(question[-4:-2]) == A
    header = query[:2] + b"\x85\x80" + b"\0\1" + (b"\0\1" if found else b"\0\0") + b"\0\0\0\0"
    record = b"\xc0\x0c" + A.to_bytes(2) + IN.to_bytes(2) + TTL.to_bytes(4) + b"\0\4" + LOOPBACK
    return header + question + (record if found else b"")


class Names(asyncio.DatagramProtocol):
    """DNS over UDP."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if len(data) > 16:
            self.transport.sendto(dns_answer(data), addr)


class Answers(asyncio.Protocol):
    """http-01 (RFC 8555 §8.3): the key authorization is the token and the thumbprint of whoever the name belongs to."""

    def __init__(self, thumbprints: dict[bytes, bytes]) -> None:
        self.thumbprints = thumbprints
        self.seen = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.seen += data
        while b"\r\n\r\n" in self.seen:
            head, _, self.seen = self.seen.partition(b"\r\n\r\n")
            self.transport.write(http_answer(head, self.thumbprints))


def http_answer(head: bytes, thumbprints: dict[bytes, bytes]) -> bytes:
    request, *fields = head.split(b"\r\n")
    token = request.split(b" ")[1].rpartition(b"/.well-known/acme-challenge/")[2]
    host = next((field[5:] for field in fields if field[:5].lower() == b"host:"), b"")
    account = host.strip().partition(b".")[0].rpartition(b"-")[2]
    body = token + b"." + thumbprints.get(account, b"unknown")
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


async def run(dns_port: int, http_port: int, thumbprints: dict[bytes, bytes]) -> None:
    loop = asyncio.get_running_loop()
    await loop.create_datagram_endpoint(Names, local_addr=("127.0.0.1", dns_port))
    await loop.create_server(lambda: Answers(thumbprints), "127.0.0.1", http_port, backlog=1024)
    print("ready", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dns", type=int, required=True)
    parser.add_argument("--http", type=int, required=True)
    wanted = parser.parse_args()
    table = json.loads(sys.stdin.readline())
    uvloop.run(run(wanted.dns, wanted.http, {k.encode(): v.encode() for k, v in table.items()}))


if __name__ == "__main__":
    main()
