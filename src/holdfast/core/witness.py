"""What a replica writes down beside the database: certificates and revocations of our CAs, and numbers of CRLs.

A database can lose commits that it had confirmed, at a failover or when an older copy is put back. A certificate that
left the house stays valid all the same. So each fact is one line of a local file before its transaction is committed:
a check value, a space, JSON. A line that a crash cut, or that was damaged, is left out; the others can still be read.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from holdfast.core.own_ca.acme import Identifier
from holdfast.core.own_ca.ca import Crl, IssuedCertificate, RootCrl

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
Plain = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RevokedSerial:
    """A certificate of ours that was revoked, or revoked for a worse reason."""

    ca: str
    serial: str
    reason: int
    at: datetime
    actor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCrl:
    """A CRL of a CA by its number: no later one may have the same, or a smaller one."""

    ca: str
    shard: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRootCrl:
    """A CRL of a root, whole: the next one is made from its entries."""

    crl: RootCrl


Fact = IssuedCertificate | RevokedSerial | PublishedCrl | PublishedRootCrl


def published(crl: Crl) -> PublishedCrl:
    return PublishedCrl(ca=crl.ca, shard=crl.shard, number=crl.number)


# ── Lines ──


def line(fact: Fact) -> bytes:
    """A fact as it is written."""
    name, plain = _plain(fact)
    return checked_line({"fact": name, **plain})


def facts(content: bytes) -> tuple[list[Fact], int]:
    """The facts of a file in their order, and how many of its lines were damaged."""
    found, damaged = list[Fact](), 0
    for each in filter(None, content.split(b"\n")):
        fact = _fact(each)
        if fact is None:
            damaged += 1
        else:
            found.append(fact)
    return found, damaged


def checked_line(plain: Plain) -> bytes:
    body = json.dumps(plain, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


def read_line(text: bytes) -> dict[str, Any] | None:
    """What a line says; None if it is not whole."""
    check, _, body = text.rstrip(b"\n").partition(b" ")
    if len(check) != 8 or check != b"%08x" % zlib.crc32(body):
        return None
    read = json.loads(body)
    return read if isinstance(read, dict) else None


def _fact(text: bytes) -> Fact | None:
    plain = read_line(text)
    if plain is None or (read := _READERS.get(plain.pop("fact", ""))) is None:
        return None
    return read(plain)


# ── Values ──


def micros(at: datetime) -> int:
    return (at - _EPOCH) // _MICROSECOND


def instant(value: int) -> datetime:
    return _EPOCH + value * _MICROSECOND


def _plain(fact: Fact) -> tuple[str, Plain]:
    match fact:
        case IssuedCertificate():
            return "issued", _plain_certificate(fact)
        case RevokedSerial():
            told = {"ca": fact.ca, "serial": fact.serial, "reason": fact.reason, "actor": fact.actor}
            return "revoked", {**told, "at": micros(fact.at)}
        case PublishedCrl():
            return "crl", {"ca": fact.ca, "shard": fact.shard, "number": fact.number}
        case PublishedRootCrl():
            return "root_crl", _plain_root_crl(fact.crl)


def _plain_certificate(issued: IssuedCertificate) -> Plain:
    return {
        "id": issued.id,
        "ca": issued.ca,
        "serial": issued.serial,
        "order": issued.order,
        "account": issued.account,
        "profile": issued.profile,
        "names": [[each.type, each.value] for each in issued.identifiers],
        "spki": issued.spki_sha256,
        "begins": micros(issued.not_before),
        "ends": micros(issued.not_after),
        "shard": issued.shard,
        "at": micros(issued.issued_at),
        "der": b64encode(issued.der).decode(),
    }


def _certificate(plain: Plain) -> IssuedCertificate:
    return IssuedCertificate(
        id=plain["id"],
        ca=plain["ca"],
        serial=plain["serial"],
        order=plain["order"],
        account=plain["account"],
        profile=plain["profile"],
        identifiers=tuple(Identifier(type=kind, value=value) for kind, value in plain["names"]),
        der=b64decode(plain["der"]),
        spki_sha256=plain["spki"],
        not_before=instant(plain["begins"]),
        not_after=instant(plain["ends"]),
        shard=plain["shard"],
        issued_at=instant(plain["at"]),
    )


def _plain_root_crl(crl: RootCrl) -> Plain:
    times = {"begins": micros(crl.this_update), "ends": micros(crl.next_update)}
    return {"root": crl.root, "number": crl.number, **times, "der": b64encode(crl.der).decode()}


def _root_crl(plain: Plain) -> PublishedRootCrl:
    begins, ends = instant(plain["begins"]), instant(plain["ends"])
    der = b64decode(plain["der"])
    crl = RootCrl(root=plain["root"], number=plain["number"], this_update=begins, next_update=ends, der=der)
    return PublishedRootCrl(crl=crl)


_READERS: Final[Mapping[str, Callable[[dict[str, Any]], Fact]]] = {
    "issued": _certificate,
    "revoked": lambda plain: RevokedSerial(**{**plain, "at": instant(plain["at"])}),
    "crl": lambda plain: PublishedCrl(**plain),
    "root_crl": _root_crl,
}


# ── How far the database had come ──


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The newest commit that this replica knows of: an older database lacks it, another one has another hash there."""

    installation: str
    generation: int  # of the installation: grows each time that commits may have been lost
    epoch: int
    seq: int  # of the newest audit entry
    hash: str
    at: datetime


def head_line(head: Head, turn: int) -> bytes:
    """`turn` grows: two places are written to in turns, and the later one counts."""
    plain = {name: getattr(head, name) for name in ("installation", "generation", "epoch", "seq", "hash")}
    return checked_line({**plain, "at": micros(head.at), "turn": turn})


def newest_head(lines: Iterable[bytes]) -> tuple[Head | None, int]:
    """Of several that were written in turns, of which one may be cut: the newest, and its turn."""
    read = [plain for each in lines if (plain := read_line(each)) is not None]
    newest = max(read, key=lambda plain: plain["turn"], default=None)
    if newest is None:
        return None, 0
    turn = newest.pop("turn")
    return Head(**{**newest, "at": instant(newest["at"])}), turn
