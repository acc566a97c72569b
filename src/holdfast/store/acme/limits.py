"""What clients may ask of our CAs: rates (GCRA, counted over all replicas), and names that are paused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType

from holdfast.core.own_ca.ca import RateLimit
from holdfast.store.tx import Change, Row, Tx, change, from_micros, instant, to_micros, value_list

_MICRO = timedelta(microseconds=1)
# How an authorization `a` that was proved, and not only trusted, can be told.
PROVED = "EXISTS (SELECT 1 FROM acme_challenges c WHERE c.authz_id = a.id AND c.state = 'valid')"


def take(
    tx: Tx, wanted: Mapping[str, RateLimit], now: datetime, *, costs: Mapping[str, int] = MappingProxyType({})
) -> dict[str, timedelta]:
    """Count 1, or what `costs` says, against each of these. For those that are used up: how long until there is room.

    What was counted is undone with the transaction, which the caller ends when it refuses.
    """
    at, spans = to_micros(now), _spans(wanted, costs)
    if not spans:
        return {}
    counting = taking(wanted, now, costs=costs)[0]
    taken = tx.rows(f"{counting.sql} RETURNING key", **counting.params)
    full = spans.keys() - {row["key"] for row in taken}
    return {key: _wait(tx, key, *spans[key], at) for key in sorted(full)}


def taking(
    wanted: Mapping[str, RateLimit], now: datetime, *, costs: Mapping[str, int] = MappingProxyType({})
) -> list[Change]:
    """The same, together with other changes: it changes fewer rows than are `counted` if one is used up; then `take`
    says which. Empty if nothing is limited."""
    at, spans = to_micros(now), _spans(wanted, costs)
    if not spans:
        return []
    text, values = value_list([(key, at + every, room) for key, (every, room) in sorted(spans.items())])
    sql = f"""INSERT INTO acme_limits (key, tat, room) {text}
            ON CONFLICT (key) DO UPDATE
               SET tat = CASE WHEN acme_limits.tat > :now THEN acme_limits.tat ELSE :now END + excluded.tat - :now,
                   room = excluded.room
             WHERE acme_limits.tat + excluded.tat - :now - :now <= excluded.room OR acme_limits.tat <= :now"""
    return [change(sql, now=at, **values)]


def counted(wanted: Mapping[str, RateLimit]) -> int:
    """How many of these are limits at all."""
    return sum(1 for rate in wanted.values() if rate.count)


def _spans(wanted: Mapping[str, RateLimit], costs: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """What each is charged, and its room, in microseconds."""
    return {
        key: (costs.get(key, 1) * (rate.span // _MICRO) // rate.count, rate.span // _MICRO)
        for key, rate in wanted.items()
        if rate.count
    }


def _wait(tx: Tx, key: str, every: int, room: int, now: int) -> timedelta:
    row = tx.row("SELECT tat FROM acme_limits WHERE key = :key", key=key)
    tat = now if row is None else int(row["tat"])
    return max(tat + every - room - now, 0) * _MICRO


def left(tat: int | None, rate: RateLimit, now: datetime) -> timedelta | None:
    """How long until there is room, by a row that was read; None if there is room now."""
    if not rate.count or tat is None:
        return None
    every, room = rate.span // _MICRO // rate.count, rate.span // _MICRO
    wait = (tat + every - room - to_micros(now)) * _MICRO
    return wait if wait > timedelta(0) else None


def forget(tx: Tx, now: datetime, limit: int = 5000) -> int:
    """Drop buckets that are empty again: they say nothing."""
    return tx.run(
        "DELETE FROM acme_limits WHERE key IN (SELECT key FROM acme_limits WHERE tat < :now LIMIT :limit)",
        now=now,
        limit=limit,
    )


# ── Names that keep failing ──


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    account: str
    name: str
    failures: int
    last_at: datetime
    paused_at: datetime | None


def failed(tx: Tx, account: str, name: str, pause_after: int) -> bool:
    """Count a failure; True if it paused the name just now."""
    row = tx.row(
        """INSERT INTO acme_failures (account, name, failures, last_at) VALUES (:account, :name, 1, now_us())
           ON CONFLICT (account, name) DO UPDATE SET last_at = now_us(), failures = acme_failures.failures
                  + CASE WHEN acme_failures.paused_at IS NULL THEN 1 ELSE 0 END
           RETURNING failures, paused_at""",
        account=account,
        name=name,
    )
    if row is None or not pause_after or row["failures"] < pause_after or row["paused_at"] is not None:
        return False
    tx.run(
        "UPDATE acme_failures SET paused_at = now_us() WHERE account = :account AND name = :name",
        account=account,
        name=name,
    )
    return True


def succeeded(account: str, name: str) -> Change:
    return change("DELETE FROM acme_failures WHERE account = :account AND name = :name", account=account, name=name)


def pause(tx: Tx, account: str, name: str) -> None:
    """By an operator: for no failures, which is how it can be told from the other kind."""
    tx.run(
        """INSERT INTO acme_failures (account, name, failures, last_at, paused_at)
           VALUES (:account, :name, 0, now_us(), now_us())
           ON CONFLICT (account, name) DO UPDATE SET paused_at = now_us(), failures = 0""",
        account=account,
        name=name,
    )


def unpause(tx: Tx, account: str, name: str) -> bool:
    """Start afresh: counters too. False if it was not paused."""
    changed = tx.run(
        "DELETE FROM acme_failures WHERE account = :account AND name = :name AND paused_at IS NOT NULL",
        account=account,
        name=name,
    )
    return changed == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What is on record about an account, an address and names that are asked for."""

    paused: Mapping[str, int]  # names, each with the failures it is paused for; 0: an operator did it
    failed: Mapping[str, int]  # names that failed lately: until when that counts, in microseconds
    pending_of_account: int  # names that wait to be proved
    pending_from_address: int
    valid: Sequence[Row]  # authorizations of these names that may be used again, the freshest last


