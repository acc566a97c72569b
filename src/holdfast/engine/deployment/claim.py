"""Reads what one claim of a reload domain works on: its due deployments with their facts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from holdfast.core.certificate import Certificate, CertificateState, Version
from holdfast.core.deployment import UNDER_WAY, Deployment
from holdfast.core.deployment_decision import OPEN, DeploymentFacts, Gate, gate
from holdfast.core.endpoint import Endpoint
from holdfast.core.issuers import breaker
from holdfast.core.kind import Trait
from holdfast.core.reasons import Reason
from holdfast.core.target import TargetRow, wave_of
from holdfast.engine.deployment import looking
from holdfast.engine.deployment.bundles import leaf_digest
from holdfast.operations import kinds
from holdfast.store import certificates, versions
from holdfast.store.deployments import deployments, freezes, targets
from holdfast.store.tx import Tx


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One deployment with all that its steps need."""

    facts: DeploymentFacts
    certificate: Certificate
    target: TargetRow
    endpoints: tuple[Endpoint, ...]
    old: tuple[str, ...]  # SHA-256 of earlier certificates
    before: Deployment | None = None  # what is in place
    unfit: str = ""  # why its names do not fit the target


@dataclass(frozen=True, slots=True)
class Rest:
    """Nothing is to be done before `at`; None: nothing at all."""

    at: datetime | None


def pick(tx: Tx, host: str, domain: str) -> Rest | list[Found]:
    """What is due together. One that failed before is taken alone, so that it can take no other down with it."""
    now = tx.now()
    due = deployments.due(tx, host, domain, now)
    if not due:
        return Rest(deployments.next_due(tx, host, domain))
    fresh = [each for each in due if each.failures == 0]
    found = [each for row in fresh or due[:1] if (each := _found(tx, row, now)) is not None]
    if not found:
        return Rest(None)
    if len(found) == 1:
        return found
    return [replace(each, facts=replace(each.facts, alone=False)) for each in found]


def _found(tx: Tx, row: Deployment, now: datetime) -> Found | None:
    certificate, version = certificates.get(tx, row.certificate), versions.get(tx, row.certificate_version)
    target = targets.get(tx, row.target, lock=True)
    if certificate is None or version is None or target is None:
        return None
    before = deployments.in_place(tx, row.certificate, row.target)
    there = None if before is None else before.certificate_version
    previous = versions.get(tx, row.previous if row.state in UNDER_WAY else there)
    names = [each.value for each in certificate.wanted.identifiers]
    endpoints = tuple(looking.endpoints_for(target.endpoints, names))
    facts = DeploymentFacts(
        deployment=row,
        version=version,
        previous=previous,
        now=now,
        wanted=certificate.state is not CertificateState.ARCHIVED and row.target in certificate.wanted.targets,
        gate=_gate(tx, row, target, previous, now),
        has_endpoints=bool(endpoints),
        can_restore=previous is not None or kinds.has(target, Trait.KEEPS_PREVIOUS),
        drains=bool(target.settings.get("drain")),
        verify_for=kinds.deploy_limits(target.kind).verify_for,
    )
    old = tuple(leaf_digest(each) for each in versions.of(tx, row.certificate, limit=10) if each.id != version.id)
    unfit = _unfit(tx, target, names) if target.endpoints and not endpoints else ""
    return Found(
        facts=facts,
        certificate=certificate,
        target=target,
        endpoints=endpoints,
        old=old,
        before=before,
        unfit=unfit,
    )


def _unfit(tx: Tx, target: TargetRow, names: list[str]) -> str:
    """Of several certificates on a target, each is seen at endpoints of its own."""
    if len(targets.certificates_at(tx, target.name, limit=2)) > 1:
        return ""
    return f"the target serves {', '.join(target.endpoints)}, and the certificate is for {', '.join(names[:5])}"


def _gate(tx: Tx, row: Deployment, target: TargetRow, previous: Version | None, now: datetime) -> Gate:
    if row.state in UNDER_WAY:
        return OPEN
    if target.breaker.until is not None:
        admitted, until = breaker.admit(target.breaker, row.id, now)
        if until is not None:
            return Gate(reason=Reason.TARGET_UNREACHABLE, until=until)
        targets.save_breaker(tx, target.name, admitted)
    return gate(target, previous, now, frozen_until=freezes.until(tx), wave=_wave(tx, row, target))


def _wave(tx: Tx, row: Deployment, target: TargetRow) -> Gate:
    """Whether the earlier waves of its rollout are served."""
    if not target.rollout:
        return OPEN
    certificate = certificates.get(tx, row.certificate)
    rows = targets.named(tx, () if certificate is None else certificate.wanted.targets)
    rollout = [each.name for each in rows.values() if each.rollout == target.rollout]
    if target.name not in rollout:
        return OPEN
    mine = wave_of(target.name, rollout)
    earlier = [each for each in rollout if wave_of(each, rollout) < mine]
    standing = {each.target: each for each in deployments.standing(tx, [row.certificate])[row.certificate]}
    behind = [each for name in earlier if (each := standing.get(name)) is None or not _done(each, row)]
    if not behind:
        return OPEN
    stopped = any(each is not None and each.failures for each in behind)
    again = timedelta(minutes=1)
    return Gate(reason=Reason.WAVE_STOPPED if stopped else Reason.WAVE_WAITS, until=tx.now() + again)


def _done(each: Deployment, row: Deployment) -> bool:
    return each.state.in_place and each.certificate_version == row.certificate_version
