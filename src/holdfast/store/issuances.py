"""Issuances: each attempt, step by step; every write compares the version that its writer read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final

from holdfast.core.acme import Identifier
from holdfast.core.changed import changed
from holdfast.core.issuance import Issuance, State
from holdfast.core.job import Claim
from holdfast.errors import TxConflict
from holdfast.store.certificates import identifiers_of, identifiers_text
from holdfast.store.tx import Row, Tx, from_micros, instant, value_list

PAGE: Final = 200
COLUMNS = """id, certificate, generation, state, version, issuer, cause, urgent, identifiers, key_secret, csr, asked_at,
              ref, uncertain_since, maybe_twice, withdrawal, proofs, replaces, failures, polls, polled_since,
              requested_by, started_at, ended_at, error, reason"""
_NAMES: Final = tuple(name.strip() for name in COLUMNS.split(","))
_INSERT: Final = f"INSERT INTO issuances ({COLUMNS}) VALUES ({', '.join(f':{name}' for name in _NAMES)})"
_BY: Final = "AND EXISTS (SELECT 1 FROM jobs WHERE jobs.id = :job AND fence = :fence AND jobs.state = 'running')"
_read: Final = attrgetter(*_NAMES)
_WRITTEN_OUT: Final = frozenset({"identifiers", "ref", "proofs", "error"})
_OVER: Final = "('issued', 'failed', 'cancelled')"


def insert(tx: Tx, issuance: Issuance) -> bool:
    """Begin one; False if another is under way for the same certificate."""
    return tx.run(f"{_INSERT} ON CONFLICT DO NOTHING", **_values(issuance)) == 1


def save(tx: Tx, before: Issuance, *, by: Claim | None = None, **changes: Any) -> Issuance:
    """Write a step; TxConflict if another worker, or a person, was faster. `by`: or if this claim is over.

    What stays as it was is not written: each column that is named costs the upkeep of its indexes.
    """
    new = {name: value for name, value in changes.items() if value != getattr(before, name)}
    version = before.version + 1
    guard = {} if by is None else {"job": by.id, "fence": by.fence}
    written = tx.run(
        _update(tuple(new), guarded=by is not None),
        was=before.version,
        id=before.id,
        version=version,
        **guard,
        **{name: _stored(name, value) for name, value in new.items()},
    )
    if not written:
        raise TxConflict(f"issuance {before.id} was changed meanwhile")
    return changed(before, version=version, **new)


@lru_cache(maxsize=256)
def _update(names: tuple[str, ...], *, guarded: bool) -> str:
    return f"""UPDATE issuances SET version = :version{"".join(f", {name} = :{name}" for name in names)}
                WHERE id = :id AND version = :was {_BY if guarded else ""}"""


def get(tx: Tx, issuance: str, *, lock: bool = False) -> Issuance | None:
    row = tx.row(f"SELECT {COLUMNS} FROM issuances WHERE id = :id {'/* FOR UPDATE */' if lock else ''}", id=issuance)
    return None if row is None else from_row(row)


def as_it_is(tx: Tx, known: Issuance) -> Issuance | None:
    """Locked; read as a whole only if it is not as it is known any more."""
    row = tx.row("SELECT version FROM issuances WHERE id = :id /* FOR UPDATE */", id=known.id)
    return None if row is None else known if row["version"] == known.version else get(tx, known.id, lock=True)


def order_of(tx: Tx, issuance: str) -> tuple[Mapping[str, Any] | None, tuple[Identifier, ...]] | None:
    """What an attempt left of its order, and for which names."""
    row = tx.row("SELECT ref, identifiers FROM issuances WHERE id = :id", id=issuance)
    return None if row is None else (_ref(row["ref"]), identifiers_of(row["identifiers"]))


def under_way(tx: Tx, certificate: str) -> Issuance | None:
    row = tx.row(
        f"SELECT {COLUMNS} FROM issuances WHERE certificate = :certificate AND state NOT IN {_OVER}",
        certificate=certificate,
    )
    return None if row is None else from_row(row)


def under_way_at(tx: Tx, certificate: str, at: datetime) -> Issuance | None:
    """The one that was begun by then, and not over."""
    row = tx.row(
        f"""SELECT {COLUMNS} FROM issuances
             WHERE certificate = :certificate AND started_at <= :at AND (ended_at IS NULL OR ended_at > :at)
             ORDER BY started_at DESC, id DESC LIMIT 1""",
        certificate=certificate,
        at=at,
    )
    return None if row is None else from_row(row)


def of(tx: Tx, certificate: str, limit: int = 50) -> list[Issuance]:
    """The newest first."""
    rows = tx.rows(
        f"""SELECT {COLUMNS} FROM issuances WHERE certificate = :certificate
             ORDER BY started_at DESC, id DESC LIMIT :limit""",
        certificate=certificate,
        limit=limit,
    )
    return [from_row(row) for row in rows]


def without_job(tx: Tx, kind: str, limit: int = PAGE) -> list[tuple[Issuance, bool]]:
    """Those under way that no live job works on, and whether a dead one tells that it was given up."""
    rows = tx.rows(
        f"""SELECT {COLUMNS}, EXISTS (SELECT 1 FROM jobs WHERE jobs.kind = :kind AND jobs.subject = issuances.id)
                   AS has_dead_job
              FROM issuances
             WHERE state NOT IN {_OVER} AND state <> 'awaiting_approval'
               AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.kind = :kind AND jobs.subject = issuances.id
                                                    AND jobs.state <> 'dead')
             ORDER BY id LIMIT :limit""",
        kind=kind,
        limit=limit,
    )
    return [(from_row(row), bool(row["has_dead_job"])) for row in rows]


def uses_key(tx: Tx, secret: str) -> bool:
    row = tx.row("SELECT 1 AS found FROM issuances WHERE key_secret = :secret LIMIT 1", secret=secret)
    return row is not None


def forget_old(tx: Tx, before: datetime, limit: int = PAGE) -> list[str | None]:
    """Delete attempts that are long over, with what was said about them; the ids of their keys come back.

    Where orders are binding, the one that a certificate in use came from stays: its order may be the one to renew.
    """
    old = tx.rows(
        """SELECT id FROM issuances
            WHERE ended_at IS NOT NULL AND ended_at < :before AND (withdrawal IS NULL OR withdrawal <> 'owed')
              AND (asked_at IS NULL OR NOT EXISTS (SELECT 1 FROM certificate_versions AS made
                                                    WHERE made.issuance = issuances.id AND made.state = 'active'))
            ORDER BY ended_at LIMIT :limit /* FOR UPDATE SKIP LOCKED */""",
        before=before,
        limit=limit,
    )
    if not old:
        return []
    text, values = value_list([(row["id"],) for row in old])
    tx.run(f"DELETE FROM approvals WHERE issuance IN ({text})", **values)
    rows = tx.rows(f"DELETE FROM issuances WHERE id IN ({text}) RETURNING key_secret", **values)
    return [row["key_secret"] for row in rows]


# ── Orders at CAs that issue later ──


def is_under_way(tx: Tx, issuer: str, ref: Mapping[str, Any]) -> bool:
    """Whether an attempt that is not over has this order."""
    row = tx.row(
        f"SELECT 1 AS found FROM issuances WHERE issuer = :issuer AND ref = :ref AND state NOT IN {_OVER} LIMIT 1",
        issuer=issuer,
        ref=json.dumps(ref),
    )
    return row is not None


def any_barred(tx: Tx, issuer: str, reason: str) -> bool:
    """Whether a certificate still suffers from this refusal of a CA: by an order under way, or by its last failure."""
    row = tx.row(
        f"""SELECT 1 AS found FROM issuances AS i JOIN certificates AS c ON c.id = i.certificate
            WHERE i.issuer = :issuer AND i.reason = :reason AND c.state <> 'archived'
              AND (c.reason = :reason OR i.state NOT IN {_OVER}) LIMIT 1""",
        issuer=issuer,
        reason=reason,
    )
    return row is not None


def is_proving(tx: Tx, issuer: str) -> bool:
    """Whether this CA may be about to look at a proof."""
    row = tx.row("SELECT 1 AS found FROM issuances WHERE issuer = :issuer AND state = 'proving' LIMIT 1", issuer=issuer)
    return row is not None


def shows(tx: Tx, token: str, *, but: str) -> bool:
    """Whether another attempt that is under way shows the proof of this token."""
    row = tx.row(
        f"""SELECT 1 AS found FROM issuances
             WHERE state NOT IN {_OVER} AND id <> :but AND proofs LIKE :quoted LIMIT 1""",
        but=but,
        quoted=f"%{json.dumps(token)}%",
    )
    return row is not None


def to_withdraw_without_job(tx: Tx, kind: str, limit: int = PAGE) -> dict[str, str]:
    """Orders whose CA is to hear that they are given up, and that no job works on; a dead job is a person's.

    With the names of those CAs.
    """
    rows = tx.rows(
        """SELECT id, issuer FROM issuances
            WHERE withdrawal = 'owed'
              AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.kind = :kind AND jobs.subject = issuances.id)
            ORDER BY id LIMIT :limit""",
        kind=kind,
        limit=limit,
    )
    return {row["id"]: row["issuer"] for row in rows}


def is_new_word(tx: Tx, issuer: str, word: str) -> bool:
    """Whether nobody has told of this word of a CA yet; from now on somebody has."""
    return bool(
        tx.run(
            """INSERT INTO issuer_words (issuer, word, seen_at) VALUES (:issuer, :word, now_us())
               ON CONFLICT DO NOTHING""",
            issuer=issuer,
            word=storable(word)[:100],
        )
    )


def has_word(tx: Tx, issuer: str, word: str) -> bool:
    row = tx.row(
        "SELECT 1 AS found FROM issuer_words WHERE issuer = :issuer AND word = :word",
        issuer=issuer,
        word=storable(word)[:100],
    )
    return row is not None


def _values(issuance: Issuance) -> dict[str, Any]:
    return {name: _stored(name, value) for name, value in zip(_NAMES, _read(issuance), strict=True)}


def _stored(name: str, value: Any) -> Any:
    """A field as its column holds it."""
    if value is None or name not in _WRITTEN_OUT:
        return value
    match name:
        case "identifiers":
            return identifiers_text(value)
        case "ref":
            return json.dumps(value)
        case "proofs":
            return json.dumps(list(value))
        case "error":
            return storable(value)
    raise AssertionError(f"{name} is not written out")


def storable(error: str) -> str:
    """Without what a database refuses: a remote's words must not cost the answer."""
    return error[:2000].replace("\0", "\ufffd").encode(errors="replace").decode()


