"""CAs in tests: a vault on a test's folder, a CA in the store, and the authorities that open it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from holdfast.config import Settings
from holdfast.core.acme import Identifier
from holdfast.core.ca import CaOptions, Policy
from holdfast.operations import ca, keys, revocation
from holdfast.operations.authorities import Authorities, Authority
from holdfast.operations.vault import Vault
from holdfast.pki import certify, csr, profile
from holdfast.pki import keys as keyparts
from holdfast.pki.ceremony import Plan, make
from holdfast.pki.crl import Reason
from holdfast.pki.intent import new_serial
from holdfast.store import ca_certificates
from holdfast.store.ca_certificates import Issued
from holdfast.store.database import Database
from holdfast.world import LocalFiles, SystemClock, SystemRandom
from tests.support.engine import Watch
from tests.support.keys import settings_in
from tests.support.pki import a_key


async def a_vault(db: Database, folder: Path, settings: Settings | None = None) -> Vault:
    """The vault of a replica; the first one on a store makes its key."""
    settings, files = settings or settings_in(folder), LocalFiles()
    keyring = await keys.unlock(db, settings, files, SystemRandom())
    return Vault(db=db, settings=settings, files=files, keyring=keyring)


@dataclass(frozen=True, slots=True)
class Opened:
    """One CA, made in the store and opened."""

    vault: Vault
    authorities: Authorities
    ca: Authority
    policy: Policy
    watch: Watch


def authorities_of(vault: Vault, policy: Policy | None = None, watch: Watch | None = None) -> Authorities:
    telemetry = (watch or Watch()).telemetry
    return Authorities(db=vault.db, vault=vault, policy=policy or Policy(), clock=SystemClock(), telemetry=telemetry)


async def opened_ca(
    db: Database,
    folder: Path,
    *,
    name: str = "ca1",
    options: CaOptions | None = None,
    plan: Plan | None = None,
    policy: Policy | None = None,
) -> Opened:
    vault, watch, policy = await a_vault(db, folder), Watch(), policy or Policy()
    await ca.create(
        vault, ca=name, plan=plan or Plan(name="Example"), options=options or CaOptions(), actor="local:test"
    )
    authorities = authorities_of(vault, policy, watch)
    await authorities.refresh()
    opened = authorities.get(name)
    assert opened is not None, authorities.problem(name)
    return Opened(vault, authorities, opened, policy, watch)


async def issue(db: Database, ca: Authority, *names: str, number: int = 1, **changes: Any) -> Issued:
    """A certificate in the store, signed as the pipeline signs it; `changes` are those of its row."""
    request = csr.parse(csr.build(names or ("www.example.internal",), a_key(number=number)))
    chosen, random = ca.profile(None), SystemRandom()
    assert chosen is not None
    intent = profile.plan(chosen, request, ca.issuer, serial=new_serial(random), now=SystemClock().now())
    issued = Issued(
        id=random.new_id("cert"),
        ca=ca.id,
        serial=f"{intent.serial:x}",
        order=random.new_id("order"),
        account="acct_1",
        profile=intent.profile,
        identifiers=tuple(Identifier("dns", name) for name in intent.names),
        der=certify.sign(intent, ca.issuer, ca.signer),
        spki_sha256=keyparts.spki_sha256(intent.spki).hex(),
        not_before=intent.not_before,
        not_after=intent.not_after,
        shard=intent.crl_shard,
        issued_at=SystemClock().now(),
    )
    kept = replace(issued, **changes)
    assert await db.write(lambda tx: ca_certificates.insert(tx, kept, tx.now()))
    return kept


async def revoked(db: Database, issued: Issued, reason: Reason = Reason.SUPERSEDED) -> Issued:
    job = SystemRandom().new_id("job")
    assert await db.write(lambda tx: revocation.revoke(tx, issued, reason, actor="local:test", job=job))
    return issued


async def with_ended_issuer(ca: Authority) -> Authority:
    """The same CA some years later, when nobody gave its issuer a later end."""
    made = await make(Plan(name="Example"), now=SystemClock().now() - timedelta(days=6 * 365), random=SystemRandom())
    return replace(ca, issuer=replace(ca.issuer, certificate=made.intermediate))
