"""What our CAs have signed: the intent before, the certificate after, its delivery and its end."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from holdfast.core.own_ca.acme import OrderState
from holdfast.core.own_ca.ca import DeliveryLevel, IssuedCertificate
from holdfast.store.acme import accounts
from holdfast.store.acme.accounts import AccountStatus
from holdfast.store.rows import IDENTIFIERS_ONCE, Table
from holdfast.store.tx import Change, Row, Tx, change, from_micros, instant, value_list

TABLE: Final = Table(
    IssuedCertificate, "ca_certificates", columns={"order": "order_id"}, codecs={"identifiers": IDENTIFIERS_ONCE}
)


# ── Before and after the signature ──


def intention(order: str, ca: str, serial: str, intent: bytes) -> Change:
    """Reserve the serial and write down what will be signed. Duplicate if either is taken."""
    return change(
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


def insert(tx: Tx, issued: IssuedCertificate, now: datetime, *beside: Change) -> list[int]:
    """Keep a certificate, together with other changes; how many rows each changed. The first is 0 if this order has
    its certificate already: the first one counts."""
    kept = replace(issued, issued_at=now)
    counts = tx.together(change(f"{TABLE.insert} ON CONFLICT DO NOTHING", **TABLE.values(kept)), *beside)
    if counts[0]:
        tx.facts.append(kept)
    return counts


# ── Finding ──


def get(tx: Tx, certificate: str) -> IssuedCertificate | None:
    row = tx.row(f"SELECT {TABLE.columns} FROM ca_certificates WHERE id = :id", id=certificate)
    return None if row is None else TABLE.read(row)


def asked_by(tx: Tx, account: str, certificate: str) -> tuple[AccountStatus | None, IssuedCertificate | None]:
    """A certificate, and the account that asks for it, which may be another one's."""
    joined = "ca_certificates k ON k.id = :certificate"
    standing, rows = accounts.standing_with(tx, account, TABLE.of("k"), joined, certificate=certificate)
    return standing, TABLE.read(rows[0]) if rows and rows[0]["id"] is not None else None


def by_serial(tx: Tx, ca: str, serial: str) -> IssuedCertificate | None:
    row = tx.row(
        f"SELECT {TABLE.columns} FROM ca_certificates WHERE ca = :ca AND serial = :serial", ca=ca, serial=serial
    )
    return None if row is None else TABLE.read(row)


def with_serial(tx: Tx, serial: str, limit: int = 20) -> list[IssuedCertificate]:
    """What any of our CAs signed with this serial."""
    rows = tx.rows(
        f"SELECT {TABLE.columns} FROM ca_certificates WHERE serial = :serial ORDER BY id LIMIT :limit",
        serial=serial,
        limit=limit,
    )
    return [TABLE.read(row) for row in rows]


def page(tx: Tx, *, ca: str, after: str = "", limit: int = 100) -> list[IssuedCertificate]:
    rows = tx.rows(
        f"SELECT {TABLE.columns} FROM ca_certificates WHERE ca = :ca AND id > :after ORDER BY id LIMIT :limit",
        ca=ca,
        after=after,
        limit=limit,
    )
    return [TABLE.read(row) for row in rows]


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


def revoke(tx: Tx, certificate: str, reason: int, at: datetime) -> bool:
    """Revoke it as of this time; False if it was revoked before."""
    changed = tx.run(
        """UPDATE ca_certificates SET revoked_at = :at, reason = :reason
            WHERE id = :id AND revoked_at IS NULL""",
        id=certificate,
        at=at,
        reason=reason,
    )
    return changed == 1


def compromised(tx: Tx, certificate: str, reason: int) -> bool:
    """Give a revoked certificate the worse reason; it is put into a CRL once more. False if it has it already."""
    changed = tx.run(
        """UPDATE ca_certificates SET reason = :reason, listed_at = NULL
            WHERE id = :id AND revoked_at IS NOT NULL AND COALESCE(reason, 0) <> :reason""",
        id=certificate,
        reason=reason,
    )
    return changed == 1


def good_or_milder(tx: Tx, spki_sha256: str, reason: int) -> list[IssuedCertificate]:
    """The certificates of a key that have not ended, and are not revoked for this reason yet."""
    rows = tx.rows(
        f"""SELECT {TABLE.columns} FROM ca_certificates
             WHERE spki_sha256 = :key AND not_after > now_us()
               AND (revoked_at IS NULL OR COALESCE(reason, 0) <> :reason)
             ORDER BY id""",
        key=spki_sha256,
        reason=reason,
    )
    return [TABLE.read(row) for row in rows]


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

_RANKS: Final = " ".join(f"WHEN '{each}' THEN {rank}" for rank, each in enumerate(DeliveryLevel))


def deliver(tx: Tx, level: DeliveryLevel, certificates: Iterable[tuple[str, str]]) -> None:
    """Raise certificates (with their accounts: no other can collect) to a level; it never sinks."""
    wanted = sorted(set(certificates))
    if not wanted:
        return
    text, values = value_list(wanted)
    tx.run(
        f"""UPDATE ca_certificates SET delivery = :level, {level.value}_at = now_us()
             WHERE (id, account) IN ({text}) AND CASE delivery {_RANKS} END < :rank""",
        level=level,
        rank=list(DeliveryLevel).index(level),
        **values,
    )


