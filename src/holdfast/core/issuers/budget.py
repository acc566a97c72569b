"""How many requests a remote still allows, and whose turn is next when it allows none: GCRA, purely.

One stored instant per key, the theoretical arrival time, is all that must be known of the past: requests
are paid off one per `every`, and at most `burst` of them may be owed at once. So no stretch of time,
however placed, sees more than `burst + stretch / every` requests, provided that all replicas pass the same
clock's `now` (the database's) and store what they get back in the transaction that read it.

A denied job is promised a turn of its own, one `every` after the turn promised last. Were all told the
first free instant, ten thousand waiting jobs would wake together, one would go, and the rest would be told
the next instant; and a status that says "next try at 14:05" would be wrong for all but one. A promise is no
reservation: new or urgent work may find the budget free and go first. A job that lost its turn so asks with
`waiting=True`, and joins a line of its own at the front instead of the end of the long one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

from holdfast.core.changed import changed

_LINES: Final = {  # (urgent, waiting)
    (False, False): "tail",
    (True, False): "urgent_tail",
    (False, True): "lost_tail",
    (True, True): "urgent_lost_tail",
}
# Transactions do not commit in the order in which they read the clock, and who pays for many owes more than a burst.
_SKEW: Final = timedelta(minutes=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What the remote allows: `burst` requests at once, refilled by one per `every`."""

    burst: int
    every: timedelta
    reserve: float = 0.2  # the share of the burst that only urgent work may use

    def __post_init__(self) -> None:
        if self.burst < 1 or self.every <= timedelta(0) or not 0 <= self.reserve < 1:
            raise ValueError("a limit needs burst >= 1, every > 0 and 0 <= reserve < 1")

    def depth(self, *, urgent: bool) -> int:
        """How many requests this kind of work may have outstanding at once."""
        if urgent or self.burst < 5:  # a fifth of less than five would be most of what there is
            return self.burst
        reserved = math.ceil(round(self.burst * self.reserve, 6))  # 100 × 0.07 is 7.000000000000001
        return max(1, self.burst - max(1, reserved))


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The stored state of one key."""

    key: str
    limit: Limit
    tat: datetime  # theoretical arrival time: when all requests sent so far are paid off
    not_before: datetime | None = None  # set by the server: no job goes earlier, however urgent
    tail: datetime | None = None  # the last turn promised to normal work
    urgent_tail: datetime | None = None  # likewise to urgent work, which must not queue behind the other line
    lost_tail: datetime | None = None  # and to those that had a turn and found it taken
    urgent_lost_tail: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """Go: it was paid for."""

    budget: Budget


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetWait:
    """Do not go before `until`; nothing was paid, but the line may have grown."""

    until: datetime
    cause: Literal["BUDGET", "NOT_BEFORE"]  # our own count, or the server's word
    budget: Budget


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenAll:
    """Go: it was paid for in each."""

    budgets: tuple[Budget, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitAll:
    """Do not go before `longest.until`; `waits` are the denials, and the other budgets are as they were."""

    waits: tuple[BudgetWait, ...]

    @property
    def longest(self) -> BudgetWait:
        return max(self.waits, key=lambda wait: wait.until)


def take(budget: Budget, now: datetime, *, urgent: bool, waiting: bool, count: int = 1) -> Taken | BudgetWait:
    """Pay for so many requests now, or learn when to ask again; `waiting` if this job had been promised a turn.

    More than may ever be outstanding at once waits for all of that to be free, and owes the rest: who comes next waits.
    """
    budget, depth = _forgiven(budget, now), budget.limit.depth(urgent=urgent)
    free = min(count, depth)
    if remaining(budget, now, urgent=urgent) >= free:
        return Taken(budget=changed(budget, tat=max(budget.tat, now) + budget.limit.every * count))

    until = budget.tat - budget.limit.every * (depth - free)
    cause: Literal["BUDGET", "NOT_BEFORE"] = "BUDGET"
    if budget.not_before is not None and budget.not_before >= until:
        until, cause = budget.not_before, "NOT_BEFORE"
    line = _LINES[urgent, waiting]
    last: datetime | None = getattr(budget, line)
    until = until if last is None else max(until, last + budget.limit.every * count)
    moved: dict[str, object] = {line: until}
    return BudgetWait(until=until, cause=cause, budget=changed(budget, **moved))


def take_all(
    budgets: Iterable[Budget], now: datetime, *, urgent: bool, waiting: bool, counts: Mapping[str, int] | None = None
) -> TakenAll | WaitAll:
    """Pay for one request in each budget, or in none: one half paid for would cost others their turn.

    `counts`: for how many, by key, where it is not one.
    """
    budgets, many = tuple(budgets), counts or {}
    if len({budget.key for budget in budgets}) < len(budgets):
        raise ValueError("a budget was given twice")  # the second state stored would undo the first
    answers = [take(each, now, urgent=urgent, waiting=waiting, count=many.get(each.key, 1)) for each in budgets]
    waits = tuple(answer for answer in answers if isinstance(answer, BudgetWait))
    return WaitAll(waits=waits) if waits else TakenAll(budgets=tuple(answer.budget for answer in answers))


def give_back(budget: Budget, amount: timedelta, held_for: timedelta) -> Budget:
    """The part that was taken and not used, less the time for which it was held.

    Another may meanwhile have found the budget idle for that long, had this not been taken: with all of it given
    back, more could go than the remote allows.
    """
    unused = amount - max(held_for, timedelta(0))
    return changed(budget, tat=budget.tat - unused) if unused > timedelta(0) else budget


def turn_returned(budget: Budget, now: datetime, at: datetime, *, urgent: bool, count: int = 1) -> Budget:
    """The turn at this time is not taken: the line is shorter, and the next job waits less."""
    for waiting in (False, True):
        line = _LINES[urgent, waiting]
        last: datetime | None = getattr(budget, line)
        if last is not None and last >= at > now:
            moved: dict[str, object] = {line: max(last - budget.limit.every * count, now)}
            return changed(budget, **moved)
    return budget


def hold(budget: Budget, until: datetime) -> Budget:
    """The server said: not before this time (429, Retry-After). A milder word never shortens a hold."""
    return changed(budget, not_before=until if budget.not_before is None else max(budget.not_before, until))


def remaining(budget: Budget, now: datetime, *, urgent: bool) -> int:
    """How many requests such work could send at this instant."""
    if budget.not_before is not None and now < budget.not_before:
        return 0
    limit = budget.limit
    owed = max(budget.tat - now, timedelta(0))
    return max(0, (limit.every * limit.depth(urgent=urgent) - owed) // limit.every)


def half_free_at(budget: Budget, now: datetime) -> datetime | None:
    """When half of the burst is free again; None if it is now."""
    at = budget.tat - budget.limit.every * (budget.limit.burst // 2)
    return at if at > now else None


def _forgiven(budget: Budget, now: datetime) -> Budget:
    """The budget, owing no more than a full burst.

    More is owed only after the clock was set back or the limit raised, and would keep everyone waiting, for
    days if `every` was hours, for the sake of requests that the remote has long forgotten.
    """
    most = now + budget.limit.burst * budget.limit.every
    return changed(budget, tat=most) if budget.tat > most + _SKEW else budget
