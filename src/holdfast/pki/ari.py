"""Names of certificates in renewal information (RFC 9773 §4.1), and when a certificate should be renewed."""

from __future__ import annotations

import base64
import re
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from holdfast.core import base64url

SECOND: Final = timedelta(seconds=1)
_PART: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Window(NamedTuple):
    start: datetime
    end: datetime


def cert_id(key_identifier: bytes, serial: int) -> str:
    """The issuer's key identifier and the serial, as they stand in DER: a high first bit gets a zero octet."""
    octets = serial.to_bytes(serial.bit_length() // 8 + 1, "big")
    return f"{base64url.encode(key_identifier)}.{base64url.encode(octets)}"


def parse_cert_id(text: str) -> tuple[bytes, str]:
    """The key identifier, and the serial in hex. ValueError for anything but the one way to write it."""
    key, _, number = text.partition(".")
    if not _PART.fullmatch(key) or not _PART.fullmatch(number):
        raise ValueError("two parts in base64url, with a dot between")
    key_identifier, octets = _decode(key), _decode(number)
    serial = int.from_bytes(octets, "big", signed=True)
    if serial <= 0 or cert_id(key_identifier, serial) != text:
        raise ValueError("a serial is a positive DER integer")
    return key_identifier, f"{serial:x}"


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def window(not_before: datetime, not_after: datetime, *, revoked_at: datetime | None) -> Window:
    """When to renew: between 2/3 and 3/4 of its life (half of it, if that is short); at once if it is revoked."""
    if revoked_at is not None:
        return Window(revoked_at - timedelta(hours=1), revoked_at)
    life = not_after - not_before
    first, last = (1 / 2, 2 / 3) if life < timedelta(days=10) else (2 / 3, 3 / 4)
    start, end = not_before + life * first, not_before + life * last
    return Window(start, max(end, start + SECOND))  # told in whole seconds, and never empty (§4.2)
