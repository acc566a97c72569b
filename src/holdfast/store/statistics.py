"""Statistics and gauges: certificates, issuances and budgets counted by the database, for all or for one viewer."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import accumulate, islice
from typing import Any, Final, NamedTuple

from holdfast.core import reasons
from holdfast.core.certificate import Certificate
from holdfast.core.inventory import (
    EXPIRING_WITHIN,
    ExpiryCount,
    Grid,
    InventoryFilter,
    InventorySummary,
    IssuerRate,
    OutcomeCounts,
)
from holdfast.core.issuers.budget import Budget
from holdfast.core.reasons import Reason
from holdfast.store import certificates, standings
from holdfast.store.inventory import IN_USE, clauses_of
from holdfast.store.notifications import notifications
from holdfast.store.tx import Row, Tx, from_micros, value_list
from holdfast.store.work import budgets

# The state is in that index, too.
_PLANNED: Final = "certificates.state = 'active' AND certificates.next_action_at IS NOT NULL"
DUE: Final = f"{_PLANNED} AND certificates.next_action_at <= :now"
_ENDED: Final = "issuances.ended_at IS NOT NULL"
_WITHIN: Final = ("issuances.ended_at >= :start", "issuances.ended_at < :end")


def summary(tx: Tx, seen: InventoryFilter) -> InventorySummary:
    """`seen` is what the asker may see; jobs and dead letters are counted only for those who may see everything."""
    now = tx.now()
    waiting = _attempts_under_way(tx, seen)
    ended = ends(tx, seen, now)
    return InventorySummary(
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
        notifications_dead=None if _narrow(seen) else notifications.count_dead(tx),
    )


def _narrow(seen: InventoryFilter) -> bool:
    return bool(seen.owners or seen.labels)


def _counted(rows: list[Row]) -> dict[str, int]:
    return {row["state"]: int(row["n"]) for row in rows}


def _where(seen: InventoryFilter, *more: str) -> tuple[str, dict[str, object]]:
    clauses, values = clauses_of(seen)
    return " AND ".join([*more, *(each for each in clauses if each != "TRUE")]) or "TRUE", values


def states(tx: Tx, seen: InventoryFilter) -> dict[str, int]:
    where, values = _where(seen)
    return _counted(tx.rows(f"SELECT state, COUNT(*) AS n FROM certificates WHERE {where} GROUP BY state", **values))


def _active(tx: Tx, seen: InventoryFilter, condition: str, **more: object) -> int:
    """By the partial index of the condition: SQLite would prefer that of the state, which nearly all have in common."""
    where, values = _where(seen, "COALESCE(certificates.state, '') = 'active'", condition)
    return int(tx.rows(f"SELECT COUNT(*) AS n FROM certificates WHERE {where}", **values, **more)[0]["n"])


def _attempts_under_way(tx: Tx, seen: InventoryFilter) -> dict[str, int]:
    source, where, values = _attempts(seen, f"issuances.state NOT IN {standings.OVER}")
    return _counted(
        tx.rows(f"SELECT issuances.state, COUNT(*) AS n FROM {source} WHERE {where} GROUP BY issuances.state", **values)
    )


def _attempts(seen: InventoryFilter, *more: str) -> tuple[str, str, dict[str, object]]:
    """A viewer of everything needs no join with owners and labels."""
    if not _narrow(seen):
        return "issuances", " AND ".join(more), {}
    where, values = _where(seen, *more)
    return "issuances JOIN certificates ON certificates.id = issuances.certificate", where, values


def ends(tx: Tx, seen: InventoryFilter, now: datetime) -> dict[int, int]:
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


def _bounds(grid: Grid) -> dict[str, object]:
    return {"start": grid.start, "step": grid.step}


def _by_span(tx: Tx, source: str, column: str, where: str, values: Mapping[str, object], grid: Grid) -> Counter[int]:
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


def _grouped(tx: Tx, source: str, column: str, where: str, values: Mapping[str, object], grid: Grid) -> Counter[int]:
    """The same for a part of them, found by what they have in common."""
    rows = tx.rows(
        f"""SELECT {_spans(column)} AS span, COUNT(*) AS n FROM {source}
             WHERE {where} AND {column} >= :start AND {column} < :end GROUP BY 1""",
        end=grid.end,
        **_bounds(grid),
        **values,
    )
    return Counter({int(row["span"]): int(row["n"]) for row in rows})


def expiry(tx: Tx, seen: InventoryFilter, grid: Grid) -> list[ExpiryCount]:
    """Those that end in each span, and the renewals that are planned there."""
    counted = _grouped if _narrow(seen) else _by_span
    ending = counted(tx, "certificates", "certificates.ends_at", *_where(seen, IN_USE), grid)
    planned = counted(tx, "certificates", "certificates.next_action_at", *_where(seen, _PLANNED), grid)
    return [
        ExpiryCount(at=grid.begins(span), expiring=ending[span], renewals=planned[span]) for span in range(grid.number)
    ]


def outcomes(tx: Tx, seen: InventoryFilter, grid: Grid) -> list[OutcomeCounts]:
    """Attempts by how they ended."""
    counted = _grouped if _narrow(seen) else _by_span
    issued, cancelled = (
        counted(tx, source, "issuances.ended_at", where, values, grid)
        for source, where, values in (_attempts(seen, f"issuances.state = '{how}'", _ENDED) for how in _NO_REASON)
    )
    why = _failures(tx, seen, grid)
    return [
        OutcomeCounts(
            at=grid.begins(span),
            issued=issued[span],
            failed=why[span].total(),
            cancelled=cancelled[span],
            reasons=dict(why[span]),
        )
        for span in range(grid.number)
    ]


_NO_REASON: Final = ("issued", "cancelled")  # ends of attempts that nobody asks the reason of


def _failures(tx: Tx, seen: InventoryFilter, grid: Grid) -> defaultdict[int, Counter[str]]:
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


def rates(tx: Tx, seen: InventoryFilter, grid: Grid) -> list[IssuerRate]:
    """Spans and CAs in which nothing was issued are left out."""
    found = _rates_grouped(tx, seen, grid) if _narrow(seen) else _rates_by_span(tx, grid)
    return [
        IssuerRate(
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


def _rates_grouped(tx: Tx, seen: InventoryFilter, grid: Grid) -> list[_Issued]:
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


def took(tx: Tx, seen: InventoryFilter, since: datetime, limit: int) -> list[tuple[datetime, float]]:
    """When the newest issuances since then ended, and how many seconds each took."""
    source, where, values = _attempts(seen, "issuances.state = 'issued'", _ENDED, "issuances.ended_at >= :since")
    rows = tx.rows(
        f"""SELECT issuances.ended_at AS at, {_TOOK} AS took FROM {source} WHERE {where}
             ORDER BY issuances.ended_at DESC LIMIT :limit""",
        since=since,
        limit=limit,
        **values,
    )
    return [(from_micros(row["at"]), int(row["took"]) / 1e6) for row in rows]


_EVERYTHING: Final = InventoryFilter(whatever_state=True)
_COUNTED: Final = f"""
    SELECT phase, reason, state, next_cause, COUNT(*) AS n FROM ({standings.EACH}) AS each_one GROUP BY 1, 2, 3, 4"""


def phases(tx: Tx, states: Mapping[str, int]) -> dict[tuple[str, str], int]:
    """How many certificates stand how, and why: the odd ones one by one, and all others, which are well, as the rest.

    `states` is how many there are in each state.
    """
    found, others = Counter[tuple[str, str]](), Counter(states)
    waiting = Counter(_waiting(tx))
    for row in tx.rows(_COUNTED, now=tx.now()):
        number = int(row["n"])
        found[row["phase"], reasons.of(row["reason"]).value if row["reason"] else Reason.NOT_DUE.value] += number
        others[row["state"]] -= number
        if row["state"] == "active" and row["next_cause"] in waiting:
            waiting[row["next_cause"]] -= number
    for cause, number in waiting.items():
        found["waiting", reasons.of(cause).value] += number
    found["archived", Reason.ARCHIVED.value] += others["archived"]
    found["ok", Reason.NOT_DUE.value] += others["active"] - waiting.total()
    return {place: number for place, number in found.items() if number}


def _waiting(tx: Tx) -> dict[str, int]:
    """Active ones by what they wait for."""
    rows = tx.rows(
        f"""SELECT next_cause, COUNT(*) AS n FROM certificates
             WHERE next_cause IN {standings.WAITING} AND state = 'active' GROUP BY next_cause"""
    )
    return {row["next_cause"]: int(row["n"]) for row in rows}


def all_states(tx: Tx) -> dict[str, int]:
    return states(tx, _EVERYTHING)


def all_ends(tx: Tx, now: datetime) -> dict[int, int]:
    """How many of those in use have ended (0), or end within so many days."""
    return ends(tx, _EVERYTHING, now)


def under_way(tx: Tx) -> dict[tuple[str, str], int]:
    """Attempts under way, by CA and state."""
    rows = tx.rows(
        f"SELECT issuer, state, COUNT(*) AS n FROM issuances WHERE state NOT IN {standings.OVER} GROUP BY issuer, state"
    )
    return {(row["issuer"], row["state"]): int(row["n"]) for row in rows}


def approvals_pending(tx: Tx) -> int:
    return int(tx.rows("SELECT COUNT(*) AS n FROM approvals WHERE state = 'pending'")[0]["n"])


def budgets_named(tx: Tx, keys: Sequence[str]) -> list[Budget]:
    """Without a lock: they are only looked at."""
    if not keys:
        return []
    text, values = value_list([(each,) for each in keys])
    rows = tx.rows(f"SELECT {budgets.TABLE.columns} FROM budgets WHERE key IN ({text})", **values)
    return [budgets.TABLE.read(row) for row in rows]


def own_budgets(tx: Tx) -> list[Budget]:
    """Those that are not a CA's: these have a series each, and those of CAs grow with the names."""
    rows = tx.rows(f"SELECT {budgets.TABLE.columns} FROM budgets WHERE key < 'ca/' OR key >= 'ca0' ORDER BY key")
    return [budgets.TABLE.read(row) for row in rows]


