"""One claim of one issuance: how it waits, what it makes of trouble, and how its steps are committed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from holdfast.core import breaker, ca_limits, reasons, renewal
from holdfast.core.backoff import BREAKER_DOWN, PASSING, PASSING_TRIES, POLL, FailureClass, next_poll, spread
from holdfast.core.ca_limits import Used
from holdfast.core.certificate import Certificate, Version
from holdfast.core.issuance import Event, Issuance, State, move
from holdfast.core.job import Again, Done, Outcome, Write
from holdfast.core.reasons import Reason
from holdfast.engine import account_gone, ca_breaker, proving
from holdfast.engine.kind import Work
from holdfast.engine.payment import Payment
from holdfast.engine.proving import ROOM, Kept, SolverFor
from holdfast.errors import LeaseLost, Refused, TryLater, TxConflict
from holdfast.issuers.base import Issuer, Wish
from holdfast.operations import choosing, issuing
from holdfast.operations.issuing import Keeper
from holdfast.pki import keys, signer
from holdfast.pki.aside import aside
from holdfast.pki.keys import KeyKind, PrivateKey
from holdfast.store import budgets, certificates, issuances, issuers, jobs, journal, versions
from holdfast.store.issuers import IssuerRow
from holdfast.store.tx import Tx
from holdfast.telemetry import Telemetry

LIMITED_FOR: Final = timedelta(minutes=15)  # where a CA says "too many" and names no time
SOONEST, LATEST = timedelta(milliseconds=50), timedelta(days=1)  # of a wait that a CA asks for
MOMENT: Final = timedelta(minutes=1)
PATIENT_FOR: Final = timedelta(days=30)  # with a CA that has a binding order and does not answer
VALIDATION: Final = frozenset(
    {Reason.VALIDATION_FAILED, Reason.CAA_FORBIDS, Reason.DNS_TXT_NOT_VISIBLE, Reason.PROOF_NOT_VISIBLE}
)
LOOKED_AT: Final = frozenset({Reason.VALIDATION_FAILED, Reason.CAA_FORBIDS})  # by the CA, which counts these
DOWN: Final = frozenset({Reason.CA_DOWN, Reason.CA_TLS_FAILED, Reason.ANSWER_MALFORMED})  # what a CA's breaker counts
LIMITS: Final = frozenset({Reason.CA_RATE_LIMITED})
BARRED: Final = frozenset({Reason.ACCOUNT_REFUSED, Reason.EAB_REQUIRED})  # what is wrong is wrong for all certificates

MakeIssuer = Callable[[IssuerRow], Awaitable[Issuer]]
NewKey = Callable[[KeyKind], Awaitable[PrivateKey]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What steps are made with."""

    keeper: Keeper
    make_issuer: MakeIssuer
    solver_for: SolverFor
    telemetry: Telemetry
    new_key: NewKey = keys.generate
    poll_windows: Mapping[str, timedelta] = field(default_factory=dict)  # by kind of CA, where its row says nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Previous:
    """The order that a certificate in use came from, if it is of the same CA."""

    ref: Mapping[str, Any] | None = None
    same_names: bool = False


def previous_of(tx: Tx, issuance: Issuance, last: Version | None) -> Previous:
    """What an attempt knows of the order of the certificate that it is to replace."""
    known = last is not None and last.issuance is not None and last.issuer == issuance.issuer
    found = issuances.order_of(tx, last.issuance or "") if known and last is not None else None
    if found is None:
        return Previous()
    ref, names = found
    return Previous(ref=ref, same_names={*names} == {*issuance.identifiers})


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    issuance: Issuance
    certificate: Certificate
    current: Version | None
    issuer: IssuerRow | None
    previous: Previous
    now: datetime


