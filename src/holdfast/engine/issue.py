"""Obtains one certificate, in steps: each is committed before the next call, so that anyone can resume any of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import isfinite
from typing import Any, Final

from holdfast.core import renewal
from holdfast.core.backoff import FailureClass
from holdfast.core.issuance import Event, State, move
from holdfast.core.job import Again, Done, Outcome
from holdfast.core.reasons import Reason
from holdfast.engine import account_gone, ca_breaker, received
from holdfast.engine.attempt import LATEST, LIMITS, SOONEST, VALIDATION, Overtaken, facts_of
from holdfast.engine.attempt import Tools as Tools
from holdfast.engine.kind import Kind, Work
from holdfast.engine.paid import Paid, also
from holdfast.engine.publish import Proving
from holdfast.engine.settle import PASSING as STORE_AWAY
from holdfast.errors import Duplicate, KeyMissing, KeyUnusable, Refused, TryLater
from holdfast.issuers.base import Failed, Issued, Issuer, NeedsProof, Pending, Placed, Ready, Uncertain
from holdfast.issuers.kind import WANT_COMMON_NAME
from holdfast.operations import issuing, paying
from holdfast.operations.acme_names import split
from holdfast.operations.issuing import ISSUE
from holdfast.pki import csr, keys
from holdfast.pki.keys import KeyKind, PrivateKey
from holdfast.pki.refused import PkiRefused
from holdfast.store import budgets, issuances, issuer_accounts, journal, versions
from holdfast.store.tx import Tx

SHARED_FOR: Final = timedelta(minutes=1)


def kind(tools: Tools) -> Kind:
    """Jobs of this kind have an issuance as subject."""

    async def handler(work: Work) -> Outcome:
        facts = await tools.keeper.db.read(lambda tx: facts_of(tx, work.claim.subject))
        if facts is None:
            return Done()  # it is over
        run = Run(tools=tools, work=work, facts=facts, issuance=facts.issuance, left_at_first=work.left())
        return run.unused_given_back(await answer(run))

    async def answer(run: Run) -> Outcome:
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
class Run(Paid, Proving):
    """The steps, from the key to the certificate."""

    left_at_first: float  # seconds for its work, once the facts were read
    fresh: bool = False  # this run stored the key itself: nobody can have placed an order yet
    proved: bool = False  # it is committed that the CSR goes next
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
        self.used = "requests"
        issuer = await self.tools.make_issuer(self._row)
        self.binding, self.account = issuer.binding, getattr(issuer, "account_url", None)
        if account_gone.is_anothers(self.issuance.ref, self.account):
            return await self._by_another_account("The order was placed by an account that is not in use any more.")
        if self.issuance.state is State.KEY_STORED and (waits := await self._place(issuer)) is not None:
            return waits
        outcome = await self._hand_in(issuer) if self.proved else None
        while outcome is None:
            outcome = await self._step(issuer)
        return outcome

    async def _admitted(self) -> Outcome | None:
        """None: go on. While a CA is down one probes it, and all others wait for what it finds."""
        shut = self._row.breaker
        if shut.until is None or (shut.limited and self.issuance.ref is not None):
            return None  # a limit is about new orders: those that are placed go on

        until = await self.tools.keeper.db.write(lambda tx: ca_breaker.admit(tx, self._row.name, self.issuance.id))
        if until is None:
            return None
        reason, words = Reason.CA_DOWN, "is down"
        if shut.limited:
            reason, words = Reason.CA_RATE_LIMITED, "allows no more"
        elif shut.barred:
            reason, words = Reason.ACCOUNT_REFUSED, "does not let us in"
        error = f"{self._row.name} {words}: {shut.error or ''}"
        wait = max(until - self.facts.now, SOONEST)
        away = LATEST if shut.barred else max(wait, shut.lasted)
        if (moved := await self._elsewhere(reason, error, wait=away)) is not None:
            return moved
        return self._again(wait, reason.value, reason=reason.value, error=error)

    async def _store_key(self) -> None:
        """The key is sealed, with the CSR made of it, before anything leaves."""
        wanted, current, vault = self.facts.certificate.wanted, self.facts.current, self.tools.keeper.vault
        dns, ips = split(self.issuance.identifiers)
        named = self._row.kind in WANT_COMMON_NAME
        key = await self._reused_key()
        if key is not None and current is not None:
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

    async def _reused_key(self) -> PrivateKey | None:
        """The key in use, if it is wanted again; never one of another kind, nor one that others may have."""
        wanted, current = self.facts.certificate.wanted, self.facts.current
        if not wanted.reuse_key or current is None:
            return None
        if await self.tools.keeper.db.read(lambda tx: versions.has_bad_key(tx, current)):
            return None
        key = keys.from_pem(await self.tools.keeper.vault.reveal(current.key_secret))
        return key if keys.kind_of(key.public_key()) == KeyKind(wanted.key_kind) else None

    # ── Ordering ──

    async def _place(self, issuer: Issuer) -> Outcome | None:
        """Whoever resumes looks first for the order that may have been placed by one who died.

        The reference is kept before anything else can fail, also while the store is away: the settling of the job
        waits for it.
        """
        self.work.check()
        if self._may_be_placed() and not self._pays_for_lookup():
            return self._again(SOONEST, Reason.UNDER_WAY.value)
        try:
            found = await issuer.find(self._wish()) if self._may_be_placed() else None
        except Refused as why:
            if await self._keeps_order():
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
            then: Event | None = "proved" if placed.ready and not self.binding else None
            await self._commit(self._placed_by(), **kept, polled_since=self.facts.now, then=then)
            self.proved = then is not None
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
        self.any_lifetime = await self._is_known_to_choose()
        while True:
            self.work.check()
            self.used = "an order"
            try:
                return await issuer.place(self._wish())
            except TryLater as why:
                unheard = not why.sent or why.reason in LIMITS
                self.used = "requests" if unheard else "an order perhaps"
                if self.binding and unheard and self.issuance.uncertain_since is None:
                    await self._commit(None, asked_at=None)  # nothing got there: there is no order to look for
                raise
            except Refused as why:
                self.used = "requests"
                if not await self._leaves_out(why):
                    raise

    async def _leaves_out(self, why: Refused) -> bool:
        """Whether it was only about a word that need not be said: not a failure, and once more without it."""
        if why.reason == Reason.REPLACES_REJECTED and self.issuance.replaces is not None:
            await self._commit(None, replaces=None)
            await self.tools.keeper.db.write(self._pay_in_full)
            return True
        if why.reason == Reason.LIFETIME_REJECTED and not self.any_lifetime:
            self.any_lifetime = True
            await self.tools.keeper.db.write(lambda tx: self._left_out(tx, str(why)))
            return True
        return False

    async def _is_known_to_choose(self) -> bool:
        """Whether this CA has said that nobody else chooses a lifetime: it is not asked in vain each time."""
        if self.facts.certificate.wanted.lifetime is None:
            return False
        word, read = self._no_lifetimes(), self.tools.keeper.db.read
        if known := await read(lambda tx: issuances.has_word(tx, self._row.name, word)):
            await self.tools.keeper.db.write(lambda tx: self._left_out(tx, "It has said so before."))
        return known

    def _left_out(self, tx: Tx, why: str) -> None:
        issuances.is_new_word(tx, self._row.name, self._no_lifetimes())
        self._tell(tx, "issuance.any_lifetime", issuer=self._row.name, why=Reason.LIFETIME_REJECTED.value, error=why)

    def _no_lifetimes(self) -> str:
        """Kept beside other words of this CA; another directory is another CA."""
        return f"no notAfter at {self._row.settings.get('directory') or ''}"

    def _pay_in_full(self, tx: Tx) -> None:
        """Without a word of what it replaces an order is none that a CA exempts from its limits."""
        found, current, paid = self.facts.certificate, self.facts.current, self.work.claim.budgets
        budgets.count(tx, {*paying.for_order(tx, self.issuance, self._row, found, current)} - {*paid})

    # ── Looking, and what is next ──

    async def _step(self, issuer: Issuer) -> Outcome | None:
        """Look where the order is and do what is next; None: look again at once."""
        self.work.check()
        try:
            look = await issuer.look(self.issuance.ref or {}, self._wish())
        except Refused as why:
            if await self._keeps_order():
                return self._barred(why)
            raise
        match look:
            case NeedsProof():
                return await self._prove(issuer, look)
            case Ready():
                return await self._hand_in(issuer)
            case Pending():
                if self.issuance.state is State.FINALIZING:
                    await self._commit("csr handed in", polls=0, polled_since=self.facts.now)
                return await self._pending(look)
            case Issued():
                return await self._received(look.chain_pem)
            case Failed():
                reason = Reason(look.reason) if look.reason in set(Reason) else Reason.CA_REFUSED
                if reason is Reason.WRONG_CERTIFICATE:
                    return await self._not_as_asked(look.why)
                if reason is Reason.ORDER_EXPIRED:
                    return await self._unknown_there(look.why)
                failure = FailureClass.TRANSIENT if look.retryable else FailureClass.REFUSED
                return await self.failed(FailureClass.VALIDATION if reason in VALIDATION else failure, reason, look.why)

    async def _hand_in(self, issuer: Issuer) -> Outcome | None:
        if self.handed_in:
            return self._poll(None, Reason.UNDER_WAY)  # the CA took it and does not show it yet
        if not self.proved:
            await self._commit("proved")
        self.work.check()
        await issuer.finalize(self.issuance.ref or {}, self._wish())
        self.work.point("job.effect-done")
        self.handed_in = True
        return None  # many CAs have it by now: then there is nothing to be written before the end

    async def _received(self, pem: bytes) -> Outcome:
        """Nothing is put in use that was not looked at: its key, its names, its chain, its dates."""
        now = self._now()
        found = received.looked_at(self.issuance, pem, now)
        if isinstance(found, str):
            return await self._not_as_asked(found)
        added = received.added_names(found, self.issuance)
        left = await self._clean()
        version = received.version(self.tools.keeper.random.new_id("version"), self.issuance, found, now)

        def write(tx: Tx) -> None:
            issuance = self._still(tx)
            if issuance is None:
                journal.event(tx, "certificate.discarded", version.certificate, serial=version.serial)
                return
            account = issuer_accounts.current(tx, version.issuer)
            known = None if account is None else account.url
            new = version if known is None else replace(version, account=known)
            issuing.activate(tx, issuance, new, known=self.facts.certificate, proofs=left)
            if added:
                told = {"version": version.id, "issuer": version.issuer, "names": added}
                self._tell(tx, "certificate.extra_names", **told)
            ca_breaker.succeeded(tx, self._row)

        return Done(write=write)

    def _now(self) -> datetime:
        """The database's time, reckoned from when it was read; never later than it is."""
        spent = self.left_at_first - self.work.left() if isfinite(self.left_at_first) else 0.0
        return self.facts.now + timedelta(seconds=spent)

    # ── Not yet ──

    async def _pending(self, look: Pending) -> Outcome:
        current, others = self.facts.current, self._others()
        if others and current is not None and self._waited() > renewal.patience_at_the_end(current, self.facts.now):
            why = f"{look.why} There is no time left to wait for it, and there are other CAs."
            return await self.failed(FailureClass.TRANSIENT, Reason.CA_STILL_PENDING, why, withdraw=True)
        again = self._poll(look.after_s, Reason.UNDER_WAY, look.why if self.binding else None)
        if self.binding:
            again = self._telling_of_approval(again, look)
        return self._telling(again, look.word) if look.unknown else again

    def _telling(self, again: Again, word: str) -> Again:
        """Of a word that nobody here knows, once."""

        def write(tx: Tx) -> None:
            if issuances.is_new_word(tx, self._row.name, word):
                facts = {"word": word, "issuance": self.issuance.id, "certificate": self.issuance.certificate}
                journal.event(tx, "issuer.unknown_word", self._row.name, **facts)

        return also(again, write)
