"""Budgets in the store: what a remote allows, counted over all replicas, taken in the transaction that claims a job."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from holdfast.core.issuers import budget
from holdfast.core.issuers.budget import Budget, Limit, TakenAll, WaitAll
from holdfast.core.work.job import Priority
from holdfast.store.rows import Part, Table
from holdfast.store.tx import Row, Tx, from_micros, value_list

WAITING = ("BUDGET", "NOT_BEFORE")  # reasons of jobs that were promised a turn
TABLE: Final = Table(Budget, "budgets", parts={"limit": Part(Table(Limit))})


def define(tx: Tx, key: str, limit: Limit) -> None:
    """Make a budget, or change its limit: what was used so far still counts, turns promised at the old rate do not."""
    tx.run(
        """INSERT INTO budgets (key, burst, every, reserve, tat) VALUES (:key, :burst, :every, :reserve, now_us())
           ON CONFLICT (key) DO UPDATE
              SET burst = excluded.burst, every = excluded.every, reserve = excluded.reserve,
                  tail = NULL, urgent_tail = NULL, lost_tail = NULL, urgent_lost_tail = NULL
            WHERE budgets.burst <> excluded.burst OR budgets.every <> excluded.every
               OR budgets.reserve <> excluded.reserve""",
        key=key,
        burst=limit.burst,
        every=limit.every,
        reserve=limit.reserve,
    )


def define_all(tx: Tx, limits: Mapping[str, Limit]) -> None:
    """Make or change those that are not so already. Looking takes no lock, and claims lock in an order of their own."""
    if not limits:
        return
    text, values = value_list([(key,) for key in limits])
    rows = tx.rows(f"SELECT key, burst, every, reserve FROM budgets WHERE key IN ({text})", **values)
    same = {
        row["key"]
        for row in rows
        if Limit(burst=row["burst"], every=timedelta(microseconds=row["every"]), reserve=row["reserve"])
        == limits[row["key"]]
    }
    for key in sorted(limits.keys() - same):
        define(tx, key, limits[key])


def hold(tx: Tx, key: str, until: datetime) -> None:
    """The server named a time: no job that shares this budget asks before it."""
    for held in load(tx, [key]):
        _save(tx, budget.hold(held, until))


def admit(tx: Tx, rows: Sequence[Row]) -> list[Row]:
    """Of these locked job rows, those whose budgets pay for them now; the others get a turn and a reason."""
    keys = {key for row in rows for key in _keys(row)}
    if not keys:
        return list(rows)
    purse = {held.key: held for held in load(tx, keys)}
    now = tx.now()
    admitted: list[Row] = []
    for row in rows:
        counts = Counter(_keys(row))  # a key that is there three times pays for three requests
        needed = [purse[key] for key in counts if key in purse]
        urgent, waiting = row["priority"] == Priority.URGENT, row["reason"] in WAITING
        answer = budget.take_all(needed, now, urgent=urgent, waiting=waiting, counts=counts)
        if isinstance(answer, TakenAll):
            took = {paid.key: _taken(purse[paid.key], paid, now) for paid in answer.budgets}
            admitted.append({**row, "paid": took, "paid_at": now})
            purse |= {paid.key: paid for paid in answer.budgets}
        else:
            purse |= {wait.budget.key: wait.budget for wait in answer.waits}
            _promise(tx, row, answer)
    for held in purse.values():
        _save(tx, held)
    return admitted


def _taken(before: Budget, after: Budget, now: datetime) -> timedelta:
    return after.tat - max(before.tat, now)


def give_back(tx: Tx, paid: Mapping[str, timedelta], since: datetime) -> None:
    """A claim ends, and the remote cannot have counted what it took at this time."""
    if not paid:
        return
    held_for = tx.now() - since
    for held in load(tx, paid):
        after = budget.give_back(held, paid[held.key], held_for)
        if after != held:
            _save(tx, after)


def return_turn(tx: Tx, job: str) -> None:
    """A job that waits for its turn ends: the last in its line gets that turn, and the line is shorter by one."""
    row = tx.row(
        """SELECT kind, priority, budgets, due_at FROM jobs WHERE id = :id AND state = 'ready' AND due_at > now_us()
              AND budgets <> '' AND reason IN ('BUDGET', 'NOT_BEFORE') /* FOR UPDATE */""",
        id=job,
    )
    if row is None:
        return
    tx.run(
        """UPDATE jobs SET due_at = :due_at WHERE id = (
             SELECT id FROM jobs WHERE kind = :kind AND state = 'ready' AND reason IN ('BUDGET', 'NOT_BEFORE')
                AND priority = :priority AND budgets = :budgets AND due_at > :due_at
              ORDER BY due_at DESC LIMIT 1)""",
        **row,
    )
    counts, at, urgent = Counter(_keys(row)), from_micros(row["due_at"]), row["priority"] == Priority.URGENT
    for held in load(tx, counts):
        _save(tx, budget.turn_returned(held, tx.now(), at, urgent=urgent, count=counts[held.key]))


def _promise(tx: Tx, row: Row, answer: WaitAll) -> None:
    tx.run(
        "UPDATE jobs SET due_at = :until, reason = :cause WHERE id = :id",
        id=row["id"],
        until=answer.longest.until,
        cause=answer.longest.cause,
    )


def load(tx: Tx, keys: Iterable[str]) -> list[Budget]:
    """Lock and read; always in the order of the keys, so that two replicas cannot wait for each other."""
    text, values = value_list([(key,) for key in sorted(keys)])
    rows = tx.rows(
        f"SELECT {TABLE.columns} FROM budgets WHERE key IN ({text}) ORDER BY key /* FOR UPDATE */",
        **values,
    )
    return [TABLE.read(row) for row in rows]


def all_budgets(tx: Tx) -> list[Budget]:
    rows = tx.rows(f"SELECT {TABLE.columns} FROM budgets ORDER BY key")
    return [TABLE.read(row) for row in rows]


def _save(tx: Tx, held: Budget) -> None:
    tx.run(
        """UPDATE budgets SET tat = :tat, not_before = :not_before, tail = :tail, urgent_tail = :urgent_tail,
                  lost_tail = :lost_tail, urgent_lost_tail = :urgent_lost_tail
            WHERE key = :key""",
        key=held.key,
        tat=held.tat,
        not_before=held.not_before,
        tail=held.tail,
        urgent_tail=held.urgent_tail,
        lost_tail=held.lost_tail,
        urgent_lost_tail=held.urgent_lost_tail,
    )


def _keys(row: Row) -> list[str]:
    return row["budgets"].split("\n") if row["budgets"] else []


def spend(tx: Tx, key: str, limit: Limit) -> datetime | None:
    """Count something that has happened. None while more of it is allowed; else when the next one will be."""
    define(tx, key, limit)
    now = tx.now()
    [held] = load(tx, [key])
    after = replace(held, tat=max(held.tat, now) + limit.every)
    _save(tx, after)
    if budget.remaining(after, now, urgent=True):
        return None
    return after.tat - limit.every * (limit.burst - 1)


def take_some(tx: Tx, key: str, limit: Limit, most: int) -> tuple[int, datetime | None]:
    """Pay for up to so many requests now: how many were paid for, and if none was, when to ask again."""
    define_all(tx, {key: limit})
    [held] = load(tx, [key])
    now, taken = tx.now(), 0
    for _ in range(most):
        answer = budget.take(held, now, urgent=True, waiting=True)
        if isinstance(answer, budget.BudgetWait):
            if not taken:
                return 0, answer.until
            break
        held, taken = answer.budget, taken + 1
    _save(tx, held)
    return taken, None


def charge(tx: Tx, job: str, keys: Iterable[str], payload: Mapping[str, object] | None = None) -> None:
    """Say what the next claim of a job pays for: a look at an order costs less than the order did."""
    told = {} if payload is None else {"payload": json.dumps(payload)}
    tx.run(
        f"UPDATE jobs SET budgets = :budgets{''.join(f', {name} = :{name}' for name in told)} WHERE id = :id",
        id=job,
        budgets="\n".join(keys),
        **told,
    )


def count(tx: Tx, keys: Iterable[str]) -> None:
    """A request was sent that was not paid for beforehand: the next job waits for it."""
    wanted, now = sorted(keys), tx.now()
    for held in load(tx, wanted) if wanted else ():
        _save(tx, replace(held, tat=max(held.tat, now) + held.limit.every))


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetQueue:
    """How long those who come now wait at one budget."""

    held_until: datetime  # by the server's word
    turn_at: datetime


def lines(tx: Tx, keys: Iterable[str], now: datetime) -> dict[str, BudgetQueue]:
    """Without a lock, for those who only plan; budgets that do not exist yet are left out."""
    text, values = value_list([(key,) for key in sorted(keys)] or [("",)])
    found: dict[str, BudgetQueue] = {}
    for row in tx.rows(f"SELECT {TABLE.columns} FROM budgets WHERE key IN ({text})", **values):
        held = TABLE.read(row)
        answer = budget.take(held, now, urgent=False, waiting=False)
        turn_at = answer.until if isinstance(answer, budget.BudgetWait) else now
        found[held.key] = BudgetQueue(held_until=held.not_before or now, turn_at=turn_at)
    return found
