"""Publishing what a CA wants to see: which kind of proof, by which solver, and taking it away again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Literal, Protocol

from holdfast.core.certificate import ANY_CHALLENGE, CertificateSpec
from holdfast.core.issuance import Issuance, IssuanceEvent
from holdfast.core.issuance_steps import Facts, NotVisible, OurFault, RemoteAnswer, ResponsesReported, Unfinished
from holdfast.core.own_ca.acme import Identifier, permits
from holdfast.core.reasons import Reason
from holdfast.core.work.job import Again, Done, JobFailed, Outcome
from holdfast.engine.issuance.answers import heard, trouble
from holdfast.engine.issuance.claim import ChosenResponse, IssuanceServices, SolverFor
from holdfast.engine.issuance.writes import Overtaken
from holdfast.engine.kind import JobKind, Work
from holdfast.errors import Refused, TryLater
from holdfast.issuers.base import ChallengeResponse, Issuer, NeedsProof, ProvesNames
from holdfast.operations.issuance.attempts import CLEAN, ISSUE, CertificateContext
from holdfast.solvers.base import Delete, Put, Solver
from holdfast.store import issuances, journal
from holdfast.store.tx import Tx
from holdfast.store.work import jobs

AT_ONCE: Final = 8  # proofs that are published, looked for or taken away at the same time
# Seconds of a claim without which no solver is called any more: the longest that one may take, and a little.
ROOM: Final = 150.0
_NOT_SEEN: Final = frozenset({Reason.DNS_TXT_NOT_VISIBLE, Reason.PROOF_NOT_VISIBLE})

KeptResponses = tuple[Mapping[str, Any], ...]  # proofs as the store has them, with their marks
Mark = Literal["published", "seen", "answered"]  # answered: the CA confirmed that it was told


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverRule:
    """Names, as patterns ("*.example.com", "*"), whose proofs of the solver's type it publishes."""

    names: tuple[str, ...]
    solver: Solver
    name: str = ""  # of one in the store; certificates may ask for it

    def fits(self, response: ChallengeResponse, only: str | None) -> bool:
        chosen = only in (None, self.name)
        return chosen and self.solver.type == response.type and permits(self.names, response.identifier)


def by_rules(rules: Sequence[SolverRule]) -> SolverFor:
    """The first rule that fits one of the offers decides: the order is the operator's, and not the CA's."""

    def solver_for(offers: Sequence[ChallengeResponse], only: str | None = None) -> ChosenResponse | None:
        fitting = ((rule, each) for rule in rules for each in offers if rule.fits(each, only))
        return next((ChosenResponse(response, rule.solver) for rule, response in fitting), None)

    return solver_for


async def solver_for_now(services: IssuanceServices) -> SolverFor:
    """The solvers of the store first, then those of the settings."""
    if services.kept_solvers is None:
        return services.solver_for
    kept, settings = await services.kept_solvers(), services.solver_for
    return lambda offers, only=None: kept(offers, only) or settings(offers, only)


def in_store(context: CertificateContext) -> tuple[Put, Delete]:
    """How proofs that we serve ourselves (http-01, tls-alpn-01) get into the store, and out of it."""

    async def put(response: ChallengeResponse) -> None:
        name, answer = response.identifier.base, response.key_authorization
        await context.db.write(
            lambda tx: issuances.put_response(
                tx, type=response.type, token=response.token, identifier=name, key_authorization=answer
            )
        )

    async def delete(response: ChallengeResponse) -> None:
        await context.db.write(lambda tx: issuances.delete_response(tx, response.type, response.token))

    return put, delete


def choose(
    choices: Sequence[Sequence[ChallengeResponse]],
    solver_for: SolverFor,
    challenge: str = ANY_CHALLENGE,
    only: str | None = None,
) -> list[ChosenResponse] | str:
    """For each name the one of the CA's offers that is published here; or the name that has none."""
    chosen = []
    for offers in choices:
        found = solver_for([each for each in offers if challenge in (ANY_CHALLENGE, each.type)], only)
        if found is None:
            return offers[0].identifier.value if offers else "a name"
        chosen.append(found)
    return chosen


# ── Many names ──

SolverCall = Callable[[ChosenResponse], Awaitable[bool | None]]  # of a solver


@dataclass(frozen=True, slots=True)
class SolverCalled:
    """How calls of solvers ended."""

    well: Sequence[ChosenResponse]  # those that did not say no
    trouble: Sequence[TryLater | Refused] = ()


async def publish(each: ChosenResponse) -> None:
    await each.solver.publish(each.response)


