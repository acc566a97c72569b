"""What a CA is to hear of and cannot now: it is told again for as long as that matters, and no attempt is used up."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from holdfast.core import backoff
from holdfast.core.job import Again, Claim
from holdfast.core.reasons import Reason
from holdfast.errors import TryLater
from holdfast.store import job_words

# The CA is away, or a person at it takes their time. Anything else is counted, as what lasts would be our own fault.
PASSING: Final = frozenset(
    {
        Reason.CA_DOWN, Reason.CA_TLS_FAILED, Reason.CA_RATE_LIMITED, Reason.CA_STILL_PENDING, Reason.ANSWER_MALFORMED,
    }
)  # fmt: skip


def passes(why: TryLater) -> bool:
    return why.reason in PASSING


def again(why: TryLater, claim: Claim, *, since: datetime, now: datetime) -> Again:
    """Once more later. What the CA said is kept where people look at the job."""
    wait = backoff.insisting_wait(now - since, why.after, key=f"{claim.id}@{now.isoformat()}")
    return Again(after=wait, reason=why.reason, write=lambda tx: job_words.keep(tx, claim.id, str(why)))
