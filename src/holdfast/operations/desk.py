"""What every ACME operation needs, and who may ask it for what."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import NamedTuple, Protocol, TypeVar

from holdfast.core.acme import AccountState
from holdfast.core.ca import Policy
from holdfast.core.problem import AcmeError
from holdfast.operations.authorities import Authorities
from holdfast.operations.handover import Handover
from holdfast.ports import Random
from holdfast.store import acme_accounts, journal
from holdfast.store.acme_accounts import Standing
from holdfast.store.database import Store
from holdfast.store.tx import Tx

T = TypeVar("T")


class Requester(NamedTuple):
    """Whose key verified a request. Each transaction looks again: keys are changed and accounts end meanwhile."""

    account: str
    thumbprint: str


class Changes:
    """A hint, within this process, that an order or an authorization moved on: saves clients a poll or two."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Event] = {}

    def fire(self, subject: str) -> None:
        event = self._waiting.pop(subject, None)
        if event is not None:
            event.set()

    async def wait(self, subject: str, seconds: float) -> bool:
        """Wait for a change at most so long; True if one came."""
        event = self._waiting.setdefault(subject, asyncio.Event())
        try:
            async with asyncio.timeout(seconds):
                return await event.wait()
        except TimeoutError:
            if self._waiting.get(subject) is event:
                del self._waiting[subject]
            return False


class Wants(Protocol):
    """Remembers what need not be durable, to be written later together with more of its kind."""

    def __call__(self, level: str, certificate: str, account: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    db: Store
    random: Random
    policy: Policy
    authorities: Authorities
    changes: Changes
    delivered: Wants
    handover: Handover


class _Told:
    """A store of which every change says where the wish came from, in the audit log."""

    def __init__(self, db: Store, origin: Mapping[str, str]) -> None:
        self._db, self._origin, self.wake = db, origin, db.wake

    async def read(self, fn: Callable[[Tx], T]) -> T:
        return await self._db.read(fn)

    async def write(self, fn: Callable[[Tx], T], *, key: str | None = None) -> T:
        def told(tx: Tx) -> T:
            with journal.coming_from(tx, self._origin):
                return fn(tx)

        return await self._db.write(told, key=key)


def coming_from(desk: Desk, origin: Mapping[str, str]) -> Desk:
    return replace(desk, db=_Told(desk.db, origin))


def require(tx: Tx, who: Requester) -> Standing:
    """The account that asks, if it is still valid and still has that key (RFC 8555 §7.3.6)."""
    standing = acme_accounts.standing(tx, who.account)
    if standing is None:
        raise AcmeError.account_does_not_exist("There is no such account.")
    if standing.state is not AccountState.VALID:
        raise AcmeError.unauthorized(f"The account is {standing.state}.", status=401)
    if standing.thumbprint != who.thumbprint:
        raise AcmeError.unauthorized("The account has another key by now.", status=401)
    return standing


def within(full: Mapping[str, timedelta], what: str) -> None:
    """Refuse if a limit was reached, and say when there is room again (§6.6)."""
    if full:
        seconds = int(max(full.values()).total_seconds()) + 1
        raise AcmeError.rate_limited(f"Too many {what}: try again in {seconds} s.", retry_after=seconds)
