"""A certificate: what its owner wants, what we hold of it, and the moves of both."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from holdfast.core.key_kind import KeyKind
from holdfast.core.own_ca.acme import Identifier
from holdfast.core.windows import MaintenanceWindow
from holdfast.errors import IllegalMove

MAX_NAMES: Final = 100
ANY_CHALLENGE: Final = "any"  # the first solver that fits decides
CHALLENGES: Final = (ANY_CHALLENGE, "http-01", "dns-01", "tls-alpn-01")


class CertificateState(StrEnum):
    ACTIVE = "active"
    PAUSED = "paused"  # not renewed, because a person paused it
    ARCHIVED = "archived"  # for good; what it holds is kept


class VersionState(StrEnum):
    ACTIVE = "active"
    SUPERSEDED = "superseded"
    REVOKED = "revoked"
    IMPORTED = "imported"  # in use like an active one, and not issued through us


MOVES: Final[Mapping[tuple[CertificateState, str], CertificateState]] = {
    (CertificateState.ACTIVE, "paused"): CertificateState.PAUSED,
    (CertificateState.PAUSED, "resumed"): CertificateState.ACTIVE,
    (CertificateState.ACTIVE, "archived"): CertificateState.ARCHIVED,
    (CertificateState.PAUSED, "archived"): CertificateState.ARCHIVED,
}


def move(state: CertificateState, event: str) -> CertificateState:
    try:
        return MOVES[state, event]
    except KeyError:
        raise IllegalMove(f"a certificate that is {state} cannot be {event!r}") from None


# ── What its owner wants ──


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewalPolicy:
    """When to renew, where the CA does not say: after a share of its life, or so long before its end."""

    fraction: float | None = None  # None: 2/3, and 1/2 for those that live less than 10 days
    before: timedelta | None = None
    ari: bool = True  # ask the CA (RFC 9773)

    def __post_init__(self) -> None:
        if self.fraction is not None and not 0.1 <= self.fraction <= 0.95:
            raise ValueError("a fraction is between 0.1 and 0.95")
        if self.before is not None and self.before <= timedelta(0):
            raise ValueError("'before' is longer than nothing")
        if self.fraction is not None and self.before is not None:
            raise ValueError("either a fraction or 'before', not both")

    def to_json(self) -> dict[str, object]:
        before = None if self.before is None else self.before.total_seconds()
        return {"fraction": self.fraction, "before_s": before, "ari": self.ari}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> RenewalPolicy:
        before = raw.get("before_s")
        return cls(
            fraction=raw.get("fraction"),
            before=None if before is None else timedelta(seconds=before),
            ari=bool(raw.get("ari", True)),
        )


SERVER_KEY: Final = "server"
AGENT_KEY: Final = "agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateSpec:
    """What its owner asks for. Changing any of the inputs is a new generation."""

    name: str
    identifiers: tuple[Identifier, ...]
    issuers: tuple[str, ...]  # the first is asked first
    key_kind: str = KeyKind.EC_P256.value
    profile: str | None = None
    preferred_chain: str | None = None
    lifetime: timedelta | None = None
    reuse_key: bool = False
    rule: RenewalPolicy = field(default_factory=RenewalPolicy)
    windows: tuple[MaintenanceWindow, ...] = ()
    owner: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    approval_required: bool = False
    targets: tuple[str, ...] = ()  # where it is deployed, by their names here
    csr: str | None = None  # PEM: it is issued for the key of this CSR, which is never here
    challenge: str = ANY_CHALLENGE  # how its names are proved to a CA that asks
    solver: str | None = None  # the one that publishes its challenge responses, by its name here
    key_location: str = SERVER_KEY  # where its keys are made and stay

    def __post_init__(self) -> None:
        if not 1 <= len(self.identifiers) <= MAX_NAMES:
            raise ValueError(f"a certificate has 1 to {MAX_NAMES} names")
        if not self.issuers:
            raise ValueError("a certificate needs a CA to come from")

    def fingerprint(self) -> str:
        """Equal as long as the same certificate would be issued: a new one is a new generation, failures forgotten."""
        inputs = {each.key: _plain(getattr(self, each.attribute)) for each in FIELDS if each.new_version}
        return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:32]


def _plain(value: object) -> object:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, tuple) and value and isinstance(value[0], Identifier):
        return sorted((each.type, each.value) for each in value)  # the same names in another order are the same
    return value


# ── Its fields, as every face knows them ──


class FieldKind(StrEnum):
    """What kind of value a field has: each face reads and shows all fields of a kind alike."""

    TEXT = "text"
    NAMES = "names"  # DNS names and addresses
    ISSUERS = "issuers"  # by their names here, each once
    TARGETS = "targets"  # likewise; there may be none
    CHOICE = "choice"  # one of a closed list
    FLAG = "flag"
    DURATION = "duration"
    RENEWAL = "renewal"
    WINDOWS = "windows"
    LABELS = "labels"


@dataclass(frozen=True, slots=True)
class FieldOption:
    """An option of a command that says something about a field. `commands` are those that have it."""

    flag: str  # as typed; "--yes/--no" for both words of a flag
    help: str
    metavar: str = ""
    repeated: bool = False
    commands: tuple[str, ...] = ("issue", "change")


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One thing that an owner may ask for. Type and default are those of the attribute of Wanted."""

    key: str  # its name in documents, plans, the API and the audit log
    kind: FieldKind
    attribute: str = ""  # what Wanted calls it, and its column; the key, if nothing is said
    help: str = ""  # for editors and for OpenAPI
    options: tuple[FieldOption, ...] = ()
    new_version: bool = False  # with another value it is another certificate: a new version is issued
    defaults: bool = True  # a document may say what holds where an entry says nothing
    pattern: str = ""  # of a text in a document
    problem: str = ""  # the error about a text that does not match
    lenient: str = ""  # of a text in the API; the pattern, if nothing is said
    most: int = 0  # entries of a list
    members: tuple[str, ...] = ()  # of a choice
    between: tuple[timedelta, timedelta] | None = None  # of a duration

    def __post_init__(self) -> None:
        object.__setattr__(self, "attribute", self.attribute or self.key)
        object.__setattr__(self, "lenient", self.lenient or self.pattern)

    @property
    def wire(self) -> str:
        """Its name in the API, where durations are seconds."""
        return f"{self.key}_s" if self.kind is FieldKind.DURATION else self.key


