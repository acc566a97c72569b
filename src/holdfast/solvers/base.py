"""The contract of a solver: it puts a proof where a CA will look for it, and takes it away again.

Every call can be repeated, and by another replica: what it needs is in the proof. A solver raises TryLater or Refused,
reason SOLVER_FAILED; it does not wait, and it keeps nothing.
"""

from __future__ import annotations

from typing import Protocol

from holdfast.core.reasons import Reason
from holdfast.errors import Refused, TryLater
from holdfast.issuers.base import Proof


class Solver(Protocol):
    """One way to publish proofs of one type."""

    type: str  # http-01, dns-01 or tls-alpn-01
    side_by_side: bool  # whether several proofs may be published, or taken away, at the same time, each in a moment

    async def publish(self, proof: Proof) -> None:
        """Put it in place, beside others that may be there."""

    async def visible(self, proof: Proof) -> bool:
        """Whether the CA would find it now. Asked before the CA is told: a failed look costs us one of few tries."""

    async def clean(self, proof: Proof) -> None:
        """Take it away. What is not there any more is no problem."""


def not_now(why: str) -> TryLater:
    """Whatever went wrong: the CA has no part in it."""
    return TryLater(why, reason=Reason.SOLVER_FAILED)


def never(why: str) -> Refused:
    return Refused(why, reason=Reason.SOLVER_FAILED)
