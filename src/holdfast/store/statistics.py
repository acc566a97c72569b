"""The inventory in numbers: counted by the database, over all of it, or over the part that somebody may see."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import datetime, timedelta
from typing import Any, Final

from holdfast.core.inventory import EXPIRING_WITHIN, Ending, Filter, Grid, Outcomes, Rate, Summary
from holdfast.store.inventory import HELD, clauses_of
from holdfast.store.tx import Row, Tx

# The state is in that index, too.
DUE: Final = """certificates.state = 'active' AND certificates.next_action_at IS NOT NULL
                AND certificates.next_action_at <= :now"""
_OVER: Final = "('issued', 'failed', 'cancelled')"


def summary(tx: Tx, seen: Filter) -> Summary:
    """`seen` is what the asker may see; jobs are counted only for those who may see everything."""
    now = tx.now()
    waiting = _attempts_under_way(tx, seen)
    ends = _ends(tx, seen, now)
    return Summary(
        at=now,
        states=_states(tx, seen),
        failing=_active(tx, seen, "certificates.last_failure_at IS NOT NULL"),
        due=_active(tx, seen, DUE, now=now),
        under_way=sum(waiting.values()) - waiting.get("awaiting_approval", 0),
        awaiting_approval=waiting.get("awaiting_approval", 0),
        never_issued=_active(tx, seen, "certificates.current_version IS NULL"),
        expired=ends.pop(0),
        expiring={str(days): number for days, number in ends.items()},
        jobs={} if _narrow(seen) else _counted(tx.rows("SELECT state, COUNT(*) AS n FROM jobs GROUP BY state")),
    )


def _narrow(seen: Filter) -> bool:
    return bool(seen.owners or seen.labels)


def _counted(rows: list[Row]) -> dict[str, int]:
    return {row["state"]: int(row["n"]) for row in rows}


def _where(seen: Filter, *more: str) -> tuple[str, dict[str, Any]]:
    clauses, values = clauses_of(seen)
    return " AND ".join([*more, *(each for each in clauses if each != "TRUE")]) or "TRUE", values


def _states(tx: Tx, seen: Filter) -> dict[str, int]:
    where, values = _where(seen)
    return _counted(tx.rows(f"SELECT state, COUNT(*) AS n FROM certificates WHERE {where} GROUP BY state", **values))


def _active(tx: Tx, seen: Filter, condition: str, **more: Any) -> int:
    """By the partial index of the condition: SQLite would prefer that of the state, which nearly all have in common."""
    where, values = _where(seen, "COALESCE(certificates.state, '') = 'active'", condition)
    return int(tx.rows(f"SELECT COUNT(*) AS n FROM certificates WHERE {where}", **values, **more)[0]["n"])


def _attempts_under_way(tx: Tx, seen: Filter) -> dict[str, int]:
    source, where, values = _attempts(seen, f"issuances.state NOT IN {_OVER}")
    return _counted(
        tx.rows(f"SELECT issuances.state, COUNT(*) AS n FROM {source} WHERE {where} GROUP BY issuances.state", **values)
    )


def _attempts(seen: Filter, *more: str) -> tuple[str, str, dict[str, Any]]:
    """Whoever may see everything needs no look at whose they are."""
    if not _narrow(seen):
        return "issuances", " AND ".join(more), {}
    where, values = _where(seen, *more)
    return "issuances JOIN certificates ON certificates.id = issuances.certificate", where, values


def _ends(tx: Tx, seen: Filter, now: datetime) -> dict[int, int]:
    """How many of those in use end within so many days, by one walk over their ends; 0: have ended."""
    until = {days: now + timedelta(days=days) for days in (0, *EXPIRING_WITHIN)}
    counts = ", ".join(f"COUNT(CASE WHEN held.not_after < :d{days} THEN 1 END) AS d{days}" for days in until)
    where, values = _where(seen, "certificates.state <> 'archived'", f"held.not_after < :d{max(until)}")
    rows = tx.rows(
        f"SELECT {counts} FROM certificates {HELD} WHERE {where}",
        **{f"d{days}": at for days, at in until.items()},
        **values,
    )
    ended = int(rows[0]["d0"])
    return {days: int(rows[0][f"d{days}"]) - (ended if days else 0) for days in until}


# ── Over time ──


def _spans(column: str) -> str:
    """The number of the span that an instant falls into; integers are divided as such by both engines."""
    return f"({column} - :start) / :step"


def expiry(tx: Tx, seen: Filter, grid: Grid) -> list[Ending]:
    """Those that end in each span, and the renewals that are planned there."""
    bounds = {"start": grid.start, "step": grid.step, "end": grid.end}
    in_use = "certificates.state <> 'archived'"
    where, values = _where(seen, in_use, "held.not_after >= :start", "held.not_after < :end")
    ends = _by_span(
        tx.rows(
            f"""SELECT {_spans("held.not_after")} AS span, COUNT(*) AS n FROM certificates {HELD}
                 WHERE {where} GROUP BY 1""",
            **bounds,
            **values,
        )
    )
    active = "certificates.state = 'active' AND certificates.next_action_at IS NOT NULL"
    where, values = _where(seen, active, "certificates.next_action_at >= :start", "certificates.next_action_at < :end")
    planned = _by_span(
        tx.rows(
            f"""SELECT {_spans("certificates.next_action_at")} AS span, COUNT(*) AS n FROM certificates
                 WHERE {where} GROUP BY 1""",
            **bounds,
            **values,
        )
    )
    return [Ending(at=grid.begins(span), expiring=ends[span], renewals=planned[span]) for span in range(grid.number)]


def _by_span(rows: list[Row]) -> Counter[int]:
    return Counter({int(row["span"]): int(row["n"]) for row in rows})


def outcomes(tx: Tx, seen: Filter, grid: Grid) -> list[Outcomes]:
    """Attempts by how they ended."""
    source, where, values = _attempts(seen, "issuances.ended_at >= :start", "issuances.ended_at < :end")
    rows = tx.rows(
        f"""SELECT {_spans("issuances.ended_at")} AS span, issuances.state, issuances.reason, COUNT(*) AS n
              FROM {source} WHERE {where} GROUP BY 1, issuances.state, issuances.reason""",
        start=grid.start,
        step=grid.step,
        end=grid.end,
        **values,
    )
    ended: defaultdict[int, Counter[str]] = defaultdict(Counter)
    why: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for row in rows:
        ended[int(row["span"])][row["state"]] += int(row["n"])
        if row["state"] == "failed":
            why[int(row["span"])][row["reason"] or ""] += int(row["n"])
    return [
        Outcomes(
            at=grid.begins(span),
            issued=ended[span]["issued"],
            failed=ended[span]["failed"],
            cancelled=ended[span]["cancelled"],
            reasons=dict(why[span]),
        )
        for span in range(grid.number)
    ]


def rates(tx: Tx, seen: Filter, grid: Grid) -> list[Rate]:
    """Spans and CAs in which nothing was issued are left out."""
    source, where, values = _attempts(
        seen, "issuances.ended_at >= :start", "issuances.ended_at < :end", "issuances.state = 'issued'"
    )
    took = "issuances.ended_at - issuances.started_at"
    rows = tx.rows(
        f"""SELECT {_spans("issuances.ended_at")} AS span, issuances.issuer, COUNT(*) AS n,
                   SUM({took}) AS took, MAX({took}) AS longest
              FROM {source} WHERE {where} GROUP BY 1, issuances.issuer ORDER BY 1, issuances.issuer""",
        start=grid.start,
        step=grid.step,
        end=grid.end,
        **values,
    )
    return [
        Rate(
            at=grid.begins(int(row["span"])),
            issuer=row["issuer"],
            issued=int(row["n"]),
            mean_s=round(float(row["took"]) / int(row["n"]) / 1e6, 3),
            longest_s=round(float(row["longest"]) / 1e6, 3),
        )
        for row in rows
    ]
