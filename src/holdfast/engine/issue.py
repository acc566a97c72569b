"""Obtains one certificate, in steps: reads the facts, asks the CA, has `core/attempt.py` decide, and does the step.

Each step is committed before the next call, so that any worker can resume any of them. No transaction is open while a
CA or a solver is asked.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from math import isfinite
from typing import Any, Final

from holdfast.core import attempt
from holdfast.core.attempt import decide
from holdfast.core.attempt_budget import refund
from holdfast.core.attempt_facts import (
    AccountGone,
    Answer,
    Call,
    Facts,
    Failed,
    Fine,
    Issued,
    Later,
    OrderNotKept,
    Setback,
    Shut,
)
from holdfast.core.attempt_steps import Ask, End, EndAccount, GiveUp, Keep, KeepOrder, MoveOn, Place, StartOver, Wait
from holdfast.core.changed import changed
from holdfast.core.issuance import Event, Issuance
from holdfast.core.job import Again, Done, Outcome, also
from holdfast.core.reasons import Reason
from holdfast.engine import account_gone, ca_breaker, issue_writes, proving, received
from holdfast.engine.issue_answers import Trouble, account_of, doubt, heard, looked
from holdfast.engine.issue_facts import beside_of, facts_of
from holdfast.engine.issue_writes import Overtaken
from holdfast.engine.kind import Kind, Work
from holdfast.engine.proving import Kept
from holdfast.engine.publish import Prover, Room
from holdfast.engine.settle import PASSING as STORE_AWAY
from holdfast.engine.tools import Tools as Tools
from holdfast.errors import Duplicate, IllegalMove
from holdfast.issuers import base
from holdfast.issuers.base import Issuer, NeedsProof, Placed, Wish
from holdfast.issuers.kind import WANT_COMMON_NAME
from holdfast.operations import paying
from holdfast.operations.acme_names import split
from holdfast.operations.issuing import ISSUE
from holdfast.pki import csr, keys, signer
from holdfast.pki.aside import aside
from holdfast.pki.keys import KeyKind, PrivateKey
from holdfast.store import budgets, issuances, versions
from holdfast.store.issuers import IssuerRow
from holdfast.store.tx import Tx

SHARED_FOR: Final = timedelta(minutes=1)


def kind(tools: Tools) -> Kind:
    """Jobs of this kind have an issuance as subject."""

    async def handler(work: Work) -> Outcome:
        found = await tools.keeper.db.read(lambda tx: facts_of(tx, work.claim, tools.poll_windows))
        if found is None:
            return Done()  # it is over
        facts, row = found
        return await Run(tools, work, row).go(facts)

    return Kind(name=ISSUE, handler=handler, slots=16, timeout=timedelta(minutes=5), interruptible=True)


class Run:
    """One claim of one issuance. What it knows is in `Facts`, which each call returns anew."""

    def __init__(self, tools: Tools, work: Work, row: IssuerRow | None) -> None:
        self._tools, self._work, self._db = tools, work, tools.keeper.db
        self._known_row = row
        self._room = Room(work)
        self._left_at_first = work.left()  # seconds for its work, once the facts were read
        self._opened: Issuer | None = None

    async def go(self, facts: Facts) -> Outcome:
        try:
            facts, step = await self._steps(facts)
        except Overtaken as why:
            return _refunded(why.facts, Again(after=timedelta(seconds=1), reason="CHANGED"))
        return _refunded(facts, await self._end(facts, step), gave_up=isinstance(step, GiveUp))

    async def _steps(self, facts: Facts) -> tuple[Facts, End]:
        """Ask and decide, until a step ends the claim."""
        answer: Answer = Fine("begin")
        while True:
            if isinstance(answer, Setback):
                facts = await self._looked_around(facts)
            match decide(facts, answer):
                case Ask() as step:
                    facts, answer = await self._call(facts, step.call)
                case Place() as step:
                    facts, answer = await self._place(facts, step)
                case MoveOn() as step:
                    facts = await self._commit(facts, step.event, **step.changes)
                    then = step.then
                    facts, answer = await self._call(facts, then) if isinstance(then, str) else (facts, then)
                case EndAccount() as step:
                    facts, answer = await self._end_account(facts, step.why)
                case step:
                    return facts, step

    async def _end(self, facts: Facts, step: End) -> Outcome:
        """The outcome of the job, which commits what the step changes together with it."""
        match step:
            case Wait():
                why = step.reason.value
                return Again(after=step.after, reason=why, write=lambda tx: issue_writes.wait(tx, facts, step))
            case GiveUp():
                row, left = self._known_row, await self._clean(facts)
                return Done(write=lambda tx: issue_writes.give_up(tx, facts, row, step, left))
            case StartOver():
                ids = self._tools.keeper.ids()
                return Done(write=lambda tx: issue_writes.start_over(tx, facts, step, ids))
            case Keep():
                left = await self._clean(facts)
                return Done(write=lambda tx: issue_writes.keep(tx, facts, self._row, step, left))
            case KeepOrder():
                return Again(reason="CHANGED", write=lambda tx: issue_writes.keep_order(tx, facts, step.ref))

    # ── Calls ──

    async def _call(self, facts: Facts, call: Call) -> tuple[Facts, Answer]:
        match call:
            case "admit":
                return facts, await self._admit(facts)
            case "store key":
                return await self._store_key(facts)
            case "open":
                return await self._open(facts)
            case "find":
                return await self._find(facts)
            case "look":
                return await self._look(facts)
            case "finalize":
                return await self._finalize(facts)

    async def _looked_around(self, facts: Facts) -> Facts:
        """After a setback: with what happened before, and how the other issuers stand."""
        return changed(facts, beside=await self._db.read(lambda tx: beside_of(tx, facts)))

    async def _admit(self, facts: Facts) -> Answer:
        until = await self._db.write(lambda tx: ca_breaker.admit(tx, self._row.name, facts.issuance.id))
        return Fine("admit") if until is None else Shut(until)

    async def _open(self, facts: Facts) -> tuple[Facts, Answer]:
        facts = changed(facts, used="requests")
        issuer = await heard("open", self._tools.make_issuer(self._row))
        if isinstance(issuer, Trouble):
            return facts, issuer
        self._opened = issuer
        facts = changed(facts, binding=issuer.binding, account=account_of(issuer))
        if account_gone.is_anothers(facts.issuance.ref, facts.account):
            return facts, AccountGone("The order was placed by an account that is not in use any more.")
        return facts, Fine("open")

    async def _look(self, facts: Facts) -> tuple[Facts, Answer]:
        self._work.check()
        look = await heard("look", self._issuer.look(facts.issuance.ref or {}, self._wish(facts)))
        match look:
            case NeedsProof():
                prover = Prover(
                    tools=self._tools, work=self._work, room=self._room, issuer=self._issuer, commit=self._commit
                )
                return await prover.prove(facts, look)
            case base.Issued():
                return facts, self._received(facts, look.chain_pem)
            case base.Ready() | base.Pending() | base.Failed():
                return facts, looked(look)
            case _:
                return facts, look

    async def _finalize(self, facts: Facts) -> tuple[Facts, Answer]:
        self._work.check()
        told = await heard("finalize", self._issuer.finalize(facts.issuance.ref or {}, self._wish(facts)))
        if told is not None:
            return facts, told
        self._work.point("job.effect-done")
        # Many CAs have the certificate by now: then there is nothing to be written before the end.
        return changed(facts, handed_in=True), Fine("finalize")

    def _received(self, facts: Facts, pem: bytes) -> Answer:
        """Nothing is put in use that was not looked at: its key, its names, its chain, its dates."""
        now = self._now(facts)
        found = received.looked_at(facts.issuance, pem, now)
        if isinstance(found, str):
            return Failed(why=found, reason=Reason.WRONG_CERTIFICATE)
        version = received.version(self._tools.keeper.random.new_id("version"), facts.issuance, found, now)
        return Issued(version=version, added_names=tuple(received.added_names(found, facts.issuance)))

    def _now(self, facts: Facts) -> datetime:
        """The database's time, reckoned from when it was read; never later than it is."""
        spent = self._left_at_first - self._work.left() if isfinite(self._left_at_first) else 0.0
        return facts.now + timedelta(seconds=spent)

    async def _end_account(self, facts: Facts, why: str) -> tuple[Facts, Answer]:
        await self._db.write(lambda tx: account_gone.ended(tx, facts.issuance.issuer, facts.account, why))
        return facts, AccountGone(why)

    # ── The key ──

    async def _store_key(self, facts: Facts) -> tuple[Facts, Answer]:
        stored = await heard("store key", self._sealed(facts))
        if not isinstance(stored, Issuance):
            return facts, stored
        return changed(facts, issuance=stored, fresh=True), Fine("store key")

    async def _sealed(self, facts: Facts) -> Issuance:
        """The key is sealed, with the CSR made of it, before anything leaves."""
        wanted, current, vault = facts.certificate.wanted, facts.current, self._tools.keeper.vault
        dns, ips = split(facts.issuance.identifiers)
        named = self._row.kind in WANT_COMMON_NAME
        key = await self._reused_key(facts)
        if key is not None and current is not None:
            content = csr.build(dns, key, ips=ips, common_name=named)
            return (await self._commit(facts, "key stored", key_secret=current.key_secret, csr=content)).issuance
        key = await self._tools.new_key(KeyKind(wanted.key_kind))
        content = csr.build(dns, key, ips=ips, common_name=named)
        return await vault.keep(
            [keys.to_pem(key)],
            lambda tx, ids: issue_writes.save(tx, facts, self._row, "key stored", key_secret=ids[0], csr=content),
        )

    async def _reused_key(self, facts: Facts) -> PrivateKey | None:
        """The key in use, if it is wanted again; never one of another kind, nor one that others may have."""
        wanted, current = facts.certificate.wanted, facts.current
        if not wanted.reuse_key or current is None:
            return None
        if await self._db.read(lambda tx: versions.has_bad_key(tx, current)):
            return None
        key = keys.from_pem(await self._tools.keeper.vault.reveal(current.key_secret))
        return key if keys.kind_of(key.public_key()) == KeyKind(wanted.key_kind) else None

    # ── The order ──

    async def _find(self, facts: Facts) -> tuple[Facts, Answer]:
        self._work.check()
        found = await heard("find", self._issuer.find(self._wish(facts)))
        match found:
            case None:
                return facts, Fine("find")
            case base.Uncertain():
                return facts, doubt(found)
            case Placed():
                with self._work.whole():
                    return await self._keep_ref(facts, found)
            case _:
                return facts, found

    async def _place(self, facts: Facts, step: Place) -> tuple[Facts, Answer]:
        """The reference is kept before anything else can fail; a stop must not lose the answer."""
        self._work.check()
        with self._work.whole():
            facts = await self._about_to_place(facts, step)
            while True:
                self._work.check()
                facts = changed(facts, used="an order")
                answer = await heard("place", self._issuer.place(self._wish(facts)))
                if isinstance(answer, Placed):
                    return await self._keep_ref(facts, answer)
                facts = changed(facts, used=attempt.used_by_placing(answer))
                match attempt.left_out(facts, answer):
                    case "replaces":
                        facts = await self._commit(facts, None, replaces=None)
                        await self._pay_in_full(facts)
                    case "lifetime":
                        facts = await self._any_lifetime(facts, answer.why)
                    case None:
                        if attempt.takes_back(facts, answer):
                            facts = await self._commit(facts, None, asked_at=None)
                        return facts, answer

    async def _about_to_place(self, facts: Facts, step: Place) -> Facts:
        if step.doubted_since is not None:
            facts = changed(facts, issuance=changed(facts.issuance, uncertain_since=step.doubted_since))
        if facts.binding:  # committed first, so that a claim after this one knows that there may be an order
            again: dict[str, Any] = {"maybe_twice": True} if facts.issuance.uncertain_since is not None else {}
            facts = await self._commit(facts, None, asked_at=facts.now, **again)
        if facts.certificate.wanted.lifetime is None:
            return facts
        word = _no_lifetimes(self._row)  # a CA that has said so is not asked in vain each time
        if await self._db.read(lambda tx: issuances.has_word(tx, self._row.name, word)):
            return await self._any_lifetime(facts, "It has said so before.")
        return facts

    async def _any_lifetime(self, facts: Facts, why: str) -> Facts:
        """The CA lets nobody choose a lifetime: it is placed without one, and people hear so."""

        def write(tx: Tx) -> None:
            issuances.is_new_word(tx, self._row.name, _no_lifetimes(self._row))
            told = {"issuer": self._row.name, "why": Reason.LIFETIME_REJECTED.value, "error": why}
            issue_writes.tell(tx, facts, "issuance.any_lifetime", **told)

        await self._db.write(write)
        return changed(facts, any_lifetime=True)

    async def _pay_in_full(self, facts: Facts) -> None:
        """Without a word of what it replaces an order is none that a CA exempts from its limits."""

        def write(tx: Tx) -> None:
            due = paying.for_order(tx, facts.issuance, self._row, facts.certificate, facts.current)
            budgets.count(tx, {*due} - {*facts.claim.budgets})

        await self._db.write(write)

    async def _keep_ref(self, facts: Facts, placed: Placed) -> tuple[Facts, Answer]:
        """Also while the store is away: then the settling of the job waits for it."""
        self._work.point("job.effect-done")
        then: Event | None = "proved" if placed.ready and not facts.binding else None
        kept = issue_writes.placed(facts, placed.ref)
        try:
            facts = await self._commit(facts, issue_writes.placed_by(facts), then=then, **kept)
        except Duplicate:  # the other one goes first
            shared = "The CA gave us the order of another certificate with the same names."
            return facts, Later(at="place", reason=Reason.UNDER_WAY, why=shared, after=SHARED_FOR)
        except (*STORE_AWAY, Overtaken):
            return facts, OrderNotKept(placed.ref)
        return changed(facts, proved=then is not None), Fine("place")

    def _wish(self, facts: Facts) -> Wish:
        issuance, wanted = facts.issuance, facts.certificate.wanted
        # A life begins with the order: who waited for a turn or a word loses nothing.
        begins = issuance.asked_at or facts.now
        not_after = None if wanted.lifetime is None or facts.any_lifetime else begins + wanted.lifetime

        async def sign(content: bytes) -> bytes:
            """By the key that the certificate is for."""
            key = keys.from_pem(await self._tools.keeper.vault.reveal(issuance.key_secret or ""))
            return await aside(signer.proof_of, key, content)

        return Wish(
            issuance=issuance.id,
            identifiers=issuance.identifiers,
            csr=issuance.csr or b"",
            profile=wanted.profile,
            not_after=not_after,
            replaces=issuance.replaces,
            preferred_chain=wanted.preferred_chain,
            asked_at=issuance.asked_at,
            previous=facts.previous.ref,
            same_names=facts.previous.same_names,
            sign=sign,
        )

    # ── What all of them need ──

    async def _commit(
        self, facts: Facts, event: Event | None, told: dict[str, Any] | None = None, **changes: Any
    ) -> Facts:
        """A step within the claim; the facts after it."""
        after = await self._db.write(lambda tx: issue_writes.save(tx, facts, self._row, event, told, **changes))
        return changed(facts, issuance=after)

    async def _clean(self, facts: Facts) -> Kept:
        """What is done in a moment is done before the attempt ends. What is left comes back, and is owed by a job."""
        kept = tuple(facts.issuance.proofs)
        chosen, _ = proving.solvers_of(kept, self._tools.solver_for)
        for page in proving.pages([each for each in chosen if each.solver.side_by_side]):
            if not self._room.take():
                break
            called = await proving.call(page, proving.clean)
            kept = proving.without((each.proof for each in called.well), kept)
        return kept

    @property
    def _row(self) -> IssuerRow:
        if self._known_row is None:
            raise IllegalMove("an issuance whose issuer is gone asks nobody")
        return self._known_row

    @property
    def _issuer(self) -> Issuer:
        if self._opened is None:
            raise IllegalMove("an issuer is opened before it is asked")
        return self._opened


def _refunded(facts: Facts, outcome: Outcome, *, gave_up: bool = False) -> Outcome:
    """With what the claim paid for in vain given back last of all, as claims take it: it is held for a moment only."""
    paid = refund(facts, gave_up=gave_up)
    since = paid.at
    return (
        outcome
        if not paid.taken or since is None
        else also(outcome, lambda tx: budgets.give_back(tx, paid.taken, since))
    )


def _no_lifetimes(row: IssuerRow) -> str:
    """Kept beside other words of this CA; another directory is another CA."""
    return f"no notAfter at {row.settings.get('directory') or ''}"
