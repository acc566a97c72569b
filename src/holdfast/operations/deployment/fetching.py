"""Hands bundles over to targets that fetch by themselves: once by a token, or again and again to a known target."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from holdfast.core.certificate import Certificate, CertificateState, Version
from holdfast.core.endpoint import covers
from holdfast.core.own_ca.ca import DeliveryLevel
from holdfast.core.target import TargetRow
from holdfast.operations import remotes
from holdfast.operations.installation.secret_store import SecretStore, certificate_key
from holdfast.secret import Secret
from holdfast.store import certificates, journal, versions
from holdfast.store.deployments import offers, targets
from holdfast.store.deployments.offers import Offer
from holdfast.store.own_ca import certificates as own_certificates
from holdfast.store.tx import Tx

CREDENTIAL: Final = "token"  # the credential of a target that fetches by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """What a target gets."""

    certificate: str
    number: int
    serial: str
    not_after: datetime
    chain: str  # PEM, leaf first
    key: Secret[bytes]  # PEM


@dataclass(frozen=True, slots=True)
class _Found:
    offer: Offer
    certificate: Certificate
    version: Version


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


async def once(store: SecretStore, token: str, *, by: str) -> Fetched | None:
    """The bundle of a token. It is spent before the key is read: nobody gets it twice, whatever happens then."""

    def write(tx: Tx) -> _Found | None:
        offer = offers.take(tx, digest_of(token))
        found = None if offer is None else _found(tx, offer)
        if found is not None:
            _note(tx, found, by)
        return found

    found = await store.db.write(write)
    return None if found is None else await _opened(store, found)


async def known_target(store: SecretStore, name: str, token: str) -> TargetRow | None:
    """The target of this name, if the token is its own."""
    row = await store.db.read(lambda tx: targets.get(tx, name))
    if row is None or CREDENTIAL not in row.credentials:
        return None
    kept = (await remotes.opened(store, row))[CREDENTIAL].reveal().strip()
    return row if hmac.compare_digest(kept, token.encode()) else None


async def offered(store: SecretStore, target: TargetRow, server_name: str, *, by: str) -> Fetched | None:
    """What the target is to serve for a name; None: nothing of ours."""
    found = await store.db.read(lambda tx: _for_name(tx, target, server_name))
    if found is None:
        return None
    if found.offer.fetched_at is None:
        await store.db.write(lambda tx: _note(tx, found, by) if offers.fetched(tx, found.offer) else None)
    return await _opened(store, found)


def _for_name(tx: Tx, target: TargetRow, server_name: str) -> _Found | None:
    """The certificate with the very name comes before one with a wildcard; without a name, the only one."""
    there = [each for offer in offers.of_target(tx, target.name) if (each := _found(tx, offer)) is not None]
    if not server_name:
        return there[0] if len(there) == 1 else None
    named = [(each, [one.value for one in each.certificate.wanted.identifiers]) for each in there]
    exact = [each for each, names in named if server_name in names]
    return next(iter([*exact, *(each for each, names in named if covers(names, server_name))]), None)


def _found(tx: Tx, offer: Offer) -> _Found | None:
    """None: its certificate does not name the target any more."""
    certificate, version = certificates.get(tx, offer.certificate), versions.get(tx, offer.certificate_version)
    if certificate is None or version is None or certificate.state is CertificateState.ARCHIVED:
        return None
    return _Found(offer, certificate, version) if offer.target in certificate.wanted.targets else None


def _note(tx: Tx, found: _Found, by: str) -> None:
    own_certificates.deliver_version(tx, DeliveryLevel.FETCHED, found.version.serial, found.version.spki_sha256)
    facts = {"target": found.offer.target, "number": found.offer.number, "version": found.version.id}
    journal.audit(tx, "bundle_fetched", found.certificate.id, actor=f"target:{found.offer.target}", address=by, **facts)


async def _opened(store: SecretStore, found: _Found) -> Fetched | None:
    try:
        key = await store.reveal(found.version.key_secret, certificate_key(found.certificate.id))
    except LookupError:
        return None  # it is not kept any more
    return Fetched(
        certificate=found.certificate.name,
        number=found.offer.number,
        serial=found.version.serial,
        not_after=found.version.not_after,
        chain=found.version.chain_pem,
        key=key,
    )