def deliver_version(tx: Tx, level: DeliveryLevel, serial: str, spki_sha256: str) -> None:
    """Likewise for a version that was deployed; one that no CA of ours signed has no such row."""
    rows = tx.rows(
        "SELECT id, account FROM ca_certificates WHERE spki_sha256 = :key AND serial = :serial",
        key=spki_sha256,
        serial=serial,
    )
    deliver(tx, level, [(row["id"], row["account"]) for row in rows])


def uncollected(tx: Tx, before: datetime, limit: int = 200) -> list[IssuedCertificate]:
    """Certificates that were not fetched since then, and without an alert so far."""
    rows = tx.rows(
        f"""SELECT {TABLE.columns} FROM ca_certificates
             WHERE delivery = 'offered' AND alerted_at IS NULL AND issued_at < :before
             ORDER BY issued_at LIMIT :limit /* FOR UPDATE SKIP LOCKED */""",
        before=before,
        limit=limit,
    )
    return [TABLE.read(row) for row in rows]


def alerted(tx: Tx, certificates: Sequence[str]) -> None:
    text, values = value_list([(each,) for each in certificates])
    tx.run(f"UPDATE ca_certificates SET alerted_at = now_us() WHERE id IN ({text})", **values)


LISTENER_CERTIFICATES_KEPT: Final = 10  # for each host; older ones are forgotten, with their keys


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerCertificate:
    """An order of the listener; the fields about its certificate are empty until there is one."""

    order: str
    host: str
    key_secret: str
    created_at: datetime
    state: OrderState
    ca: str
    account: str
    certificate: str | None = None
    der: bytes = b""
    not_before: datetime | None = None
    not_after: datetime | None = None
    revoked: bool = False


def insert_for_listener(tx: Tx, *, order: str, host: str, key_secret: str) -> None:
    tx.run(
        """INSERT INTO listener_certificates (order_id, host, key_secret, created_at)
           VALUES (:order, :host, :key_secret, now_us())""",
        order=order,
        host=host,
        key_secret=key_secret,
    )


def newest_for_listener(tx: Tx, host: str) -> list[ListenerCertificate]:
    """The last few orders for a host, the newest first."""
    rows = tx.rows(
        """SELECT l.order_id, l.host, l.key_secret, l.created_at, o.state, o.ca, o.account,
                  c.id AS certificate, c.der, c.not_before, c.not_after, c.revoked_at
             FROM listener_certificates l JOIN acme_orders o ON o.id = l.order_id
             LEFT JOIN ca_certificates c ON c.order_id = l.order_id
            WHERE l.host = :host ORDER BY l.created_at DESC, l.order_id DESC LIMIT :limit""",
        host=host,
        limit=LISTENER_CERTIFICATES_KEPT,
    )
    return [_ordered(row) for row in rows]


def forget_old_for_listener(tx: Tx, host: str) -> list[str]:
    """Drop all but the last few; the ids of their keys come back, to be deleted, too."""
    rows = tx.rows(
        """DELETE FROM listener_certificates WHERE host = :host AND order_id NOT IN
                  (SELECT order_id FROM listener_certificates WHERE host = :host
                    ORDER BY created_at DESC, order_id DESC LIMIT :limit)
           RETURNING key_secret""",
        host=host,
        limit=LISTENER_CERTIFICATES_KEPT,
    )
    return [row["key_secret"] for row in rows]


def _ordered(row: Row) -> ListenerCertificate:
    return ListenerCertificate(
        order=row["order_id"],
        host=row["host"],
        key_secret=row["key_secret"],
        created_at=from_micros(row["created_at"]),
        state=OrderState(row["state"]),
        ca=row["ca"],
        account=row["account"],
        certificate=row["certificate"],
        der=b"" if row["der"] is None else bytes(row["der"]),
        not_before=instant(row["not_before"]),
        not_after=instant(row["not_after"]),
        revoked=row["revoked_at"] is not None,
    )


def levels(tx: Tx, ca: str, *, since: datetime) -> list[tuple[str, int, datetime | None]]:
    """How many certificates that a CA issued since then are at each level of delivery, and the oldest of each."""
    rows = tx.rows(
        """SELECT delivery, COUNT(*) AS n, MIN(issued_at) AS oldest FROM ca_certificates
            WHERE ca = :ca AND issued_at > :since GROUP BY delivery""",
        ca=ca,
        since=since,
    )
    found = {row["delivery"]: (int(row["n"]), from_micros(row["oldest"])) for row in rows}
    return [(each.value, *found.get(each.value, (0, None))) for each in DeliveryLevel]


def valid(tx: Tx, ca: str, now: datetime) -> int:
    """How many certificates of a CA are neither expired nor revoked."""
    rows = tx.rows(
        "SELECT COUNT(*) AS n FROM ca_certificates WHERE ca = :ca AND revoked_at IS NULL AND not_after > :now",
        ca=ca,
        now=now,
    )
    return int(rows[0]["n"])
