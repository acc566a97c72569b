"""Tests a challenge that a client has answered; what may pass is tried again, and every try is on record."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

from holdfast.core.own_ca import acme
from holdfast.core.own_ca.acme import ChallengeState, Disproved, Proved, TryAgain
from holdfast.core.own_ca.fairness import may_begin
from holdfast.core.own_ca.problem import AcmeError
from holdfast.core.work.job import Again, Claim, Done, Outcome, Spec
from holdfast.engine.kind import JobKind, Work
from holdfast.operations.acme import authorizations as verbs
from holdfast.operations.acme.authorizations import VALIDATE, Answered
from holdfast.operations.acme.context import AcmeContext
from holdfast.ports import Random
from holdfast.store.acme import accounts, authorizations
from holdfast.store.marks import inline
from holdfast.store.tx import Tx
from holdfast.validators import check, verdict

SLOTS: Final = 128
PATIENCE: Final = 0.25  # seconds that a validation waits in its slot for its account's turn, before it gives it back
SOON: Final = timedelta(seconds=1)
LATE: Final = timedelta(seconds=30)


class _Turns:
    """The validations of this process, by account: servers that answer slowly hold up nobody but whose they are."""

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()
        self._sent_back: Counter[str] = Counter()  # for want of a turn, and not begun since
        self._freed = asyncio.Condition()

    @asynccontextmanager
    async def of(self, account: str) -> AsyncIterator[timedelta | None]:
        """Wait a moment for a turn; gives None when it has come, or else how long to stay away."""
        try:
            async with asyncio.timeout(PATIENCE), self._freed:
                await self._freed.wait_for(lambda: may_begin(self._held, account, SLOTS))
                self._held[account] += 1
        except TimeoutError:
            yield self.later(account)
            return
        self._sent_back[account] = max(self._sent_back[account] - 1, 0)
        try:
            yield None
        finally:
            await self._free(account)

    def later(self, account: str) -> timedelta:
        """The more an account has waiting, the later they come back: asking for a turn costs the store a write."""
        self._sent_back[account] += 1
        return min(SOON + SOON * (self._sent_back[account] / 16), LATE)

    async def _free(self, account: str) -> None:
        self._held[account] -= 1
        if not self._held[account]:
            del self._held[account]
            self._sent_back.pop(account, None)
        async with self._freed:
            self._freed.notify_all()


def kind(acme_context: AcmeContext, validator: check.Validator) -> JobKind:
    """Jobs of this kind have a challenge as subject."""
    turns = _Turns()

    async def handler(work: Work) -> Outcome:
        facts = work.claim.known or await acme_context.db.read(inline(lambda tx: _facts(tx, work.claim.subject)))
        if facts is None:
            return Done()  # it was decided before, and we did not hear of it
        async with turns.of(facts.authz.account) as wait:
            answer = None if wait else await validator.check(_asked(acme_context, facts))
        if answer is None or isinstance(answer, verdict.Crowded):
            return Again(after=wait or turns.later(facts.authz.account), reason="VALIDATION_TURN")
        work.point("job.effect-done")
        return _outcome(acme_context, facts, _decided(facts, answer, most=acme_context.policy.tries))

    def settled(claim: Claim) -> None:
        acme_context.changes.fire(claim.subject)
        acme_context.changes.fire(str(claim.payload.get("authz", "")))

    return JobKind(name=VALIDATE, handler=handler, slots=SLOTS, timeout=timedelta(minutes=1), settled=settled)


def _facts(tx: Tx, challenge_id: str) -> Answered | None:
    found = authorizations.with_challenge(tx, challenge_id)
    if found is None or found[0].state is not ChallengeState.PROCESSING:
        return None
    account = accounts.get(tx, found[1].account)
    return Answered(*found, "" if account is None else account.ca, tuple(authorizations.tries(tx, challenge_id)))


def _asked(acme_context: AcmeContext, facts: Answered) -> verdict.ChallengeToCheck:
    challenge, authz = facts.challenge, facts.authz
    return verdict.ChallengeToCheck(
        type=challenge.type,
        identifier_type=authz.identifier.type,
        identifier=f"*.{authz.identifier.value}" if authz.wildcard else authz.identifier.value,
        token=challenge.token,
        thumbprint=challenge.thumbprint or "",
        account_url=acme_context.policy.acme_url(facts.ca, "account", authz.account),
    )


def _decided(facts: Answered, answer: verdict.Valid | verdict.Invalid, *, most: int) -> acme.ValidationStep:
    if isinstance(answer, verdict.Valid):
        return acme.decide_validation(facts.seen, answer.evidence, None, retryable=False, most=most)
    return acme.decide_validation(facts.seen, answer.evidence, answer.problem, retryable=answer.retryable, most=most)


def _outcome(acme_context: AcmeContext, facts: Answered, step: acme.ValidationStep) -> Outcome:
    challenge, authz = facts.challenge, facts.authz
    match step:
        case Proved():
            return Done(write=lambda tx: verbs.proved(tx, acme_context, challenge, authz, step.tries))
        case TryAgain():
            wait = step.after
            return Again(
                after=wait,
                reason="VALIDATION_RETRY",
                write=lambda tx: verbs.tried(tx, challenge, step.tries, tx.now() + wait),
            )
        case Disproved():
            return Done(write=lambda tx: verbs.disproved(tx, acme_context, challenge, authz, step.problem, step.tries))


def owed(acme_context: AcmeContext, random: Random) -> Callable[[Tx], Sequence[Spec]]:
    """Challenges under way without a job get one; one whose job died is over, and says so."""

    def specs(tx: Tx) -> Sequence[Spec]:
        found = authorizations.processing_without_job(tx, VALIDATE)
        for challenge_id, dead in found:
            facts = _facts(tx, challenge_id) if dead else None
            if facts is not None:
                problem = AcmeError.server_internal("The challenge could not be tested; place a new order.").problem
                verbs.disproved(tx, acme_context, facts.challenge, facts.authz, problem, facts.seen)
        alive = [authorizations.with_challenge(tx, challenge_id) for challenge_id, dead in found if not dead]
        return [verbs.validation(random.new_id("job"), *each) for each in alive if each is not None]

    return specs
