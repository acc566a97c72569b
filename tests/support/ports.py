"""Ports of loopback for those who must be told one: ours until this process ends, whoever else runs tests here."""

import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import SystemRandom
from typing import Final

HOST: Final = "127.0.0.1"
FIRST, LAST, BLOCK = 20_000, 32_000, 200
EPHEMERAL: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_kept: Final[list[socket.socket]] = []


def free_port(host: str = HOST) -> int:
    """A port where nobody listens and where nobody else of us will, neither by TCP nor by UDP."""
    for port in _ours:
        if all(_free(host, port, kind) for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM)):
            return port
    raise AssertionError(f"no free port between {FIRST} and {LAST}")


def _each() -> Iterator[int]:
    """Every port of a block that is ours, then of another: none is given twice."""
    blocks = list(_blocks())
    SystemRandom().shuffle(blocks)
    for block in blocks:
        if _keep(block):
            yield from block


_ours: Final = _each()


def _blocks() -> Iterator[range]:
    """Below the ports that outgoing connections take: what is ours is then nobody's by chance."""
    last = LAST
    with suppress(OSError, ValueError, IndexError):
        lowest = int(EPHEMERAL.read_text().split()[0])
        last = min(LAST, lowest) if lowest >= FIRST + 10 * BLOCK else LAST
    return (range(first, first + BLOCK) for first in range(FIRST, last - BLOCK + 1, BLOCK))


def _keep(block: range) -> bool:
    """A name that the kernel gives to one process at a time, and frees when that ends, in whatever way."""
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0holdfast-tests-ports-{block.start}")
    except OSError:
        claim.close()
        return False
    _kept.append(claim)
    return True


def _free(host: str, port: int, kind: socket.SocketKind) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, kind) as probe:
        if kind is socket.SOCK_STREAM:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # old connections do not count
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True
