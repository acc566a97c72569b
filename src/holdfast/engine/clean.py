"""Takes away the proofs of attempts that are over, until they are gone: from DNS, from webroots, from wherever."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from holdfast.core.issuance import Issuance
from holdfast.core.job import Again, Done, Failed, Outcome
from holdfast.core.reasons import Reason
from holdfast.engine import proving
from holdfast.engine.kind import Kind, Work
from holdfast.engine.proving import ROOM, Chosen
from holdfast.engine.tools import Tools
from holdfast.errors import Refused, TryLater
from holdfast.issuers.base import Proof
from holdfast.operations.issuing import CLEAN, ISSUE
from holdfast.store import issuances, jobs, journal
from holdfast.store.tx import Tx

PUBLISHING_FOR: Final = timedelta(seconds=5)  # until the next look whether the worker of a stopped attempt has noticed


@dataclass(frozen=True, slots=True)
class _Facts:
    issuance: Issuance
    published: bool  # a worker may be publishing for it right now
    elsewhere: Sequence[Proof]  # what another attempt shows as well: the CA gave the same challenge to both


def kind(tools: Tools) -> Kind:
    """Jobs of this kind have an issuance that is over as subject."""

    async def handler(work: Work) -> Outcome:
        facts = await tools.keeper.db.read(lambda tx: _facts(tx, work.claim.subject))
        if facts is None:
            return Done()
        if facts.published:
            return Again(after=PUBLISHING_FOR, reason=Reason.UNDER_WAY.value)
        return await _Cleaning(tools, work, facts).go()

    return Kind(name=CLEAN, handler=handler, slots=4, timeout=timedelta(minutes=5), interruptible=True)


def _facts(tx: Tx, subject: str) -> _Facts | None:
    found = issuances.get(tx, subject)
    if found is None or not found.state.over or not found.proofs:
        return None
    shared = [each for each in map(proving.from_json, found.proofs) if issuances.shows(tx, each.token, but=subject)]
    return _Facts(found, jobs.live(tx, ISSUE, subject) is not None, shared)


@dataclass(frozen=True, slots=True)
class _Cleaning:
    tools: Tools
    work: Work
    facts: _Facts

    async def go(self) -> Outcome:
        await self._gone(self.facts.elsewhere)  # the other attempt takes it away
        proofs = proving.without(self.facts.elsewhere, self.facts.issuance.proofs)
        chosen, nobodys = proving.solvers_of(proofs, self.tools.solver_for)
        trouble: list[TryLater | Refused] = [_nobody_does(each) for each in nobodys]
        for number, batch in enumerate(proving.batches(self._turned(chosen))):
            if number and self.work.left() < ROOM:
                return self._left(trouble) if trouble else Again(reason=Reason.UNDER_WAY.value)
            self.work.check()
            called = await proving.call(batch, proving.clean)
            trouble += called.trouble
            await self._gone([each.proof for each in called.well])
            self.work.point("job.effect-done")
        return self._left(trouble) if trouble else Done()

    def _turned(self, chosen: Sequence[Chosen]) -> Sequence[Chosen]:
        """Each try begins with another one: those that hang must not hide those that do not."""
        at = (self.work.claim.attempt - 1) % (len(chosen) or 1)
        return [*chosen[at:], *chosen[:at]]

    async def _gone(self, proofs: Sequence[Proof]) -> None:
        """Committed at once: what is gone is not asked for again."""

        def write(tx: Tx) -> None:
            found = issuances.get(tx, self.facts.issuance.id, lock=True)
            if found is not None:
                issuances.save(tx, found, proofs=proving.without(proofs, found.proofs))

        if proofs:
            await self.tools.keeper.db.write(write)

    def _left(self, trouble: Sequence[TryLater | Refused]) -> Failed:
        """Tried again while that may help; then a person sees the job, and what it could not do."""
        final = all(isinstance(each, Refused) for each in trouble)
        last = final or self.work.claim.attempt >= self.work.claim.max_attempts
        error = "; ".join(dict.fromkeys(str(each) for each in trouble[:3]))
        issuance = self.facts.issuance

        def write(tx: Tx) -> None:
            found = issuances.get(tx, issuance.id)
            left = [] if found is None else [_words(proving.from_json(each)) for each in found.proofs]
            told = {"issuance": issuance.id, "proofs": left, "error": error}
            journal.event(tx, "issuance.proofs_left", issuance.certificate, job=self.work.claim.id, **told)

        return Failed(error=error, reason=Reason.SOLVER_FAILED.value, final=final, write=write if last else None)


def _nobody_does(proof: Proof) -> Refused:
    why = f"No [[solver]] fits {_words(proof)} any more: take it away by hand, or add one and requeue this job."
    return Refused(why, reason=Reason.NO_SOLVER)


def _words(proof: Proof) -> str:
    return f"{proof.type} for {proof.identifier.value}"
