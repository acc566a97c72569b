"""What clients may ask of our CAs: rates (GCRA, counted over all replicas), and names that are paused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from holdfast.core.own_ca.ca import RateLimit
from holdfast.store.tx import Tx, from_micros, instant, to_micros, value_list

_MICRO = timedelta(microseconds=1)


def take(tx: Tx, wanted: Mapping[str, RateLimit], now: datetime, *, cost: int = 1) -> dict[str, timedelta]:
    """Count `cost` against each of these. For those that are used up: how long until there is room again.

    What was counted is undone with the transaction, which the caller ends when it refuses.
    """
    at = to_micros(now)
    spans = {
        key: (cost * (rate.span // _MICRO) // rate.count, rate.span // _MICRO)
        for key, rate in wanted.items()
        if rate.count
    }
    if not spans:
        return {}
    text, values = value_list([(key, at + every, room) for key, (every, room) in sorted(spans.items())])
    taken = tx.rows(
        f"""INSERT INTO acme_limits (key, tat, room) {text}
            ON CONFLICT (key) DO UPDATE
               SET tat = CASE WHEN acme_limits.tat > :now THEN acme_limits.tat ELSE :now END + excluded.tat - :now,
                   room = excluded.room
             WHERE acme_limits.tat + excluded.tat - :now - :now <= excluded.room OR acme_limits.tat <= :now
            RETURNING key""",
        now=at,
        **values,
    )
    full = spans.keys() - {row["key"] for row in taken}
    return {key: _wait(tx, key, *spans[key], at) for key in sorted(full)}


def _wait(tx: Tx, key: str, every: int, room: int, now: int) -> timedelta:
    row = tx.row("SELECT tat FROM acme_limits WHERE key = :key", key=key)
    tat = now if row is None else int(row["tat"])
    return max(tat + every - room - now, 0) * _MICRO


def left(tx: Tx, key: str, rate: RateLimit, now: datetime) -> timedelta | None:
    """How long until there is room, without counting; None if there is room now."""
    if not rate.count:
        return None
    every, room = rate.span // _MICRO // rate.count, rate.span // _MICRO
    wait = _wait(tx, key, every, room, to_micros(now))
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


def succeeded(tx: Tx, account: str, name: str) -> None:
    tx.run("DELETE FROM acme_failures WHERE account = :account AND name = :name", account=account, name=name)


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


def paused_names(tx: Tx, account: str, names: Iterable[str]) -> dict[str, int]:
    """Those that are paused, each with the failures it is paused for; 0: an operator did it."""
    text, values = value_list([(name,) for name in names])
    rows = tx.rows(
        f"""SELECT name, failures FROM acme_failures
             WHERE account = :account AND paused_at IS NOT NULL AND name IN ({text}) ORDER BY name""",
        account=account,
        **values,
    )
    return {row["name"]: row["failures"] for row in rows}


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
