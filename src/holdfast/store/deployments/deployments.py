"""Deployments, step by step; a write compares the version of the row that it read."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Final

from holdfast.core.changed import changed
from holdfast.core.deployment import Deployment, DeploymentState
from holdfast.core.work.job import Claim
from holdfast.errors import TxConflict
from holdfast.store.issuances import storable
from holdfast.store.rows import Codec, Table
from holdfast.store.tx import Tx, instant, to_micros, value_list

PAGE: Final = 200
_BY: Final = "AND EXISTS (SELECT 1 FROM jobs WHERE jobs.id = :job AND fence = :fence AND jobs.state = 'running')"
_TEXT: Final = Codec(lambda text: storable(text))
_IN_PLACE: Final = "('served', 'installed')"
_OVER: Final = "('served', 'installed', 'superseded')"
TABLE: Final = Table(Deployment, "deployments", codecs={"error": _TEXT, "seen": _TEXT})


def new_id(at: datetime, certificate: str, target: str) -> str:
    """Sorted by time, and the same for the same cause: a transaction may run more than once."""
    digest = hashlib.sha256(f"{certificate}/{target}".encode(errors="replace")).hexdigest()[:12]
    return f"deployment_{to_micros(at):014x}{digest}"


def job_id(at: datetime, host: str, domain: str) -> str:
    digest = hashlib.sha256(f"{host}/{domain}".encode(errors="replace")).hexdigest()[:10]
    return f"job_{to_micros(at):014x}{digest}"


def insert(tx: Tx, deployment: Deployment) -> None:
    tx.run(TABLE.insert, **TABLE.values(deployment))


def save(tx: Tx, before: Deployment, *, by: Claim | None = None, **changes: object) -> Deployment:
    """Write a step; TxConflict if another worker, or a person, was faster. `by`: or if this claim is over."""
    new = {name: value for name, value in changes.items() if value != getattr(before, name)}
    new["changed_at"] = tx.now()
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
        raise TxConflict(f"deployment {before.id} was changed meanwhile")
    return changed(before, version=version, **new)


@lru_cache(maxsize=256)
def _update(names: tuple[str, ...], *, guarded: bool) -> str:
    return f"""UPDATE deployments SET version = :version{"".join(f", {name} = :{name}" for name in names)}
                WHERE id = :id AND version = :was {_BY if guarded else ""}"""


def get(tx: Tx, deployment: str, *, lock: bool = False) -> Deployment | None:
    row = tx.row(
        f"SELECT {TABLE.columns} FROM deployments WHERE id = :id {'/* FOR UPDATE */' if lock else ''}", id=deployment
    )
    return None if row is None else TABLE.read(row)


def wanted(tx: Tx, certificate: str, target: str) -> Deployment | None:
    """The one that is not in place yet, and is to be; locked."""
    row = tx.row(
        f"""SELECT {TABLE.columns} FROM deployments
             WHERE certificate = :certificate AND target = :target AND state NOT IN {_OVER} /* FOR UPDATE */""",
        certificate=certificate,
        target=target,
    )
    return None if row is None else TABLE.read(row)


def in_place(tx: Tx, certificate: str, target: str) -> Deployment | None:
    """The last one that was seen, or installed."""
    row = tx.row(
        f"""SELECT {TABLE.columns} FROM deployments
             WHERE certificate = :certificate AND target = :target AND state IN {_IN_PLACE}
             ORDER BY number DESC LIMIT 1""",
        certificate=certificate,
        target=target,
    )
    return None if row is None else TABLE.read(row)


def numbered(tx: Tx, certificate: str, target: str, number: int) -> Deployment | None:
    row = tx.row(
        f"""SELECT {TABLE.columns} FROM deployments
             WHERE certificate = :certificate AND target = :target AND number = :number""",
        certificate=certificate,
        target=target,
        number=number,
    )
    return None if row is None else TABLE.read(row)


def placed_at(tx: Tx, target: str) -> list[str]:
    """The ids of certificates that are in place at a target."""
    rows = tx.rows(
        """SELECT DISTINCT certificate FROM deployments WHERE target = :target AND state IN ('served', 'installed')
            ORDER BY certificate""",
        target=target,
    )
    return [row["certificate"] for row in rows]


def last_number(tx: Tx, certificate: str, target: str) -> int:
    row = tx.row(
        "SELECT MAX(number) AS number FROM deployments WHERE certificate = :certificate AND target = :target",
        certificate=certificate,
        target=target,
    )
    return 0 if row is None or row["number"] is None else int(row["number"])


def standing(tx: Tx, certificates: Sequence[str]) -> dict[str, list[Deployment]]:
    """All that are wanted or in place, by certificate, in the order of their targets and numbers."""
    found: dict[str, list[Deployment]] = {each: [] for each in certificates}
    for start in range(0, len(certificates), PAGE):
        text, values = value_list([(each,) for each in certificates[start : start + PAGE]])
        rows = tx.rows(
            f"""SELECT {TABLE.columns} FROM deployments WHERE certificate IN ({text}) AND state <> 'superseded'
                 ORDER BY certificate, target, number""",
            **values,
        )
        for row in rows:
            found[row["certificate"]].append(TABLE.read(row))
    return found


def of(tx: Tx, certificate: str, limit: int = 50) -> list[Deployment]:
    """The newest first."""
    rows = tx.rows(
        f"""SELECT {TABLE.columns} FROM deployments WHERE certificate = :certificate
             ORDER BY number DESC, target LIMIT :limit""",
        certificate=certificate,
        limit=limit,
    )
    return [TABLE.read(row) for row in rows]


def page(
    tx: Tx,
    *,
    state: DeploymentState | None = None,
    target: str | None = None,
    certificate: str | None = None,
    after: str = "",
    limit: int = 100,
) -> list[Deployment]:
    """By id, which is by time. Superseded ones only if asked for."""
    wanted = {"state": None if state is None else state.value, "target": target, "certificate": certificate}
    given = {name: value for name, value in wanted.items() if value is not None}
    which = " AND ".join(["TRUE" if state else "state <> 'superseded'", *(f"{name} = :{name}" for name in given)])
    rows = tx.rows(
        f"SELECT {TABLE.columns} FROM deployments WHERE id > :after AND {which} ORDER BY id LIMIT :limit",
        after=after,
        limit=limit,
        **given,
    )
    return [TABLE.read(row) for row in rows]


def counts(tx: Tx) -> dict[str, int]:
    """How many there are, by state; superseded ones are left out."""
    rows = tx.rows("SELECT state, COUNT(*) AS n FROM deployments WHERE state <> 'superseded' GROUP BY state")
    return {row["state"]: int(row["n"]) for row in rows}


# ── What is due, by reload domain ──

_DOMAIN: Final = "COALESCE(NULLIF(targets.domain, ''), targets.name)"


def due(tx: Tx, host: str, domain: str, now: datetime, limit: int = PAGE) -> list[Deployment]:
    """Those of a reload domain whose time has come, those under way first; locked by the claim of its job."""
    rows = tx.rows(
        f"""SELECT {TABLE.of("deployments")} FROM deployments JOIN targets ON targets.name = deployments.target
             WHERE deployments.next_at <= :now AND targets.host = :host AND {_DOMAIN} = :domain
             ORDER BY deployments.next_at, deployments.id LIMIT :limit""",
        now=now,
        host=host,
        domain=domain,
        limit=limit,
    )
    return [TABLE.read(row) for row in rows]


def next_due(tx: Tx, host: str, domain: str) -> datetime | None:
    """When the next one of a reload domain is due; None: none is wanted."""
    row = tx.row(
        f"""SELECT MIN(deployments.next_at) AS at FROM deployments JOIN targets ON targets.name = deployments.target
             WHERE deployments.next_at IS NOT NULL AND targets.host = :host AND {_DOMAIN} = :domain""",
        host=host,
        domain=domain,
    )
    return None if row is None else instant(row["at"])


def domains_due(tx: Tx, now: datetime, limit: int = PAGE) -> list[tuple[str, str]]:
    """Host and reload domain of deployments whose time has come."""
    rows = tx.rows(
        f"""SELECT DISTINCT targets.host AS host, {_DOMAIN} AS domain
              FROM deployments JOIN targets ON targets.name = deployments.target
             WHERE deployments.next_at <= :now ORDER BY host, domain LIMIT :limit""",
        now=now,
        limit=limit,
    )
    return [(row["host"], row["domain"]) for row in rows]


def wake(tx: Tx, target: str, now: datetime) -> int:
    """What is held or waits for a try at this target is looked at again now."""
    return tx.run(
        """UPDATE deployments SET next_at = :now, version = version + 1
            WHERE target = :target AND state IN ('queued', 'held', 'failed', 'rolled_back', 'rollback_failed')
              AND (next_at IS NULL OR next_at > :now)""",
        now=now,
        target=target,
    )


def wake_frozen(tx: Tx, now: datetime) -> int:
    """What a change freeze held is looked at again now."""
    return tx.run(
        """UPDATE deployments SET next_at = :now, version = version + 1
            WHERE state = 'held' AND reason = 'DEPLOY_FROZEN' AND next_at > :now""",
        now=now,
    )
