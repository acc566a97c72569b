"""Our accounts at CAs, shared by all replicas; their keys are sealed secrets, kept before a CA hears of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from holdfast.store.tx import Row, Tx, from_micros

_COLUMNS = "id, issuer, directory, url, key_secret, new_key_secret, contacts, eab_kid, state, created_at"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountRow:
    id: str
    issuer: str
    directory: str
    url: str | None = None  # None until the CA has answered
    key_secret: str
    new_key_secret: str | None = None  # a change of key is under way: either may be the one that the CA knows
    contacts: tuple[str, ...] = ()
    eab_kid: str | None = None
    state: str = "creating"  # creating, valid, deactivated, gone
    created_at: datetime


def insert(tx: Tx, account: AccountRow) -> bool:
    """Begin one; False if there is one for this CA: use that."""
    added = tx.run(
        f"""INSERT INTO issuer_accounts ({_COLUMNS})
            VALUES (:id, :issuer, :directory, :url, :key_secret, :new_key_secret, :contacts, :eab_kid, :state,
                    :created_at) ON CONFLICT DO NOTHING""",
        id=account.id,
        issuer=account.issuer,
        directory=account.directory,
        url=account.url,
        key_secret=account.key_secret,
        new_key_secret=account.new_key_secret,
        contacts=json.dumps(account.contacts),
        eab_kid=account.eab_kid,
        state=account.state,
        created_at=account.created_at,
    )
    return added == 1


def current(tx: Tx, issuer: str, directory: str | None = None) -> AccountRow | None:
    """The account in use, perhaps not yet answered by the CA."""
    row = tx.row(
        f"""SELECT {_COLUMNS} FROM issuer_accounts
             WHERE issuer = :issuer AND state IN ('creating', 'valid')
               {"AND directory = :directory" if directory is not None else ""}
             ORDER BY created_at DESC LIMIT 1""",
        issuer=issuer,
        **({} if directory is None else {"directory": directory}),
    )
    return None if row is None else _account(row)


def of(tx: Tx, issuer: str) -> list[AccountRow]:
    rows = tx.rows(f"SELECT {_COLUMNS} FROM issuer_accounts WHERE issuer = :issuer ORDER BY created_at", issuer=issuer)
    return [_account(row) for row in rows]


def confirmed(tx: Tx, account: str, url: str) -> None:
    """The CA knows it, under this address."""
    tx.run("UPDATE issuer_accounts SET url = :url, state = 'valid' WHERE id = :id", id=account, url=url)


def ended(tx: Tx, account: str, state: str) -> None:
    """The CA forgot it (gone), or we gave it up (deactivated): the next order makes a new one."""
    tx.run("UPDATE issuer_accounts SET state = :state WHERE id = :id", id=account, state=state)


def told_contacts(tx: Tx, account: str, contacts: Sequence[str]) -> None:
    """The CA has heard of these addresses."""
    tx.run(
        "UPDATE issuer_accounts SET contacts = :contacts WHERE id = :id",
        id=account,
        contacts=json.dumps(list(contacts)),
    )


def changing_key(tx: Tx, account: str, old: str, new: str) -> bool:
    """Begin a change; False if one is under way, or the old key is not its key any more."""
    changed = tx.run(
        """UPDATE issuer_accounts SET new_key_secret = :new
            WHERE id = :id AND key_secret = :old AND new_key_secret IS NULL AND url IS NOT NULL""",
        id=account,
        old=old,
        new=new,
    )
    return changed == 1


def changed_key(tx: Tx, account: str, new: str) -> bool:
    """The CA took the new key; False if somebody wrote that down before."""
    changed = tx.run(
        """UPDATE issuer_accounts SET key_secret = new_key_secret, new_key_secret = NULL
            WHERE id = :id AND new_key_secret = :new""",
        id=account,
        new=new,
    )
    return changed == 1


def kept_key(tx: Tx, account: str, new: str) -> bool:
    """The CA refused the new key, and knows the old one."""
    changed = tx.run(
        "UPDATE issuer_accounts SET new_key_secret = NULL WHERE id = :id AND new_key_secret = :new", id=account, new=new
    )
    return changed == 1


def delete_of(tx: Tx, issuer: str) -> None:
    tx.run("DELETE FROM issuer_accounts WHERE issuer = :issuer", issuer=issuer)


def _account(row: Row) -> AccountRow:
    return AccountRow(
        id=row["id"],
        issuer=row["issuer"],
        directory=row["directory"],
        url=row["url"],
        key_secret=row["key_secret"],
        new_key_secret=row["new_key_secret"],
        contacts=tuple(json.loads(row["contacts"])),
        eab_kid=row["eab_kid"],
        state=row["state"],
        created_at=from_micros(row["created_at"]),
    )
