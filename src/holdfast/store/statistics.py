"""The inventory in numbers: counted by the database, over all of it, or over the part that somebody may see."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Any, Final

from holdfast.core.inventory import EXPIRING_WITHIN, Ending, Filter, Grid, Outcomes, Rate, Summary
from holdfast.store import notice_lists
from holdfast.store.inventory import IN_USE, clauses_of
from holdfast.store.tx import Row, Tx

# The state is in that index, too.
_PLANNED: Final = "certificates.state = 'active' AND certificates.next_action_at IS NOT NULL"
DUE: Final = f"{_PLANNED} AND certificates.next_action_at <= :now"
_ENDED: Final = "issuances.ended_at IS NOT NULL"
_WITHIN: Final = ("issuances.ended_at >= :start", "issuances.ended_at < :end")
_OVER: Final = "('issued', 'failed', 'cancelled')"


def summary(tx: Tx, seen: Filter) -> Summary:
    """`seen` is what the asker may see; jobs and dead letters are counted only for those who may see everything."""
    now = tx.now()
    waiting = _attempts_under_way(tx, seen)
    ended = ends(tx, seen, now)
    return Summary(
        at=now,
        states=states(tx, seen),
        failing=_active(tx, seen, "certificates.last_failure_at IS NOT NULL"),
        due=_active(tx, seen, DUE, now=now),
        under_way=sum(waiting.values()) - waiting.get("awaiting_approval", 0),
        awaiting_approval=waiting.get("awaiting_approval", 0),
        never_issued=_active(tx, seen, "certificates.current_version IS NULL"),
        expired=ended.pop(0),
        expiring={str(days): number for days, number in ended.items()},
        jobs={} if _narrow(seen) else _counted(tx.rows("SELECT state, COUNT(*) AS n FROM jobs GROUP BY state")),
        notifications_dead=None if _narrow(seen) else notice_lists.dead(tx),
    )


def _narrow(seen: Filter) -> bool:
    return bool(seen.owners or seen.labels)


def _counted(rows: list[Row]) -> dict[str, int]:
    return {row["state"]: int(row["n"]) for row in rows}


def _where(seen: Filter, *more: str) -> tuple[str, dict[str, Any]]:
    clauses, values = clauses_of(seen)
    return " AND ".join([*more, *(each for each in clauses if each != "TRUE")]) or "TRUE", values


def states(tx: Tx, seen: Filter) -> dict[str, int]:
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


def ends(tx: Tx, seen: Filter, now: datetime) -> dict[int, int]:
    """How many of those in use end within so many days; 0: have ended. Each stretch of time is counted once."""
    bounds = [now + timedelta(days=days) for days in (0, *EXPIRING_WITHIN)]
    where, values = _where(seen, IN_USE)
    stretches = ", ".join(
        f"""(SELECT COUNT(*) FROM certificates WHERE {where} AND certificates.ends_at < :to_{n}
               AND certificates.ends_at >= {f":to_{n - 1}" if n else "0"}) AS n_{n}"""
        for n in range(len(bounds))
    )
    row = tx.rows(f"SELECT {stretches}", **{f"to_{n}": at for n, at in enumerate(bounds)}, **values)[0]
    ended, *ending = (int(row[f"n_{n}"]) for n in range(len(bounds)))
    return {0: ended} | dict(zip(EXPIRING_WITHIN, accumulate(ending), strict=True))


# ── Over time ──


def _spans(column: str) -> str:
    """The number of the span that an instant falls into; integers are divided as such by both engines."""
    return f"({column} - :start) / :step"


_NUMBERS: Final = """WITH RECURSIVE spans (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM spans WHERE n < :last)"""


def _in_span(column: str) -> str:
    return f"{column} >= :start + spans.n * :step AND {column} < :start + (spans.n + 1) * :step"


def _bounds(grid: Grid) -> dict[str, Any]:
    return {"start": grid.start, "step": grid.step}


def _by_span(tx: Tx, source: str, column: str, where: str, values: Mapping[str, Any], grid: Grid) -> Counter[int]:
    """One walk over an index that ends with the column, a span at a time: nothing is sorted, and no row is read."""
    rows = tx.rows(
        f"""{_NUMBERS}
            SELECT spans.n AS span, (SELECT COUNT(*) FROM {source} WHERE {where} AND {_in_span(column)}) AS n
              FROM spans""",
        last=grid.number - 1,
        **_bounds(grid),
        **values,
    )
    return Counter({int(row["span"]): int(row["n"]) for row in rows})


def _grouped(tx: Tx, source: str, column: str, where: str, values: Mapping[str, Any], grid: Grid) -> Counter[int]:
    """The same for a part of them, found by what they have in common."""
    rows = tx.rows(
        f"""SELECT {_spans(column)} AS span, COUNT(*) AS n FROM {source}
             WHERE {where} AND {column} >= :start AND {column} < :end GROUP BY 1""",
        end=grid.end,
        **_bounds(grid),
        **values,
    )
    return Counter({int(row["span"]): int(row["n"]) for row in rows})


def expiry(tx: Tx, seen: Filter, grid: Grid) -> list[Ending]:
    """Those that end in each span, and the renewals that are planned there."""
    counted = _grouped if _narrow(seen) else _by_span
    ending = counted(tx, "certificates", "certificates.ends_at", *_where(seen, IN_USE), grid)
    planned = counted(tx, "certificates", "certificates.next_action_at", *_where(seen, _PLANNED), grid)
    return [Ending(at=grid.begins(span), expiring=ending[span], renewals=planned[span]) for span in range(grid.number)]


def outcomes(tx: Tx, seen: Filter, grid: Grid) -> list[Outcomes]:
    """Attempts by how they ended."""
    counted = _grouped if _narrow(seen) else _by_span
    issued, cancelled = (
        counted(tx, source, "issuances.ended_at", where, values, grid)
        for source, where, values in (_attempts(seen, f"issuances.state = '{how}'", _ENDED) for how in _NO_REASON)
    )
    why = _failures(tx, seen, grid)
    return [
        Outcomes(
            at=grid.begins(span),
            issued=issued[span],
            failed=why[span].total(),
            cancelled=cancelled[span],
            reasons=dict(why[span]),
        )
        for span in range(grid.number)
    ]


_NO_REASON: Final = ("issued", "cancelled")  # ends of attempts that nobody asks the reason of


def _failures(tx: Tx, seen: Filter, grid: Grid) -> defaultdict[int, Counter[str]]:
    source, where, values = _attempts(seen, "issuances.state = 'failed'", _ENDED, *_WITHIN)
    rows = tx.rows(
        f"""SELECT {_spans("issuances.ended_at")} AS span, issuances.reason, COUNT(*) AS n
              FROM {source} WHERE {where} GROUP BY 1, issuances.reason""",
        end=grid.end,
        **_bounds(grid),
        **values,
    )
    found: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for row in rows:
        found[int(row["span"])][row["reason"] or ""] += int(row["n"])
    return found


def rates(tx: Tx, seen: Filter, grid: Grid) -> list[Rate]:
    """Spans and CAs in which nothing was issued are left out."""
    found = _rates_grouped(tx, seen, grid) if _narrow(seen) else _rates_by_span(tx, grid)
    return [
        Rate(
            at=grid.begins(span),
            issuer=issuer,
            issued=number,
            mean_s=round(took / number / 1e6, 3),
            longest_s=round(longest / 1e6, 3),
        )
        for span, issuer, number, took, longest in sorted(found)
    ]


_Issued = tuple[int, str, int, int, int]  # the span, the CA, how many, how long they took together, and the longest
_TOOK: Final = "issuances.ended_at - issuances.started_at"


def _rates_by_span(tx: Tx, grid: Grid) -> list[_Issued]:
    """By the index of each CA's. The three numbers come as one text: a subquery has one column."""
    rows = tx.rows(
        f"""{_NUMBERS}, cas (name) AS (
                SELECT MIN(issuer) FROM issuances WHERE state = 'issued'
                 UNION ALL SELECT (SELECT MIN(issuer) FROM issuances WHERE state = 'issued' AND issuer > cas.name)
                             FROM cas WHERE cas.name IS NOT NULL)
            SELECT spans.n AS span, cas.name AS issuer,
                   (SELECT COUNT(*) || ' ' || SUM({_TOOK}) || ' ' || MAX({_TOOK}) FROM issuances
                     WHERE issuances.state = 'issued' AND issuances.issuer = cas.name
                       AND {_in_span("issuances.ended_at")}) AS told
              FROM cas CROSS JOIN spans WHERE cas.name IS NOT NULL""",
        last=grid.number - 1,
        **_bounds(grid),
    )
    told = [(int(row["span"]), row["issuer"], row["told"].split()) for row in rows if row["told"] is not None]
    return [(span, issuer, int(number), int(took), int(longest)) for span, issuer, (number, took, longest) in told]


def _rates_grouped(tx: Tx, seen: Filter, grid: Grid) -> list[_Issued]:
    source, where, values = _attempts(seen, "issuances.state = 'issued'", *_WITHIN)
    rows = tx.rows(
        f"""SELECT {_spans("issuances.ended_at")} AS span, issuances.issuer, COUNT(*) AS n,
                   SUM({_TOOK}) AS took, MAX({_TOOK}) AS longest
              FROM {source} WHERE {where} GROUP BY 1, issuances.issuer""",
        end=grid.end,
        **_bounds(grid),
        **values,
    )
    return [(int(row["span"]), row["issuer"], int(row["n"]), int(row["took"]), int(row["longest"])) for row in rows]
