"""Waiting for a certificate at a terminal: what changes is said as it happens, and leaving stops nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from holdfast.cli.terminal import duration, instant, say

if TYPE_CHECKING:
    from holdfast.cli.client import Client
    from holdfast.ports import Clock

IN_PROGRESS: Final = 3  # exit code
DETACHED: Final = 130
LOOK_EVERY: Final = 2.0  # seconds, though nothing was heard: it may have happened before we listened
WaitOption = Annotated[bool, typer.Option("--wait", "-w", help="Wait until it is over, and say how it goes.")]
TimeoutOption = Annotated[float, typer.Option("--timeout", min=1, metavar="SECONDS", help="How long to wait.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Say what would be, and change nothing.")]
KeyOption = Annotated[
    str | None, typer.Option("--idempotency-key", help="Repeat a command with the same word: it happens once.")
]
Verdict = Callable[[Mapping[str, Any]], int | None]  # an exit code, or None to go on


def follow(client: Client, ref: str, verdict: Verdict, *, timeout: float, clock: Clock) -> int:
    """Look, and look again whenever something happens, until there is a verdict or the time is over."""
    deadline, told = clock.monotonic() + timeout, ""
    try:
        while True:
            found = client.get(f"/certificates/{ref}")
            told = _tell(found, told, clock)
            if (code := verdict(found)) is not None:
                return code
            left = deadline - clock.monotonic()
            if left <= 0:
                say(f"It is still under way. Go on waiting: holdfast wait {ref}")
                return IN_PROGRESS
            with closing(client.events(after=None, subject=found["id"], quiet_for=min(left, LOOK_EVERY))) as news:
                next(news, None)
    except KeyboardInterrupt:
        say(f"\nYou left; it goes on. Look again: holdfast status {ref}")
        return DETACHED


def _tell(found: Mapping[str, Any], before: str, clock: Clock) -> str:
    """Say how it stands, if that is news."""
    block, attempt = found["status"], found["operation"]
    step = f", {attempt['state'].replace('_', ' ')}" if attempt else ""
    line = f"{found['name']}: {block['phase']}{step}: {block['reason_code']} {block['reason']}"
    if block["attempt"]:
        line += f" ({block['attempt']} failed so far)"
    if line != before:
        then = block["next_attempt_at"]
        span = None if then is None else instant(then) - clock.now()
        say(line + (f" Next in {duration(span)}." if span is not None and span.total_seconds() > 1 else ""))
    return line


def of_attempt(client: Client, attempt: str) -> Verdict:
    """0 once this attempt gave a certificate, 1 once it failed."""

    def verdict(found: Mapping[str, Any]) -> int | None:
        state = client.get(f"/issuances/{attempt}")["state"]
        return {"issued": 0, "failed": 1, "cancelled": 1}.get(state)

    return verdict


def issued(found: Mapping[str, Any]) -> int | None:
    """0 once there is a good certificate and nothing is under way for it."""
    return (
        0 if found["serial"] is not None and found["operation"] is None and found["status"]["phase"] == "ok" else None
    )
