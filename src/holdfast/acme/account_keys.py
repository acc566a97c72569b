"""The keys of accounts, kept in memory: checking a signature needs no look at the store."""

from __future__ import annotations

from typing import Final

from holdfast.acme import jwk, jws
from holdfast.acme.jwk import AccountKey
from holdfast.acme.jws import Unverified
from holdfast.core.acme import AccountState
from holdfast.core.problem import AcmeError
from holdfast.operations import acme_accounts
from holdfast.operations.desk import Desk, Requester

KEPT: Final = 20_000


class AccountKeys:
    """What is kept may be out of date: every operation compares the key, and looks at the account's state, once more.

    A signature that the kept key did not make is therefore refused only after a look at the account as it is now.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._kept: dict[tuple[str, str], AccountKey] = {}

    async def check(self, ca: str, account: str, claim: Unverified) -> tuple[AccountKey, Requester]:
        """Whose request it is, if the account's key signed it."""
        key = self._kept.get((ca, account))
        if key is None or not key.verify(claim.alg, claim.signature, claim.signing_input):
            key = await self._looked_up(ca, account, claim)
        return key, Requester(account, key.thumbprint)

    def forget(self, ca: str, account: str) -> None:
        self._kept.pop((ca, account), None)

    async def _looked_up(self, ca: str, account: str, claim: Unverified) -> AccountKey:
        found = await acme_accounts.by_id(self._desk, ca, account)
        if found is None or found.jwk == "{}":  # an account of our own, which nobody can sign for
            raise AcmeError.account_does_not_exist("There is no such account.")
        key = jwk.deserialize(found.jwk)
        jws.check(claim, key)
        if found.state is not AccountState.VALID:  # §7.3.6
            raise AcmeError.unauthorized(f"The account is {found.state}.", status=401)
        if len(self._kept) >= KEPT:
            del self._kept[next(iter(self._kept))]  # the one that was learned first
        self._kept[ca, account] = key
        return key
