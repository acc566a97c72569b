"""A fleet that is in use when an experiment begins: true certificates and keys, written in a few transactions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import islice
from typing import Any, Final

from holdfast.core.certificate import (
    Certificate,
    CertificateSpec,
    CertificateState,
    RenewalPolicy,
    Version,
    VersionState,
)
from holdfast.core.own_ca.acme import Identifier
from holdfast.keyring import Keyring
from holdfast.operations.issuance import attempts as issuance_attempts
from holdfast.pki import keys
from holdfast.pki.keys import PrivateKey
from holdfast.store import certificates, journal, secrets, versions
from holdfast.store.secrets import KeptSecret
from holdfast.store.tx import Tx
from tests.simulation.authority import Order
from tests.simulation.life_stage import LifeStage
from tests.simulation.signing import LEAF_KEYS

PAGE: Final = 500
_PUBLIC: Final = [key.public_key() for key in LEAF_KEYS]
_SPKI: Final = [keys.spki_sha256(key).hex() for key in _PUBLIC]


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One certificate: what is wanted, and how old its first version is."""

    name: str
    issuers: tuple[str, ...]
    age: timedelta
    wishes: dict[str, Any] = field(default_factory=dict)

    def wanted(self) -> CertificateSpec:
        rule = self.wishes.get("rule") or RenewalPolicy(ari=False)
        others = {name: value for name, value in self.wishes.items() if name != "rule"}
        identifiers = (Identifier("dns", self.name),)
        return CertificateSpec(name=self.name, identifiers=identifiers, issuers=self.issuers, rule=rule, **others)


def _shared(keyring: Keyring, key: PrivateKey) -> KeptSecret:
    """A few keys for thousands of certificates: sealed as before secrets had owners."""
    secret_id = keyring.random.new_id("secret")
    return KeptSecret(id=secret_id, sealed=keyring.seal(keys.to_pem(key), **secrets.place(secret_id)))


def enlist(stage: LifeStage, members: Iterable[Member]) -> int:
    """Put them into the store as if they had been kept for long; how many there are."""
    keyring = next(iter(stage.keepers.values())).secret_store.keyring
    kept = [_shared(keyring, key) for key in LEAF_KEYS]
    for each in kept:
        stage.truth.transact(lambda tx, each=each: secrets.put(tx, each))  # type: ignore[misc]
    total, left = 0, iter(members)
    while page := list(islice(left, PAGE)):
        pairs = [_made(stage, member, total + n, [each.id for each in kept]) for n, member in enumerate(page)]
        stage.truth.transact(lambda tx, pairs=pairs: _write(tx, pairs))  # type: ignore[misc]
        total += len(page)
    return total


def _made(stage: LifeStage, member: Member, number: int, secret_ids: Sequence[str]) -> tuple[Certificate, Version]:
    ca, now, spec = stage.cas[member.issuers[0]], stage.truth.now(), member.wanted()
    which = number % len(LEAF_KEYS)
    order = _bought(member, stage.loop.time() - member.age.total_seconds())
    begins, ends = ca.grant(order, _PUBLIC[which])
    certificate, version = f"certificate_{number:08d}", f"version_{number:08d}"
    held = Version(
        id=version,
        certificate=certificate,
        generation=1,
        state=VersionState.IMPORTED,
        key_secret=secret_ids[which],
        chain_pem=order.chain.decode(),
        serial=f"{order.serial:x}",
        not_before=begins,
        not_after=ends,
        issuer=ca.name,
        account=None,
        spki_sha256=_SPKI[which],
        issued_at=begins,
    )
    found = Certificate(
        id=certificate,
        wanted=spec,
        state=CertificateState.ACTIVE,
        generation=1,
        version=1,
        fingerprint=spec.fingerprint(),
        changed_by="local:sim",
        created_at=now,
        current_version=version,
        ari_ask_at=now if spec.rule.ari else None,
    )
    return found, held


def _bought(member: Member, at: float) -> Order:
    """As the CA remembers it: not through any of its doors, so that nothing of this is counted."""
    ref, profile = f"before-{member.name}", member.wishes.get("profile")
    return Order(ref=ref, issuance=ref, at=at, paid_at=float("-inf"), names=(member.name,), profile=profile)


def _write(tx: Tx, pairs: Sequence[tuple[Certificate, Version]]) -> None:
    for found, held in pairs:
        certificates.insert(tx, found)
        versions.insert(tx, held)
        journal.audit(tx, "certificate_adopted", found.id, actor="local:sim", name=found.name, serial=held.serial)
        issuance_attempts.replan(tx, found, tx.now(), current=held)


def spread_evenly(number: int, life: timedelta, share: float = 0.55) -> Iterator[timedelta]:
    """Ages of a fleet that has been renewed for years: none is due yet, and no two are at the same instant."""
    for n in range(number):
        yield life * share * ((n * 0.6180339887) % 1)
