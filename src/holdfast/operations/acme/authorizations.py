"""Authorizations and challenges: look, answer, give up (RFC 8555 §7.5), and what a test of a challenge leads to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from holdfast.core.own_ca.acme import Authz, AuthzState, Challenge, ChallengeState, authz_state_at
from holdfast.core.own_ca.problem import AcmeError, Problem, SubProblem
from holdfast.core.work.job import Spec
from holdfast.errors import TxConflict
from holdfast.operations.acme.context import AcmeContext, Requester, admitted
from holdfast.operations.acme.handover import Owe
from holdfast.store import journal
from holdfast.store.acme import authorizations, orders
from holdfast.store.acme import limits as acme_limits
from holdfast.store.acme.accounts import AccountStatus
from holdfast.store.marks import inline
from holdfast.store.tx import Tx
from holdfast.store.work import jobs

VALIDATE: Final = "acme.validate"


class Answered(NamedTuple):
    """What a test of a challenge has to know."""

    challenge: Challenge
    authz: Authz
    ca: str
    seen: tuple[Mapping[str, Any], ...] = ()  # at earlier tries


async def get(acme_context: AcmeContext, who: Requester, authz_id: str) -> Authz:
    def look(tx: Tx) -> Authz:
        return _own_authz(tx, who, authz_id)

    return await acme_context.db.read(inline(look))


async def challenge(acme_context: AcmeContext, who: Requester, challenge_id: str) -> tuple[Challenge, Authz]:
    def look(tx: Tx) -> tuple[Challenge, Authz]:
        return _own_challenge(tx, who, challenge_id)[1]

    return await acme_context.db.read(inline(look))


async def answer(acme_context: AcmeContext, who: Requester, challenge_id: str) -> tuple[Challenge, Authz]:
    """The client says that its challenge response is in place: from now on a job validates it.

    A client that says so again, while the next try is waited for, gets that try now (§8.2). It gets no additional
    tries: that limits such requests.
    """
    job = acme_context.random.new_id("job")

    def write(tx: Tx, owe: Owe) -> tuple[Challenge, Authz]:
        standing, (found, authz) = _own_challenge(tx, who, challenge_id)
        if found.state is not ChallengeState.PENDING:
            return _hurried(tx, found), authz
        if authz.state is not AuthzState.PENDING:
            raise AcmeError.malformed(f"The authorization is {authz.state}: there is nothing left to prove.")
        if not authorizations.answer(tx, found.id, who.thumbprint):
            return _own_challenge(tx, who, challenge_id)[1]
        answered = replace(found, state=ChallengeState.PROCESSING, thumbprint=who.thumbprint)
        owe(tx, validation(job, found, authz), Answered(answered, authz, standing.ca))
        journal.audit(tx, "challenge_answered", authz.id, actor=f"acme:{who.account}", type=found.type)
        return answered, authz

    return await acme_context.handover.write(acme_context.db, VALIDATE, write)


def _hurried(tx: Tx, challenge: Challenge) -> Challenge:
    now = tx.now()
    if challenge.next_try_at is None or not authorizations.hurry(tx, challenge.id, now):
        return challenge
    jobs.bring_forward(tx, VALIDATE, challenge.id, now)
    return replace(challenge, next_try_at=now)


def validation(job: str, challenge: Challenge, authz: Authz) -> Spec:
    """Once the authorization is over there is nothing left to prove: then the job is, too."""
    told = {"authz": challenge.authz}
    return Spec(id=job, kind=VALIDATE, subject=challenge.id, payload=told, expires_at=authz.expires_at)


async def deactivate(acme_context: AcmeContext, who: Requester, authz_id: str) -> Authz:
    """The client deactivates an authorization (§7.5.2); orders that wait for it fail. Again, it changes nothing."""

    def write(tx: Tx) -> Authz:
        authz = _own_authz(tx, who, authz_id)
        if authz.state is AuthzState.DEACTIVATED:
            return authz
        if not authorizations.move(tx, authz.id, "deactivated"):
            raise AcmeError.malformed(f"The authorization is {authz.state}: it cannot be deactivated.")
        problem = AcmeError.unauthorized(f"The authorization of {authz.identifier.value} was deactivated.").problem
        _refuse_orders(tx, authz, problem)
        journal.audit(tx, "authz_deactivated", authz.id, actor=f"acme:{who.account}", name=authz.identifier.value)
        return replace(authz, state=AuthzState.DEACTIVATED)

    changed = await acme_context.db.write(write)
    acme_context.changes.fire(authz_id)
    return changed


def _own(authz: Authz | None, who: Requester, now: datetime) -> Authz:
    if authz is None:
        raise AcmeError.malformed("There is no such authorization.", status=404)
    if authz.account != who.account:
        raise AcmeError.unauthorized("The authorization belongs to another account.")
    state = authz_state_at(authz, now)
    return authz if state is authz.state else replace(authz, state=state)


def _own_authz(tx: Tx, who: Requester, authz_id: str) -> Authz:
    standing, found = authorizations.asked_by(tx, who.account, authz_id)
    admitted(standing, who)
    return _own(found, who, tx.now())


def _own_challenge(tx: Tx, who: Requester, challenge_id: str) -> tuple[AccountStatus, tuple[Challenge, Authz]]:
    standing, found = authorizations.challenge_asked_by(tx, who.account, challenge_id)
    account = admitted(standing, who)
    if found is None:
        raise AcmeError.malformed("There is no such challenge.", status=404)
    return account, (found[0], _own(found[1], who, tx.now()))


# ── What a test leads to; called in the transaction that ends its job ──


def proved(tx: Tx, acme_context: AcmeContext, challenge: Challenge, authz: Authz, seen: Sequence[object]) -> None:
    """The authorization is valid, and orders that waited for nothing else are ready."""
    now = tx.now()
    until = _holds_until(acme_context, seen, now)
    tried, moved, _ = tx.together(
        authorizations.trying(challenge.id, "proved", seen, of_pending=authz.id),
        authorizations.moving(authz.id, "proved", expires_at=until),
        acme_limits.succeeded(authz.account, authz.identifier.value),
    )
    if tried and not moved:
        raise TxConflict(f"authorization {authz.id} came to an end at the same moment")  # run again, this sees it
    if not moved:
        late = AcmeError.unauthorized("The authorization was over before this challenge was.").problem
        authorizations.tried(tx, challenge.id, "disproved", seen, error=late)  # nothing, if this very proof was first
        return
    waiting = orders.lock_pending_with(tx, authz.id)
    if until < now + acme_context.policy.order_for:
        orders.end_by(tx, waiting, until)  # no order outlives what it is built on (§7.1.6)
    journal.audit(
        tx,
        "authz_valid",
        authz.id,
        name=authz.identifier.value,
        wildcard=authz.wildcard,
        type=challenge.type,
        seen=list(seen)[-1:],
        ready=orders.authorize(tx, waiting),
    )


def _holds_until(acme_context: AcmeContext, seen: Sequence[Any], now: datetime) -> datetime:
    """As long as the policy says, but a record that names its own end (dns-persist-01) is believed no longer."""
    ends = now + acme_context.policy.authz_for
    until = seen[-1].get("persist_until") if seen else None
    return ends if until is None else min(ends, datetime.fromtimestamp(until, UTC))


def tried(tx: Tx, challenge: Challenge, seen: Sequence[object], next_try_at: datetime) -> None:
    """A try failed in a way that may pass: the challenge stays in processing, and the try is on record."""
    authorizations.tried(tx, challenge.id, "tried", seen, next_try_at=next_try_at)


def disproved(
    tx: Tx, acme_context: AcmeContext, challenge: Challenge, authz: Authz, problem: Problem, seen: Sequence[Any]
) -> None:  # fmt: skip
    """The authorization is invalid, and so is every order that needs it; the name comes nearer to a pause."""
    failures = _failures(authz, problem, seen)
    error = replace(problem, subproblems=failures) if len(failures) > 1 else problem
    if not authorizations.tried(tx, challenge.id, "disproved", seen, error=error):
        return
    if authorizations.move(tx, authz.id, "disproved"):
        _refuse_orders(tx, authz, replace(problem, subproblems=failures[-1:]))
        name = authz.identifier.value
        failed = acme_limits.failure_key(authz.account, name)
        acme_limits.take(tx, {failed: acme_context.policy.failures_per_identifier}, tx.now())
        if acme_limits.failed(tx, authz.account, name, acme_context.policy.pause_after):
            journal.audit(tx, "name_paused", authz.account, name=name, failures=acme_context.policy.pause_after)
            journal.event(tx, "acme.name_paused", authz.account, identifier=name)
        denied = next((str(each["denied"]) for each in reversed(seen) if "denied" in each), "")
        facts = {"denied": denied} if denied else {}
        journal.audit(tx, "authz_invalid", authz.id, name=name, type=challenge.type, problem=problem.brief(), **facts)


def _failures(authz: Authz, problem: Problem, seen: Sequence[Any]) -> tuple[SubProblem, ...]:
    """An entry for each try that failed (§8.2); with its name, for an order may have many."""
    name = (authz.identifier.type, authz.identifier.value)
    return tuple(
        SubProblem(each.get("problem", problem.type), each["error"], name) for each in seen if "error" in each
    ) or (SubProblem(problem.type, problem.detail, name),)


def _refuse_orders(tx: Tx, authz: Authz, problem: Problem) -> None:
    for order in orders.lock_pending_with(tx, authz.id):
        if orders.refuse(tx, order, problem):
            journal.audit(tx, "order_invalid", order, problem=problem.brief())
