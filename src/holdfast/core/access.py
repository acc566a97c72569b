"""Roles, API tokens and approvals: who may do what, and the second person's decision about an issuance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Literal


class Role(StrEnum):
    ADMIN = "admin"
    OPERATOR = "operator"
    VIEWER = "viewer"
    AUDITOR = "auditor"
    AGENT = "agent"  # a program beside the servers that use certificates; always confined to some of them
    FIRST = "first"  # the one-time token of the first start: it can make one token, and nothing else


class TokenKind(StrEnum):
    HUMAN = "human"
    ROBOT = "robot"
    AGENT = "agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    id: str  # its public part, by which people name it
    hash: str = field(repr=False)
    name: str  # who uses it
    kind: TokenKind
    role: Role
    rights: frozenset[str] = frozenset()
    owners: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    created_by: str
    created_at: datetime
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    revoked_at: datetime | None = None

    def good_at(self, now: datetime) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


class ApprovalState(StrEnum):
    PENDING = "pending"
    APPROVED = "approved"
    REJECTED = "rejected"
    TIMED_OUT = "timed_out"
    WITHDRAWN = "withdrawn"


DecidedState = Literal[ApprovalState.APPROVED, ApprovalState.REJECTED, ApprovalState.TIMED_OUT, ApprovalState.WITHDRAWN]


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    id: str
    issuance: str
    certificate: str
    state: ApprovalState = ApprovalState.PENDING
    requested_by: str
    asked_at: datetime
    expires_at: datetime
    decided_by: str | None = None
    decided_at: datetime | None = None
    note: str = ""
