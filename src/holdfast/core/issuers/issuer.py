"""Issuers as they are configured, and our accounts at those that speak ACME."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from holdfast.core.issuers.breaker import Breaker


class IssuerState(StrEnum):
    ACTIVE = "active"
    PAUSED = "paused"  # it is asked for nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuerRow:
    name: str
    kind: str  # acme, local, …
    settings: Mapping[str, Any] = field(default_factory=dict)
    credentials: Mapping[str, str] = field(default_factory=dict)  # purpose → id of a secret
    state: IssuerState = IssuerState.ACTIVE
    version: int = 1
    breaker: Breaker = field(default_factory=Breaker)
    created_at: datetime


class IssuerAccountState(StrEnum):
    CREATING = "creating"  # the CA has not answered yet
    VALID = "valid"
    DEACTIVATED = "deactivated"  # by us
    GONE = "gone"  # the CA does not know it any more


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountRow:
    id: str
    issuer: str
    directory: str
    url: str | None = None  # None until the CA has answered
    key_secret: str
    new_key_secret: str | None = None  # a change of key is under way: either may be the one that the CA knows
    contacts: tuple[str, ...] = ()
    eab_kid: str | None = None
    state: IssuerAccountState = IssuerAccountState.CREATING
    created_at: datetime
