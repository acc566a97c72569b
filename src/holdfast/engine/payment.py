"""What a claim took from budgets, and how it comes back: with the answer of the claim, or of a later one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from holdfast.core.job import Outcome
from holdfast.store import budgets
from holdfast.store.tx import Tx


@dataclass(frozen=True, slots=True)
class Payment:
    taken: Mapping[str, timedelta]
    at: datetime | None

    def given_back_with(self, outcome: Outcome) -> Outcome:
        """Last of all that is written, as claims do it: whoever holds budgets waits for nothing else."""
        since = self.at
        if not self.taken or since is None:
            return outcome

        def write(tx: Tx) -> None:
            if outcome.write is not None:
                outcome.write(tx)
            budgets.give_back(tx, self.taken, since)

        return replace(outcome, write=write)

    def to_json(self) -> dict[str, Any]:
        """As it is kept with the job, as long as it may be given back."""
        taken = {key: each.total_seconds() for key, each in self.taken.items()}
        return {"taken": taken, "at": None if self.at is None else self.at.isoformat()}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Payment:
        taken = {key: timedelta(seconds=each) for key, each in raw.get("taken", {}).items()}
        return cls(taken, datetime.fromisoformat(raw["at"]) if raw.get("at") else None)
