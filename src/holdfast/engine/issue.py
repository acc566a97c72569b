"""Obtains one certificate, in steps: each is committed before the next call, so that anyone can resume any of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from holdfast.core import breaker, ca_limits, renewal
from holdfast.core.backoff import POLL, FailureClass, Ladder, poll_wait, rest_wait
from holdfast.core.certificate import Certificate, Version
from holdfast.core.issuance import Event, Issuance, State, move
from holdfast.core.job import Again, Done, Outcome
from holdfast.core.reasons import Reason
from holdfast.engine import proving, received
from holdfast.engine.proving import SolverFor
from holdfast.engine.worker import Kind, Work
from holdfast.errors import Duplicate, KeyMissing, KeyUnusable, LeaseLost, Refused, TryLater, TxConflict
from holdfast.issuers.base import Failed, Issued, Issuer, NeedsProof, Pending, Placed, Ready, Wish
from holdfast.operations import issuing
from holdfast.operations.acme_orders import split
from holdfast.operations.issuing import ISSUE, Keeper
from holdfast.pki import csr, keys
from holdfast.pki.keys import KeyKind
from holdfast.pki.refused import PkiRefused
from holdfast.store import budgets, certificates, issuances, issuer_accounts, issuers, jobs, journal, versions
from holdfast.store.issuers import IssuerRow
from holdfast.store.tx import Tx
from holdfast.telemetry import Telemetry

# Passing failures within one attempt: the order stays, so trying again soon costs nobody anything.
PASSING: Final = Ladder(first=timedelta(seconds=30), factor=2, cap=timedelta(minutes=10), jitter=0.2)
PASSING_TRIES: Final = 5
LIMITED_FOR: Final = timedelta(minutes=15)  # where a CA says "too many" and names no time
SOONEST, LATEST = timedelta(milliseconds=50), timedelta(days=1)  # of a wait that a CA asks for
SHARED_FOR: Final = timedelta(minutes=1)
VISIBLE_WITHIN: Final = timedelta(minutes=30)  # a proof that is not to be seen by then will not be
VALIDATION: Final = frozenset(
    {Reason.VALIDATION_FAILED, Reason.CAA_FORBIDS, Reason.DNS_TXT_NOT_VISIBLE, Reason.PROOF_NOT_VISIBLE}
)
LOOKED_AT: Final = frozenset({Reason.VALIDATION_FAILED, Reason.CAA_FORBIDS})  # by the CA, which counts these
DOWN: Final = frozenset({Reason.CA_DOWN, Reason.ANSWER_MALFORMED})  # what a CA's breaker counts
LIMITS: Final = frozenset({Reason.CA_RATE_LIMITED})

MakeIssuer = Callable[[IssuerRow], Awaitable[Issuer]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What steps are made with."""

    keeper: Keeper
    make_issuer: MakeIssuer
    solver_for: SolverFor
    telemetry: Telemetry


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    issuance: Issuance
    certificate: Certificate
    current: Version | None
    issuer: IssuerRow | None
    now: datetime


def kind(tools: Tools) -> Kind:
    """Jobs of this kind have an issuance as subject."""

    async def handler(work: Work) -> Outcome:
        facts = await tools.keeper.db.read(lambda tx: _facts(tx, work.claim.subject))
        if facts is None:
            return Done()  # it is over
        run = Run(tools=tools, work=work, facts=facts, issuance=facts.issuance)
        try:
            return await run.go()
        except TryLater as why:
            return await run.later(why)
        except Refused as why:
            return await run.refused(why)
        except KeyMissing as why:
            return await run.later(TryLater(str(why), reason=Reason.KEY_MISSING))  # another replica may hold it
        except KeyUnusable as why:
            return await run.failed(FailureClass.LOCAL, Reason.KEY_MISSING, str(why))
        except PkiRefused as why:
            return await run.failed(FailureClass.LOCAL, Reason.INTERNAL, str(why))
        except TxConflict:
            return Again(after=timedelta(seconds=1), reason="CHANGED")  # somebody cancelled it, or was faster

    return Kind(name=ISSUE, handler=handler, slots=16, timeout=timedelta(minutes=5))


