"""An account that a CA does not know any more is put away; what was begun with it is begun anew with another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.store import issuances, issuer_accounts, journal
from holdfast.store.tx import Tx


def ended(tx: Tx, issuer: str, url: str | None, why: str) -> None:
    """Of the account that was used: another replica may have made a new one meanwhile."""
    for account in issuer_accounts.of(tx, issuer):
        if account.url == url and url is not None and account.state == "valid":
            issuer_accounts.ended(tx, account.id, "gone")
            journal.audit(tx, "account_gone", issuer, account=account.id, url=url)
            journal.event(tx, "issuer.account_gone", issuer, url=url, error=issuances.storable(why))


def is_anothers(ref: Mapping[str, Any] | None, account: str | None) -> bool:
    """Whether an order was placed by an account that is not in use any more, and can see it no longer."""
    placed_by = None if ref is None else ref.get("account")
    return placed_by is not None and account is not None and placed_by != account
