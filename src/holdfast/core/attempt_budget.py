"""What the claims of one issuance pay for, and what comes back of it when the CA cannot have counted it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from holdfast.core import ca_limits
from holdfast.core.attempt_facts import Facts
from holdfast.core.issuance import NOT_HANDED_IN, Issuance


@dataclass(frozen=True, slots=True)
class Payment:
    """What a claim took from budgets, and when."""

    taken: Mapping[str, timedelta]
    at: datetime | None

    def to_json(self) -> dict[str, Any]:
        """As it is kept with the job, as long as it may be given back."""
        taken = {key: each.total_seconds() for key, each in self.taken.items()}
        return {"taken": taken, "at": None if self.at is None else self.at.isoformat()}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Payment:
        taken = {key: timedelta(seconds=each) for key, each in raw.get("taken", {}).items()}
        return cls(taken, datetime.fromisoformat(raw["at"]) if raw.get("at") else None)


NOTHING = Payment({}, None)


def pays_for_lookup(facts: Facts) -> bool:
    """Whether this claim has paid for looking the order up; the next one will, if it has not."""
    key, paid, many = ca_limits.request_key(facts.issuer.name), facts.claim.budgets, facts.issuer.reckoned
    first = facts.issuance.asked_at is None or facts.claim.recheck  # a claim that is to recheck may not be put off
    return first or key not in paid or paid.count(key) >= many.order + many.lookup


def next_budgets(facts: Facts, after: Issuance) -> list[str]:
    """What the next claim pays for: an order that is placed is paid for, one that may be is looked for first."""
    paid, key, many = facts.claim.budgets, ca_limits.request_key(facts.issuance.issuer), facts.issuer.reckoned
    if key not in paid or not facts.issuer.known:
        return list(paid) if after.ref is None else []
    if after.ref is not None:
        return [key] * many.look
    others = [each for each in paid if each != key]
    return [*[key] * (many.order + (many.lookup if after.asked_at is not None else 0)), *others]


def remembered(facts: Facts) -> dict[str, Any] | None:
    """The payload of the job for its next claims: what may have to be given back for the certificate."""
    paid = _paid_for_certificate(facts)
    return {**facts.claim.payload, "paid": paid.to_json()} if paid.taken and facts.claim.paid else None


def refund(facts: Facts, *, gave_up: bool) -> Payment:
    """What was paid for and the CA cannot have counted: waiting for a CA must not use it up."""
    claim, issuance = facts.claim, facts.issuance
    if issuance.ref is None:
        unused = ca_limits.unused(claim.paid, issuance.issuer, facts.used, binding=facts.binding)
        return Payment(unused, claim.paid_at)
    if gave_up and issuance.state in NOT_HANDED_IN and not facts.binding:
        return _paid_for_certificate(facts)  # which no CA makes any more
    return NOTHING


def _paid_for_certificate(facts: Facts) -> Payment:
    """By this claim, or by the one that placed the order."""
    claim = facts.claim
    own = ca_limits.unused(claim.paid, facts.issuance.issuer, "an order perhaps", binding=False)
    return Payment(own, claim.paid_at) if own else Payment.from_json(claim.payload.get("paid") or {})
