"""Tells CAs about revocations that were asked for, until they have heard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from cryptography.hazmat.primitives.serialization import Encoding

from holdfast.core.certificate import Version
from holdfast.core.job import Claim, Done, Failed, Outcome, Priority, Spec, also
from holdfast.core.reasons import Reason
from holdfast.core.telling_orders import revocation_key
from holdfast.engine import insisting, revoking
from holdfast.engine.issue import Tools
from holdfast.engine.kind import Kind, Work
from holdfast.errors import Refused, TryLater
from holdfast.operations import paying
from holdfast.operations.certificates import REVOKE, REVOKE_TRIES
from holdfast.operations.issuing import Keeper
from holdfast.pki.chain import parse_bundle
from holdfast.store import issuers, journal, outages, versions
from holdfast.store.issuers import IssuerRow
from holdfast.store.tx import Tx

TOLD_AFTER: Final = timedelta(hours=1)  # of waiting: until then it may pass unnoticed


@dataclass(frozen=True, slots=True)
class _Facts:
    version: Version
    issuer: IssuerRow | None
    now: datetime


def kind(tools: Tools) -> Kind:
    """Jobs of this kind have a version as subject."""

    async def handler(work: Work) -> Outcome:
        facts = await tools.keeper.db.read(lambda tx: _facts(tx, work.claim.subject))
        if facts is None:
            return Done()
        if facts.issuer is None:
            raise Refused(f"There is no CA named {facts.version.issuer!r} any more.", reason="UNKNOWN_ISSUER")
        try:
            await _tell(tools, facts.version, facts.issuer, work)
        except TryLater as why:
            if not insisting.passes(why):
                raise
            return _not_yet(why, facts, work.claim)
        return Done(write=lambda tx: _revoked(tx, facts.version))

    return Kind(name=REVOKE, handler=handler, slots=4, timeout=timedelta(minutes=2))


async def _tell(tools: Tools, version: Version, row: IssuerRow, work: Work) -> None:
    issuer = await tools.make_issuer(row)
    leaf = parse_bundle(version.chain_pem.encode())[0]
    work.check()
    await revoking.revoke(tools.keeper, issuer, version, leaf.public_bytes(Encoding.DER))
    work.point("job.effect-done")


def _not_yet(why: TryLater, facts: _Facts, claim: Claim) -> Outcome:
    """Until its own end, after which nobody trusts it any more, revoked or not."""
    version = facts.version
    since = version.revoke_asked_at or facts.now
    if facts.now >= version.not_after:
        return Failed(error=f"It has ended before its CA revoked it: {why}", reason=Reason.EXPIRED, final=True)
    again = insisting.again(why, claim, since=since, now=facts.now)
    if facts.now - since < TOLD_AFTER:
        return again
    return also(again, partial(_waits, version=version, why=why))


def _waits(tx: Tx, *, version: Version, why: TryLater) -> None:
    """Whoever relies on a revocation hears that it is not done; once."""
    if not outages.is_open(tx, revocation_key(version.id)):
        told = {"version": version.id, "serial": version.serial, "issuer": version.issuer, "reason": why.reason}
        journal.event(tx, "revocation.waits", version.certificate, **told, error=str(why))


def _facts(tx: Tx, version: str) -> _Facts | None:
    found = versions.get(tx, version)
    if found is None or found.revoke_asked_at is None or found.revoked_at is not None:
        return None
    return _Facts(found, issuers.get(tx, found.issuer), tx.now())


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
