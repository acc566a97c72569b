"""A CA's breaker and the holds on its budgets, as the steps of an issuance find and leave them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from holdfast.core import breaker, ca_limits
from holdfast.store import budgets, issuances, issuers, journal
from holdfast.store.issuers import IssuerRow
from holdfast.store.tx import Tx

LONG: Final = timedelta(minutes=45)  # a CA that takes nothing for so long, as for want of quota: a person hears of it


def admit(tx: Tx, issuer: str, issuance: str) -> datetime | None:
    """None: go on. While a CA is down one probes it, and all others come back at a time, when it has found out."""
    row = issuers.get(tx, issuer, lock=True)
    if row is None:
        return None
    after, until = breaker.admit(row.breaker, issuance, tx.now())
    if after != row.breaker:
        issuers.save_breaker(tx, row.name, after)
    return until


def failed(tx: Tx, issuer: str, error: str) -> None:
    row = issuers.get(tx, issuer, lock=True)
    if row is None:
        return
    now, before = tx.now(), row.breaker
    after = breaker.failed(before, now, issuances.storable(error))
    issuers.save_breaker(tx, row.name, after)
    if after.open_at(now) and before.until is None:
        _tell_down(tx, row.name, after.error or "")


def succeeded(tx: Tx, row: IssuerRow) -> None:
    """It answers; `row` is as it was read, so that this costs nothing while all is well."""
    before = row.breaker
    if before == breaker.Breaker():
        return
    issuers.save_breaker(tx, row.name, breaker.succeeded(before))
    if before.until is not None:
        journal.audit(tx, "issuer_up", row.name)
        journal.event(tx, "issuer.up", row.name)


def _tell_down(tx: Tx, issuer: str, error: str) -> None:
    journal.audit(tx, "issuer_down", issuer, error=error)
    journal.event(tx, "issuer.down", issuer, error=error, alert=True)


def barred(tx: Tx, issuer: str, error: str) -> bool:
    """Our account is not let in. True: that is news."""
    row = issuers.get(tx, issuer, lock=True)
    if row is None:
        return True
    issuers.save_breaker(tx, row.name, breaker.barred(row.breaker, tx.now(), issuances.storable(error)))
    return not row.breaker.barred


def hold(tx: Tx, issuer: str, key: str, until: datetime, error: str) -> None:
    """Once for all that were under way when the CA said "too many": the first that is told counts."""
    now = tx.now()
    row = issuers.get(tx, issuer, lock=True)
    whole = key in (ca_limits.request_key(issuer), ca_limits.order_key(issuer))  # not about one domain or name only
    if whole and row is not None and not row.breaker.open_at(now):
        after = breaker.limited(row.breaker, now, until, issuances.storable(error))
        issuers.save_breaker(tx, issuer, after)
        until = after.until or until
        if row.breaker.until is None and until - now >= LONG:
            _tell_down(tx, issuer, after.error or "")
    budgets.hold(tx, key, until)