FILE: Final = "FILE"  # the metavar of an option whose value is the content of a file
_WORD: Final = r"[^\x00-\x20\x7f]{1,253}"
_LINE: Final = r"[^\x00-\x1f\x7f]{1,253}"
FIELDS: Final = (
    Field(
        key="name",
        kind=FieldKind.TEXT,
        help="Its own name here; the first of its names if left out.",
        options=(FieldOption("--rename", "What it is called here.", "NAME", commands=("change",)),),
        defaults=False,
        pattern=_WORD,
        lenient=_LINE,
        problem="A certificate's own name has 1 to 253 characters and no spaces.",
    ),
    Field(
        key="names",
        kind=FieldKind.NAMES,
        attribute="identifiers",
        help="DNS names and addresses that it is for.",
        options=(
            FieldOption("--add-name", "For this name, too.", "NAME", repeated=True, commands=("change",)),
            FieldOption("--remove-name", "Not for this name any more.", "NAME", repeated=True, commands=("change",)),
        ),
        new_version=True,
        defaults=False,
        most=MAX_NAMES,
    ),
    Field(
        key="issuers",
        kind=FieldKind.ISSUERS,
        help="Issuers by their names here; the first is asked first.",
        options=(FieldOption("--issuer", "An issuer; may be repeated, the first is asked first.", repeated=True),),
        new_version=True,
        most=10,
    ),
    Field(
        key="key",
        kind=FieldKind.CHOICE,
        attribute="key_kind",
        help="The kind of its key.",
        options=(FieldOption("--key", "Kind of its key (default: ec-p256)."),),
        new_version=True,
        members=tuple(each.value for each in KeyKind),
    ),
    Field(
        key="profile",
        kind=FieldKind.TEXT,
        help="A profile of the CA, by its name.",
        options=(FieldOption("--profile", "Profile of the issuer; '' for none."),),
        new_version=True,
        pattern=_LINE,
        problem="A profile of the CA, by its name.",
    ),
    Field(
        key="preferred_chain",
        kind=FieldKind.TEXT,
        help="The common name of the root to prefer.",
        options=(FieldOption("--preferred-chain", "Prefer the chain that ends at this root; '' for any.", "ROOT"),),
        new_version=True,
        pattern=_LINE,
        problem="The common name of a root.",
    ),
    Field(
        key="lifetime",
        kind=FieldKind.DURATION,
        help="How long it is valid.",
        options=(FieldOption("--lifetime", "How long it shall be valid, such as 45d; '': the CA decides.", "SPAN"),),
        new_version=True,
        between=(timedelta(minutes=5), timedelta(seconds=10**10)),
        problem="A certificate lives from 5 minutes to three centuries.",
    ),
    Field(
        key="reuse_key",
        kind=FieldKind.FLAG,
        help="Renew with the same key.",
        options=(FieldOption("--reuse-key/--new-key", "Renew with the same key."),),
    ),
    Field(
        key="renewal",
        kind=FieldKind.RENEWAL,
        attribute="rule",
        help="When it is renewed, where the CA does not say.",
        options=(
            FieldOption("--renew-after", "Renew after this share of its lifetime, such as 0.67.", "SHARE"),
            FieldOption("--renew-before", "Renew this long before it expires, such as 30d.", "SPAN"),
            FieldOption("--ari/--no-ari", "Let the CA say when to renew (RFC 9773)."),
        ),
    ),
    Field(
        key="windows",
        kind=FieldKind.WINDOWS,
        help="Maintenance windows.",
        options=(
            FieldOption(
                "--window",
                "Renew only then: 'sat,sun 02:00-05:00 Europe/Berlin', else in UTC; may be repeated; '': at any time. "
                "Never lets it expire.",
                "[DAYS ]HH:MM-HH:MM[ ZONE]",
                repeated=True,
            ),
        ),
        most=50,
    ),
    Field(
        key="owner",
        kind=FieldKind.TEXT,
        help="The team or person that it belongs to.",
        options=(FieldOption("--owner", "Whose it is."),),
        pattern=r"[A-Za-z0-9._:/@+-]{0,100}",
        problem="An owner is made of at most 100 letters, digits and . _ : / @ + -",
    ),
    Field(
        key="labels",
        kind=FieldKind.LABELS,
        help="Names and texts by which it is found.",
        options=(
            FieldOption("--label", "Set a label; may be repeated.", "NAME=VALUE", repeated=True),
            FieldOption("--remove-label", "Take this label off.", "NAME", repeated=True, commands=("change",)),
        ),
        defaults=False,
        most=32,
    ),
    Field(
        key="approval_required",
        kind=FieldKind.FLAG,
        help="A second person must approve each attempt.",
        options=(FieldOption("--approval/--no-approval", "A second person must approve each attempt."),),
    ),
    Field(
        key="targets",
        kind=FieldKind.TARGETS,
        help="Targets that it is deployed to, by their names here.",
        options=(FieldOption("--target", "Deploy to this target; may be repeated; '' for none.", repeated=True),),
        most=50,
    ),
    Field(
        key="csr",
        kind=FieldKind.TEXT,
        help="A CSR in PEM: it is issued for this key, which is never here.",
        options=(FieldOption("--csr", "Issue it for the key of this CSR (PEM); '' for a key made here.", FILE),),
        new_version=True,
        defaults=False,
        pattern=r"-----BEGIN (NEW )?CERTIFICATE REQUEST-----[\w+/=\s]+-----END (NEW )?CERTIFICATE REQUEST-----\s*",
        problem="A CSR is PEM that begins with -----BEGIN CERTIFICATE REQUEST-----.",
    ),
    Field(
        key="challenge",
        kind=FieldKind.CHOICE,
        help="The challenge by which its names are proved to a CA that asks for one.",
        options=(FieldOption("--challenge", "Prove its names by this challenge (default: any that a solver fits)."),),
        members=CHALLENGES,
    ),
    Field(
        key="solver",
        kind=FieldKind.TEXT,
        help="The solver that publishes its challenge responses, by its name here.",
        options=(FieldOption("--solver", "Let only this solver prove its names; '': the first that fits."),),
        pattern=_WORD,
        problem="A solver, by its name here.",
    ),
    Field(
        key="key_location",
        kind=FieldKind.CHOICE,
        help="Where its keys are made: server, or agent: on the host of its targets, which they never leave.",
        options=(FieldOption("--key-location", "Make its keys here (server), or at its targets' agent (agent)."),),
        new_version=True,
        members=(SERVER_KEY, AGENT_KEY),
    ),
)
DEFAULTS: Final[Mapping[str, Any]] = {
    each.name: each.default for each in fields(CertificateSpec) if each.default is not MISSING
}
OPTIONS: Final[Mapping[str, FieldOption]] = {option.flag: option for each in FIELDS for option in each.options}


