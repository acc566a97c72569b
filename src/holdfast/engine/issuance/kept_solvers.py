"""The solvers of the store, made ready: changes by any replica hold from the next use on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from holdfast.core.own_ca.acme import Identifier
from holdfast.core.solver import SolverRow, SolverState
from holdfast.engine.issuance.challenges import SolverRule
from holdfast.errors import Refused
from holdfast.issuers.base import ChallengeResponse
from holdfast.operations import remotes
from holdfast.operations.issuance.attempts import CertificateContext
from holdfast.secret import Secret
from holdfast.solvers import kind as kinds
from holdfast.solvers.base import Solver, never
from holdfast.solvers.kind import SolverParts
from holdfast.store import solvers
from holdfast.telemetry import Log


class KeptSolvers:
    def __init__(self, context: CertificateContext, parts: SolverParts, log: Log) -> None:
        self._context, self._parts, self._log = context, parts, log
        self._made: dict[str, tuple[int, Solver]] = {}  # by name, with the version that it was made of

    async def rules(self) -> list[SolverRule]:
        """In the order of the operators. One that cannot be made here, as for want of its package, is left out."""
        rows = await self._context.db.read(solvers.in_order)
        self._made = {row.name: self._made[row.name] for row in rows if row.name in self._made}
        found = []
        for row in [each for each in rows if each.state is SolverState.ACTIVE]:
            try:
                found.append(SolverRule(name=row.name, names=row.names, solver=await self._solver(row)))
            except Refused as why:
                self._log.error("solver.not_made", solver=row.name, error=str(why))
        return found

    async def _solver(self, row: SolverRow) -> Solver:
        known = self._made.get(row.name)
        if known is None or known[0] != row.version:
            held = await remotes.opened(self._context.secret_store, row)
            known = self._made[row.name] = (row.version, self._make(row.kind, row.settings, held))
        return known[1]

    def _make(self, kind: str, settings: Mapping[str, object], held: Mapping[str, Secret[bytes]]) -> Solver:
        try:
            return kinds.make(kind, settings, self._with(held))
        except ValueError as why:
            raise never(f"A solver cannot be made of these settings: {why}.") from None

    def _with(self, held: Mapping[str, Secret[bytes]]) -> SolverParts:
        texts = {name: Secret(each.reveal().decode("utf-8", "replace").strip()) for name, each in held.items()}
        return replace(self._parts, credentials=texts)

    def check(self, kind: str, settings: Mapping[str, object], given: Mapping[str, Secret[bytes]]) -> None:
        """Whether a solver can be made of these; ValueError names what is wrong."""
        kinds.make(kind, settings, self._with(given))

    async def test(self, row: SolverRow, name: Identifier) -> str:
        """Publish, look, remove. What was published is removed whatever the look says."""
        solver = await self._solver(row)
        token = self._context.random.new_id("test")
        response = ChallengeResponse(
            type=solver.type, identifier=name, token=token, key_authorization=f"{token}.holdfast-test"
        )
        await solver.publish(response)
        try:
            seen = await solver.visible(response)
        finally:
            await solver.clean(response)
        ended = "was visible" if seen else "was not visible yet, which may only take longer"
        return f"{row.name} published a {solver.type} response for {name.value}. It {ended}, and was removed again."