def _facts(tx: Tx, subject: str) -> Facts | None:
    issuance = issuances.get(tx, subject)
    if issuance is None or issuance.state.over or issuance.state is State.AWAITING_APPROVAL:
        return None
    certificate = certificates.get(tx, issuance.certificate)
    if certificate is None:
        return None
    return Facts(
        issuance=issuance,
        certificate=certificate,
        current=versions.get(tx, certificate.current_version),
        issuer=issuers.get(tx, issuance.issuer),
        now=tx.now(),
    )


@dataclass(slots=True, kw_only=True)
class Run:
    """One claim of one issuance."""

    tools: Tools
    work: Work
    facts: Facts
    issuance: Issuance
    fresh: bool = False  # this run stored the key itself: nobody can have placed an order yet
    handed_in: bool = False
    _row: IssuerRow = field(init=False)

    async def go(self) -> Outcome:
        if self.facts.issuer is None:
            why = f"There is no CA named {self.issuance.issuer!r} any more."
            return await self.failed(FailureClass.LOCAL, Reason.UNKNOWN_ISSUER, why)
        self._row = self.facts.issuer
        if (closed := await self._admitted()) is not None:
            return closed
        if self.issuance.state is State.REQUESTED:
            await self._store_key()
        issuer = await self.tools.make_issuer(self._row)
        if self.issuance.state is State.KEY_STORED and not await self._place(issuer):
            return self._again(SHARED_FOR, Reason.UNDER_WAY.value)
        while True:
            outcome = await self._step(issuer)
            if outcome is not None:
                return outcome

    # ── Steps ──

    async def _store_key(self) -> None:
        """The key is sealed, with the CSR made of it, before anything leaves."""
        wanted, current, vault = self.facts.certificate.wanted, self.facts.current, self.tools.keeper.vault
        dns, ips = split(self.issuance.identifiers)
        if wanted.reuse_key and current is not None:
            content = csr.build(dns, keys.from_pem(await vault.reveal(current.key_secret)), ips=ips)
            await self._commit("key stored", key_secret=current.key_secret, csr=content)
        else:
            key = await keys.generate(KeyKind(wanted.key_kind))
            content = csr.build(dns, key, ips=ips)
            self.issuance = await vault.keep(
                [keys.to_pem(key)],
                lambda tx, ids: self._save(tx, "key stored", key_secret=ids[0], csr=content),
            )
        self.fresh = True

    async def _place(self, issuer: Issuer) -> bool:
        """Whoever resumes looks first for the order that may have been placed by one who died.

        False if the CA gave us the order of another certificate with the same names: it goes first.
        """
        self.work.check()
        placed = None if self.fresh and not self.work.claim.recheck else await issuer.find(self._wish())
        if placed is None:
            placed = await self._order(issuer)
        self.work.point("job.effect-done")
        try:
            await self._commit("order placed", ref=dict(placed.ref), polls=0, polled_since=self.facts.now)
        except Duplicate:
            return False
        return True

    async def _order(self, issuer: Issuer) -> Placed:
        self.work.check()
        try:
            return await issuer.place(self._wish())
        except Refused as why:
            if why.reason != Reason.REPLACES_REJECTED or self.issuance.replaces is None:
                raise
        await self._commit(None, replaces=None)  # not a failure: once more, without
        self.work.check()
        return await issuer.place(self._wish())

    async def _step(self, issuer: Issuer) -> Outcome | None:
        """Look where the order is and do what is next; None: look again at once."""
        self.work.check()
        look = await issuer.look(self.issuance.ref or {}, self._wish())
        match look:
            case NeedsProof():
                return await self._prove(issuer, look)
            case Ready():
                return await self._hand_in(issuer)
            case Pending():
                return self._poll(look.after_s, Reason.UNDER_WAY)
            case Issued():
                return await self._received(look.chain_pem)
            case Failed():
                reason = Reason(look.reason) if look.reason in set(Reason) else Reason.CA_REFUSED
                failure = FailureClass.TRANSIENT if look.retryable else FailureClass.REFUSED
                return await self.failed(FailureClass.VALIDATION if reason in VALIDATION else failure, reason, look.why)

    async def _prove(self, issuer: Issuer, needs: NeedsProof) -> Outcome | None:
        chosen = proving.choose(needs.choices, self.tools.solver_for)
        if isinstance(chosen, str):
            why = f"None of the proofs that the CA accepts for {chosen} can be published here."
            return await self.failed(FailureClass.LOCAL, Reason.NO_SOLVER, why)
        known = self.issuance.proofs
        new = [raw for each in chosen if (raw := proving.to_json(each.proof)) not in known]
        if new:  # beside those that were told before: all of them are to be taken away again
            told = {"proofs": [f"{each.proof.type} for {each.proof.identifier.value}" for each in chosen]}
            await self._commit("proofs asked", told, proofs=(*known, *new), polls=0, polled_since=self.facts.now)
        for each in chosen:
            self.work.check()
            await each.solver.publish(each.proof)
        self.work.point("job.effect-done")
        if missing := await proving.not_visible(chosen):
            return await self._not_visible(missing, chosen[0].proof.type)
        for each in chosen:
            self.work.check()
            await issuer.answer(self.issuance.ref or {}, each.proof)
        return self._poll(None, Reason.UNDER_WAY)

    async def _not_visible(self, missing: list[str], proof: str) -> Outcome:
        reason = Reason.DNS_TXT_NOT_VISIBLE if proof.startswith("dns-") else Reason.PROOF_NOT_VISIBLE
        why = f"Not yet to be seen for {', '.join(missing[:3])}."
        if self._waited() > VISIBLE_WITHIN:
            return await self.failed(FailureClass.VALIDATION, reason, why)
        return self._poll(None, reason, why)

    async def _hand_in(self, issuer: Issuer) -> Outcome | None:
        if self.handed_in:
            return self._poll(None, Reason.UNDER_WAY)  # the CA took it and does not show it yet
        await self._commit("proved")
        self.work.check()
        await issuer.finalize(self.issuance.ref or {}, self._wish())
        self.work.point("job.effect-done")
        await self._commit("csr handed in", polls=0, polled_since=self.facts.now)
        self.handed_in = True
        return None

    async def _received(self, pem: bytes) -> Outcome:
        """Nothing is put in use that was not looked at: its key, its names, its chain, its dates."""
        now = await self.tools.keeper.db.read(lambda tx: tx.now())
        if (problem := received.problem_with(self.issuance, pem, now)) is not None:
            return await self.failed(FailureClass.REFUSED, Reason.WRONG_CERTIFICATE, problem)
        await self._clean()
        version = received.version(self.tools.keeper.random.new_id("version"), self.issuance, pem, now)

        def write(tx: Tx) -> None:
            issuance = self._still(tx)
            if issuance is None:
                journal.event(tx, "certificate.discarded", version.certificate, serial=version.serial)
                return
            account = issuer_accounts.current(tx, version.issuer)
            known = None if account is None else account.url
            issuing.activate(tx, issuance, replace(version, account=known))
            self._heal(tx)

        return Done(write=write)

    # ── Waiting ──

    def _poll(self, after_s: float | None, reason: Reason, why: str | None = None) -> Outcome:
        """A row with a time: no worker is held. After its window an order is looked at ever more seldom."""
        issuance, now = self.issuance, self.facts.now
        polls = issuance.polls + 1
        window = timedelta(seconds=float(self._row.settings.get("poll_max_wait_seconds") or 0))
        wait = poll_wait(polls, waited=self._waited(), window=window, key=f"{issuance.id}:{polls}")
        asked = None if after_s is None else min(max(timedelta(seconds=after_s), SOONEST), LATEST)
        if wait is None:
            reason = Reason.CA_STILL_PENDING if reason is Reason.UNDER_WAY else reason
            wait = max(rest_wait(now - issuance.started_at, key=f"{issuance.id}:{polls}"), asked or POLL.cap)
        elif asked is not None:
            wait = asked
        changes: dict[str, Any] = {"polls": polls, "polled_since": issuance.polled_since or now, "failures": 0}
        told = None if reason is Reason.UNDER_WAY else reason.value
        return self._again(wait, reason.value, **changes, reason=told, error=why)

    def _waited(self) -> timedelta:
        return self.facts.now - (self.issuance.polled_since or self.facts.now)

    def _again(self, after: timedelta, why: str, *, hold: str | None = None, **changes: Any) -> Again:
        until = self.facts.now + after

        def write(tx: Tx) -> None:
            issuance = self._still(tx)
            if issuance is None:
                return
            after_this = issuances.save(tx, issuance, **changes)
            if after >= POLL.first / 2:  # shorter waits are no news
                self._tell(tx, "issuance.waits", why=why, until=until.isoformat(), error=after_this.error or "")
            if issuance.ref is not None:  # the order is paid for; what follows are requests only
                budgets.charge(tx, self.work.claim.id, self._request_budget())
            if hold is not None:
                self._hold(tx, hold, until, after_this.error or "")

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
            return await self.failed(FailureClass.TRANSIENT, reason, str(why), hurt=hurt)
        wait = max(PASSING.wait(failures, self.issuance.id), min(why.after or timedelta(0), LATEST))
        again = self._again(wait, reason.value, failures=failures, reason=reason.value, error=str(why))
        return replace(again, write=lambda tx: self._hurt(tx, again, str(why))) if hurt else again

    def _worth_waiting_for(self) -> bool:
        """The CA has the CSR, and may have made a certificate of it: a second order would be a second certificate."""
        if self.issuance.state not in (State.FINALIZING, State.WAITING):
            return False
        current = self.facts.current
        end = self.issuance.started_at + LATEST if current is None else renewal.emergency_at(current)
        return self.facts.now < end

    def _hurt(self, tx: Tx, again: Again, error: str) -> None:
        if again.write is not None:
            again.write(tx)
        self._break(tx, error)

    async def _limited(self, why: TryLater) -> Outcome:
        wait = min(max(why.after or LIMITED_FOR, timedelta(seconds=5)), LATEST)
        current, others = self.facts.current, len(self.facts.certificate.wanted.issuers) > 1
        if others and current is not None and self.facts.now + wait >= renewal.safe_until(current):
            return await self.failed(FailureClass.RATE_LIMITED, Reason.CA_RATE_LIMITED, str(why), hold_for=wait)
        reason = Reason.CA_RATE_LIMITED.value
        return self._again(wait, reason, hold=self._limited_key(str(why)), reason=reason, error=str(why))

    def _hold(self, tx: Tx, key: str, until: datetime, error: str) -> None:
        """Once for all that were under way when the CA said so: the first that is told counts."""
        now, name = tx.now(), self.issuance.issuer
        row = issuers.get(tx, name, lock=True)
        whole = key in (ca_limits.request_key(name), ca_limits.order_key(name))  # not about one domain or name only
        if whole and row is not None and not row.breaker.open_at(now):
            after = breaker.limited(row.breaker, now, until, issuances.storable(error))
            issuers.save_breaker(tx, name, after)
            until = after.until or until
        budgets.hold(tx, key, until)

    def _limited_key(self, why: str) -> str:
        issuance = self.issuance
        return ca_limits.refused_key(issuance.issuer, issuance.identifiers, why, self.work.claim.budgets)

    async def refused(self, why: Refused) -> Outcome:
        reason = Reason(why.reason) if why.reason in set(Reason) else Reason.CA_REFUSED
        if reason is Reason.ACCOUNT_GONE and self.issuance.ref is None:
            await self.tools.keeper.db.write(self._account_gone)
            return await self.later(TryLater(str(why), reason=reason))  # the next try makes a new account
        failure = FailureClass.VALIDATION if reason in VALIDATION else FailureClass.REFUSED
        return await self.failed(failure, reason, str(why))

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
    ) -> Outcome:
        await self._clean()

        def write(tx: Tx) -> None:
            issuance = self._still(tx)
            if issuance is None:
                return
            if hold_for is not None:
                self._hold(tx, self._limited_key(why), self.facts.now + hold_for, why)
            if reason in LOOKED_AT and self.facts.issuer is not None:
                issuing.count_validation(tx, issuance, self.facts.issuer)
            issuing.give_up(tx, issuance, failure=failure, reason=reason.value, error=why)
            if hurt:
                self._break(tx, why)

        return Done(write=write)

    async def _clean(self) -> None:
        await proving.clean(self.issuance.proofs, self.tools.solver_for, self.tools.telemetry)

    # ── The CA's breaker ──

    async def _admitted(self) -> Outcome | None:
        """None: go on. While a CA is down one probes it, and all others wait for what it finds."""
        limited = self._row.breaker.limits > 0
        if self._row.breaker.until is None or (limited and self.issuance.ref is not None):
            return None  # a limit is about new orders: those that are placed go on

        def write(tx: Tx) -> datetime | None:
            row = issuers.get(tx, self._row.name, lock=True)
            if row is None:
                return None
            after, until = breaker.admit(row.breaker, self.issuance.id, tx.now())
            if after != row.breaker:
                issuers.save_breaker(tx, row.name, after)
            return until

        until = await self.tools.keeper.db.write(write)
        if until is None:
            return None
        reason = Reason.CA_RATE_LIMITED if limited else Reason.CA_DOWN
        error = f"{self._row.name} {'allows no more' if limited else 'is down'}: {self._row.breaker.error or ''}"
        return self._again(max(until - self.facts.now, SOONEST), reason.value, reason=reason.value, error=error)

    def _break(self, tx: Tx, error: str) -> None:
        row = issuers.get(tx, self.issuance.issuer, lock=True)
        if row is None:
            return
        now, before = tx.now(), row.breaker
        after = breaker.failed(before, now, issuances.storable(error))
        issuers.save_breaker(tx, row.name, after)
        if after.open_at(now) and before.until is None:
            journal.event(tx, "issuer.down", row.name, error=after.error or "", alert=True)

    def _heal(self, tx: Tx) -> None:
        before = self._row.breaker
        if before == breaker.Breaker():
            return
        issuers.save_breaker(tx, self._row.name, breaker.succeeded(before))
        if before.until is not None:
            journal.event(tx, "issuer.up", self._row.name)

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
        )

    async def _commit(self, event: Event | None, told: dict[str, Any] | None = None, **changes: Any) -> None:
        self.issuance = await self.tools.keeper.db.write(lambda tx: self._save(tx, event, told, **changes))

    def _save(self, tx: Tx, event: Event | None, told: dict[str, Any] | None = None, **changes: Any) -> Issuance:
        """A step, unless the job is somebody else's by now, or the attempt was stopped."""
        if not jobs.still_ours(tx, self.work.claim):
            raise LeaseLost(self.work.claim.id)
        before = self.issuance
        if event is not None:
            changes["state"] = move(before.state, event)
            if changes["state"] is not before.state or told:
                self._tell(tx, f"issuance.{changes['state'].value}", **(told or {}))
        if event != "key stored":  # that one needs no CA; any other shows that it answers
            self._heal(tx)
        healed: dict[str, Any] = {"failures": 0, "error": None, "reason": None}
        return issuances.save(tx, before, **{**healed, **changes})

    def _tell(self, tx: Tx, name: str, **facts: Any) -> None:
        issuance = self.issuance
        journal.event(tx, name, issuance.certificate, job=self.work.claim.id, issuance=issuance.id, **facts)

    def _still(self, tx: Tx) -> Issuance | None:
        """The row as it is now, locked; None if somebody stopped it."""
        found = issuances.get(tx, self.issuance.id, lock=True)
        return None if found is None or found.state.over else found
