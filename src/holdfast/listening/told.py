"""What listeners tell operators: metrics of every refusal, and a line of the log now and then."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

from holdfast.listening.admission import Tally
from holdfast.listening.bounds import Reason
from holdfast.telemetry import Telemetry

LOGGED_EVERY: Final = 60.0  # seconds, for each reason: a flood of connections must not become one of log lines


class ToldTally(Tally):
    """Of one listener, called as operators will search for it: server, acme, local, tls_alpn."""

    def __init__(self, listener: str, telemetry: Telemetry) -> None:
        self._listener, self._log = listener, telemetry.log
        self._held = telemetry.metrics.connections.labels(listener=listener)
        self._refused = {
            reason: telemetry.metrics.connections_refused.labels(listener=listener, reason=reason.value)
            for reason in Reason
        }
        self._unsaid: Counter[Reason] = Counter()
        self._said_at: dict[Reason, float] = {}

    def refused(self, reason: Reason) -> None:
        self._refused[reason].inc()
        self._unsaid[reason] += 1
        now = asyncio.get_running_loop().time()
        if now - self._said_at.get(reason, -LOGGED_EVERY) >= LOGGED_EVERY:
            self._said_at[reason] = now
            self._log.warning(
                "listener.refused", listener=self._listener, reason=reason.value, connections=self._unsaid.pop(reason)
            )

    def held(self, connections: int) -> None:
        self._held.set(connections)
