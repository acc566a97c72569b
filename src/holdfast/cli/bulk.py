"""Many certificates at once: shown first, asked back about, then done one by one, each exactly once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from holdfast.cli import showing_certificates as shown
from holdfast.cli.terminal import Format, asked_for, emit, instant, progress, say
from holdfast.errors import UserError

if TYPE_CHECKING:
    from holdfast.cli.client import Client

FAILED: Final = 1  # exit code


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    key: str | None
    dry_run: bool
    if_due: bool
    yes: bool


def is_due(row: Mapping[str, Any], now: datetime) -> bool:
    """Its time has come, or its last attempt failed."""
    at = row["status"]["next_attempt_at"]
    return row["status"]["phase"] in shown.BAD or (at is not None and instant(at) <= now)


def renew(client: Client, labels: Sequence[str], manner: Manner, output: Format, now: datetime) -> int:
    """Renew all that have these labels; the exit code. A failure of one does not keep the others from it."""
    found = client.pages("/certificates", label=list(labels), state="active", limit=500)
    chosen = [row for row in found if not manner.if_due or is_due(row, now)]
    if not chosen:
        say("There is nothing to renew.")
        return 0
    orders = ", ".join(f"{number} at {ca}" for ca, number in _by_ca(chosen).items())
    question = f"This renews {len(chosen)} certificate{'' if len(chosen) == 1 else 's'}: {orders}."
    if not manner.dry_run and not asked_for(question, yes=manner.yes, word="renew"):
        return FAILED
    done, problems = list[Any](), list[str]()
    with progress("Renewing", len(chosen)) as step:
        for row in chosen:
            try:
                done.append(_one(client, row, manner))
            except UserError as why:
                problems.append(f"{row['name']}: {why} {why.hint}")
            step(1)
    emit(done, shown.columns(now), output)
    for each in problems:
        say(f"not renewed: {each}")
    would = "would be under way" if manner.dry_run else "under way. See how they do: holdfast status"
    say(f"{len(done)} {would}{'.' if manner.dry_run else ''}")
    return FAILED if problems else 0


def _one(client: Client, row: Mapping[str, Any], manner: Manner) -> Any:
    headers = {} if manner.key is None else {"Idempotency-Key": f"{manner.key}/{row['id']}"}
    return client.post(f"/certificates/{row['id']}/renew", headers=headers, dry_run=manner.dry_run)


def _by_ca(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["issuers"][0]] = counts.get(row["issuers"][0], 0) + 1
    return counts
