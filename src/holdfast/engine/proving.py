"""Publishing what a CA wants to see: which kind of proof, by which solver, and taking it away again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from holdfast.core.acme import Identifier, permits
from holdfast.core.reasons import Reason
from holdfast.errors import Refused, TryLater
from holdfast.issuers.base import Proof
from holdfast.operations.issuing import Keeper
from holdfast.solvers.base import Solver
from holdfast.solvers.http_store import Delete, Put
from holdfast.store import challenge_responses

AT_ONCE: Final = 8  # proofs that are published, looked for or taken away at the same time
# Seconds of a claim without which no solver is called any more: the longest that one may take, and a little.
ROOM: Final = 150.0
_NOT_SEEN: Final = frozenset({Reason.DNS_TXT_NOT_VISIBLE, Reason.PROOF_NOT_VISIBLE})

Kept = tuple[Mapping[str, Any], ...]  # proofs as the store has them, with their marks
Mark = Literal["published", "seen", "answered"]  # answered: the CA confirmed that it was told


@dataclass(frozen=True, slots=True)
class Chosen:
    proof: Proof
    solver: Solver


SolverFor = Callable[[Sequence[Proof]], Chosen | None]  # which of a name's proofs, and by whom, as configured


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverRule:
    """Names, as patterns ("*.example.com", "*"), whose proofs of the solver's type it publishes."""

    names: tuple[str, ...]
    solver: Solver

    def fits(self, proof: Proof) -> bool:
        return self.solver.type == proof.type and permits(self.names, proof.identifier)


def by_rules(rules: Sequence[SolverRule]) -> SolverFor:
    """The first rule that fits one of the offers decides: the order is the operator's, and not the CA's."""

    def solver_for(offers: Sequence[Proof]) -> Chosen | None:
        return next((Chosen(proof, rule.solver) for rule in rules for proof in offers if rule.fits(proof)), None)

    return solver_for


def in_store(keeper: Keeper) -> tuple[Put, Delete]:
    """How proofs that we serve ourselves (http-01, tls-alpn-01) get into the store, and out of it."""

    async def put(proof: Proof) -> None:
        name, answer = proof.identifier.base, proof.key_authorization
        await keeper.db.write(
            lambda tx: challenge_responses.put(
                tx, type=proof.type, token=proof.token, identifier=name, key_authorization=answer
            )
        )

    async def delete(proof: Proof) -> None:
        await keeper.db.write(lambda tx: challenge_responses.delete(tx, proof.type, proof.token))

    return put, delete


def choose(choices: Sequence[Sequence[Proof]], solver_for: SolverFor) -> list[Chosen] | str:
    """For each name the one of the CA's offers that is published here; or the name that has none."""
    chosen = []
    for offers in choices:
        found = solver_for(offers)
        if found is None:
            return offers[0].identifier.value if offers else "a name"
        chosen.append(found)
    return chosen


# ── Many names ──

Call = Callable[[Chosen], Awaitable[bool | None]]  # of a solver


@dataclass(frozen=True, slots=True)
class Called:
    """How calls of solvers ended."""

    well: Sequence[Chosen]  # those that did not say no
    trouble: Sequence[TryLater | Refused] = ()


async def publish(each: Chosen) -> None:
    await each.solver.publish(each.proof)


async def visible(each: Chosen) -> bool:
    return await each.solver.visible(each.proof)


async def clean(each: Chosen) -> None:
    await each.solver.clean(each.proof)


def batches(chosen: Iterable[Chosen]) -> list[Sequence[Chosen]]:
    """Some side by side, where their solvers allow it; the others one after the other."""
    chosen = [*chosen]
    together = [each for each in chosen if each.solver.side_by_side]
    return [*pages(together), *([each] for each in chosen if not each.solver.side_by_side)]


def pages(chosen: Sequence[Chosen]) -> list[Sequence[Chosen]]:
    return [chosen[at : at + AT_ONCE] for at in range(0, len(chosen), AT_ONCE)]


async def call(batch: Sequence[Chosen], what: Call) -> Called:
    """Call the solvers of a batch and wait for all of them: what one could do counts, whatever befell another."""
    answers = await asyncio.gather(*(what(each) for each in batch), return_exceptions=True)
    trouble = []
    for answer in answers:
        if isinstance(answer, TryLater | Refused):
            trouble.append(_solvers_own(answer))
        elif isinstance(answer, BaseException):
            raise answer
    well = [each for each, answer in zip(batch, answers, strict=True) if answer is None or answer is True]
    return Called(well, trouble)


def _solvers_own(why: TryLater | Refused) -> TryLater | Refused:
    """However a solver calls its trouble, it is not the CA's: that one was not asked."""
    if isinstance(why, Refused):
        return why if why.reason in set(Reason) else Refused(str(why), reason=Reason.SOLVER_FAILED)
    reason = why.reason if why.reason in _NOT_SEEN else Reason.SOLVER_FAILED
    return TryLater(str(why), after=why.after, reason=reason)


def solvers_of(proofs: Iterable[Mapping[str, Any]], solver_for: SolverFor) -> tuple[list[Chosen], list[Proof]]:
    """Who takes these away; and those of which nobody does, since the operator's rules changed."""
    known = [(proof := from_json(each), solver_for([proof])) for each in proofs]
    return [found for _, found in known if found is not None], [proof for proof, found in known if found is None]


# ── What is kept of proofs ──


def to_json(proof: Proof) -> dict[str, Any]:
    return {
        "type": proof.type,
        "identifier": [proof.identifier.type, proof.identifier.value],
        "token": proof.token,
        "key_authorization": proof.key_authorization,
        "ref": dict(proof.ref),
    }


def is_known(proof: Proof, kept: Sequence[Mapping[str, Any]]) -> bool:
    return any(_same(proof, each) for each in kept)


def has(mark: Mark, proof: Proof, kept: Sequence[Mapping[str, Any]]) -> bool:
    """Without a mark it may have been done all the same: then it is done again."""
    return any(_same(proof, each) and each.get(mark) for each in kept)


def marked(mark: Mark, proofs: Iterable[Proof], kept: Sequence[Mapping[str, Any]], *, value: bool = True) -> Kept:
    """The same, with these marked; or without that mark."""
    proofs = [*proofs]
    return tuple({**each, mark: value} if any(_same(proof, each) for proof in proofs) else each for each in kept)


def without(proofs: Iterable[Proof], kept: Sequence[Mapping[str, Any]]) -> Kept:
    """Those that are left when these are gone."""
    proofs = [*proofs]
    return tuple(each for each in kept if not any(_same(proof, each) for proof in proofs))


def _same(proof: Proof, kept: Mapping[str, Any]) -> bool:
    return all(kept.get(name) == value for name, value in to_json(proof).items())


def from_json(raw: Mapping[str, Any]) -> Proof:
    return Proof(
        type=raw["type"],
        identifier=Identifier(*raw["identifier"]),
        token=raw["token"],
        key_authorization=raw["key_authorization"],
        ref=raw["ref"],
    )