def failure_key(account: str, name: str) -> str:
    return f"failed/{account}/{name}"


def record(
    tx: Tx, account: str, address: str, names: Iterable[str], *, until: datetime, trusted: bool = False
) -> Record:
    """In one look: an order waits for it. Authorizations count if they last until then; `trusted`: also those that a CA
    once believed without a challenge."""
    text, values = value_list([(name, failure_key(account, name)) for name in dict.fromkeys(names)])
    rows = tx.rows(
        f"""WITH asked (name, key) AS ({text})
            SELECT asked.name, f.failures, f.paused_at, l.tat, a.id, a.type, a.value, a.wildcard, a.expires_at,
                   (SELECT COUNT(*) FROM acme_authzs WHERE account = :account AND state = 'pending') AS of_account,
                   (SELECT COUNT(*) FROM acme_authzs WHERE address = :address AND address <> '' AND state = 'pending')
                   AS from_address
              FROM asked LEFT JOIN acme_failures f ON f.account = :account AND f.name = asked.name
                         LEFT JOIN acme_limits l ON l.key = asked.key
                         LEFT JOIN acme_authzs a ON a.account = :account AND a.value = asked.name
                                   AND a.state = 'valid' AND a.expires_at > :until {"" if trusted else f"AND {PROVED}"}
             ORDER BY a.expires_at""",
        account=account,
        until=until,
        address=address,
        **values,
    )
    return Record(
        paused={row["name"]: row["failures"] for row in rows if row["paused_at"] is not None},
        failed={row["name"]: row["tat"] for row in rows if row["tat"] is not None},
        pending_of_account=rows[0]["of_account"],
        pending_from_address=rows[0]["from_address"],
        valid=[row for row in rows if row["id"] is not None],
    )


def pauses(tx: Tx, *, after: tuple[int, str, str] | None = None, limit: int = 500) -> list[Pause]:
    """The longest paused first, from after a place_of on."""
    at, account, name = after or (-1, "", "")
    rows = tx.rows(
        """SELECT account, name, failures, last_at, paused_at FROM acme_failures
            WHERE paused_at IS NOT NULL AND (paused_at, account, name) > (:at, :account, :name)
            ORDER BY paused_at, account, name LIMIT :limit""",
        at=at,
        account=account,
        name=name,
        limit=limit,
    )
    return [
        Pause(
            account=row["account"],
            name=row["name"],
            failures=row["failures"],
            last_at=from_micros(row["last_at"]),
            paused_at=instant(row["paused_at"]),
        )
        for row in rows
    ]


def place_of(pause: Pause) -> tuple[int, str, str]:
    return (0 if pause.paused_at is None else to_micros(pause.paused_at), pause.account, pause.name)