async def visible(each: ChosenResponse) -> bool:
    return await each.solver.visible(each.response)


async def clean(each: ChosenResponse) -> None:
    await each.solver.clean(each.response)


def batches(chosen: Iterable[ChosenResponse]) -> list[Sequence[ChosenResponse]]:
    """Some side by side, where their solvers allow it; the others one after the other."""
    chosen = [*chosen]
    together = [each for each in chosen if each.solver.side_by_side]
    return [*pages(together), *([each] for each in chosen if not each.solver.side_by_side)]


def pages(chosen: Sequence[ChosenResponse]) -> list[Sequence[ChosenResponse]]:
    return [chosen[at : at + AT_ONCE] for at in range(0, len(chosen), AT_ONCE)]


async def call(batch: Sequence[ChosenResponse], what: SolverCall) -> SolverCalled:
    """Call the solvers of a batch and wait for all of them: what one could do counts, whatever befell another."""
    answers = await asyncio.gather(*(what(each) for each in batch), return_exceptions=True)
    trouble = []
    for answer in answers:
        if isinstance(answer, TryLater | Refused):
            trouble.append(_solvers_own(answer))
        elif isinstance(answer, BaseException):
            raise answer
    well = [each for each, answer in zip(batch, answers, strict=True) if answer is None or answer is True]
    return SolverCalled(well, trouble)


def _solvers_own(why: TryLater | Refused) -> TryLater | Refused:
    """However a solver calls its trouble, it is not the CA's: that one was not asked."""
    if isinstance(why, Refused):
        return why if why.reason in set(Reason) else Refused(str(why), reason=Reason.SOLVER_FAILED)
    reason = why.reason if why.reason in _NOT_SEEN else Reason.SOLVER_FAILED
    return TryLater(str(why), after=why.after, reason=reason)


def solvers_of(
    proofs: Iterable[Mapping[str, Any]], solver_for: SolverFor
) -> tuple[list[ChosenResponse], list[ChallengeResponse]]:
    """The solvers that remove these responses; and responses without one, since the operator's rules changed."""
    known = [(response := from_json(each), solver_for([response], each.get("solver"))) for each in proofs]
    return [found for _, found in known if found is not None], [response for response, found in known if found is None]


# ── What is kept of proofs ──


def to_json(response: ChallengeResponse) -> dict[str, object]:
    return {
        "type": response.type,
        "identifier": [response.identifier.type, response.identifier.value],
        "token": response.token,
        "key_authorization": response.key_authorization,
        "ref": dict(response.ref),
    }


def is_known(response: ChallengeResponse, kept: Sequence[Mapping[str, object]]) -> bool:
    return any(_same(response, each) for each in kept)


def has(mark: Mark, response: ChallengeResponse, kept: Sequence[Mapping[str, object]]) -> bool:
    """Without a mark it may have been done all the same: then it is done again."""
    return any(_same(response, each) and each.get(mark) for each in kept)


def marked(
    mark: Mark, proofs: Iterable[ChallengeResponse], kept: Sequence[Mapping[str, Any]], *, value: bool = True
) -> KeptResponses:
    """The same, with these marked; or without that mark."""
    proofs = [*proofs]
    return tuple({**each, mark: value} if any(_same(response, each) for response in proofs) else each for each in kept)


def without(proofs: Iterable[ChallengeResponse], kept: Sequence[Mapping[str, object]]) -> KeptResponses:
    """Those that are left when these are gone."""
    proofs = [*proofs]
    return tuple(each for each in kept if not any(_same(response, each) for response in proofs))


def _same(response: ChallengeResponse, kept: Mapping[str, object]) -> bool:
    return all(kept.get(name) == value for name, value in to_json(response).items())


def from_json(raw: Mapping[str, Any]) -> ChallengeResponse:
    return ChallengeResponse(
        type=raw["type"],
        identifier=Identifier(*raw["identifier"]),
        token=raw["token"],
        key_authorization=raw["key_authorization"],
        ref=raw["ref"],
    )


class Commit(Protocol):
    """Writes a step of the issuance; the facts after it. Overtaken if the issuance was changed meanwhile."""

    async def __call__(
        self, facts: Facts, event: IssuanceEvent | None, told: dict[str, Any] | None = None, **changes: Any
    ) -> Facts: ...


