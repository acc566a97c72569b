"""Certificates: list, look, ask for, change, pause, resume, archive, renew, cancel, revoke."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final, Literal, cast

from pydantic import BaseModel, Field

from holdfast.core import certificate as rules
from holdfast.core import reasons, renewal
from holdfast.core.certificate import Certificate as Row
from holdfast.core.certificate import CertificateSpec, CertificateState, Failing, changers_with
from holdfast.core.certificate import Version as HeldVersion
from holdfast.core.inventory import InventoryFilter, Sort, Standing
from holdfast.core.issuance import Issuance
from holdfast.core.own_ca.ca import RateLimit
from holdfast.core.reasons import Reason
from holdfast.core.revocation_reason import RevocationReason
from holdfast.core.work.job import Priority, Spec
from holdfast.errors import UserError
from holdfast.operations.access import Action, Owned, Principal
from holdfast.operations.certificates import refs
from holdfast.operations.certificates.checks import SpecificationRefused, check, check_own_cas
from holdfast.operations.certificates.policies import demand_changed_names, demand_names
from holdfast.operations.certificates.refs import found_by, got
from holdfast.operations.certificates.views import (
    CertificateChange,
    CertificateRef,
    CertificateView,
    NewCertificate,
    changes_of,
    owned_by,
    plain,
    shown,
    view_of,
    views_of,
    wanted_of,
)
from holdfast.operations.context import Context
from holdfast.operations.deployment import planning
from holdfast.operations.inputs import (
    Instant,
    NoteText,
    Page,
    Paged,
    PageLimit,
    ReasonName,
    Short,
    cursor,
    from_row,
    label_pair,
    place,
)
from holdfast.operations.installation import events
from holdfast.operations.installation.events import EventPage
from holdfast.operations.issuance import attempts as issuance_attempts
from holdfast.operations.issuance import input_changed, order_budgets
from holdfast.operations.issuance.attempts import ISSUE, Ids
from holdfast.operations.operation import operation
from holdfast.operations.own_ca import revocation
from holdfast.operations.scopes import VISIBLE, certificate, owner_in_input
from holdfast.store import certificates, inventory, issuances, issuers, journal, subjects, versions
from holdfast.store.acme import limits
from holdfast.store.tx import Tx
from holdfast.store.work import jobs

REVOKE: Final = revocation.REVOKE
REVOKE_TRIES: Final = 10
CANCELLED_FOR: Final = issuance_attempts.NO_CA_FOR
# An order that is paid for and of no use, or perhaps not there: a second order is a person's decision.
ORDERED_ANEW: Final = frozenset({Reason.WRONG_CERTIFICATE.value, Reason.ORDER_UNCERTAIN.value})


RENEWALS: Final = RateLimit(count=20, span=timedelta(hours=1))  # of one certificate, asked for by one token


class CertificateExists(UserError):
    status, code = 409, "certificate-exists"

    def __init__(self, name: str) -> None:
        super().__init__(f"There is a certificate named {name!r} already.")
        self.hint = "Change that one, or choose another name."


class NotNow(UserError):
    status, code = 409, "certificate-state"

    def __init__(self, name: str, state: str, hint: str) -> None:
        super().__init__(f"Certificate {name!r} is {state}.")
        self.hint = hint


class Stale(UserError):
    status, code = 409, "stale"

    def __init__(self, name: str) -> None:
        super().__init__(f"Certificate {name!r} was changed since you read it.")
        self.hint = "Read it again, and repeat your change if it is still right."


# ── Looking ──


class CertificateQuery(Paged):
    q: str | None = Field(default=None, max_length=253, description="Part of its name, or of a name it is for.")
    state: Literal["active", "paused", "archived"] | None = Field(
        default=None, description="Left out: all but archived certificates."
    )
    owner: str | None = Field(default=None, max_length=100)
    unowned: bool = Field(default=False, description="Only certificates without an owner.")
    label: list[str] = Field(default=[], max_length=16, description="name=value; may be repeated.")
    issuer: str | None = Field(default=None, max_length=100, description="Only certificates that name this issuer.")
    failing: bool = Field(default=False, description="Only certificates whose last issuance failed.")
    for_a_person: bool = Field(default=False, description="Only certificates that wait for a person to act.")
    standing: list[Standing] = Field(
        default=[], max_length=13, description="Only certificates that stand so, such as retrying; may be repeated."
    )
    expires_before: Instant | None = None
    sort: Sort | None = Field(
        default=None, description="By name; by expiry, if expires_before is given and this is left out."
    )
    total: bool = Field(default=False, description="Count all that match, too.")


@operation(
    "certificates.list",
    "GET /certificates",
    command="ls",
    action=Action.SEE,
    scope=VISIBLE,
    example="holdfast ls --expiring 14d",
)
def list_certificates(tx: Tx, ctx: Context, asked: CertificateQuery) -> Page[CertificateView]:
    """List certificates, filtered and sorted by the server."""
    wanted = InventoryFilter(
        text=asked.q,
        state=asked.state,
        owners=("",) if asked.unowned else () if asked.owner is None else (asked.owner,),
        labels=dict(label_pair(each) for each in asked.label),
        issuer=asked.issuer,
        failing=asked.failing,
        for_a_person=asked.for_a_person,
        standings=tuple(asked.standing),
        at=tx.now(),
        expires_before=asked.expires_before,
    )
    sort: Sort = asked.sort or ("name" if asked.expires_before is None else "expires")
    after = place(asked.cursor, *((str, str) if sort == "name" else (int, str)))
    mine = refs.confined(wanted, ctx.principal)
    if mine is None:
        return Page[CertificateView](items=[], total=0 if asked.total else None)
    found = inventory.find(tx, mine, sort=sort, after=after, limit=asked.limit)
    seen = [each for each in found if refs.sees(ctx.principal, Owned.of(each))]
    page = {
        "items": [plain(each) for each in views_of(tx, seen)],
        "next": cursor(_end(tx, found, sort) if len(found) == asked.limit else None),
        "total": inventory.count(tx, mine) if asked.total else None,
    }
    return cast("Page[CertificateView]", page)  # without a model for each of 500: that takes longer than all the rest


def _end(tx: Tx, found: Sequence[Row], sort: Sort) -> tuple[object, ...]:
    last = found[-1]
    if sort == "name":
        return (last.name, last.id)
    return (inventory.end_of(tx, last.id), last.id)


@operation(
    "certificates.get",
    "GET /certificates/{ref}",
    command="get",
    action=Action.SEE,
    scope=certificate(),
    versioned=True,
    example="holdfast get www.example.com",
)
def get(tx: Tx, ctx: Context, asked: CertificateRef) -> CertificateView:
    """Show one certificate: its specification, its current version, and its status."""
    return _shown(tx, asked.ref)


def _shown(tx: Tx, ref: str) -> CertificateView:
    return shown(view_of(tx, found_by(tx, ref)))


def shown_after(tx: Tx, certificate_id: str, issuance: Issuance) -> CertificateView:
    """With the issuance that was waited for."""
    return shown(view_of(tx, got(tx, certificate_id)), issuance)


class VersionView(BaseModel):
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


@operation(
    "certificates.versions",
    "GET /certificates/{ref}/versions",
    command="versions",
    action=Action.SEE,
    scope=certificate(),
    example="holdfast versions www.example.com",
)
def list_versions(tx: Tx, ctx: Context, asked: CertificateRef) -> list[VersionView]:
    """List the versions of a certificate, the newest first, without their keys."""
    return [_version(each) for each in versions.of(tx, found_by(tx, asked.ref).id)]


def _version(held: HeldVersion) -> VersionView:
    revocation = {"revocation_asked_at": held.revoke_asked_at, "revocation_reason": held.revoke_reason}
    return from_row(VersionView, held, key_sha256=held.spki_sha256, **revocation)


class CertificateEvents(CertificateRef):
    after: int = Field(default=0, ge=0, lt=2**63, description="The id of the last event that is known.")
    limit: PageLimit = 100


@operation(
    "certificates.events",
    "GET /certificates/{ref}/events",
    command="events",
    action=Action.SEE,
    scope=certificate(),
    example="holdfast events www.example.com",
)
def list_events(tx: Tx, ctx: Context, asked: CertificateEvents) -> EventPage:
    """List the events of one certificate, the oldest first."""
    found = journal.events_after(tx, asked.after, subject=found_by(tx, asked.ref).id, limit=asked.limit)
    names = subjects.names_of(tx, [each.subject for each in found])
    return EventPage(items=[events.shown(each, names) for each in found], next=found[-1].id if found else asked.after)


# ── Asking for one ──


@operation(
    "certificates.request",
    "POST /certificates",
    command="issue",
    action=Action.CREATE,
    scope=owner_in_input(owned_by),
    status=202,
    waits=shown_after,
    creates=True,
    example="holdfast issue www.example.com --wait",
)
def request(tx: Tx, ctx: Context, asked: NewCertificate) -> CertificateView:
    """Ask for a certificate, which is kept renewed from then on. Its first issuance begins at once."""
    spec = wanted_of(asked, ctx.principal, asked.issuers or _default_issuers(tx, ctx))
    if spec.csr is not None and "reuse_key" not in asked.model_fields_set:
        spec = replace(spec, reuse_key=True)  # or its first renewal would need a person
    made = create(tx, ctx.ids.new("certificate"), spec, ctx.issuance_ids(), actor=ctx.actor, asker=ctx.principal)
    return shown(view_of(tx, made))


def _default_issuers(tx: Tx, ctx: Context) -> Sequence[str]:
    """The setting's; without one, the only issuer that there is."""
    if ctx.services.default_issuers:
        return ctx.services.default_issuers
    known = [row.name for row in issuers.all_issuers(tx)]
    if not known:
        hint = "Add one: holdfast issuer add letsencrypt letsencrypt"
        raise SpecificationRefused("There is no issuer to order from.", hint)
    if len(known) > 1:
        raise SpecificationRefused(
            "There are several issuers: say which.", f"One of {', '.join(known)}, or several in order."
        )
    return known


