"""The life of one attempt in the store: begin it, give it up, or put its certificate in use; one transaction each.

Sweep, people and workers all come through here: there is no second path that could forget something.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from cryptography import x509

from holdfast.core import certificate, reasons, renewal
from holdfast.core.access import Approval, ApprovalState
from holdfast.core.backoff import FailureClass, counts_against_certificate
from holdfast.core.certificate import Certificate, CertificateSpec, Version, in_common_with
from holdfast.core.changed import changed
from holdfast.core.issuance import NOT_HANDED_IN, Issuance, IssuanceEvent, IssuanceState, move
from holdfast.core.issuers import ca_limits
from holdfast.core.issuers.issuer import IssuerRow, IssuerState
from holdfast.core.reasons import Reason
from holdfast.core.renewal import RenewalDecision
from holdfast.core.work.job import Priority, Spec
from holdfast.operations import kinds
from holdfast.operations.deployment import planning
from holdfast.operations.installation.secret_store import SecretStore
from holdfast.operations.issuance import issuer_choice, order_budgets
from holdfast.operations.issuance.issuer_choice import IssuerSnapshot
from holdfast.pki import ari
from holdfast.pki.chain import parse_bundle
from holdfast.ports import Random
from holdfast.store import access, certificates, issuances, issuers, journal, secrets, versions
from holdfast.store.database import Store
from holdfast.store.tx import Tx
from holdfast.store.work import budgets, jobs, turns

ISSUE: Final = "issue"  # the job of an issuance
WITHDRAW: Final = "withdraw"  # the job that tells a CA that an order is given up
WITHDRAW_TRIES: Final = 10
CLEAN: Final = "clean"  # the job that removes the challenge responses of an issuance that is over
CLEAN_TRIES: Final = 10
NO_CA_FOR: Final = timedelta(hours=1)  # how long a certificate waits whose CAs are all paused, unless one is resumed
HEAD_START: Final = timedelta(minutes=1)
LONG_LEFT: Final = timedelta(days=90)


Proofs = Sequence[Mapping[str, Any]]  # of an issuance


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateContext:
    """What every verb about certificates needs."""

    db: Store
    random: Random
    secret_store: SecretStore
    approval_for: timedelta = timedelta(days=3)  # how long a second person has

    def ids(self) -> Ids:
        """Drawn before a transaction, which may run more than once."""
        new = self.random.new_id
        return Ids(issuance=new("issuance"), job=new("job"), approval=new("approval"), approval_for=self.approval_for)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ids:
    issuance: str
    job: str
    approval: str
    approval_for: timedelta


@dataclass(frozen=True, slots=True)
class IssuanceIds:
    """Ids for as many as turn out to need them; a transaction that runs again finds the same ones."""

    certificate_context: CertificateContext
    ids: dict[str, Ids] = field(default_factory=dict)

    def of(self, subject: str) -> Ids:
        if subject not in self.ids:
            self.ids[subject] = self.certificate_context.ids()
        return self.ids[subject]


# ── Beginning ──


def begin(
    tx: Tx,
    found: Certificate,
    current: Version | None,
    ids: Ids,
    *,
    cause: Reason,
    urgent: bool,
    requested_by: str,
    actor: str | None = None,  # who begins it, if that is not whoever asked for it
    not_before: datetime | None = None,
    to: IssuerRow | None = None,
    snapshot: IssuerSnapshot | None = None,
) -> Issuance | None:
    """Begin an attempt, with its job and its budgets; None if no CA may be asked now: it then waits, with a reason.

    `not_before`: it is under way from now on, and its job waits for that time. `to`: an attempt goes on at this CA of
    the list, and what a second person said about it holds. `standing`: what was read for others of this transaction.
    """
    now, snapshot = tx.now(), snapshot or IssuerSnapshot(tx)
    rows = snapshot.named(found.wanted.issuers)
    chosen = to or issuer_choice.chosen(snapshot, found, current, rows, now)
    if chosen is None:
        reason = Reason.ISSUER_PAUSED if rows else Reason.UNKNOWN_ISSUER
        certificates.save(tx, found, next_action_at=now + NO_CA_FOR, next_cause=reason.value)
        return None
    approval = why_approval_needed(snapshot, found, rows) if to is None else None
    issuance = Issuance(
        id=ids.issuance,
        certificate=found.id,
        generation=found.generation,
        state=IssuanceState.REQUESTED if approval is None else IssuanceState.AWAITING_APPROVAL,
        issuer=chosen.name,
        cause=cause.value,
        urgent=urgent,
        identifiers=found.wanted.identifiers,
        replaces=_replaces(tx, current, chosen),
        requested_by=requested_by,
        started_at=now if not_before is None else max(not_before, now),
    )
    if not issuances.insert(tx, issuance):
        certificates.save(tx, found, next_action_at=None, next_cause=None)
        return issuances.under_way(tx, found.id)
    hurried = cause is Reason.DUE_ARI and urgent
    certificates.save(
        tx, found, next_action_at=None, next_cause=None, ari_forced_at=now if hurried else found.ari_forced_at
    )
    facts = {"issuance": issuance.id, "cause": cause.value, "issuer": chosen.name}
    facts |= {"requested_by": requested_by} if actor not in (None, requested_by) else {}
    journal.audit(tx, "issuance_begun", found.id, actor=actor or requested_by, **facts)
    journal.event(tx, "issuance.begun", found.id, issuance=issuance.id, cause=cause.value, issuer=chosen.name)
    if approval is None:
        start(tx, issuance, ids.job, current=current, chosen=chosen, found=found, snapshot=snapshot)
    else:
        _ask_approval(tx, issuance, ids, now, approval)
    return issuance


def _replaces(tx: Tx, current: Version | None, chosen: IssuerRow) -> str | None:
    """What to tell the CA (RFC 9773 §5): only about what this very account got there."""
    if current is None or current.issuer != chosen.name or current.account is None:
        return None
    account = issuers.current_account(tx, chosen.name)
    return cert_id(current) if account is not None and account.url == current.account else None


def cert_id(version: Version) -> str | None:
    """Its name in renewal information (RFC 9773 §4.1); None for one without an authority key identifier."""
    leaf = parse_bundle(version.chain_pem.encode())[0]
    try:
        found = leaf.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier
    except x509.ExtensionNotFound:
        return None
    return None if found is None else ari.cert_id(found, leaf.serial_number)


def start(
    tx: Tx,
    issuance: Issuance,
    job: str,
    *,
    current: Version | None,
    chosen: IssuerRow | None,
    found: Certificate,
    snapshot: IssuerSnapshot | None = None,
) -> None:
    """Ask for the job. What its first claim pays for is the order."""
    now, keys = tx.now(), order_budgets.for_order(tx, issuance, chosen, found, current, snapshot)
    priority = _priority(issuance, current)
    due_at = issuance.started_at if issuance.started_at > now else now - _head_start(current, now)
    jobs.owe(tx, Spec(id=job, kind=ISSUE, subject=issuance.id, due_at=due_at, priority=priority, budgets=keys))


def _priority(issuance: Issuance, current: Version | None) -> Priority:
    revoked = current is not None and current.revoked
    return Priority.URGENT if issuance.urgent or revoked else Priority.NORMAL


def _head_start(current: Version | None, now: datetime) -> timedelta:
    """Of those that are begun together, the ones with the least time left go first."""
    if current is None:
        return timedelta(0)
    left = max(current.not_after - now, timedelta(0))
    return HEAD_START * max(0.0, 1 - left / LONG_LEFT)


def _ask_approval(tx: Tx, issuance: Issuance, ids: Ids, now: datetime, why: str) -> None:
    access.insert_approval(
        tx,
        Approval(
            id=ids.approval,
            issuance=issuance.id,
            certificate=issuance.certificate,
            requested_by=issuance.requested_by,
            asked_at=now,
            expires_at=now + ids.approval_for,
        ),
    )
    journal.event(tx, "approval.asked", issuance.certificate, approval=ids.approval, issuance=issuance.id, why=why)


def move_on(tx: Tx, issuance: Issuance, ids: Ids, to: str, *, reason: Reason, why: str) -> bool:
    """Leave a CA that cannot help now, and begin at another one; nothing is counted. False: that one is gone as well.

    The attempt has no order, and its job is in the caller's hands.
    """
    found, row = certificates.get(tx, issuance.certificate, lock=True), issuers.get(tx, to)
    if found is None or row is None or row.state is IssuerState.PAUSED or issuance.generation != found.generation:
        return False
    words = issuances.storable(why)
    _end(tx, issuance, "gave up", tx.now(), error=words, reason=reason.value)
    facts = {"issuance": issuance.id, "issuer": issuance.issuer, "reason": reason.value, "error": words, "to": to}
    journal.audit(tx, "issuance_failed", found.id, failure="moved on", **facts)
    journal.event(tx, "issuance.moved_on", found.id, **facts)
    begin(
        tx,
        found,
        versions.get(tx, found.current_version),
        ids,
        cause=reasons.of(issuance.cause),
        urgent=issuance.urgent,
        requested_by=issuance.requested_by,
        actor=journal.SYSTEM,
        to=row,
    )
    return True


# ── Ending ──


def give_up(
    tx: Tx,
    issuance: Issuance,
    *,
    failure: FailureClass,
    reason: str,
    error: str,
    count: bool = True,
    withdraw: bool = False,
    proofs: Proofs | None = None,
) -> None:
    """Record that an issuance failed. The certificate climbs its ladder, unless the failure is none of its own.

    `withdraw`: the CA may still work on the order, which is to be withdrawn. `proofs`: the challenge responses that
    are still shown, if some were removed already.
    """
    now = tx.now()
    found = certificates.get(tx, issuance.certificate, lock=True)
    if found is None:
        return
    words = issuances.storable(error)
    _end(tx, issuance, "gave up", now, error=words, reason=reason, withdraw=withdraw, proofs=proofs)
    counted = count and counts_against_certificate(failure) and issuance.generation == found.generation
    failing = certificate.failed(found.failing, now, error=words, reason=reason) if counted else found.failing
    after = replan(tx, found, now, failing=failing)
    facts: dict[str, Any] = {
        "issuance": issuance.id,
        "issuer": issuance.issuer,
        "failure": failure.value,
        "reason": reason,
        "error": words,
        "attempts": 0 if failing is None else failing.attempts or 0,
        "next": None if after.next_action_at is None else after.next_action_at.isoformat(),
    }
    journal.audit(tx, "issuance_failed", found.id, **facts)
    journal.event(
        tx, "issuance.failed", found.id, alert=reasons.MEANINGS[reasons.of(reason)].alert and counted, **facts
    )


def _end(
    tx: Tx,
    issuance: Issuance,
    event: IssuanceEvent,
    now: datetime,
    *,
    error: str,
    reason: str,
    withdraw: bool = False,
    proofs: Proofs | None = None,
) -> None:
    """Without a certificate. Its key is forgotten, unless the CA may have made a certificate of it all the same."""
    handed_in = issuance.state not in NOT_HANDED_IN or issuance.asked_at is not None
    useless = issuance.key_secret if not handed_in and not _in_use(tx, issuance) else None
    after = issuances.save(
        tx,
        issuance,
        state=move(issuance.state, event),
        ended_at=now,
        error=error,
        reason=reason,
        key_secret=None if useless else issuance.key_secret,
        proofs=issuance.proofs if proofs is None else proofs,
    )
    if useless:
        secrets.delete(tx, useless)
    _take_away(tx, issuance, after)
    if withdraw and (issuance.ref is not None or issuance.asked_at is not None):
        withdraw_order(tx, after)


def withdraw_order(tx: Tx, issuance: Issuance, **changes: Any) -> None:
    """Queue a job that withdraws the order at the CA: the CA may be away now, and this process may stop."""
    after = issuances.save(tx, issuance, **changes, withdrawal="owed")
    job = f"job_{after.id.partition('_')[2] or after.id}-w{after.version}"
    paid_by = order_budgets.for_request(tx, after.issuer, lookup=after.ref is None)
    jobs.owe(tx, Spec(id=job, kind=WITHDRAW, subject=after.id, max_attempts=WITHDRAW_TRIES, budgets=paid_by))


def _in_use(tx: Tx, issuance: Issuance) -> bool:
    return issuance.key_secret is not None and versions.uses_key(tx, issuance.key_secret)


def _take_away(tx: Tx, before: Issuance, after: Issuance) -> None:
    """Proofs that we serve ourselves end with the attempt; others are owed by their solvers, until they are gone."""
    for proof in before.proofs:
        issuances.delete_response(tx, proof["type"], proof["token"])
    if after.proofs:
        job = f"job_{after.id.partition('_')[2] or after.id}-c{after.version}"
        jobs.owe(tx, Spec(id=job, kind=CLEAN, subject=after.id, max_attempts=CLEAN_TRIES))


def count_validation(tx: Tx, issuance: Issuance, row: IssuerRow) -> None:
    """Count a failed validation: a CA allows only so many for a name; after that, the set of names waits."""
    limits = kinds.limits_of(row)
    limit = limits.failures
    if limit is None:
        return
    names = sorted({each.base for each in issuance.identifiers})
    full = [until for name in names if (until := budgets.spend(tx, ca_limits.failure_key(row.name, name), limit))]
    if full:
        budgets.hold(tx, ca_limits.set_key(ca_limits.place_of(limits, row.name), issuance.identifiers), max(full))


def cancel(tx: Tx, issuance: Issuance, *, actor: str, reason: Reason, why: str) -> None:
    """Stop an attempt that is under way, and tell its CA. A worker that is at it finds out at its next step."""
    _end(tx, issuance, "cancelled", tx.now(), error=why, reason=reason.value, withdraw=True)
    job = jobs.live(tx, ISSUE, issuance.id)
    if job is not None:
        budgets.return_turn(tx, job.id)
        jobs.cancel(tx, job.id)
    approval = access.approval_of(tx, issuance.id)
    if approval is not None:
        access.decide_approval(tx, approval.id, ApprovalState.WITHDRAWN, by=actor, note=why)
    journal.audit(tx, "issuance_cancelled", issuance.certificate, actor=actor, issuance=issuance.id, why=why)
    journal.event(tx, "issuance.cancelled", issuance.certificate, issuance=issuance.id, why=why)


def activate(
    tx: Tx, issuance: Issuance, version: Version, *, known: Certificate | None = None, proofs: Proofs | None = None
) -> None:
    """The new version takes over: the old one is superseded, failures are forgotten, the next renewal is planned.

    `known`: the certificate as it was read before. `proofs`: those that are still to be taken away, if some were
    already.
    """
    now = tx.now()
    found = certificates.as_it_is(tx, known) if known else certificates.get(tx, issuance.certificate, lock=True)
    if found is None or not versions.insert(tx, version):
        return
    after = issuances.save(
        tx,
        issuance,
        state=move(issuance.state, "certificate received"),
        ended_at=now,
        error=None,
        reason=None,
        proofs=issuance.proofs if proofs is None else proofs,
    )
    _take_away(tx, issuance, after)
    if found.current_version is not None:
        versions.supersede(tx, found.current_version)
    ask = now if found.wanted.rule.ari else None
    new = {"failing": None, "current_version": version.id, "ari": None, "ari_ask_at": ask}
    planned = _plan(tx, found, new, renewal.decide(changed(found, **new), version, now))  # nothing is under way now
    facts: dict[str, Any] = {
        "issuance": issuance.id,
        "version": version.id,
        "issuer": version.issuer,
        "serial": version.serial,
        "not_after": version.not_after.isoformat(),
        "key": version.spki_sha256,
        "next": None if planned.next_action_at is None else planned.next_action_at.isoformat(),
    }
    planning.follow(tx, planned, cause="issued")
    journal.audit(tx, "certificate_activated", found.id, replaced=found.current_version or "", **facts)
    journal.event(tx, "certificate.activated", found.id, took_s=(now - issuance.started_at).total_seconds(), **facts)


def replan(tx: Tx, found: Certificate, now: datetime, *, current: Version | None = None, **changes: Any) -> Certificate:
    """Write changes, and when to look next as they make it; nothing is planned while an attempt is under way."""
    if current is None:
        current = versions.get(tx, changes.get("current_version", found.current_version))
    under_way = issuances.under_way(tx, found.id)
    decision = renewal.decide(changed(found, **changes), current, now)
    if under_way is not None:
        if decision.at is not None:
            hasten(tx, under_way, max(decision.at, now))
        if decision.cause is Reason.REVOKED:
            press(tx, under_way)
        return certificates.save(tx, found, **{**changes, "next_action_at": None, "next_cause": None})
    return _plan(tx, found, changes, decision)


def _plan(tx: Tx, found: Certificate, changes: Mapping[str, object], decision: RenewalDecision) -> Certificate:
    cause = decision.waits_for or decision.cause
    plan = {"next_action_at": decision.at, "next_cause": None if decision.at is None else cause.value}
    return certificates.save(tx, found, **{**changes, **plan})


def hasten(tx: Tx, issuance: Issuance, at: datetime) -> None:
    """One that was asked for with a time to begin begins earlier, if there is a reason; others are left alone."""
    if issuance.state is IssuanceState.REQUESTED and issuance.started_at > at:
        jobs.bring_forward(tx, ISSUE, issuance.id, at)


def press(tx: Tx, issuance: Issuance) -> None:
    """An attempt that was begun in peace becomes urgent: what it is to replace must not be relied upon any more.

    Its job does, and not its row, which is its worker's while it is under way.
    """
    if not issuance.urgent:
        turns.make_urgent(tx, ISSUE, issuance.id)


# ── The reconciler: issuances without a job ──


def owed(tx: Tx, new_job: Sequence[str]) -> list[Spec]:
    """Attempts under way without a job get one; one whose job died is over, and says so."""
    specs = []
    found = issuances.without_job(tx, ISSUE, limit=len(new_job))
    for (issuance, dead), job in zip(found, new_job, strict=False):
        if dead:
            _job_died(tx, issuance)
        else:
            kept = certificates.get(tx, issuance.certificate)
            current = None if kept is None else versions.get(tx, kept.current_version)
            priority = _priority(issuance, current)
            paid_by = order_budgets.for_the_rest(tx, issuance)
            specs.append(Spec(id=job, kind=ISSUE, subject=issuance.id, priority=priority, budgets=paid_by))
    return specs


def _job_died(tx: Tx, issuance: Issuance) -> None:
    """The last error of the issuance's job, which says more than that there was an error."""
    job = jobs.dead(tx, ISSUE, issuance.id)
    reason = Reason.INTERNAL if job is None or job.reason is None else reasons.of(job.reason)
    said = "it left no word" if job is None else job.last_error or job.reason or "it left no word"
    error = f"Its job was given up{'' if job is None else f' after {job.attempts} attempts'}: {said}"
    give_up(tx, issuance, failure=FailureClass.LOCAL, reason=reason.value, error=error)


