"""Bytes of a log, read with every length checked: what a log sends is a stranger's word."""

from __future__ import annotations


class Malformed(ValueError):
    """The log's answer is not what the RFC says."""


class ByteReader:
    """Reads the structures of TLS (RFC 8446 §3): numbers and vectors with their lengths before them."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def at_end(self) -> bool:
        return self._at >= len(self._data)

    def take(self, number: int) -> bytes:
        end = self._at + number
        if end > len(self._data):
            raise Malformed(f"{number} bytes are announced, and {len(self._data) - self._at} are there")
        found, self._at = self._data[self._at : end], end
        return found

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def vector(self, size: int) -> bytes:
        """A vector whose length is written in so many bytes before it."""
        return self.take(self.number(size))
