"""The turns that renewals were promised by their budgets: who waits, and who changes places."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from holdfast.core.turns import Turn
from holdfast.store.tx import Tx, from_micros, to_micros, value_list

PAGE: Final = 200
MOST: Final = 20_000


def waiting(tx: Tx, kind: str, after: datetime) -> list[Turn]:
    """Jobs of attempts to renew something that is in use, which wait for a turn later than this."""
    rows = tx.rows(
        """SELECT jobs.id, jobs.priority, jobs.budgets, jobs.due_at, certificate_versions.not_after
             FROM jobs
             JOIN issuances ON issuances.id = jobs.subject
             JOIN certificates ON certificates.id = issuances.certificate
             JOIN certificate_versions ON certificate_versions.id = certificates.current_version
            WHERE jobs.kind = :kind AND jobs.state = 'ready' AND jobs.due_at > :after
              AND jobs.reason IN ('BUDGET', 'NOT_BEFORE')
            ORDER BY jobs.due_at LIMIT :most""",
        kind=kind,
        after=after,
        most=MOST,
    )
    return [
        Turn(
            job=row["id"],
            line=(row["priority"], row["budgets"]),
            at=from_micros(row["due_at"]),
            ends=from_micros(row["not_after"]),
        )
        for row in rows
    ]


def exchange(tx: Tx, turns: Sequence[tuple[Turn, datetime]]) -> int:
    """Give these jobs their new turns, unless somebody has taken one up, or moved it, meanwhile."""
    if not turns:
        return 0
    text, values = value_list([(turn.job, to_micros(at), to_micros(turn.at)) for turn, at in turns])
    return tx.run(
        f"""UPDATE jobs SET due_at = dealt.column2 FROM ({text}) AS dealt
             WHERE jobs.id = dealt.column1 AND jobs.state = 'ready' AND jobs.due_at = dealt.column3""",
        **values,
    )
