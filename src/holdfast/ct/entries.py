"""Entries of a log: a certificate, or a precertificate with the same serial (RFC 6962 §3.4, static-ct-api)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from holdfast.ct.reading import ByteReader, Malformed

X509_ENTRY: Final = 0
PRECERT_ENTRY: Final = 1
_ISSUER_KEY_HASH: Final = 32
MOST_OF_A_TILE: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    index: int
    timestamp_ms: int
    certificate: bytes  # DER: of the certificate, or of the precertificate with its poison extension
    precertificate: bool


def from_json(index: int, leaf_input: bytes, extra_data: bytes) -> LogEntry:
    """An entry of get-entries."""
    reader = ByteReader(leaf_input)
    if reader.number(1) != 0 or reader.number(1) != 0:
        raise Malformed(f"entry {index} is of an unknown version or type")
    timestamp, kind, held = _timestamped(reader, index)
    if kind == PRECERT_ENTRY:
        held = ByteReader(extra_data).vector(3)
    return LogEntry(index=index, timestamp_ms=timestamp, certificate=held, precertificate=kind == PRECERT_ENTRY)


def from_tile(first: int, tile: bytes, width: int) -> list[LogEntry]:
    """The entries of a data tile of static-ct-api; `width` of them, or Malformed."""
    reader, found = ByteReader(tile), list[LogEntry]()
    for index in range(first, first + width):
        timestamp, kind, held = _timestamped(reader, index)
        if kind == PRECERT_ENTRY:
            held = reader.vector(3)
        reader.vector(2)  # fingerprints of its chain
        found.append(
            LogEntry(index=index, timestamp_ms=timestamp, certificate=held, precertificate=kind == PRECERT_ENTRY)
        )
    if not reader.at_end:
        raise Malformed(f"the tile of entry {first} has more than {width} entries")
    return found


def _timestamped(reader: ByteReader, index: int) -> tuple[int, int, bytes]:
    """Timestamp, type and certificate; of a precertificate, its TBSCertificate, which is not used."""
    timestamp, kind = reader.number(8), reader.number(2)
    if kind == PRECERT_ENTRY:
        reader.take(_ISSUER_KEY_HASH)
    elif kind != X509_ENTRY:
        raise Malformed(f"entry {index} is of the unknown type {kind}")
    held = reader.vector(3)
    reader.vector(2)  # extensions
    return timestamp, kind, held
