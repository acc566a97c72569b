"""What a database had lost, put back from what replicas and audit files still know. Doing it twice changes nothing."""

from __future__ import annotations

from datetime import datetime

from holdfast.core.own_ca.ca import IssuedCertificate, RootCrl
from holdfast.core.witness import PublishedCrl
from holdfast.store.acme import orders
from holdfast.store.own_ca import certificates, crls
from holdfast.store.tx import Row, Tx


def put_back(tx: Tx, issued: IssuedCertificate) -> bool:
    """False if it is there. The order that led to it ends with it, if it is there and waits."""
    added = tx.run(f"{certificates.TABLE.insert} ON CONFLICT DO NOTHING", **certificates.TABLE.values(issued)) == 1
    if added:
        tx.together(orders.issued(issued.order, issued.id))
        tx.run("DELETE FROM known_serials WHERE ca = :ca AND serial = :serial AND revoked_at IS NULL",
               ca=issued.ca, serial=issued.serial)  # fmt: skip
    return added


def put_back_root_crl(tx: Tx, crl: RootCrl) -> bool:
    return crls.put_root_crl(tx, crl, told=False)


def raise_floor(tx: Tx, crl: PublishedCrl) -> None:
    """No list of this shard may have this number again, or a smaller one."""
    tx.run(
        """INSERT INTO crl_floors (ca, shard, number) VALUES (:ca, :shard, :number)
           ON CONFLICT (ca, shard) DO UPDATE SET number = excluded.number
            WHERE crl_floors.number < excluded.number""",
        ca=crl.ca,
        shard=crl.shard,
        number=crl.number,
    )


def floor(tx: Tx, ca: str, shard: int) -> int:
    """The largest number that is known to have been published, though its list is not here; 0 if there is none."""
    row = tx.row("SELECT number FROM crl_floors WHERE ca = :ca AND shard = :shard", ca=ca, shard=shard)
    return 0 if row is None else int(row["number"])


# ── Serials of which nothing else is known ──


def keep_serial(tx: Tx, ca: str, serial: str, source: str) -> bool:
    """Remember a certificate by its number, unless more is known of it. False if it was known."""
    changed = tx.run(
        """INSERT INTO known_serials (ca, serial, source, found_at)
           SELECT :ca, :serial, :source, now_us()
            WHERE NOT EXISTS (SELECT 1 FROM ca_certificates WHERE ca = :ca AND serial = :serial)
           ON CONFLICT DO NOTHING""",
        ca=ca,
        serial=serial,
        source=source,
    )
    return changed == 1


def serial_known(tx: Tx, ca: str, serial: str) -> Row | None:
    return tx.row(
        "SELECT serial, revoked_at, reason, source FROM known_serials WHERE ca = :ca AND serial = :serial",
        ca=ca,
        serial=serial,
    )


def revoke_serial(tx: Tx, ca: str, serial: str, reason: int, at: datetime) -> bool:
    """False if it is not known by its number, or is revoked for this reason already."""
    changed = tx.run(
        """UPDATE known_serials SET revoked_at = COALESCE(revoked_at, :at), reason = :reason
            WHERE ca = :ca AND serial = :serial AND (revoked_at IS NULL OR (:reason = 1 AND reason <> 1))""",
        ca=ca,
        serial=serial,
        reason=reason,
        at=at,
    )
    return changed == 1


def revoked_serials(tx: Tx, ca: str) -> list[Row]:
    """They are on every list of their CA: which shard they belong to is not known, and no client minds another's."""
    return tx.rows(
        """SELECT serial, revoked_at, reason FROM known_serials
            WHERE ca = :ca AND revoked_at IS NOT NULL ORDER BY serial""",
        ca=ca,
    )


def serials_known(tx: Tx) -> int:
    return int(tx.rows("SELECT COUNT(*) AS n FROM known_serials")[0]["n"])