def create(
    tx: Tx, certificate_id: str, spec: CertificateSpec, ids: Ids | None, *, actor: str, asker: Principal | None = None
) -> Row:
    """Add a certificate and begin its first issuance. Without `ids` it is added paused: nothing is ordered."""
    check(tx, spec)
    demand_names(tx, spec, asker=asker, actor=actor)
    check_own_cas(tx, spec)
    now, paused = tx.now(), ids is None
    new = Row(
        id=certificate_id,
        wanted=spec,
        state=CertificateState.PAUSED if paused else CertificateState.ACTIVE,
        generation=1,
        version=1,
        fingerprint=spec.fingerprint(),
        changed_by=actor,
        changers={actor: 1},
        created_at=now,
        next_action_at=None if paused else now,
        next_cause=None if paused else Reason.FIRST.value,
    )
    if not certificates.insert(tx, new):
        raise CertificateExists(spec.name)
    more: dict[str, Any] = {"paused": True} if paused else {}
    journal.audit(tx, "certificate_requested", new.id, actor=actor, after=kept(new), **told(spec), **more)
    journal.event(tx, "certificate.requested", new.id, certificate=spec.name, by=actor, **more)
    if ids is not None:
        issuance_attempts.begin(tx, new, None, ids, cause=Reason.FIRST, urgent=False, requested_by=actor)
    return got(tx, new.id)


