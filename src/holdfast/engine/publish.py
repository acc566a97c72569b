"""How an attempt proves its names: publish, look, tell the CA; what one claim cannot do, the next one goes on with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from holdfast.core.backoff import FailureClass
from holdfast.core.job import Again, Outcome
from holdfast.core.reasons import Reason
from holdfast.engine import proving
from holdfast.engine.attempt import SOONEST, Attempt, Overtaken
from holdfast.engine.proving import ROOM, Chosen, Kept
from holdfast.issuers.base import Issuer, NeedsProof, Proof
from holdfast.store import issuances

VISIBLE_WITHIN: Final = timedelta(minutes=30)  # a proof that is not to be seen by then will not be
PUBLISHED_AGAIN: Final = 4  # looks after which one that is not to be seen is published once more: somebody removed it?


@dataclass(slots=True, kw_only=True)
class Proving(Attempt):
    """What was done is marked in the store: whoever resumes it does the rest."""

    async def _prove(self, issuer: Issuer, needs: NeedsProof) -> Outcome | None:
        chosen = proving.choose(needs.choices, self.tools.solver_for)
        if isinstance(chosen, str):
            why = f"None of the proofs that the CA accepts for {chosen} can be published here."
            return await self.failed(FailureClass.LOCAL, Reason.NO_SOLVER, why)
        known = self.issuance.proofs
        todo = [each for each in chosen if not proving.has("answered", each.proof, known)]
        if not todo:  # the CA was told, and has not looked yet: telling it again would be no news
            return self._poll(None, Reason.UNDER_WAY)
        new = [proving.to_json(each.proof) for each in todo if not proving.is_known(each.proof, known)]
        if new:  # beside those that were told before: all of them are to be taken away again
            told = {"proofs": [f"{each.proof.type} for {each.proof.identifier.value}" for each in todo]}
            await self._commit("proofs asked", told, proofs=(*known, *new), polls=0, polled_since=self.facts.now)
        else:
            await self._look_if_wanted()
        kept = await self._published(todo)
        if isinstance(kept, Again):
            return kept
        self.work.point("job.effect-done")
        return await self._shown(issuer, todo, kept)

    async def _look_if_wanted(self) -> None:
        """Nothing is published for an attempt that somebody stopped; every commit of a step looks as well."""
        found = await self.tools.keeper.db.read(lambda tx: issuances.get(tx, self.issuance.id))
        if found is None or found.state.over:
            raise Overtaken(self.issuance.id)

    # ── Publishing ──

    async def _published(self, todo: Sequence[Chosen]) -> Kept | Again:
        """Each batch is marked before the next is begun: a name that took a minute is not published twice."""
        kept = tuple(self.issuance.proofs)
        waiting = proving.batches(each for each in todo if not proving.has("published", each.proof, kept))
        for number, batch in enumerate(waiting, start=1):
            if not self._has_room():
                return self._goes_on(kept)
            self.work.check()
            called = await proving.call(batch, proving.publish)
            kept = proving.marked("published", (each.proof for each in called.well), kept)
            if len(waiting) > 1:  # a single one is marked with what comes next
                healed: dict[str, Any] = {"failures": 0} if called.well else {}
                await self._commit(None, proofs=kept, **healed)
            if called.trouble:
                raise called.trouble[0]
            if number < len(waiting):
                self.work.point("job.effect-done")
        return kept

    def _goes_on(self, kept: Kept) -> Again:
        """At once, in a claim with time of its own. How long proofs may take to be seen counts from the last one."""
        well: dict[str, Any] = {"failures": 0, "reason": None, "error": None}
        now = self.facts.now
        return self._again(SOONEST, Reason.UNDER_WAY.value, proofs=kept, polls=0, polled_since=now, **well)

    # ── Looking, and telling the CA ──

    async def _shown(self, issuer: Issuer, todo: Sequence[Chosen], kept: Kept) -> Outcome:
        """The CA is told once all are to be seen: one that looks too early counts a failure."""
        missing: list[Chosen] = []
        for page in proving.pages([each for each in todo if not proving.has("seen", each.proof, kept)]):
            if not self._has_room():
                return self._goes_on(kept)
            called = await proving.call(page, proving.visible)
            if called.trouble:
                raise called.trouble[0]
            kept = proving.marked("seen", (each.proof for each in called.well), kept)
            missing += [each for each in page if each not in called.well]
        if missing:
            return await self._not_visible(missing, kept)
        told: list[Proof] = []
        for each in todo:
            if told and (self.work.left() < ROOM or len(told) == self._answers_in_one_go()):
                return self._goes_on(proving.marked("answered", told, kept))
            self.work.check()
            await issuer.answer(self.issuance.ref or {}, each.proof)
            told.append(each.proof)
        return self._poll(None, Reason.UNDER_WAY, proofs=proving.marked("answered", told, kept))

    async def _not_visible(self, missing: Sequence[Chosen], kept: Kept) -> Outcome:
        by_dns = missing[0].proof.type.startswith("dns-")
        reason = Reason.DNS_TXT_NOT_VISIBLE if by_dns else Reason.PROOF_NOT_VISIBLE
        why = f"Not yet to be seen for {', '.join(each.proof.identifier.value for each in missing[:3])}."
        if self._waited() > VISIBLE_WITHIN:
            return await self.failed(FailureClass.VALIDATION, reason, why)
        if (self.issuance.polls + 1) % PUBLISHED_AGAIN == 0:
            kept = proving.marked("published", (each.proof for each in missing), kept, value=False)
        return self._poll(None, reason, why, proofs=kept)
