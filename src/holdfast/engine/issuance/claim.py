"""The services that jobs of issuances work with, and the facts that one claim reads from the store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from holdfast.core.certificate import Version
from holdfast.core.issuance import LOOKUP_FOR, Issuance, IssuanceState
from holdfast.core.issuance_steps import Beside, Facts, IssuerFacts, Previous
from holdfast.core.issuers.issuer import IssuerRow
from holdfast.core.key_kind import KeyKind
from holdfast.core.reasons import Reason
from holdfast.core.work.job import Claim
from holdfast.deployers.kind import AgentCalls
from holdfast.issuers.base import ChallengeResponse, Issuer
from holdfast.operations import kinds
from holdfast.operations.issuance import issuer_choice
from holdfast.operations.issuance.attempts import CertificateContext
from holdfast.pki import keys
from holdfast.pki.keys import PrivateKey
from holdfast.solvers.base import Solver
from holdfast.store import certificates, issuances, issuers, versions
from holdfast.store.tx import Tx
from holdfast.telemetry import Telemetry

MakeIssuer = Callable[[IssuerRow], Awaitable[Issuer]]
NewKey = Callable[[KeyKind], Awaitable[PrivateKey]]


@dataclass(frozen=True, slots=True)
class ChosenResponse:
    response: ChallengeResponse
    solver: Solver


class SolverFor(Protocol):
    """Which of a name's challenge responses is published, and by which solver; `only`: by none but this one."""

    def __call__(self, offers: Sequence[ChallengeResponse], only: str | None = None) -> ChosenResponse | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuanceServices:
    """What steps are made with."""

    certificate_context: CertificateContext
    make_issuer: MakeIssuer
    solver_for: SolverFor  # by the rules of the settings
    telemetry: Telemetry
    new_key: NewKey = keys.generate
    poll_windows: Mapping[str, timedelta] = field(default_factory=dict)  # by kind, where an issuer's row says nothing
    agents: AgentCalls | None = None  # how hosts are asked that make their own keys
    kept_solvers: Callable[[], Awaitable[SolverFor]] | None = None  # by the solvers of the store, which come first


def facts_of(tx: Tx, claim: Claim, poll_windows: Mapping[str, timedelta]) -> tuple[Facts, IssuerRow | None] | None:
    """What a claim begins with, and the row of its issuer; None if there is nothing to do."""
    issuance = issuances.get(tx, claim.subject)
    if issuance is None or issuance.state.over or issuance.state is IssuanceState.AWAITING_APPROVAL:
        return None
    certificate = certificates.get(tx, issuance.certificate)
    if certificate is None:
        return None
    current, row = versions.get(tx, certificate.current_version), issuers.get(tx, issuance.issuer)
    facts = Facts(
        issuance=issuance,
        certificate=certificate,
        current=current,
        issuer=_issuer_of(issuance, row, poll_windows),
        claim=claim,
        now=tx.now(),
        asked_before=issuance.asked_at,
        previous=previous_of(tx, issuance, current),
    )
    return facts, row


def _issuer_of(issuance: Issuance, row: IssuerRow | None, poll_windows: Mapping[str, timedelta]) -> IssuerFacts:
    if row is None:
        return IssuerFacts(name=issuance.issuer, known=False)
    own = timedelta(seconds=float(row.settings.get("poll_max_wait_seconds") or 0))
    return IssuerFacts(
        name=row.name,
        limits=kinds.limits_of(row),
        reckoned=kinds.requests_of(row, len(issuance.identifiers)),
        poll_window=own or poll_windows.get(row.kind, timedelta(0)),
        lookup_for=lookup_for(row),
        breaker=row.breaker,
    )


def lookup_for(row: IssuerRow) -> timedelta:
    """How long an order whose answer was lost is looked for."""
    return timedelta(seconds=float(row.settings.get("order_lookup_seconds", LOOKUP_FOR.total_seconds())))


def previous_of(tx: Tx, issuance: Issuance, last: Version | None) -> Previous:
    """What an attempt knows of the order of the certificate that it is to replace."""
    known = last is not None and last.issuance is not None and last.issuer == issuance.issuer
    found = issuances.order_of(tx, last.issuance or "") if known and last is not None else None
    if found is None:
        return Previous()
    ref, names = found
    return Previous(ref=ref, same_names={*names} == {*issuance.identifiers})


# ── After a setback ──


def beside_of(tx: Tx, facts: Facts) -> Beside:
    """What a setback is decided by as well, as it is now."""
    earlier = [each for each in issuances.of(tx, facts.certificate.id, limit=10) if each.id != facts.issuance.id]
    return Beside(
        ordered_before=_was_ordered(earlier, facts.issuance),
        begun_anew=bool(earlier) and earlier[0].reason == Reason.ACCOUNT_GONE,
        others=tuple(issuer_choice.others(tx, facts.certificate, facts.issuance.issuer, facts.now)),
    )


def _was_ordered(earlier: list[Issuance], issuance: Issuance) -> bool:
    """Whether an earlier attempt at this issuer ended with its order placed, and no person has acted since."""
    for each in earlier:
        if each.state is not IssuanceState.FAILED or each.generation != issuance.generation:
            return False
        if each.issuer == issuance.issuer and each.ref is not None:
            return True
    return False
