"""What our CAs have signed: the intent before, the certificate after, its delivery and its end."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from holdfast.core.acme import Identifier
from holdfast.store.tx import Row, Tx, from_micros, instant, value_list

_COLUMNS = """id, ca, serial, order_id, account, profile, identifiers, der, spki_sha256, not_before, not_after, shard,
              issued_at, revoked_at, reason, replaced_by, delivery"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """A certificate that we signed."""

    id: str
    ca: str
    serial: str  # hex, as it is shown
    order: str
    account: str
    profile: str
    identifiers: tuple[Identifier, ...]
    der: bytes
    spki_sha256: str
    not_before: datetime
    not_after: datetime
    shard: int | None
    issued_at: datetime
    revoked_at: datetime | None = None
    reason: int | None = None
    replaced_by: str | None = None
    delivery: str = "offered"


# ── Before and after the signature ──


def intend(tx: Tx, order: str, ca: str, serial: str, intent: bytes) -> None:
    """Reserve the serial and write down what will be signed. Duplicate if either is taken."""
    tx.run(
        """INSERT INTO ca_issuances (order_id, ca, serial, intent, created_at)
           VALUES (:order, :ca, :serial, :intent, now_us())""",
        order=order,
        ca=ca,
        serial=serial,
        intent=intent,
    )


def intent_of(tx: Tx, order: str) -> bytes | None:
    row = tx.row("SELECT intent FROM ca_issuances WHERE order_id = :order", order=order)
    return None if row is None else bytes(row["intent"])


def tries(tx: Tx, order: str) -> tuple[list[dict[str, str]], datetime] | None:
    """The tries to sign that failed so far, and since when it is to be signed."""
    row = tx.row("SELECT tries, created_at FROM ca_issuances WHERE order_id = :order", order=order)
    return None if row is None else (list(json.loads(row["tries"])), from_micros(row["created_at"]))


def tried(tx: Tx, order: str, seen: Sequence[Mapping[str, str]]) -> None:
    tx.run("UPDATE ca_issuances SET tries = :tries WHERE order_id = :order", order=order, tries=json.dumps(seen))


def insert(tx: Tx, issued: Issued, now: datetime) -> bool:
    """Keep a certificate; False if this order has its certificate already: the first one counts."""
    added = tx.run(
        f"""INSERT INTO ca_certificates ({_COLUMNS})
            VALUES (:id, :ca, :serial, :order, :account, :profile, :identifiers, :der, :spki_sha256, :not_before,
                    :not_after, :shard, :issued_at, NULL, NULL, NULL, 'offered')
            ON CONFLICT DO NOTHING""",
        id=issued.id,
        ca=issued.ca,
        serial=issued.serial,
        order=issued.order,
        account=issued.account,
        profile=issued.profile,
        identifiers=json.dumps([(each.type, each.value) for each in issued.identifiers]),
        der=issued.der,
        spki_sha256=issued.spki_sha256,
        not_before=issued.not_before,
        not_after=issued.not_after,
        shard=issued.shard,
        issued_at=now,
    )
    return added == 1


# ── Finding ──


def get(tx: Tx, certificate: str) -> Issued | None:
    row = tx.row(f"SELECT {_COLUMNS} FROM ca_certificates WHERE id = :id", id=certificate)
    return None if row is None else _issued(row)


def by_serial(tx: Tx, ca: str, serial: str) -> Issued | None:
    row = tx.row(f"SELECT {_COLUMNS} FROM ca_certificates WHERE ca = :ca AND serial = :serial", ca=ca, serial=serial)
    return None if row is None else _issued(row)


def page(tx: Tx, *, ca: str, after: str = "", limit: int = 100) -> list[Issued]:
    rows = tx.rows(
        f"SELECT {_COLUMNS} FROM ca_certificates WHERE ca = :ca AND id > :after ORDER BY id LIMIT :limit",
        ca=ca,
        after=after,
        limit=limit,
    )
    return [_issued(row) for row in rows]


def good(tx: Tx, *, ca: str, account: str | None = None) -> int:
    """How many neither ended nor were revoked."""
    row = tx.row(
        f"""SELECT count(*) AS number FROM ca_certificates
             WHERE ca = :ca AND revoked_at IS NULL AND not_after > now_us()
                   {"" if account is None else "AND account = :account"}""",
        ca=ca,
        **({} if account is None else {"account": account}),
    )
    return 0 if row is None else int(row["number"])


# ── The end of a certificate ──


def revoke(tx: Tx, certificate: str, reason: int) -> bool:
    """Revoke it now; False if it was revoked before."""
    changed = tx.run(
        """UPDATE ca_certificates SET revoked_at = now_us(), reason = :reason
            WHERE id = :id AND revoked_at IS NULL""",
        id=certificate,
        reason=reason,
    )
    return changed == 1


def compromised(tx: Tx, certificate: str, reason: int) -> bool:
    """Give the worse reason to what is revoked; it has to be listed once more. False if it has that reason."""
    changed = tx.run(
        """UPDATE ca_certificates SET reason = :reason, listed_at = NULL
            WHERE id = :id AND revoked_at IS NOT NULL AND COALESCE(reason, 0) <> :reason""",
        id=certificate,
        reason=reason,
    )
    return changed == 1


def good_or_milder(tx: Tx, spki_sha256: str, reason: int) -> list[Issued]:
    """The certificates of a key that have not ended, and are not revoked for this reason yet."""
    rows = tx.rows(
        f"""SELECT {_COLUMNS} FROM ca_certificates
             WHERE spki_sha256 = :key AND not_after > now_us()
               AND (revoked_at IS NULL OR COALESCE(reason, 0) <> :reason)
             ORDER BY id""",
        key=spki_sha256,
        reason=reason,
    )
    return [_issued(row) for row in rows]


def replaced(tx: Tx, ca: str, serial: str, order: str | None) -> None:
    """Say which order replaces a certificate (RFC 9773 §5); None when that order failed."""
    tx.run(
        "UPDATE ca_certificates SET replaced_by = :order WHERE ca = :ca AND serial = :serial",
        ca=ca,
        serial=serial,
        order=order,
    )


def revoked(tx: Tx, ca: str, shard: int) -> list[Row]:
    """What a list of this shard may have to name."""
    return tx.rows(
        """SELECT id, serial, revoked_at, reason, not_after, listed_at FROM ca_certificates
            WHERE ca = :ca AND shard = :shard AND revoked_at IS NOT NULL ORDER BY id""",
        ca=ca,
        shard=shard,
    )


def block_key(tx: Tx, spki_sha256: str, why: str) -> None:
    tx.run(
        "INSERT INTO blocked_keys (spki_sha256, why, at) VALUES (:key, :why, now_us()) ON CONFLICT DO NOTHING",
        key=spki_sha256,
        why=why,
    )


def blocked(tx: Tx, spki_sha256: str) -> bool:
    return tx.row("SELECT 1 AS one FROM blocked_keys WHERE spki_sha256 = :key", key=spki_sha256) is not None


# ── Delivery: evidence, never a reason to delete ──

_RANK = "CASE delivery WHEN 'offered' THEN 0 WHEN 'fetched' THEN 1 WHEN 'acknowledged' THEN 2 ELSE 3 END"
LEVELS = ("offered", "fetched", "acknowledged", "deployed")


def deliver(tx: Tx, level: str, certificates: Iterable[tuple[str, str]]) -> None:
    """Raise certificates (with their accounts: nobody else can collect) to a level; it never sinks."""
    wanted = sorted(set(certificates))
    if not wanted:
        return
    text, values = value_list(wanted)
    tx.run(
        f"""UPDATE ca_certificates SET delivery = :level, {level}_at = now_us()
             WHERE (id, account) IN ({text}) AND {_RANK} < :rank""",
        level=level,
        rank=LEVELS.index(level),
        **values,
    )


def uncollected(tx: Tx, before: datetime, limit: int = 200) -> list[Issued]:
    """Certificates that nobody fetched since then, and of which nobody was told yet."""
    rows = tx.rows(
        f"""SELECT {_COLUMNS} FROM ca_certificates
             WHERE delivery = 'offered' AND alerted_at IS NULL AND issued_at < :before
             ORDER BY issued_at LIMIT :limit /* FOR UPDATE SKIP LOCKED */""",
        before=before,
        limit=limit,
    )
    return [_issued(row) for row in rows]


def alerted(tx: Tx, certificates: Sequence[str]) -> None:
    text, values = value_list([(each,) for each in certificates])
    tx.run(f"UPDATE ca_certificates SET alerted_at = now_us() WHERE id IN ({text})", **values)


def _issued(row: Row) -> Issued:
    return Issued(
        id=row["id"],
        ca=row["ca"],
        serial=row["serial"],
        order=row["order_id"],
        account=row["account"],
        profile=row["profile"],
        identifiers=tuple(Identifier(*each) for each in json.loads(row["identifiers"])),
        der=bytes(row["der"]),
        spki_sha256=row["spki_sha256"],
        not_before=from_micros(row["not_before"]),
        not_after=from_micros(row["not_after"]),
        shard=row["shard"],
        issued_at=from_micros(row["issued_at"]),
        revoked_at=instant(row["revoked_at"]),
        reason=row["reason"],
        replaced_by=row["replaced_by"],
        delivery=row["delivery"],
    )
