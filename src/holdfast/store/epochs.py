"""What begins anew when something that failures were due to has changed: certificates, and jobs that wait."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from holdfast.store.tx import Tx, to_micros, value_list

PAGE: Final = 200


def failed_at(tx: Tx, issuer: str) -> list[str]:
    """Certificates whose last failure was at this CA; of one that came from elsewhere nobody knows, and it counts."""
    rows = tx.rows(
        """SELECT id FROM certificates
            WHERE last_failure_at IS NOT NULL AND state <> 'archived' AND issuers LIKE :quoted
              AND COALESCE((SELECT issuances.issuer FROM issuances
                             WHERE issuances.certificate = certificates.id AND issuances.state = 'failed'
                             ORDER BY issuances.started_at DESC, issuances.id DESC LIMIT 1), :issuer) = :issuer
            ORDER BY id""",
        issuer=issuer,
        quoted=f"%{json.dumps(issuer)}%",
    )
    return [row["id"] for row in rows]


def failed_for(tx: Tx, reasons: Iterable[str]) -> list[str]:
    text, values = value_list([(reason,) for reason in sorted(reasons)])
    rows = tx.rows(
        f"""SELECT id FROM certificates
             WHERE last_failure_at IS NOT NULL AND state <> 'archived' AND reason IN ({text}) ORDER BY id""",
        **values,
    )
    return [row["id"] for row in rows]


def forget_failures(tx: Tx, planned: Sequence[tuple[str, datetime]]) -> None:
    """Their count is 0 again; those that wait because of it are looked at at these times, unless they would be before.

    What is not due then is planned anew by the sweep.
    """
    for start in range(0, len(planned), PAGE):
        text, values = value_list([(each, to_micros(at)) for each, at in planned[start : start + PAGE]])
        tx.run(
            f"""UPDATE certificates
                   SET issuance_attempts = NULL, first_failure_at = NULL, last_failure_at = NULL, last_error = NULL,
                       reason = NULL, version = version + 1,
                       next_cause = CASE WHEN next_action_at > anew.column2 AND next_cause = 'BACKOFF'
                                         THEN 'STAGGERED' ELSE next_cause END,
                       next_action_at = CASE WHEN next_action_at > anew.column2 AND next_cause = 'BACKOFF'
                                             THEN anew.column2 ELSE next_action_at END
                  FROM ({text}) AS anew WHERE certificates.id = anew.column1 AND last_failure_at IS NOT NULL""",
            **values,
        )


def waiting_for(tx: Tx, kind: str, issuer: str, now: datetime) -> list[str]:
    """Jobs of attempts that wait until this CA is there again, or lets us in."""
    rows = tx.rows(
        """SELECT jobs.id FROM jobs JOIN issuances ON issuances.id = jobs.subject
            WHERE jobs.kind = :kind AND jobs.state = 'ready' AND jobs.due_at > :now
              AND jobs.reason IN ('CA_DOWN', 'CA_TLS_FAILED', 'ACCOUNT_REFUSED', 'EAB_REQUIRED')
              AND issuances.issuer = :issuer
            ORDER BY jobs.id""",
        kind=kind,
        issuer=issuer,
        now=now,
    )
    return [row["id"] for row in rows]


def bring_forward(tx: Tx, planned: Sequence[tuple[str, datetime]]) -> None:
    for start in range(0, len(planned), PAGE):
        text, values = value_list([(each, to_micros(at)) for each, at in planned[start : start + PAGE]])
        tx.run(
            f"""UPDATE jobs SET due_at = anew.column2 FROM ({text}) AS anew
                 WHERE jobs.id = anew.column1 AND jobs.state = 'ready' AND jobs.due_at > anew.column2""",
            **values,
        )
    tx.wakes = tx.wakes or bool(planned)
