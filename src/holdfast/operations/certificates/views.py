"""Certificates as API models: their inputs, their results, and the view that status and results are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, Field, StringConstraints, create_model, model_validator

from holdfast.core import certificate as spec
from holdfast.core import serving
from holdfast.core import status as block
from holdfast.core.certificate import (
    DEFAULTS,
    FIELDS,
    Certificate,
    CertificateSpec,
    Failing,
    FieldKind,
    RenewalPolicy,
    Version,
)
from holdfast.core.deployment import Deployment
from holdfast.core.endpoint_watch import WatchedEndpoint
from holdfast.core.issuance import Issuance, IssuanceState
from holdfast.core.serving import NOT_DEPLOYED, Serving
from holdfast.core.status import IssuanceJob, OwedToCa, Status, StatusExplanation
from holdfast.core.windows import UTC_NAME, MaintenanceWindow
from holdfast.core.work.job import Job, JobState
from holdfast.operations.access import Owned, Principal
from holdfast.operations.certificates.checks import SpecificationRefused, identifiers_of
from holdfast.operations.inputs import HostName, Input, Labels, Option, Short, StrictFlag, _absent
from holdfast.operations.issuance.attempts import ISSUE
from holdfast.store import access, endpoints, inventory, issuances, owed_to_cas, versions
from holdfast.store.deployments import deployments
from holdfast.store.tx import Tx
from holdfast.store.work import jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    certificate: Certificate
    current: Version | None
    issuance: Issuance | None
    job: IssuanceJob | None
    now: datetime
    endpoints: tuple[WatchedEndpoint, ...] = ()
    owed: tuple[OwedToCa, ...] = ()
    serving: Serving = NOT_DEPLOYED

    @property
    def status(self) -> Status:
        found = block.status(self.certificate, self.current, self.issuance, self.job, self.now)
        if self.serving.standing:
            found = serving.counted(found, self.serving, self.now, under_way=self.issuance is not None)
        return replace(found, owed=self.owed) if self.owed else found

    @property
    def standing(self) -> str:
        return block.standing(self.status, self.now)

    def explain(self, at: datetime | None = None) -> StatusExplanation:
        found = block.explain(self.certificate, self.current, self.issuance, self.job, at or self.now)
        return serving.explained(found, self.serving) if self.serving.standing else found


def view_of(tx: Tx, found: Certificate) -> View:
    issuance = issuances.under_way(tx, found.id)
    return View(
        certificate=found,
        current=versions.get(tx, found.current_version),
        issuance=issuance,
        job=None if issuance is None else _waits(tx, issuance),
        now=tx.now(),
        endpoints=tuple(endpoints.of_certificates(tx, [found.id])),
        owed=tuple(owed_to_cas.of(tx, [found.id]).get(found.id, ())),
        serving=_serving(tx, [found]).get(found.id, NOT_DEPLOYED),
    )


def _serving(tx: Tx, found: Sequence[Certificate]) -> dict[str, Serving]:
    """What targets serve, of those that are deployed at all."""
    standing = deployments.standing(tx, [each.id for each in found if each.wanted.targets])
    current = {each.id: each.current_version for each in found}
    behind = {
        row.certificate_version
        for rows in standing.values()
        for row in rows
        if row.state.in_place and row.certificate_version != current[row.certificate]
    }
    older = versions.many(tx, sorted(behind), chains=False)
    return {
        certificate: Serving(
            standing=tuple(rows),
            older=tuple(older[row.certificate_version] for row in rows if row.certificate_version in older
                        and row.state.in_place),
        )
        for certificate, rows in standing.items()
    }  # fmt: skip


def views_of(tx: Tx, found: Sequence[Certificate]) -> list[View]:
    """In a few statements, however many certificates there are; without their chains."""
    held = versions.many(tx, [each.current_version for each in found if each.current_version is not None], chains=False)
    under_way = inventory.under_way(tx, [each.id for each in found])
    known = inventory.jobs_of(tx, ISSUE, [each.id for each in under_way.values()])
    waits = {each: waiting(job) for each, job in known.items()}
    undecided = [each.id for each in under_way.values() if each.state is IssuanceState.AWAITING_APPROVAL]
    waits |= {each: IssuanceJob(due_at=at) for each, at in access.approval_expiries(tx, undecided).items()}
    now, seen = tx.now(), endpoints.of_certificates(tx, [each.id for each in found])
    owed, served = owed_to_cas.of(tx, [each.id for each in found]), _serving(tx, found)
    return [
        View(
            certificate=each,
            current=held.get(each.current_version or ""),
            issuance=under_way.get(each.id),
            job=waits.get(under_way[each.id].id) if each.id in under_way else None,
            now=now,
            endpoints=tuple(one for one in seen if each.id in one.certificates),
            owed=tuple(owed.get(each.id, ())),
            serving=served.get(each.id, NOT_DEPLOYED),
        )
        for each in found
    ]


def _waits(tx: Tx, issuance: Issuance) -> IssuanceJob | None:
    """An issuance waits for its job; before it has one, for its approval, until that expires."""
    if issuance.state is not IssuanceState.AWAITING_APPROVAL:
        return waiting(_job_of(tx, issuance))
    approval = access.approval_of(tx, issuance.id)
    return None if approval is None else IssuanceJob(due_at=approval.expires_at)


def _job_of(tx: Tx, issuance: Issuance) -> Job | None:
    """The live job; else the dead one, until the issuance itself is given up."""
    return jobs.live(tx, ISSUE, issuance.id) or jobs.dead(tx, ISSUE, issuance.id)


def waiting(job: Job | None) -> IssuanceJob | None:
    """What the status needs to know of the job of an issuance."""
    if job is None:
        return None
    return IssuanceJob(
        due_at=job.due_at,
        running=job.state is JobState.RUNNING,
        failed=job.state is JobState.FAILED or job.reason == jobs.RETRY,
        dead=job.state is JobState.DEAD,
        reason=job.reason,
        last_error=job.last_error,
    )


# ── Inputs ──


class CertificateRef(Input):
    ref: Annotated[str, Option(metavar="CERT")] = Field(
        max_length=300, description="Its name, its id, or a prefix of its id that no other has."
    )


class RenewalRule(Input):
    fraction: float | None = Field(
        default=None, ge=0.1, le=0.95, description="Renew when this part of its lifetime is over."
    )
    before_s: float | None = Field(default=None, gt=0, le=10**9, description="Or so many seconds before it expires.")
    ari: StrictFlag = Field(default=True, description="Ask the issuer when to renew (ARI, RFC 9773).")


class MaintenanceHours(Input):
    days: list[Annotated[int, Field(ge=0, le=6)]] = Field(default=[0, 1, 2, 3, 4, 5, 6], min_length=1, max_length=7)
    opens: int = Field(default=0, ge=0, lt=1440, description="Minutes after midnight.")
    closes: int = Field(default=1440, gt=0, le=1440)
    zone: str = Field(default=UTC_NAME, max_length=60, description="The time zone of its hours, by its IANA name.")

    @model_validator(mode="after")
    def _can_be(self) -> Self:
        window_of(self)
        return self


# What an owner may ask for comes from one table (core/certificate.py): the models that take it, and the one that shows
# it, are made of it here.


def _taken(field: spec.Field) -> Any:
    """The type that a field has in a request."""
    match field.kind:
        case FieldKind.TEXT:
            return Annotated[str, StringConstraints(pattern=f"^{field.lenient}$")]
        case FieldKind.NAMES:  # spelt twice a name counts once, so more than the most may be given
            return Annotated[list[HostName], Field(min_length=1, max_length=2 * field.most)]
        case FieldKind.ISSUERS:
            return Annotated[list[Short], Field(min_length=1, max_length=field.most)]
        case FieldKind.TARGETS:
            return Annotated[list[Short], Field(max_length=field.most)]
        case FieldKind.CHOICE:
            return _LITERAL[field.members]
        case FieldKind.FLAG:
            return StrictFlag
        case FieldKind.DURATION:
            least, most = (None, None) if field.between is None else (each.total_seconds() for each in field.between)
            return Annotated[float, Field(ge=least, le=most)]
        case FieldKind.RENEWAL:
            return RenewalRule
        case FieldKind.WINDOWS:
            return Annotated[list[MaintenanceHours], Field(max_length=field.most)]
        case FieldKind.LABELS:
            return Labels


_LITERAL: Final[Any] = Literal
_SHOWN: Final[Mapping[FieldKind, Any]] = {
    FieldKind.TEXT: str,
    FieldKind.NAMES: list[str],
    FieldKind.ISSUERS: list[str],
    FieldKind.TARGETS: list[str],
    FieldKind.CHOICE: str,
    FieldKind.FLAG: bool,
    FieldKind.DURATION: float,
    FieldKind.RENEWAL: RenewalRule,
    FieldKind.WINDOWS: list[MaintenanceHours],
    FieldKind.LABELS: dict[str, str],
}
_WITHOUT: Final[Mapping[FieldKind, Any]] = {
    FieldKind.RENEWAL: RenewalRule(),
    FieldKind.WINDOWS: [],
    FieldKind.LABELS: {},
    FieldKind.TARGETS: [],
}
_LEFT_OUT: Final = frozenset({"name", "issuers"})  # the operation finds values for them


def _asked(field: spec.Field) -> tuple[Any, Any]:
    """A field of NewCertificate, with its default."""
    kind, usual = _taken(field), spec.DEFAULTS.get(field.attribute, _WITHOUT.get(field.kind, ...))
    if usual is None or field.key in _LEFT_OUT:
        return kind | None, Field(default=None, description=field.help)
    return kind, Field(default=usual, description=field.help)


def _changed(field: spec.Field) -> tuple[Any, Any]:
    return _taken(field) | None, Field(default=None, description=field.help)


def _shown(field: spec.Field) -> tuple[Any, Any]:
    kind = _SHOWN[field.kind]
    return (kind | None if spec.DEFAULTS.get(field.attribute, ...) is None else kind), ...


def _fields(name: str, base: type[BaseModel], of: Callable[[spec.Field], tuple[Any, Any]]) -> Any:
    """A model with every field of the table, which a class below completes."""
    made: dict[str, Any] = {each.wire: of(each) for each in spec.FIELDS}
    return create_model(name, __base__=base, **made)


class _Identified(BaseModel):
    id: str


if TYPE_CHECKING:  # the type checker knows the table's fields by their names alone

    class _NewFields(Input):
        def __getattr__(self, name: str) -> Any: ...

    class _ChangedFields(CertificateRef):
        def __getattr__(self, name: str) -> Any: ...

    class _ShownFields(_Identified):
        def __getattr__(self, name: str) -> Any: ...
else:
    _NewFields = _fields("NewFields", Input, _asked)
    _ChangedFields = _fields("ChangedFields", CertificateRef, _changed)
    _ShownFields = _fields("ShownFields", _Identified, _shown)


class NewCertificate(_NewFields):
    pass


class CertificateChange(_ChangedFields):
    """Fields that are left out keep their values."""


# ── Results ──


class OwedView(BaseModel):
    """A revocation or withdrawal that an issuer has not confirmed."""

    kind: Literal["revocation", "withdrawal"]
    of: str = Field(description="The version to revoke, or the issuance whose order is withdrawn.")
    issuer: str
    since: datetime | None
    job: str | None
    given_up: bool = Field(description="It is not tried any more: holdfast retry JOB")
    reason: str | None
    error: str | None = Field(description="What the issuer said last.")
    next_at: datetime | None


class StatusBlock(BaseModel):
    """How a certificate stands: the same block in every face."""

    phase: str
    standing: str = Field(
        description="The phase, with `retrying` and `not-served` apart from failing, and `due` from ok."
    )
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
        default=None, description="A request that is not approved by then is rejected; null: none waits for approval."
    )
    attempts_that_fit: int | None = Field(
        default=None, description="So many more issuances can fail before it expires; null while it is not failing."
    )
    safe_until: datetime | None
    expires_at: datetime | None
    blocked_by: list[str]
    owed: list[OwedView] = Field(default=[], description="What an issuer has not confirmed yet; mostly empty.")


class IssuanceUnderWay(BaseModel):
    """An issuance or revocation under way: where it stands, and where to look again."""

    id: str
    kind: Literal["issuance", "revocation"]
    state: str
    done: bool
    error: str | None = None
    reason_code: str | None = None
    issuer: str | None = None
    order_number: str | None = Field(default=None, description="The issuer's own number of the order.")


class SeenServed(BaseModel):
    """An endpoint of a certificate, and the verdict of the last look at it."""

    name: str
    place: str
    reason_code: str | None = Field(description="OK: its current version is seen there; null: not looked at yet.")
    reason: str | None
    since: datetime | None
    checked_at: datetime | None


class OnTarget(BaseModel):
    """A target of a certificate, and how far the certificate has come there."""

    target: str
    state: str
    serial: str | None = Field(default=None, description="Of an earlier version that the target serves; else null.")
    reason_code: str | None
    error: str | None
    next_at: datetime | None
    changed_at: datetime


class CertificateView(_ShownFields):
    state: str
    generation: int
    version: int
    created_at: datetime
    changed_by: str
    serial: str | None
    not_before: datetime | None
    not_after: datetime | None
    issuer: str | None = Field(description="The issuer that the current version came from.")
    issuance_attempts: int | None = Field(
        default=None, exclude_if=_absent, description="Failures in a row; there only while it is failing."
    )
    last_failure_at: datetime | None = Field(
        default=None, exclude_if=_absent, description="When it failed last; there only while it is failing."
    )
    status: StatusBlock
    endpoints: list[SeenServed] = Field(default=[], description="Where it is watched, and what was seen there last.")
    deployments: list[OnTarget] = Field(default=[], description="What its targets serve, and what is on its way there.")
    operation: IssuanceUnderWay | None = Field(default=None, description="The issuance under way, or the last one.")
    note: str | None = Field(
        default=None,
        exclude_if=_absent,
        description="In answer to a revocation: what became of one that was asked for before.",
    )


def shown(view: View, issuance: Issuance | None = None, *, note: str | None = None) -> CertificateView:
    """`issuance` is the one to show, when it is over; otherwise the one under way is shown."""
    found = plain(view, issuance)
    rule, windows = found.pop("renewal"), found.pop("windows")
    inner = {
        "renewal": RenewalRule.model_construct(**rule),
        "windows": [MaintenanceHours.model_construct(**each) for each in windows],
    }
    return CertificateView.model_validate({**found, **inner, "note": note})


def plain(view: View, issuance: Issuance | None = None) -> dict[str, Any]:
    """The fields of CertificateView in their order, for long pages: values from the store are not validated again.

    Enums stand by their values, which the encoder is slow to find.
    """
    row, spec, held = view.certificate, view.certificate.wanted, view.current
    under_way = issuance or view.issuance
    return {
        "id": row.id,
        **_asked_for(spec),
        "state": row.state.value,
        "generation": row.generation,
        "version": row.version,
        "created_at": row.created_at,
        "changed_by": row.changed_by,
        "serial": None if held is None else held.serial,
        "not_before": None if held is None else held.not_before,
        "not_after": None if held is None else held.not_after,
        "issuer": None if held is None else held.issuer,
        **_failing(row.failing),
        "status": _status(view),
        "endpoints": [_seen_served(each) for each in view.endpoints],
        "deployments": [_on_target(each, view.serving) for each in view.serving.standing],
        "operation": None if under_way is None else _operation(under_way),
    }


_SHOW: Final[Mapping[FieldKind, Callable[[Any], Any]]] = {
    FieldKind.NAMES: lambda found: [each.value for each in found],
    FieldKind.DURATION: lambda span: None if span is None else span.total_seconds(),
    FieldKind.RENEWAL: lambda rule: rule.to_json(),
    FieldKind.WINDOWS: lambda found: [each.to_json() for each in found],
}
_WIRES: Final = tuple(each.wire for each in FIELDS)
_attributes: Final = attrgetter(*(each.attribute for each in FIELDS))
_SHOW_BY_WIRE: Final = tuple((each.wire, _SHOW[each.kind]) for each in FIELDS if each.kind in _SHOW)


def _asked_for(spec: CertificateSpec) -> dict[str, Any]:
    found = dict(zip(_WIRES, _attributes(spec), strict=True))
    for wire, show in _SHOW_BY_WIRE:
        found[wire] = show(found[wire])
    return found


def _failing(failing: Failing | None) -> dict[str, Any]:
    """Empty while it is not failing; rows of older releases have no count."""
    if failing is None:
        return {}
    counted = {} if failing.attempts is None else {"issuance_attempts": failing.attempts}
    return {**counted, "last_failure_at": failing.last_at}


def _status(view: View) -> dict[str, Any]:
    found = view.status
    first = {"phase": found.phase.value, "standing": block.standing(found, view.now)}
    rest = {name: getattr(found, name) for name in found.__slots__ if name not in first}
    return first | rest | {"reason_code": found.reason_code.value, "owed": [asdict(each) for each in found.owed]}


def _seen_served(endpoint: WatchedEndpoint) -> dict[str, Any]:
    last = endpoint.last
    return {
        "name": endpoint.name,
        "place": endpoint.place.shown,
        "reason_code": None if last is None else last.reason.value,
        "reason": None if last is None else last.sentence,
        "since": None if last is None else last.since,
        "checked_at": None if last is None else last.at,
    }


def _on_target(row: Deployment, serving: Serving) -> dict[str, Any]:
    older = {each.id: each.serial for each in serving.older}
    return {
        "target": row.target,
        "state": row.state.value,
        "serial": older.get(row.certificate_version),
        "reason_code": row.reason,
        "error": row.error,
        "next_at": row.next_at,
        "changed_at": row.changed_at,
    }


def _operation(issuance: Issuance) -> dict[str, Any]:
    return {
        "id": issuance.id,
        "kind": "issuance",
        "state": issuance.state.value,
        "done": issuance.state.over,
        "error": issuance.error,
        "reason_code": issuance.reason,
        "issuer": issuance.issuer,
        "order_number": issuance.order_number,
    }


# ── From the input to core ──


def owned_by(principal: Principal, asked: NewCertificate) -> Owned:
    """Whose a new certificate will be: a token confined to one owner, or to labels, asks for that owner and labels."""
    owner = asked.owner or (principal.owners[0] if len(principal.owners) == 1 else "")
    return Owned(owner, {**principal.labels, **asked.labels})


def wanted_of(asked: NewCertificate, principal: Principal, issuers: Sequence[str]) -> CertificateSpec:
    owner, labels = owned_by(principal, asked)
    decided = {
        "name": asked.name or asked.names[0].strip().lower(),
        "issuers": tuple(issuers),
        "owner": owner,
        "labels": labels,
    }
    found: CertificateSpec = _built(lambda: CertificateSpec(**{**_values(asked), **decided}))
    return found


def _values(asked: NewCertificate) -> dict[str, Any]:
    return {each.attribute: _READ[each.kind](getattr(asked, each.wire)) for each in FIELDS if each.key != "issuers"}


_READ: Final[Mapping[FieldKind, Callable[[Any], Any]]] = {
    FieldKind.TEXT: lambda given: given,
    FieldKind.NAMES: lambda given: identifiers_of(given),
    FieldKind.ISSUERS: tuple,
    FieldKind.TARGETS: lambda given: tuple(dict.fromkeys(given)),
    FieldKind.CHOICE: str,
    FieldKind.FLAG: bool,
    FieldKind.DURATION: lambda given: _span(given),
    FieldKind.RENEWAL: lambda given: _rule(given),
    FieldKind.WINDOWS: lambda given: _windows(given),
    FieldKind.LABELS: dict,
}
_BY_WIRE: Final = {each.wire: each for each in FIELDS}


def changes_of(asked: CertificateChange) -> dict[str, Any]:
    """The fields that were given, by their names in core."""
    found = {}
    for name in sorted(asked.model_fields_set - {"ref"}):
        given, field = getattr(asked, name), _BY_WIRE[name]
        if given is None and DEFAULTS.get(field.attribute, ...) is not None:
            raise SpecificationRefused(f"{name} cannot be null.", "Leave it out to keep it as it is.")
        found[field.attribute] = _built(partial(_READ[field.kind], given))
    return found


def _built(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except ValueError as error:
        hint = "Correct that, and ask again; docs/guides/certificates.md says what can be asked for."
        raise SpecificationRefused(f"This cannot be asked for: {error}.", hint) from None


def _span(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


def _rule(given: RenewalRule) -> RenewalPolicy:
    return RenewalPolicy(fraction=given.fraction, before=_span(given.before_s), ari=given.ari)


def _windows(given: Sequence[MaintenanceHours]) -> tuple[MaintenanceWindow, ...]:
    return tuple(map(window_of, given))


def window_of(given: MaintenanceHours) -> MaintenanceWindow:
    return MaintenanceWindow(days=frozenset(given.days), opens=given.opens, closes=given.closes, zone=given.zone)