def in_common_with(theirs: Iterable[Identifier]) -> Callable[[Iterable[Identifier]], str | None]:
    """Finds a name of ours that certificates with their names are good for, or the other way round; None: no such."""
    known = {(each.type, each.value) for each in theirs}
    below = {_above(value) for type_, value in known if type_ == "dns"}

    def found(ours: Iterable[Identifier]) -> str | None:
        for each in ours:
            wider = f"*.{_above(each.value)}"
            if (each.type, each.value) in known or (each.type, wider) in known:
                return each.value
            if each.value == wider and _above(wider) in below:
                return each.value
        return None

    return found


def _above(name: str) -> str:
    """The name without its first label: a wildcard is good for those that have this in common with it."""
    return name.partition(".")[2]


# ── What we hold ──


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One issued certificate with its key."""

    id: str
    certificate: str
    generation: int
    state: VersionState
    key_secret: str
    chain_pem: str
    serial: str
    not_before: datetime
    not_after: datetime
    issuer: str
    account: str | None
    spki_sha256: str
    issued_at: datetime
    issuance: str | None = None
    revoke_reason: int | None = None
    revoke_asked_at: datetime | None = None
    revoked_at: datetime | None = None

    @property
    def life(self) -> timedelta:
        return self.not_after - self.not_before

    @property
    def revoked(self) -> bool:
        """Or about to be: from the wish on it must not be relied upon."""
        return self.state is VersionState.REVOKED or self.revoke_asked_at is not None

    @property
    def revocation_done(self) -> bool:
        """The CA has revoked it, and not only been asked to."""
        return self.state is VersionState.REVOKED or self.revoked_at is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ari:
    """The CA's window for the current version, and the instant that was picked in it once."""

    start: datetime
    end: datetime
    pick: datetime
    explanation: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing:
    """Failures in a row. Present only while it is failing; a missing count is that of an older release."""

    attempts: int | None
    last_at: datetime
    first_at: datetime | None = None
    error: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    id: str
    wanted: CertificateSpec
    state: CertificateState
    generation: int
    version: int  # of the row: a change compares it
    fingerprint: str
    changed_by: str
    created_at: datetime
    failing: Failing | None = None
    next_action_at: datetime | None = None
    next_cause: str | None = None
    current_version: str | None = None
    ari: Ari | None = None
    ari_forced_at: datetime | None = None
    ari_ask_at: datetime | None = None
    changers: Mapping[str, int] = field(default_factory=dict)  # in which generation an actor last changed it

    @property
    def name(self) -> str:
        return self.wanted.name


def changers_with(found: Certificate, actor: str, issued: int) -> dict[str, int]:
    """Who changed it in a generation that was not issued yet, with one change more; `issued`: the newest that was."""
    kept = {each: generation for each, generation in found.changers.items() if generation > issued}
    return {**kept, actor: found.generation + 1}


def changed_since(found: Certificate, generation: int) -> set[str]:
    """Everybody who changed it after that generation. The last one counts also where only they were written down."""
    last = {found.changed_by} if found.generation > generation else set()
    return last | {actor for actor, theirs in found.changers.items() if theirs > generation}


def failed(failing: Failing | None, at: datetime, *, error: str, reason: str) -> Failing:
    """One failure more."""
    if failing is None:
        return Failing(attempts=1, first_at=at, last_at=at, error=error, reason=reason)
    return replace(
        failing,
        attempts=(failing.attempts or 0) + 1,
        first_at=failing.first_at or failing.last_at,
        last_at=at,
        error=error,
        reason=reason,
    )
