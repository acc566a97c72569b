"""What an attack is: a load without end, by a process of its own, against a server that others use meanwhile."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """Where the server under attack answers, all on loopback."""

    server: int
    acme: int
    http: int = 0  # where challenge responses are looked for
    token: str = ""  # of a viewer


@dataclass(frozen=True, slots=True)
class Attack:
    """`run` goes on until it is cancelled. `finding` is its number in the security review."""

    name: str
    finding: str
    run: Callable[[Target], Awaitable[None]]
