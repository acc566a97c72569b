"""The certificates of the demo: their versions, and the attempts that made them or failed."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from holdfast.core.access import Approval
from holdfast.core.backoff import issuance_next_at, spread
from holdfast.core.certificate import (
    Certificate,
    CertificateSpec,
    CertificateState,
    Failing,
    Version,
    VersionState,
)
from holdfast.core.issuance import Issuance, IssuanceState
from holdfast.core.own_ca.acme import Identifier
from holdfast.core.reasons import Reason
from holdfast.core.renewal import lifetime_due
from holdfast.core.work.job import Job, JobState, Priority
from holdfast.demo import serving
from holdfast.demo.cast import DOMAINS, HOUR, LIVES, OWNERS, WORDS, YEAR, Story, Trouble, made_id


def _spec(name: str, names: int, issuer: str, owner: str, *, approval: bool = False) -> CertificateSpec:
    stem, _, domain = name.partition(".")
    more = [f"{stem.replace('*', 'all')}-{n}.{domain}" for n in range(2, names + 1)]
    env = "prod" if spread(name) < 0.8 else "stage"
    return CertificateSpec(
        name=name,
        identifiers=tuple(Identifier("dns", each) for each in (name, *more)),
        issuers=(issuer,),
        owner=owner,
        labels={"env": env, "team": owner},
        approval_required=approval,
    )


def well(story: Story, number: int, key_secret: str, pem: str) -> None:
    word, domain = WORDS[number % len(WORDS)], DOMAINS[number * 7 // len(WORDS) % len(DOMAINS)]
    name = f"{word}{number // len(WORDS) + 1}.{domain}"
    issuer = ("letsencrypt", "letsencrypt", "letsencrypt", "zerossl", "corp", "corp", "digicert", "vault-lab")[
        number % 8
    ]
    owner = OWNERS[int(spread(name) * len(OWNERS))]
    life = timedelta(days=LIVES[issuer])
    # At a steady pace: somewhere between its beginning and the time of its renewal.
    began = story.now - life * 0.6 * spread(f"age {name}") - timedelta(minutes=7)
    spec = _spec(name, 1 + int(4 * spread(f"names {name}") ** 3), issuer, owner)
    spec = replace(spec, targets=serving.TARGETS if number % 5 == 0 else ())
    held, row = _kept(story, spec, began, life, key_secret, pem)
    plan = lifetime_due(row, held)
    story.rows.insert(0, replace(row, next_action_at=max(plan, story.now + HOUR), next_cause="DUE_LIFETIME"))


def _kept(
    story: Story, spec: CertificateSpec, began: datetime, life: timedelta, key_secret: str, pem: str
) -> tuple[Version, Certificate]:
    """A certificate with the versions of a year: each was renewed at two thirds of its life."""
    certificate = made_id("certificate", spec.name)
    starts, at = list[datetime](), began
    while at > story.now - YEAR and len(starts) < 12:
        starts.append(at)
        at -= life * (0.6 + 0.05 * spread(f"{spec.name} {at}"))
    made: list[Version] = []
    for place, start in enumerate(reversed(starts), 1):
        made.append(_issued(story, spec, certificate, place, start, life, key_secret, pem, last=start is starts[0]))
    created = made[0].issued_at - timedelta(minutes=2)
    story.events.append(
        (created, "certificate.requested", certificate, {"by": "human:platform", "certificate": spec.name})
    )
    story.deeds.append((created, "human:platform", "certificate_requested", certificate, {"name": spec.name}))
    row = Certificate(
        id=certificate,
        wanted=spec,
        state=CertificateState.ACTIVE,
        generation=1,
        version=len(made) + 1,
        fingerprint=spec.fingerprint(),
        changed_by="human:platform",
        created_at=created,
        current_version=made[-1].id,
    )
    return made[-1], row


def _issued(
    story: Story,
    spec: CertificateSpec,
    certificate: str,
    place: int,
    start: datetime,
    life: timedelta,
    key_secret: str,
    pem: str,
    *,
    last: bool,
) -> Version:
    key = f"{spec.name} {place}"
    took = timedelta(seconds=6 + 90 * spread(f"took {key}") ** 3)
    issuance, version, issuer = made_id("issuance", key), made_id("version", key), spec.issuers[0]
    if spread(f"failed {key}") < 0.12 and not last:
        _failed(story, spec, certificate, f"{key} before", start - HOUR, Reason.CA_DOWN, "The CA answered 503.")
    begun = start - took
    story.rows.append(
        Issuance(
            id=issuance,
            certificate=certificate,
            generation=1,
            state=IssuanceState.ISSUED,
            issuer=issuer,
            cause="FIRST" if place == 1 else "DUE_LIFETIME",
            identifiers=spec.identifiers,
            requested_by="system",
            started_at=begun,
            ended_at=start,
        )
    )
    made = Version(
        id=version,
        certificate=certificate,
        generation=1,
        issuance=issuance,
        key_secret=key_secret,
        chain_pem=pem,
        state=VersionState.ACTIVE if last else VersionState.SUPERSEDED,
        serial=f"{int(spread(key) * 2**62):016x}",
        not_before=start - HOUR,
        not_after=start - HOUR + life,
        issuer=issuer,
        account=None,
        spki_sha256=f"{int(spread('k' + key) * 2**62):064x}",
        issued_at=start,
    )
    story.rows.append(made)
    cause = {"cause": "FIRST" if place == 1 else "DUE_LIFETIME", "issuer": issuer}
    done = {"issuer": issuer, "serial": made.serial, "took_s": took.total_seconds(), "version": version}
    steps: list[tuple[str, datetime, dict[str, Any]]] = [
        ("issuance.begun", begun, cause),
        ("issuance.key_stored", begun + took * 0.02, {}),
        ("issuance.ordered", begun + took * 0.1, {}),
        ("issuance.proving", begun + took * 0.3, {}),
        ("certificate.activated", start, done),
    ]
    story.events += [(at, name, certificate, {**told, "issuance": issuance}) for name, at, told in steps]
    return made


def _failed(
    story: Story, spec: CertificateSpec, certificate: str, key: str, at: datetime, reason: Reason, error: str
) -> None:
    """An attempt that came to nothing; what was polled meanwhile is there, too."""
    issuance, took = made_id("issuance", key), timedelta(seconds=70 + 4 * spread(key))
    story.rows.append(
        Issuance(
            id=issuance,
            certificate=certificate,
            generation=1,
            state=IssuanceState.FAILED,
            issuer=spec.issuers[0],
            cause="DUE_LIFETIME",
            identifiers=spec.identifiers,
            requested_by="system",
            started_at=at - took,
            ended_at=at,
            error=error,
            reason=reason.value,
        )
    )
    begun = at - took
    story.events.append(
        (
            begun,
            "issuance.begun",
            certificate,
            {"issuance": issuance, "cause": "DUE_LIFETIME", "issuer": spec.issuers[0]},
        )
    )
    story.events.append((begun + timedelta(seconds=1), "issuance.ordered", certificate, {"issuance": issuance}))
    for n in range(7):
        waited = {"issuance": issuance, "why": reason.value, "error": error}
        story.events.append((begun + timedelta(seconds=4 + n * 9), "issuance.waits", certificate, waited))
    story.events.append(
        (
            at,
            "issuance.failed",
            certificate,
            {
                "issuance": issuance,
                "issuer": spec.issuers[0],
                "reason": reason.value,
                "error": error,
                "took_s": took.total_seconds(),
            },
        )
    )


def troubled(story: Story, trouble: Trouble, key_secret: str, pem: str) -> None:
    life = timedelta(days=LIVES[trouble.issuer])
    spec = _spec(trouble.name, trouble.names, trouble.issuer, trouble.owner, approval=trouble.approval)
    held, row = _kept(story, spec, story.now + trouble.left - life + HOUR, life, key_secret, pem)
    changes: dict[str, Any] = {"state": trouble.state}
    if trouble.reason is not None:
        changes |= _failing(story, trouble, spec, row, held)
    elif trouble.under_way is not None:
        _under_way(story, trouble, spec, row)
    elif trouble.waits:
        changes |= {"next_action_at": story.now + 6 * HOUR, "next_cause": trouble.waits}
    elif trouble.state is CertificateState.ACTIVE and not trouble.revoked:
        changes |= {"next_action_at": story.now + HOUR, "next_cause": "DUE_LIFETIME"}
    if trouble.revoked:
        changes |= {"next_action_at": story.now + timedelta(minutes=3), "next_cause": "REVOKED"}
        story.rows.remove(held)
        story.rows.append(
            replace(
                held,
                state=VersionState.REVOKED,
                revoke_asked_at=story.now - HOUR,
                revoked_at=story.now - 0.9 * HOUR,
                revoke_reason=4,
            )
        )
        story.events.append(
            (story.now - HOUR, "revocation.asked", row.id, {"by": "human:platform", "version": held.id})
        )
    story.rows.insert(0, replace(row, **changes))


def _failing(story: Story, trouble: Trouble, spec: CertificateSpec, row: Certificate, held: Version) -> dict[str, Any]:
    last, at = story.now - trouble.last, story.now - trouble.last
    times = [at]
    for n in range(trouble.attempts - 1, 0, -1):
        at -= min(HOUR * 2 ** (n - 1), 32 * HOUR) + timedelta(seconds=61)
        times.append(at)
    reason = trouble.reason or Reason.INTERNAL
    for n, when in enumerate(reversed(times), 1):
        _failed(story, spec, row.id, f"{trouble.name} failure {n}", when, reason, trouble.error)
    failing = Failing(
        attempts=trouble.attempts, last_at=last, first_at=times[-1], error=trouble.error, reason=reason.value
    )
    again = issuance_next_at(last, trouble.attempts, left_at_first_failure=held.not_after - times[-1])
    return {
        "failing": failing,
        "next_action_at": max(again, story.now + timedelta(minutes=41)),
        "next_cause": "BACKOFF",
    }


def _under_way(story: Story, trouble: Trouble, spec: CertificateSpec, row: Certificate) -> None:
    begun = story.now - timedelta(minutes=26 if trouble.approval else 2)
    state = trouble.under_way or IssuanceState.REQUESTED
    issuance = made_id("issuance", f"{trouble.name} now")
    story.rows.append(
        Issuance(
            id=issuance,
            certificate=row.id,
            generation=1,
            state=state,
            issuer=trouble.issuer,
            cause="DUE_LIFETIME",
            identifiers=spec.identifiers,
            requested_by="robot:ci-identity" if trouble.approval else "system",
            started_at=begun,
            reason="CA_STILL_PENDING" if state is IssuanceState.WAITING else None,
        )
    )
    story.events.append(
        (begun, "issuance.begun", row.id, {"issuance": issuance, "cause": "DUE_LIFETIME", "issuer": trouble.issuer})
    )
    if trouble.approval:
        ends = story.now + 5.6 * HOUR + timedelta(hours=spread(trouble.name) * 20)
        story.rows.append(
            Approval(
                id=made_id("approval", trouble.name),
                issuance=issuance,
                certificate=row.id,
                requested_by="robot:ci-identity",
                asked_at=begun,
                expires_at=ends,
            )
        )
        return
    due = story.now + (timedelta(hours=3 + 3 * spread(trouble.name)) if trouble.waits else timedelta(seconds=40))
    story.jobs.append(
        Job(
            id=made_id("job", trouble.name),
            kind="issue",
            subject=issuance,
            state=JobState.READY,
            priority=Priority.NORMAL,
            due_at=due,
            attempts=1,
            max_attempts=20,
            crashes=0,
            holder=None,
            lease_until=None,
            reason=trouble.waits or ("CA_STILL_PENDING" if state is IssuanceState.WAITING else None),
            last_error=None,
        )
    )