@dataclass(slots=True)
class ClaimRoom:
    """The time that a claim has for solvers."""

    work: Work
    _called: bool = field(default=False, init=False)

    def take(self) -> bool:
        """Whether this claim can see another call of a solver end. Its first call is always made."""
        if self._called and self.work.left() < ROOM:
            return False
        self._called = True
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Prover:
    """One claim, at one issuer."""

    services: IssuanceServices
    work: Work
    room: ClaimRoom
    issuer: Issuer
    commit: Commit

    async def prove(self, facts: Facts, needs: NeedsProof) -> tuple[Facts, RemoteAnswer]:
        spec = facts.certificate.wanted
        chosen = choose(needs.choices, await solver_for_now(self.services), spec.challenge, spec.solver)
        if isinstance(chosen, str):
            return facts, OurFault(reason=Reason.NO_SOLVER, why=_none_fits(chosen, spec))
        known = facts.issuance.proofs
        todo = [each for each in chosen if not has("answered", each.response, known)]
        if not todo:  # telling the CA again would be no news
            return facts, ResponsesReported(tuple(known))
        by = {"solver": spec.solver} if spec.solver else {}
        new = [to_json(each.response) | by for each in todo if not is_known(each.response, known)]
        if new:  # beside those that were told before: all of them are to be taken away again
            told = {"proofs": [f"{each.response.type} for {each.response.identifier.value}" for each in todo]}
            begun: dict[str, Any] = {"proofs": (*known, *new), "polls": 0, "polled_since": facts.now}
            facts = await self.commit(facts, "proofs asked", told, **begun)
        else:
            await self._look_if_wanted(facts)
        return await self._publish(facts, todo)

    async def _look_if_wanted(self, facts: Facts) -> None:
        """Nothing is published for an attempt that a person stopped; every commit of a step looks as well."""
        found = await self.services.certificate_context.db.read(lambda tx: issuances.get(tx, facts.issuance.id))
        if found is None or found.state.over:
            raise Overtaken(facts)

    async def _publish(self, facts: Facts, todo: Sequence[ChosenResponse]) -> tuple[Facts, RemoteAnswer]:
        """Each batch is marked before the next is begun: a name that took a minute is not published twice."""
        kept = tuple(facts.issuance.proofs)
        waiting = batches(each for each in todo if not has("published", each.response, kept))
        for number, batch in enumerate(waiting, start=1):
            if not self.room.take():
                return facts, Unfinished(kept)
            self.work.check()
            called = await call(batch, publish)
            kept = marked("published", (each.response for each in called.well), kept)
            if len(waiting) > 1:  # a single one is marked with what comes next
                healed: dict[str, Any] = {"failures": 0} if called.well else {}
                facts = await self.commit(facts, None, proofs=kept, **healed)
            if called.trouble:
                return facts, trouble("prove", called.trouble[0])
            if number < len(waiting):
                self.work.point("job.effect-done")
        self.work.point("job.effect-done")
        return facts, await self._show(facts, todo, kept)

    async def _show(self, facts: Facts, todo: Sequence[ChosenResponse], kept: KeptResponses) -> RemoteAnswer:
        """The CA is told once all are to be seen: one that looks too early counts a failure."""
        missing: list[ChosenResponse] = []
        for page in pages([each for each in todo if not has("seen", each.response, kept)]):
            if not self.room.take():
                return Unfinished(kept)
            called = await call(page, visible)
            if called.trouble:
                return trouble("prove", called.trouble[0])
            kept = marked("seen", (each.response for each in called.well), kept)
            missing += [each for each in page if each not in called.well]
        return _not_visible(missing, kept) if missing else await self._tell(facts, todo, kept)

    async def _tell(self, facts: Facts, todo: Sequence[ChosenResponse], kept: KeptResponses) -> RemoteAnswer:
        """As many as this CA may be told of in one go; the next claim waits until its requests are paid for."""
        at_once = facts.issuer.limits.answers or len(facts.issuance.identifiers)
        told: list[ChallengeResponse] = []
        for each in todo:
            if told and (self.work.left() < ROOM or len(told) == at_once):
                return Unfinished(marked("answered", told, kept))
            self.work.check()
            if not isinstance(self.issuer, ProvesNames):
                continue
            answer = await heard("prove", self.issuer.answer(facts.issuance.ref or {}, each.response))
            if answer is not None:
                return answer
            told.append(each.response)
        return ResponsesReported(marked("answered", told, kept))


def _none_fits(name: str, spec: CertificateSpec) -> str:
    """Why no challenge response was published, with what the certificate itself asks for."""
    if spec.solver is None and spec.challenge == ANY_CHALLENGE:
        return f"None of the proofs that the CA accepts for {name} can be published here."
    wanted = "" if spec.challenge == ANY_CHALLENGE else f" by {spec.challenge}"
    wanted += "" if spec.solver is None else f" with solver {spec.solver}"
    return f"{name} cannot be proved{wanted}, as the certificate asks: no solver fits, or the CA does not offer it."


