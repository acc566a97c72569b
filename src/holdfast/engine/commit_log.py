"""What was committed, as lines of the log: how issuances end and wait, and which CAs and channels are down.

The lines are made of the events of a transaction, after its COMMIT: nothing is said that did not happen, and nothing
twice because a transaction function ran twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, Literal

from holdfast.core.reasons import Reason
from holdfast.store.tx import Tx
from holdfast.telemetry import Log

CommitLogEntry = tuple[str, str, str, str]  # name, subject, job, details: as the transaction owes it to the journal

# event: (the line's name, its level, what the subject is, which details are told)
LINES: Final[Mapping[str, tuple[str, Literal["info", "warning"], str, tuple[str, ...]]]] = {
    "certificate.activated": (
        "certificate.activated", "info", "certificate", ("issuer", "serial", "not_after", "next", "took_s")
    ),
    "issuance.failed": (
        "issuance.failed", "warning", "certificate", ("issuer", "issuance", "reason", "error", "attempts", "next")
    ),
    "issuance.waits": ("issuance.waits", "info", "certificate", ("issuance", "why", "until", "error")),
    "issuer.down": ("ca.down", "warning", "ca", ("error",)),
    "issuer.up": ("ca.up", "info", "ca", ()),
    "issuer.unknown_word": ("issuer.unknown_word", "warning", "ca", ("word", "issuance", "certificate")),
    "channel.down": ("channel.down", "warning", "channel", ("error",)),
    "channel.up": ("channel.up", "info", "channel", ("down_s",)),
}  # fmt: skip
NAMED: Final = {"issuer": "ca", "why": "reason"}  # where the log has another word than the event
REMEMBERED: Final = 10_000  # certificates of which we know what they wait for; of a forgotten one it is said again


class Spoken:
    """Says each line once. Called on the threads that commit, so it is quick, and never an error of theirs."""

    def __init__(self, log: Log, committed: Callable[[], None]) -> None:
        self._log = log
        self._committed = committed
        self._waits: dict[str, str] = {}  # certificate: the reason that was said last

    def __call__(self, tx: Tx) -> None:
        """After a COMMIT."""
        self._committed()
        with suppress(Exception):  # it is done: a line that cannot be said must not look like a failed COMMIT
            self.say([entry for entry in tx.events if entry[0] in LINES])

    def say(self, entries: Sequence[CommitLogEntry]) -> None:
        for event, subject, _, details in entries:
            facts = json.loads(details)
            if self._is_news(event, subject, facts):
                name, level, what, told = LINES[event]
                kept = {NAMED.get(key, key): facts[key] for key in told if facts.get(key) not in (None, "")}
                (self._log.warning if level == "warning" else self._log.info)(name, **{what: subject}, **kept)

    def _is_news(self, event: str, certificate: str, facts: Mapping[str, object]) -> bool:
        """A job that is claimed again and again for the same reason is logged once, when that begins."""
        if event in ("issuance.failed", "certificate.activated"):
            self._waits.pop(certificate, None)
        if event != "issuance.waits":
            return True
        why, before = str(facts["why"]), self._waits.pop(certificate, None)
        while len(self._waits) >= REMEMBERED:
            self._waits.pop(next(iter(self._waits)), None)
        self._waits[certificate] = why
        return why != before and why != Reason.UNDER_WAY
