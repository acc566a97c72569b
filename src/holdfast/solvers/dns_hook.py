"""dns-01 by a program of the operator's: no shell, no environment, a time limit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Final, Literal

from pydantic import Field

from holdfast.core.kind import Kind, Trait
from holdfast.errors import TryLater
from holdfast.ports import Files
from holdfast.solvers.base import not_now
from holdfast.solvers.dns_record import DnsSolver, TxtRecord
from holdfast.solvers.kind import DnsSettings, SolverKind, SolverParts

RUN_FOR: Final = 120.0


class Hook:
    """A provider for DnsSolver: runs `argv… add|remove NAME VALUE`; exit 0 means done.

    The same three, and the zone, are on its standard input as JSON: a value may begin with a dash, which some programs
    take for an option. What it prints is not repeated anywhere, since it may hold its credentials. One run follows the
    other: many such programs read a zone, and write it back.
    """

    side_by_side = False

    def __init__(self, files: Files, argv: Sequence[str], *, run_for: float = RUN_FOR) -> None:
        if not argv:
            raise ValueError("a hook needs a program")
        self._files = files
        self._argv = tuple(argv)
        self._run_for = run_for

    async def add(self, record: TxtRecord) -> None:
        await self._run("add", record)

    async def remove(self, record: TxtRecord) -> None:
        await self._run("remove", record)

    async def _run(self, action: Literal["add", "remove"], record: TxtRecord) -> None:
        told = {"action": action, "name": record.name, "value": record.value, "zone": record.zone}
        argv = [*self._argv, action, record.name, record.value]
        try:
            code, _ = await self._files.run(argv, stdin=json.dumps(told).encode(), timeout=self._run_for)
        except OSError as error:
            raise not_now(f"The hook {self._argv[0]} cannot be run: {error.strerror}.") from None
        except TryLater:  # its time was up
            raise not_now(
                f"The hook {self._argv[0]} did not end in {self._run_for:g} s ({action} {record.name}), "
                "and was stopped; run it by hand to see why."
            ) from None
        if code != 0:
            raise not_now(
                f"The hook {self._argv[0]} ended with {code} ({action} {record.name}); run it by hand to see why."
            )


class HookSettings(DnsSettings):
    argv: tuple[Annotated[str, Field(strict=True)], ...] = Field(
        min_length=1, description="A program, and its words.", examples=[["/usr/local/bin/dns-hook", "--zone"]]
    )


def _make(settings: HookSettings, parts: SolverParts) -> DnsSolver:
    return settings.solver(parts, Hook(parts.files, settings.argv))


DNS_HOOK: Final[SolverKind[HookSettings]] = Kind(
    name="dns-hook",
    summary="dns-01, by a program of the operator's.",
    settings=HookSettings,
    limits=None,
    traits=frozenset({Trait.RUNS_HERE}),
    make=_make,
)
