"""The address by which browsers reach this server, and what follows from it: cookies, origins, the id for passkeys."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

COOKIE: Final = "holdfast"
_HERE: Final = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True, slots=True)
class PublicAddress:
    """Taken from the settings, never from Host or forwarded headers, which a stranger writes."""

    url: str  # scheme://host or scheme://host:port, in lower case

    @property
    def secure(self) -> bool:
        return self.url.startswith("https://")

    @property
    def host(self) -> str:
        """Passkeys are for this host. They do not work for an IP address, and not after the host has changed."""
        return urlsplit(self.url).hostname or ""

    @property
    def takes_passkeys(self) -> bool:
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            return self.secure or self.host == "localhost"
        return False

    @property
    def origins(self) -> frozenset[str]:
        """What browsers call a page of ours. On this machine, without TLS, a server has three names."""
        if self.secure or self.host not in ("localhost", "127.0.0.1", "::1"):
            return frozenset({self.url})
        port = urlsplit(self.url).port
        return frozenset(f"http://{host}" if port is None else f"http://{host}:{port}" for host in _HERE)

    def cookie(self, purpose: str = "") -> str:
        """The name of a cookie. Browsers take `__Host-` from the host itself only, over TLS, and for all its paths.

        Without TLS, which is for trials on one machine, they would refuse that. Cookies are shared by all ports of a
        machine, so the name has the port.
        """
        name = f"{COOKIE}-{purpose}" if purpose else COOKIE
        return f"__Host-{name}" if self.secure else f"{name}-{urlsplit(self.url).port or 80}"


def refusal(url: str) -> str | None:
    """Why an address cannot be this server's; None if it can."""
    address = PublicAddress(url)
    if address.secure or len(address.origins) > 1:
        return None
    return "cookies would cross a network unencrypted: use https:// (http:// is for localhost only)"
