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
from holdfast.store.acme import accounts, limits
from holdfast.store.acme.accounts import AccountStatus, KeyUse
from holdfast.store.rows import Table
from holdfast.store.tx import Change, Row, Tx, change, from_micros, to_micros, value_list
from holdfast.store.work import jobs

PAGE = 200
CHALLENGES: Final = Table(Challenge, "acme_challenges", columns={"authz": "authz_id"})


def insertion(authzs: Sequence[Authz], now: datetime, *, address: str = "") -> list[Change]:
    """Add authorizations with their challenges; a trusted one is born valid.

    `address`: under which name those that ask from there are counted.
    """
    if not authzs:
        return []
    text, values = value_list(
        [
            (each.id, each.account, each.identifier.type, each.identifier.value, each.wildcard, each.state.value,
             to_micros(each.expires_at), to_micros(now) if each.state is AuthzState.VALID else 0, address)
            for each in authzs
        ]
    )  # fmt: skip
    into = "acme_authzs (id, account, type, value, wildcard, state, expires_at, proved_at, address)"
    changes = [change(f"INSERT INTO {into} {text}", **values)]
    rows = [(c.id, c.authz, c.type, c.state.value, c.token) for each in authzs for c in each.challenges]
    if rows:
        text, values = value_list(rows)
        changes.append(change(f"INSERT INTO acme_challenges (id, authz_id, type, state, token) {text}", **values))
    return changes


def links(order: str, authzs: Iterable[str]) -> Change:
    text, values = value_list([(order, authz) for authz in authzs])
    return change(f"INSERT INTO acme_order_authzs (order_id, authz_id) {text}", **values)


def reusable(valid: Iterable[Row], identifiers: Iterable[Identifier]) -> dict[Identifier, Row]:
    """For each name that is proved already, its freshest valid authorization."""
    wanted = {(each.type, each.base, each.wildcard): each for each in identifiers}
    found = {(row["type"], row["value"], bool(row["wildcard"])): row for row in valid}
    return {identifier: found[key] for key, identifier in wanted.items() if key in found}


def end_of(row: Row) -> datetime:
    """When a reused authorization ends."""
    return from_micros(row["expires_at"])


_BOTH: Final = f"""a.id AS a_id, a.account, a.type AS a_type, a.value, a.wildcard, a.state AS a_state, a.expires_at,
    {CHALLENGES.of("c")}"""


def asked_by(tx: Tx, account: str, authz: str) -> tuple[AccountStatus | None, Authz | None]:
    """An authorization, and the account that asks for it, which may be another one's."""
    joined = "acme_authzs a ON a.id = :authz LEFT JOIN acme_challenges c ON c.authz_id = a.id ORDER BY c.id"
    standing, rows = accounts.standing_with(tx, account, _BOTH, joined, authz=authz)
    return standing, _authz(rows) if rows and rows[0]["a_id"] is not None else None


def challenge_asked_by(
    tx: Tx, account: str, challenge: str
) -> tuple[AccountStatus | None, tuple[Challenge, Authz] | None]:
    """Likewise of a challenge with its authorization."""
    joined = "acme_challenges c ON c.id = :challenge LEFT JOIN acme_authzs a ON a.id = c.authz_id"
    standing, rows = accounts.standing_with(tx, account, _BOTH, joined, challenge=challenge)
    found = rows and rows[0]["a_id"] is not None
    return standing, (CHALLENGES.read(rows[0]), _authz(rows)) if found else None


def with_challenge(tx: Tx, challenge: str) -> tuple[Challenge, Authz] | None:
    """A challenge and the authorization it belongs to, in one look."""
    rows = tx.rows(
        f"SELECT {_BOTH} FROM acme_challenges c JOIN acme_authzs a ON c.authz_id = a.id WHERE c.id = :id",
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
    return tx.together(trying(challenge, event, seen, error=error, next_try_at=next_try_at)) == [1]


def trying(
    challenge: str,
    event: str,
    seen: Sequence[object],
    *,
    error: Problem | None = None,
    next_try_at: datetime | None = None,
    of_pending: str | None = None,
) -> Change:
    """`of_pending`: only if this authorization is pending."""
    pending = "AND EXISTS (SELECT 1 FROM acme_authzs WHERE id = :authz AND state = 'pending')"
    return change(
        f"""UPDATE acme_challenges SET state = :state, tries = :tries, error = :error, next_try_at = :next_try_at,
                  valid_at = CASE WHEN :state = 'valid' THEN now_us() ELSE NULL END
            WHERE id = :id AND state = 'processing' {"" if of_pending is None else pending}""",
        id=challenge,
        **({} if of_pending is None else {"authz": of_pending}),
        state=CHALLENGE_MOVES[ChallengeState.PROCESSING, event],
        tries=json.dumps(seen),
        error=None if error is None else json.dumps(error.to_json()),
        next_try_at=next_try_at,
    )


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
    return tx.together(moving(authz, event, expires_at=expires_at)) == [1]


def moving(authz: str, event: str, *, expires_at: datetime | None = None) -> Change:
    before = sources(AUTHZ_MOVES, event)
    expiry = ", expires_at = :expires_at" if expires_at is not None else ""
    valid = ", proved_at = now_us()" if event == "proved" else ""
    return change(
        f"""UPDATE acme_authzs SET state = :state{expiry}{valid}
             WHERE id = :id AND state IN ({", ".join(f"'{each}'" for each in before)})""",
        id=authz,
        state=AUTHZ_MOVES[AuthzState(before[0]), event],
        **({} if expires_at is None else {"expires_at": expires_at}),
    )


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
    known = limits.record(tx, account, "", [each.base for each in wanted], until=now, trusted=trusted)
    return len(reusable(known.valid, wanted)) == len(wanted)


def last_look(tx: Tx, authzs: Sequence[str], spki_sha256: str, thumbprint: str) -> tuple[bool, KeyUse]:
    """Before a certificate is signed: whether a name was never proved by a challenge, and what else its key is."""
    text, values = value_list([(each,) for each in authzs])
    row = tx.rows(
        f"""SELECT EXISTS (SELECT 1 FROM acme_authzs a WHERE a.id IN ({text}) AND NOT {limits.PROVED}) AS any_trusted,
                   {accounts.USE_OF_KEY}""",
        spki_sha256=spki_sha256,
        thumbprint=thumbprint,
        **values,
    )[0]
    return bool(row["any_trusted"]), accounts.key_use(row)


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
