"""Tells CAs about revocations that were asked for, until they have heard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from cryptography.hazmat.primitives.serialization import Encoding

from holdfast.core.certificate import Version
from holdfast.core.job import Done, Outcome, Priority, Spec
from holdfast.engine.issue import Tools
from holdfast.engine.kind import Kind, Work
from holdfast.errors import Refused
from holdfast.operations import paying
from holdfast.operations.certificates import REVOKE, REVOKE_TRIES
from holdfast.operations.issuing import Keeper
from holdfast.pki.chain import parse_bundle
from holdfast.store import issuers, journal, versions
from holdfast.store.issuers import IssuerRow
from holdfast.store.tx import Tx


@dataclass(frozen=True, slots=True)
class _Facts:
    version: Version
    issuer: IssuerRow | None


def kind(tools: Tools) -> Kind:
    """Jobs of this kind have a version as subject."""

    async def handler(work: Work) -> Outcome:
        facts = await tools.keeper.db.read(lambda tx: _facts(tx, work.claim.subject))
        if facts is None:
            return Done()
        if facts.issuer is None:
            raise Refused(f"There is no CA named {facts.version.issuer!r} any more.", reason="UNKNOWN_ISSUER")
        issuer = await tools.make_issuer(facts.issuer)
        leaf = parse_bundle(facts.version.chain_pem.encode())[0]
        work.check()
        await issuer.revoke(leaf.public_bytes(Encoding.DER), facts.version.revoke_reason or 0)
        work.point("job.effect-done")
        return Done(write=lambda tx: _revoked(tx, facts.version))

    return Kind(name=REVOKE, handler=handler, slots=4, timeout=timedelta(minutes=2))


def _facts(tx: Tx, version: str) -> _Facts | None:
    found = versions.get(tx, version)
    if found is None or found.revoke_asked_at is None or found.revoked_at is not None:
        return None
    return _Facts(found, issuers.get(tx, found.issuer))


def _revoked(tx: Tx, version: Version) -> None:
    if versions.revoked(tx, version.id, tx.now()):
        journal.audit(tx, "version_revoked", version.certificate, version=version.id, serial=version.serial)
        journal.event(tx, "version.revoked", version.certificate, version=version.id, serial=version.serial)


def owed(keeper: Keeper) -> Callable[[Tx], Sequence[Spec]]:
    """Revocations that no job works on; one that died is a person's."""

    def specs(tx: Tx) -> Sequence[Spec]:
        found = versions.to_revoke_without_job(tx, REVOKE)
        paid = paying.for_requests(tx, found.values())
        return [
            Spec(
                id=keeper.random.new_id("job"),
                kind=REVOKE,
                subject=each,
                priority=Priority.URGENT,
                max_attempts=REVOKE_TRIES,
                budgets=paid.get(issuer, ()),
            )
            for each, issuer in found.items()
        ]

    return specs
