"""Waiting for a certificate at a terminal: what changes is said as it happens, and leaving stops nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Final

import typer

from holdfast.cli.durations import seconds
from holdfast.cli.everywhere import DETACHED, FAILED, IN_PROGRESS, Row, chosen
from holdfast.cli.terminal import duration, instant, live, say, say_over
from holdfast.core import reasons
from holdfast.errors import UserError

if TYPE_CHECKING:
    from holdfast.cli.client import Client
    from holdfast.ports import Clock

TOO_MANY: Final = 429  # HTTP
LOOK_EVERY: Final = 2.0  # seconds, though nothing was heard: it may have happened before we listened
LOOK_FIRST: Final = 0.1  # seconds; then twice as long each time, so that a quick end is seen quickly
TICK: Final = 1.0  # seconds between two steps of a countdown on a terminal
EVERY_SO_OFTEN: Final = "SCHEDULED"  # the reason of jobs that never end: they have run, and will again
SPINNER: Final = "|/-\\"
WaitOption = Annotated[bool, typer.Option("--wait", "-w", help="Wait until it is done, and print each step.")]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", parser=seconds, metavar="SPAN", help="How long to wait, such as 20s or 5m.")
]


def once(what: str = "") -> dict[str, str]:
    """The header for --idempotency-key. `what` tells several requests of one command apart."""
    key = chosen().idempotency_key
    return {} if key is None else {"Idempotency-Key": f"{key}/{what}" if what else key}


Verdict = Callable[[Row], int | None]  # an exit code, or None to go on


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """Something to wait for: how to look at it, how to print it, and the commands that look again."""

    look: Callable[[], Row]
    line: Callable[[Row], str]
    subject: str  # whose events tell that something happened
    next_at: Callable[[Row], str | None]
    again: str  # the command that goes on waiting
    later: str  # the command that shows its state
    idle: Callable[[Row], bool] = lambda _found: False  # nothing is under way: cancelled, or not begun yet


def follow(
    client: Client,
    ref: str,
    verdict: Verdict,
    *,
    timeout: float,
    clock: Clock,
    known: Row | None = None,
    goal: str = "issued",
) -> int:
    """A certificate. `known`: how it stood when it was asked for, which may be over before the first look."""
    first = known or client.get(f"/certificates/{ref}")
    watched = Watched(
        look=lambda: client.get(f"/certificates/{ref}"),
        line=standing,
        subject=first["id"],
        next_at=lambda found: found["status"]["next_attempt_at"],
        again=f"holdfast wait {quote(ref)}{'' if goal == 'issued' else f' --for {goal}'}",
        idle=lambda found: found["operation"] is None and not _on_its_way(found),
        later=f"holdfast status {quote(ref)}",
    )
    return watch(
        client, watched, lambda found: _first(verdict(found), stuck(found)), timeout=timeout, clock=clock, known=known
    )


def _first(*codes: int | None) -> int | None:
    return next((code for code in codes if code is not None), None)


def stuck(found: Row) -> int | None:
    """1 if a person must act first: waiting longer changes nothing."""
    status = found["status"]
    if reasons.of(status["reason_code"]) not in reasons.FOR_A_PERSON:
        return None
    who = "You must act" if status["acts_next"] == "you" else "An operator of Holdfast must act"
    say(f"{who} first: {status['last_error'] or status['reason']} Holdfast goes on trying.")
    return FAILED


def watch(
    client: Client, watched: Watched, verdict: Verdict, *, timeout: float, clock: Clock, known: Row | None = None
) -> int:
    """Look, and look again whenever something happens, until there is a verdict or the time is over."""
    deadline, teller, pace = clock.monotonic() + timeout, Teller(clock, watched), LOOK_FIRST
    try:
        if known is not None:
            teller.tell(known)
        while True:
            found = watched.look()
            teller.tell(found)
            if (code := verdict(found)) is not None:
                teller.tell(watched.look())  # it may have ended after that look
                teller.end()
                return code
            left = deadline - clock.monotonic()
            if left <= 0:
                teller.end()
                now = "Nothing is" if watched.idle(found) else "It is still"
                say(f"{now} under way. Go on waiting: {watched.again}")
                return IN_PROGRESS
            quiet_for, pace = min(left, pace), min(2 * pace, TICK if teller.live else LOOK_EVERY)
            _until_news(client, watched.subject, quiet_for, clock)
    except KeyboardInterrupt:
        teller.end()
        say(f"You left; it goes on. Look again: {watched.later}")
        return DETACHED


def _until_news(client: Client, subject: str, seconds: float, clock: Clock) -> None:
    """Or until so much time has passed: hearing of it only makes it quicker, and there may be too many who listen."""
    try:
        with closing(client.events(after=None, subject=subject, quiet_for=seconds)) as news:
            next(news, None)
    except UserError as why:
        if why.status != TOO_MANY:
            raise
        import asyncio

        asyncio.run(clock.sleep(seconds))


class Teller:
    """Prints the state: on a terminal in one line that is written over, elsewhere a line for each change."""

    def __init__(self, clock: Clock, watched: Watched) -> None:
        self.live = live()
        self._clock, self._watched = clock, watched
        self._told = ""
        self._turn = 0

    def tell(self, found: Row) -> None:
        line, left = self._watched.line(found), countdown(self._watched.next_at(found), self._clock.now())
        before, self._told = self._told, line  # first, so that Ctrl-C leaves this line behind
        if self.live:
            self._turn += 1
            say_over(f"{SPINNER[self._turn % len(SPINNER)]} {line}{left}")
        elif line != before:
            say(f"{line}{left}")

    def end(self) -> None:
        if self.live and self._told:
            say_over("")
            say(self._told)


def standing(found: Row) -> str:
    """Phase, step, number of the attempt, and the reason. The text is the same until one of them changes."""
    block, attempt = found["status"], found["operation"]
    step = f", {attempt['state'].replace('_', ' ')}" if attempt else ""
    most = f"/{block['max_attempts']}" if block["max_attempts"] else ""
    number = f", attempt {block['attempt'] + (1 if attempt else 0)}{most}" if attempt or block["attempt"] else ""
    return f"{found['name']}: {block['phase']}{step}{number}: {block['reason_code']} {block['reason']}"


def countdown(next_at: str | None, now: datetime) -> str:
    """Until the next step; once its time has come, it waits for a worker, and never for less than nothing."""
    if next_at is None:
        return ""
    span = instant(next_at) - now
    return f" Next in {duration(span)}." if span.total_seconds() > 1 else ""


def of_attempt(client: Client, attempt: str) -> Verdict:
    """0 once this attempt gave a certificate, 1 once it failed."""

    def verdict(found: Row) -> int | None:
        state = client.get(f"/issuances/{attempt}")["state"]
        return {"issued": 0, "failed": 1, "cancelled": 1}.get(state)

    return verdict


def issued(found: Row) -> int | None:
    """0 once there is a good certificate and no issuance is under way for it."""
    held = found["serial"] is not None and found["operation"] is None
    return 0 if held and (found["status"]["phase"] == "ok" or _on_its_way(found)) else None


def served(found: Row) -> int | None:
    """0 once every target serves it, too."""
    return issued(found) if not _on_its_way(found) else None


def _on_its_way(found: Row) -> bool:
    return any(each["state"] not in ("served", "installed") for each in found["deployments"])


# ── Jobs ──


def job_over(asked: Row) -> Verdict:
    """0 once it is done, 1 once this attempt failed, or it was cancelled or given up; `asked`: how it stood before."""

    def verdict(found: Row) -> int | None:
        over = {"done": 0, "cancelled": 1, "failed": 1, "dead": 1}.get(found["state"])
        ran = found["state"] == "ready" and found["last_attempt_at"] != asked["last_attempt_at"]
        return 0 if over is None and ran and found["reason_code"] == EVERY_SO_OFTEN else over

    return verdict


def a_job(client: Client, row: Row) -> Watched:
    job = row["id"]
    return Watched(
        look=lambda: client.get(f"/jobs/{job}"),
        line=_job_standing,
        subject=row["subject"],
        next_at=lambda found: found["next_attempt_at"],
        again=f"holdfast retry {job} --wait",
        later=f"holdfast jobs show {job}",
    )


def _job_standing(found: Row) -> str:
    why = " ".join(each for each in (found["reason_code"], found["last_error"]) if each)
    number = f", attempt {found['attempt']}/{found['max_attempts']}" if found["attempt"] else ""
    return f"{found['id']}: {found['kind']}, {found['state']}{number}{': ' if why else ''}{why}"
