"""Clients that run in a browser (RFC 8555 §6.1): any page may ask, for nothing here trusts what a browser adds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from holdfast.acme.answer import Answer, Header

KEPT_FOR: Final = 86_400  # seconds for which a browser need not ask again
# With every answer. Headers that are not named here are kept from the page that asked.
OPEN: Final[tuple[Header, ...]] = (
    (b"access-control-allow-origin", b"*"),
    (b"access-control-expose-headers", b"Link, Location, Replay-Nonce, Retry-After"),
)


def is_preflight(method: str, headers: Mapping[bytes, bytes]) -> bool:
    """Whether a browser asks if it may ask; any other OPTIONS is a method that is not allowed."""
    return method == "OPTIONS" and b"origin" in headers and b"access-control-request-method" in headers


def preflight(allow: bytes) -> Answer:
    """A JOSE body is nothing that a page could send without having asked."""
    may: tuple[Header, ...] = (
        (b"access-control-allow-methods", allow),
        (b"access-control-allow-headers", b"Content-Type"),
        (b"access-control-max-age", b"%d" % KEPT_FOR),
    )
    return Answer(204, headers=may)
