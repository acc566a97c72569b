"""DNS messages (RFC 1035): just the questions we ask and the answers we can use, read strictly and within bounds.

It exists for its speed; docs/decisions/0009-dns-wire.md has the measurements. Names are kept as they are on the wire,
uncompressed and in lower case, so that two names are the same exactly if their bytes are.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from struct import Struct, error
from typing import Final, NamedTuple

MAX_NAME: Final = 255  # octets, with the lengths of its labels and its end (RFC 1035 §2.3.4)
MAX_LABEL: Final = 63
MAX_RECORDS: Final = 256  # in an answer; reading more would be work for an attacker, not for a client
MAX_ALIASES: Final = 8

NOERROR, SERVFAIL, NXDOMAIN, REFUSED = 0, 2, 3, 5

_HEADER: Final = Struct(">HHHHHH")
_RECORD: Final = Struct(">HHIH")
_TAIL: Final = Struct(">HH")
TAIL: Final = _TAIL.size  # octets of a question after its name
_INTERNET: Final = 1
_CNAME, _SOA = 5, 6
_RESPONSE, _OPCODE, _TRUNCATED, _RECURSE = 0x8000, 0x7800, 0x0200, 0x0100
_OPT: Final = bytes.fromhex("00 0029 04d0 00000000 0000")  # EDNS: up to 1232 octets, which no path cuts up (RFC 6891)


class RecordKind(IntEnum):
    """The types of records that we ask for."""

    A = 1
    TXT = 16
    AAAA = 28
    CAA = 257


class Malformed(Exception):
    """A packet that no name server should send, or a name that cannot be asked for."""


class DnsRecord(NamedTuple):
    owner: bytes
    kind: int
    ttl: int
    start: int  # of its data, in the packet
    end: int


@dataclass(frozen=True, slots=True)
class DnsAnswer:
    """What there is under a name, after its aliases. Nothing at all is an answer, too."""

    rcode: int
    truncated: bool = False
    data: tuple[bytes, ...] = ()
    ttl: int = 0  # seconds for which it may be remembered; of an empty answer, by its SOA (RFC 2308)
    alias: bytes | None = None  # the name to go on with, if the packet ends there


# ── questions ──


def question(name: str, kind: RecordKind) -> bytes:
    """The question section, in lower case."""
    try:
        labels = name.lower().encode("ascii").split(b".")
    except UnicodeEncodeError:
        raise Malformed("a name is not ASCII") from None
    if not all(0 < len(label) <= MAX_LABEL for label in labels):
        raise Malformed("a label is empty or too long")
    wire = b"".join([bytes((len(label),)) + label for label in labels]) + b"\0"
    if len(wire) > MAX_NAME:
        raise Malformed("a name is too long")
    return wire + _TAIL.pack(kind, _INTERNET)


def mixed(asked: bytes, noise: bytes) -> bytes:
    """The same question with each letter in a random case, which a forged answer must guess ("0x20")."""
    name, tail = asked[:-4], asked[-4:]
    return bytes([c ^ 0x20 if n & 1 and 97 <= c <= 122 else c for c, n in zip(name, noise, strict=False)]) + tail


def query(number: int, asked: bytes) -> bytes:
    return _HEADER.pack(number, _RECURSE, 1, 0, 0, 1) + asked + _OPT


# ── answers ──


def fits(packet: bytes, number: int, asked: bytes) -> bool:
    """Whether a packet answers this question, in any case."""
    if len(packet) < 12:
        return False
    identity, flags, questions, _, _, _ = _HEADER.unpack_from(packet)
    same = identity == number and questions == 1 and flags & (_RESPONSE | _OPCODE) == _RESPONSE
    return same and packet[12 : 12 + len(asked)].lower() == asked.lower()


def repeats(packet: bytes, asked: bytes) -> bool:
    """Whether the server repeated the question letter by letter."""
    return packet[12 : 12 + len(asked)] == asked


def read(packet: bytes, asked: bytes) -> DnsAnswer:
    """The answer in a packet that fits; Malformed if it cannot be read."""
    try:
        return _read(packet, asked)
    except (IndexError, error):
        raise Malformed("a packet ends too early") from None


def _read(packet: bytes, asked: bytes) -> DnsAnswer:
    _, flags, _, answers, authorities, _ = _HEADER.unpack_from(packet)
    rcode = flags & 15
    if flags & _TRUNCATED:
        return DnsAnswer(rcode, truncated=True)
    if answers > MAX_RECORDS or authorities > MAX_RECORDS:
        raise Malformed("a packet holds too many records")
    name, kind = asked[:-4].lower(), _TAIL.unpack_from(asked, len(asked) - 4)[0]
    records, at = _records(packet, 12 + len(asked), answers, name)
    found, last = _under(packet, records, name, kind) if rcode == NOERROR else ([], name)
    if found:
        return DnsAnswer(rcode, data=tuple([packet[r.start : r.end] for r in found]), ttl=min([r.ttl for r in records]))
    ttl = _ttl_of_nothing(packet, at, authorities, name)
    return DnsAnswer(rcode, ttl=ttl or 0, alias=last if ttl is None and last != name else None)


def _records(packet: bytes, at: int, count: int, name: bytes) -> tuple[list[DnsRecord], int]:
    """The records of the class Internet in one section, and where the next section begins."""
    found = []
    for _ in range(count):
        if packet[at : at + 2] == b"\xc0\x0c":  # nearly every owner is written so: the name asked for
            owner, at = name, at + 2
        else:
            owner, at = _name(packet, at)
        kind, family, ttl, size = _RECORD.unpack_from(packet, at)
        start = at + 10
        at = start + size
        if at > len(packet):
            raise Malformed("a record is longer than its packet")
        if family == _INTERNET:
            found.append(DnsRecord(owner, kind, ttl if ttl < 1 << 31 else 0, start, at))
    return found, at


def _under(packet: bytes, records: list[DnsRecord], name: bytes, kind: int) -> tuple[list[DnsRecord], bytes]:
    """The records of this kind, where the aliases lead to, and the name of that place."""
    for _ in range(MAX_ALIASES + 1):
        found = [record for record in records if record.kind == kind and record.owner == name]
        aliases = [record for record in records if record.kind == _CNAME and record.owner == name]
        if found or not aliases:
            return found, name
        if len(aliases) > 1:
            raise Malformed("a name has two aliases")
        name, end = _name(packet, aliases[0].start)
        if end != aliases[0].end:
            raise Malformed("an alias is longer or shorter than its name")
    raise Malformed("a name has too many aliases")


def _ttl_of_nothing(packet: bytes, at: int, count: int, name: bytes) -> int | None:
    """None without a SOA: then it is not said that there is nothing."""
    for record in _records(packet, at, count, name)[0]:
        if record.kind == _SOA and record.end - record.start >= 22:
            return min(record.ttl, int.from_bytes(packet[record.end - 4 : record.end], "big"))
    return None


def _name(packet: bytes, at: int) -> tuple[bytes, int]:
    """A name, and where it ends. A pointer leads to before what was read so far, so there are no circles."""
    labels, size, after, before = list[bytes](), 1, 0, at
    while length := packet[at]:
        if length <= MAX_LABEL:
            label = packet[at : at + length + 1]
            size += len(label)
            if size > MAX_NAME:
                raise Malformed("a name is too long")
            labels.append(label)
            at += length + 1
        elif length >= 0xC0:
            target = (length & 0x3F) << 8 | packet[at + 1]
            if target >= before:
                raise Malformed("a name refers to what comes later")
            after = after or at + 2
            at = before = target
        else:
            raise Malformed("a label is of an unknown kind")
    return b"".join(labels).lower() + b"\0", after or at + 1


# ── data ──


def text(data: bytes) -> bytes:
    """A TXT record: its strings, put together (RFC 8555 §8.4 needs one, others need more)."""
    parts, at = [], 0
    while at < len(data):
        end = at + 1 + data[at]
        if end > len(data):
            raise Malformed("a text is longer than its record")
        parts.append(data[at + 1 : end])
        at = end
    return b"".join(parts)


class Property(NamedTuple):
    """One CAA record (RFC 8659 §4.1)."""

    critical: bool
    tag: str
    value: str


def caa(data: bytes) -> Property:
    size = data[1] if len(data) > 1 else 0
    tag = data[2 : 2 + size]
    if not size or len(tag) < size or not (tag.isalnum() and tag.isascii()):
        raise Malformed("a CAA record has no tag")
    return Property(bool(data[0] & 0x80), tag.decode().lower(), data[2 + size :].decode("latin-1"))
