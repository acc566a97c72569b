"""Turns results and errors of issuers and solvers into answers for `core/issuance_decision.py`; checks certificates."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeVar

from cryptography import x509

from holdfast.core.certificate import Version, VersionState
from holdfast.core.issuance import Issuance
from holdfast.core.issuance_steps import (
    At,
    OurFault,
    RemoteRefused,
    RemoteUnavailable,
)
from holdfast.core.reasons import Reason
from holdfast.errors import KeyMissing, KeyUnusable, Refused, TryLater
from holdfast.issuers.base import HasAccount, Issuer
from holdfast.operations.acme.names import split
from holdfast.pki import chain, csr, keys
from holdfast.pki.keys import PublicKey
from holdfast.pki.refused import PkiRefused

T = TypeVar("T")
RemoteTrouble = RemoteUnavailable | RemoteRefused | OurFault


async def heard(at: At, asked: Awaitable[T]) -> T | RemoteTrouble:
    """What was returned; or what was raised, as a value. A bug of ours, or a lost lease, is still raised."""
    try:
        return await asked
    except (TryLater, Refused) as why:
        return trouble(at, why)
    except KeyMissing as why:
        return RemoteUnavailable(at=at, reason=Reason.KEY_MISSING, why=str(why))  # another replica may hold it
    except KeyUnusable as why:
        return OurFault(reason=Reason.KEY_MISSING, why=str(why))
    except PkiRefused as why:
        return OurFault(reason=Reason.INTERNAL, why=str(why))


def trouble(at: At, why: TryLater | Refused) -> RemoteUnavailable | RemoteRefused:
    if isinstance(why, Refused):
        return RemoteRefused(at=at, reason=why.reason, why=str(why))
    return RemoteUnavailable(at=at, reason=why.reason, why=str(why), after=why.after, sent=why.sent)


def account_of(issuer: Issuer) -> str | None:
    """URL of our account there, where issuers have such."""
    return issuer.account_url if isinstance(issuer, HasAccount) else None


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
        chain_pem=chain.certificates_pem(found.chain).decode(),  # and nothing else that may have been between them
        serial=f"{leaf.serial_number:x}",
        not_before=leaf.not_valid_before_utc,
        not_after=leaf.not_valid_after_utc,
        issuer=issuance.issuer,
        account=None,
        spki_sha256=keys.spki_sha256(found.key).hex(),
        issued_at=now,
    )