def kept(found: Row, **changes: object) -> dict[str, object]:
    """What people decide about a certificate: the audit log has digests of it, before and after."""
    return {"wanted": found.wanted, "state": found.state, **changes}


def told(spec: CertificateSpec) -> dict[str, object]:
    """What the audit log says of it in words."""
    return {
        "name": spec.name,
        "names": [each.value for each in spec.identifiers],
        "issuers": list(spec.issuers),
        "key_kind": spec.key_kind,
        "profile": spec.profile or "",
        "owner": spec.owner,
        "labels": dict(spec.labels),
        "approval": spec.approval_required,
    }


# ── Changing ──


@operation(
    "certificates.change",
    "PATCH /certificates/{ref}",
    command="change",
    action=Action.CHANGE,
    scope=certificate(),
    versioned=True,
    waits=shown_after,
    example="holdfast change www.example.com --key ec-p384",
)
def change(tx: Tx, ctx: Context, asked: CertificateChange) -> CertificateView:
    """Change a certificate. Options you leave out keep their values.

    Other names, issuers or another key are a new generation: failures are forgotten, and it is issued at once. The
    asker cannot give a certificate away to an owner or label that the asker may not see.
    """
    after = change_wanted(
        tx,
        asked.ref,
        changes_of(asked),
        ctx.issuance_ids(),
        actor=ctx.actor,
        asker=ctx.principal,
        expected_version=ctx.expected_version,
    )
    ctx.demand(Action.CHANGE, Owned.of(after))
    return shown(view_of(tx, after))


