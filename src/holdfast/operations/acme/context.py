"""What every ACME operation needs: the context, the requester's rights, and the nonces that replicas share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final, NamedTuple, Protocol, TypeVar

from holdfast.core.own_ca.acme import AccountState
from holdfast.core.own_ca.ca import CaPolicy
from holdfast.core.own_ca.problem import AcmeError
from holdfast.operations.acme.handover import Handover
from holdfast.operations.own_ca.authorities import Authorities, Authority
from holdfast.ports import Random
from holdfast.store import journal
from holdfast.store.acme import accounts, nonces
from holdfast.store.acme.accounts import AccountStatus
from holdfast.store.acme.nonces import Redemption as Redemption
from holdfast.store.database import Store
from holdfast.store.marks import autocommit, no_fsync
from holdfast.store.own_ca import cas
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
class AcmeContext:
    db: Store
    random: Random
    policy: CaPolicy
    authorities: Authorities
    changes: Changes
    delivered: Wants
    handover: Handover
    closed: Callable[[], str] = lambda: ""  # why no request is taken now; empty if all are


class _OriginStore:
    """A store whose changes carry the origin of the request into the audit log."""

    def __init__(self, db: Store, origin: Mapping[str, str]) -> None:
        self._db, self._origin, self.wake = db, origin, db.wake

    async def read(self, fn: Callable[[Tx], T]) -> T:
        return await self._db.read(fn)

    async def write(self, fn: Callable[[Tx], T], *, key: str | None = None) -> T:
        def told(tx: Tx) -> T:
            with journal.coming_from(tx, self._origin):
                return fn(tx)

        return await self._db.write(told, key=key)


def coming_from(acme_context: AcmeContext, origin: Mapping[str, str]) -> AcmeContext:
    return replace(acme_context, db=_OriginStore(acme_context.db, origin))


def require(tx: Tx, who: Requester) -> AccountStatus:
    """The account that asks, if it is still valid and still has that key (RFC 8555 §7.3.6)."""
    return admitted(accounts.standing(tx, who.account), who)


def admitted(standing: AccountStatus | None, who: Requester, ca: Authority | None = None) -> AccountStatus:
    """Likewise, of an account that was just looked at; and, for what `ca` decides, if its settings are the newest."""
    if standing is not None and ca is not None and standing.ca_version != ca.version:
        raise CaOutdated(ca.id)
    if standing is None:
        raise AcmeError.account_does_not_exist("There is no such account.")
    if standing.state is not AccountState.VALID:
        raise AcmeError.unauthorized(f"The account is {standing.state}.", status=401)
    if standing.thumbprint != who.thumbprint:
        raise AcmeError.unauthorized("The account has another key by now.", status=401)
    return standing


class CaOutdated(Exception):
    """Another replica changed the CA since this one opened it; nothing was written."""


def require_current(tx: Tx, ca: Authority) -> None:
    """Refuse to decide by settings of before: a CA that was narrowed or closed is so on every replica at once."""
    if cas.version(tx, ca.id) != ca.version:
        raise CaOutdated(ca.id)


OPENED_ANEW: Final = 3  # times, for one request


async def by_current(acme_context: AcmeContext, ca: Authority, decide: Callable[[Authority], Awaitable[T]]) -> T:
    """Decide by the CA as it is now; it is opened anew if it was changed elsewhere."""
    for _ in range(OPENED_ANEW):
        try:
            return await decide(ca)
        except CaOutdated:
            await acme_context.authorities.refresh()
            ca = acme_context.authorities.get(ca.id) or ca
    raise AcmeError.server_internal("This CA is being changed, or cannot be opened here: try again.", status=503)


def within(full: Mapping[str, timedelta], what: str) -> None:
    """Refuse if a limit was reached, and say when there is room again (§6.6)."""
    if full:
        seconds = int(max(full.values()).total_seconds()) + 1
        raise AcmeError.rate_limited(f"Too many {what}: try again in {seconds} s.", retry_after=seconds)


NONCE_SECRET = 32  # octets


async def nonce_keys(db: Store, random: Random) -> dict[int, bytes]:
    """The keys that nonces are made with, the one to use first; made now if there is none."""
    found = await db.read(nonces.keys)
    if found:
        return found
    key, secret = int.from_bytes(random.token(4), "big"), random.token(NONCE_SECRET)

    def write(tx: Tx) -> dict[int, bytes]:
        nonces.add_key(tx, key, secret)
        return nonces.keys(tx)

    return await db.write(no_fsync(write))


async def redeem_nonces(db: Store, lot: Sequence[tuple[int, bytes]]) -> list[Redemption]:
    """Each with the number of the key that made it; one that is there twice is first once."""
    return await db.write(autocommit(lambda tx: nonces.redeem(tx, lot)))


async def forget_nonces(db: Store, first: bytes, last: bytes) -> int:
    """Drop redeemed nonces between these two, in lots."""
    gone = 0
    while lot := await db.write(no_fsync(lambda tx: nonces.forget(tx, first, last))):
        gone += lot
    return gone
