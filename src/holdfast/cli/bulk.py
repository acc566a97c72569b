"""Many certificates at once: shown first, asked back about, then done one by one, each exactly once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from holdfast.cli import given
from holdfast.cli import showing_certificates as shown
from holdfast.cli.following import DETACHED, IN_PROGRESS
from holdfast.cli.terminal import Format, Row, asked_for, duration, emit, instant, progress, say
from holdfast.core.attention import BAD
from holdfast.errors import UserError

if TYPE_CHECKING:
    from holdfast.cli.client import Client
    from holdfast.ports import Clock

FAILED: Final = 1  # exit code


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    key: str | None
    dry_run: bool
    if_due: bool
    yes: bool
    stagger: timedelta = timedelta(0)  # they are spread over so much time
    wait: bool = False
    timeout: float = 300


def is_due(row: Mapping[str, Any], now: datetime) -> bool:
    """Its time has come, or its last attempt failed."""
    at = row["status"]["next_attempt_at"]
    return row["status"]["phase"] in BAD or (at is not None and instant(at) <= now)


def renew(client: Client, labels: Sequence[str], manner: Manner, output: Format, clock: Clock) -> int:
    """Renew all that have these labels; the exit code. A failure of one does not keep the others from it."""
    now = clock.now()
    found = client.pages("/certificates", label=[*map(given.filtered, labels)], state="active", limit=500)
    chosen = [row for row in found if not manner.if_due or is_due(row, now)]
    if not chosen:
        say("There is nothing to renew.")
        return 0
    orders = ", ".join(f"{number} at {ca}" for ca, number in _by_ca(chosen).items())
    over = f", spread over {duration(manner.stagger)}" if manner.stagger else ""
    question = f"This renews {len(chosen)} certificate{'' if len(chosen) == 1 else 's'}{over}: {orders}."
    if not manner.dry_run and not asked_for(question, yes=manner.yes, word="renew"):
        return FAILED
    done, problems = list[Any](), list[str]()
    try:
        _ask_for_all(client, chosen, manner, done, problems)
        emit(sorted(done, key=_turn) if manner.stagger else done, shown.columns(now), output)
        for each in problems:
            say(f"not renewed: {each}")
        would = "would be under way" if manner.dry_run else "under way. See how they do: holdfast status"
        say(f"{len(done)} {would}{'.' if manner.dry_run else ''}")
        waited = _wait_for_all(client, done, manner, clock) if manner.wait and not manner.dry_run else 0
    except KeyboardInterrupt:
        say(f"You left; the {len(done)} of {len(chosen)} that were asked for go on. Look again: holdfast status")
        return DETACHED
    return FAILED if problems else waited


def _ask_for_all(client: Client, chosen: Sequence[Row], manner: Manner, done: list[Any], problems: list[str]) -> None:
    with progress("Renewing", len(chosen)) as step:
        for row in chosen:
            try:
                done.append(_one(client, row, manner))
            except UserError as why:
                problems.append(f"{row['name']}: {why} {why.hint}")
            step(1)


def _wait_for_all(client: Client, rows: Sequence[Row], manner: Manner, clock: Clock) -> int:
    """Until each attempt is over: 0, 1 if one failed, 3 if that takes too long."""
    deadline, failed = clock.monotonic() + manner.timeout, 0
    attempts = [(row["name"], row["operation"]["id"]) for row in rows if row["operation"]]
    with progress("Issued", len(attempts)) as step:
        for name, attempt in attempts:
            while not (found := client.when_over(f"/issuances/{attempt}", deadline - clock.monotonic()))["ended_at"]:
                if clock.monotonic() >= deadline:
                    say("Some are still under way. Look again: holdfast status")
                    return IN_PROGRESS
            if found["state"] != "issued":
                failed += 1
                say(f"not renewed: {name}: {found['reason_code']} {found['error'] or ''}")
            step(1)
    return FAILED if failed else 0


def _turn(row: Mapping[str, Any]) -> str:
    return str(row["status"]["next_attempt_at"] or "")


def _one(client: Client, row: Mapping[str, Any], manner: Manner) -> Any:
    headers = {} if manner.key is None else {"Idempotency-Key": f"{manner.key}/{row['id']}"}
    delay = _share(row["id"]) * manner.stagger.total_seconds()
    path, when = f"/certificates/{row['id']}/renew", {"delay_s": round(delay)} if manner.stagger else {}
    return client.post(path, headers=headers, dry_run=manner.dry_run, **when)


def _share(certificate: str) -> float:
    """Where in the time its turn is: the same whoever asks, so that repeating the command asks for the same."""
    from holdfast.core.backoff import spread

    return spread(f"stagger {certificate}")


def _by_ca(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["issuers"][0]] = counts.get(row["issuers"][0], 0) + 1
    return counts