def from_row(row: Row) -> Issuance:
    return Issuance(
        id=row["id"],
        certificate=row["certificate"],
        generation=row["generation"],
        state=State(row["state"]),
        version=row["version"],
        issuer=row["issuer"],
        cause=row["cause"],
        urgent=bool(row["urgent"]),
        identifiers=identifiers_of(row["identifiers"]),
        key_secret=row["key_secret"],
        csr=None if row["csr"] is None else bytes(row["csr"]),
        asked_at=instant(row["asked_at"]),
        ref=_ref(row["ref"]),
        uncertain_since=instant(row["uncertain_since"]),
        maybe_twice=bool(row["maybe_twice"]),
        withdrawal=row["withdrawal"],
        proofs=() if row["proofs"] == "[]" else tuple(json.loads(row["proofs"])),
        replaces=row["replaces"],
        failures=row["failures"],
        polls=row["polls"],
        polled_since=instant(row["polled_since"]),
        requested_by=row["requested_by"],
        started_at=from_micros(row["started_at"]),
        ended_at=instant(row["ended_at"]),
        error=row["error"],
        reason=row["reason"],
    )


def _ref(text: str | None) -> Mapping[str, Any] | None:
    found: Mapping[str, Any] | None = None if text is None else json.loads(text)
    return found
