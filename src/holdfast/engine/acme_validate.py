"""Tests a challenge that a client has answered; what may pass is tried again, and every try is on record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

from holdfast.core import validation
from holdfast.core.acme import ChallengeState
from holdfast.core.job import Again, Claim, Done, Outcome, Spec
from holdfast.core.problem import AcmeError
from holdfast.core.validation import Disproved, Proved, TryAgain
from holdfast.engine.kind import Kind, Work
from holdfast.operations import acme_authzs as verbs
from holdfast.operations.acme_authzs import VALIDATE, Answered
from holdfast.operations.desk import Desk
from holdfast.ports import Random
from holdfast.store import acme_accounts, acme_authzs
from holdfast.store.marks import brief
from holdfast.store.tx import Tx
from holdfast.validators import check, verdict


def kind(desk: Desk, validator: check.Validator) -> Kind:
    """Jobs of this kind have a challenge as subject."""

    async def handler(work: Work) -> Outcome:
        facts = work.claim.known or await desk.db.read(brief(lambda tx: _facts(tx, work.claim.subject)))
        if facts is None:
            return Done()  # it was decided before, and we did not hear of it
        answer = await validator.check(_asked(desk, facts))
        work.point("job.effect-done")
        return _outcome(desk, facts, _decided(facts, answer, most=desk.policy.tries))

    def settled(claim: Claim) -> None:
        desk.changes.fire(claim.subject)
        desk.changes.fire(str(claim.payload.get("authz", "")))

    return Kind(name=VALIDATE, handler=handler, slots=64, timeout=timedelta(minutes=1), settled=settled)


def _facts(tx: Tx, challenge_id: str) -> Answered | None:
    found = acme_authzs.with_challenge(tx, challenge_id)
    if found is None or found[0].state is not ChallengeState.PROCESSING:
        return None
    account = acme_accounts.get(tx, found[1].account)
    return Answered(*found, "" if account is None else account.ca, tuple(acme_authzs.tries(tx, challenge_id)))


def _asked(desk: Desk, facts: Answered) -> verdict.Challenge:
    challenge, authz = facts.challenge, facts.authz
    return verdict.Challenge(
        type=challenge.type,
        identifier_type=authz.identifier.type,
        identifier=f"*.{authz.identifier.value}" if authz.wildcard else authz.identifier.value,
        token=challenge.token,
        thumbprint=challenge.thumbprint or "",
        account_url=desk.policy.acme_url(facts.ca, "account", authz.account),
    )


def _decided(facts: Answered, answer: verdict.Verdict, *, most: int) -> validation.Step:
    if isinstance(answer, verdict.Valid):
        return validation.decide(facts.seen, answer.evidence, None, retryable=False, most=most)
    return validation.decide(facts.seen, answer.evidence, answer.problem, retryable=answer.retryable, most=most)


def _outcome(desk: Desk, facts: Answered, step: validation.Step) -> Outcome:
    challenge, authz = facts.challenge, facts.authz
    match step:
        case Proved():
            return Done(write=lambda tx: verbs.proved(tx, desk, challenge, authz, step.tries))
        case TryAgain():
            wait = step.after
            return Again(
                after=wait,
                reason="VALIDATION_RETRY",
                write=lambda tx: verbs.tried(tx, challenge, step.tries, tx.now() + wait),
            )
        case Disproved():
            return Done(write=lambda tx: verbs.disproved(tx, desk, challenge, authz, step.problem, step.tries))


def owed(desk: Desk, random: Random) -> Callable[[Tx], Sequence[Spec]]:
    """Challenges under way without a job get one; one whose job died is over, and says so."""

    def specs(tx: Tx) -> Sequence[Spec]:
        found = acme_authzs.processing_without_job(tx, VALIDATE)
        for challenge_id, dead in found:
            facts = _facts(tx, challenge_id) if dead else None
            if facts is not None:
                problem = AcmeError.server_internal("The challenge could not be tested; place a new order.").problem
                verbs.disproved(tx, desk, facts.challenge, facts.authz, problem, facts.seen)
        alive = [acme_authzs.with_challenge(tx, challenge_id) for challenge_id, dead in found if not dead]
        return [verbs.validation(random.new_id("job"), *each) for each in alive if each is not None]

    return specs
