"""base64url without padding (RFC 7515 §2): how ACME and our own tokens write octets as text."""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from typing import Final

_TO_URL: Final = bytes.maketrans(b"+/", b"-_")
_FROM_URL: Final = bytes.maketrans(b"-_", b"+/")


def encode(octets: bytes) -> str:
    return b2a_base64(octets, newline=False).translate(_TO_URL).rstrip(b"=").decode()


def decode(text: str) -> bytes:
    """ValueError for a text that encode() would not have written."""
    octets = a2b_base64(text.encode("ascii").translate(_FROM_URL) + b"=" * (-len(text) % 4))
    if encode(octets) != text:
        raise ValueError("this is not base64url")
    return octets