# ── What ended since a look before ──


class EndedIssuance(NamedTuple):
    """One attempt that is over."""

    issuer: str
    outcome: str
    reason: str
    took_s: float | None


_OUTCOMES: Final[Mapping[str, str]] = {
    "certificate.activated": "issued",
    "issuance.failed": "failed",
    "issuance.cancelled": "cancelled",
}


def newest_event(tx: Tx) -> int:
    return int(tx.rows("SELECT event_id FROM journal_head WHERE only_one = 1")[0]["event_id"])


def ended_after(tx: Tx, last: int, limit: int) -> tuple[list[EndedIssuance], int]:
    """The attempts that ended since this event, and the event to go on from: events are committed in their order."""
    rows = tx.rows(
        """SELECT id, name, details FROM events WHERE id > :last
              AND name IN ('certificate.activated', 'issuance.failed', 'issuance.cancelled')
            ORDER BY id LIMIT :limit""",
        last=last,
        limit=limit,
    )
    facts = [(row["name"], json.loads(row["details"])) for row in rows]
    unnamed = [told["issuance"] for _, told in facts if "issuer" not in told and "issuance" in told]
    issuers = _issuers_of(tx, unnamed)
    ended = [_ended(name, told, issuers) for name, told in facts if "issuance" in told]
    return ended, int(rows[-1]["id"]) if len(rows) == limit else max(last, newest_event(tx))


