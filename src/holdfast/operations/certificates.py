"""What people may ask about certificates: request, change, pause, archive, renew, cancel, revoke, look."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from holdfast.core import ca_limits, renewal
from holdfast.core import certificate as rules
from holdfast.core import status as block
from holdfast.core.acme import Identifier
from holdfast.core.certificate import MAX_NAMES, Certificate, State, Version, Wanted
from holdfast.core.issuance import Issuance
from holdfast.core.issuance import State as Step
from holdfast.core.job import Priority, Spec
from holdfast.core.job import State as JobState
from holdfast.core.reasons import Reason
from holdfast.core.status import Explanation, Status, Waiting
from holdfast.errors import UserError
from holdfast.operations import issuing, paying, revocation
from holdfast.operations.issuing import ISSUE, Keeper
from holdfast.pki import names
from holdfast.pki.keys import KeyKind
from holdfast.store import approvals, certificates, issuances, issuers, jobs, journal, versions
from holdfast.store.issuers import IssuerRow
from holdfast.store.tx import Tx

REVOKE: Final = revocation.REVOKE
REVOKE_TRIES: Final = 10
_ALIKE: Final = 3  # of those that may have been meant, are named
REASONS: Final = (0, 1, 3, 4, 5, 9)  # of revocation (RFC 5280 §5.3.1) that a subscriber may give


# ── What can be wrong with a wish ──


class NoSuchCertificate(UserError):
    status, code = 404, "no-such-certificate"

    def __init__(self, ref: str, alike: Sequence[Certificate] = ()) -> None:
        """`alike`: what may have been meant, for those who may see all of them."""
        super().__init__(f"There is no certificate {ref!r:.80}.")
        self.hint = "Give its name, its id, or a prefix of its id that no other has."
        self.alike = tuple(alike)
        if len(alike) > 1:
            first = ", ".join(f"{each.id} ({each.name:.60})" for each in alike[:_ALIKE])
            more = " and more" if len(alike) > _ALIKE else ""
            self.args = (f"{ref!r:.80} is ambiguous, the ids of several begin so: {first}{more}.",)
        elif alike:
            self.args = (f"{ref:.80} is archived, as {alike[0].id}: it is not kept any more.",)
            self.hint = (
                f"Look at it by its id: holdfast get {alike[0].id}. Or ask for it anew: holdfast issue {ref:.80}"
            )


class CertificateExists(UserError):
    status, code = 409, "certificate-exists"

    def __init__(self, name: str) -> None:
        super().__init__(f"There is a certificate named {name!r} already.")
        self.hint = "Change that one, or choose another name."


class UnknownIssuer(UserError):
    status, code = 400, "unknown-issuer"

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(f"There is no CA named {name!r:.80}.")
        listed = ", ".join(sorted(known))
        self.hint = f"There are: {listed}." if listed else "Add one first: holdfast issuer add."


class WishRefused(UserError):
    status, code = 400, "wish-refused"

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(problem)
        self.hint = hint or "See: holdfast issue --help"


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


def identifiers_of(texts: Sequence[str]) -> tuple[Identifier, ...]:
    """Names and addresses in their one spelling, each once, in the order given; NameRefused says what is wrong."""
    if not texts:
        raise WishRefused(
            "A certificate needs at least one name.", "Name what it is for: holdfast issue www.example.com"
        )
    found = dict.fromkeys(_identifier(text.strip()) for text in texts)
    if len(found) > MAX_NAMES:
        raise WishRefused(
            f"A certificate has at most {MAX_NAMES} names; these are {len(found)}.",
            "Ask for several certificates, each with some of the names.",
        )
    return tuple(found)


def _identifier(text: str) -> Identifier:
    try:
        ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return Identifier("dns", names.dns_name(text))
    return Identifier("ip", names.ip_address(text.strip("[]")))


def check(tx: Tx, wanted: Wanted) -> None:
    """Whether it can be had at all, of all its CAs: what is found out here costs no attempt."""
    if wanted.key_kind not in set(KeyKind):
        raise WishRefused(f"There is no key type {wanted.key_kind!r:.40}.", f"There are: {', '.join(KeyKind)}.")
    if not wanted.name or len(wanted.name) > 253 or any(char.isspace() for char in wanted.name):
        raise WishRefused(
            "A certificate's own name has 1 to 253 characters and no spaces.", "For example: www-example-com"
        )
    known = {row.name: row for row in issuers.all_issuers(tx)}
    for name in wanted.issuers:
        if name not in known:
            raise UnknownIssuer(name, known)
        if wanted.issuers.count(name) > 1:
            raise WishRefused(f"The CA {name} is named twice.", "Name each CA once, the first choice first.")
    few_enough(wanted, [known[name] for name in wanted.issuers])


def few_enough(wanted: Wanted, rows: Iterable[IssuerRow]) -> None:
    """WishRefused names the first of its CAs that would refuse so many names."""
    for row in rows:
        most, count = ca_limits.limits_of(row.kind, row.settings).names_in(wanted.profile), len(wanted.identifiers)
        if count > most:
            raise WishRefused(
                f"{row.name} puts at most {most} names into a certificate{_of_profile(wanted)}; these are {count}.",
                "Ask for several certificates, or for another profile.",
            )


def _of_profile(wanted: Wanted) -> str:
    return f" of profile {wanted.profile!r:.40}" if wanted.profile else ""


# ── Asking for one ──


async def request(keeper: Keeper, wanted: Wanted, *, actor: str) -> Certificate:
    """It exists from now on, and its first attempt is under way when this returns."""
    certificate_id, ids = keeper.random.new_id("certificate"), keeper.ids()

    def write(tx: Tx) -> Certificate:
        check(tx, wanted)
        now = tx.now()
        new = Certificate(
            id=certificate_id,
            wanted=wanted,
            state=State.ACTIVE,
            generation=1,
            version=1,
            fingerprint=wanted.fingerprint(),
            changed_by=actor,
            created_at=now,
            next_action_at=now,
            next_cause=Reason.FIRST.value,
        )
        if not certificates.insert(tx, new):
            raise CertificateExists(wanted.name)
        journal.audit(tx, "certificate_requested", new.id, actor=actor, after=kept(new), **_told(wanted))
        journal.event(tx, "certificate.requested", new.id, certificate=wanted.name, by=actor)
        issuing.begin(tx, new, None, ids, cause=Reason.FIRST, urgent=False, requested_by=actor)
        return _got(tx, new.id)

    return await keeper.db.write(write)


def kept(found: Certificate, **changes: Any) -> dict[str, Any]:
    """What people decide about it: of this the audit log has digests, before and after."""
    return {"wanted": found.wanted, "state": found.state, **changes}


def _told(wanted: Wanted) -> dict[str, Any]:
    return {
        "name": wanted.name,
        "names": [each.value for each in wanted.identifiers],
        "issuers": list(wanted.issuers),
        "key_kind": wanted.key_kind,
        "profile": wanted.profile or "",
        "owner": wanted.owner,
        "labels": dict(wanted.labels),
        "approval": wanted.approval_required,
    }


async def change(
    keeper: Keeper,
    ref: str,
    changes: dict[str, Any],
    *,
    actor: str,
    expect_version: int | None = None,
    may_lift_approval: bool = False,
) -> Certificate:
    """Change what is wanted. New inputs are a new generation: failures are forgotten, and it is due at once.

    Whoever may change a certificate must not thereby get rid of the second person: that is a right of its own.
    """
    ids = keeper.ids()

    def write(tx: Tx) -> Certificate:
        found = found_by(tx, ref, lock=True)
        if expect_version is not None and found.version != expect_version:
            raise Stale(found.name)
        _not_archived(found)
        wanted = replace(found.wanted, **changes)
        check(tx, wanted)
        if found.wanted.approval_required and not wanted.approval_required and not may_lift_approval:
            raise WishRefused("Approval cannot be given up by a change.", "Ask somebody who may set policy.")
        if wanted == found.wanted:
            return found
        other = certificates.by_name(tx, wanted.name)
        if other is not None and other.id != found.id:
            raise CertificateExists(wanted.name)
        states = {"before": kept(found), "after": kept(found, wanted=wanted)}
        journal.audit(tx, "certificate_changed", found.id, actor=actor, **states, **_told(wanted))
        journal.event(tx, "certificate.changed", found.id, by=actor, what=sorted(changes))
        if wanted.fingerprint() == found.fingerprint:
            return issuing.replan(tx, found, tx.now(), wanted=wanted)
        return _new_generation(tx, found, wanted, ids, actor)

    return await keeper.db.write(write)


def _new_generation(tx: Tx, found: Certificate, wanted: Wanted, ids: issuing.Ids, actor: str) -> Certificate:
    under_way = issuances.under_way(tx, found.id)
    if under_way is not None:
        issuing.cancel(tx, under_way, actor=actor, reason=Reason.INPUT_CHANGED, why="what is wanted was changed")
    after = issuing.replan(
        tx,
        found,
        tx.now(),
        wanted=wanted,
        generation=found.generation + 1,
        fingerprint=wanted.fingerprint(),
        failing=None,
        changed_by=actor,
    )
    if after.state is State.ACTIVE:
        current = versions.get(tx, after.current_version)
        cause = Reason.FIRST if current is None else Reason.INPUT_CHANGED
        issuing.begin(tx, after, current, ids, cause=cause, urgent=False, requested_by=actor)
    return _got(tx, found.id)


# ── Pausing, resuming, archiving ──


async def set_state(keeper: Keeper, ref: str, event: str, *, actor: str) -> Certificate:
    """ "paused", "resumed" or "archived". What it holds stays as it is: archiving never revokes."""

    def write(tx: Tx) -> Certificate:
        found = found_by(tx, ref, lock=True)
        if (found.state, event) not in rules.MOVES:
            raise NotNow(found.name, found.state.value, f"It cannot be {event} now.")
        state = rules.move(found.state, event)
        under_way = issuances.under_way(tx, found.id)
        if under_way is not None and state is not State.ACTIVE:
            reason = Reason.PAUSED if state is State.PAUSED else Reason.ARCHIVED
            issuing.cancel(tx, under_way, actor=actor, reason=reason, why=f"the certificate was {event}")
        ask = found.ari_ask_at if state is not State.ARCHIVED else None
        after = issuing.replan(tx, found, tx.now(), state=state, ari_ask_at=ask)
        journal.audit(tx, f"certificate_{event}", found.id, actor=actor, before=kept(found), after=kept(after))
        journal.event(tx, f"certificate.{event}", found.id, by=actor)
        tx.wakes = True
        return after

    return await keeper.db.write(write)


def _not_archived(found: Certificate) -> None:
    if found.state is State.ARCHIVED:
        raise NotNow(found.name, "archived", "Ask for it anew; archived ones are kept as they were.")


# ── Renewing now, cancelling ──


async def renew(keeper: Keeper, ref: str, *, actor: str, delay: timedelta = timedelta(0)) -> Issuance:
    """An attempt now: it skips the wait, not the budget; if it fails, that is one failure more.

    `delay` is for many that are spread over time: it begins so much later, and never later than it would have anyway.
    An attempt under way is hastened. One whose order only a person may give up is given up by this very word.
    """
    ids = keeper.ids()

    def write(tx: Tx) -> Issuance:
        found = found_by(tx, ref, lock=True)
        if found.state is not State.ACTIVE:
            raise NotNow(found.name, found.state.value, f"Resume it first: holdfast resume {found.name}")
        now, under_way = tx.now(), issuances.under_way(tx, found.id)
        if under_way is not None and under_way.reason in ORDERED_ANEW and not delay:
            issuing.cancel(tx, under_way, actor=actor, reason=Reason.MANUAL, why="somebody asked for a new order")
            under_way = None
        if under_way is not None:
            jobs.bring_forward(tx, ISSUE, under_way.id, now + delay)
            return under_way
        current = versions.get(tx, found.current_version)
        at = _no_later(found, current, now + delay, now) if delay else None
        begun = issuing.begin(
            tx, found, current, ids, cause=Reason.MANUAL, urgent=False, requested_by=actor, not_before=at
        )
        if begun is None:
            raise NotNow(found.name, "without a CA that may be asked", "Resume one of its CAs: holdfast issuer ls")
        return begun

    return await keeper.db.write(write)


# What an order rests for that is paid for, and of no use, or perhaps not there: a second one is a person's decision.
ORDERED_ANEW: Final = frozenset({Reason.WRONG_CERTIFICATE.value, Reason.ORDER_UNCERTAIN.value})


def _no_later(found: Certificate, current: Version | None, wish: datetime, now: datetime) -> datetime:
    planned = renewal.decide(found, current, now).at
    return min(wish, max(planned or now, now))


async def cancel(keeper: Keeper, ref: str, *, actor: str, why: str) -> Issuance:
    """Stop the attempt under way. It does not count as a failure; the next one is planned as if it had not been."""

    def write(tx: Tx) -> Issuance:
        found = found_by(tx, ref, lock=True)
        under_way = issuances.under_way(tx, found.id)
        if under_way is None:
            raise NotNow(found.name, "not being obtained", "There is nothing to cancel.")
        issuing.cancel(tx, under_way, actor=actor, reason=Reason.CANCELLED, why=why)
        now = tx.now()
        after = issuing.replan(tx, found, now)
        if after.next_action_at is not None and after.next_action_at <= now:  # or the next sweep would begin it again
            certificates.save(tx, after, next_action_at=now + CANCELLED_FOR, next_cause=Reason.CANCELLED.value)
        return under_way

    return await keeper.db.write(write)


CANCELLED_FOR: Final = issuing.NO_CA_FOR


# ── Revoking ──


async def revoke(keeper: Keeper, ref: str, *, reason: int, actor: str, version: str | None = None) -> Version:
    """Write the wish down, and ask for the job that tells the CA; an active certificate is replaced at once."""
    if reason not in REASONS:
        raise WishRefused(f"{reason} is no reason for a revocation.", f"One of {', '.join(map(str, REASONS))}.")
    job, ids = keeper.random.new_id("job"), keeper.ids()

    def write(tx: Tx) -> Version:
        found = found_by(tx, ref, lock=True)
        chosen = versions.get(tx, version or found.current_version)
        if chosen is None or chosen.certificate != found.id:
            raise NotNow(found.name, "without a version to revoke", "See its versions: holdfast get.")
        if not versions.ask_revocation(tx, chosen.id, reason):
            revocation.take_up_again(tx, chosen, reason, actor=actor)
            return chosen
        jobs.enqueue(
            tx,
            Spec(
                id=job,
                kind=REVOKE,
                subject=chosen.id,
                priority=Priority.URGENT,
                max_attempts=REVOKE_TRIES,
                budgets=paying.for_request(tx, chosen.issuer),
            ),
        )
        journal.audit(
            tx, "revocation_asked", found.id, actor=actor, version=chosen.id, serial=chosen.serial, reason=reason
        )
        journal.event(tx, "revocation.asked", found.id, version=chosen.id, by=actor)
        if chosen.id == found.current_version and found.state is State.ACTIVE:
            _replace(tx, found, ids, actor)
        return chosen

    return await keeper.db.write(write)


def _replace(tx: Tx, found: Certificate, ids: issuing.Ids, actor: str) -> None:
    current = versions.get(tx, found.current_version)
    under_way = issuances.under_way(tx, found.id)
    if under_way is None:
        issuing.begin(tx, found, current, ids, cause=Reason.REVOKED, urgent=True, requested_by=actor)
    else:
        issuing.hasten(tx, under_way, tx.now())
        issuing.press(tx, under_way)


# ── Looking ──


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A certificate with all that its status is computed from, read in one transaction."""

    certificate: Certificate
    current: Version | None
    issuance: Issuance | None
    job: Waiting | None
    now: datetime

    @property
    def status(self) -> Status:
        return block.status(self.certificate, self.current, self.issuance, self.job, self.now)

    def explain(self, at: datetime | None = None) -> Explanation:
        return block.explain(self.certificate, self.current, self.issuance, self.job, at or self.now)