def change_wanted(
    tx: Tx,
    ref: str,
    changes: dict[str, Any],
    ids: Ids,
    *,
    actor: str,
    asker: Principal | None = None,
    expected_version: int | None = None,
    may_lift_approval: bool = False,
) -> Row:
    """Change the specification. An asker who may change a certificate may not thereby end its need for approval:
    that takes a right of its own.
    """
    found = found_by(tx, ref, lock=True)
    if expected_version is not None and found.version != expected_version:
        raise Stale(found.name)
    if found.state is CertificateState.ARCHIVED:
        raise NotNow(found.name, "archived", "Ask for it anew: archived certificates are kept as they were.")
    spec = replace(found.wanted, **changes)
    check(tx, spec)
    demand_changed_names(tx, found.wanted, spec, asker=asker, actor=actor)
    if found.wanted.approval_required and not spec.approval_required and not may_lift_approval:
        raise SpecificationRefused("A change cannot lift the need for approval.", "Ask a person who may set policy.")
    if spec == found.wanted:
        return found
    if spec.fingerprint() != found.fingerprint:
        check_own_cas(tx, spec)
    other = certificates.by_name(tx, spec.name)
    if other is not None and other.id != found.id:
        raise CertificateExists(spec.name)
    states = {"before": kept(found), "after": kept(found, wanted=spec)}
    journal.audit(tx, "certificate_changed", found.id, actor=actor, **states, **told(spec))
    journal.event(tx, "certificate.changed", found.id, by=actor, what=sorted(changes))
    if spec.fingerprint() == found.fingerprint:
        mended = found.failing is not None and _proved_otherwise(found.wanted, spec) and _for_solver(found.failing)
        begun_anew: dict[str, Any] = {"failing": None} if mended else {}
        after = issuance_attempts.replan(tx, found, tx.now(), wanted=spec, **begun_anew)
        if spec.targets != found.wanted.targets:
            planning.follow(tx, after, cause="targets changed", actor=actor)
        return after
    return _new_generation(tx, found, spec, ids, actor)


def _proved_otherwise(before: CertificateSpec, after: CertificateSpec) -> bool:
    return (before.challenge, before.solver) != (after.challenge, after.solver)


def _for_solver(failing: Failing) -> bool:
    return reasons.of(failing.reason) in input_changed.OF_SOLVERS


