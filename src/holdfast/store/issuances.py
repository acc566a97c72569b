"""Issuances, step by step, and the challenge responses that this server shows; a write compares the version it read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Final

from holdfast.core.changed import changed
from holdfast.core.issuance import Issuance
from holdfast.core.own_ca.acme import Identifier
from holdfast.core.work.job import Claim
from holdfast.errors import TxConflict
from holdfast.store.rows import Codec, Table, identifiers_of
from holdfast.store.tx import Tx, value_list

PAGE: Final = 200
_BY: Final = "AND EXISTS (SELECT 1 FROM jobs WHERE jobs.id = :job AND fence = :fence AND jobs.state = 'running')"
_OVER: Final = "('issued', 'failed', 'cancelled')"
TABLE: Final = Table(Issuance, "issuances", codecs={"error": Codec(lambda text: storable(text))})


def insert(tx: Tx, issuance: Issuance) -> bool:
    """Begin one; False if another is under way for the same certificate."""
    return tx.run(f"{TABLE.insert} ON CONFLICT DO NOTHING", **TABLE.values(issuance)) == 1


def save(tx: Tx, before: Issuance, *, by: Claim | None = None, **changes: object) -> Issuance:
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
        **TABLE.changes(new),
    )
    if not written:
        raise TxConflict(f"issuance {before.id} was changed meanwhile")
    return changed(before, version=version, **new)


@lru_cache(maxsize=256)
def _update(names: tuple[str, ...], *, guarded: bool) -> str:
    return f"""UPDATE issuances SET version = :version{"".join(f", {name} = :{name}" for name in names)}
                WHERE id = :id AND version = :was {_BY if guarded else ""}"""


def get(tx: Tx, issuance: str, *, lock: bool = False) -> Issuance | None:
    row = tx.row(
        f"SELECT {TABLE.columns} FROM issuances WHERE id = :id {'/* FOR UPDATE */' if lock else ''}", id=issuance
    )
    return None if row is None else TABLE.read(row)


def as_it_is(tx: Tx, known: Issuance) -> Issuance | None:
    """Locked; read as a whole only if it is not as it is known any more."""
    row = tx.row("SELECT version FROM issuances WHERE id = :id /* FOR UPDATE */", id=known.id)
    return None if row is None else known if row["version"] == known.version else get(tx, known.id, lock=True)


def order_of(tx: Tx, issuance: str) -> tuple[Mapping[str, object] | None, tuple[Identifier, ...]] | None:
    """What an attempt left of its order, and for which names."""
    row = tx.row("SELECT ref, identifiers FROM issuances WHERE id = :id", id=issuance)
    return (
        None
        if row is None
        else (None if row["ref"] is None else json.loads(row["ref"]), identifiers_of(row["identifiers"]))
    )


def under_way(tx: Tx, certificate: str) -> Issuance | None:
    row = tx.row(
        f"SELECT {TABLE.columns} FROM issuances WHERE certificate = :certificate AND state NOT IN {_OVER}",
        certificate=certificate,
    )
    return None if row is None else TABLE.read(row)


def under_way_at(tx: Tx, certificate: str, at: datetime) -> Issuance | None:
    """The one that was begun by then, and not over."""
    row = tx.row(
        f"""SELECT {TABLE.columns} FROM issuances
             WHERE certificate = :certificate AND started_at <= :at AND (ended_at IS NULL OR ended_at > :at)
             ORDER BY started_at DESC, id DESC LIMIT 1""",
        certificate=certificate,
        at=at,
    )
    return None if row is None else TABLE.read(row)


def of(tx: Tx, certificate: str, limit: int = 50) -> list[Issuance]:
    """The newest first."""
    rows = tx.rows(
        f"""SELECT {TABLE.columns} FROM issuances WHERE certificate = :certificate
             ORDER BY started_at DESC, id DESC LIMIT :limit""",
        certificate=certificate,
        limit=limit,
    )
    return [TABLE.read(row) for row in rows]


def without_job(tx: Tx, kind: str, limit: int = PAGE) -> list[tuple[Issuance, bool]]:
    """Those under way that no live job works on, and whether a dead one tells that it was given up."""
    rows = tx.rows(
        f"""SELECT {TABLE.columns}, EXISTS (SELECT 1 FROM jobs WHERE jobs.kind = :kind AND jobs.subject = issuances.id)
                   AS has_dead_job
              FROM issuances
             WHERE state NOT IN {_OVER} AND state <> 'awaiting_approval'
               AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.kind = :kind AND jobs.subject = issuances.id
                                                    AND jobs.state <> 'dead')
             ORDER BY id LIMIT :limit""",
        kind=kind,
        limit=limit,
    )
    return [(TABLE.read(row), bool(row["has_dead_job"])) for row in rows]


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


def is_under_way(tx: Tx, issuer: str, ref: Mapping[str, object]) -> bool:
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
    """Whether this word of a CA is new; it is recorded as known from now on."""
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


def storable(error: str) -> str:
    """Without what a database refuses: a remote's words must not cost the answer."""
    return error[:2000].replace("\0", "\ufffd").encode(errors="replace").decode()


RESPONSES_PAGE: Final = 500


def put_response(tx: Tx, *, type: str, token: str, identifier: str, key_authorization: str) -> None:  # noqa: A002
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


def response_by_token(tx: Tx, type: str, token: str) -> str | None:  # noqa: A002
    """The key authorization that belongs to a token."""
    row = tx.row(
        "SELECT key_authorization FROM challenge_responses WHERE type = :type AND token = :token",
        type=type,
        token=token,
    )
    return None if row is None else str(row["key_authorization"])


def response_by_name(tx: Tx, type: str, identifier: str) -> str | None:  # noqa: A002
    """The newest key authorization for a name: for tls-alpn-01, which knows no token."""
    row = tx.row(
        """SELECT key_authorization FROM challenge_responses WHERE type = :type AND identifier = :identifier
            ORDER BY created_at DESC LIMIT 1""",
        type=type,
        identifier=identifier,
    )
    return None if row is None else str(row["key_authorization"])


def delete_response(tx: Tx, type: str, token: str) -> None:  # noqa: A002
    tx.run("DELETE FROM challenge_responses WHERE type = :type AND token = :token", type=type, token=token)


def forget_old_responses(tx: Tx, before: datetime, limit: int = RESPONSES_PAGE) -> int:
    return tx.run(
        """DELETE FROM challenge_responses WHERE (type, token) IN
                  (SELECT type, token FROM challenge_responses WHERE created_at < :before LIMIT :limit)""",
        before=before,
        limit=limit,
    )
