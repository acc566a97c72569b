"""How many signed requests an account and an address may send: counted in memory, for each replica by itself.

A poll must not cost a write. What fills the disk is counted in the store, over all replicas.
"""

from __future__ import annotations

from collections import OrderedDict
from datetime import datetime, timedelta
from typing import Final

from holdfast.core.client import counted_as
from holdfast.core.own_ca.ca import CaPolicy, RateLimit
from holdfast.core.own_ca.problem import AcmeError
from holdfast.ports import Clock

REMEMBERED: Final = 20_000  # accounts and addresses; the one that was quiet for longest is forgotten


class RequestRates:
    """The time at which each bucket is empty again (GCRA), as the store has it for orders."""

    def __init__(self, policy: CaPolicy, clock: Clock) -> None:
        self._policy, self._clock = policy, clock
        self._empty_at: OrderedDict[str, datetime] = OrderedDict()

    def count_address(self, address: str) -> None:
        """Before anything is read: a signature costs more to check than to send."""
        if address:
            self._count(f"address/{counted_as(address)}", self._policy.requests_per_address, "from this address")

    def count_account(self, account: str) -> None:
        self._count(f"account/{account}", self._policy.requests_per_account, "of this account")

    def _count(self, key: str, rate: RateLimit, whose: str) -> None:
        if not rate.count:
            return
        now = self._clock.now()
        after = max(self._empty_at.get(key, now), now) + rate.span / rate.count
        wait = after - rate.span - now
        if wait > timedelta(0):
            seconds = int(wait.total_seconds()) + 1
            raise AcmeError.rate_limited(f"Too many requests {whose}: try again in {seconds} s.", retry_after=seconds)
        self._empty_at[key] = after
        self._empty_at.move_to_end(key)
        while len(self._empty_at) > REMEMBERED:
            self._empty_at.popitem(last=False)
