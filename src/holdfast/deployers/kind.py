"""The shape of a kind of deployer, the parts that one is made with, and the programs that a host allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from holdfast.core.kind import Kind, S
from holdfast.core.reasons import Reason
from holdfast.core.target import DeployLimits
from holdfast.deployers.base import Bundle, Deployer, later, refused
from holdfast.errors import TryLater
from holdfast.ports import BundleFolders, Clock, Files, Net, Random, Transport
from holdfast.secret import MASK, Secret

SAID: Final = 400  # characters of what a program said, in an error
TEMPFAIL: Final = 75  # of sysexits.h
NOPERM: Final = 77
_SECRET_FROM: Final = 8  # characters: shorter ones are words such as "yes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program that this host allows deployments to run; its argv never comes over the API."""

    argv: tuple[str, ...]
    timeout: float = 60.0
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRules:
    """What this host allows: read from a file on it, never over the API."""

    folders: tuple[Path, ...] = ()  # targets may write below these only
    sockets: tuple[Path, ...] = ()  # of daemons that may be told of new certificates
    programs: Mapping[str, Program] = field(default_factory=dict)
    token_files: Mapping[Path, str] = field(default_factory=dict)  # with the only address that each may be sent to


class Offers(Protocol):
    """Bundles that targets fetch by themselves; any replica hands them over."""

    async def current(self, target: str, certificate: str) -> tuple[int, str] | None:
        """The number and the content id of what is on offer for a target."""

    async def put(self, target: str, bundle: Bundle) -> None:
        """Offer this bundle from now on, in place of the one before."""

    async def once(self, target: str, bundle: Bundle, lasts_for: timedelta) -> Secret[str]:
        """An address that hands this bundle over to the first who asks within that time."""


class NoOffers:
    """Of a process that nothing is fetched from."""

    async def current(self, target: str, certificate: str) -> tuple[int, str] | None:
        return None

    async def put(self, target: str, bundle: Bundle) -> None:
        raise refused(f"Target {target}: nothing can be fetched from this process.")

    async def once(self, target: str, bundle: Bundle, lasts_for: timedelta) -> Secret[str]:
        raise refused(f"Target {target}: nothing can be fetched from this process.")


class AgentCalls(Protocol):
    """How targets at agents are reached. TryLater: the agent is offline or silent; Refused: what it said."""

    async def call(
        self, agent: str, target: str, call: str, body: Mapping[str, Any], keys: Mapping[str, Secret[bytes]]
    ) -> Mapping[str, Any]:
        """What the agent told; `keys` are sealed to it. An empty key is one that the agent has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployerParts:
    """What a deployer is made with, besides its settings."""

    target: str
    credentials: Mapping[str, Secret[str]]  # by name
    transport: Transport
    net: Net
    files: Files
    bundles: BundleFolders
    clock: Clock
    random: Random
    offers: Offers = field(default_factory=NoOffers)
    local: LocalRules = field(default_factory=LocalRules)
    agents: AgentCalls | None = None

    def program(self, name: str) -> Program:
        """A program that this host allows, by its name."""
        found = self.local.programs.get(name)
        if found is None:
            known = ", ".join(sorted(self.local.programs)) or "none"
            why = f"Target {self.target}: this host allows no program {name!r:.60}; it allows: {known}."
            raise refused(why, Reason.PROGRAM_UNKNOWN)
        return found

    async def run(
        self,
        name: str,
        reason: Reason,
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        hidden: Sequence[bytes] = (),
    ) -> str:
        """Run a program of this host; what it said, without the lines that are hidden.

        Exit 75 (EX_TEMPFAIL) is later, 77 (EX_NOPERM) is TARGET_REFUSED, any other but 0 is `reason`.
        """
        program = self.program(name)
        given = {**program.env, **(env or {})}
        try:
            code, output = await self.files.run(program.argv, stdin=stdin, timeout=program.timeout, env=given)
        except TryLater as why:
            raise later(f"Target {self.target}: {why}.", Reason.TARGET_BUSY) from None
        except OSError as error:
            text = f"Target {self.target}: {program.argv[0]} cannot be run: {error.strerror or error}."
            raise refused(text, Reason.PROGRAM_UNKNOWN) from None
        secrets = [*hidden, *(each.encode() for each in program.env.values())]
        said = tail(_without(output, secrets))
        if code == TEMPFAIL:
            raise later(f"Target {self.target}: {name} asked for another try: {said}", Reason.TARGET_BUSY)
        if code != 0:
            because = Reason.TARGET_REFUSED if code == NOPERM else reason
            raise refused(f"Target {self.target}: {name} exited with {code}: {said}", because)
        return said


def _without(output: bytes, secrets: Sequence[bytes]) -> bytes:
    """What a program repeats of a key, or of the passwords in its environment, is in no error."""
    for each in secrets:
        if len(each) >= _SECRET_FROM:
            output = output.replace(each, MASK.encode())
    return output


def tail(output: bytes) -> str:
    """The end of what a program said, as one line without control characters."""
    text = output.decode("utf-8", "replace")
    plain = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    return plain if len(plain) <= SAID else f"…{plain[-SAID:]}"


DeployerKind: TypeAlias = Kind[S, DeployerParts, Deployer, DeployLimits]
