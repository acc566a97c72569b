"""Puts back what witnesses and audit files know of our CAs and the database does not. Each fact once, in any order."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from holdfast.core.own_ca.ca import IssuedCertificate
from holdfast.core.revocation_reason import RevocationReason
from holdfast.core.witness import Fact, PublishedCrl, PublishedRootCrl, RevokedSerial, instant
from holdfast.operations.own_ca.revocation import hurry
from holdfast.ports import Points, Random
from holdfast.store import access, journal
from holdfast.store.database import Database
from holdfast.store.own_ca import cas, certificates, lost
from holdfast.store.tx import Tx

LOT: Final = 200  # facts a transaction
AUDITED: Final = ("certificate_issued", "certificate_revoked", "token_revoked")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSerial:
    """An audit entry says that it was issued, and has no more of it."""

    ca: str
    serial: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RevokedToken:
    id: str


Found = Fact | KnownSerial | RevokedToken


@dataclass(frozen=True, slots=True, kw_only=True)
class PutBack:
    """How much of it the database had lost."""

    certificates: int = 0
    revocations: int = 0
    serials: int = 0
    damaged: int = 0

    def __add__(self, other: PutBack) -> PutBack:
        return PutBack(
            certificates=self.certificates + other.certificates,
            revocations=self.revocations + other.revocations,
            serials=self.serials + other.serials,
            damaged=self.damaged + other.damaged,
        )


async def put_back(db: Database, facts: Iterable[Found], random: Random, points: Points) -> PutBack:
    total, left = PutBack(), iter(facts)
    while lot := tuple(islice(left, LOT)):
        jobs = [random.new_id("job") for _ in lot]
        total += await db.write(lambda tx, lot=lot, jobs=jobs: _put_back(tx, lot, jobs))  # type: ignore[misc]
        points("recovery.replayed")
    return total


def _put_back(tx: Tx, lot: tuple[Found, ...], jobs: list[str]) -> PutBack:
    known = set(cas.versions(tx))
    total = PutBack()
    for fact, job in zip(lot, jobs, strict=True):
        total += _one(tx, fact, job, known)
    return total


def _one(tx: Tx, fact: Found, job: str, known: set[str]) -> PutBack:
    match fact:
        case IssuedCertificate() if lost.put_back(tx, fact):
            told = {"ca": fact.ca, "serial": fact.serial, "order": fact.order}
            journal.audit(tx, "certificate_found_again", fact.id, **told)
            return PutBack(certificates=1)
        case RevokedSerial():
            return PutBack(revocations=int(_revoke(tx, fact, job, known)))
        case PublishedCrl():
            lost.raise_floor(tx, fact)
        case PublishedRootCrl():
            lost.put_back_root_crl(tx, fact.crl)
        case KnownSerial():
            return PutBack(serials=int(lost.keep_serial(tx, fact.ca, fact.serial, "audit file")))
        case RevokedToken():
            access.revoke_token(tx, fact.id)
    return PutBack()


def _revoke(tx: Tx, fact: RevokedSerial, job: str, known: set[str]) -> bool:
    found = certificates.by_serial(tx, fact.ca, fact.serial)
    if found is None:
        lost.keep_serial(tx, fact.ca, fact.serial, "witness")
        changed = lost.revoke_serial(tx, fact.ca, fact.serial, fact.reason, fact.at)
    else:
        changed = certificates.revoke(tx, found.id, fact.reason, fact.at)
        if fact.reason == RevocationReason.KEY_COMPROMISE.number:
            changed = changed or certificates.compromised(tx, found.id, fact.reason)
            certificates.block_key(tx, found.spki_sha256, f"revoked: {found.id}")
    if changed:
        if fact.ca in known:
            hurry(tx, fact.ca, 0 if found is None else found.shard or 0, job)
        journal.audit(tx, "revocation_found_again", fact.serial, ca=fact.ca, reason=fact.reason, by=fact.actor)
    return changed


# ── Audit files ──


def audited(lines: Iterable[bytes]) -> Iterator[Found]:
    """What an audit file tells of certificates, revocations and tokens; lines of other kinds are not even parsed."""
    wanted = tuple(f'"{each}"'.encode() for each in AUDITED)
    for line in lines:
        if any(each in line for each in wanted) and (found := _audited(line)) is not None:
            yield found


def _audited(line: bytes) -> Found | None:
    try:
        entry = json.loads(line)
        return _meant(entry, entry["details"])
    except (ValueError, KeyError, TypeError):
        return None  # a line that a crash cut


def _meant(entry: dict[str, Any], told: dict[str, Any]) -> Found | None:
    match entry["action"]:
        case "certificate_issued":
            return KnownSerial(ca=told["ca"], serial=told["serial"])
        case "certificate_revoked":
            reason = RevocationReason[told["reason"].upper()].number
            at = instant(entry["at_us"])
            return RevokedSerial(ca=told["ca"], serial=told["serial"], reason=reason, at=at, actor=entry["actor"])
        case "token_revoked":
            return RevokedToken(id=entry["subject"])
    return None
