"""Where a request goes, and where a redirect may send it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import SplitResult, urljoin, urlsplit

from holdfast.pki import names
from holdfast.pki.refused import NameRefused
from holdfast.validators.verdict import Failed

MAX_TARGET: Final = 2000  # characters of path and query


class Ports(NamedTuple):
    http: int
    tls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A URL in its parts, each of which is fit to be sent."""

    https: bool
    host: str  # a DNS name or an address, without brackets
    port: int
    target: str  # path and query

    @property
    def authority(self) -> str:
        """For the Host header: the port only if it is not the usual one."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.https else 80) else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self.https else 'http'}://{self.authority}{self.target}"

    @property
    def server_name(self) -> str | None:
        """For SNI, which has no addresses (RFC 6066 §3)."""
        return None if _address(self.host) else self.host


def follow(origin: Place, location: bytes | None, ports: Ports) -> Place:
    """Where a Location header leads to; Failed if we do not go there."""
    if location is None:
        raise Failed("connection", f"{origin.url} redirects without saying where to.")
    if not location or not all(0x21 <= c <= 0x7E for c in location):
        raise Failed("connection", f"{origin.url} redirects to something that is no URL.")
    try:
        said = urlsplit(location.decode())
        if said.scheme and not said.netloc:
            raise ValueError("urljoin would take it for a path")
        parts = urlsplit(urljoin(origin.url, location.decode()))
        port = parts.port
    except ValueError:
        raise Failed("connection", f"{origin.url} redirects to something that is no URL.") from None
    return _place(origin, parts, port, ports)


def _place(origin: Place, parts: SplitResult, port: int | None, ports: Ports) -> Place:
    if parts.scheme not in {"http", "https"}:
        raise Failed("connection", f"{origin.url} redirects to another scheme than http and https.")
    if "@" in parts.netloc:
        raise Failed("connection", f"{origin.url} redirects to a URL with a user name.")
    https = parts.scheme == "https"
    port = (ports.tls if https else ports.http) if port is None else port
    if port not in ports:
        raise Failed("connection", f"{origin.url} redirects to port {port}; we go to {ports.http} and {ports.tls}.")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if len(target) > MAX_TARGET:
        raise Failed("connection", f"{origin.url} redirects to a path of more than {MAX_TARGET} characters.")
    return Place(https=https, host=_host(origin, parts), port=port, target=target)


def _host(origin: Place, parts: SplitResult) -> str:
    """In its one spelling. Numbers that only some read as an address (2130706433, 0x7f.1) are no names, either."""
    text = parts.hostname or ""
    try:
        return _address(text) or names.dns_name(text, wildcard=False)
    except NameRefused:
        raise Failed("connection", f"{origin.url} redirects to a host that is no name and no address.") from None


def _address(text: str) -> str | None:
    try:
        return str(ipaddress.ip_address(text)) if "%" not in text else None  # a zone means nothing to us
    except ValueError:
        return None
