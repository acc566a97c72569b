"""Nonces that several replicas share: the keys that make them, and which of them were redeemed (PostgreSQL only).

Both tables are UNLOGGED: they cost no flush, and a crash of the server empties both. Nothing that was redeemed before
can be redeemed again, because the key that made it is gone as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from holdfast.store.tx import Tx, value_list

Redemption = Literal["first", "again", "key lost"]
LOT = 10_000  # rows deleted at a time


def keys(tx: Tx) -> dict[int, bytes]:
    rows = tx.rows("SELECT id, secret FROM acme_nonce_keys ORDER BY made_at, id")
    return {row["id"]: bytes(row["secret"]) for row in rows}


def add_key(tx: Tx, key: int, secret: bytes) -> None:
    """Unless there is one. Two replicas that start at once may each add theirs, and then use both."""
    tx.run(
        """INSERT INTO acme_nonce_keys (id, secret, made_at)
           SELECT :id, :secret, now_us() WHERE NOT EXISTS (SELECT 1 FROM acme_nonce_keys)
           ON CONFLICT DO NOTHING""",
        id=key,
        secret=secret,
    )


def redeem(tx: Tx, lot: Sequence[tuple[int, bytes]]) -> list[Redemption]:
    """Of all replicas that try, at whatever moment, one is first. Each nonce comes with the number of its key."""
    text, values = value_list(lot)
    rows = tx.rows(
        f"""INSERT INTO acme_nonces (raw, at)
            WITH lot (key, raw) AS ({text})
            SELECT raw, now_us() FROM lot WHERE EXISTS (SELECT 1 FROM acme_nonce_keys WHERE id = lot.key)
            ON CONFLICT DO NOTHING RETURNING raw""",
        **values,
    )
    added = {bytes(row["raw"]) for row in rows}
    known = keys(tx) if len(added) < len(lot) else {}
    outcomes = list[Redemption]()
    for key, raw in lot:
        outcomes.append("first" if raw in added else "again" if key in known else "key lost")
        added.discard(raw)
    return outcomes


def forget(tx: Tx, first: bytes, last: bytes) -> int:
    """Drop redeemed nonces between two: they begin with key and time, so these are the old ones of a key."""
    return tx.run(
        """DELETE FROM acme_nonces
            WHERE raw IN (SELECT raw FROM acme_nonces WHERE raw >= :first AND raw < :last ORDER BY raw LIMIT :lot)""",
        first=first,
        last=last,
        lot=LOT,
    )
