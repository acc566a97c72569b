"""base64url without padding (RFC 7515 §2): how ACME and our own tokens write octets as text."""

from __future__ import annotations

from binascii import b2a_base64
from typing import Final

_TO_URL: Final = bytes.maketrans(b"+/", b"-_")


def encode(octets: bytes) -> str:
    return b2a_base64(octets, newline=False).translate(_TO_URL).rstrip(b"=").decode()
