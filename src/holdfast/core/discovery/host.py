"""What a host says of itself: its listening sockets, and files that hold keys. Texts in, values out."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from holdfast.core.discovery.network import port_of
from holdfast.core.endpoint import Endpoint

_LISTEN: Final = "0A"  # the state of a socket in /proc/net/tcp
_CERTIFICATES: Final = (".pem", ".crt", ".cer", ".cert", ".der", ".chain")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """A program that listens."""

    address: str
    port: int
    inode: str
    program: str = ""

    @property
    def endpoint(self) -> Endpoint:
        """Where its certificate is seen from this host; how TLS begins there is known by its port."""
        address = ipaddress.ip_address(self.address)
        seen = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(str(address), str(address))  # noqa: S104
        return Endpoint(host=seen, port=self.port, protocol=port_of(str(self.port)).protocol)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """What is known of a file without opening it."""

    mode: int
    owner: str


def listening(text: str) -> Iterator[Listener]:
    """The listening sockets of /proc/net/tcp or tcp6; a line that cannot be read is left out."""
    for line in text.splitlines()[1:]:
        words = line.split()
        if len(words) < 10 or words[3] != _LISTEN:
            continue
        address, _, port = words[1].partition(":")
        try:
            yield Listener(address=_address(address), port=int(port, 16), inode=words[9])
        except ValueError:
            continue


def _address(text: str) -> str:
    """The kernel writes words of four bytes, each of them backwards."""
    words = [bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8)]
    found = ipaddress.ip_address(b"".join(words))
    mapped = getattr(found, "ipv4_mapped", None)
    return str(mapped or found)


def key_note(path: str, facts: FileFacts | None) -> str:
    """Mode and owner of a key file, and whether others than its owner and group may read it."""
    if facts is None:
        return f"key {path}: not there"
    others = ", readable by everybody" if facts.mode & 0o004 else ""
    return f"key {path}: mode {facts.mode & 0o7777:04o}, owner {facts.owner}{others}"


def may_be_certificate(name: str) -> bool:
    """By its name: keys are not opened, whatever they hold."""
    low = name.lower()
    return low.endswith(_CERTIFICATES) and "key" not in low
