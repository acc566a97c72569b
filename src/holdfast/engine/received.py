"""What a CA sent us: checked before it counts, then made a version of its certificate."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509

from holdfast.core.certificate import Version, VersionState
from holdfast.core.issuance import Issuance
from holdfast.operations.acme_names import split
from holdfast.pki import bundle, chain, csr, keys
from holdfast.pki.keys import PublicKey
from holdfast.pki.refused import PkiRefused

SKEW: Final = timedelta(minutes=5)  # between the CA's clock and ours


@dataclass(frozen=True, slots=True)
class Received:
    """A chain that is as it was asked for, leaf first, and the key that it is for."""

    chain: tuple[x509.Certificate, ...]
    key: PublicKey


def looked_at(issuance: Issuance, pem: bytes, now: datetime) -> Received | str:
    """A sentence says why it must not be used: its key, its names, its chain and its dates must be as asked for."""
    try:
        found = Received(chain.parse_bundle(pem), csr.key_of(issuance.csr or b""))
        return _problem_with(found, issuance, now) or found
    except PkiRefused as refused:
        return str(refused)


def _problem_with(found: Received, issuance: Issuance, now: datetime) -> str | None:
    dns, ips = split(issuance.identifiers)
    # A CA whose clock is a little fast must not look like one that issues for the future.
    at = max(now, min(found.chain[0].not_valid_before_utc, now + SKEW))
    return chain.problem_with(found.chain, key=found.key, names=dns, ips=ips, now=at)


def added_names(found: Received, issuance: Issuance) -> list[str]:
    """What the CA put into it beside what was asked for; such a certificate is used, and this is told."""
    return chain.added_names(found.chain[0], split(issuance.identifiers)[0])


def version(new_id: str, issuance: Issuance, found: Received, now: datetime) -> Version:
    leaf = found.chain[0]
    return Version(
        id=new_id,
        certificate=issuance.certificate,
        generation=issuance.generation,
        issuance=issuance.id,
        state=VersionState.ACTIVE,
        key_secret=issuance.key_secret or "",
        chain_pem=bundle.certificates_pem(found.chain).decode(),  # and nothing else that may have been between them
        serial=f"{leaf.serial_number:x}",
        not_before=leaf.not_valid_before_utc,
        not_after=leaf.not_valid_after_utc,
        issuer=issuance.issuer,
        account=None,
        spki_sha256=keys.spki_sha256(found.key).hex(),
        issued_at=now,
    )
