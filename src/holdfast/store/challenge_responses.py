"""What CAs will look for (http-01, tls-alpn-01): a row for each proof, answered by any replica, gone when done."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from holdfast.store.tx import Tx

PAGE: Final = 500


def put(tx: Tx, *, type: str, token: str, identifier: str, key_authorization: str) -> None:  # noqa: A002
    """Publish; saying so again is harmless."""
    tx.run(
        """INSERT INTO challenge_responses (type, token, identifier, key_authorization, created_at)
           VALUES (:type, :token, :identifier, :key_authorization, now_us())
           ON CONFLICT (type, token) DO UPDATE SET key_authorization = excluded.key_authorization,
              identifier = excluded.identifier""",
        type=type,
        token=token,
        identifier=identifier,
        key_authorization=key_authorization,
    )


def by_token(tx: Tx, type: str, token: str) -> str | None:  # noqa: A002
    """The key authorization that belongs to a token."""
    row = tx.row(
        "SELECT key_authorization FROM challenge_responses WHERE type = :type AND token = :token",
        type=type,
        token=token,
    )
    return None if row is None else str(row["key_authorization"])


def by_name(tx: Tx, type: str, identifier: str) -> str | None:  # noqa: A002
    """The newest key authorization for a name: for tls-alpn-01, which knows no token."""
    row = tx.row(
        """SELECT key_authorization FROM challenge_responses WHERE type = :type AND identifier = :identifier
            ORDER BY created_at DESC LIMIT 1""",
        type=type,
        identifier=identifier,
    )
    return None if row is None else str(row["key_authorization"])


def delete(tx: Tx, type: str, token: str) -> None:  # noqa: A002
    tx.run("DELETE FROM challenge_responses WHERE type = :type AND token = :token", type=type, token=token)


def forget_old(tx: Tx, before: datetime, limit: int = PAGE) -> int:
    return tx.run(
        """DELETE FROM challenge_responses WHERE (type, token) IN
                  (SELECT type, token FROM challenge_responses WHERE created_at < :before LIMIT :limit)""",
        before=before,
        limit=limit,
    )