def _new_generation(tx: Tx, found: Row, spec: CertificateSpec, ids: Ids, actor: str) -> Row:
    under_way = issuances.under_way(tx, found.id)
    if under_way is not None:
        issuance_attempts.cancel(
            tx, under_way, actor=actor, reason=Reason.INPUT_CHANGED, why="the specification was changed"
        )
    issued = versions.get(tx, found.current_version)
    after = issuance_attempts.replan(
        tx,
        found,
        tx.now(),
        current=issued,
        wanted=spec,
        generation=found.generation + 1,
        fingerprint=spec.fingerprint(),
        failing=None,
        changed_by=actor,
        changers=changers_with(found, actor, 0 if issued is None else issued.generation),
    )
    if after.state is CertificateState.ACTIVE:
        cause = Reason.FIRST if issued is None else Reason.INPUT_CHANGED
        issuance_attempts.begin(tx, after, issued, ids, cause=cause, urgent=False, requested_by=actor)
    return got(tx, found.id)


# ── Pausing, resuming, archiving ──


@operation(
    "certificates.pause",
    "POST /certificates/{ref}/pause",
    command="pause",
    action=Action.CHANGE,
    scope=certificate(),
    example="holdfast pause www.example.com",
)
def pause(tx: Tx, ctx: Context, asked: CertificateRef) -> CertificateView:
    """Pause a certificate: it is not renewed until it is resumed, and may expire."""
    return shown(view_of(tx, set_state(tx, asked.ref, "paused", actor=ctx.actor)))


@operation(
    "certificates.resume",
    "POST /certificates/{ref}/resume",
    command="resume",
    action=Action.CHANGE,
    scope=certificate(),
    example="holdfast resume www.example.com",
)
def resume(tx: Tx, ctx: Context, asked: CertificateRef) -> CertificateView:
    """Resume a paused certificate. A renewal that is due by now begins at once."""
    return shown(view_of(tx, set_state(tx, asked.ref, "resumed", actor=ctx.actor)))


@operation(
    "certificates.archive",
    "DELETE /certificates/{ref}",
    command="archive",
    action=Action.CHANGE,
    scope=certificate(),
    destructive=True,
    example="holdfast archive www.example.com",
)
def archive(tx: Tx, ctx: Context, asked: CertificateRef) -> CertificateView:
    """Archive a certificate for good: it is not renewed any more. It is not revoked, and its versions are kept."""
    return shown(view_of(tx, set_state(tx, asked.ref, "archived", actor=ctx.actor)))


def set_state(tx: Tx, ref: str, event: str, *, actor: str) -> Row:
    """ "paused", "resumed" or "archived". The versions stay as they are: archiving never revokes."""
    found = found_by(tx, ref, lock=True)
    if (found.state, event) not in rules.MOVES:
        raise NotNow(found.name, found.state.value, f"It cannot be {event} now.")
    state = rules.move(found.state, event)
    under_way = issuances.under_way(tx, found.id)
    if under_way is not None and state is not CertificateState.ACTIVE:
        reason = Reason.PAUSED if state is CertificateState.PAUSED else Reason.ARCHIVED
        issuance_attempts.cancel(tx, under_way, actor=actor, reason=reason, why=f"the certificate was {event}")
    ask = found.ari_ask_at if state is not CertificateState.ARCHIVED else None
    after = issuance_attempts.replan(tx, found, tx.now(), state=state, ari_ask_at=ask)
    if state is CertificateState.ARCHIVED:
        planning.follow(tx, after, cause="targets changed", actor=actor)
    journal.audit(tx, f"certificate_{event}", found.id, actor=actor, before=kept(found), after=kept(after))
    journal.event(tx, f"certificate.{event}", found.id, by=actor)
    tx.wakes = True
    return after


# ── Renewing now, cancelling ──


class Renewal(CertificateRef):
    delay_s: float = Field(
        default=0, ge=0, le=7 * 86400, description="Begin so much later, and never later than it is due anyway."
    )


