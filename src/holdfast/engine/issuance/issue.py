"""Obtains one certificate, step by step: reads the facts, asks the CA, has `core/issuance_decision.py` decide, acts.

Each step is committed before the next call, so that any worker can resume any of them. No transaction is open while a
CA or a solver is asked.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from math import isfinite
from typing import Any, Final

from holdfast.core import issuance_decision
from holdfast.core.certificate import AGENT_KEY
from holdfast.core.changed import changed
from holdfast.core.issuance import Issuance, IssuanceEvent
from holdfast.core.issuance_decision import decide, refund
from holdfast.core.issuance_steps import (
    AccountGone,
    BreakerOpen,
    CallDone,
    CertificateIssued,
    EndAccount,
    Facts,
    GiveUp,
    IssuerCall,
    KeepOrderReference,
    LastStep,
    MakeCall,
    MoveOn,
    OrderFailed,
    OrderNotKept,
    PlaceOrder,
    RemoteAnswer,
    RemoteUnavailable,
    Setback,
    StartOver,
    UseCertificate,
    WaitFor,
)
from holdfast.core.issuers.issuer import IssuerRow
from holdfast.core.key_kind import KeyKind
from holdfast.core.kind import Trait
from holdfast.core.reasons import Reason
from holdfast.core.work.job import Again, Done, Outcome, also
from holdfast.engine.issuance import accounts, agent_csr, answers, challenges, writes
from holdfast.engine.issuance.answers import RemoteTrouble, account_of, heard
from holdfast.engine.issuance.challenges import ClaimRoom, KeptResponses, Prover
from holdfast.engine.issuance.claim import IssuanceServices as IssuanceServices
from holdfast.engine.issuance.claim import beside_of, facts_of
from holdfast.engine.issuance.writes import Overtaken
from holdfast.engine.kind import JobKind, Work
from holdfast.engine.settle import PASSING as STORE_AWAY
from holdfast.errors import Duplicate, IllegalMove, Refused
from holdfast.issuers import base
from holdfast.issuers.base import Finalizes, Issuer, NeedsProof, OrderRequest, Placed
from holdfast.operations import kinds
from holdfast.operations.acme.names import split
from holdfast.operations.certificates.checks import ANY_KEY
from holdfast.operations.installation.secret_store import NO_KEY, certificate_key
from holdfast.operations.issuance import order_budgets
from holdfast.operations.issuance.attempts import ISSUE
from holdfast.pki import csr, keys, signing
from holdfast.pki.in_thread import aside
from holdfast.pki.keys import PrivateKey
from holdfast.store import issuances, versions
from holdfast.store.tx import Tx
from holdfast.store.work import budgets

SHARED_FOR: Final = timedelta(minutes=1)


def kind(services: IssuanceServices) -> JobKind:
    """Jobs of this kind have an issuance as subject."""

    async def handler(work: Work) -> Outcome:
        found = await services.certificate_context.db.read(lambda tx: facts_of(tx, work.claim, services.poll_windows))
        if found is None:
            return Done()  # it is over
        facts, row = found
        return await Run(services, work, row).go(facts)

    return JobKind(name=ISSUE, handler=handler, slots=16, timeout=timedelta(minutes=5), interruptible=True)


class Run:
    """One claim of one issuance. What it knows is in `Facts`, which each call returns anew."""

    def __init__(self, services: IssuanceServices, work: Work, row: IssuerRow | None) -> None:
        self._services, self._work, self._db = services, work, services.certificate_context.db
        self._known_row = row
        self._room = ClaimRoom(work)
        self._left_at_first = work.left()  # seconds for its work, once the facts were read
        self._opened: Issuer | None = None

    async def go(self, facts: Facts) -> Outcome:
        try:
            facts, step = await self._steps(facts)
        except Overtaken as why:
            return _refunded(why.facts, Again(after=timedelta(seconds=1), reason="CHANGED"))
        return _refunded(facts, await self._end(facts, step), gave_up=isinstance(step, GiveUp))

    async def _steps(self, facts: Facts) -> tuple[Facts, LastStep]:
        """Ask and decide, until a step ends the claim."""
        answer: RemoteAnswer = CallDone("begin")
        while True:
            if isinstance(answer, Setback):
                facts = await self._looked_around(facts)
            match decide(facts, answer):
                case MakeCall() as step:
                    facts, answer = await self._call(facts, step.call)
                case PlaceOrder() as step:
                    facts, answer = await self._place(facts, step)
                case MoveOn() as step:
                    facts = await self._commit(facts, step.event, **step.changes)
                    then = step.then
                    facts, answer = await self._call(facts, then) if isinstance(then, str) else (facts, then)
                case EndAccount() as step:
                    facts, answer = await self._end_account(facts, step.why)
                case step:
                    return facts, step

    async def _end(self, facts: Facts, step: LastStep) -> Outcome:
        """The outcome of the job, which commits what the step changes together with it."""
        match step:
            case WaitFor():
                why = step.reason.value
                return Again(after=step.after, reason=why, write=lambda tx: writes.wait(tx, facts, step))
            case GiveUp():
                row, left = self._known_row, await self._clean(facts)
                return Done(write=lambda tx: writes.give_up(tx, facts, row, step, left))
            case StartOver():
                ids = self._services.certificate_context.ids()
                return Done(write=lambda tx: writes.start_over(tx, facts, step, ids))
            case UseCertificate():
                left = await self._clean(facts)
                return Done(write=lambda tx: writes.keep(tx, facts, self._row, step, left))
            case KeepOrderReference():
                return Again(reason="CHANGED", write=lambda tx: writes.keep_order(tx, facts, step.ref))

    # ── Calls ──

    async def _call(self, facts: Facts, call: IssuerCall) -> tuple[Facts, RemoteAnswer]:
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

    async def _admit(self, facts: Facts) -> RemoteAnswer:
        until = await self._db.write(lambda tx: writes.admit_to_issuer(tx, self._row.name, facts.issuance.id))
        return CallDone("admit") if until is None else BreakerOpen(until)

    async def _open(self, facts: Facts) -> tuple[Facts, RemoteAnswer]:
        facts = changed(facts, used="requests")
        issuer = await heard("open", self._services.make_issuer(self._row))
        if isinstance(issuer, RemoteTrouble):
            return facts, issuer
        self._opened = issuer
        facts = changed(facts, binding=issuer.binding, account=account_of(issuer))
        if accounts.is_anothers(facts.issuance.ref, facts.account):
            return facts, AccountGone("The order was placed by an account that is not in use any more.")
        return facts, CallDone("open")

    async def _look(self, facts: Facts) -> tuple[Facts, RemoteAnswer]:
        self._work.check()
        look = await heard("look", self._issuer.order_status(facts.issuance.ref or {}, self._wish(facts)))
        match look:
            case NeedsProof():
                prover = Prover(
                    services=self._services, work=self._work, room=self._room, issuer=self._issuer, commit=self._commit
                )
                return await prover.prove(facts, look)
            case base.Issued():
                return facts, self._received(facts, look.chain_pem)
            case _:
                return facts, look

    async def _finalize(self, facts: Facts) -> tuple[Facts, RemoteAnswer]:
        self._work.check()
        if isinstance(self._issuer, Finalizes):
            told = await heard("finalize", self._issuer.finalize(facts.issuance.ref or {}, self._wish(facts)))
            if told is not None:
                return facts, told
        self._work.point("job.effect-done")
        # Many CAs have the certificate by now: then there is nothing to be written before the end.
        return changed(facts, handed_in=True), CallDone("finalize")

    def _received(self, facts: Facts, pem: bytes) -> RemoteAnswer:
        """Nothing is put in use that was not looked at: its key, its names, its chain, its dates."""
        now = self._now(facts)
        found = answers.looked_at(facts.issuance, pem, now)
        if isinstance(found, str):
            return OrderFailed(why=found, reason=Reason.WRONG_CERTIFICATE)
        version = answers.version(
            self._services.certificate_context.random.new_id("version"), facts.issuance, found, now
        )
        return CertificateIssued(version=version, added_names=tuple(answers.added_names(found, facts.issuance)))

    def _now(self, facts: Facts) -> datetime:
        """The database's time, reckoned from when it was read; never later than it is."""
        spent = self._left_at_first - self._work.left() if isfinite(self._left_at_first) else 0.0
        return facts.now + timedelta(seconds=spent)

    async def _end_account(self, facts: Facts, why: str) -> tuple[Facts, RemoteAnswer]:
        await self._db.write(lambda tx: accounts.ended(tx, facts.issuance.issuer, facts.account, why))
        return facts, AccountGone(why)

    # ── The key ──

    async def _store_key(self, facts: Facts) -> tuple[Facts, RemoteAnswer]:
        stored = await heard("store key", self._sealed(facts))
        if not isinstance(stored, Issuance):
            return facts, stored
        return changed(facts, issuance=stored, fresh=True), CallDone("store key")

    async def _sealed(self, facts: Facts) -> Issuance:
        """The key is sealed, with the CSR made of it, before anything leaves."""
        spec, current, secret_store = (
            facts.certificate.wanted,
            facts.current,
            self._services.certificate_context.secret_store,
        )
        if spec.csr is not None:
            content = await self._given_csr(facts, spec.csr)
            return await secret_store.keep(
                NO_KEY,
                certificate_key(facts.certificate.id),
                lambda tx, secret: writes.save(tx, facts, self._row, "key stored", key_secret=secret, csr=content),
            )
        if spec.key_location == AGENT_KEY:
            made = await agent_csr.asked_for(self._services.agents, self._db, self._row, facts)
            return await secret_store.keep(
                NO_KEY,
                certificate_key(facts.certificate.id),
                lambda tx, secret: writes.save(tx, facts, self._row, "key stored", key_secret=secret, csr=made),
            )
        dns, ips = split(facts.issuance.identifiers)
        named = kinds.has(self._row, Trait.WANTS_COMMON_NAME)
        key = await self._reused_key(facts)
        if key is not None and current is not None:
            content = csr.build(dns, key, ips=ips, common_name=named)
            return (await self._commit(facts, "key stored", key_secret=current.key_secret, csr=content)).issuance
        key = await self._services.new_key(KeyKind(spec.key_kind))
        content = csr.build(dns, key, ips=ips, common_name=named)
        return await secret_store.keep(
            keys.to_pem(key),
            certificate_key(facts.certificate.id),
            lambda tx, secret: writes.save(tx, facts, self._row, "key stored", key_secret=secret, csr=content),
        )

    async def _given_csr(self, facts: Facts, pem: str) -> bytes:
        """The CSR of the owner in DER; once more only if the key may be used again, and nobody else may have it."""
        request, current, content = csr.parse(pem.encode(), **ANY_KEY), facts.current, csr.to_der(pem.encode())
        if current is None or current.spki_sha256 != keys.spki_sha256(request.public_key).hex():
            return content
        if facts.certificate.wanted.reuse_key and not await self._db.read(lambda tx: versions.has_bad_key(tx, current)):
            return content
        why = "The key of its CSR is in use already, and its renewal needs a new key."
        raise Refused(why, reason=Reason.CSR_NEEDED)

    async def _reused_key(self, facts: Facts) -> PrivateKey | None:
        """The key in use, if it is wanted again; never one of another kind, nor one that others may have."""
        spec, current = facts.certificate.wanted, facts.current
        if not spec.reuse_key or current is None:
            return None
        if await self._db.read(lambda tx: versions.has_bad_key(tx, current)):
            return None
        owner = certificate_key(current.certificate)
        pem = await self._services.certificate_context.secret_store.reveal(current.key_secret, owner)
        if pem == NO_KEY:
            return None  # it was issued for a CSR
        key = keys.from_pem(pem)
        return key if keys.kind_of(key.public_key()) == KeyKind(spec.key_kind) else None

    # ── The order ──

    async def _find(self, facts: Facts) -> tuple[Facts, RemoteAnswer]:
        self._work.check()
        found = await heard("find", self._issuer.find_order(self._wish(facts)))
        match found:
            case None:
                return facts, CallDone("find")
            case Placed():
                with self._work.whole():
                    return await self._keep_ref(facts, found)
            case _:
                return facts, found

    async def _place(self, facts: Facts, step: PlaceOrder) -> tuple[Facts, RemoteAnswer]:
        """The reference is kept before anything else can fail; a stop must not lose the answer."""
        self._work.check()
        with self._work.whole():
            facts = await self._about_to_place(facts, step)
            while True:
                self._work.check()
                facts = changed(facts, used="an order")
                answer = await heard("place", self._issuer.place_order(self._wish(facts)))
                if isinstance(answer, Placed):
                    return await self._keep_ref(facts, answer)
                facts = changed(facts, used=issuance_decision.used_by_placing(answer))
                match issuance_decision.left_out(facts, answer):
                    case "replaces":
                        facts = await self._commit(facts, None, replaces=None)
                        await self._pay_in_full(facts)
                    case "lifetime":
                        facts = await self._any_lifetime(facts, answer.why)
                    case None:
                        if issuance_decision.takes_back(facts, answer):
                            facts = await self._commit(facts, None, asked_at=None)
                        return facts, answer

    async def _about_to_place(self, facts: Facts, step: PlaceOrder) -> Facts:
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
        """The CA rejects requested lifetimes: the order is placed without one, and an alert says so."""

        def write(tx: Tx) -> None:
            issuances.is_new_word(tx, self._row.name, _no_lifetimes(self._row))
            told = {"issuer": self._row.name, "why": Reason.LIFETIME_REJECTED.value, "error": why}
            writes.tell(tx, facts, "issuance.any_lifetime", **told)

        await self._db.write(write)
        return changed(facts, any_lifetime=True)

    async def _pay_in_full(self, facts: Facts) -> None:
        """Without a word of what it replaces an order is none that a CA exempts from its limits."""

        def write(tx: Tx) -> None:
            due = order_budgets.for_order(tx, facts.issuance, self._row, facts.certificate, facts.current)
            budgets.count(tx, {*due} - {*facts.claim.budgets})

        await self._db.write(write)

    async def _keep_ref(self, facts: Facts, placed: Placed) -> tuple[Facts, RemoteAnswer]:
        """Also while the store is away: then the settling of the job waits for it."""
        self._work.point("job.effect-done")
        then: IssuanceEvent | None = "proved" if placed.ready and not facts.binding else None
        kept = writes.placed(facts, placed.ref)
        try:
            facts = await self._commit(facts, writes.placed_by(facts), then=then, **kept)
        except Duplicate:  # the other one goes first
            shared = "The CA gave us the order of another certificate with the same names."
            return facts, RemoteUnavailable(at="place", reason=Reason.UNDER_WAY, why=shared, after=SHARED_FOR)
        except (*STORE_AWAY, Overtaken):
            return facts, OrderNotKept(placed.ref)
        return changed(facts, proved=then is not None), CallDone("place")

    def _wish(self, facts: Facts) -> OrderRequest:
        issuance, spec = facts.issuance, facts.certificate.wanted
        # A life begins with the order: who waited for a turn or a word loses nothing.
        begins = issuance.asked_at or facts.now
        not_after = None if spec.lifetime is None or facts.any_lifetime else begins + spec.lifetime

        async def sign(content: bytes) -> bytes:
            """By the key that the certificate is for."""
            store, owner = self._services.certificate_context.secret_store, certificate_key(issuance.certificate)
            pem = await store.reveal(issuance.key_secret or "", owner)
            if pem == NO_KEY:
                why = "This CA wants proof of the key, and the key of a given CSR is not here."
                raise Refused(why, reason=Reason.CA_REFUSED)
            return await aside(signing.proof_of, keys.from_pem(pem), content)

        return OrderRequest(
            issuance=issuance.id,
            identifiers=issuance.identifiers,
            csr=issuance.csr or b"",
            profile=spec.profile,
            not_after=not_after,
            replaces=issuance.replaces,
            preferred_chain=spec.preferred_chain,
            asked_at=issuance.asked_at,
            previous=facts.previous.ref,
            same_names=facts.previous.same_names,
            sign=sign,
        )

    # ── What all of them need ──

    async def _commit(
        self, facts: Facts, event: IssuanceEvent | None, told: dict[str, Any] | None = None, **changes: Any
    ) -> Facts:
        """A step within the claim; the facts after it."""
        after = await self._db.write(lambda tx: writes.save(tx, facts, self._row, event, told, **changes))
        return changed(facts, issuance=after)

    async def _clean(self, facts: Facts) -> KeptResponses:
        """Removes responses quickly before the issuance ends; returns the rest, which a job removes."""
        kept = tuple(facts.issuance.proofs)
        chosen, _ = challenges.solvers_of(kept, self._services.solver_for)
        for page in challenges.pages([each for each in chosen if each.solver.side_by_side]):
            if not self._room.take():
                break
            called = await challenges.call(page, challenges.clean)
            kept = challenges.without((each.response for each in called.well), kept)
        return kept

    @property
    def _row(self) -> IssuerRow:
        if self._known_row is None:
            raise IllegalMove("the issuer of this issuance was removed")
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