def _ended(name: str, told: Mapping[str, Any], issuers: Mapping[str, str]) -> EndedIssuance:
    issuer = told.get("issuer") or issuers.get(told["issuance"], "")
    return EndedIssuance(issuer, _OUTCOMES[name], str(told.get("reason") or ""), told.get("took_s"))


def _issuers_of(tx: Tx, issuances: list[str]) -> dict[str, str]:
    if not issuances:
        return {}
    text, values = value_list([(each,) for each in issuances])
    rows = tx.rows(f"SELECT id, issuer FROM issuances WHERE id IN ({text})", **values)
    return {row["id"]: row["issuer"] for row in rows}


# ── The certificates that are watched one by one ──


class PlannedRenewal(NamedTuple):
    """One whose renewal is planned, and waits for nothing but its time."""

    name: str
    issuer: str
    owner: str
    ends_at: datetime
    next_at: datetime


_BY_THE_RULES: Final = frozenset({Reason.DUE_ARI, Reason.DUE_LIFETIME, Reason.WINDOW})


def pressing(tx: Tx, limit: int) -> dict[str, PlannedRenewal | None]:
    """Those that matter most: the failing ones, then those that end first. None if its row does not tell all."""
    failing = tx.rows(
        """SELECT id FROM certificates WHERE last_failure_at IS NOT NULL AND state <> 'archived'
            ORDER BY last_failure_at LIMIT :limit""",
        limit=limit,
    )
    ending = tx.rows(
        """SELECT c.id, c.name, held.issuer, c.owner, c.ends_at, c.next_action_at, c.next_cause
             FROM (SELECT id, name, owner, ends_at, next_action_at, next_cause, current_version FROM certificates
                    WHERE state <> 'archived' AND ends_at > 0 ORDER BY ends_at, id LIMIT :limit) AS c
             LEFT JOIN certificate_versions AS held ON held.id = c.current_version
            ORDER BY c.ends_at, c.id""",
        limit=limit,
    )
    first: dict[str, PlannedRenewal | None] = {row["id"]: None for row in failing}
    then = {row["id"]: _planned(row) for row in ending if row["id"] not in first}
    return dict(islice((first | then).items(), limit))


def _planned(row: Row) -> PlannedRenewal | None:
    if row["issuer"] is None or row["next_action_at"] is None or row["next_cause"] not in _BY_THE_RULES:
        return None
    ends_at, next_at = from_micros(row["ends_at"]), from_micros(row["next_action_at"])
    return PlannedRenewal(row["name"], row["issuer"], row["owner"], ends_at, next_at)


def certificates_by_id(tx: Tx, ids: Sequence[str]) -> list[Certificate]:
    if not ids:
        return []
    text, values = value_list([(each,) for each in ids])
    rows = tx.rows(f"SELECT {certificates.TABLE.columns} FROM certificates WHERE id IN ({text})", **values)
    return [certificates.TABLE.read(row) for row in rows]
