"""Gives our account at an ACME CA a new key; what was begun and left is finished by whoever asks that CA next."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Final

from holdfast.core.job import Again, Done, Outcome
from holdfast.engine.kind import Kind, Work
from holdfast.operations.account_keys import ACCOUNT_KEY
from holdfast.operations.issuing import Keeper
from holdfast.store import issuances, issuers
from holdfast.store.issuers import IssuerRow
from holdfast.store.tx import Tx

PATIENCE: Final = timedelta(minutes=10)
A_WHILE: Final = timedelta(seconds=20)

ChangeKey = Callable[[IssuerRow, str], Awaitable[None]]  # of the account there, if this is still its key


def kind(keeper: Keeper, change_key: ChangeKey) -> Kind:
    """Jobs of this kind have a CA as subject."""

    async def handler(work: Work) -> Outcome:
        row = await keeper.db.read(lambda tx: issuers.get(tx, work.claim.subject))
        if row is None:
            return Done()
        if await keeper.db.read(lambda tx: _better_later(tx, work)):
            return Again(after=A_WHILE, reason="PROOFS_UNDER_WAY")
        work.check()
        await change_key(row, work.claim.payload["old"])
        work.point("job.effect-done")
        return Done()

    return Kind(name=ACCOUNT_KEY, handler=handler, slots=1, timeout=timedelta(minutes=2))


def _better_later(tx: Tx, work: Work) -> bool:
    """Proofs are made of the account's key (RFC 8555 §8.1): those that the CA is about to look at would not be right.

    Where there are some at any time, it is done all the same: what fails by it is tried again.
    """
    asked_at = datetime.fromisoformat(work.claim.payload["asked_at"])
    return tx.now() < asked_at + PATIENCE and issuances.is_proving(tx, work.claim.subject)
