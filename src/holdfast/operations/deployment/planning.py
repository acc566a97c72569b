"""Which deployments are wanted: rows and jobs, made in the transaction that activates a version or changes targets."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from holdfast.core.certificate import Certificate, CertificateState
from holdfast.core.deployment import Deployment, DeploymentCause, move
from holdfast.core.target import TargetRow
from holdfast.core.work.job import Spec
from holdfast.store import journal
from holdfast.store.deployments import deployments, targets
from holdfast.store.tx import Tx
from holdfast.store.work import jobs

DEPLOY: Final = "deploy"  # the job that drains a reload domain; its subject is the domain


def job_kind(host: str) -> str:
    """Files and programs are of one machine: jobs for it are claimed by its replica only."""
    return f"{DEPLOY}@{host}" if host else DEPLOY


def follow(tx: Tx, found: Certificate, *, cause: DeploymentCause, actor: str = "system") -> list[Deployment]:
    """Want what the certificate says: its version in use on each of its targets, and nothing elsewhere."""
    wanted = found.wanted.targets if found.state is not CertificateState.ARCHIVED else ()
    for each in deployments.standing(tx, [found.id])[found.id]:
        if each.target not in wanted:
            supersede(tx, each, "The certificate does not name the target any more.")
    if found.current_version is None:
        return []
    return [
        made
        for target in wanted
        if (made := want(tx, found, target, found.current_version, cause=cause, actor=actor)) is not None
    ]


def want(
    tx: Tx, found: Certificate, target: str, version: str, *, cause: DeploymentCause, actor: str, again: bool = False
) -> Deployment | None:
    """A deployment of this version to this target; None if it is in place, or on its way. `again`: even then."""
    there, coming = deployments.in_place(tx, found.id, target), deployments.wanted(tx, found.id, target)
    if not again and coming is not None and coming.certificate_version == version:
        return None
    if not again and coming is None and there is not None and there.certificate_version == version:
        return None
    if coming is not None:
        supersede(tx, coming, "A newer deployment takes its place.")
    now = tx.now()
    made = Deployment(
        id=deployments.new_id(now, found.id, target),
        certificate=found.id,
        certificate_version=version,
        target=target,
        # Above all that the target may have seen, even if the store has lost some: as the numbers of CRLs are.
        number=max(deployments.last_number(tx, found.id, target) + 1, int(now.timestamp())),
        cause=cause,
        requested_by=actor,
        previous=None if there is None else there.certificate_version,
        next_at=now,
        created_at=now,
        changed_at=now,
    )
    deployments.insert(tx, made)
    facts = {"deployment": made.id, "target": target, "version": version, "cause": cause}
    journal.audit(tx, "deployment_queued", found.id, actor=actor, number=made.number, **facts)
    journal.event(tx, "deployment.queued", found.id, **facts)
    row = targets.get(tx, target)
    if row is not None:
        wake(tx, [row])
    return made


def supersede(tx: Tx, deployment: Deployment, why: str) -> None:
    deployments.save(tx, deployment, state=move(deployment.state, "superseded"), next_at=None)
    facts = {"deployment": deployment.id, "target": deployment.target, "why": why}
    journal.event(tx, "deployment.superseded", deployment.certificate, **facts)


def wake(tx: Tx, rows: Iterable[TargetRow]) -> None:
    """Have their reload domains drained soon; one job for each of them."""
    now = tx.now()
    for host, domain in sorted({(row.host, row.reload_domain) for row in rows}):
        jobs.bring_forward(tx, job_kind(host), domain, now)
        jobs.owe(tx, job_of(now, host, domain))


def job_of(now: datetime, host: str, domain: str) -> Spec:
    return Spec(id=deployments.job_id(now, host, domain), kind=job_kind(host), subject=domain)


def wake_target(tx: Tx, name: str) -> None:
    """A target was resumed or changed: what waited for it is tried now."""
    row = targets.get(tx, name)
    if row is not None:
        deployments.wake(tx, name, tx.now())
        wake(tx, [row])
