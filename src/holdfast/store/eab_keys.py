"""Keys for external account binding (RFC 8555 §7.3.4): each lets one account in, with the names given to it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from holdfast.store.tx import Row, Tx, from_micros, instant


@dataclass(frozen=True, slots=True, kw_only=True)
class EabKey:
    """What is known of a key, save for the key."""

    kid: str
    ca: str
    secret_id: str
    names: tuple[str, ...] = ()  # patterns; what its account gets without a challenge from a CA that trusts
    note: str = ""
    account: str | None = None  # bound once, for good
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None

    def usable_at(self, now: datetime) -> bool:
        """Whether an account may be bound with it now."""
        return self.account is None and self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


def insert(tx: Tx, key: EabKey) -> None:
    tx.run(
        """INSERT INTO acme_eab_keys (kid, ca, secret_id, names, note, created_at, expires_at)
           VALUES (:kid, :ca, :secret_id, :names, :note, :created_at, :expires_at)""",
        kid=key.kid,
        ca=key.ca,
        secret_id=key.secret_id,
        names=json.dumps(key.names),
        note=key.note,
        created_at=key.created_at,
        expires_at=key.expires_at,
    )


def get(tx: Tx, kid: str) -> EabKey | None:
    row = tx.row(f"SELECT {_COLUMNS} FROM acme_eab_keys WHERE kid = :kid", kid=kid)
    return None if row is None else _key(row)


def page(tx: Tx, ca: str | None = None, *, after: str = "", limit: int = 100) -> list[EabKey]:
    rows = tx.rows(
        f"""SELECT {_COLUMNS} FROM acme_eab_keys
             WHERE kid > :after {"" if ca is None else "AND ca = :ca"} ORDER BY kid LIMIT :limit""",
        after=after,
        limit=limit,
        **({} if ca is None else {"ca": ca}),
    )
    return [_key(row) for row in rows]


def bind(tx: Tx, kid: str, account: str) -> bool:
    """Give the key to its account; False if it is bound, revoked or expired by now."""
    changed = tx.run(
        """UPDATE acme_eab_keys SET account = :account
            WHERE kid = :kid AND account IS NULL AND revoked_at IS NULL
              AND (expires_at IS NULL OR expires_at > (SELECT now_us()))""",
        kid=kid,
        account=account,
    )
    return changed == 1


def revoke(tx: Tx, kid: str) -> bool:
    """No account can be bound with it any more; False if that was so before."""
    return (
        tx.run("UPDATE acme_eab_keys SET revoked_at = now_us() WHERE kid = :kid AND revoked_at IS NULL", kid=kid) == 1
    )


_COLUMNS: Final = "kid, ca, secret_id, names, note, account, created_at, expires_at, revoked_at"


def _key(row: Row) -> EabKey:
    return EabKey(
        kid=row["kid"],
        ca=row["ca"],
        secret_id=row["secret_id"],
        names=tuple(json.loads(row["names"])),
        note=row["note"],
        account=row["account"],
        created_at=from_micros(row["created_at"]),
        expires_at=instant(row["expires_at"]),
        revoked_at=instant(row["revoked_at"]),
    )
