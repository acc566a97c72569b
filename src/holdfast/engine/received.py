"""What a CA sent us: checked before it counts, then made a version of its certificate."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from holdfast.core.certificate import Version, VersionState
from holdfast.core.issuance import Issuance
from holdfast.operations.acme_orders import split
from holdfast.pki import bundle, chain, csr, keys
from holdfast.pki.refused import PkiRefused

SKEW: Final = timedelta(minutes=5)  # between the CA's clock and ours


def problem_with(issuance: Issuance, pem: bytes, now: datetime) -> str | None:
    """Why it must not be used, in a sentence: its key, its names, its chain and its dates must be as asked for."""
    try:
        found = chain.parse_bundle(pem)
        dns, ips = split(issuance.identifiers)
        # A CA whose clock is a little fast must not look like one that issues for the future.
        at = max(now, min(found[0].not_valid_before_utc, now + SKEW))
        return chain.problem_with(found, key=_request(issuance).public_key, names=dns, ips=ips, now=at)
    except PkiRefused as refused:
        return str(refused)


def version(new_id: str, issuance: Issuance, pem: bytes, now: datetime) -> Version:
    found = chain.parse_bundle(pem)
    leaf = found[0]
    return Version(
        id=new_id,
        certificate=issuance.certificate,
        generation=issuance.generation,
        issuance=issuance.id,
        state=VersionState.ACTIVE,
        key_secret=issuance.key_secret or "",
        chain_pem=bundle.certificates_pem(found).decode(),  # and nothing else that may have been between them
        serial=f"{leaf.serial_number:x}",
        not_before=leaf.not_valid_before_utc,
        not_after=leaf.not_valid_after_utc,
        issuer=issuance.issuer,
        account=None,
        spki_sha256=keys.spki_sha256(_request(issuance).spki).hex(),
        issued_at=now,
    )


def _request(issuance: Issuance) -> csr.Request:
    return csr.parse(issuance.csr or b"", ed25519_allowed=True, must_staple_allowed=True)
