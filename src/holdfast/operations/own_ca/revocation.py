"""The end of a certificate before its time: the row, the blocked key, the list that will say so, all at once.

And of one from another CA: the wish that the CA hears of it, taken up again.
"""

from __future__ import annotations

from datetime import timedelta
from enum import Enum
from typing import Final

from holdfast.core.certificate import Version
from holdfast.core.own_ca.ca import IssuedCertificate
from holdfast.core.revocation_reason import RevocationReason
from holdfast.core.witness import RevokedSerial
from holdfast.core.work.job import Priority, Spec
from holdfast.operations.issuance import attempts as issuance_attempts
from holdfast.store import certificates, journal, versions
from holdfast.store.own_ca import certificates as ca_certificates
from holdfast.store.tx import Tx
from holdfast.store.work import jobs

CRL: Final = "ca.crl"
REVOKE: Final = "revoke"  # the job that tells another CA
GATHER_FOR: Final = timedelta(seconds=5)  # revocations that come together share a list; a minute is promised


class RevocationRight(Enum):
    """Who says so, and how much it is worth when they say that the key is compromised."""

    KEY = "it was signed with the key itself, or the operator says so: all certificates of this key are bad"
    OWNER = "the account that has the certificate, and had the key: that key must not be used again"
    NAMES = "an account that may have the names, and never had the key: only this certificate is revoked"


def revoke(
    tx: Tx,
    found: IssuedCertificate,
    reason: RevocationReason,
    *,
    actor: str,
    job: str,
    standing: RevocationRight = RevocationRight.OWNER,
) -> bool:
    """False if it was revoked before, and nothing worse is known of it now."""
    if reason is not RevocationReason.KEY_COMPROMISE:
        return _end(tx, found, reason, actor=actor, job=job)
    changed = _end(tx, found, reason, actor=actor, job=job)
    if not changed and standing is not RevocationRight.NAMES:
        changed = _worsen(tx, found, actor=actor, job=job)
    if standing is not RevocationRight.NAMES:
        ca_certificates.block_key(tx, found.spki_sha256, f"revoked: {found.id}")
    if standing is RevocationRight.KEY:
        for other in ca_certificates.good_or_milder(tx, found.spki_sha256, reason.number):
            mark = f"{job}.{other.ca}.{other.shard}"
            if not _end(tx, other, reason, actor=actor, job=mark):
                _worsen(tx, other, actor=actor, job=mark)
    return changed


def _end(tx: Tx, found: IssuedCertificate, reason: RevocationReason, *, actor: str, job: str) -> bool:
    if not ca_certificates.revoke(tx, found.id, reason.number, tx.now()):
        return False
    _tell(tx, found, reason, actor, job)
    _replace_kept(tx, found, reason, actor)
    return True


def _worsen(tx: Tx, found: IssuedCertificate, *, actor: str, job: str) -> bool:
    """It ended for a milder reason, which people may ignore; the next list gives the true one."""
    if not ca_certificates.compromised(tx, found.id, RevocationReason.KEY_COMPROMISE.number):
        return False
    _tell(tx, found, RevocationReason.KEY_COMPROMISE, actor, job)
    return True


def _tell(tx: Tx, found: IssuedCertificate, reason: RevocationReason, actor: str, job: str) -> None:
    if found.shard is not None:
        hurry(tx, found.ca, found.shard, job)
    told = RevokedSerial(ca=found.ca, serial=found.serial, reason=reason.number, at=tx.now(), actor=actor)
    tx.facts.append(told)
    journal.audit(
        tx, "certificate_revoked", found.id, actor=actor, ca=found.ca, serial=found.serial, reason=reason.name.lower()
    )
    journal.event(tx, "certificate.revoked", found.id, serial=found.serial, reason=reason.name.lower())


def _replace_kept(tx: Tx, found: IssuedCertificate, reason: RevocationReason, actor: str) -> None:
    """Renew a certificate of ours at once when its version was revoked, rather than at the next look at the CA."""
    for version in versions.revoked_here(tx, found.serial, found.spki_sha256, found.not_after, reason.number):
        journal.audit(
            tx, "version_revoked", version.certificate, actor=actor, version=version.id, serial=version.serial
        )
        journal.event(tx, "version.revoked", version.certificate, version=version.id, serial=version.serial)
        kept = certificates.get(tx, version.certificate)
        if kept is not None and kept.current_version == version.id:
            issuance_attempts.replan(tx, kept, tx.now(), current=version)


def hurry(tx: Tx, ca: str, shard: int, job: str) -> None:
    """Bring the next list of this shard forward: its job lives for ever, and sleeps until the list is due."""
    subject, due_at = f"{ca}/{shard}", tx.now() + GATHER_FOR
    spec = Spec(id=job, kind=CRL, subject=subject, due_at=due_at, priority=Priority.URGENT)
    if jobs.enqueue(tx, spec) != job:
        jobs.bring_forward(tx, CRL, subject, due_at)


# ── At other CAs ──


def take_up_again(tx: Tx, version: Version, reason: int, *, actor: str) -> bool:
    """Ask the CA once more, if that was given up; for the reason that is given now. False if there is no need."""
    dead = jobs.dead(tx, REVOKE, version.id) if version.revoked_at is None else None
    if dead is None or jobs.live(tx, REVOKE, version.id) is not None:
        return False
    versions.change_revocation(tx, version.id, reason)
    jobs.requeue(tx, dead.id)
    told = {"version": version.id, "job": dead.id}
    journal.audit(tx, "revocation_asked_again", version.certificate, actor=actor, **told, reason=reason)
    journal.event(tx, "revocation.asked_again", version.certificate, **told, by=actor)
    return True


def note(tx: Tx, asked: Version) -> str | None:
    """A note for a user who revokes a version again; `asked` is the version before the request."""
    if asked.revoked_at is not None:
        return "It is revoked already."
    if asked.revoke_asked_at is None:
        return None
    job = jobs.live(tx, REVOKE, asked.id)
    if job is not None and job.reason == "REQUEUED":
        return "Its revocation had been given up, and is taken up again."
    said = f" {job.last_error}" if job is not None and job.last_error else ""
    return f"Its revocation was asked for before, and the CA is still asked for it.{said}"
