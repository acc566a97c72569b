"""Why a certificate is, or is not, renewed: now, at a time to come, and at one gone by, as far as that is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime, timedelta

from pydantic import BaseModel, Field

from holdfast.core import renewal, status
from holdfast.core.issuance import Issuance
from holdfast.core.kind import Trait
from holdfast.core.solver import Provable, unproved
from holdfast.errors import UserError
from holdfast.operations import kinds
from holdfast.operations.access import Action
from holdfast.operations.certificates.policies import violated_by
from holdfast.operations.certificates.refs import found_by
from holdfast.operations.certificates.views import CertificateRef, View, view_of
from holdfast.operations.context import Context
from holdfast.operations.inputs import Instant
from holdfast.operations.operation import operation
from holdfast.operations.scopes import certificate
from holdfast.store import issuances, issuers, versions
from holdfast.store.tx import Tx


class NotThen(UserError):
    status, code = 400, "not-there-then"

    def __init__(self, view: View) -> None:
        first = view.certificate.created_at + timedelta(seconds=1)  # whole seconds are shown: never one too early
        super().__init__(f"Certificate {view.certificate.name!r} was not there then: it came at {_instant(first)}.")
        self.hint = f"Ask about a time from then on, for example: --at {_instant(first)}"


class ExplanationRequest(CertificateRef):
    at: Instant | None = Field(default=None, description="At another time; now if left out.")


class CheckView(BaseModel):
    rule: str
    saw: str
    verdict: str
    blocks: bool


class ExplanationView(BaseModel):
    at: datetime
    verdict: str
    checks: list[CheckView]
    blocking: str | None
    would_change_it: str
    of_today: list[str] = Field(
        default=[], description="Asked about another time: facts of today that the answer uses, as no others are kept."
    )


@operation(
    "certificates.explain",
    "GET /certificates/{ref}/explain",
    command="explain",
    action=Action.SEE,
    scope=certificate(),
    example="holdfast explain www.example.com",
)
async def explain(ctx: Context, asked: ExplanationRequest) -> ExplanationView:
    """Explain why a certificate is, or is not, renewed: each rule in order, what it saw, and which one decides.

    `at` asks about another time: one to come, or one gone by, as far as its facts are kept.
    """
    known = await ctx.services.known_solvers()

    def read(tx: Tx) -> ExplanationView:
        view = view_of(tx, found_by(tx, asked.ref))
        found = _with_policy(tx, view, _explained(tx, view, asked.at))
        return _shown(found if known is None else _with_solvers(tx, view, found, known))

    return await ctx.read(read)


def _with_solvers(
    tx: Tx, view: View, found: status.StatusExplanation, known: Sequence[Provable]
) -> status.StatusExplanation:
    """A renewal that must fail is told before it is tried."""
    spec = view.certificate.wanted
    first = issuers.get(tx, spec.issuers[0])
    if first is None or not kinds.has(first, Trait.HAS_ACCOUNT):
        return found
    names = ", ".join(each.value for each in unproved(spec, known))
    if not names:
        return found
    saw = f"no solver here can prove {names}, as {first.name} asks"
    fix = "the next renewal fails until there is one: holdfast solver add --help"
    return replace(found, checks=(*found.checks, renewal.RenewalCheck(rule="solver", saw=saw, verdict=fix)))


def _with_policy(tx: Tx, view: View, found: status.StatusExplanation) -> status.StatusExplanation:
    """A violation stops nothing: it is told, so that its owner or an admin ends it."""
    bad = violated_by(tx, view.certificate.wanted)
    if bad is None:
        return found
    verdict = f"violates policy {bad.policy}, which was made later; it is renewed as before"
    return replace(found, checks=(renewal.RenewalCheck(rule="policy", saw=bad.why, verdict=verdict), *found.checks))


def _shown(found: status.StatusExplanation) -> ExplanationView:
    return ExplanationView(
        at=found.at,
        verdict=found.verdict,
        checks=[CheckView(**asdict(each)) for each in found.checks],
        blocking=found.blocking,
        would_change_it=found.would_change_it,
        of_today=list(found.of_today),
    )


def _explained(tx: Tx, view: View, at: datetime | None) -> status.StatusExplanation:
    if at is None:
        return view.explain()
    if at >= view.now:
        return replace(view.explain(at), of_today=status.UNTIL_THEN)
    return _before(tx, view, at)


def _before(tx: Tx, view: View, at: datetime) -> status.StatusExplanation:
    """By the version that was in use then, and with the issuance that was under way then."""
    if at < view.certificate.created_at:
        raise NotThen(view)
    then = versions.in_use_at(tx, view.certificate.id, at)
    was, current = status.as_it_was(view.certificate, then, at)
    found = status.explain(was, current, None, None, at)
    issuance = issuances.under_way_at(tx, view.certificate.id, at)
    if issuance is not None:
        found = _with_issuance(found, issuance)
    past = "Nothing: that time is over."
    return replace(found, would_change_it=past, of_today=status.taken_from_today(view.certificate, then))


def _with_issuance(found: status.StatusExplanation, issuance: Issuance) -> status.StatusExplanation:
    ended = "" if issuance.ended_at is None else f"; {issuance.state.value} at {_instant(issuance.ended_at)}"
    begun = f"because of {issuance.cause}, begun at {_instant(issuance.started_at)}"
    saw = f"{issuance.id} at {issuance.issuer}, {begun}{ended}"
    check = renewal.RenewalCheck(rule="issuance", saw=saw, verdict="it was under way")
    others = (replace(each, blocks=False) for each in found.checks)
    verdict = f"An issuance was under way{ended}."
    return replace(found, verdict=verdict, checks=(*others, check), blocking=None)


def _instant(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"
