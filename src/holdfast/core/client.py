"""The client of a request: its address behind proxies, its trace, and where it comes from, for the audit log."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final

ProxyNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
PARENT: Final = 52  # characters of a traceparent, after its version
LONGEST: Final = 200
_PARENT: Final = re.compile(r"(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def networks(texts: Sequence[str]) -> tuple[ProxyNetwork, ...]:
    return tuple(ipaddress.ip_network(each, strict=False) for each in texts)


def client_address(peer: str, forwarded: Sequence[str], proxies: Sequence[ProxyNetwork]) -> str:
    """The peer; or, if that is one of our proxies, the last address in its header that is none of them.

    A header is a chain: each proxy adds whom it heard it from. What stands left of the first stranger is hearsay.
    """
    chain = [each.strip() for line in forwarded for each in line.split(",")]
    found = peer
    while chain and _within(found, proxies):
        nearer = _read_address(chain.pop())
        if nearer is None:
            break
        found = nearer
    return found


def _within(address: str, proxies: Sequence[ProxyNetwork]) -> bool:
    try:
        known = ipaddress.ip_address(address)
    except ValueError:
        return False  # a socket in the file system
    return any(known in network for network in proxies)


def is_known_host(peer: str, host: str, known: Collection[str], proxies: Sequence[ProxyNetwork]) -> bool:
    """Whether a request from this machine names a host of ours: an address, localhost, or one of the known names."""
    if not _is_loopback(peer) or _within(peer, proxies):
        return True
    name = host.removeprefix("[").partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    bare = name.lower().rstrip(".")
    return bare in ("", "localhost", *known) or bare.endswith(".localhost") or _read_address(name) is not None


def _is_loopback(peer: str) -> bool:
    try:
        return ipaddress.ip_address(peer).is_loopback
    except ValueError:
        return False


def counted_as(address: str) -> str:
    """Under which name an address is counted: of IPv6 the /64 that one customer has."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        return str(found.ipv4_mapped or ipaddress.IPv6Network((found, 64), strict=False))
    return str(found)


def _read_address(text: str) -> str | None:
    bare = text.removeprefix("[").partition("]")[0] if text.startswith("[") else text
    host = bare.partition(":")[0] if bare.count(":") == 1 else bare  # 192.0.2.1:4711
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return None


def traceparent(given: str) -> str:
    """The trace that a request is a part of (W3C Trace Context §3.2), as version 00 writes it; else nothing.

    It is kept with the jobs of the request, and only sent to otel.endpoint.
    """
    version, _, rest = given[:LONGEST].partition("-")
    known, more = rest[:PARENT], rest[PARENT:]
    if not re.fullmatch(r"(?!ff)[0-9a-f]{2}", version) or (more and (version == "00" or not more.startswith("-"))):
        return ""
    return f"00-{known}" if _PARENT.fullmatch(known) else ""


_BROWSERS: Final = (
    ("Edg", "Edge"),
    ("OPR", "Opera"),
    ("Firefox", "Firefox"),
    ("Chrome", "Chrome"),
    ("Version", "Safari"),
)
_SYSTEMS: Final = (("Android", "Android"), ("iPhone", "iPhone"), ("iPad", "iPad"), ("Windows", "Windows"),
                   ("Mac OS X", "macOS"), ("Linux", "Linux"))  # fmt: skip


def browser_name(agent: str) -> str:
    """What a person calls the browser, such as "Firefox 140 on Linux"; else the beginning of what it calls itself."""
    found = next(((name, match[1]) for mark, name in _BROWSERS if (match := re.search(rf"{mark}/(\d+)", agent))), None)
    system = next((name for mark, name in _SYSTEMS if mark in agent), "")
    if found is None:
        return "".join(char for char in agent if " " <= char <= "~")[:80]
    return f"{found[0]} {found[1]}" + (f" on {system}" if system else "")


def origin(headers: Mapping[str, str], **known: str) -> dict[str, str]:
    """Where a wish came from; what is not known is left out."""
    found = {
        "trace": traceparent(headers.get("traceparent", "")),
        "client": "".join(char for char in headers.get("user-agent", "") if " " <= char <= "~")[:80],
        **known,
    }
    return {name: value for name, value in found.items() if value}
