"""The few DER encodings that `cryptography` does not offer; reading is left to it entirely (X.690)."""

from __future__ import annotations

from typing import Final

SEQUENCE: Final = 0x30
_INTEGER, _BIT_STRING, _OCTET_STRING, _OBJECT_IDENTIFIER = 0x02, 0x03, 0x04, 0x06


def tlv(tag: int, *contents: bytes) -> bytes:
    content = b"".join(contents)
    return bytes([tag]) + _length(len(content)) + content


def _length(size: int) -> bytes:
    if size < 0x80:
        return bytes([size])
    octets = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([0x80 | len(octets)]) + octets


def sequence(*parts: bytes) -> bytes:
    return tlv(SEQUENCE, *parts)


def integer(number: int) -> bytes:
    """A number that is not negative."""
    return tlv(_INTEGER, number.to_bytes(number.bit_length() // 8 + 1, "big"))


def octet_string(content: bytes) -> bytes:
    return tlv(_OCTET_STRING, content)


def bit_string(content: bytes) -> bytes:
    return tlv(_BIT_STRING, b"\x00", content)


def object_identifier(dotted: str) -> bytes:
    first, second, *rest = (int(arc) for arc in dotted.split("."))
    return tlv(_OBJECT_IDENTIFIER, *(_arc(arc) for arc in (first * 40 + second, *rest)))


def _arc(number: int) -> bytes:
    groups = [number & 0x7F]
    while number := number >> 7:
        groups.append(number & 0x7F | 0x80)
    return bytes(reversed(groups))
