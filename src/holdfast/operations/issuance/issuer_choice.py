"""Which of its issuers a certificate is requested from: a snapshot of the issuers, and the choice among them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from holdfast.core import renewal
from holdfast.core.certificate import Certificate, Version
from holdfast.core.issuance import Candidate, choose, left_of
from holdfast.core.issuers import ca_limits
from holdfast.core.issuers.budget import Limit
from holdfast.core.issuers.ca_limits import CaLimits
from holdfast.core.issuers.issuer import IssuerRow
from holdfast.core.own_ca.acme import Identifier
from holdfast.operations import kinds
from holdfast.store import certificates, issuers
from holdfast.store.certificates import Guarded
from holdfast.store.tx import Tx
from holdfast.store.work import budgets
from holdfast.store.work.budgets import BudgetQueue


@dataclass(slots=True)
class IssuerSnapshot:
    """For one transaction, which begins one attempt or a page of them, and changes none of this itself."""

    tx: Tx
    _rows: dict[str, IssuerRow | None] = field(default_factory=dict)
    _limits: dict[str, CaLimits] = field(default_factory=dict)
    _lines: dict[str, BudgetQueue | None] = field(default_factory=dict)
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
            self._limits[row.name] = kinds.limits_of(row)
        return self._limits[row.name]

    def lines(self, keys: Sequence[str], now: datetime) -> dict[str, BudgetQueue]:
        """How long a new job waits at these budgets; budgets that were not used yet are left out."""
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

    def guarded_near(self, identifiers: Sequence[Identifier], *, but: str) -> Iterable[Guarded]:
        """Others that a second person must approve, and that share a domain with these; mostly there are none."""
        if self._any_guarded is None:
            self._any_guarded = certificates.any_guarded(self.tx)
        return certificates.guarded_near(self.tx, identifiers, but=but) if self._any_guarded else ()


def chosen(
    snapshot: IssuerSnapshot, found: Certificate, current: Version | None, rows: Mapping[str, IssuerRow], now: datetime
) -> IssuerRow | None:
    """The CA for the next attempt; None if none may be asked."""
    if len(found.wanted.issuers) == 1:  # nothing to choose, and nothing to look up
        only = rows.get(found.wanted.issuers[0])
        return None if only is None or only.state == "paused" else only
    best = choose(
        _candidates(snapshot, found.wanted.issuers, rows, now),
        failures=0 if found.failing is None else found.failing.attempts or 1,
        left=left_of(current, now),
        now=now,
        short=timedelta(0) if current is None else current.life * renewal.SHORT_SHARE,
    )
    return None if best is None else rows[best.name]


def others(tx: Tx, found: Certificate, issuer: str, now: datetime) -> list[Candidate]:
    """The issuers of the certificate beside this one, as they stand now."""
    names = [name for name in found.wanted.issuers if name != issuer]
    snapshot = IssuerSnapshot(tx)
    return _candidates(snapshot, names, snapshot.named(names), now) if names else []


def _candidates(
    snapshot: IssuerSnapshot, names: Sequence[str], rows: Mapping[str, IssuerRow], now: datetime
) -> list[Candidate]:
    shared = {name: (ca_limits.request_key(name), ca_limits.order_key(name)) for name in names}
    lines = snapshot.lines([key for keys in shared.values() for key in keys], now)
    return [
        Candidate(
            name=name,
            known=name in rows,
            paused=name in rows and rows[name].state == "paused",
            down=name in rows and rows[name].breaker.shut_at(now),
            doubtful=name in rows and rows[name].breaker.until is not None,
            held_until=max((lines[key].held_until for key in shared[name] if key in lines), default=None),
            turn_at=max((lines[key].turn_at for key in shared[name] if key in lines), default=None),
        )
        for name in names
    ]
