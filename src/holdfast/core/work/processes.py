"""What becomes of a process of ours that has ended: another in its place, after a wait, or the end of all of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from holdfast.core.backoff import RESTART

STEADY: Final = timedelta(minutes=1)  # one that served for so long did not fail at its start: waits begin anew
MOST: Final = 64  # processes of one server


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A process that nobody told to stop. A negative code is the signal that ended it."""

    number: int
    code: int
    served_for: timedelta | None  # None: it never came to serve
    others_served: bool  # since the server was started
    failures: int  # in a row, before this one


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAgain:
    after: timedelta
    failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """A person must act: what it said on its way out, the others would say as well."""

    code: int


def after(ended: Ended) -> StartAgain | GiveUp:
    """A refusal at the first start is the server's; all else is one process's, and the others go on meanwhile."""
    if ended.code > 0 and ended.served_for is None and not ended.others_served:
        return GiveUp(code=ended.code)
    steady = ended.served_for is not None and ended.served_for >= STEADY
    failures = 1 if steady else ended.failures + 1
    return StartAgain(after=RESTART.wait(failures, str(ended.number)), failures=failures)
