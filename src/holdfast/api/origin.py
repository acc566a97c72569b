"""Where a request comes from, as far as that can be believed."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import Final

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
PARENT: Final = 52  # characters of a traceparent, after its version
LONGEST: Final = 200
_PARENT: Final = re.compile(r"(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def networks(texts: Sequence[str]) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(each, strict=False) for each in texts)


def client_address(peer: str, forwarded: Sequence[str], proxies: Sequence[Network]) -> str:
    """The peer; or, if that is one of our proxies, the last address in its header that is none of them.

    A header is a chain: each proxy adds whom it heard it from. What stands left of the first stranger is hearsay.
    """
    chain = [each.strip() for line in forwarded for each in line.split(",")]
    found = peer
    while chain and _within(found, proxies):
        nearer = _address(chain.pop())
        if nearer is None:
            break
        found = nearer
    return found


def _within(address: str, proxies: Sequence[Network]) -> bool:
    try:
        known = ipaddress.ip_address(address)
    except ValueError:
        return False  # a socket in the file system
    return any(known in network for network in proxies)


def _address(text: str) -> str | None:
    bare = text.removeprefix("[").partition("]")[0] if text.startswith("[") else text
    host = bare.partition(":")[0] if bare.count(":") == 1 else bare  # 192.0.2.1:4711
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return None


def traceparent(given: str) -> str:
    """The trace that a request is a part of (W3C Trace Context §3.2), as version 00 writes it; else nothing.

    It is kept with what the request asks for, and goes to nobody but otel.endpoint.
    """
    version, _, rest = given[:LONGEST].partition("-")
    known, more = rest[:PARENT], rest[PARENT:]
    if not re.fullmatch(r"(?!ff)[0-9a-f]{2}", version) or (more and (version == "00" or not more.startswith("-"))):
        return ""
    return f"00-{known}" if _PARENT.fullmatch(known) else ""
