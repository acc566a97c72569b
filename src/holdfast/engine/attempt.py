"""One claim of one issuance: how it waits, what it makes of trouble, and how its steps are committed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from holdfast.core import ca_limits, renewal
from holdfast.core.backoff import POLL, FailureClass, Ladder, next_poll
from holdfast.core.certificate import Certificate, Version
from holdfast.core.issuance import Event, Issuance, State, move
from holdfast.core.job import Again, Done, Outcome
from holdfast.core.reasons import Reason
from holdfast.engine import ca_breaker, proving
from holdfast.engine.proving import SolverFor
from holdfast.engine.worker import Work
from holdfast.errors import LeaseLost, Refused, TryLater, TxConflict
from holdfast.issuers.base import Issuer, Wish
from holdfast.operations import issuing
from holdfast.operations.issuing import Keeper
from holdfast.pki import keys, signer
from holdfast.pki.aside import aside
from holdfast.pki.keys import KeyKind, PrivateKey
from holdfast.store import budgets, certificates, issuances, issuer_accounts, issuers, jobs, journal, versions
from holdfast.store.issuers import IssuerRow
from holdfast.store.tx import Tx
from holdfast.telemetry import Telemetry

# Passing failures within one attempt: the order stays, so trying again soon costs nobody anything.
PASSING: Final = Ladder(first=timedelta(seconds=30), factor=2, cap=timedelta(minutes=10), jitter=0.2)
PASSING_TRIES: Final = 5
LIMITED_FOR: Final = timedelta(minutes=15)  # where a CA says "too many" and names no time
SOONEST, LATEST = timedelta(milliseconds=50), timedelta(days=1)  # of a wait that a CA asks for
PATIENT_FOR: Final = timedelta(days=30)  # with a CA that has a binding order and does not answer
VALIDATION: Final = frozenset(
    {Reason.VALIDATION_FAILED, Reason.CAA_FORBIDS, Reason.DNS_TXT_NOT_VISIBLE, Reason.PROOF_NOT_VISIBLE}
)
LOOKED_AT: Final = frozenset({Reason.VALIDATION_FAILED, Reason.CAA_FORBIDS})  # by the CA, which counts these
DOWN: Final = frozenset({Reason.CA_DOWN, Reason.ANSWER_MALFORMED})  # what a CA's breaker counts
LIMITS: Final = frozenset({Reason.CA_RATE_LIMITED})

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
class Facts:
    issuance: Issuance
    certificate: Certificate
    current: Version | None
    issuer: IssuerRow | None
    previous: Mapping[str, Any] | None  # the order that the certificate in use came from, if it is of this CA
    now: datetime


def facts_of(tx: Tx, subject: str) -> Facts | None:
    issuance = issuances.get(tx, subject)
    if issuance is None or issuance.state.over or issuance.state is State.AWAITING_APPROVAL:
        return None
    certificate = certificates.get(tx, issuance.certificate)
    if certificate is None:
        return None
    current = versions.get(tx, certificate.current_version)
    same = current is not None and current.issuer == issuance.issuer
    return Facts(
        issuance=issuance,
        certificate=certificate,
        current=current,
        issuer=issuers.get(tx, issuance.issuer),
        previous=issuances.ref_of(tx, current.issuance) if current is not None and same else None,
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
    _row: IssuerRow = field(init=False)

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
        return next_poll(polls, waited=self._waited(), window=self._window(), age=age, asked=asked, key=key)

    def _window(self) -> timedelta:
        own = timedelta(seconds=float(self._row.settings.get("poll_max_wait_seconds") or 0))
        return own or self.tools.poll_windows.get(self._row.kind, timedelta(0))

    def _polled(self) -> dict[str, Any]:
        return {"polls": self.issuance.polls + 1, "polled_since": self.issuance.polled_since or self.facts.now}

    def _waited(self) -> timedelta:
        return self.facts.now - (self.issuance.polled_since or self.facts.now)

    def _again(self, after: timedelta, why: str, *, hold: str | None = None, **changes: Any) -> Again:
        until = self.facts.now + after

        def write(tx: Tx) -> None:
            issuance = self._still(tx)
            if issuance is None:
                return
            after_this = issuances.save(tx, issuance, **changes)
            if after_this.uncertain_since is not None and issuance.uncertain_since is None:
                self._tell(tx, "issuance.uncertain", error=after_this.error or "", alert=True)
            if after >= POLL.first / 2:  # shorter waits are no news
                self._tell(tx, "issuance.waits", why=why, until=until.isoformat(), error=after_this.error or "")
            if issuance.ref is not None:  # the order is paid for; what follows are requests only
                budgets.charge(tx, self.work.claim.id, self._request_budget())
            if hold is not None:
                ca_breaker.hold(tx, issuance.issuer, hold, until, after_this.error or "")

        return Again(after=after, reason=why, write=write)

    def _request_budget(self) -> list[str]:
        return [key for key in self.work.claim.budgets if key == ca_limits.request_key(self.issuance.issuer)]

    # ── What goes wrong ──

    async def later(self, why: TryLater) -> Outcome:
        """No answer now. A rate limit is the budget's; anything else is tried again a few times, then it counts."""
        if why.reason in LIMITS:
            return await self._limited(why)
        reason = Reason(why.reason) if why.reason in set(Reason) else Reason.CA_DOWN
        failures = self.issuance.failures + 1
        hurt = reason in DOWN
        if failures >= PASSING_TRIES and not self._worth_waiting_for():
            return await self.failed(FailureClass.TRANSIENT, reason, str(why), hurt=hurt, withdraw=self.binding)
        wait = max(PASSING.wait(failures, self.issuance.id), min(why.after or timedelta(0), LATEST))
        polled = {}
        if self.issuance.ref is not None:
            wait, polled = max(wait, self._next_poll(None)[0]), self._polled()
        again = self._again(wait, reason.value, **polled, failures=failures, reason=reason.value, error=str(why))
        return replace(again, write=lambda tx: self._hurt(tx, again, str(why))) if hurt else again

    def _worth_waiting_for(self) -> bool:
        """The CA has the CSR, or may have it, and makes a certificate of it: a second order would be a second one."""
        unheard = self.binding and self.issuance.asked_at is not None
        if self.issuance.state not in (State.FINALIZING, State.WAITING) and not unheard:
            return False
        current, others = self.facts.current, len(self.facts.certificate.wanted.issuers) > 1
        patience = PATIENT_FOR if self.binding and not others else LATEST
        end = self.issuance.started_at + patience if current is None else renewal.emergency_at(current)
        return self.facts.now < end

    def _hurt(self, tx: Tx, again: Again, error: str) -> None:
        if again.write is not None:
            again.write(tx)
        ca_breaker.failed(tx, self.issuance.issuer, error)

    async def _limited(self, why: TryLater) -> Outcome:
        wait = min(max(why.after or LIMITED_FOR, timedelta(seconds=5)), LATEST)
        current, others = self.facts.current, len(self.facts.certificate.wanted.issuers) > 1
        if others and current is not None and self.facts.now + wait >= renewal.safe_until(current):
            return await self.failed(FailureClass.RATE_LIMITED, Reason.CA_RATE_LIMITED, str(why), hold_for=wait)
        reason = Reason.CA_RATE_LIMITED.value
        wait, hold = max(wait, self._next_poll(None)[0]), self._limited_key(str(why))
        return self._again(wait, reason, hold=hold, **self._polled(), reason=reason, error=str(why))

    def _limited_key(self, why: str) -> str:
        issuance, row = self.issuance, self.facts.issuer
        limits = ca_limits.UNKNOWN if row is None else ca_limits.limits_of(row.kind, row.settings)
        return ca_limits.refused_key(limits, issuance.issuer, issuance.identifiers, why, self.work.claim.budgets)

    async def refused(self, why: Refused) -> Outcome:
        reason = Reason(why.reason) if why.reason in set(Reason) else Reason.CA_REFUSED
        if reason is Reason.ACCOUNT_GONE and self.issuance.ref is None:
            await self.tools.keeper.db.write(self._account_gone)
            return await self.later(TryLater(str(why), reason=reason))  # the next try makes a new account
        failure = FailureClass.VALIDATION if reason in VALIDATION else FailureClass.REFUSED
        placed = self.binding and self.issuance.ref is not None  # we may not look at it, but it may go on
        return await self.failed(failure, reason, str(why), withdraw=placed)

    def _account_gone(self, tx: Tx) -> None:
        account = issuer_accounts.current(tx, self.issuance.issuer)
        if account is not None and account.url is not None:
            issuer_accounts.ended(tx, account.id, "gone")
            journal.audit(tx, "account_gone", self.issuance.issuer, account=account.id, url=account.url)

    async def failed(
        self,
        failure: FailureClass,
        reason: Reason,
        why: str,
        *,
        hurt: bool = False,
        hold_for: timedelta | None = None,
        withdraw: bool = False,
    ) -> Outcome:
        await self._clean()

        def write(tx: Tx) -> None:
            issuance = self._still(tx)
            if issuance is None:
                return
            if hold_for is not None:
                ca_breaker.hold(tx, issuance.issuer, self._limited_key(why), self.facts.now + hold_for, why)
            if reason in LOOKED_AT and self.facts.issuer is not None:
                issuing.count_validation(tx, issuance, self.facts.issuer)
            issuing.give_up(tx, issuance, failure=failure, reason=reason.value, error=why, withdraw=withdraw)
            if hurt:
                ca_breaker.failed(tx, issuance.issuer, why)

        return Done(write=write)

    async def _clean(self) -> None:
        await proving.clean(self.issuance.proofs, self.tools.solver_for, self.tools.telemetry)

    # ── Committing ──

    def _wish(self) -> Wish:
        issuance, wanted = self.issuance, self.facts.certificate.wanted
        return Wish(
            issuance=issuance.id,
            identifiers=issuance.identifiers,
            csr=issuance.csr or b"",
            profile=wanted.profile,
            not_after=None if wanted.lifetime is None else issuance.started_at + wanted.lifetime,
            replaces=issuance.replaces,
            preferred_chain=wanted.preferred_chain,
            asked_at=issuance.asked_at,
            previous=self.facts.previous,
            sign=self._sign,
        )

    async def _sign(self, content: bytes) -> bytes:
        """By the key that the certificate is for."""
        key = keys.from_pem(await self.tools.keeper.vault.reveal(self.issuance.key_secret or ""))
        return await aside(signer.proof_of, key, content)

    async def _commit(self, event: Event | None, told: dict[str, Any] | None = None, **changes: Any) -> None:
        self.issuance = await self.tools.keeper.db.write(lambda tx: self._save(tx, event, told, **changes))

    def _save(self, tx: Tx, event: Event | None, told: dict[str, Any] | None = None, **changes: Any) -> Issuance:
        """A step, unless the job is somebody else's by now, or the attempt was stopped."""
        if not jobs.still_ours(tx, self.work.claim):
            raise LeaseLost(self.work.claim.id)
        before = self.issuance
        if changes.get("maybe_twice"):
            self._tell(tx, "issuance.ordered_again", error=before.error or "", alert=True)
        if event is not None:
            changes["state"] = move(before.state, event)
            if changes["state"] is not before.state or told:
                self._tell(tx, f"issuance.{changes['state'].value}", **(told or {}))
        if event not in (None, "key stored"):  # those need no CA; any other shows that it answers
            ca_breaker.succeeded(tx, self._row)
        healed: dict[str, Any] = {} if event is None else {"failures": 0, "error": None, "reason": None}
        try:
            return issuances.save(tx, before, **{**healed, **changes})
        except TxConflict as why:  # running the same again would find the same
            raise Overtaken(str(why)) from None

    def _tell(self, tx: Tx, name: str, **facts: Any) -> None:
        issuance = self.issuance
        journal.event(tx, name, issuance.certificate, job=self.work.claim.id, issuance=issuance.id, **facts)

    def _still(self, tx: Tx) -> Issuance | None:
        """The row as it is now, locked; None if somebody stopped it."""
        found = issuances.get(tx, self.issuance.id, lock=True)
        return None if found is None or found.state.over else found