def forget_old(tx: Tx, before: datetime) -> int:
    """Forget a page of attempts that are long over, and the keys that nothing else needs. The audit log keeps them."""
    found = issuances.forget_old(tx, before)
    for secret in {each for each in found if each is not None}:
        if not versions.uses_key(tx, secret) and not issuances.uses_key(tx, secret):
            secrets.delete(tx, secret)
    return len(found)


APPROVAL_SETTING: Final = "approval_required"  # of a CA: only who may change CAs can set it, or give it up


def why_approval_needed(snapshot: IssuerSnapshot, found: Certificate, rows: Mapping[str, IssuerRow]) -> str | None:
    """Why a second person must approve; None: none is needed. `rows` are all its issuers: an issuance may move on."""
    if found.wanted.approval_required:
        return "This certificate was asked for with approval."
    strict = _strict(found.wanted, rows)
    if strict is not None:
        return f"The CA {strict} issues nothing without approval."
    return _guarded(snapshot, found)


def count_approvals(
    ordered: Sequence[CertificateSpec], others: Iterable[CertificateSpec], rows: Mapping[str, IssuerRow]
) -> int:
    """How many of these would wait, beside the others that are there or are to be."""
    guarded = [name for each in (*ordered, *others) if each.approval_required for name in each.identifiers]
    overlap = in_common_with(guarded)
    waits = (each.approval_required or _strict(each, rows) or overlap(each.identifiers) for each in ordered)
    return sum(map(bool, waits))


def _strict(spec: CertificateSpec, rows: Mapping[str, IssuerRow]) -> str | None:
    """The first of its CAs with the rule."""
    return next((name for name in spec.issuers if name in rows and rows[name].settings.get(APPROVAL_SETTING)), None)


def _guarded(snapshot: IssuerSnapshot, found: Certificate) -> str | None:
    """The same names in a certificate of another name are the same power: the rule follows the names."""
    for other in snapshot.guarded_near(found.wanted.identifiers, but=found.id):
        name = in_common_with(other.identifiers)(found.wanted.identifiers)
        if name is not None:
            same = other.owner == found.wanted.owner
            named = f"certificate {other.name}" if same else "a certificate of another owner"
            return f"{name} overlaps with {named}, which needs approval."
    return None
