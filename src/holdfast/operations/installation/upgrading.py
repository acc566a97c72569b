"""What is known of an installation before another version joins it: read from its database, and not changed."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

from holdfast.core.upgrade import Installation, Step
from holdfast.store import migrate
from holdfast.store.tx import Tx
from holdfast.store.work import cluster, jobs


def as_it_is(tx: Tx, lease_ttl: timedelta) -> Installation:
    """A replica that was silent for three lease times counts as gone."""
    alive = tx.now() - 3 * lease_ttl
    return Installation(
        steps=[Step(version=version, name=name) for version, name in migrate.applied_steps(tx).items()],
        replicas={each.name: each.version for each in cluster.all_replicas(tx) if each.seen_at >= alive},
        jobs=_by_kind(tx),
    )


def _by_kind(tx: Tx) -> dict[str, int]:
    found: Counter[str] = Counter()
    for (kind, _), number in jobs.counts(tx).items():
        found[kind] += number
    return dict(found)


def steps_of_this_version() -> list[Step]:
    return [Step(version=each.version, name=each.name) for each in migrate.bundled()]