async def view(keeper: Keeper, ref: str) -> View:
    return await keeper.db.read(lambda tx: view_of(tx, found_by(tx, ref)))


def view_of(tx: Tx, found: Certificate) -> View:
    issuance = issuances.under_way(tx, found.id)
    return View(
        certificate=found,
        current=versions.get(tx, found.current_version),
        issuance=issuance,
        job=None if issuance is None else _waits(tx, issuance),
        now=tx.now(),
    )


def _waits(tx: Tx, issuance: Issuance) -> Waiting | None:
    """For its job; or, without one yet, for a second person, who has so long."""
    if issuance.state is not Step.AWAITING_APPROVAL:
        return waiting(_job_of(tx, issuance))
    approval = approvals.of_issuance(tx, issuance.id)
    return None if approval is None else Waiting(due_at=approval.expires_at)


def _job_of(tx: Tx, issuance: Issuance) -> jobs.Job | None:
    """The one that lives; or else the one that was given up, until its attempt is as well."""
    return jobs.live(tx, ISSUE, issuance.id) or jobs.dead(tx, ISSUE, issuance.id)


def waiting(job: jobs.Job | None) -> Waiting | None:
    """What the status is to know of the job of an attempt."""
    if job is None:
        return None
    return Waiting(
        due_at=job.due_at,
        running=job.state is JobState.RUNNING,
        failed=job.state is JobState.FAILED or job.reason == jobs.RETRY,
        dead=job.state is JobState.DEAD,
        reason=job.reason,
        last_error=job.last_error,
    )


