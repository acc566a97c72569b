"""ACME accounts of our CAs' clients, and the EAB keys that bind them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from holdfast.core.own_ca.acme import ACCOUNT_MOVES, Account, AccountState, EabKey, sources
from holdfast.store.rows import Table
from holdfast.store.tx import Row, Tx

TABLE: Final = Table(Account, "acme_accounts")


@dataclass(frozen=True, slots=True)
class AccountStatus:
    """What a transaction must know about the account that asks."""

    state: AccountState
    thumbprint: str
    names: tuple[str, ...]
    ca: str
    owner: str
    policies: bool  # whether there are any: without one, none is looked for
    ca_version: int  # of the settings of its CA


def insert(tx: Tx, account: Account) -> bool:
    """Add an account; False if its key has one already."""
    return tx.run(f"{TABLE.insert} ON CONFLICT (ca, thumbprint) DO NOTHING", **TABLE.values(account)) == 1


def get(tx: Tx, account: str) -> Account | None:
    row = tx.row(f"SELECT {TABLE.columns} FROM acme_accounts WHERE id = :id", id=account)
    return None if row is None else TABLE.read(row)


def by_key(tx: Tx, ca: str, thumbprint: str) -> Account | None:
    row = tx.row(
        f"SELECT {TABLE.columns} FROM acme_accounts WHERE ca = :ca AND thumbprint = :thumbprint",
        ca=ca,
        thumbprint=thumbprint,
    )
    return None if row is None else TABLE.read(row)


@dataclass(frozen=True, slots=True)
class KeyUse:
    """What else the key of a CSR is."""

    blocked: bool  # known to be compromised
    of_account: bool  # at whatever CA of ours


USE_OF_KEY: Final = """EXISTS (SELECT 1 FROM blocked_keys WHERE spki_sha256 = :spki_sha256) AS blocked,
    EXISTS (SELECT 1 FROM acme_accounts WHERE ca IN (SELECT id FROM cas) AND thumbprint = :thumbprint) AS of_account"""


def use_of_key(tx: Tx, spki_sha256: str, thumbprint: str) -> KeyUse:
    """By its two names."""
    return key_use(tx.rows(f"SELECT {USE_OF_KEY}", spki_sha256=spki_sha256, thumbprint=thumbprint)[0])


def key_use(row: Row) -> KeyUse:
    return KeyUse(blocked=bool(row["blocked"]), of_account=bool(row["of_account"]))


def standing(tx: Tx, account: str) -> AccountStatus | None:
    return standing_with(tx, account)[0]


_STANDING: Final = """acc.state AS acc_state, acc.thumbprint AS acc_thumbprint, acc.names AS acc_names,
    acc.ca AS acc_ca, acc.owner AS acc_owner, now_us() AS acc_now, EXISTS (SELECT 1 FROM policies) AS acc_policies,
    (SELECT version FROM cas WHERE cas.id = acc.ca) AS acc_ca_version"""


def standing_with(
    tx: Tx, account: str, columns: str = "", joined: str = "", **params: object
) -> tuple[AccountStatus | None, list[Row]]:
    """An account, and what it asks for, in one look: `joined` names it, in the way of a LEFT JOIN.

    If there is nothing of the kind, there is one row, whose columns are all NULL.
    """
    rows = tx.rows(
        f"""SELECT {_STANDING}{f", {columns}" if columns else ""} FROM acme_accounts acc
            {f"LEFT JOIN {joined.partition(' ORDER BY ')[0]}" if joined else ""}
            WHERE acc.id = :account {"".join(joined.partition(" ORDER BY ")[1:])}""",
        account=account,
        **params,
    )
    if not rows:
        return None, []
    tx.told_now(rows[0]["acc_now"])
    return _status(rows[0]), rows


def _status(row: Row) -> AccountStatus:
    return AccountStatus(
        state=AccountState(row["acc_state"]),
        thumbprint=row["acc_thumbprint"],
        names=tuple(json.loads(row["acc_names"])) if row["acc_names"] != "[]" else (),
        ca=row["acc_ca"],
        owner=row["acc_owner"],
        policies=bool(row["acc_policies"]),
        ca_version=row["acc_ca_version"],
    )


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
        f"""SELECT {TABLE.columns} FROM acme_accounts
             WHERE id > :after {"AND ca = :ca" if ca is not None else ""} ORDER BY id LIMIT :limit""",
        after=after,
        limit=limit,
        **({} if ca is None else {"ca": ca}),
    )
    return [TABLE.read(row) for row in rows]


EAB_TABLE: Final = Table(EabKey, "acme_eab_keys")


def insert_eab_key(tx: Tx, key: EabKey) -> None:
    tx.run(EAB_TABLE.insert, **EAB_TABLE.values(key))


def get_eab_key(tx: Tx, kid: str) -> EabKey | None:
    row = tx.row(f"SELECT {EAB_TABLE.columns} FROM acme_eab_keys WHERE kid = :kid", kid=kid)
    return None if row is None else EAB_TABLE.read(row)


def eab_key_page(tx: Tx, ca: str | None = None, *, after: str = "", limit: int = 100) -> list[EabKey]:
    rows = tx.rows(
        f"""SELECT {EAB_TABLE.columns} FROM acme_eab_keys
             WHERE kid > :after {"" if ca is None else "AND ca = :ca"} ORDER BY kid LIMIT :limit""",
        after=after,
        limit=limit,
        **({} if ca is None else {"ca": ca}),
    )
    return [EAB_TABLE.read(row) for row in rows]


def bind_eab_key(tx: Tx, kid: str, account: str) -> bool:
    """Give the key to its account; False if it is bound, revoked or expired by now."""
    changed = tx.run(
        """UPDATE acme_eab_keys SET account = :account
            WHERE kid = :kid AND account IS NULL AND revoked_at IS NULL
              AND (expires_at IS NULL OR expires_at > (SELECT now_us()))""",
        kid=kid,
        account=account,
    )
    return changed == 1


def revoke_eab_key(tx: Tx, kid: str) -> bool:
    """No account can be bound with it any more; False if that was so before."""
    return (
        tx.run("UPDATE acme_eab_keys SET revoked_at = now_us() WHERE kid = :kid AND revoked_at IS NULL", kid=kid) == 1
    )
