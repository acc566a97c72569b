"""The end of a certificate before its time: the row, the blocked key, the list that will say so, all at once."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from holdfast.core.job import Priority, Spec
from holdfast.operations import issuing
from holdfast.pki.crl import Reason
from holdfast.store import ca_certificates, certificates, jobs, journal, versions
from holdfast.store.ca_certificates import Issued
from holdfast.store.tx import Tx

CRL: Final = "ca.crl"
GATHER_FOR: Final = timedelta(seconds=5)  # revocations that come together share a list; a minute is promised


def revoke(tx: Tx, found: Issued, reason: Reason, *, actor: str, job: str) -> bool:
    """False if it was revoked before."""
    if not ca_certificates.revoke(tx, found.id, int(reason)):
        return False
    if reason is Reason.KEY_COMPROMISE:
        ca_certificates.block_key(tx, found.spki_sha256, f"revoked: {found.id}")
    if found.shard is not None:
        hurry(tx, found.ca, found.shard, job)
    journal.audit(
        tx, "certificate_revoked", found.id, actor=actor, ca=found.ca, serial=found.serial, reason=reason.name.lower()
    )
    journal.event(tx, "certificate.revoked", found.id, serial=found.serial, reason=reason.name.lower())
    _replace_kept(tx, found, reason, actor)
    return True


def _replace_kept(tx: Tx, found: Issued, reason: Reason, actor: str) -> None:
    """If it is one that we keep ourselves, whoever uses it must not wait until the CA is next asked about it."""
    for version in versions.revoked_here(tx, found.serial, found.spki_sha256, found.not_after, int(reason)):
        journal.audit(
            tx, "version_revoked", version.certificate, actor=actor, version=version.id, serial=version.serial
        )
        journal.event(tx, "version.revoked", version.certificate, version=version.id, serial=version.serial)
        kept = certificates.get(tx, version.certificate)
        if kept is not None and kept.current_version == version.id:
            issuing.replan(tx, kept, tx.now(), current=version)


def hurry(tx: Tx, ca: str, shard: int, job: str) -> None:
    """Bring the next list of this shard forward: its job lives for ever, and sleeps until the list is due."""
    subject, due_at = f"{ca}/{shard}", tx.now() + GATHER_FOR
    spec = Spec(id=job, kind=CRL, subject=subject, due_at=due_at, priority=Priority.URGENT)
    if jobs.enqueue(tx, spec) != job:
        jobs.bring_forward(tx, CRL, subject, due_at)
