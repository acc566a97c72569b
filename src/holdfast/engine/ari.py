"""Asks CAs when they want their certificates renewed (RFC 9773), as often as they say, and keeps the answer."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from cryptography.hazmat.primitives.serialization import Encoding

from holdfast.core import ca_limits, renewal
from holdfast.core.certificate import Ari, Certificate, State, Version
from holdfast.core.job import Done, Outcome, Priority, Spec
from holdfast.core.reasons import Reason
from holdfast.engine.issue import Tools
from holdfast.engine.kind import Kind, Work
from holdfast.errors import Refused, TryLater
from holdfast.issuers.base import RenewalWindow
from holdfast.operations import issuing
from holdfast.operations.issuing import Keeper
from holdfast.pki.chain import parse_bundle
from holdfast.store import budgets, certificates, issuers, jobs, journal, versions
from holdfast.store.issuers import IssuerRow
from holdfast.store.tx import Tx

ARI: Final = "ari"
PAGE: Final = 200
AGAIN: Final = timedelta(hours=6)  # where the CA gives no time, and after answers that are of no use
SOON: Final = timedelta(minutes=30)  # after one that did not come
AT_ONCE_FOR: Final = timedelta(hours=1)  # how long a job has before the scan would ask for it again
EARLIEST, LATEST = timedelta(minutes=1), timedelta(days=1)


@dataclass(frozen=True, slots=True)
class _Facts:
    current: Version
    issuer: IssuerRow


async def sweep(keeper: Keeper) -> int:
    """Jobs for those that are to be asked about."""
    total = 0
    while True:
        new = [keeper.random.new_id("job") for _ in range(PAGE)]
        done = await keeper.db.write(lambda tx, new=new: _page(tx, new))  # type: ignore[misc]
        total += done
        if done < PAGE:
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
        limit = ca_limits.limits_of(row.kind, row.settings).requests
        if limit is not None:
            budgets.define_all(tx, {ca_limits.ari_key(row.name): limit})
            found[row.name] = (ca_limits.ari_key(row.name),)
    return found


def kind(tools: Tools) -> Kind:
    """Jobs of this kind have a certificate as subject."""

    async def handler(work: Work) -> Outcome:
        facts = await tools.keeper.db.read(lambda tx: _facts(tx, work.claim.subject))
        if facts is None:
            return Done(write=lambda tx: _set(tx, work.claim.subject, None, {"ari_ask_at": None}))
        try:
            issuer = await tools.make_issuer(facts.issuer)
            work.check()
            window = await issuer.renewal_window(_leaf(facts.current))
        except TryLater as why:
            rest = _rest(why)
            return Done(write=lambda tx: _away(tx, work.claim.subject, facts, rest))
        except Refused:
            return Done(write=lambda tx: _later(tx, work.claim.subject, facts, AGAIN))
        return Done(write=lambda tx: _keep(tx, work.claim.subject, facts.current, window))

    return Kind(name=ARI, handler=handler, slots=8, interruptible=True)


def _facts(tx: Tx, certificate: str) -> _Facts | None:
    found = certificates.get(tx, certificate)
    if found is None or found.state is State.ARCHIVED or not found.wanted.rule.ari:
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


def _set(tx: Tx, certificate: str, current: Version | None, changes: dict[str, Any]) -> None:
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
    issuing.replan(tx, found, now, ari=ari, ari_ask_at=now + wait)


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
