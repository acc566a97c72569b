"""Begins renewals that are due, and asks CAs when they want their certificates renewed (ARI, RFC 9773)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from cryptography.hazmat.primitives.serialization import Encoding

from holdfast.core import renewal
from holdfast.core.certificate import Ari, Certificate, CertificateState, Version
from holdfast.core.issuers import ca_limits
from holdfast.core.issuers.issuer import IssuerRow
from holdfast.core.reasons import Reason
from holdfast.core.work.job import Done, Outcome, Priority, Spec
from holdfast.engine.issuance.issue import IssuanceServices
from holdfast.engine.kind import JobKind, Work
from holdfast.errors import Refused, TryLater
from holdfast.issuers.base import KeepsAlive, RenewalWindow, TellsRenewalWindow
from holdfast.operations import kinds
from holdfast.operations.issuance import attempts as issuance_attempts
from holdfast.operations.issuance.attempts import CertificateContext, Ids, IssuanceIds
from holdfast.operations.issuance.issuer_choice import IssuerSnapshot
from holdfast.pki.chain import parse_bundle
from holdfast.store import certificates, issuers, journal, versions
from holdfast.store.tx import Tx
from holdfast.store.work import budgets, jobs

DUE_PAGE: Final = 100


@dataclass(frozen=True, slots=True)
class _Page:
    seen: int
    begun: int


async def sweep_due(context: CertificateContext) -> int:
    """Everything that is due, page by page; how many attempts were begun. Two replicas never see the same page."""
    total = 0
    while True:
        ids = IssuanceIds(context)
        page = await context.db.write(lambda tx, ids=ids: _due_page(tx, ids))  # type: ignore[misc]
        total += page.begun
        if page.seen < DUE_PAGE:
            return total + await context.db.write(_find_stranded)


def _due_page(tx: Tx, ids: IssuanceIds) -> _Page:
    due = certificates.due(tx, tx.now(), limit=DUE_PAGE)
    held = versions.many(tx, [each.current_version for each in due if each.current_version is not None])
    snapshot = IssuerSnapshot(tx)
    begun = sum(_act(tx, each, held.get(each.current_version or ""), ids.of(each.id), snapshot) for each in due)
    return _Page(len(due), begun)


def _act(tx: Tx, found: Certificate, current: Version | None, ids: Ids, snapshot: IssuerSnapshot) -> bool:
    now = tx.now()
    decision = renewal.decide(found, current, now)
    if not decision.due(now):
        issuance_attempts.replan(tx, found, now, current=current)
        return False
    asked = found.changed_by if decision.cause in (Reason.FIRST, Reason.INPUT_CHANGED) else journal.SYSTEM
    because: dict[str, Any] = {"cause": decision.cause, "urgent": decision.urgent, "requested_by": asked}
    because["actor"] = journal.SYSTEM  # the engine begins it, whoever wanted it
    return issuance_attempts.begin(tx, found, current, ids, **because, snapshot=snapshot) is not None


def _find_stranded(tx: Tx) -> int:
    """Certificates without a planned time get one again; there are none, unless something went badly wrong."""
    for found in certificates.stranded(tx):
        journal.event(tx, "certificate.stranded", found.id)
        issuance_attempts.replan(tx, found, tx.now())
    return 0


ARI: Final = "ari"
ARI_PAGE: Final = 200
AGAIN: Final = timedelta(hours=6)  # where the CA gives no time, and after answers that are of no use
SOON: Final = timedelta(minutes=30)  # after one that did not come
AT_ONCE_FOR: Final = timedelta(hours=1)  # how long a job has before the scan would ask for it again
EARLIEST, LATEST = timedelta(minutes=1), timedelta(days=1)


@dataclass(frozen=True, slots=True)
class _Facts:
    current: Version
    issuer: IssuerRow


async def sweep_ari(context: CertificateContext) -> int:
    """Jobs for those that are to be asked about."""
    total = 0
    while True:
        new = [context.random.new_id("job") for _ in range(ARI_PAGE)]
        done = await context.db.write(lambda tx, new=new: _page(tx, new))  # type: ignore[misc]
        total += done
        if done < ARI_PAGE:
            return total


def _page(tx: Tx, new: list[str]) -> int:
    now = tx.now()
    due = certificates.to_ask(tx, now, limit=len(new))
    certificates.asked_later(tx, list(due), now + AT_ONCE_FOR)
    paid = _budgets(tx, {each for each in due.values() if each is not None})
    for (each, issuer), job in zip(due.items(), new, strict=False):
        keys = paid.get(issuer or "", ())
        jobs.owe(tx, Spec(id=job, kind=ARI, subject=each, priority=Priority.BACKGROUND, budgets=keys))
    return len(due)


def _budgets(tx: Tx, names: set[str]) -> dict[str, tuple[str, ...]]:
    """What a question costs at each CA: those of all certificates and replicas are counted together."""
    found: dict[str, tuple[str, ...]] = {}
    for row in issuers.named(tx, sorted(names)).values():
        limit = kinds.limits_of(row).requests
        if limit is not None:
            budgets.define_all(tx, {ca_limits.ari_key(row.name): limit})
            found[row.name] = (ca_limits.ari_key(row.name),)
    return found


def ari_kind(services: IssuanceServices) -> JobKind:
    """Jobs of this kind have a certificate as subject."""

    async def handler(work: Work) -> Outcome:
        facts = await services.certificate_context.db.read(lambda tx: _facts(tx, work.claim.subject))
        if facts is None:
            return Done(write=lambda tx: _set(tx, work.claim.subject, None, {"ari_ask_at": None}))
        try:
            issuer = await services.make_issuer(facts.issuer)
            work.check()
            if isinstance(issuer, KeepsAlive):
                await issuer.keep_alive()
            window = None
            if isinstance(issuer, TellsRenewalWindow):
                window = await issuer.renewal_window(_leaf(facts.current))
        except TryLater as why:
            rest = _rest(why)
            return Done(write=lambda tx: _away(tx, work.claim.subject, facts, rest))
        except Refused:
            return Done(write=lambda tx: _later(tx, work.claim.subject, facts, AGAIN))
        return Done(write=lambda tx: _keep(tx, work.claim.subject, facts.current, window))

    return JobKind(name=ARI, handler=handler, slots=8, interruptible=True)


def _facts(tx: Tx, certificate: str) -> _Facts | None:
    found = certificates.get(tx, certificate)
    if found is None or found.state is CertificateState.ARCHIVED or not found.wanted.rule.ari:
        return None
    current = versions.get(tx, found.current_version)
    issuer = None if current is None else issuers.get(tx, current.issuer)
    if current is None or issuer is None or current.not_after <= tx.now():
        return None
    return _Facts(current, issuer)


def _leaf(version: Version) -> bytes:
    return parse_bundle(version.chain_pem.encode())[0].public_bytes(Encoding.DER)


def _rest(why: TryLater) -> timedelta:
    rest = AGAIN if why.reason == Reason.CA_RATE_LIMITED else SOON
    return min(max(why.after or rest, rest), LATEST)


def _away(tx: Tx, certificate: str, facts: _Facts, rest: timedelta) -> None:
    """All questions to this CA rest: one that is away, or wants fewer of them, must not hear each of ten thousand."""
    budgets.hold(tx, ca_limits.ari_key(facts.issuer.name), tx.now() + rest)
    _later(tx, certificate, facts, rest)


def _later(tx: Tx, certificate: str, facts: _Facts, wait: timedelta) -> None:
    _set(tx, certificate, facts.current, {"ari_ask_at": tx.now() + wait})


def _set(tx: Tx, certificate: str, current: Version | None, changes: dict[str, object]) -> None:
    found = certificates.get(tx, certificate, lock=True)
    if found is not None and (current is None or found.current_version == current.id):
        certificates.save(tx, found, **changes)


def _keep(tx: Tx, certificate: str, current: Version, window: RenewalWindow | None) -> None:
    """Write the window down, and plan by it. An instant once picked stays, as long as the window does."""
    found = certificates.get(tx, certificate, lock=True)
    if found is None or found.current_version != current.id:
        return  # replaced meanwhile: that one is asked about by itself
    now = tx.now()
    if window is None or window.end <= window.start:
        certificates.save(tx, found, ari_ask_at=now + AGAIN)  # no answer: what it said before still counts
        return
    wait = min(max(timedelta(seconds=window.ask_again_after_s), EARLIEST), LATEST)
    ari = _picked(found.ari, window, current)
    if found.ari is not None and ari.start < found.ari.start:
        _tell_moved(tx, found, found.ari, ari)
    issuance_attempts.replan(tx, found, now, ari=ari, ari_ask_at=now + wait)


def _picked(before: Ari | None, window: RenewalWindow, current: Version) -> Ari:
    if before is not None and (before.start, before.end) == (_whole(window.start), _whole(window.end)):
        return Ari(start=before.start, end=before.end, pick=before.pick, explanation=window.explanation)
    start, end = _whole(window.start), _whole(window.end)
    return Ari(start=start, end=end, pick=renewal.pick(start, end, current.id), explanation=window.explanation)


def _whole(at: datetime) -> datetime:
    return at.replace(microsecond=0)


def _tell_moved(tx: Tx, found: Certificate, before: Ari, after: Ari) -> None:
    journal.event(
        tx,
        "ari.moved",
        found.id,
        alert=True,
        before=before.start.isoformat(),
        after=after.start.isoformat(),
        explanation=after.explanation or "",
    )
