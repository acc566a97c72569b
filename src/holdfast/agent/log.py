"""What an agent says: one line for each event, to stderr, where the service manager keeps it."""

from __future__ import annotations

import sys

from holdfast.ports import Clock


class AgentLog:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def __call__(self, event: str, **facts: object) -> None:
        told = " ".join(f"{name}={_plain(value)}" for name, value in facts.items())
        print(f"{self._clock.now():%Y-%m-%dT%H:%M:%SZ} agent.{event} {told}".rstrip(), file=sys.stderr, flush=True)


def _plain(value: object) -> str:
    text = "".join(char if char.isprintable() else " " for char in str(value))
    return repr(text) if " " in text or not text else text
