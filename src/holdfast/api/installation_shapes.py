"""The installation as it goes over the wire: its audit log, its numbers, its replicas."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from holdfast.api.shapes import Flag, Given, Note


class Origin(BaseModel):
    """Where a wish came from."""

    face: str = Field(description="api, local (a command on the server's machine), acme.")
    address: str = ""
    request: str = Field(default="", description="The id that the answer carried, too.")
    token: str = ""
    trace: str = Field(default="", description="The trace that the request was a part of (W3C traceparent).")
    client: str = Field(default="", description="What the client calls itself.")


class AuditEntry(BaseModel):
    seq: int
    at: datetime
    actor: str
    actor_kind: str = Field(description="human, robot, agent, local, acme or system.")
    action: str
    subject: str
    origin: Origin | None = Field(description="null for what the system does by itself.")
    before: str | None = Field(description="SHA-256 of what was changed, as it was.")
    after: str | None = Field(description="And as it is since.")
    details: dict[str, Any]
    hash: str = Field(description="Over this row and the hash of the row before.")


class AuditVerdict(BaseModel):
    ok: bool
    verified: int = Field(description="How many rows hold, from the first on.")
    last_hash: str
    first_bad_row: int | None
    problem: str


class Summary(BaseModel):
    at: datetime
    certificates: dict[str, int]
    failing: int
    due: int
    under_way: int
    awaiting_approval: int
    never_issued: int
    expired: int
    expiring: dict[str, int] = Field(description="How many end within so many days.")
    jobs: dict[str, int]
    notifications_dead: int | None = Field(description="Notices that could not be delivered; null: not yours to see.")


class Ending(BaseModel):
    at: datetime = Field(description="When the span begins.")
    expiring: int
    renewals: int


class Outcomes(BaseModel):
    at: datetime
    issued: int
    failed: int
    cancelled: int
    reasons: dict[str, int]


class IssuanceRate(BaseModel):
    at: datetime
    issuer: str
    issued: int
    mean_s: float = Field(description="From the beginning of an attempt to its certificate.")
    longest_s: float


class LoopSeen(BaseModel):
    name: str
    replica: str = Field(description="Which replica did it last.")
    ended_at: datetime | None = Field(description="When it was last done to its end; null: not since that start.")
    next_at: datetime | None
    took_s: float | None
    error: str = Field(description="Why it was not, the last time; empty: it was.")


class ReplicaSeen(BaseModel):
    holder: str
    name: str
    version: str
    started_at: datetime
    seen_at: datetime
    draining: bool = Field(description="It is to take no more work: it stops, or somebody asked for it.")
    drained: bool = Field(description="It was asked to take no more work, and has ended what it had.")
    running: int = Field(description="Jobs that it has now.")
    clock_ahead_s: float | None = Field(description="Its clock, of the database's; null: it has not said yet.")
    loops: int = Field(description="How many it did since it began.")


class Draining(Given):
    why: Note = Field(default="", description="For the audit log.")
    even_last: Flag = Field(default=False, description="Though no other replica is at work: nothing is done then.")


class LeaseHeld(BaseModel):
    name: str
    holder: str
    fence: int
    until: datetime


class OwnCaSeen(BaseModel):
    name: str
    not_after: datetime = Field(description="When its issuer ends; what it signs never lives longer.")
    needs_s: float = Field(description="With less than this left, what it signs is cut to that end.")
    root_here: bool = Field(description="The key of its root is kept here, so that its issuer can be renewed here.")


class Cluster(BaseModel):
    at: datetime = Field(description="By the database's clock, as all times here.")
    replicas: list[ReplicaSeen]
    leases: list[LeaseHeld]
    loops: list[LoopSeen]
    own_cas: list[OwnCaSeen] = Field(description="The CAs of this installation that are open.")
