"""CAs in tests: a vault on a test's folder, a CA in the store, and the authorities that open it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from holdfast.config import Settings
from holdfast.core.issuers.issuer import IssuerRow
from holdfast.core.own_ca.acme import Identifier
from holdfast.core.own_ca.ca import CaOptions, CaPolicy, CaRow, IssuedCertificate
from holdfast.core.revocation_reason import RevocationReason
from holdfast.engine.notifications.senders import Senders
from holdfast.operations import catalog, runner
from holdfast.operations.context import OwnCaServices, Services
from holdfast.operations.inputs import Page
from holdfast.operations.installation import keys
from holdfast.operations.installation.secret_store import SecretStore
from holdfast.operations.issuance.attempts import CertificateContext
from holdfast.operations.own_ca import manage as manage_ca
from holdfast.operations.own_ca import revocation
from holdfast.operations.own_ca.authorities import Authorities, Authority
from holdfast.operations.runner import Options
from holdfast.pki import certify, csr, profile
from holdfast.pki import keys as keyparts
from holdfast.pki.ceremony import CeremonyPlan, make
from holdfast.pki.profile import new_serial
from holdfast.store.database import Database
from holdfast.store.own_ca import certificates
from holdfast.store.tx import Tx
from holdfast.world import HttpTransport, LocalFiles, SystemClock, SystemRandom
from tests.support.engine import Watch
from tests.support.keys import settings_in
from tests.support.pki import a_key
from tests.support.running import someone


async def a_vault(db: Database, folder: Path, settings: Settings | None = None) -> SecretStore:
    """The vault of a replica; the first one on a store makes its key."""
    settings, files = settings or settings_in(folder), LocalFiles()
    keyring = await keys.unlock(db, settings, files, SystemRandom())
    return SecretStore(db=db, settings=settings, files=files, keyring=keyring)


@dataclass(frozen=True, slots=True)
class Opened:
    """One CA, made in the store and opened."""

    secret_store: SecretStore
    authorities: Authorities
    ca: Authority
    policy: CaPolicy
    watch: Watch


def authorities_of(
    secret_store: SecretStore, policy: CaPolicy | None = None, watch: Watch | None = None
) -> Authorities:
    telemetry = (watch or Watch()).telemetry
    return Authorities(
        db=secret_store.db,
        secret_store=secret_store,
        policy=policy or CaPolicy(),
        clock=SystemClock(),
        telemetry=telemetry,
    )


async def opened_ca(
    db: Database,
    folder: Path,
    *,
    name: str = "ca1",
    options: CaOptions | None = None,
    plan: CeremonyPlan | None = None,
    policy: CaPolicy | None = None,
) -> Opened:
    secret_store, watch, policy = await a_vault(db, folder), Watch(), policy or CaPolicy()
    await manage_ca.create(
        secret_store,
        ca=name,
        plan=plan or CeremonyPlan(name="Example"),
        options=options or CaOptions(),
        actor="local:test",
    )
    authorities = authorities_of(secret_store, policy, watch)
    await authorities.refresh()
    opened = authorities.get(name)
    assert opened is not None, authorities.problem(name)
    return Opened(secret_store, authorities, opened, policy, watch)


def services_of(opened: Opened, **changes: Any) -> Services:
    """What operations on this CA need."""
    own = OwnCaServices(
        policy=opened.policy, refresh=opened.authorities.refresh, problem=opened.authorities.problem
    )  # fmt: skip
    context = CertificateContext(db=opened.secret_store.db, random=SystemRandom(), secret_store=opened.secret_store)
    return services_for(context, own_ca=replace(own, **changes))


def services_for(context: CertificateContext, own_ca: OwnCaServices | None = None) -> Services:
    """What operations need that ask nothing of issuers."""
    return Services(
        certificate_context=context,
        issuer_kinds=frozenset(),
        probe=_no_remote,
        post=Senders(secret_store=context.secret_store, transport=HttpTransport(), clock=SystemClock()),
        own_ca=own_ca,
    )


async def _no_remote(row: IssuerRow) -> str:
    raise AssertionError("no issuer is asked here")


async def do(
    services: Services, operation: str, /, *, dry_run: bool = False, actor: str = "local:alice", **asked: Any
) -> Any:
    """The plain result of an operation by its name; of a page, its items."""
    found = catalog.named(operation)
    given = found.input_model.model_validate(asked)
    result = (await runner.run(services, found, someone(actor), given, Options(dry_run=dry_run))).result
    plain = to_jsonable_python(result)
    return plain["items"] if isinstance(result, Page) else plain


async def change_ca(db: Database, name: str, change: Callable[[CaOptions], CaOptions], *, actor: str) -> CaRow:
    def write(tx: Tx) -> CaRow:
        row = manage_ca.found(tx, name)
        return manage_ca.change_options(tx, row, change(row.options), actor=actor)

    return await db.write(write)


async def adopt_ca(secret_store: SecretStore, **given: Any) -> CaRow:
    return await secret_store.db.write(await manage_ca.adopted(secret_store, **given))


async def issue(db: Database, ca: Authority, *names: str, number: int = 1, **changes: Any) -> IssuedCertificate:
    """A certificate in the store, signed as the pipeline signs it; `changes` are those of its row."""
    request = csr.parse(csr.build(names or ("www.example.internal",), a_key(number=number)))
    chosen, random = ca.profile(None), SystemRandom()
    assert chosen is not None
    intent = profile.plan(chosen, request, ca.issuer, serial=new_serial(random), now=SystemClock().now())
    issued = IssuedCertificate(
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
    assert await db.write(lambda tx: certificates.insert(tx, kept, tx.now())) == [1]
    return kept


async def revoked(
    db: Database, issued: IssuedCertificate, reason: RevocationReason = RevocationReason.SUPERSEDED
) -> IssuedCertificate:
    job = SystemRandom().new_id("job")
    assert await db.write(lambda tx: revocation.revoke(tx, issued, reason, actor="local:test", job=job))
    return issued


async def with_ended_issuer(ca: Authority) -> Authority:
    """The same CA some years later, when nobody gave its issuer a later end."""
    made = await make(
        CeremonyPlan(name="Example"), now=SystemClock().now() - timedelta(days=6 * 365), random=SystemRandom()
    )
    return replace(ca, issuer=replace(ca.issuer, certificate=made.intermediate))
