"""Certificates: what is wanted, how its renewal stands, and the scans for what is due."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from holdfast.core.acme import Identifier
from holdfast.core.certificate import Ari, Certificate, Failing, Rule, State, Wanted, Window
from holdfast.core.changed import changed
from holdfast.errors import TxConflict
from holdfast.store.tx import Row, Tx, from_micros, instant, value_list

PAGE: Final = 200
COLUMNS = """id, name, identifiers, key_kind, issuers, profile, preferred_chain, lifetime, reuse_key, rule, windows,
              owner, labels, state, generation, version, approval_required, changed_by, created_at, issuance_attempts,
              first_failure_at, last_failure_at, last_error, reason, fingerprint, next_action_at, next_cause,
              current_version, ari_start, ari_end, ari_pick, ari_explanation, ari_forced_at, ari_ask_at"""
_NAMES: Final = tuple(name.strip() for name in COLUMNS.split(","))
_FIELDS: Final = tuple(each.name for each in fields(Certificate))
_INSERT: Final = f"INSERT INTO certificates ({COLUMNS}) VALUES ({', '.join(f':{name}' for name in _NAMES)})"


def insert(tx: Tx, certificate: Certificate) -> bool:
    """Add one; False if another that is not archived has its name."""
    return tx.run(f"{_INSERT} ON CONFLICT DO NOTHING", **_values(certificate)) == 1


def save(tx: Tx, before: Certificate, **changes: Any) -> Certificate:
    """Write what changed, as the row's next version; TxConflict if somebody changed it since it was read.

    What stays as it was is not written: each column that is named costs the upkeep of its indexes.
    """
    version = before.version + 1
    new = {name: value for name, value in changes.items() if value != getattr(before, name)}
    columns = {column: held for name, value in new.items() for column, held in _stored(name, value).items()}
    written = tx.run(_update(tuple(columns)), was=before.version, id=before.id, version=version, **columns)
    if not written:
        raise TxConflict(f"certificate {before.id} was changed meanwhile")
    return changed(before, version=version, **new)


@lru_cache(maxsize=256)
def _update(columns: tuple[str, ...]) -> str:
    return f"""UPDATE certificates SET version = :version{"".join(f", {name} = :{name}" for name in columns)}
                WHERE id = :id AND version = :was"""


# ── Finding ──


def get(tx: Tx, certificate: str, *, lock: bool = False) -> Certificate | None:
    row = tx.row(
        f"SELECT {COLUMNS} FROM certificates WHERE id = :id {'/* FOR UPDATE */' if lock else ''}", id=certificate
    )
    return None if row is None else from_row(row)


def as_it_is(tx: Tx, known: Certificate) -> Certificate | None:
    """Locked; read as a whole only if it is not as it is known any more."""
    row = tx.row("SELECT version FROM certificates WHERE id = :id /* FOR UPDATE */", id=known.id)
    return None if row is None else known if row["version"] == known.version else get(tx, known.id, lock=True)


def by_name(tx: Tx, name: str) -> Certificate | None:
    """The one of this name that is not archived."""
    row = tx.row(f"SELECT {COLUMNS} FROM certificates WHERE name = :name AND state <> 'archived'", name=name)
    return None if row is None else from_row(row)


def archived(tx: Tx, name: str) -> list[Certificate]:
    """The last one of this name that is archived, if there is one."""
    rows = tx.rows(
        f"""SELECT {COLUMNS} FROM certificates WHERE state = 'archived' AND name = :name
             ORDER BY created_at DESC, id LIMIT 1""",
        name=name,
    )
    return [from_row(row) for row in rows]


def by_prefix(tx: Tx, prefix: str, limit: int = 2) -> list[Certificate]:
    rows = tx.rows(
        f"SELECT {COLUMNS} FROM certificates WHERE id >= :low AND id < :high ORDER BY id LIMIT :limit",
        low=prefix,
        high=prefix + "\uffff",
        limit=limit,
    )
    return [from_row(row) for row in rows]


def page(tx: Tx, *, after: str = "", limit: int = 100, state: State | None = None) -> list[Certificate]:
    """In the order of their names; archived ones only if asked for."""
    rows = tx.rows(
        f"""SELECT {COLUMNS} FROM certificates WHERE name > :after AND {_in_state(state)}
             ORDER BY name LIMIT :limit""",
        after=after,
        limit=limit,
        **({} if state is None else {"state": state.value}),
    )
    return [from_row(row) for row in rows]


def _in_state(state: State | None) -> str:
    return "state <> 'archived'" if state is None else "state = :state"


def any_guarded(tx: Tx) -> bool:
    """Whether there is one that a second person must approve."""
    return tx.row("SELECT id FROM certificates WHERE approval_required AND state <> 'archived' LIMIT 1") is not None


def guarded_near(tx: Tx, identifiers: Sequence[Identifier], *, but: str) -> list[tuple[str, tuple[Identifier, ...]]]:
    """Name and names of others that a second person must approve, and that share a domain with these."""
    ends = {each.value.partition(".")[2] or each.value for each in identifiers}
    likes = {f"end{number}": f'%{end}"%' for number, end in enumerate(sorted(ends))}
    rows = tx.rows(
        f"""SELECT name, identifiers FROM certificates
             WHERE approval_required AND state <> 'archived' AND id <> :but
               AND ({" OR ".join(f"identifiers LIKE :{each}" for each in likes)})
             ORDER BY id""",
        but=but,
        **likes,
    )
    return [(row["name"], identifiers_of(row["identifiers"])) for row in rows]


# ── Scans: each costs what it finds ──


def due(tx: Tx, now: datetime, limit: int = PAGE) -> list[Certificate]:
    """Those whose time has come, the longest overdue first; locked, and never the same ones for two replicas."""
    rows = tx.rows(
        f"""SELECT {COLUMNS} FROM certificates
             WHERE state = 'active' AND next_action_at IS NOT NULL AND next_action_at <= :now
             ORDER BY next_action_at LIMIT :limit /* FOR UPDATE SKIP LOCKED */""",
        now=now,
        limit=limit,
    )
    return [from_row(row) for row in rows]


def stranded(tx: Tx, limit: int = PAGE) -> list[Certificate]:
    """Active ones that wait for no time and for no issuance: nobody would ever come back to them."""
    rows = tx.rows(
        f"""SELECT {COLUMNS} FROM certificates
             WHERE state = 'active' AND next_action_at IS NULL
               AND NOT EXISTS (SELECT 1 FROM issuances WHERE issuances.certificate = certificates.id
                                  AND issuances.state NOT IN ('issued', 'failed', 'cancelled'))
             ORDER BY id LIMIT :limit /* FOR UPDATE SKIP LOCKED */""",
        limit=limit,
    )
    return [from_row(row) for row in rows]


def to_ask(tx: Tx, now: datetime, limit: int = PAGE) -> dict[str, str | None]:
    """Those whose CA is to be asked for its renewal window, each with the CA that its version in use is from."""
    rows = tx.rows(
        """SELECT id, (SELECT issuer FROM certificate_versions WHERE id = certificates.current_version) AS issuer
             FROM certificates WHERE state = 'active' AND ari_ask_at IS NOT NULL AND ari_ask_at <= :now
            ORDER BY ari_ask_at LIMIT :limit""",
        now=now,
        limit=limit,
    )
    return {row["id"]: row["issuer"] for row in rows}


def asked_later(tx: Tx, ids: Sequence[str], at: datetime) -> None:
    """Move them out of the scan for as long as their job may need; the job knows better when it is done."""
    if ids:
        text, values = value_list([(each,) for each in ids])
        tx.run(f"UPDATE certificates SET ari_ask_at = :at, version = version + 1 WHERE id IN ({text})", at=at, **values)


def wake_for_issuer(tx: Tx, issuer: str, now: datetime) -> int:
    """Look again at those that waited because every CA of theirs was paused."""
    return tx.run(
        """UPDATE certificates SET next_action_at = :now, version = version + 1
            WHERE state = 'active' AND next_cause = 'ISSUER_PAUSED' AND next_action_at > :now
              AND issuers LIKE :issuer""",
        now=now,
        issuer=f"%{json.dumps(issuer)}%",
    )


# ── Rows ──


def _values(certificate: Certificate) -> dict[str, Any]:
    return {column: value for name in _FIELDS for column, value in _stored(name, getattr(certificate, name)).items()}


def _stored(name: str, value: Any) -> dict[str, Any]:
    """A field as its columns hold it."""
    match name:
        case "wanted":
            return _wanted_columns(value)
        case "failing":
            return _failing_columns(value)
        case "ari":
            return _ari_columns(value)
        case _:
            return {name: value}


def _wanted_columns(wanted: Wanted) -> dict[str, Any]:
    return {
        "name": wanted.name,
        "identifiers": identifiers_text(wanted.identifiers),
        "key_kind": wanted.key_kind,
        "issuers": json.dumps(wanted.issuers),
        "profile": wanted.profile,
        "preferred_chain": wanted.preferred_chain,
        "lifetime": wanted.lifetime,
        "reuse_key": wanted.reuse_key,
        "rule": json.dumps(wanted.rule.to_json()),
        "windows": json.dumps([each.to_json() for each in wanted.windows]),
        "owner": wanted.owner,
        "labels": json.dumps(dict(wanted.labels), sort_keys=True),
        "approval_required": wanted.approval_required,
    }


def _failing_columns(failing: Failing | None) -> dict[str, Any]:
    return {
        "issuance_attempts": None if failing is None else failing.attempts,
        "first_failure_at": None if failing is None else failing.first_at,
        "last_failure_at": None if failing is None else failing.last_at,
        "last_error": None if failing is None else failing.error,
        "reason": None if failing is None else failing.reason,
    }


def _ari_columns(ari: Ari | None) -> dict[str, Any]:
    return {
        "ari_start": None if ari is None else ari.start,
        "ari_end": None if ari is None else ari.end,
        "ari_pick": None if ari is None else ari.pick,
        "ari_explanation": None if ari is None else ari.explanation,
    }


def from_row(row: Row) -> Certificate:
    return Certificate(
        id=row["id"],
        wanted=_wanted(row),
        state=State(row["state"]),
        generation=row["generation"],
        version=row["version"],
        fingerprint=row["fingerprint"],
        changed_by=row["changed_by"],
        created_at=from_micros(row["created_at"]),
        failing=_failing(row),
        next_action_at=instant(row["next_action_at"]),
        next_cause=row["next_cause"],
        current_version=row["current_version"],
        ari=_ari(row),
        ari_forced_at=instant(row["ari_forced_at"]),
        ari_ask_at=instant(row["ari_ask_at"]),
    )


def _wanted(row: Row) -> Wanted:
    return Wanted(
        name=row["name"],
        identifiers=identifiers_of(row["identifiers"]),
        issuers=_issuers(row["issuers"]),
        key_kind=row["key_kind"],
        profile=row["profile"],
        preferred_chain=row["preferred_chain"],
        lifetime=None if row["lifetime"] is None else timedelta(microseconds=row["lifetime"]),
        reuse_key=bool(row["reuse_key"]),
        rule=_rule(row["rule"]),
        windows=_windows(row["windows"]),
        owner=row["owner"],
        labels=dict(_labels(row["labels"])),
        approval_required=bool(row["approval_required"]),
    )


@lru_cache(maxsize=1024)
def identifiers_of(text: str) -> tuple[Identifier, ...]:
    """Read in every step of an attempt: a few hundred of them are under way at a time."""
    return tuple(Identifier(*each) for each in json.loads(text))


@lru_cache(maxsize=1024)
def identifiers_text(identifiers: tuple[Identifier, ...]) -> str:
    return json.dumps([(each.type, each.value) for each in identifiers])


# Most certificates have these in common with many others: a page reads each text once.


@lru_cache(maxsize=256)
def _issuers(text: str) -> tuple[str, ...]:
    return tuple(json.loads(text))


@lru_cache(maxsize=256)
def _labels(text: str) -> tuple[tuple[str, str], ...]:
    return tuple(json.loads(text).items())


@lru_cache(maxsize=256)
def _rule(text: str) -> Rule:
    return Rule.from_json(json.loads(text))


@lru_cache(maxsize=256)
def _windows(text: str) -> tuple[Window, ...]:
    return tuple(Window.from_json(each) for each in json.loads(text))


def _failing(row: Row) -> Failing | None:
    """The time alone makes it failing: a row of an older release has no count."""
    if row["last_failure_at"] is None:
        return None
    return Failing(
        attempts=row["issuance_attempts"],
        first_at=instant(row["first_failure_at"]),
        last_at=from_micros(row["last_failure_at"]),
        error=row["last_error"] or "",
        reason=row["reason"] or "",
    )


def _ari(row: Row) -> Ari | None:
    if row["ari_start"] is None or row["ari_end"] is None or row["ari_pick"] is None:
        return None
    return Ari(
        start=from_micros(row["ari_start"]),
        end=from_micros(row["ari_end"]),
        pick=from_micros(row["ari_pick"]),
        explanation=row["ari_explanation"],
    )
