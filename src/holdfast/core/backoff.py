"""The only place where waits come from: every ladder, and the reading of a remote's own Retry-After.

Nothing here draws a random number. Jitter is derived from the row and the attempt, so that every replica,
every restart and every test finds the same instant, and asking again never re-rolls it.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final


def spread(key: str) -> float:
    """A number in [0, 1) that belongs to this key: evenly spread over keys, and the same everywhere."""
    digest = hashlib.sha256(key.encode()).digest()
    return (int.from_bytes(digest[:8]) >> 11) / 2**53  # 53 bits: with 64 the division could round up to 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """Waits that grow by a factor from `first` to `cap`; `jitter` 0.2 then moves each by up to ±20 %."""

    first: timedelta
    factor: float
    cap: timedelta
    jitter: float = 0.0

    def __post_init__(self) -> None:
        if not timedelta(0) < self.first <= self.cap:
            raise ValueError("a ladder needs 0 < first <= cap")
        if not (1 <= self.factor < math.inf and 0 <= self.jitter < 1):
            raise ValueError("a ladder needs a finite factor >= 1 and 0 <= jitter < 1")

    def rung(self, n: int) -> timedelta:
        """The wait after the n-th failure in a row, before jitter; a count below 1 is read as 1."""
        return min(self.first * self.factor ** (min(max(n, 1), self._top()) - 1), self.cap)

    def wait(self, n: int, key: str) -> timedelta:
        """The wait after the n-th failure in a row of the row called key."""
        return self.rung(n) * (1 + self.jitter * (2 * spread(f"{key}#{max(n, 1)}") - 1))

    def _top(self) -> int:
        """The first rung at the cap. No power beyond it is ever computed, so no count can overflow."""
        return 1 if self.factor == 1 else 1 + math.ceil(math.log(self.cap / self.first, self.factor))


_SECOND: Final = timedelta(seconds=1)
_MINUTE: Final = timedelta(minutes=1)
_HOUR: Final = timedelta(hours=1)

JOB: Final = Ladder(first=30 * _SECOND, factor=2, cap=_HOUR, jitter=0.1)  # for a kind that names no other
# An agent whose server cannot be reached; the first wait is spread over two minutes, so that no herd comes back.
AGENT_RECONNECT: Final = Ladder(first=5 * _SECOND, factor=2, cap=15 * _MINUTE, jitter=0.5)
AGENT_RENEWAL: Final = Ladder(first=_MINUTE, factor=2, cap=_HOUR, jitter=0.1)  # of its own identity
STORE: Final = Ladder(first=_SECOND / 2, factor=2, cap=15 * _SECOND, jitter=0.2)  # the store is unreachable
RESTART: Final = Ladder(first=_SECOND / 2, factor=2, cap=30 * _SECOND, jitter=0.2)  # a process of ours has ended


# Transactions that got in each other's way.
CONFLICT: Final = Ladder(first=_SECOND / 200, factor=2, cap=_SECOND, jitter=0.5)
# Our own CA: another look at a challenge, and another try to sign a finalized order.
VALIDATION: Final = Ladder(first=2 * _SECOND, factor=2.5, cap=15 * _SECOND)
SIGNING: Final = Ladder(first=5 * _SECOND, factor=3, cap=5 * _MINUTE, jitter=0.2)

# The breaker of a remote: while it is down, while it says "too many requests", while it refuses our account.
BREAKER_DOWN: Final = Ladder(first=_MINUTE, factor=2, cap=15 * _MINUTE)
BREAKER_LIMITED: Final = Ladder(first=30 * _SECOND, factor=2, cap=15 * _MINUTE)
BREAKER_BARRED: Final = Ladder(first=5 * _MINUTE, factor=2, cap=_HOUR)


# ── CA poll: 5, 15, 45, 135, 300, 300 … s within a window, then rest ──────────────────────────────────────

POLL: Final = Ladder(first=5 * _SECOND, factor=3, cap=300 * _SECOND, jitter=0.2)
POLL_WINDOW: Final = 600 * _SECOND
REST_CAP: Final = _HOUR


def poll_wait(attempt: int, *, waited: timedelta, window: timedelta, key: str) -> timedelta | None:
    """The wait after the n-th poll of an order polled for `waited` so far; None: its window is used up, rest.

    The last wait ends exactly with the window, so that an answer of its final minute is seen in it.
    A window of zero means the default.
    """
    left = (window if window > timedelta(0) else POLL_WINDOW) - waited
    return min(POLL.wait(attempt, key), left) if left > timedelta(0) else None


def rest_wait(age: timedelta, *, key: str) -> timedelta:
    """The wait between two looks at an order that outlived its window: a twelfth of its age, 5 min to 1 h.

    An order an hour old is looked at every 5 minutes, one that has waited a day for a person about hourly.
    Jitter only lengthens, so that rest is never denser than the poll ladder's cap, and the hour includes it.
    """
    steady = min(max(age / 12, POLL.cap), REST_CAP / (1 + POLL.jitter))
    return steady * (1 + POLL.jitter * spread(key))


def insisting_wait(age: timedelta, asked: timedelta | None, *, key: str) -> timedelta:
    """The wait before a CA is told again what it could not hear for `age`: as long again, 30 s to 1 h.

    It doubles as the ladder of jobs does, and needs no count: what waits for weeks must not use attempts up.
    """
    own = min(max(age, JOB.first), JOB.cap / (1 + JOB.jitter)) * (1 + JOB.jitter * spread(key))
    return max(own, asked or timedelta(0))


def next_poll(
    polls: int, *, waited: timedelta, window: timedelta, age: timedelta, asked: timedelta | None, key: str
) -> tuple[timedelta, bool]:
    """The wait after so many polls of an order, and whether it rests by now.

    A remote that asks for a longer wait gets it; one that asks for a shorter is not looked at more often for that.
    """
    own = poll_wait(polls, waited=waited, window=window, key=key)
    rests = own is None
    return max(rest_wait(age, key=key) if own is None else own, asked or timedelta(0)), rests


# ── Passing failures within one attempt: 30 s, 1, 2, 4 min, then the attempt failed ───────────────────────

# The order stays, so trying again soon costs nothing.
PASSING: Final = Ladder(first=30 * _SECOND, factor=2, cap=10 * _MINUTE, jitter=0.2)
PASSING_TRIES: Final = 5


# ── Issuance: 1, 2, 4, 8, 16, 32, 32 … h from the last failure ────────────────────────────────────────────

# No jitter: the instant is shown to people and must be the one they would work out. Certificates that failed
# together are kept apart by the turns of their budget (core/issuers/budget.py), which also sees all replicas.
ISSUANCE: Final = Ladder(first=_HOUR, factor=2, cap=32 * _HOUR)


class FailureClass(StrEnum):
    """What kind of failure it was: decided before it is counted."""

    TRANSIENT = "transient"  # network, 5xx, a stale nonce
    RATE_LIMITED = "rate_limited"  # 429, or a problem document that says so
    VALIDATION = "validation"  # the CA could not see our proof
    REFUSED = "refused"  # the CA or an approver said no
    LOCAL = "local"  # our own fault: a bad setting, a missing secret, a bug


def counts_against_certificate(failure: FailureClass) -> bool:
    """Whether it climbs the certificate's ladder; a rate limit does not, its wait is the budget's."""
    return failure is not FailureClass.RATE_LIMITED


def issuance_ladder(left_at_first_failure: timedelta | None) -> Ladder:
    """The ladder for a certificate with this much life left when it began to fail; None if it has none yet.

    One that has ended has nothing left to hurry for, and climbs the plain ladder.

    On the plain ladder a certificate with a day left would be tried four more times before it expires. Here
    the steps shrink with the time left, and eleven tries fit. From 11 days (8 × 32 h) on it is the plain one.
    """
    if left_at_first_failure is None or left_at_first_failure <= timedelta(0):
        return ISSUANCE  # there is no end to be in time for
    first = max(min(ISSUANCE.first, left_at_first_failure / 128), _MINUTE)
    cap = max(min(ISSUANCE.cap, left_at_first_failure / 8), 15 * _MINUTE)
    return Ladder(first=first, factor=ISSUANCE.factor, cap=cap)


def issuance_wait(
    failures: int | None, *, left_at_first_failure: timedelta | None, over_for: timedelta | None = None
) -> timedelta:
    """The wait after this many failures in a row; a missing or impossible count is read as the first.

    `over_for`: how long ago it had ended at the last failure. The dense steps of one that began to fail shortly before
    its end do not go on for ever: from the end on they grow again from an hour, as long as it has been over, to 32 h.
    """
    wait = issuance_ladder(left_at_first_failure).rung(failures or 1)
    if over_for is None or over_for < timedelta(0):
        return wait
    return max(wait, min(max(over_for, ISSUANCE.first), ISSUANCE.rung(failures or 1)))


def issuance_next_at(
    last_failure_at: datetime,
    failures: int | None,
    *,
    left_at_first_failure: timedelta | None,
    over_for: timedelta | None = None,
) -> datetime:
    """When to try again: from stored facts alone, so that a restart neither forgets nor extends a wait."""
    return last_failure_at + issuance_wait(failures, left_at_first_failure=left_at_first_failure, over_for=over_for)


# ── Notification: 1, 2, 4, 8 min, then dead ───────────────────────────────────────────────────────────────

NOTIFICATION: Final = Ladder(first=_MINUTE, factor=2, cap=_HOUR)
NOTIFICATION_MAX_ATTEMPTS: Final = 5
CHANNEL_DOWN_AFTER: Final = 72 * _HOUR  # waiting this long on an open breaker is death, too


def notification_wait(attempts: int) -> timedelta | None:
    """The wait after this many failed attempts to deliver; None: that was the last, the notification is dead."""
    return NOTIFICATION.rung(attempts) if attempts < NOTIFICATION_MAX_ATTEMPTS else None


# ── Deployment: 1, 2, 4 … 60 min; from 1 h on where a person must act ─────────────────────────────────────

DEPLOYMENT: Final = Ladder(first=_MINUTE, factor=2, cap=_HOUR)
DEPLOYMENT_REFUSED: Final = Ladder(first=_HOUR, factor=2, cap=8 * _HOUR)
VERIFYING: Final = Ladder(first=_SECOND, factor=2, cap=15 * _SECOND)  # looks at endpoints after a reload


def deployment_wait(failures: int, *, refused: bool, left: timedelta | None) -> timedelta:
    """The wait after this many failures in a row. `left`: until what the target serves expires; eight tries fit."""
    wait = (DEPLOYMENT_REFUSED if refused else DEPLOYMENT).rung(failures)
    if left is None or left <= timedelta(0):
        return wait
    return max(min(wait, left / 8), _MINUTE)


# ── Retry-After (RFC 9110 §10.2.3) ────────────────────────────────────────────────────────────────────────

RETRY_AFTER_LOW: Final = 5 * _SECOND
RETRY_AFTER_HIGH: Final = 24 * _HOUR
_RETRY_AFTER_LONGEST: Final = 64  # characters; the longest HTTP-date has 33
_SECONDS: Final = re.compile("-?[0-9]+")  # a negative wait is absurd, not unreadable


def retry_after(
    value: str | None, now: datetime, *, low: timedelta = RETRY_AFTER_LOW, high: timedelta = RETRY_AFTER_HIGH
) -> timedelta | None:
    """How long the remote asks us to stay away, within [low, high]; None if it named no time we can read.

    The limits are for answers that are absurd, by mistake or by malice: a date in the past must not become a
    hot loop, nor ten years a certificate that is never tried again.
    """
    if value is None or len(value) > _RETRY_AFTER_LONGEST or not value.isascii():
        return None
    text = value.strip()
    if _SECONDS.fullmatch(text):
        # Capped while still an integer: 64 digits do not fit a timedelta.
        asked = timedelta(seconds=max(0, min(int(text), math.ceil(high.total_seconds()))))
    else:
        try:
            from email.utils import parsedate_to_datetime  # slow to load, and commands load the ladders

            date = parsedate_to_datetime(text)
        except (ValueError, OverflowError):
            return None
        asked = (date if date.tzinfo else date.replace(tzinfo=UTC)) - now  # "-0000" is read without a zone
    return max(low, min(asked, high))


_IN_WORDS: Final = re.compile(r"retry after (\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d) ?(?:UTC|Z)", re.IGNORECASE)


def retry_after_in_words(
    text: str, now: datetime, *, low: timedelta = RETRY_AFTER_LOW, high: timedelta = RETRY_AFTER_HIGH
) -> timedelta | None:
    """The same from a sentence, "… retry after 2026-11-16 12:34:56 UTC: see …", for a CA that sends no header."""
    found = _IN_WORDS.search(text)
    if found is None:
        return None
    try:
        date = datetime.fromisoformat(f"{found[1]}T{found[2]}+00:00")
    except ValueError:
        return None
    return max(low, min(date - now, high))