async def timeline(keeper: Keeper, ref: str, *, after: int = 0, limit: int = 200) -> list[journal.Event]:
    def read(tx: Tx) -> list[journal.Event]:
        return journal.events_after(tx, after, subject=found_by(tx, ref).id, limit=limit)

    return await keeper.db.read(read)


def found_by(tx: Tx, ref: str, *, lock: bool = False) -> Certificate:
    """By its name, its id, or a prefix of its id that no other has; NoSuchCertificate if there is none."""
    found = meant_by(tx, ref)
    if len(found) != 1:
        raise NoSuchCertificate(ref, found or certificates.archived(tx, ref))
    return _got(tx, found[0].id, lock=True) if lock else found[0]


def meant_by(tx: Tx, ref: str) -> list[Certificate]:
    """None, one, or the first few of those that are not told apart by this."""
    found = certificates.by_name(tx, ref) or certificates.get(tx, ref)
    if found is None and len(ref) >= 4:
        return certificates.by_prefix(tx, ref, limit=_ALIKE + 1)
    return [] if found is None else [found]


def _got(tx: Tx, certificate: str, *, lock: bool = False) -> Certificate:
    found = certificates.get(tx, certificate, lock=lock)
    if found is None:
        raise NoSuchCertificate(certificate)
    return found