def facts_of(tx: Tx, subject: str) -> Facts | None:
    issuance = issuances.get(tx, subject)
    if issuance is None or issuance.state.over or issuance.state is State.AWAITING_APPROVAL:
        return None
    certificate = certificates.get(tx, issuance.certificate)
    if certificate is None:
        return None
    current = versions.get(tx, certificate.current_version)
    return Facts(
        issuance=issuance,
        certificate=certificate,
        current=current,
        issuer=issuers.get(tx, issuance.issuer),
        previous=previous_of(tx, issuance, current),
        now=tx.now(),
    )


class Overtaken(Exception):
    """The issuance is not as it was when this claim read it: somebody stopped it, or was faster."""


@dataclass(slots=True, kw_only=True)
class Attempt:
    tools: Tools
    work: Work
    facts: Facts
    issuance: Issuance
    binding: bool = False  # at this CA an order is for good
    for_a_person: bool = False  # what is in doubt is not ordered again by itself
    used: Used = "nothing"  # of what this claim paid for
    gave_up: bool = False
    any_lifetime: bool = False  # this CA lets nobody choose
    account: str | None = None  # the address of the one that is used there, where CAs have such
    _row: IssuerRow = field(init=False)
    _called: bool = field(default=False, init=False)  # this claim has called a solver

    # ── Waiting ──

    def _poll(self, after_s: float | None, reason: Reason, why: str | None = None, **changes: Any) -> Again:
        """A row with a time: no worker is held. After its window an order is looked at ever more seldom."""
        asked = None if after_s is None else min(max(timedelta(seconds=after_s), SOONEST), LATEST)
        wait, rests = self._next_poll(asked)
        if rests and reason is Reason.UNDER_WAY:
            reason = Reason.CA_STILL_PENDING
        elif not rests and asked is not None and not self.binding:
            wait = asked  # what ACME servers name is short, and meant
        told = None if reason is Reason.UNDER_WAY else reason.value
        return self._again(wait, reason.value, **self._polled(), failures=0, reason=told, error=why, **changes)

    def _next_poll(self, asked: timedelta | None) -> tuple[timedelta, bool]:
        issuance, now = self.issuance, self.facts.now
        polls, age = issuance.polls + 1, now - issuance.started_at
        key = f"{issuance.id}:{polls}"
        wait, rests = next_poll(polls, waited=self._waited(), window=self._window(), age=age, asked=asked, key=key)
        current = self.facts.current
        if rests and asked is None and current is not None and now < renewal.emergency_at(current):
            wait = min(wait, max(renewal.emergency_at(current) - now, POLL.cap))  # it may be left, or tried anew, then
        return wait, rests

    def _window(self) -> timedelta:
        own = timedelta(seconds=float(self._row.settings.get("poll_max_wait_seconds") or 0))
        return own or self.tools.poll_windows.get(self._row.kind, timedelta(0))

    def _polled(self) -> dict[str, Any]:
        return {"polls": self.issuance.polls + 1, "polled_since": self.issuance.polled_since or self.facts.now}

    def _waited(self) -> timedelta:
        return self.facts.now - (self.issuance.polled_since or self.facts.now)

    def _again(self, after: timedelta, why: str, *, hold: str | None = None, **changes: Any) -> Again:
        after = self._in_time(after)
        until = self.facts.now + after

        def write(tx: Tx) -> None:
            issuance = self._still(tx)
            if issuance is None:
                return
            after_this = issuances.save(tx, issuance, **changes)
            if after_this.uncertain_since is not None and issuance.uncertain_since is None:
                told = {"error": after_this.error or "", "for_a_person": self.for_a_person}
                self._tell(tx, "issuance.uncertain", **told, alert=True)
            if after >= POLL.first / 2:  # shorter waits are no news
                self._tell(tx, "issuance.waits", why=why, until=until.isoformat(), error=after_this.error or "")
            if (next_claim := self._next_budgets(after_this)) != [*self.work.claim.budgets]:
                budgets.charge(tx, self.work.claim.id, next_claim, self._remembered())
            if hold is not None:
                ca_breaker.hold(tx, issuance.issuer, hold, until, after_this.error or "")

        return Again(after=after, reason=why, write=write)

    def _in_time(self, after: timedelta) -> timedelta:
        """Where another CA could help, nobody sleeps past the moment at which it must be asked."""
        current, now = self.facts.current, self.facts.now
        if current is None or not self._others():
            return after
        emergency = renewal.emergency_at(current)
        left = emergency - now if now < emergency else (current.not_after - now) / 10
        return min(after, max(left, MOMENT)) if left > timedelta(0) else after

    def _next_budgets(self, after: Issuance) -> list[str]:
        """What the next claim pays for: an order that is placed is paid for, one that may be is looked for first."""
        paid, key = self.work.claim.budgets, ca_limits.request_key(self.issuance.issuer)
        if key not in paid or self.facts.issuer is None:
            return list(paid) if after.ref is None else []
        names = len(self.issuance.identifiers)
        many = ca_limits.reckoned(self.facts.issuer.kind, self.facts.issuer.settings, names)
        if after.ref is not None:
            return [key] * many.look
        others = [each for each in paid if each != key]
        return [*[key] * (many.order + (many.lookup if after.asked_at is not None else 0)), *others]

    def _answers_in_one_go(self) -> int:
        """How many proofs a claim tells this CA of; the next one waits until the requests of this one are paid for."""
        return ca_limits.limits_of(self._row.kind, self._row.settings).answers or len(self.issuance.identifiers)

    def unused_given_back(self, outcome: Outcome) -> Outcome:
        """With the answer, what was paid for and the CA cannot have counted: waiting for a CA must not use it up."""
        claim, issuance = self.work.claim, self.issuance
        if issuance.ref is None:
            paid = Payment(
                ca_limits.unused(claim.paid, issuance.issuer, self.used, binding=self.binding), claim.paid_at
            )
        elif self.gave_up and issuance.state in issuing.NOT_HANDED_IN and not self.binding:
            paid = self._paid_for_certificate()  # which nobody makes any more
        else:
            return outcome
        return paid.given_back_with(outcome)

    def _paid_for_certificate(self) -> Payment:
        """By this claim, or by the one that placed the order."""
        claim = self.work.claim
        own = ca_limits.unused(claim.paid, self.issuance.issuer, "an order perhaps", binding=False)
        return Payment(own, claim.paid_at) if own else Payment.from_json(claim.payload.get("paid") or {})

    def _remembered(self) -> dict[str, Any] | None:
        paid = self._paid_for_certificate()
        return {**self.work.claim.payload, "paid": paid.to_json()} if paid.taken and self.work.claim.paid else None

    # ── What goes wrong ──

    async def later(self, why: TryLater) -> Outcome:
        """No answer now. A rate limit is the budget's; anything else is tried again a few times, then it counts."""
        if why.reason in LIMITS:
            return await self._limited(why)
        if why.reason == Reason.UNDER_WAY:  # a look-up that was more than one claim pays for
            return self._again(why.after or POLL.first, Reason.UNDER_WAY.value)
        reason = reasons.of(why.reason)  # one that nobody knows is ours, and says nothing about the CA
        failures = self.issuance.failures + 1
        hurt = reason in DOWN
        enough = failures >= PASSING_TRIES or (hurt and self._is_pressing())
        if enough and not self._worth_waiting_for() and not await self._is_the_last():
            words = str(why)
            if hurt and (moved := await self._elsewhere(reason, words, wait=LATEST, also=self._hurting(words))):
                return moved
            return await self.failed(FailureClass.TRANSIENT, reason, str(why), hurt=hurt, withdraw=self.binding)
        wait = max(PASSING.wait(failures, self.issuance.id), min(why.after or timedelta(0), LATEST))
        polled = {}
        if self.issuance.ref is not None:
            wait, polled = max(wait, self._next_poll(None)[0]), self._polled()
        again = self._again(wait, reason.value, **polled, failures=failures, reason=reason.value, error=str(why))
        return replace(again, write=lambda tx: self._hurt(tx, again, str(why))) if hurt else again

    async def _is_the_last(self) -> bool:
        """Whether no order may follow this one by itself, however long its CA is away."""
        return False

    def _is_pressing(self) -> bool:
        """The certificate is about to end, and there are other CAs: this one had our order, and its chance."""
        return self.issuance.ref is not None and self._others() and self._no_time_left()

    def _others(self) -> bool:
        return len(self.facts.certificate.wanted.issuers) > 1

    def _no_time_left(self) -> bool:
        return self.facts.current is not None and self.facts.now >= renewal.emergency_at(self.facts.current)

    def _worth_waiting_for(self) -> bool:
        """The CA has the CSR, or may have it, and makes a certificate of it: a second order would be a second one."""
        unheard = self.binding and self.issuance.asked_at is not None
        if self.issuance.state not in (State.FINALIZING, State.WAITING) and not unheard:
            return False
        current = self.facts.current
        patience = PATIENT_FOR if self.binding and not self._others() else LATEST
        end = self.issuance.started_at + patience if current is None else renewal.emergency_at(current)
        return self.facts.now < end

    def _hurting(self, error: str) -> Write:
        return lambda tx: ca_breaker.failed(tx, self.issuance.issuer, error)

    def _hurt(self, tx: Tx, again: Again, error: str) -> None:
        if again.write is not None:
            again.write(tx)
        ca_breaker.failed(tx, self.issuance.issuer, error)

    async def _elsewhere(
        self, reason: Reason, why: str, *, wait: timedelta, also: Write | None = None
    ) -> Outcome | None:
        """Begin at another CA, if this one keeps us waiting for too long and that one does not; `also` goes with it."""
        facts = self.facts
        issuance = replace(self.issuance, asked_at=facts.issuance.asked_at)
        perhaps = self.binding and self.used == "an order perhaps"  # else this claim was told that nothing is placed
        if perhaps or not choosing.may_leave(issuance, facts.certificate):
            return None
        left, waited = choosing.left_of(facts.current, facts.now), facts.now - issuance.started_at
        if not choosing.is_impatient(left, waited=waited, wait=wait, in_line=False):
            return None
        to = await self.tools.keeper.db.read(
            lambda tx: choosing.other(tx, facts.certificate, facts.current, issuance, facts.now, wait=wait)
        )
        return None if to is None else self._moved(to.name, reason, why, also)

    def _moved(self, to: str, reason: Reason, why: str, also: Write | None) -> Outcome:
        ids = self.tools.keeper.ids()

        def write(tx: Tx) -> None:
            issuance = self._still(tx)
            if issuance is None:
                return
            if not issuing.move_on(tx, issuance, ids, to, reason=reason, why=why):
                failure = FailureClass.TRANSIENT
                issuing.give_up(tx, issuance, failure=failure, reason=reason.value, error=why, count=False)
            if also is not None:
                also(tx)

        return Done(write=write)

    async def _limited(self, why: TryLater) -> Outcome:
        wait = min(max(why.after or LIMITED_FOR, timedelta(seconds=5)), LATEST)
        until, hold = self.facts.now + wait, self._limited_key(str(why))

        def also(tx: Tx) -> None:
            ca_breaker.hold(tx, self.issuance.issuer, hold, until, str(why))

        if (moved := await self._elsewhere(Reason.CA_RATE_LIMITED, str(why), wait=wait, also=also)) is not None:
            return moved
        current, others = self.facts.current, self._others()
        if others and current is not None and self.facts.now + wait >= renewal.safe_until(current):
            return await self.failed(FailureClass.RATE_LIMITED, Reason.CA_RATE_LIMITED, str(why), hold_for=wait)
        reason = Reason.CA_RATE_LIMITED.value
        wait = max(wait, self._next_poll(None)[0])
        return self._again(wait, reason, hold=hold, **self._polled(), reason=reason, error=str(why))

    def _limited_key(self, why: str) -> str:
        issuance, row = self.issuance, self.facts.issuer
        limits = ca_limits.UNKNOWN if row is None else ca_limits.limits_of(row.kind, row.settings)
        return ca_limits.refused_key(limits, issuance.issuer, issuance.identifiers, why, self.work.claim.budgets)

    async def refused(self, why: Refused) -> Outcome:
        reason = Reason(why.reason) if why.reason in set(Reason) else Reason.CA_REFUSED
        if reason is Reason.ACCOUNT_GONE:
            issuer, url = self.issuance.issuer, self.account
            await self.tools.keeper.db.write(lambda tx: account_gone.ended(tx, issuer, url, str(why)))
            return await self._by_another_account(str(why))
        if reason is Reason.NAME_PAUSED_AT_CA and (moved := await self._elsewhere(reason, str(why), wait=LATEST)):
            return moved
        if reason in BARRED and self.issuance.ref is None and self.facts.issuance.asked_at is None:
            return await self._not_let_in(reason, str(why))
        failure = FailureClass.VALIDATION if reason in VALIDATION else FailureClass.REFUSED
        placed = self.binding and self.issuance.ref is not None  # we may not look at it, but it may go on
        return await self.failed(failure, reason, str(why), withdraw=placed)

    async def _not_let_in(self, reason: Reason, why: str) -> Outcome:
        """The account is stopped, once, and not one certificate after the other: the first that is told counts it."""

        def bar(tx: Tx) -> None:
            if ca_breaker.barred(tx, self._row.name, why):
                self._tell(tx, "issuance.barred", why=reason.value, error=why, issuer=self._row.name, alert=True)

        if (moved := await self._elsewhere(reason, why, wait=LATEST, also=bar)) is not None:
            return moved
        if not self._row.breaker.barred:
            return await self.failed(FailureClass.REFUSED, reason, why, barred=True)
        until = breaker.barred(self._row.breaker, self.facts.now, why).until or self.facts.now
        wait = until - self.facts.now + BREAKER_DOWN.first * spread(self.issuance.id)
        before = self.facts.issuance.asked_at
        again = self._again(wait, reason.value, reason=reason.value, error=why, asked_at=before)

        def write(tx: Tx) -> None:
            if again.write is not None:
                again.write(tx)
            bar(tx)

        return replace(again, write=write)

    async def _by_another_account(self, why: str) -> Outcome:
        """The next try makes it. Without its account an order is out of reach: it is begun anew, and not counted."""
        if self.issuance.ref is None:
            return await self.later(TryLater(why, reason=Reason.ACCOUNT_GONE))
        if await self.tools.keeper.db.read(lambda tx: account_gone.was_begun_anew(tx, self.issuance)):
            return await self.failed(FailureClass.REFUSED, Reason.ACCOUNT_GONE, why)
        return self._moved(self.issuance.issuer, Reason.ACCOUNT_GONE, why, None)

    async def failed(
        self,
        failure: FailureClass,
        reason: Reason,
        why: str,
        *,
        hurt: bool = False,
        hold_for: timedelta | None = None,
        barred: bool = False,
        withdraw: bool = False,
    ) -> Outcome:
        self.gave_up = True
        left = await self._clean()

        def write(tx: Tx) -> None:
            issuance = self._still(tx)
            if issuance is None:
                return
            if hold_for is not None:
                ca_breaker.hold(tx, issuance.issuer, self._limited_key(why), self.facts.now + hold_for, why)
            if reason in LOOKED_AT and self.facts.issuer is not None:
                issuing.count_validation(tx, issuance, self.facts.issuer)
            counts = ca_breaker.barred(tx, issuance.issuer, why) if barred else True
            told: dict[str, Any] = {"failure": failure, "reason": reason.value, "error": why}
            issuing.give_up(tx, issuance, **told, count=counts, withdraw=withdraw, proofs=left)
            if hurt:
                ca_breaker.failed(tx, issuance.issuer, why)

        return Done(write=write)

    async def _clean(self) -> Kept:
        """What is done in a moment is done before the attempt ends. What is left comes back, and is owed by a job."""
        kept = tuple(self.issuance.proofs)
        chosen, _ = proving.solvers_of(kept, self.tools.solver_for)
        for page in proving.pages([each for each in chosen if each.solver.side_by_side]):
            if not self._has_room():
                break
            called = await proving.call(page, proving.clean)
            kept = proving.without((each.proof for each in called.well), kept)
        return kept

    def _has_room(self) -> bool:
        """Whether this claim can see another call of a solver end. Its first call is always made."""
        if self._called and self.work.left() < ROOM:
            return False
        self._called = True
        return True

    # ── Committing ──

    def _wish(self) -> Wish:
        issuance, wanted = self.issuance, self.facts.certificate.wanted
        return Wish(
            issuance=issuance.id,
            identifiers=issuance.identifiers,
            csr=issuance.csr or b"",
            profile=wanted.profile,
            not_after=self._end(),
            replaces=issuance.replaces,
            preferred_chain=wanted.preferred_chain,
            asked_at=issuance.asked_at,
            previous=self.facts.previous.ref,
            same_names=self.facts.previous.same_names,
            sign=self._sign,
        )

    def _end(self) -> datetime | None:
        """What is asked for as its end. A life begins with the order: who waited for a turn or a word loses nothing."""
        lifetime = self.facts.certificate.wanted.lifetime
        begins = self.issuance.asked_at or self.facts.now
        return None if lifetime is None or self.any_lifetime else begins + lifetime

    async def _sign(self, content: bytes) -> bytes:
        """By the key that the certificate is for."""
        key = keys.from_pem(await self.tools.keeper.vault.reveal(self.issuance.key_secret or ""))
        return await aside(signer.proof_of, key, content)

    async def _commit(self, event: Event | None, told: dict[str, Any] | None = None, **changes: Any) -> None:
        self.issuance = await self.tools.keeper.db.write(lambda tx: self._save(tx, event, told, **changes))

    def _save(
        self, tx: Tx, event: Event | None, told: dict[str, Any] | None = None, then: Event | None = None, **changes: Any
    ) -> Issuance:
        """A step, or two of them at once, unless the job is somebody else's by now, or the attempt was stopped."""
        before, claim = self.issuance, self.work.claim
        if changes.get("maybe_twice"):
            self._tell(tx, "issuance.ordered_again", error=before.error or "", alert=True)
        if event is not None:
            changes["state"] = move(before.state, event)
            if before.started_at > self.facts.now:
                changes["started_at"] = self.facts.now  # it was to begin later, and somebody did not want to wait
            if changes["state"] is not before.state or told:
                self._tell(tx, f"issuance.{changes['state'].value}", **(told or {}))
        if then is not None:
            changes["state"] = move(changes["state"], then)
            self._tell(tx, f"issuance.{changes['state'].value}")
        if event not in (None, "key stored"):  # those need no CA; any other shows that it answers
            ca_breaker.succeeded(tx, self._row)
        healed: dict[str, Any] = {} if event is None else {"failures": 0, "error": None, "reason": None}
        try:
            return issuances.save(tx, before, by=claim, **{**healed, **changes})
        except TxConflict as why:  # running the same again would find the same
            if not jobs.still_ours(tx, claim):
                raise LeaseLost(claim.id) from None
            raise Overtaken(str(why)) from None

    def _tell(self, tx: Tx, name: str, **facts: Any) -> None:
        issuance = self.issuance
        journal.event(tx, name, issuance.certificate, job=self.work.claim.id, issuance=issuance.id, **facts)

    def _still(self, tx: Tx) -> Issuance | None:
        """The row as it is now, locked; None if somebody stopped it."""
        found = issuances.as_it_is(tx, self.issuance)
        return None if found is None or found.state.over else found
