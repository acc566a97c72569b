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

SolverFor = Callable[[Proof], Solver | None]  # as configured for this name and kind of proof


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverRule:
    """Names, as patterns ("*.example.com", "*"), whose proofs of the solver's type it publishes."""

    names: tuple[str, ...]
    solver: Solver

    def fits(self, proof: Proof) -> bool:
        return self.solver.type == proof.type and permits(self.names, proof.identifier)


def by_rules(rules: Sequence[SolverRule]) -> SolverFor:
    """The first rule that fits decides."""
    return lambda proof: next((rule.solver for rule in rules if rule.fits(proof)), None)


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


@dataclass(frozen=True, slots=True)
class Chosen:
    proof: Proof
    solver: Solver


def choose(choices: Sequence[Sequence[Proof]], solver_for: SolverFor) -> list[Chosen] | str:
    """For each name the first of the CA's offers that can be published here; or the name that has none."""
    chosen = []
    for offers in choices:
        found = next((Chosen(proof, solver) for proof in offers if (solver := solver_for(proof)) is not None), None)
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
        solver = solver_for(proof)
        try:
            if solver is not None:
                await solver.clean(proof)
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


def from_json(raw: Mapping[str, Any]) -> Proof:
    return Proof(
        type=raw["type"],
        identifier=Identifier(*raw["identifier"]),
        token=raw["token"],
        key_authorization=raw["key_authorization"],
        ref=raw["ref"],
    )
