"""What goes over the wire: one model for each thing that is asked for or answered."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Generic, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, Strict, StringConstraints

T = TypeVar("T")
Short = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{1,253}$")]
HostName = Annotated[str, StringConstraints(min_length=1, max_length=1000)]  # what it may be is for names.py to say
LabelName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$")]
LabelValue = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._:/@+-]{0,63}$")]
OwnerName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._:/@+-]{0,100}$")]
KeyKind = Literal["ec-p256", "ec-p384", "rsa-2048", "rsa-3072", "rsa-4096", "ed25519"]
Note = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x08\x0b-\x1f\x7f]{0,500}$")]
_RFC3339: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.\d+)?)?([Zz]|[+-]\d\d:\d\d)?")


def _instant(given: object) -> object:
    """pydantic would take a number for seconds since 1970."""
    if not isinstance(given, str) or not _RFC3339.fullmatch(given):
        raise ValueError("an instant is written as 2030-01-31T12:00:00Z")
    return given


def _aware(at: datetime) -> datetime:
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _absent(value: object) -> bool:
    """Left out of what is shown, rather than null."""
    return value is None


Flag = Annotated[bool, Strict()]  # true or false, and neither 1 nor "yes"
CLOSED: Final[dict[str, Any]] = {"additionalProperties": False}  # what matches no pattern is refused, and said to be
Labels = Annotated[dict[LabelName, LabelValue], Field(max_length=32, json_schema_extra=CLOSED)]
Instant = Annotated[datetime, BeforeValidator(_instant), AfterValidator(_aware)]  # as it is given, never as it is shown


class Given(BaseModel):
    """What a client sends: an unknown field is a mistake, and said."""

    model_config = ConfigDict(extra="forbid")


class Page(BaseModel, Generic[T]):
    items: list[T]
    next: str | None = Field(default=None, description="The cursor of the next page; null: there is none.")
    total: int | None = Field(default=None, description="How many there are in all, if that was asked for.")


# ── Certificates ──


class StatusBlock(BaseModel):
    """How a certificate stands: the same block in every face."""

    phase: str
    since: datetime | None = Field(default=None, description="In this phase since then; null: that is not known.")
    reason_code: str
    reason: str
    acts_next: str
    attempt: int
    max_attempts: int | None
    last_error: str | None
    last_attempt_at: datetime | None
    next_attempt_at: datetime | None
    next_attempt_cause: str | None
    approval_ends_at: datetime | None = Field(
        default=None, description="What nobody approves by then is rejected; null: nothing waits for approval."
    )
    attempts_that_fit: int | None = Field(
        default=None, description="So many more, should all fail, before it is too late; null while it is not failing."
    )
    safe_until: datetime | None
    expires_at: datetime | None
    blocked_by: list[str]


class RenewalRule(Given):
    fraction: float | None = Field(default=None, ge=0.1, le=0.95, description="Of its life, after which it is renewed.")
    before_s: float | None = Field(default=None, gt=0, le=10**9, description="Or so many seconds before its end.")
    ari: Flag = Field(default=True, description="Ask the CA when (RFC 9773).")


class MaintenanceWindow(Given):
    days: list[Annotated[int, Field(ge=0, le=6)]] = Field(default=[0, 1, 2, 3, 4, 5, 6], min_length=1, max_length=7)
    opens: int = Field(default=0, ge=0, lt=1440, description="Minutes after midnight, UTC.")
    closes: int = Field(default=1440, gt=0, le=1440)


class Operation(BaseModel):
    """Something that takes its time: where it stands, and where to look again."""

    id: str
    kind: Literal["issuance", "revocation"]
    state: str
    done: bool
    error: str | None = None
    reason_code: str | None = None


class Certificate(BaseModel):
    id: str
    name: str
    names: list[str]
    issuers: list[str]
    key: str
    profile: str | None
    preferred_chain: str | None
    lifetime_s: float | None
    reuse_key: bool
    renewal: RenewalRule
    windows: list[MaintenanceWindow]
    owner: str
    labels: dict[str, str]
    approval_required: bool
    state: str
    generation: int
    version: int
    created_at: datetime
    changed_by: str
    serial: str | None
    not_before: datetime | None
    not_after: datetime | None
    issuer: str | None = Field(description="The CA that the current version came from.")
    issuance_attempts: int | None = Field(
        default=None, exclude_if=_absent, description="Failures in a row; there only while it is failing."
    )
    last_failure_at: datetime | None = Field(
        default=None, exclude_if=_absent, description="When it failed last; there only while it is failing."
    )
    status: StatusBlock
    operation: Operation | None = Field(default=None, description="What is under way for it, or just ended.")
    note: str | None = Field(
        default=None, exclude_if=_absent, description="In answer to a revocation: what became of one asked for before."
    )


class NewCertificate(Given):
    names: list[HostName] = Field(
        min_length=1, max_length=200, description="DNS names and addresses, up to 100; the first is its name."
    )
    name: Short | None = Field(default=None, description="Its own name here; the first of its names if left out.")
    issuers: list[Short] | None = Field(default=None, min_length=1, max_length=10, description="CAs, the first first.")
    key: KeyKind = "ec-p256"
    profile: Short | None = None
    preferred_chain: Short | None = None
    lifetime_s: float | None = Field(default=None, ge=300, le=10**10)
    reuse_key: Flag = False
    renewal: RenewalRule = RenewalRule()
    windows: list[MaintenanceWindow] = Field(default=[], max_length=50)
    owner: OwnerName = ""
    labels: Labels = {}
    approval_required: Flag = False


class CertificateChange(Given):
    """Only what is given is changed."""

    names: list[HostName] | None = Field(default=None, min_length=1, max_length=200)
    name: Short | None = None
    issuers: list[Short] | None = Field(default=None, min_length=1, max_length=10)
    key: KeyKind | None = None
    profile: Short | None = None
    preferred_chain: Short | None = None
    lifetime_s: float | None = Field(default=None, ge=300, le=10**10)
    reuse_key: Flag | None = None
    renewal: RenewalRule | None = None
    windows: list[MaintenanceWindow] | None = Field(default=None, max_length=50)
    owner: OwnerName | None = None
    labels: Labels | None = None
    approval_required: Flag | None = None


class Version(BaseModel):
    id: str
    generation: int
    state: str
    serial: str
    not_before: datetime
    not_after: datetime
    issuer: str
    key_sha256: str = Field(description="SHA-256 of its public key (SPKI).")
    issued_at: datetime
    revoked_at: datetime | None
    revocation_asked_at: datetime | None
    revocation_reason: int | None
    chain_pem: str


class Check(BaseModel):
    rule: str
    saw: str
    verdict: str
    blocks: bool


class Explanation(BaseModel):
    at: datetime
    verdict: str
    checks: list[Check]
    blocking: str | None
    would_change_it: str
    of_today: list[str] = Field(
        default=[], description="Asked about another time: what the answer takes from today, as it is not known else."
    )


RevocationReason = Literal[
    "unspecified", "key-compromise", "affiliation-changed", "superseded", "cessation-of-operation",
    "privilege-withdrawn",
]  # fmt: skip


class Revocation(Given):
    reason: RevocationReason
    version: Short | None = Field(default=None, description="Which version; the current one if left out.")


class Cancellation(Given):
    why: Note = Field(min_length=1)


class Export(Given):
    form: Literal["pem", "combined", "pkcs12"] = "pem"
    passphrase: SecretStr | None = Field(default=None, max_length=1000, description="For PKCS#12.")
    compatible: Flag = Field(default=False, description="PKCS#12 that old programs read.")
    version: Short | None = None


class Exported(BaseModel):
    certificate: str
    version: str
    form: str
    chain_pem: str
    key_pem: str | None = Field(description="For pem and combined.")
    pkcs12: str | None = Field(description="For pkcs12, in base64.")


# ── Attempts, jobs ──


class Issuance(BaseModel):
    id: str
    certificate: str
    generation: int
    state: str
    issuer: str
    cause: str
    urgent: bool
    names: list[str]
    requested_by: str
    started_at: datetime
    ended_at: datetime | None
    polls: int
    failures: int
    uncertain_since: datetime | None = Field(
        description="Since when nobody can tell whether the CA has the order: a person should look there."
    )
    maybe_twice: bool = Field(description="After such a doubt it was ordered once more: there may be two orders.")
    withdrawal: str | None = Field(
        description="Of an attempt that was stopped: the CA is to be told (owed), was (done), has none, or refused."
    )
    error: str | None
    reason_code: str | None


class Job(BaseModel):
    id: str
    kind: str
    subject: str
    state: str
    priority: int
    due_at: datetime
    attempt: int
    max_attempts: int
    crashes: int
    holder: str | None
    lease_until: datetime | None
    reason_code: str | None
    last_error: str | None
    last_attempt_at: datetime | None
    next_attempt_at: datetime | None = Field(description="null while it runs, and once it is over or given up.")
    finished_at: datetime | None = Field(description="When it was done or cancelled.")


# ── CAs ──


class Issuer(BaseModel):
    name: str
    kind: str
    state: str
    settings: dict[str, Any]
    credentials: list[str] = Field(description="The purposes of those that are kept; never their values.")
    breaker_open: bool
    breaker_error: str | None
    version: int
    created_at: datetime


class NewIssuer(Given):
    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$")]
    kind: Short = "acme"
    preset: Short | None = Field(default=None, description="A CA whose address is known: letsencrypt, zerossl, …")
    settings: dict[Short, Any] = Field(default={}, max_length=32, json_schema_extra=CLOSED)
    credentials: dict[Short, SecretStr] = Field(default={}, max_length=8, json_schema_extra=CLOSED)


class IssuerSettings(Given):
    settings: dict[Short, Any] = Field(max_length=32, json_schema_extra=CLOSED)


class IssuerCredentials(Given):
    credentials: dict[Short, SecretStr] = Field(min_length=1, max_length=8, json_schema_extra=CLOSED)


class Probed(BaseModel):
    ok: bool
    detail: str


class BudgetLeft(BaseModel):
    key: str
    left: int
    burst: int
    every_s: float
    held_until: datetime | None


# ── Approvals ──


class Approval(BaseModel):
    id: str
    certificate: str
    issuance: str
    state: str
    requested_by: str
    asked_at: datetime
    expires_at: datetime
    decided_by: str | None
    decided_at: datetime | None
    note: str


class Word(Given):
    note: Note = ""


# ── The journal ──


class Event(BaseModel):
    id: int
    at: datetime
    name: str
    subject: str
    job: str
    details: dict[str, Any]


class EventPage(BaseModel):
    items: list[Event]
    next: int = Field(description="Go on with after=this.")


# ── Tokens ──

RoleName = Literal["admin", "operator", "viewer", "auditor", "agent"]


class Token(BaseModel):
    id: str
    name: str
    kind: str
    role: str
    rights: list[str]
    owners: list[str]
    labels: dict[str, str]
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None


class NewToken(Given):
    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.@+-]{1,80}$")]
    role: RoleName
    kind: Literal["human", "robot", "agent"] | None = Field(
        default=None, description="Who will use it; left out: an agent for the role agent, else a human."
    )
    rights: list[Literal["export"]] = Field(default=[], max_length=1)
    owners: list[OwnerName] = Field(default=[], max_length=32)
    labels: Labels = {}
    expires_in_s: int | None = Field(default=90 * 86400, gt=0, le=10**9, description="null: it never expires.")


class MadeToken(Token):
    token: str = Field(description="Shown this once: only a hash of it is kept.")


class Self(BaseModel):
    actor: str
    role: str
    rights: list[str]
    owners: list[str]
    labels: dict[str, str]