@operation(
    "certificates.renew",
    "POST /certificates/{ref}/renew",
    command="renew",
    action=Action.RENEW,
    scope=certificate(),
    status=202,
    waits=shown_after,
    example="holdfast renew www.example.com --wait",
)
def renew(tx: Tx, ctx: Context, asked: Renewal) -> CertificateView:
    """Renew a certificate now, without regard to its schedule and its back-off.

    The issuer's budget holds; an issuance that fails counts as a failure. A delay spreads the renewal of many
    certificates. An issuance under way is hastened; one whose order only a person may give up is replaced.
    """
    delay, found = timedelta(seconds=asked.delay_s), found_by(tx, asked.ref, lock=True)
    if found.state is not CertificateState.ACTIVE:
        raise NotNow(found.name, found.state.value, f"Resume it first: holdfast resume {found.name}")
    now, under_way = tx.now(), issuances.under_way(tx, found.id)
    _count_renewal(tx, ctx, found, begins=under_way is None)
    if under_way is not None and under_way.reason in ORDERED_ANEW and not delay:
        issuance_attempts.cancel(
            tx, under_way, actor=ctx.actor, reason=Reason.MANUAL, why=f"{ctx.actor} asked for a new order"
        )
        under_way = None
    if under_way is not None:
        jobs.bring_forward(tx, ISSUE, under_way.id, now + delay)
    else:
        _begin_renewal(tx, ctx, found, now, delay)
    return _shown(tx, found.id)


def _count_renewal(tx: Tx, ctx: Context, found: Row, *, begins: bool) -> None:
    """Each begins an order, which others cannot have then: so many of one certificate are a mistake, or worse."""
    if not begins:
        return
    full = limits.take(tx, {f"renew/{found.id}/{ctx.principal.id}": RENEWALS}, tx.now())
    if full:
        raise TooManyRenewals(found.name, max(full.values()))
    _leave_half(tx, ctx, found)


def _leave_half(tx: Tx, ctx: Context, found: Row) -> None:
    """A team's renewals that are not due leave half of an issuer's orders to the other teams."""
    current = versions.get(tx, found.current_version)
    early = current is not None and not found.failing and not renewal.decide(found, current, tx.now()).due(tx.now())
    if current is not None and early and ctx.principal.confined:
        at = order_budgets.half_free_at(tx, found, current)
        if at is not None:
            raise OrdersKeptForOthers(found.wanted.issuers[0], at - tx.now())


def _begin_renewal(tx: Tx, ctx: Context, found: Row, now: datetime, delay: timedelta) -> None:
    current, ids = versions.get(tx, found.current_version), ctx.issuance_ids()
    at = _no_later(found, current, now + delay, now) if delay else None
    begun = issuance_attempts.begin(
        tx, found, current, ids, cause=Reason.MANUAL, urgent=False, requested_by=ctx.actor, not_before=at
    )
    if begun is None:
        hint = "Resume one of its issuers: holdfast issuer ls"
        raise NotNow(found.name, "without an issuer that may be used", hint)


def _no_later(found: Row, current: HeldVersion | None, wish: datetime, now: datetime) -> datetime:
    planned = renewal.decide(found, current, now).at
    return min(wish, max(planned or now, now))


class TooManyRenewals(UserError):
    status, code = 429, "too-many-renewals"

    def __init__(self, name: str, wait: timedelta) -> None:
        super().__init__(f"You asked for {RENEWALS.count} renewals of {name} within an hour.")
        self.after = wait.total_seconds() + 1
        self.hint = f"See why they did not help: holdfast explain {name}"


class OrdersKeptForOthers(UserError):
    status, code = 429, "orders-kept-for-others"

    def __init__(self, issuer: str, wait: timedelta) -> None:
        super().__init__(f"Half of what {issuer} allows is used up, and this certificate is not due yet.")
        self.after = wait.total_seconds() + 1
        self.hint = "The other half is for certificates that are due, and for other teams. Wait until this one is due."


class IssuanceCancellation(CertificateRef):
    why: NoteText = Field(min_length=1, description="For the audit log.")


