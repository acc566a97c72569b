"""Where a request comes from, as far as that can be believed."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


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
