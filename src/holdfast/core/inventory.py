"""What may be asked about all certificates at once, and the answer in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal

Sort = Literal["name", "expires"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which certificates. Labels and owners of whoever asks come on top of those that are asked for."""

    text: str | None = None  # in its name, or in one of those it is for
    state: str | None = None  # None: all but archived ones
    owners: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    issuer: str | None = None
    failing: bool = False
    expires_before: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The inventory in numbers."""

    at: datetime
    states: Mapping[str, int]
    failing: int
    due: int  # their time has come, and no attempt has begun
    under_way: int
    awaiting_approval: int
    never_issued: int
    expired: int
    expiring: Mapping[str, int]  # within so many days
    jobs: Mapping[str, int]


EXPIRING_WITHIN: Final = (1, 7, 14, 30, 90)  # days
