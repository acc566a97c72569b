"""Requests signed with a key of our account that was changed meanwhile: they are signed again, and nobody notices."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from holdfast.issuers.acme_jws import Account
from holdfast.issuers.acme_reading import Place
from holdfast.issuers.acme_wire import Memory, Reply, Wire
from holdfast.pki.keys import PrivateKey
from holdfast.ports import Clock, Transport

NOT_BY_US: Final = ("malformed", "unauthorized")  # what CAs call a signature by another key than the account's

OtherKey = Callable[[Account], Awaitable[Account | None]]  # the account with another key than this one, if it has one


class FollowingWire(Wire):
    """A step that has its key in hand goes on while the key is changed, and must not count as refused."""

    def __init__(self, transport: Transport, clock: Clock, memory: Memory, place: Place, other: OtherKey) -> None:
        super().__init__(transport, clock, memory, place)
        self._other = other

    async def post(self, url: str, payload: Mapping[str, Any] | None, by: Account | PrivateKey, what: str) -> Reply:
        reply = await super().post(url, payload, by, what)
        if reply.word not in NOT_BY_US or not isinstance(by, Account) or (other := await self._other(by)) is None:
            return reply
        again = await super().post(url, payload, other, what)
        return reply if again.word in NOT_BY_US else again
