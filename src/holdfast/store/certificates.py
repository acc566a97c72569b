"""Certificates: their specification, their renewal, and the scans for due ones."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final, NamedTuple

from holdfast.core.certificate import (
    Ari,
    Certificate,
    CertificateSpec,
    CertificateState,
    Failing,
    RenewalPolicy,
)
from holdfast.core.changed import changed
from holdfast.core.own_ca.acme import Identifier
from holdfast.core.windows import MaintenanceWindow
from holdfast.errors import TxConflict
from holdfast.store.rows import LABELS, Part, Table, identifiers_of
from holdfast.store.tx import Tx, to_micros, value_list

PAGE: Final = 200
_FAILING: Final = {
    "attempts": "issuance_attempts", "first_at": "first_failure_at", "last_at": "last_failure_at",
    "error": "last_error",
}  # fmt: skip
TABLE: Final = Table(
    Certificate,
    "certificates",
    codecs={"changers": LABELS},
    parts={
        "wanted": Part(Table(CertificateSpec, codecs={"labels": LABELS})),
        "failing": Part(Table(Failing, columns=_FAILING), absent="last_failure_at"),
        "ari": Part(Table(Ari, prefix="ari_"), absent="ari_start"),
    },
)


def insert(tx: Tx, certificate: Certificate) -> bool:
    """Add one; False if another that is not archived has its name."""
    return tx.run(f"{TABLE.insert} ON CONFLICT DO NOTHING", **TABLE.values(certificate)) == 1


def save(tx: Tx, before: Certificate, **changes: object) -> Certificate:
    """Write what changed, as the row's next version; TxConflict if the row was changed since it was read.

    Unchanged columns are not written: each column that is named costs the upkeep of its indexes.
    """
    version = before.version + 1
    new = {name: value for name, value in changes.items() if value != getattr(before, name)}
    columns = TABLE.changes(new)
    written = tx.run(_update(tuple(columns)), was=before.version, id=before.id, version=version, **columns)
    if not written:
        raise TxConflict(f"certificate {before.id} was changed meanwhile")
    return changed(before, version=version, **new)


@lru_cache(maxsize=256)
def _update(columns: tuple[str, ...]) -> str:
    return f"""UPDATE certificates SET version = :version{"".join(f", {name} = :{name}" for name in columns)}
                WHERE id = :id AND version = :was"""


# ── What is planned ──


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """As much of an active certificate as its future needs."""

    name: str
    issuers: tuple[str, ...]
    identifiers: tuple[Identifier, ...]
    lifetime: timedelta | None
    rule: RenewalPolicy
    windows: tuple[MaintenanceWindow, ...]
    targets: tuple[str, ...]
    next_action_at: datetime | None
    life: timedelta | None  # of the version in use


_PLAN: Final = Table(Plan)


def plans(tx: Tx, *, after: str, limit: int) -> list[Plan]:
    """Of all active ones, in the order of their names. Reading them as a whole takes three times as long."""
    columns = ", ".join(f"c.{each}" for each in _PLAN.names if each != "life")
    rows = tx.rows(
        f"""SELECT {columns}, held.not_after - held.not_before AS life
              FROM (SELECT * FROM certificates WHERE state = 'active' AND name > :after
                     ORDER BY name LIMIT :limit) AS c
              LEFT JOIN certificate_versions AS held ON held.id = c.current_version
             ORDER BY c.name""",
        after=after,
        limit=limit,
    )
    return [_PLAN.read(row) for row in rows]


# ── Finding ──


def get(tx: Tx, certificate: str, *, lock: bool = False) -> Certificate | None:
    row = tx.row(
        f"SELECT {TABLE.columns} FROM certificates WHERE id = :id {'/* FOR UPDATE */' if lock else ''}", id=certificate
    )
    return None if row is None else TABLE.read(row)


def as_it_is(tx: Tx, known: Certificate) -> Certificate | None:
    """Locked; read as a whole only if it is not as it is known any more."""
    row = tx.row("SELECT version FROM certificates WHERE id = :id /* FOR UPDATE */", id=known.id)
    return None if row is None else known if row["version"] == known.version else get(tx, known.id, lock=True)


def by_name(tx: Tx, name: str) -> Certificate | None:
    """The one of this name that is not archived."""
    row = tx.row(f"SELECT {TABLE.columns} FROM certificates WHERE name = :name AND state <> 'archived'", name=name)
    return None if row is None else TABLE.read(row)


def archived(tx: Tx, name: str) -> list[Certificate]:
    """The last one of this name that is archived, if there is one."""
    rows = tx.rows(
        f"""SELECT {TABLE.columns} FROM certificates WHERE state = 'archived' AND name = :name
             ORDER BY created_at DESC, id LIMIT 1""",
        name=name,
    )
    return [TABLE.read(row) for row in rows]


def hard_to_prove(tx: Tx, limit: int) -> list[Certificate]:
    """Active ones with a name such as *.example.com, or with a challenge or a solver of their own, by name."""
    rows = tx.rows(
        f"""SELECT {TABLE.columns} FROM certificates
             WHERE state = 'active' AND (identifiers LIKE '%"*.%' OR challenge <> 'any' OR solver IS NOT NULL)
             ORDER BY name LIMIT :limit""",
        limit=limit,
    )
    return [TABLE.read(row) for row in rows]


def with_solver(tx: Tx, solver: str) -> str | None:
    """The name of a certificate that asks for this solver and is not archived; None if there is none."""
    sql = "SELECT name FROM certificates WHERE solver = :solver AND state <> 'archived' ORDER BY name LIMIT 1"
    row = tx.row(sql, solver=solver)
    return None if row is None else str(row["name"])


def by_prefix(tx: Tx, prefix: str, limit: int = 2) -> list[Certificate]:
    rows = tx.rows(
        f"SELECT {TABLE.columns} FROM certificates WHERE id >= :low AND id < :high ORDER BY id LIMIT :limit",
        low=prefix,
        high=prefix + "\uffff",
        limit=limit,
    )
    return [TABLE.read(row) for row in rows]


def page(tx: Tx, *, after: str = "", limit: int = 100, state: CertificateState | None = None) -> list[Certificate]:
    """In the order of their names; archived ones only if asked for."""
    rows = tx.rows(
        f"""SELECT {TABLE.columns} FROM certificates WHERE name > :after AND {_in_state(state)}
             ORDER BY name LIMIT :limit""",
        after=after,
        limit=limit,
        **({} if state is None else {"state": state.value}),
    )
    return [TABLE.read(row) for row in rows]


def _in_state(state: CertificateState | None) -> str:
    return "state <> 'archived'" if state is None else "state = :state"


def any_guarded(tx: Tx) -> bool:
    """Whether there is one that a second person must approve."""
    return tx.row("SELECT id FROM certificates WHERE approval_required AND state <> 'archived' LIMIT 1") is not None


class Guarded(NamedTuple):
    """A certificate that a second person must approve."""

    name: str
    owner: str
    identifiers: tuple[Identifier, ...]


def guarded_near(tx: Tx, identifiers: Sequence[Identifier], *, but: str) -> list[Guarded]:
    """Others that a second person must approve, and that share a domain with these."""
    ends = {each.value.partition(".")[2] or each.value for each in identifiers}
    likes = {f"end{number}": f'%{end}"%' for number, end in enumerate(sorted(ends))}
    rows = tx.rows(
        f"""SELECT name, owner, identifiers FROM certificates
             WHERE approval_required AND state <> 'archived' AND id <> :but
               AND ({" OR ".join(f"identifiers LIKE :{each}" for each in likes)})
             ORDER BY id""",
        but=but,
        **likes,
    )
    return [Guarded(row["name"], row["owner"], identifiers_of(row["identifiers"])) for row in rows]


# ── Scans: each costs what it finds ──


def due(tx: Tx, now: datetime, limit: int = PAGE) -> list[Certificate]:
    """Those whose time has come, the longest overdue first; locked, and never the same ones for two replicas."""
    rows = tx.rows(
        f"""SELECT {TABLE.columns} FROM certificates
             WHERE state = 'active' AND next_action_at IS NOT NULL AND next_action_at <= :now
             ORDER BY next_action_at LIMIT :limit /* FOR UPDATE SKIP LOCKED */""",
        now=now,
        limit=limit,
    )
    return [TABLE.read(row) for row in rows]


def stranded(tx: Tx, limit: int = PAGE) -> list[Certificate]:
    """Active ones that wait for no time and for no issuance: no sweep would ever find them."""
    rows = tx.rows(
        f"""SELECT {TABLE.columns} FROM certificates
             WHERE state = 'active' AND next_action_at IS NULL
               AND NOT EXISTS (SELECT 1 FROM issuances WHERE issuances.certificate = certificates.id
                                  AND issuances.state NOT IN ('issued', 'failed', 'cancelled'))
             ORDER BY id LIMIT :limit /* FOR UPDATE SKIP LOCKED */""",
        limit=limit,
    )
    return [TABLE.read(row) for row in rows]


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


def failed_at(tx: Tx, issuer: str) -> list[str]:
    """Certificates whose last failure was at this CA; one whose issuer is not known counts, too."""
    rows = tx.rows(
        """SELECT id FROM certificates
            WHERE last_failure_at IS NOT NULL AND state <> 'archived' AND issuers LIKE :quoted
              AND COALESCE((SELECT issuances.issuer FROM issuances
                             WHERE issuances.certificate = certificates.id AND issuances.state = 'failed'
                             ORDER BY issuances.started_at DESC, issuances.id DESC LIMIT 1), :issuer) = :issuer
            ORDER BY id""",
        issuer=issuer,
        quoted=f"%{json.dumps(issuer)}%",
    )
    return [row["id"] for row in rows]


def failed_for(tx: Tx, reasons: Iterable[str]) -> list[str]:
    text, values = value_list([(reason,) for reason in sorted(reasons)])
    rows = tx.rows(
        f"""SELECT id FROM certificates
             WHERE last_failure_at IS NOT NULL AND state <> 'archived' AND reason IN ({text}) ORDER BY id""",
        **values,
    )
    return [row["id"] for row in rows]


def forget_failures(tx: Tx, planned: Sequence[tuple[str, datetime]]) -> None:
    """Their count is 0 again; those that wait because of it are looked at at these times, unless they would be before.

    Certificates that are not due then are planned anew by the sweep.
    """
    for start in range(0, len(planned), PAGE):
        text, values = value_list([(each, to_micros(at)) for each, at in planned[start : start + PAGE]])
        tx.run(
            f"""UPDATE certificates
                   SET issuance_attempts = NULL, first_failure_at = NULL, last_failure_at = NULL, last_error = NULL,
                       reason = NULL, version = version + 1,
                       next_cause = CASE WHEN next_action_at > anew.column2 AND next_cause = 'BACKOFF'
                                         THEN 'STAGGERED' ELSE next_cause END,
                       next_action_at = CASE WHEN next_action_at > anew.column2 AND next_cause = 'BACKOFF'
                                             THEN anew.column2 ELSE next_action_at END
                  FROM ({text}) AS anew WHERE certificates.id = anew.column1 AND last_failure_at IS NOT NULL""",
            **values,
        )


def jobs_waiting_for(tx: Tx, kind: str, issuer: str, now: datetime) -> list[str]:
    """Jobs of attempts with an order at this CA, or that wait until it is there again, or lets us in.

    Not those that are to begin later, nor those that wait for a limit.
    """
    rows = tx.rows(
        """SELECT jobs.id FROM jobs JOIN issuances ON issuances.id = jobs.subject
            WHERE jobs.kind = :kind AND jobs.state = 'ready' AND jobs.due_at > :now
              AND issuances.issuer = :issuer AND issuances.state NOT IN ('issued', 'failed', 'cancelled')
              AND COALESCE(jobs.reason, '') NOT IN ('BUDGET', 'NOT_BEFORE', 'CA_RATE_LIMITED')
              AND (issuances.state <> 'requested'
                   OR jobs.reason IN ('CA_DOWN', 'CA_TLS_FAILED', 'ACCOUNT_REFUSED', 'EAB_REQUIRED'))
            ORDER BY jobs.id""",
        kind=kind,
        issuer=issuer,
        now=now,
    )
    return [row["id"] for row in rows]


def bring_jobs_forward(tx: Tx, planned: Sequence[tuple[str, datetime]]) -> None:
    for start in range(0, len(planned), PAGE):
        text, values = value_list([(each, to_micros(at)) for each, at in planned[start : start + PAGE]])
        tx.run(
            f"""UPDATE jobs SET due_at = anew.column2 FROM ({text}) AS anew
                 WHERE jobs.id = anew.column1 AND jobs.state = 'ready' AND jobs.due_at > anew.column2""",
            **values,
        )
    tx.wakes = tx.wakes or bool(planned)


def kept_names(tx: Tx, limit: int) -> list[str]:
    """Names that certificates here are for, without the star of a wildcard; none of archived certificates."""
    rows = tx.rows(
        """SELECT DISTINCT certificate_names.text FROM certificate_names
             JOIN certificates ON certificates.id = certificate_names.certificate
            WHERE certificates.state <> 'archived' LIMIT :limit""",
        limit=limit,
    )
    return [str(row["text"]).removeprefix("*.") for row in rows]
