"""What a check found and how to fix it, and which certificates, issuers and replicas need a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final


class Level(StrEnum):
    OK = "ok"
    NOTE = "note"  # worth knowing; nothing has to be done
    BAD = "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    check: str
    level: Level
    saw: str
    fix: str = ""  # empty if all is well


def ok(check: str, saw: str) -> Finding:
    return Finding(check=check, level=Level.OK, saw=saw)


def note(check: str, saw: str, fix: str) -> Finding:
    return Finding(check=check, level=Level.NOTE, saw=saw, fix=fix)


def bad(check: str, saw: str, fix: str) -> Finding:
    return Finding(check=check, level=Level.BAD, saw=saw, fix=fix)


BAD: Final = ("failing", "expired", "revoked")  # phases
PEOPLE: Final = ("you", "operator", "approver")
SOON: Final = timedelta(days=7)
ShownRow = Mapping[str, Any]


def needs_a_person(certificate: ShownRow) -> bool:
    status = certificate["status"]
    return status["phase"] in BAD or status["acts_next"] in PEOPLE


def troubled_issuers(issuers: Sequence[ShownRow] | None) -> list[ShownRow] | None:
    """CAs that are down or paused; None, here and below: they are not for the asker to see."""
    if issuers is None:
        return None
    return [row for row in issuers if row["breaker_open"] or row["state"] != "active"]


def all_drained(cluster: ShownRow | None) -> list[ShownRow] | None:
    """The replicas, if none of them takes work: then nothing is renewed."""
    if cluster is None:
        return None
    return list(cluster["replicas"]) if all(row["draining"] for row in cluster["replicas"]) else []
