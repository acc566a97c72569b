"""The contract of a solver: it puts a challenge response where a CA will look for it, and takes it away again.

Every call can be repeated, and by another replica: all that it needs is in the challenge response. A solver raises
TryLater or Refused, reason SOLVER_FAILED; it does not wait, and it keeps nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from holdfast.core.reasons import Reason
from holdfast.errors import Refused, TryLater
from holdfast.issuers.base import ChallengeResponse

Put = Callable[[ChallengeResponse], Awaitable[None]]  # keeps a challenge response where every replica serves it
Delete = Callable[[ChallengeResponse], Awaitable[None]]


class Solver(Protocol):
    """One way to publish challenge responses of one type."""

    type: str  # http-01, dns-01 or tls-alpn-01
    side_by_side: bool  # whether several responses may be published, or taken away, at the same time, each in a moment

    async def publish(self, response: ChallengeResponse) -> None:
        """Put it in place, beside others that may be there."""

    async def visible(self, response: ChallengeResponse) -> bool:
        """Whether the CA would find it now. Asked before the CA looks: a failed validation costs one of few tries."""

    async def clean(self, response: ChallengeResponse) -> None:
        """Take it away. A challenge response that is gone already is no error."""


def not_now(why: str) -> TryLater:
    """A failure of ours or of the DNS provider, for a later try: the CA has no part in it."""
    return TryLater(why, reason=Reason.SOLVER_FAILED)


def never(why: str) -> Refused:
    return Refused(why, reason=Reason.SOLVER_FAILED)
