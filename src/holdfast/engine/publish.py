"""How an attempt proves its names: publish, look, tell the CA; what one claim cannot do, the next one goes on with.

What was done is marked in the store, so that a claim that resumes it does the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from holdfast.core.attempt_facts import Answer, Facts, NotVisible, OurFault, Told, Unfinished
from holdfast.core.issuance import Event
from holdfast.core.reasons import Reason
from holdfast.engine import proving
from holdfast.engine.issue_answers import heard, trouble
from holdfast.engine.issue_writes import Overtaken
from holdfast.engine.kind import Work
from holdfast.engine.proving import ROOM, Chosen, Kept
from holdfast.engine.tools import Tools
from holdfast.issuers.base import Issuer, NeedsProof, Proof
from holdfast.store import issuances


class Commit(Protocol):
    """Writes a step of the issuance; the facts after it. Overtaken if the issuance was changed meanwhile."""

    async def __call__(
        self, facts: Facts, event: Event | None, told: dict[str, Any] | None = None, **changes: Any
    ) -> Facts: ...


@dataclass(slots=True)
class Room:
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

    tools: Tools
    work: Work
    room: Room
    issuer: Issuer
    commit: Commit

    async def prove(self, facts: Facts, needs: NeedsProof) -> tuple[Facts, Answer]:
        chosen = proving.choose(needs.choices, self.tools.solver_for)
        if isinstance(chosen, str):
            why = f"None of the proofs that the CA accepts for {chosen} can be published here."
            return facts, OurFault(reason=Reason.NO_SOLVER, why=why)
        known = facts.issuance.proofs
        todo = [each for each in chosen if not proving.has("answered", each.proof, known)]
        if not todo:  # telling the CA again would be no news
            return facts, Told(tuple(known))
        new = [proving.to_json(each.proof) for each in todo if not proving.is_known(each.proof, known)]
        if new:  # beside those that were told before: all of them are to be taken away again
            told = {"proofs": [f"{each.proof.type} for {each.proof.identifier.value}" for each in todo]}
            begun: dict[str, Any] = {"proofs": (*known, *new), "polls": 0, "polled_since": facts.now}
            facts = await self.commit(facts, "proofs asked", told, **begun)
        else:
            await self._look_if_wanted(facts)
        return await self._publish(facts, todo)

    async def _look_if_wanted(self, facts: Facts) -> None:
        """Nothing is published for an attempt that a person stopped; every commit of a step looks as well."""
        found = await self.tools.keeper.db.read(lambda tx: issuances.get(tx, facts.issuance.id))
        if found is None or found.state.over:
            raise Overtaken(facts)

    async def _publish(self, facts: Facts, todo: Sequence[Chosen]) -> tuple[Facts, Answer]:
        """Each batch is marked before the next is begun: a name that took a minute is not published twice."""
        kept = tuple(facts.issuance.proofs)
        waiting = proving.batches(each for each in todo if not proving.has("published", each.proof, kept))
        for number, batch in enumerate(waiting, start=1):
            if not self.room.take():
                return facts, Unfinished(kept)
            self.work.check()
            called = await proving.call(batch, proving.publish)
            kept = proving.marked("published", (each.proof for each in called.well), kept)
            if len(waiting) > 1:  # a single one is marked with what comes next
                healed: dict[str, Any] = {"failures": 0} if called.well else {}
                facts = await self.commit(facts, None, proofs=kept, **healed)
            if called.trouble:
                return facts, trouble("prove", called.trouble[0])
            if number < len(waiting):
                self.work.point("job.effect-done")
        self.work.point("job.effect-done")
        return facts, await self._show(facts, todo, kept)

    async def _show(self, facts: Facts, todo: Sequence[Chosen], kept: Kept) -> Answer:
        """The CA is told once all are to be seen: one that looks too early counts a failure."""
        missing: list[Chosen] = []
        for page in proving.pages([each for each in todo if not proving.has("seen", each.proof, kept)]):
            if not self.room.take():
                return Unfinished(kept)
            called = await proving.call(page, proving.visible)
            if called.trouble:
                return trouble("prove", called.trouble[0])
            kept = proving.marked("seen", (each.proof for each in called.well), kept)
            missing += [each for each in page if each not in called.well]
        return _not_visible(missing, kept) if missing else await self._tell(facts, todo, kept)

    async def _tell(self, facts: Facts, todo: Sequence[Chosen], kept: Kept) -> Answer:
        """As many as this CA may be told of in one go; the next claim waits until its requests are paid for."""
        at_once = facts.issuer.limits.answers or len(facts.issuance.identifiers)
        told: list[Proof] = []
        for each in todo:
            if told and (self.work.left() < ROOM or len(told) == at_once):
                return Unfinished(proving.marked("answered", told, kept))
            self.work.check()
            answer = await heard("prove", self.issuer.answer(facts.issuance.ref or {}, each.proof))
            if answer is not None:
                return answer
            told.append(each.proof)
        return Told(proving.marked("answered", told, kept))


def _not_visible(missing: Sequence[Chosen], kept: Kept) -> NotVisible:
    return NotVisible(
        names=tuple(each.proof.identifier.value for each in missing),
        by_dns=missing[0].proof.type.startswith("dns-"),
        responses=kept,
        to_publish_again=proving.marked("published", (each.proof for each in missing), kept, value=False),
    )
