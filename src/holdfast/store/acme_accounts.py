"""ACME accounts: one for each key of a CA's clients."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from holdfast.core.acme import ACCOUNT_MOVES, Account, AccountState, sources
from holdfast.store.tx import Row, Tx, from_micros

_COLUMNS = "id, ca, thumbprint, jwk, state, contacts, eab_kid, eab, names, agreed_at, created_at"


@dataclass(frozen=True, slots=True)
class Standing:
    """What a transaction must know of whoever asks."""

    state: AccountState
    thumbprint: str
    names: tuple[str, ...]
    ca: str


def insert(tx: Tx, account: Account) -> bool:
    """Add an account; False if its key has one already."""
    added = tx.run(
        f"""INSERT INTO acme_accounts ({_COLUMNS})
            VALUES (:id, :ca, :thumbprint, :jwk, :state, :contacts, :eab_kid, :eab, :names, :agreed_at, :created_at)
            ON CONFLICT (ca, thumbprint) DO NOTHING""",
        id=account.id,
        ca=account.ca,
        thumbprint=account.thumbprint,
        jwk=account.jwk,
        state=account.state,
        contacts=json.dumps(account.contacts),
        eab_kid=account.eab_kid,
        eab=account.eab,
        names=json.dumps(account.names),
        agreed_at=account.created_at if account.agreed else None,
        created_at=account.created_at,
    )
    return added == 1


def get(tx: Tx, account: str) -> Account | None:
    row = tx.row(f"SELECT {_COLUMNS} FROM acme_accounts WHERE id = :id", id=account)
    return None if row is None else _account(row)


def by_key(tx: Tx, ca: str, thumbprint: str) -> Account | None:
    row = tx.row(
        f"SELECT {_COLUMNS} FROM acme_accounts WHERE ca = :ca AND thumbprint = :thumbprint",
        ca=ca,
        thumbprint=thumbprint,
    )
    return None if row is None else _account(row)


def has_key(tx: Tx, thumbprint: str) -> bool:
    """Whether an account has this key, at whatever CA of ours."""
    row = tx.row(
        "SELECT 1 AS one FROM acme_accounts WHERE ca IN (SELECT id FROM cas) AND thumbprint = :thumbprint",
        thumbprint=thumbprint,
    )
    return row is not None


def standing(tx: Tx, account: str) -> Standing | None:
    row = tx.row("SELECT state, thumbprint, names, ca, now_us() AS now FROM acme_accounts WHERE id = :id", id=account)
    if row is None:
        return None
    tx.told_now(row["now"])
    return Standing(AccountState(row["state"]), row["thumbprint"], _names(row), row["ca"])


def set_contacts(tx: Tx, account: str, contacts: tuple[str, ...]) -> None:
    tx.run("UPDATE acme_accounts SET contacts = :contacts WHERE id = :id", id=account, contacts=json.dumps(contacts))


def set_key(tx: Tx, account: str, *, old: str, jwk: str, thumbprint: str) -> bool:
    """Put another key in place of the old one. Duplicate if another account has it."""
    changed = tx.run(
        "UPDATE acme_accounts SET jwk = :jwk, thumbprint = :thumbprint WHERE id = :id AND thumbprint = :old",
        id=account,
        jwk=jwk,
        thumbprint=thumbprint,
        old=old,
    )
    return changed == 1


def end(tx: Tx, account: str, event: str) -> bool:
    """Deactivate or revoke it; False if that happened before."""
    before = AccountState.VALID
    changed = tx.run(
        "UPDATE acme_accounts SET state = :state WHERE id = :id AND state = :before",
        id=account,
        state=ACCOUNT_MOVES[before, event],
        before=sources(ACCOUNT_MOVES, event)[0],
    )
    return changed == 1


def page(tx: Tx, ca: str | None, *, after: str = "", limit: int = 100) -> list[Account]:
    """Accounts in the order of their ids, which is that of their making."""
    rows = tx.rows(
        f"""SELECT {_COLUMNS} FROM acme_accounts
             WHERE id > :after {"AND ca = :ca" if ca is not None else ""} ORDER BY id LIMIT :limit""",
        after=after,
        limit=limit,
        **({} if ca is None else {"ca": ca}),
    )
    return [_account(row) for row in rows]


def _names(row: Row) -> tuple[str, ...]:
    return tuple(json.loads(row["names"])) if row["names"] != "[]" else ()


def _account(row: Row) -> Account:
    created_at: datetime = from_micros(row["created_at"])
    plain: dict[str, Any] = {name: row[name] for name in ("id", "ca", "thumbprint", "jwk", "eab_kid", "eab")}
    return Account(
        **plain,
        state=AccountState(row["state"]),
        contacts=tuple(json.loads(row["contacts"])),
        names=_names(row),
        agreed=row["agreed_at"] is not None,
        created_at=created_at,
    )
