"""Obtains one certificate, in steps: each is committed before the next call, so that anyone can resume any of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from holdfast.core import renewal
from holdfast.core.backoff import POLL, FailureClass
from holdfast.core.issuance import Event, State, move
from holdfast.core.job import Again, Done, Outcome
from holdfast.core.reasons import Reason
from holdfast.engine import ca_breaker, proving, received
from holdfast.engine.attempt import LIMITS, SOONEST, VALIDATION, Attempt, Overtaken, facts_of
from holdfast.engine.attempt import Tools as Tools
from holdfast.engine.settle import PASSING as STORE_AWAY
from holdfast.engine.worker import Kind, Work
from holdfast.errors import Duplicate, KeyMissing, KeyUnusable, Refused, TryLater
from holdfast.issuers.base import Failed, Issued, Issuer, NeedsProof, Pending, Placed, Ready, Uncertain
from holdfast.issuers.kind import WANT_COMMON_NAME
from holdfast.operations import issuing
from holdfast.operations.acme_orders import split
from holdfast.operations.issuing import ISSUE
from holdfast.pki import csr, keys
from holdfast.pki.keys import KeyKind
from holdfast.pki.refused import PkiRefused
from holdfast.store import issuances, issuer_accounts, journal
from holdfast.store.tx import Tx

SHARED_FOR: Final = timedelta(minutes=1)
DOUBT_FOR: Final = timedelta(days=1)  # how long an order is looked for, by us and by people, before it is placed again
VISIBLE_WITHIN: Final = timedelta(minutes=30)  # a proof that is not to be seen by then will not be


def kind(tools: Tools) -> Kind:
    """Jobs of this kind have an issuance as subject."""

    async def handler(work: Work) -> Outcome:
        facts = await tools.keeper.db.read(lambda tx: facts_of(tx, work.claim.subject))
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
        except Overtaken:
            return Again(after=timedelta(seconds=1), reason="CHANGED")

    return Kind(name=ISSUE, handler=handler, slots=16, timeout=timedelta(minutes=5), interruptible=True)


@dataclass(slots=True, kw_only=True)
class Run(Attempt):
    """The steps, from the key to the certificate."""

    fresh: bool = False  # this run stored the key itself: nobody can have placed an order yet
    handed_in: bool = False

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
        self.binding = issuer.binding
        if self.issuance.state is State.KEY_STORED and (waits := await self._place(issuer)) is not None:
            return waits
        while True:
            outcome = await self._step(issuer)
            if outcome is not None:
                return outcome

    async def _admitted(self) -> Outcome | None:
        """None: go on. While a CA is down one probes it, and all others wait for what it finds."""
        limited = self._row.breaker.limits > 0
        if self._row.breaker.until is None or (limited and self.issuance.ref is not None):
            return None  # a limit is about new orders: those that are placed go on

        until = await self.tools.keeper.db.write(lambda tx: ca_breaker.admit(tx, self._row.name, self.issuance.id))
        if until is None:
            return None
        reason = Reason.CA_RATE_LIMITED if limited else Reason.CA_DOWN
        error = f"{self._row.name} {'allows no more' if limited else 'is down'}: {self._row.breaker.error or ''}"
        return self._again(max(until - self.facts.now, SOONEST), reason.value, reason=reason.value, error=error)

    async def _store_key(self) -> None:
        """The key is sealed, with the CSR made of it, before anything leaves."""
        wanted, current, vault = self.facts.certificate.wanted, self.facts.current, self.tools.keeper.vault
        dns, ips = split(self.issuance.identifiers)
        named = self._row.kind in WANT_COMMON_NAME
        if wanted.reuse_key and current is not None:
            key = keys.from_pem(await vault.reveal(current.key_secret))
            content = csr.build(dns, key, ips=ips, common_name=named)
            await self._commit("key stored", key_secret=current.key_secret, csr=content)
        else:
            key = await self.tools.new_key(KeyKind(wanted.key_kind))
            content = csr.build(dns, key, ips=ips, common_name=named)
            self.issuance = await vault.keep(
                [keys.to_pem(key)],
                lambda tx, ids: self._save(tx, "key stored", key_secret=ids[0], csr=content),
            )
        self.fresh = True

    # ── Ordering ──

    async def _place(self, issuer: Issuer) -> Outcome | None:
        """Whoever resumes looks first for the order that may have been placed by one who died.

        The reference is kept before anything else can fail, also while the store is away: the settling of the job
        waits for it.
        """
        self.work.check()
        try:
            found = await issuer.find(self._wish()) if self._may_be_placed() else None
        except Refused as why:
            if self.binding and self._worth_waiting_for():
                return self._barred(why)
            raise
        if isinstance(found, Uncertain) and (waits := await self._doubted(found)) is not None:
            return waits
        with self.work.whole():  # a stop must not lose the answer
            placed = found if isinstance(found, Placed) else await self._order(issuer)
            self.work.point("job.effect-done")
            return await self._keep(placed)

    async def _keep(self, placed: Placed) -> Outcome | None:
        kept: dict[str, Any] = {"ref": dict(placed.ref), "uncertain_since": None, "polls": 0}
        try:
            await self._commit(self._placed_by(), **kept, polled_since=self.facts.now)
        except Duplicate:  # the CA gave us the order of another certificate with the same names: it goes first
            return self._again(SHARED_FOR, Reason.UNDER_WAY.value)
        except (*STORE_AWAY, Overtaken):
            return Again(reason="CHANGED", write=lambda tx: self._keep_ref(tx, kept))
        return None

    def _may_be_placed(self) -> bool:
        if self.work.claim.recheck:
            return True
        return self.issuance.asked_at is not None if self.binding else not self.fresh

    def _placed_by(self) -> Event:
        return "csr handed in" if self.binding else "order placed"

    def _keep_ref(self, tx: Tx, kept: Mapping[str, Any]) -> None:
        """The order as it was placed, whatever became of the attempt meanwhile; one that was stopped is withdrawn."""
        found = issuances.get(tx, self.issuance.id, lock=True)
        if found is None or found.ref is not None:
            return
        if found.state.over:
            issuing.withdraw_order(tx, found, ref=kept["ref"])
        else:
            state = move(found.state, self._placed_by())
            issuances.save(tx, found, **kept, state=state, polled_since=self.facts.now)

    async def _order(self, issuer: Issuer) -> Placed:
        if self.binding:  # committed first, so that whoever comes after us knows that there may be an order
            again: dict[str, Any] = {"maybe_twice": True} if self.issuance.uncertain_since is not None else {}
            await self._commit(None, asked_at=self.facts.now, **again)
        self.work.check()
        try:
            return await issuer.place(self._wish())
        except TryLater as why:
            unheard = not why.sent or why.reason in LIMITS
            if self.binding and unheard and self.issuance.uncertain_since is None:
                await self._commit(None, asked_at=None)  # nothing got there: there is no order to look for
            raise
        except Refused as why:
            if why.reason != Reason.REPLACES_REJECTED or self.issuance.replaces is None:
                raise
        await self._commit(None, replaces=None)  # not a failure: once more, without
        self.work.check()
        return await issuer.place(self._wish())

    async def _doubted(self, found: Uncertain) -> Outcome | None:
        """None: order once more, for the doubt has lasted long enough, or there is no time left for it."""
        since, now = self.issuance.uncertain_since or self.facts.now, self.facts.now
        current = self.facts.current
        end = since + DOUBT_FOR if current is None else min(since + DOUBT_FOR, renewal.emergency_at(current))
        if now < end:
            return self._poll(None, Reason.ORDER_UNCERTAIN, found.why, uncertain_since=since)
        if self.issuance.maybe_twice:
            return await self.failed(FailureClass.TRANSIENT, Reason.ORDER_UNCERTAIN, found.why)
        self.issuance = replace(self.issuance, uncertain_since=since)
        return None

    # ── Looking, and what is next ──

    async def _step(self, issuer: Issuer) -> Outcome | None:
        """Look where the order is and do what is next; None: look again at once."""
        self.work.check()
        try:
            look = await issuer.look(self.issuance.ref or {}, self._wish())
        except Refused as why:
            if self.binding and self._worth_waiting_for():
                return self._barred(why)
            raise
        match look:
            case NeedsProof():
                return await self._prove(issuer, look)
            case Ready():
                return await self._hand_in(issuer)
            case Pending():
                return await self._pending(look)
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
        todo = [each for each in chosen if not proving.is_answered(each.proof, known)]
        if not todo:  # the CA was told, and has not looked yet: telling it again would be no news
            return self._poll(None, Reason.UNDER_WAY)
        new = [proving.to_json(each.proof) for each in todo if not proving.is_known(each.proof, known)]
        if new:  # beside those that were told before: all of them are to be taken away again
            told = {"proofs": [f"{each.proof.type} for {each.proof.identifier.value}" for each in todo]}
            await self._commit("proofs asked", told, proofs=(*known, *new), polls=0, polled_since=self.facts.now)
        for each in todo:
            self.work.check()
            await each.solver.publish(each.proof)
        self.work.point("job.effect-done")
        if missing := await proving.not_visible(todo):
            return await self._not_visible(missing, todo[0].proof.type)
        for each in todo:
            self.work.check()
            await issuer.answer(self.issuance.ref or {}, each.proof)
        answered = proving.answered([each.proof for each in todo], self.issuance.proofs)
        return self._poll(None, Reason.UNDER_WAY, proofs=answered)

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
            ca_breaker.succeeded(tx, self._row)

        return Done(write=write)

    # ── Not yet ──

    async def _pending(self, look: Pending) -> Outcome:
        current, others = self.facts.current, len(self.facts.certificate.wanted.issuers) > 1
        if others and current is not None and self.facts.now >= renewal.emergency_at(current):
            why = f"{look.why} There is no time left to wait for it, and there are other CAs."
            return await self.failed(FailureClass.TRANSIENT, Reason.CA_STILL_PENDING, why, withdraw=True)
        again = self._poll(look.after_s, Reason.UNDER_WAY, look.why if self.binding else None)
        return self._telling(again, look.word) if look.unknown else again

    def _telling(self, again: Again, word: str) -> Again:
        """Of a word that nobody here knows, once."""

        def write(tx: Tx) -> None:
            if again.write is not None:
                again.write(tx)
            if issuances.is_new_word(tx, self._row.name, word):
                facts = {"word": word, "issuance": self.issuance.id, "certificate": self.issuance.certificate}
                journal.event(tx, "issuer.unknown_word", self._row.name, **facts)
                self.tools.telemetry.log.warning("issuer.unknown_word", issuer=self._row.name, word=word)

        return replace(again, write=write)

    def _barred(self, why: Refused) -> Outcome:
        """We may not look at our own order: a key was changed, or a right taken. The order may be well: it is kept."""
        reason = Reason(why.reason) if why.reason in set(Reason) else Reason.CA_REFUSED
        wait = max(self._next_poll(None)[0], POLL.cap)
        again = self._again(wait, reason.value, **self._polled(), reason=reason.value, error=str(why))
        news = self.issuance.reason != reason.value

        def write(tx: Tx) -> None:
            if again.write is not None:
                again.write(tx)
            if news:
                self._tell(tx, "issuance.barred", why=reason.value, error=str(why), alert=True)

        return replace(again, write=write)
