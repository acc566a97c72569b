"""Tells CAs about revocations that were asked for, until they have heard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from cryptography.hazmat.primitives.serialization import Encoding

from holdfast.core import backoff
from holdfast.core.certificate import Version
from holdfast.core.issuers.issuer import IssuerRow
from holdfast.core.notifications.alert import revocation_key
from holdfast.core.reasons import Reason
from holdfast.core.work.job import Again, Claim, Done, JobFailed, Outcome, Priority, Spec, also
from holdfast.engine.issuance.issue import IssuanceServices
from holdfast.engine.kind import JobKind, Work
from holdfast.errors import Refused, TryLater
from holdfast.issuers.base import Issuer, RevokesByKey
from holdfast.operations.certificates.lifecycle import REVOKE, REVOKE_TRIES
from holdfast.operations.installation.secret_store import NO_KEY, certificate_key
from holdfast.operations.issuance import order_budgets
from holdfast.operations.issuance.attempts import CertificateContext
from holdfast.pki import keys
from holdfast.pki.chain import parse_bundle
from holdfast.store import issuers, journal, versions
from holdfast.store.notifications import outages
from holdfast.store.tx import Tx
from holdfast.store.work import jobs

# The CA is away, or a person at it takes their time. Anything else is counted, as what lasts would be our own fault.
PASSING: Final = frozenset(
    {
        Reason.CA_DOWN, Reason.CA_TLS_FAILED, Reason.CA_RATE_LIMITED, Reason.CA_STILL_PENDING, Reason.ANSWER_MALFORMED,
        Reason.ORDER_UNANSWERED, Reason.CA_QUOTA_USED_UP,
    }
)  # fmt: skip


# What mended credentials, rights or settings cure: it is told, and goes on; a CA that says no in its own words ends it.
MENDED: Final = frozenset(
    {
        Reason.ACCOUNT_REFUSED, Reason.EAB_REQUIRED, Reason.DIRECTORY_UNSAFE, Reason.NOT_THE_CA,
        Reason.PROFILE_UNKNOWN,
    }
)  # fmt: skip


def later(why: TryLater | Refused) -> TryLater | None:
    """The same as a wait, if the job goes on until the CA confirms; None: the answer is for good, or our own fault."""
    if isinstance(why, TryLater):
        return why if why.reason in PASSING else None
    return TryLater(str(why), reason=why.reason) if why.reason in MENDED else None


def retry_until_confirmed(why: TryLater, claim: Claim, *, since: datetime, now: datetime) -> Again:
    """Once more later. What the CA said is kept where people look at the job."""
    wait = backoff.insisting_wait(now - since, why.after, key=f"{claim.id}@{now.isoformat()}")
    return Again(after=wait, reason=why.reason, write=lambda tx: jobs.keep(tx, claim.id, str(why)))


NOT_OURS: Final = frozenset({Reason.ACCOUNT_REFUSED, Reason.ACCOUNT_GONE})


async def revoke(context: CertificateContext, issuer: Issuer, version: Version, leaf: bytes) -> None:
    """Revokes by our account, or by the key of the certificate if another account ordered it and we hold the key.

    The first refusal is reported: it says why our account may not revoke.
    """
    reason = version.revoke_reason or 0
    try:
        await issuer.revoke(leaf, reason)
    except Refused as why:
        if why.reason not in NOT_OURS or not isinstance(issuer, RevokesByKey):
            raise
        owner = certificate_key(version.certificate)
        pem = await context.secret_store.reveal(version.key_secret, owner)
        if pem == NO_KEY:
            raise
        key = keys.from_pem(pem)
        try:
            await issuer.revoke_by_key(leaf, reason, key)
        except Refused:
            raise why from None


TOLD_AFTER: Final = timedelta(hours=1)  # of waiting: until then it may pass unnoticed


@dataclass(frozen=True, slots=True)
class _Facts:
    version: Version
    issuer: IssuerRow | None
    now: datetime


def kind(services: IssuanceServices) -> JobKind:
    """Jobs of this kind have a version as subject."""

    async def handler(work: Work) -> Outcome:
        facts = await services.certificate_context.db.read(lambda tx: _facts(tx, work.claim.subject))
        if facts is None:
            return Done()
        if facts.issuer is None:
            raise Refused(f"There is no CA named {facts.version.issuer!r} any more.", reason="UNKNOWN_ISSUER")
        try:
            await _tell(services, facts.version, facts.issuer, work)
        except (TryLater, Refused) as why:
            waits = later(why)
            if waits is not None:
                return _not_yet(waits, facts, work.claim)
            if isinstance(why, TryLater):
                raise
            return _given_up(why, facts.version)
        return Done(write=lambda tx: _revoked(tx, facts.version))

    return JobKind(name=REVOKE, handler=handler, slots=4, timeout=timedelta(minutes=2))


async def _tell(services: IssuanceServices, version: Version, row: IssuerRow, work: Work) -> None:
    issuer = await services.make_issuer(row)
    leaf = parse_bundle(version.chain_pem.encode())[0]
    work.check()
    await revoke(services.certificate_context, issuer, version, leaf.public_bytes(Encoding.DER))
    work.point("job.effect-done")


def _not_yet(why: TryLater, facts: _Facts, claim: Claim) -> Outcome:
    """Retried until the certificate expires: after that no client trusts it anyway."""
    version = facts.version
    since = version.revoke_asked_at or facts.now
    if facts.now >= version.not_after:
        return JobFailed(error=f"It has ended before its CA revoked it: {why}", reason=Reason.EXPIRED, final=True)
    outcome = retry_until_confirmed(why, claim, since=since, now=facts.now)
    if facts.now - since < TOLD_AFTER and why.reason not in MENDED:
        return outcome
    return also(outcome, partial(_waits, version=version, why=why))


def _given_up(why: Refused, version: Version) -> JobFailed:
    """The timeline of the certificate has it, too: the alert of a dead job is about the job."""

    def write(tx: Tx) -> None:
        told = {"version": version.id, "serial": version.serial, "issuer": version.issuer, "reason": why.reason}
        journal.event(tx, "revocation.given_up", version.certificate, **told, error=str(why))

    return JobFailed(error=str(why), reason=why.reason, final=True, write=write)


def _waits(tx: Tx, *, version: Version, why: TryLater) -> None:
    """An alert says once that the revocation is not confirmed yet."""
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


def owed(context: CertificateContext) -> Callable[[Tx], Sequence[Spec]]:
    """Revocations that no job works on; one that died is a person's."""

    def specs(tx: Tx) -> Sequence[Spec]:
        found = versions.to_revoke_without_job(tx, REVOKE)
        paid = order_budgets.for_requests(tx, found.values())
        return [
            Spec(
                id=context.random.new_id("job"),
                kind=REVOKE,
                subject=each,
                priority=Priority.URGENT,
                max_attempts=REVOKE_TRIES,
                budgets=paid.get(issuer, ()),
            )
            for each, issuer in found.items()
        ]

    return specs
