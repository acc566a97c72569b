"""Publishing what a CA wants to see: which kind of proof, by which solver, and taking it away again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.core.acme import Identifier, permits
from holdfast.errors import Refused, TryLater
from holdfast.issuers.base import Proof
from holdfast.operations.issuing import Keeper
from holdfast.solvers.base import Solver
from holdfast.solvers.http_store import Delete, Put
from holdfast.store import challenge_responses
from holdfast.telemetry import Telemetry


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


async def not_visible(chosen: Sequence[Chosen]) -> list[str]:
    """The names whose proof is not yet to be seen."""
    return [each.proof.identifier.value for each in chosen if not await each.solver.visible(each.proof)]


async def clean(proofs: Sequence[Mapping[str, Any]], solver_for: SolverFor, telemetry: Telemetry) -> None:
    """Take proofs away. One that cannot be is told, and does no harm."""
    for raw in proofs:
        proof = from_json(raw)
        chosen = solver_for([proof])
        try:
            if chosen is not None:
                await chosen.solver.clean(proof)
        except (TryLater, Refused) as why:
            telemetry.log.warning("proof.left", name=proof.identifier.value, type=proof.type, error=str(why))


def to_json(proof: Proof) -> dict[str, Any]:
    return {
        "type": proof.type,
        "identifier": [proof.identifier.type, proof.identifier.value],
        "token": proof.token,
        "key_authorization": proof.key_authorization,
        "ref": dict(proof.ref),
    }


# ── What is kept of proofs ──


def is_known(proof: Proof, kept: Sequence[Mapping[str, Any]]) -> bool:
    return any(_same(proof, each) for each in kept)


def is_answered(proof: Proof, kept: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the CA confirmed that it was told. Without that it may have been: then it is told again."""
    return any(_same(proof, each) and each.get("answered") for each in kept)


def answered(proofs: Sequence[Proof], kept: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """The same, with these marked."""
    return tuple({**each, "answered": True} if any(_same(proof, each) for proof in proofs) else each for each in kept)


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
