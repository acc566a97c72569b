"""How the CAs stand, and whether any wish is guarded: read once in a transaction, for all that it begins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from holdfast.core import ca_limits
from holdfast.core.acme import Identifier
from holdfast.core.budget import Limit
from holdfast.core.ca_limits import CaLimits
from holdfast.store import budgets, certificates, issuers
from holdfast.store.budgets import Line
from holdfast.store.issuers import IssuerRow
from holdfast.store.tx import Tx


@dataclass(slots=True)
class Standing:
    """For one transaction, which begins one attempt or a page of them, and changes none of this itself."""

    tx: Tx
    _rows: dict[str, IssuerRow | None] = field(default_factory=dict)
    _limits: dict[str, CaLimits] = field(default_factory=dict)
    _lines: dict[str, Line | None] = field(default_factory=dict)
    _defined: dict[str, Limit] = field(default_factory=dict)
    _any_guarded: bool | None = None

    def named(self, names: Sequence[str]) -> dict[str, IssuerRow]:
        """The CAs of these names, without those that are not there."""
        new = [name for name in names if name not in self._rows]
        if new:
            found = issuers.named(self.tx, new)
            self._rows |= {name: found.get(name) for name in new}
        return {name: row for name in names if (row := self._rows[name]) is not None}

    def limits_of(self, row: IssuerRow) -> CaLimits:
        if row.name not in self._limits:
            self._limits[row.name] = ca_limits.limits_of(row.kind, row.settings)
        return self._limits[row.name]

    def lines(self, keys: Sequence[str], now: datetime) -> dict[str, Line]:
        """How long whoever comes now waits at these budgets; nothing is said of those that nobody has made yet."""
        new = [key for key in keys if key not in self._lines]
        if new:
            found = budgets.lines(self.tx, new, now)
            self._lines |= {key: found.get(key) for key in new}
        return {key: line for key in keys if (line := self._lines[key]) is not None}

    def define(self, limits: Mapping[str, Limit]) -> None:
        """Make these budgets, or change their limits, where that was not done before."""
        new = {key: limit for key, limit in limits.items() if self._defined.get(key) != limit}
        budgets.define_all(self.tx, new)
        self._defined |= new

    def guarded_near(
        self, identifiers: Sequence[Identifier], *, but: str
    ) -> Iterable[tuple[str, tuple[Identifier, ...]]]:
        """Others that a second person must approve, and that share a domain with these; mostly there are none."""
        if self._any_guarded is None:
            self._any_guarded = certificates.any_guarded(self.tx)
        return certificates.guarded_near(self.tx, identifiers, but=but) if self._any_guarded else ()
