"""Requests of an account that is not as it was: signed again if its key was changed, told apart if it was closed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from holdfast.core.reasons import Reason
from holdfast.errors import Refused
from holdfast.issuers import acme_account
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
        if reply.word not in NOT_BY_US or not isinstance(by, Account):
            return reply
        if (other := await self._other(by)) is not None:
            again = await super().post(url, payload, other, what)
            return reply if again.word in NOT_BY_US else again
        if reply.word == "unauthorized":
            await self._see_account(reply if url == by.url else None, by)
        return reply

    async def _see_account(self, reply: Reply | None, account: Account) -> None:
        """One that was closed is as good as forgotten: another is made. One that the CA has barred stays refused."""
        shown = reply or await super().post(account.url, None, account, "our account")
        if acme_account.standing(shown) == "deactivated":
            raise Refused(f"{self.place.name}: our account was deactivated there.", reason=Reason.ACCOUNT_GONE)
