"""What a person should look at, of what a server answered: the same for commands and for assistants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

BAD: Final = ("failing", "expired", "revoked")  # phases
PEOPLE: Final = ("you", "operator", "approver")
SOON: Final = timedelta(days=7)
Row = Mapping[str, Any]


def needs_somebody(certificate: Row) -> bool:
    status = certificate["status"]
    return status["phase"] in BAD or status["acts_next"] in PEOPLE


def troubled(issuers: Sequence[Row] | None) -> list[Row] | None:
    """CAs that are down or paused; None, here and below: they are not for the asker to see."""
    if issuers is None:
        return None
    return [row for row in issuers if row["breaker_open"] or row["state"] != "active"]


def all_drained(cluster: Row | None) -> list[Row] | None:
    """The replicas, if none of them takes work: then nothing is renewed."""
    if cluster is None:
        return None
    return list(cluster["replicas"]) if all(row["draining"] for row in cluster["replicas"]) else []
