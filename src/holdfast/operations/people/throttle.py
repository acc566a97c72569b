"""Tries to log in are counted before they are judged, by name and by address, by all replicas together."""

from __future__ import annotations

import hashlib
from datetime import datetime
from math import ceil

from holdfast.core.people import OF_ADDRESS, OF_NAME, Patience
from holdfast.errors import TxConflict, UserError
from holdfast.store import people
from holdfast.store.tx import Tx


class TooManyTries(UserError):
    status, code = 429, "too-many-tries"

    def __init__(self, after: float) -> None:
        wait = ceil(after)
        super().__init__(f"Too many log-ins failed. The next one is possible in {wait} s.")
        self.hint = "A passkey, or the log-in of your company, is not held up by this."
        self.after = after


def _of_name(name: str) -> str:
    """Hashed: what people type there by mistake may be a password."""
    return f"name:{hashlib.sha256(name.lower().encode()).hexdigest()}"


def _of_address(address: str) -> str:
    return f"address:{address}"


def count(tx: Tx, name: str, address: str) -> None:
    """Count one try. Raises TooManyTries where one has to wait; a try that comes too early costs no more."""
    _count(tx, _of_name(name), OF_NAME)
    count_address(tx, address)


def count_address(tx: Tx, address: str) -> None:
    """Where the name is not known."""
    _count(tx, _of_address(address), OF_ADDRESS)


def _count(tx: Tx, key: str, patience: Patience) -> None:
    before, now = people.failures_of(tx, key), tx.now()
    _refuse_early(None if before is None else before.refused_until, now)
    if not people.save_failures(tx, patience.after(before, key, now), before):
        raise TxConflict(f"another try of {key} came in between")


def _refuse_early(until: datetime | None, now: datetime) -> None:
    if until is not None and now < until:
        raise TooManyTries((until - now).total_seconds())


def forget(tx: Tx, name: str, address: str) -> None:
    """It was them. Of the address only this try is forgotten: with an account of their own, others could guess on."""
    people.forget_failures(tx, _of_name(name))
    people.uncount_failure(tx, _of_address(address))
