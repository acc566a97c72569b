"""Writing down what was seen: one find for each certificate, its places, who manages it, and what is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from holdfast.core.certificate import CertificateState
from holdfast.core.discovery import judgement
from holdfast.core.discovery.find import (
    HERE,
    CertificateFacts,
    Find,
    FindPlace,
    FindSource,
    FindState,
    Manager,
    move,
    seen_again,
)
from holdfast.pki.facts import serial_key
from holdfast.store import certificates, finds, journal, versions
from holdfast.store.own_ca import certificates as issued
from holdfast.store.tx import Tx

NewId = Callable[[str], str]
LONGEST_PLACE: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """Where something was seen, and what that place knows of it."""

    source: FindSource
    place: str
    discovery: str
    served: bool = False
    program: str = ""
    notes: str = ""
    manager: Manager = Manager.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    find: Find
    new: bool  # it was not known before


def record(tx: Tx, facts: CertificateFacts, spot: Spot, new_id: NewId) -> Recorded:
    """Write one sighting down. Doing it again changes nothing but the time at which it was seen last."""
    now, known = tx.now(), _known(tx, facts)
    manager, certificate = managed_by(tx, facts)
    if known is None:
        named = manager if manager in HERE else spot.manager
        row = Find(
            id=new_id("find"), key=facts.key, facts=facts, manager=named, certificate=certificate,
            first_seen_at=now, last_seen_at=now,
        )  # fmt: skip
        finds.insert(tx, row)
    else:
        row = known
    _put(tx, row, spot, now)
    return Recorded(find=_seen(tx, row, facts, spot, manager, certificate), new=known is None)


def _known(tx: Tx, facts: CertificateFacts) -> Find | None:
    """A precertificate and its certificate are one find, whichever was seen first."""
    found = finds.by_key(tx, facts.key)
    if found is not None or facts.self_signed:
        return found
    if not facts.fingerprint:
        return finds.by_serial_key(tx, facts.serial_key)
    return finds.by_key(tx, f"pre:{facts.serial_key}")


def _put(tx: Tx, row: Find, spot: Spot, now: datetime) -> None:
    finds.put_place(
        tx,
        FindPlace(
            find=row.id,
            source=spot.source,
            place=spot.place[:LONGEST_PLACE],
            discovery=spot.discovery,
            served=spot.served,
            program=spot.program[:100],
            notes=spot.notes[:300],
            first_seen_at=now,
            last_seen_at=now,
        ),
    )


def _seen(
    tx: Tx, row: Find, facts: CertificateFacts, spot: Spot, manager: Manager, certificate: str | None
) -> Find:  # fmt: skip
    """The find as it is after this sighting."""
    places, served = finds.standing(tx, row.id)
    whole = bool(facts.fingerprint) and (not row.facts.fingerprint or spot.served)
    return finds.save(
        tx,
        row,
        facts=facts if whole else row.facts,
        key=facts.key if whole else row.key,
        manager=manager if manager in HERE else judgement.better_known(row.manager, spot.manager),
        certificate=row.certificate or certificate,
        state=seen_again(row),
        places=places,
        served=served,
        last_seen_at=tx.now(),
    )


# ── Who manages it ──


def managed_by(tx: Tx, facts: CertificateFacts) -> tuple[Manager, str | None]:
    """Whether this installation hands out what comes next, and the certificate here that it is a version of."""
    for version in versions.with_serial(tx, facts.serial):
        if not _is(facts, _leaf(version.chain_pem)):
            continue
        found = certificates.get(tx, version.certificate)
        if found is not None and found.state is not CertificateState.ARCHIVED:
            return Manager.HOLDFAST, found.id
    if any(_is(facts, x509.load_der_x509_certificate(each.der)) for each in issued.with_serial(tx, facts.serial)):
        return Manager.ACME_CLIENT, None
    return Manager.UNKNOWN, None


def _leaf(chain_pem: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(chain_pem.encode())


def _is(facts: CertificateFacts, leaf: x509.Certificate) -> bool:
    """The same certificate; a precertificate has the same issuer and serial."""
    if facts.fingerprint:
        return facts.fingerprint == leaf.fingerprint(hashes.SHA256()).hex()
    return facts.serial_key == serial_key(leaf.issuer, leaf.serial_number)


def review(tx: Tx) -> int:
    """Find out again who manages what: certificates are imported, and archived, after they were found."""
    changed = 0
    for row in finds.with_a_version(tx):
        manager, certificate = managed_by(tx, row.facts)
        if manager in HERE:
            finds.save(tx, row, manager=manager, certificate=row.certificate or certificate)
            changed += 1
    for row in finds.of_archived(tx):
        finds.save(tx, row, manager=Manager.UNKNOWN, certificate=None, state=_undecided(row.state))
        changed += 1
    return changed


def _undecided(state: FindState) -> FindState:
    """The certificate that took its place is archived: a person decides anew."""
    return move(state, "reconsidered") if state is FindState.ADOPTED else state


# ── What is gone ──


def left(tx: Tx, discovery: str, before: datetime) -> bool:
    """What a discovery did not see since then is not there any more; True if there is more to write."""
    found = finds.left(tx, discovery, before)
    settle(tx, found)
    return len(found) == finds.PAGE


def settle(tx: Tx, ids: Iterable[str]) -> None:
    """Bring finds up to date whose places changed."""
    for each in dict.fromkeys(ids):
        row = finds.get(tx, each)
        if row is None:
            continue
        places, served = finds.standing(tx, each)
        gone = not places and row.state is not FindState.GONE
        if gone:
            journal.event(tx, "find.gone", row.id, called=row.name)
        finds.save(tx, row, places=places, served=served, state=move(row.state, "gone") if gone else row.state)
