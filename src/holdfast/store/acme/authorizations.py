"""ACME authorizations and their challenges."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from holdfast.core.own_ca.acme import (
    AUTHZ_MOVES,
    CHALLENGE_MOVES,
    Authz,
    AuthzState,
    Challenge,
    ChallengeState,
    Identifier,
    sources,
)
from holdfast.core.own_ca.problem import Problem
from holdfast.store.rows import Table
from holdfast.store.tx import Row, Tx, from_micros, to_micros, value_list
from holdfast.store.work import jobs

PAGE = 200
CHALLENGES: Final = Table(Challenge, "acme_challenges", columns={"authz": "authz_id"})


def insert(tx: Tx, authzs: Sequence[Authz], now: datetime, *, address: str = "") -> None:
    """Add authorizations with their challenges, one statement for all of each; a trusted one is born valid.

    `address`: under which name those that ask from there are counted.
    """
    if not authzs:
        return
    text, values = value_list(
        [
            (each.id, each.account, each.identifier.type, each.identifier.value, each.wildcard, each.state.value,
             to_micros(each.expires_at), to_micros(now) if each.state is AuthzState.VALID else 0, address)
            for each in authzs
        ]
    )  # fmt: skip
    tx.run(
        f"""INSERT INTO acme_authzs (id, account, type, value, wildcard, state, expires_at, proved_at, address)
            {text}""",
        **values,
    )
    rows = [(c.id, c.authz, c.type, c.state.value, c.token) for each in authzs for c in each.challenges]
    if rows:
        text, values = value_list(rows)
        tx.run(f"INSERT INTO acme_challenges (id, authz_id, type, state, token) {text}", **values)


def pending_of(tx: Tx, account: str) -> int:
    """How many names of an account wait to be proved."""
    rows = tx.rows(
        "SELECT COUNT(*) AS n FROM acme_authzs WHERE account = :account AND state = 'pending'", account=account
    )
    return int(rows[0]["n"])


def pending_from(tx: Tx, address: str) -> int:
    """How many names that were asked for from an address wait to be proved."""
    rows = tx.rows(
        "SELECT COUNT(*) AS n FROM acme_authzs WHERE address = :address AND address <> '' AND state = 'pending'",
        address=address,
    )
    return int(rows[0]["n"])


def link(tx: Tx, order: str, authzs: Iterable[str]) -> None:
    text, values = value_list([(order, authz) for authz in authzs])
    tx.run(f"INSERT INTO acme_order_authzs (order_id, authz_id) {text}", **values)


# How an authorization that was proved, and not only trusted, can be told.
_PROVED = "EXISTS (SELECT 1 FROM acme_challenges c WHERE c.authz_id = acme_authzs.id AND c.state = 'valid')"


def reusable(
    tx: Tx, account: str, identifiers: Iterable[Identifier], until: datetime, *, trusted: bool
) -> dict[Identifier, Row]:
    """For each name that is proved already, its freshest valid authorization that lasts until then.

    `trusted`: those that a CA once believed without a challenge will do, too.
    """
    wanted = {(each.type, each.base, each.wildcard): each for each in identifiers}
    text, values = value_list([(value,) for _, value, _ in wanted])
    rows = tx.rows(
        f"""SELECT id, type, value, wildcard, expires_at FROM acme_authzs
             WHERE account = :account AND value IN ({text}) AND state = 'valid' AND expires_at > :until
                   {"" if trusted else f"AND {_PROVED}"}
             ORDER BY expires_at""",
        account=account,
        until=until,
        **values,
    )
    found = {(row["type"], row["value"], bool(row["wildcard"])): row for row in rows}
    return {identifier: found[key] for key, identifier in wanted.items() if key in found}


def end_of(row: Row) -> datetime:
    """When a reused authorization ends."""
    return from_micros(row["expires_at"])


def get(tx: Tx, authz: str) -> Authz | None:
    rows = tx.rows(
        f"""SELECT a.id AS a_id, a.account, a.type AS a_type, a.value, a.wildcard, a.state AS a_state, a.expires_at,
                  {CHALLENGES.of("c")}
             FROM acme_authzs a LEFT JOIN acme_challenges c ON c.authz_id = a.id
            WHERE a.id = :id ORDER BY c.id""",
        id=authz,
    )
    return _authz(rows) if rows else None


def with_challenge(tx: Tx, challenge: str) -> tuple[Challenge, Authz] | None:
    """A challenge and the authorization it belongs to, in one look."""
    rows = tx.rows(
        f"""SELECT a.id AS a_id, a.account, a.type AS a_type, a.value, a.wildcard, a.state AS a_state, a.expires_at,
                  {CHALLENGES.of("c")}
             FROM acme_challenges c JOIN acme_authzs a ON c.authz_id = a.id
            WHERE c.id = :id""",
        id=challenge,
    )
    return (CHALLENGES.read(rows[0]), _authz(rows)) if rows else None


def answer(tx: Tx, challenge: str, thumbprint: str) -> bool:
    """pending → processing, with the key as it is now; False if it was answered before."""
    changed = tx.run(
        "UPDATE acme_challenges SET state = :state, thumbprint = :thumbprint WHERE id = :id AND state = 'pending'",
        id=challenge,
        thumbprint=thumbprint,
        state=CHALLENGE_MOVES[ChallengeState.PENDING, "answered"],
    )
    return changed == 1


def tries(tx: Tx, challenge: str) -> list[dict[str, object]]:
    """What was seen at each try, as it was recorded."""
    row = tx.row("SELECT tries FROM acme_challenges WHERE id = :id", id=challenge)
    return [] if row is None else list(json.loads(row["tries"]))


def tried(
    tx: Tx,
    challenge: str,
    event: str,
    seen: Sequence[object],
    *,
    error: Problem | None = None,
    next_try_at: datetime | None = None,
) -> bool:
    """Record a try and what it led to: "tried" (again later), "proved" or "disproved"."""
    changed = tx.run(
        """UPDATE acme_challenges SET state = :state, tries = :tries, error = :error, next_try_at = :next_try_at,
                  valid_at = CASE WHEN :state = 'valid' THEN now_us() ELSE NULL END
            WHERE id = :id AND state = 'processing'""",
        id=challenge,
        state=CHALLENGE_MOVES[ChallengeState.PROCESSING, event],
        tries=json.dumps(seen),
        error=None if error is None else json.dumps(error.to_json()),
        next_try_at=next_try_at,
    )
    return changed == 1


def hurry(tx: Tx, challenge: str, now: datetime) -> bool:
    """Let the next try be now; False if none is waited for."""
    changed = tx.run(
        "UPDATE acme_challenges SET next_try_at = :now WHERE id = :id AND state = 'processing' AND next_try_at > :now",
        id=challenge,
        now=now,
    )
    return changed == 1


def move(tx: Tx, authz: str, event: str, *, expires_at: datetime | None = None) -> bool:
    """Let an event happen to an authorization; False if it is in no state for it."""
    before = sources(AUTHZ_MOVES, event)
    expiry = ", expires_at = :expires_at" if expires_at is not None else ""
    valid = ", proved_at = now_us()" if event == "proved" else ""
    changed = tx.run(
        f"""UPDATE acme_authzs SET state = :state{expiry}{valid}
             WHERE id = :id AND state IN ({", ".join(f"'{each}'" for each in before)})""",
        id=authz,
        state=AUTHZ_MOVES[AuthzState(before[0]), event],
        **({} if expires_at is None else {"expires_at": expires_at}),
    )
    return changed == 1


def proofs(tx: Tx, authzs: Sequence[str]) -> list[tuple[Identifier, str, datetime]]:
    """How each of these was proved, and when: the name as it was ordered, the type of challenge (empty: trusted)."""
    if not authzs:
        return []
    text, values = value_list([(each,) for each in authzs])
    rows = tx.rows(
        f"""SELECT a.type AS a_type, a.value, a.wildcard, a.proved_at, c.type
              FROM acme_authzs a LEFT JOIN acme_challenges c ON c.authz_id = a.id AND c.state = 'valid'
             WHERE a.id IN ({text}) ORDER BY a.id""",
        **values,
    )
    return [
        (
            Identifier(r["a_type"], f"*.{r['value']}" if r["wildcard"] else r["value"]),
            r["type"] or "",
            from_micros(r["proved_at"]),
        )
        for r in rows
    ]


def holds_all(tx: Tx, account: str, identifiers: Iterable[Identifier], now: datetime, *, trusted: bool) -> bool:
    """Whether an account has proved every one of these names and still may (RFC 8555 §7.6)."""
    wanted = set(identifiers)
    return len(reusable(tx, account, wanted, now, trusted=trusted)) == len(wanted)


def any_trusted(tx: Tx, authzs: Sequence[str]) -> bool:
    """Whether one of these was never proved by a challenge."""
    if not authzs:
        return False
    text, values = value_list([(each,) for each in authzs])
    found = tx.row(f"SELECT 1 AS one FROM acme_authzs WHERE id IN ({text}) AND NOT {_PROVED} LIMIT 1", **values)
    return found is not None


def expired(tx: Tx, now: datetime, limit: int = PAGE) -> list[str]:
    rows = tx.rows(
        """SELECT id FROM acme_authzs WHERE state IN ('pending', 'valid') AND expires_at <= :now
            ORDER BY expires_at LIMIT :limit /* FOR UPDATE SKIP LOCKED */""",
        now=now,
        limit=limit,
    )
    return [row["id"] for row in rows]


def processing_without_job(tx: Tx, kind: str, limit: int = PAGE) -> list[tuple[str, bool]]:
    """Challenges under way that no live job works on, and whether a dead one tells that we gave up."""
    return jobs.processing_without(tx, "acme_challenges", kind, limit)


def _authz(rows: Sequence[Row]) -> Authz:
    first = rows[0]
    return Authz(
        id=first["a_id"],
        account=first["account"],
        identifier=Identifier(first["a_type"], first["value"]),
        wildcard=bool(first["wildcard"]),
        state=AuthzState(first["a_state"]),
        expires_at=from_micros(first["expires_at"]),
        challenges=tuple(CHALLENGES.read(row) for row in rows if row["id"] is not None),
    )
