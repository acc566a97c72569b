"""Issuers with their breakers, and our accounts at them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from holdfast.core.issuers.issuer import AccountRow, IssuerAccountState, IssuerRow
from holdfast.store.remote_rows import BREAKER, RemoteRows
from holdfast.store.rows import SETTINGS, Part, Table
from holdfast.store.tx import Tx, instant

TABLE: Final = Table(
    IssuerRow, "issuers", codecs={"settings": SETTINGS, "credentials": SETTINGS}, parts={"breaker": Part(BREAKER)}
)
ROWS: Final = RemoteRows(TABLE, decided=("settings", "credentials", "state"))
insert, save, save_breaker, get, named, delete = (
    ROWS.insert, ROWS.save, ROWS.save_breaker, ROWS.get, ROWS.named, ROWS.delete,
)  # fmt: skip
all_issuers: Final = ROWS.all


def page(tx: Tx, *, after: str = "", limit: int) -> list[IssuerRow]:
    """In the order of their names."""
    rows = tx.rows(
        f"SELECT {TABLE.columns} FROM issuers WHERE name > :after ORDER BY name LIMIT :limit", after=after, limit=limit
    )
    return [TABLE.read(row) for row in rows]


def needed_by(tx: Tx, name: str, limit: int) -> list[str]:
    """Names of certificates that may come from it, or about which it is yet to be asked or told something."""
    rows = tx.rows(
        """SELECT name FROM certificates
            WHERE state <> 'archived' AND issuers LIKE :quoted
               OR id IN (SELECT certificate FROM issuances
                          WHERE issuer = :name
                            AND (ended_at IS NULL OR EXISTS (SELECT 1 FROM jobs WHERE jobs.kind = 'withdraw'
                                                                AND jobs.subject = issuances.id AND state <> 'dead')))
               OR id IN (SELECT certificate FROM certificate_versions
                          WHERE issuer = :name AND EXISTS (SELECT 1 FROM jobs WHERE jobs.kind = 'revoke'
                                                              AND jobs.subject = certificate_versions.id
                                                              AND jobs.state <> 'dead'))
            ORDER BY name LIMIT :limit""",
        name=name,
        quoted=f"%{json.dumps(name)}%",
        limit=limit,
    )
    return [row["name"] for row in rows]


def waiting_for(tx: Tx, name: str) -> tuple[int, str, datetime | None]:
    """How many certificates wait because this issuer is paused; of those the one that ends first, and when."""
    which = """FROM certificates WHERE next_cause = 'ISSUER_PAUSED' AND state = 'active'
                 AND REPLACE(issuers, :issuer, '') <> issuers"""
    rows = tx.rows(
        f"SELECT name, ends_at, COUNT(*) OVER () AS n {which} ORDER BY ends_at LIMIT 1", issuer=json.dumps(name)
    )
    return (0, "", None) if not rows else (int(rows[0]["n"]), rows[0]["name"], instant(rows[0]["ends_at"]))


ACCOUNTS: Final = Table(AccountRow, "issuer_accounts")


def insert_account(tx: Tx, account: AccountRow) -> bool:
    """Begin one; False if there is one for this CA: use that."""
    return tx.run(f"{ACCOUNTS.insert} ON CONFLICT DO NOTHING", **ACCOUNTS.values(account)) == 1


def current_account(tx: Tx, issuer: str, directory: str | None = None) -> AccountRow | None:
    """The account in use, perhaps not yet answered by the CA."""
    row = tx.row(
        f"""SELECT {ACCOUNTS.columns} FROM issuer_accounts
             WHERE issuer = :issuer AND state IN ('creating', 'valid')
               {"AND directory = :directory" if directory is not None else ""}
             ORDER BY created_at DESC LIMIT 1""",
        issuer=issuer,
        **({} if directory is None else {"directory": directory}),
    )
    return None if row is None else ACCOUNTS.read(row)


def accounts_of(tx: Tx, issuer: str) -> list[AccountRow]:
    rows = tx.rows(
        f"SELECT {ACCOUNTS.columns} FROM issuer_accounts WHERE issuer = :issuer ORDER BY created_at", issuer=issuer
    )
    return [ACCOUNTS.read(row) for row in rows]


def account_confirmed(tx: Tx, account: str, url: str) -> None:
    """The CA knows it, under this address."""
    tx.run("UPDATE issuer_accounts SET url = :url, state = 'valid' WHERE id = :id", id=account, url=url)


def account_ended(tx: Tx, account: str, state: IssuerAccountState) -> None:
    """The CA forgot it (gone), or we gave it up (deactivated): the next order makes a new one."""
    tx.run("UPDATE issuer_accounts SET state = :state WHERE id = :id", id=account, state=state)


def contacts_told(tx: Tx, account: str, contacts: Sequence[str]) -> None:
    """The CA has heard of these addresses."""
    tx.run(
        "UPDATE issuer_accounts SET contacts = :contacts WHERE id = :id",
        id=account,
        contacts=json.dumps(list(contacts)),
    )


def changing_account_key(tx: Tx, account: str, old: str, new: str) -> bool:
    """Begin a change; False if one is under way, or the old key is not its key any more."""
    changed = tx.run(
        """UPDATE issuer_accounts SET new_key_secret = :new
            WHERE id = :id AND key_secret = :old AND new_key_secret IS NULL AND url IS NOT NULL""",
        id=account,
        old=old,
        new=new,
    )
    return changed == 1


def changed_account_key(tx: Tx, account: str, new: str) -> bool:
    """The CA took the new key; False if that was recorded before."""
    changed = tx.run(
        """UPDATE issuer_accounts SET key_secret = new_key_secret, new_key_secret = NULL
            WHERE id = :id AND new_key_secret = :new""",
        id=account,
        new=new,
    )
    return changed == 1


def kept_account_key(tx: Tx, account: str, new: str) -> bool:
    """The CA refused the new key, and knows the old one."""
    changed = tx.run(
        "UPDATE issuer_accounts SET new_key_secret = NULL WHERE id = :id AND new_key_secret = :new", id=account, new=new
    )
    return changed == 1


def delete_accounts(tx: Tx, issuer: str) -> None:
    tx.run("DELETE FROM issuer_accounts WHERE issuer = :issuer", issuer=issuer)