@operation(
    "certificates.cancel",
    "POST /certificates/{ref}/cancel",
    command="cancel",
    action=Action.RENEW,
    scope=certificate(),
    destructive=True,
    example="holdfast cancel www.example.com --why 'ordered by mistake'",
)
def cancel(tx: Tx, ctx: Context, asked: IssuanceCancellation) -> CertificateView:
    """Cancel the issuance under way. It does not count as a failure; the next one is planned as if it had not been."""
    found = found_by(tx, asked.ref, lock=True)
    under_way = issuances.under_way(tx, found.id)
    if under_way is None:
        raise NotNow(found.name, "not being issued", "There is no issuance to cancel.")
    issuance_attempts.cancel(tx, under_way, actor=ctx.actor, reason=Reason.CANCELLED, why=asked.why)
    now = tx.now()
    after = issuance_attempts.replan(tx, found, now)
    if after.next_action_at is not None and after.next_action_at <= now:  # or the next sweep would begin it again
        certificates.save(
            tx, after, next_action_at=_after_cancelling(tx, after, now), next_cause=Reason.CANCELLED.value
        )
    return _shown(tx, found.id)


def _after_cancelling(tx: Tx, found: Row, now: datetime) -> datetime:
    """No later than is safe for the certificate in use."""
    current = versions.get(tx, found.current_version)
    later = now + CANCELLED_FOR
    return later if current is None else min(later, max(now, renewal.safe_until(current)))


# ── Revoking ──


class Revocation(CertificateRef):
    reason: ReasonName
    version: Short | None = Field(default=None, description="Which version; the current one if left out.")


@operation(
    "certificates.revoke",
    "POST /certificates/{ref}/revoke",
    command="revoke",
    action=Action.REVOKE,
    scope=certificate(),
    status=202,
    waits=shown_after,
    destructive=True,
    example="holdfast revoke www.example.com --reason key-compromise",
)
def revoke(tx: Tx, ctx: Context, asked: Revocation) -> CertificateView:
    """Revoke a certificate at its issuer, and replace it at once if it is in use.

    The revocation is retried until the issuer confirms it. One that was given up is taken up again.
    """
    found = found_by(tx, asked.ref, lock=True)
    chosen = versions.get(tx, asked.version or found.current_version)
    if chosen is None or chosen.certificate != found.id:
        raise NotNow(found.name, "without a version to revoke", f"See its versions: holdfast get {found.name}")
    reason = RevocationReason(asked.reason).number
    if versions.ask_revocation(tx, chosen.id, reason):
        _begin_revocation(tx, ctx, found, chosen, reason)
    else:
        revocation.take_up_again(tx, chosen, reason, actor=ctx.actor)
    return shown(view_of(tx, got(tx, found.id)), note=revocation.note(tx, chosen))


def _begin_revocation(tx: Tx, ctx: Context, found: Row, chosen: HeldVersion, reason: int) -> None:
    """Add the job that tells the issuer, and replace a version that is in use."""
    jobs.enqueue(
        tx,
        Spec(
            id=ctx.ids.new("job"),
            kind=REVOKE,
            subject=chosen.id,
            priority=Priority.URGENT,
            max_attempts=REVOKE_TRIES,
            budgets=order_budgets.for_request(tx, chosen.issuer),
        ),
    )
    facts = {"version": chosen.id, "serial": chosen.serial, "reason": reason}
    journal.audit(tx, "revocation_asked", found.id, actor=ctx.actor, **facts)
    journal.event(tx, "revocation.asked", found.id, version=chosen.id, by=ctx.actor)
    if chosen.id == found.current_version and found.state is CertificateState.ACTIVE:
        _replace(tx, found, ctx.issuance_ids(), ctx.actor)


def _replace(tx: Tx, found: Row, ids: Ids, actor: str) -> None:
    current = versions.get(tx, found.current_version)
    under_way = issuances.under_way(tx, found.id)
    if under_way is None:
        issuance_attempts.begin(tx, found, current, ids, cause=Reason.REVOKED, urgent=True, requested_by=actor)
    else:
        issuance_attempts.hasten(tx, under_way, tx.now())
        issuance_attempts.press(tx, under_way)
