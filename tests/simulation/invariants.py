"""The promises, checked while faults rage and after they stop. A violation names the promise and what was seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.work.job import CRASHES_IN_COMPANY
from holdfast.store import journal
from holdfast.store.tx import Tx
from tests.simulation.witness import Note

if TYPE_CHECKING:
    from tests.simulation.ground import Ground
    from tests.simulation.stage import Stage


class Violation(AssertionError):
    """A promise was broken."""


def of_the_engine(stage: Ground, note: Note) -> None:
    """Whatever the work is about. Cheap enough for every commit."""
    for subject in note.settled:
        stage.killed_by.pop(subject, None)
    if note.wrong:
        raise Violation(f"L3: {note.wrong[0]}")
    if note.strange:
        raise Violation(f"L3: {note.actor} changed {sorted(note.strange)} without holding their jobs")
    if note.failing_over:
        stage.noted_epoch = stage.truth.epoch
        stage.truth.peek(lambda tx: _nothing_survives_a_failover(tx, stage.truth.epoch))
    if note.claimed and stage.noted_epoch < stage.truth.epoch:
        raise Violation(f"L13: {note.actor} claimed work before it noticed the failover")


def every_subject_has_its_job(stage: Ground) -> None:
    jobless = stage.jobless()
    stage.missing &= jobless
    if jobless - stage.missing:
        raise Violation(f"I1: {sorted(jobless - stage.missing)} are under way and have no job")
    twice = stage.truth.peek(_doubled)
    if twice:
        raise Violation(f"I2: more than one live job for {twice}")


def after_commit(stage: Stage, note: Note) -> None:
    of_the_engine(stage, note)
    for subject in note.turned_away:
        stage.note_hold(subject)
    stage.note_claims(note.actor, note.claimed)
    every_subject_has_its_job(stage)
    if stage.ca.over_limit:
        raise Violation(f"I8: the CA's limit was exceeded: {stage.ca.over_limit[0]}")


def _nothing_survives_a_failover(tx: Tx, epoch: int) -> None:
    held = tx.rows(
        """SELECT id AS what FROM jobs WHERE state = 'running' AND fence < :base
           UNION ALL SELECT name FROM leases WHERE until > now_us() AND fence < :base""",
        base=epoch << 32,
    )
    if held:
        raise Violation(f"L13: {held[0]['what']} is still held under a lease from before the failover")


def _doubled(tx: Tx) -> list[str]:
    rows = tx.rows("SELECT subject FROM jobs WHERE state <> 'dead' GROUP BY kind, subject HAVING COUNT(*) > 1")
    return [row["subject"] for row in rows]


def chain_and_waits(stage: Ground) -> None:
    """The whole chain, and that every wait can be seen."""
    verdict = stage.truth.look(journal.verify)
    if not verdict.ok:
        raise Violation(f"I7: {verdict.problem}")
    stage.truth.look(_every_wait_is_visible)


def now_and_then(stage: Stage) -> None:
    """Dearer checks: likewise, and the witnesses against each other."""
    chain_and_waits(stage)
    stage.truth.look(lambda tx: _every_change_has_its_audit_row(tx))
    stage.truth.look(lambda tx: _issued_means_issued(tx, stage))
    more_than_one = [key for key, number in stage.ca.certificates.items() if number != 1]
    if more_than_one:
        raise Violation(f"I3: more than one certificate for {more_than_one}")


def _every_change_has_its_audit_row(tx: Tx) -> None:
    steps = {"asked": 1, "ordered": 2, "issued": 3}
    rows = tx.rows(
        """SELECT errands.id, errands.state, COUNT(audit.seq) AS rows FROM errands
             LEFT JOIN audit ON audit.subject = errands.id AND audit.action LIKE 'errand!_%' ESCAPE '!'
            GROUP BY errands.id, errands.state"""
    )
    for row in rows:
        if row["rows"] != steps[row["state"]]:
            raise Violation(f"I7: {row['id']} is {row['state']} with {row['rows']} audit rows")


def _every_wait_is_visible(tx: Tx) -> None:
    rows = tx.rows(
        """SELECT id, state FROM jobs WHERE (state = 'running' AND (lease_until IS NULL OR holder IS NULL))
               OR (state = 'dead' AND (last_error IS NULL OR reason IS NULL))
               OR (state = 'failed' AND (last_error IS NULL OR attempts < 1))
               OR attempts < 0 OR attempts > max_attempts + :crashes""",
        crashes=CRASHES_IN_COMPANY,  # an attempt that killed its worker is not the last one
    )
    if rows:
        raise Violation(f"I9: nobody can see what {rows[0]['id']} ({rows[0]['state']}) waits for")


def _issued_means_issued(tx: Tx, stage: Stage) -> None:
    for row in tx.rows("SELECT id FROM errands WHERE state = 'issued'"):
        if row["id"] not in stage.ca.certificates:
            raise Violation(f"I10: {row['id']} is issued here and unknown to the CA")


def nothing_is_left_to_the_dead(stage: Ground) -> None:
    """L7: what a dead replica held is taken over soon after its lease could have ended, whatever clocks say."""
    living = {node.holder for node in stage.standing}
    rows = stage.truth.peek(lambda tx: tx.rows("SELECT id, holder FROM jobs WHERE state = 'running'"))
    for row in rows:
        if row["holder"] not in living:
            raise Violation(f"L7: {row['id']} is still held by {row['holder']}, which is long dead")


def unfinished(tx: Tx) -> list[str]:
    return [row["id"] for row in tx.rows("SELECT id FROM errands WHERE state <> 'issued' ORDER BY id")]


def left_behind(tx: Tx, holder: str) -> list[str]:
    """What is still in the name of a replica that is gone."""
    rows = tx.rows(
        """SELECT id AS what FROM jobs WHERE state = 'running' AND holder = :holder
           UNION ALL SELECT 'the lease ' || name FROM leases WHERE until > now_us() AND holder = :holder
           UNION ALL SELECT 'its name on the list' FROM replicas WHERE holder = :holder""",
        holder=holder,
    )
    return [row["what"] for row in rows]
