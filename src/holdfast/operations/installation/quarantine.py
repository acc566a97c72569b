"""What follows when the database lost commits or is not where it was, and what ends it."""

from __future__ import annotations

from typing import Any

from holdfast.core.installation import Change, Installation, Judgement, Mode
from holdfast.core.notifications.notification import NotificationState
from holdfast.operations.own_ca.revocation import CRL
from holdfast.store import installation, journal
from holdfast.store.installation import Replay
from holdfast.store.tx import Tx


def reason(row: Installation) -> str:
    """Why nothing may act; empty if all may."""
    match row.mode:
        case Mode.NORMAL:
            return ""
        case Mode.RECOVERING:
            return f"commits may be missing ({row.why}): our CAs wait until replicas have put back what they know"
        case Mode.QUARANTINE:
            return f"this installation is in quarantine ({row.why}). See holdfast restore show"
    raise AssertionError(row.mode)


def told(tx: Tx, mode: Mode, judgement: Judgement) -> None:
    """In the transaction that stops everything: the audit log says where it was cut, and people are told."""
    seq, newest = journal.audit_head(tx)
    facts: dict[str, Any] = {"why": judgement.why, "missing_s": int(judgement.missing.total_seconds())}
    journal.audit(tx, f"installation_{mode.value}", "installation", **facts, after_seq=seq, after_hash=newest)
    if mode is Mode.QUARANTINE:
        close_notifications(tx)
        end_sessions(tx)
    journal.event(tx, f"installation.{mode.value}", "installation", **facts)


def close_notifications(tx: Tx) -> int:
    """What waited to be sent when the copy was made was sent since, or is of no use any more."""
    return tx.run(
        """UPDATE notifications SET state = :resolved, note = 'made before the database was restored'
            WHERE state IN ('pending', 'failed')""",
        resolved=NotificationState.RESOLVED,
    )


def end_sessions(tx: Tx) -> int:
    """One that was ended since would be good again."""
    return tx.run("UPDATE sessions SET ended_at = now_us() WHERE ended_at IS NULL")


def recovered(tx: Tx, row: Installation) -> None:
    """Every replica has replayed: work goes on."""
    if not installation.leave(tx, Mode.RECOVERING, row.generation):
        return
    _go_on(tx, row)
    found = _found(installation.replays(tx, row.generation))
    facts = {"missing_s": row.facts.get("missing_s", 0), "why": row.why, **found}
    journal.audit(tx, "installation_recovered", "installation", **facts)
    journal.event(tx, "installation.recovered", "installation", **facts)


def released(tx: Tx, row: Installation, *, actor: str) -> None:
    """A person has looked at what differs. Keys of earlier requests are forgotten: their results may be lost."""
    if not installation.leave(tx, Mode.QUARANTINE, row.generation):
        return
    tx.run("DELETE FROM write_keys")
    _go_on(tx, row)
    found = _found(installation.replays(tx, row.generation))
    journal.audit(tx, "installation_released", "installation", actor=actor, why=row.why, **found)
    journal.event(tx, "installation.released", "installation", by=actor, **found)


def found_late(tx: Tx, made: Replay) -> None:
    """A replica came back after the others, and knew more."""
    found = _found([made])
    journal.audit(tx, "witness_replayed", "installation", replica=made.name, **found)
    journal.event(tx, "witness.replayed", "installation", replica=made.name, **found)


def _go_on(tx: Tx, row: Installation) -> None:
    if row.facts.get("missing_s") or row.facts.get("change") != Change.FAILED_OVER:
        installation.empty_budgets(tx)
    tx.run("UPDATE jobs SET due_at = now_us() WHERE kind = :kind AND state = 'ready'", kind=CRL)
    tx.wakes = True


def _found(made: list[Replay]) -> dict[str, Any]:
    return {name: sum(getattr(each, name) for each in made) for name in ("certificates", "revocations", "serials")}
