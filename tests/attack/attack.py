"""What an attack is: a load without end, by a process of its own, against a server that others use meanwhile."""

import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Operator:
    """A person who types commands beside the server under attack."""

    data: Path

    def type(self, *words: str) -> str:
        command = [str(Path(sys.executable).parent / "holdfast"), *words]
        env = {**os.environ, "HOLDFAST_STORE_DATA_DIR": str(self.data)}
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout

    def token(self, role: str, *more: str) -> str:
        made = self.type("token", "create", "attacker", "--role", role, *more, "-o", "json")
        return str(json.loads(made)["token"])


def viewer(operator: Operator) -> str:
    return operator.token("viewer")


@dataclass(frozen=True, slots=True)
class Target:
    """Where the server under attack answers, all on loopback."""

    server: int
    acme: int
    http: int = 0  # where challenge responses are looked for
    token: str = ""  # of a viewer, if the attack asks for no other


@dataclass(frozen=True, slots=True)
class Attack:
    """`run` goes on until it is cancelled. `finding` is its number in the security review."""

    name: str
    finding: str
    run: Callable[[Target], Awaitable[None]]
    prepare: Callable[[Operator], str] = viewer  # before it begins; the token that the attacker has
    bystander: Callable[[Operator, int], None] | None = None  # what another team does meanwhile, by its number