def _not_visible(missing: Sequence[ChosenResponse], kept: KeptResponses) -> NotVisible:
    return NotVisible(
        names=tuple(each.response.identifier.value for each in missing),
        by_dns=missing[0].response.type.startswith("dns-"),
        responses=kept,
        to_publish_again=marked("published", (each.response for each in missing), kept, value=False),
    )


PUBLISHING_FOR: Final = timedelta(seconds=5)  # until the next look whether the worker of a stopped attempt has noticed


@dataclass(frozen=True, slots=True)
class _Facts:
    issuance: Issuance
    published: bool  # a worker may be publishing for it right now
    elsewhere: Sequence[ChallengeResponse]  # what another attempt shows as well: the CA gave the same challenge to both


def kind(services: IssuanceServices) -> JobKind:
    """Jobs of this kind have an issuance that is over as subject."""

    async def handler(work: Work) -> Outcome:
        facts = await services.certificate_context.db.read(lambda tx: _facts(tx, work.claim.subject))
        if facts is None:
            return Done()
        if facts.published:
            return Again(after=PUBLISHING_FOR, reason=Reason.UNDER_WAY.value)
        return await _Cleaning(services, work, facts).go()

    return JobKind(name=CLEAN, handler=handler, slots=4, timeout=timedelta(minutes=5), interruptible=True)


def _facts(tx: Tx, subject: str) -> _Facts | None:
    found = issuances.get(tx, subject)
    if found is None or not found.state.over or not found.proofs:
        return None
    shared = [each for each in map(from_json, found.proofs) if issuances.shows(tx, each.token, but=subject)]
    return _Facts(found, jobs.live(tx, ISSUE, subject) is not None, shared)


@dataclass(frozen=True, slots=True)
class _Cleaning:
    services: IssuanceServices
    work: Work
    facts: _Facts

    async def go(self) -> Outcome:
        await self._gone(self.facts.elsewhere)  # the other attempt takes it away
        proofs = without(self.facts.elsewhere, self.facts.issuance.proofs)
        chosen, unsolved = solvers_of(proofs, await solver_for_now(self.services))
        trouble: list[TryLater | Refused] = [_no_solver(each) for each in unsolved]
        for number, batch in enumerate(batches(self._turned(chosen))):
            if number and self.work.left() < ROOM:
                return self._left(trouble) if trouble else Again(reason=Reason.UNDER_WAY.value)
            self.work.check()
            called = await call(batch, clean)
            trouble += called.trouble
            await self._gone([each.response for each in called.well])
            self.work.point("job.effect-done")
        return self._left(trouble) if trouble else Done()

    def _turned(self, chosen: Sequence[ChosenResponse]) -> Sequence[ChosenResponse]:
        """Each try begins with another one: those that hang must not hide those that do not."""
        at = (self.work.claim.attempt - 1) % (len(chosen) or 1)
        return [*chosen[at:], *chosen[:at]]

    async def _gone(self, proofs: Sequence[ChallengeResponse]) -> None:
        """Committed at once: a removed response is not removed again."""

        def write(tx: Tx) -> None:
            found = issuances.get(tx, self.facts.issuance.id, lock=True)
            if found is not None:
                issuances.save(tx, found, proofs=without(proofs, found.proofs))

        if proofs:
            await self.services.certificate_context.db.write(write)

    def _left(self, trouble: Sequence[TryLater | Refused]) -> JobFailed:
        """Tried again while that may help; then a person sees the job, and what it could not do."""
        final = all(isinstance(each, Refused) for each in trouble)
        last = final or self.work.claim.attempt >= self.work.claim.max_attempts
        error = "; ".join(dict.fromkeys(str(each) for each in trouble[:3]))
        issuance = self.facts.issuance

        def write(tx: Tx) -> None:
            found = issuances.get(tx, issuance.id)
            left = [] if found is None else [_words(from_json(each)) for each in found.proofs]
            told = {"issuance": issuance.id, "proofs": left, "error": error}
            journal.event(tx, "issuance.proofs_left", issuance.certificate, job=self.work.claim.id, **told)

        return JobFailed(error=error, reason=Reason.SOLVER_FAILED.value, final=final, write=write if last else None)


def _no_solver(response: ChallengeResponse) -> Refused:
    why = f"No [[solver]] fits {_words(response)} any more: take it away by hand, or add one and requeue this job."
    return Refused(why, reason=Reason.NO_SOLVER)


def _words(response: ChallengeResponse) -> str:
    return f"{response.type} for {response.identifier.value}"
