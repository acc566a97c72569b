"""Authorizations and challenges: look, answer, give up (RFC 8555 §7.5), and what a test of a challenge leads to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from holdfast.core.acme import Authz, AuthzState, Challenge, ChallengeState, authz_state_at
from holdfast.core.job import Spec
from holdfast.core.problem import AcmeError, Problem
from holdfast.operations.acme_orders import failure_key
from holdfast.operations.desk import Desk, Requester, require
from holdfast.operations.handover import Owe
from holdfast.store import acme_authzs, acme_limits, acme_orders, journal
from holdfast.store.marks import brief
from holdfast.store.tx import Tx

VALIDATE: Final = "acme.validate"


class Answered(NamedTuple):
    """What a test of a challenge has to know."""

    challenge: Challenge
    authz: Authz
    ca: str
    seen: tuple[Mapping[str, Any], ...] = ()  # at earlier tries


async def get(desk: Desk, who: Requester, authz_id: str) -> Authz:
    def look(tx: Tx) -> Authz:
        require(tx, who)
        return _own(acme_authzs.get(tx, authz_id), who, tx.now())

    return await desk.db.read(brief(look))


async def challenge(desk: Desk, who: Requester, challenge_id: str) -> tuple[Challenge, Authz]:
    def look(tx: Tx) -> tuple[Challenge, Authz]:
        require(tx, who)
        return _own_challenge(tx, who, challenge_id)

    return await desk.db.read(brief(look))


async def answer(desk: Desk, who: Requester, challenge_id: str) -> tuple[Challenge, Authz]:
    """The client says that its proof is in place: from now on a job tests it. Saying so again changes nothing."""
    job = desk.random.new_id("job")

    def write(tx: Tx, owe: Owe) -> tuple[Challenge, Authz]:
        standing = require(tx, who)
        found, authz = _own_challenge(tx, who, challenge_id)
        if found.state is not ChallengeState.PENDING:
            return found, authz
        if authz.state is not AuthzState.PENDING:
            raise AcmeError.malformed(f"The authorization is {authz.state}: there is nothing left to prove.")
        if not acme_authzs.answer(tx, found.id, who.thumbprint):
            return _own_challenge(tx, who, challenge_id)
        answered = replace(found, state=ChallengeState.PROCESSING, thumbprint=who.thumbprint)
        owe(tx, validation(job, found), Answered(answered, authz, standing.ca))
        journal.audit(tx, "challenge_answered", authz.id, actor=f"acme:{who.account}", type=found.type)
        return answered, authz

    return await desk.handover.write(desk.db, VALIDATE, write)


def validation(job: str, challenge: Challenge) -> Spec:
    return Spec(id=job, kind=VALIDATE, subject=challenge.id, payload={"authz": challenge.authz})


async def deactivate(desk: Desk, who: Requester, authz_id: str) -> Authz:
    """The client gives a proof up (§7.5.2); orders that wait for it are over."""

    def write(tx: Tx) -> Authz:
        require(tx, who)
        authz = _own(acme_authzs.get(tx, authz_id), who, tx.now())
        if not acme_authzs.move(tx, authz.id, "deactivated"):
            raise AcmeError.malformed(f"The authorization is {authz.state}: it cannot be deactivated.")
        problem = AcmeError.unauthorized(f"The authorization of {authz.identifier.value} was deactivated.").problem
        _refuse_orders(tx, authz, problem)
        journal.audit(tx, "authz_deactivated", authz.id, actor=f"acme:{who.account}", name=authz.identifier.value)
        return replace(authz, state=AuthzState.DEACTIVATED)

    changed = await desk.db.write(write)
    desk.changes.fire(authz_id)
    return changed


def _own(authz: Authz | None, who: Requester, now: datetime) -> Authz:
    if authz is None:
        raise AcmeError.malformed("There is no such authorization.", status=404)
    if authz.account != who.account:
        raise AcmeError.unauthorized("The authorization belongs to another account.")
    return replace(authz, state=authz_state_at(authz, now))


def _own_challenge(tx: Tx, who: Requester, challenge_id: str) -> tuple[Challenge, Authz]:
    found = acme_authzs.with_challenge(tx, challenge_id)
    if found is None:
        raise AcmeError.malformed("There is no such challenge.", status=404)
    return found[0], _own(found[1], who, tx.now())


# ── What a test leads to; called in the transaction that ends its job ──


def proved(tx: Tx, desk: Desk, challenge: Challenge, authz: Authz, seen: Sequence[Any]) -> None:
    """The authorization is valid, and orders that waited for nothing else are ready."""
    if not acme_authzs.tried(tx, challenge.id, "proved", seen):
        return
    if acme_authzs.move(tx, authz.id, "proved", expires_at=_holds_until(desk, seen, tx.now())):
        acme_limits.succeeded(tx, authz.account, authz.identifier.value)
        ready = acme_orders.authorize(tx, acme_orders.lock_pending_with(tx, authz.id))
        journal.audit(
            tx,
            "authz_valid",
            authz.id,
            name=authz.identifier.value,
            wildcard=authz.wildcard,
            type=challenge.type,
            seen=list(seen)[-1:],
            ready=ready,
        )


def _holds_until(desk: Desk, seen: Sequence[Any], now: datetime) -> datetime:
    """As long as the policy says, but a record that names its own end (dns-persist-01) is believed no longer."""
    ends = now + desk.policy.authz_for
    until = seen[-1].get("persist_until") if seen else None
    return ends if until is None else min(ends, datetime.fromtimestamp(until, UTC))


def tried(tx: Tx, challenge: Challenge, seen: Sequence[Any], next_try_at: datetime) -> None:
    """A try failed in a way that may pass: the challenge stays in processing, and the try is on record."""
    acme_authzs.tried(tx, challenge.id, "tried", seen, next_try_at=next_try_at)


def disproved(
    tx: Tx, desk: Desk, challenge: Challenge, authz: Authz, problem: Problem, seen: Sequence[Any]
) -> None:  # fmt: skip
    """The authorization is invalid, and so is every order that needs it; the name comes nearer to a pause."""
    if not acme_authzs.tried(tx, challenge.id, "disproved", seen, error=problem):
        return
    if acme_authzs.move(tx, authz.id, "disproved"):
        _refuse_orders(tx, authz, problem)
        name = authz.identifier.value
        acme_limits.take(tx, {failure_key(authz.account, name): desk.policy.failures_per_identifier}, tx.now())
        if acme_limits.failed(tx, authz.account, name, desk.policy.pause_after):
            journal.audit(tx, "name_paused", authz.account, name=name, failures=desk.policy.pause_after)
            journal.event(tx, "acme.name_paused", authz.account, identifier=name)
        journal.audit(tx, "authz_invalid", authz.id, name=name, type=challenge.type, problem=problem.to_json())


def _refuse_orders(tx: Tx, authz: Authz, problem: Problem) -> None:
    for order in acme_orders.lock_pending_with(tx, authz.id):
        if acme_orders.refuse(tx, order, problem):
            journal.audit(tx, "order_invalid", order, problem=problem.to_json())
