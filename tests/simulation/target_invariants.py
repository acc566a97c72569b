"""The promises about targets: held against their own truth."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from holdfast.core.certificate import CertificateState
from holdfast.engine.deployment.bundles import leaf_digest
from holdfast.store import certificates, versions
from holdfast.store.deployments import deployments
from holdfast.store.tx import Tx
from tests.simulation.invariants import Violation

if TYPE_CHECKING:
    from tests.simulation.life_stage import LifeStage

SERVED_WITHIN: Final = 2 * 3600.0  # seconds: a few steps up the ladder, and less than from one renewal to the next


def jobless(tx: Tx) -> set[str]:
    """Reload domains of which something is wanted, and that have no job, not even a dead one."""
    rows = tx.rows(
        """SELECT DISTINCT target FROM deployments WHERE next_at IS NOT NULL
              AND NOT EXISTS (SELECT 1 FROM jobs WHERE kind = 'deploy' AND subject = deployments.target)"""
    )
    return {row["target"] for row in rows}


def served_means_served(tx: Tx, stage: LifeStage) -> None:
    """I10: what is called served was shown by every machine of its target at one time."""
    rows = tx.rows(
        """SELECT certificates.name, deployments.target, deployments.certificate_version FROM deployments
             JOIN certificates ON certificates.id = deployments.certificate WHERE deployments.state = 'served'"""
    )
    for row in rows:
        version = versions.get(tx, row["certificate_version"])
        leaf = "" if version is None else leaf_digest(version)
        if (row["name"], leaf) not in stage.daemons[row["target"]].shown:
            raise Violation(f"I10: {row['name']} is served by {row['target']} here, which never showed it everywhere")


def unserved(tx: Tx, stage: LifeStage, *, planned: bool = True) -> list[str]:
    """Where a machine of a target does not serve the version in use, or the product does not know that it does.

    Without `planned`, only where the product believes that nothing failed: what was refused is tried again in hours.
    """
    found: list[str] = []
    for each in certificates.page(tx, state=CertificateState.ACTIVE):
        version = versions.get(tx, each.current_version)
        leaf = "" if version is None else leaf_digest(version)
        for target in each.wanted.targets:
            there = deployments.in_place(tx, each.id, target)
            known = there is not None and there.certificate_version == each.current_version
            coming = deployments.wanted(tx, each.id, target)
            if not planned and (version is None or (coming is not None and coming.failures and coming.next_at)):
                continue
            if not known or not stage.daemons[target].shows_everywhere(each.name, leaf):
                found.append(f"{each.name}, version {each.current_version}, on {target}")
    return found


@dataclass(slots=True)
class Waiting:
    """Since when a version is not served, once faults have stopped: a renewal must not be what mends it."""

    since: dict[str, float] = field(default_factory=dict)

    def look(self, stage: LifeStage) -> None:
        now = stage.loop.time()
        found = stage.truth.look(lambda tx: unserved(tx, stage, planned=False))
        self.since = {each: self.since.get(each, now) for each in found}
        late = [each for each, since in self.since.items() if now - since > SERVED_WITHIN]
        if late:
            raise Violation(f"I12: {late[0]} is not served, though nothing has stood in its way for a while")
