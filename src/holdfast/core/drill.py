"""A drill: every certificate of a label or of an issuer must be replaced now. Who is served again by when, and who not?

Computed by the product's own rules: turns at budgets by `core/issuers/budget.py`, in the order of risk (decision 0015),
then one deployment after the other in each reload domain, within the windows of its targets. Times of an issuance and
of a target are measured, or taken from the past, by whoever calls this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from holdfast.core.issuers import budget
from holdfast.core.issuers.budget import Budget, TakenAll
from holdfast.core.issuers.ca_limits import CaLimits, budgets_of_order, request_key
from holdfast.core.own_ca.acme import Identifier
from holdfast.core.windows import MaintenanceWindow, first_opening

MOST: Final = 20_000  # certificates of one drill
_NEVER: Final = datetime.max.replace(tzinfo=UTC)
_PATIENCE: Final = 1000  # turns that one certificate may lose to rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class DrilledCertificate:
    name: str
    identifiers: tuple[Identifier, ...]
    issuer: str
    ends: datetime | None  # None: it has no version yet
    targets: tuple[str, ...] = ()
    obstacles: tuple[str, ...] = ()  # why nothing can be ordered for it without a person, as sentences


@dataclass(frozen=True, slots=True, kw_only=True)
class DrilledTarget:
    """A target, as it was when it was tried."""

    domain: str  # its reload domain: one deployment at a time
    takes: timedelta  # one deployment
    windows: tuple[MaintenanceWindow, ...] = ()
    obstacle: str = ""  # why nothing can be deployed there now, as a sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class DrilledIssuer:
    limits: CaLimits
    requests: int  # that one order needs
    takes: timedelta  # from order to certificate


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """What would become of one certificate."""

    name: str
    issuer: str
    ends: datetime | None
    turn: int  # its place in the line
    ordered_at: datetime | None = None
    issued_at: datetime | None = None
    served_at: datetime | None = None  # at all of its targets; None: nothing here serves it
    waits_for: str = ""  # the budget that decided about its turn
    problems: tuple[str, ...] = ()

    def makes_it(self, by: datetime) -> bool:
        return not self.problems and self.served_at is not None and self.served_at <= by


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillGround:
    """Everything that a drill stands on."""

    issuers: Mapping[str, DrilledIssuer]
    targets: Mapping[str, DrilledTarget]
    budgets: Mapping[str, Budget]  # as they are now; one that was never used is full
    now: datetime
    frozen_until: datetime | None = None


def by_risk(fleet: Iterable[DrilledCertificate]) -> list[DrilledCertificate]:
    """The certificate that ends first goes first."""
    return sorted(fleet, key=lambda each: (each.ends or _NEVER, each.name))


def rehearse(
    fleet: Sequence[DrilledCertificate], ground: DrillGround, check: Callable[[], None] = lambda: None
) -> list[Replacement]:
    """What becomes of each, in the order of their turns. `check` is asked for each certificate, and may raise."""
    purse, free = dict(ground.budgets), dict[str, datetime]()
    found = list[Replacement]()
    for number, each in enumerate(by_risk(fleet), start=1):
        check()
        found.append(_replaced(each, number, ground, purse, free))
    return found


def _replaced(
    each: DrilledCertificate, number: int, ground: DrillGround, purse: dict[str, Budget], free: dict[str, datetime]
) -> Replacement:
    blank = Replacement(name=each.name, issuer=each.issuer, ends=each.ends, turn=number, problems=each.obstacles)
    issuer = ground.issuers.get(each.issuer)
    if each.obstacles or issuer is None:
        return blank
    ordered, waits_for = _turn(each, issuer, ground.now, purse)
    issued = ordered + issuer.takes
    blocked = tuple(ground.targets[name].obstacle for name in each.targets if ground.targets[name].obstacle)
    served = None if blocked or not each.targets else _deployed(each, issued, ground, free)
    return Replacement(
        name=each.name,
        issuer=each.issuer,
        ends=each.ends,
        turn=number,
        ordered_at=ordered,
        issued_at=issued,
        served_at=served,
        waits_for=waits_for,
        problems=blocked if each.targets else ("No target is named: nothing here installs it where it is served.",),
    )


def _turn(
    each: DrilledCertificate, issuer: DrilledIssuer, now: datetime, purse: dict[str, Budget]
) -> tuple[datetime, str]:
    """When the budgets of its order pay for it, by the rule that pays for real ones; and which of them is the last."""
    keys = budgets_of_order(issuer.limits, each.issuer, each.identifiers, renewal=True, in_ari_window=False)
    counts = Counter({key: issuer.requests if key == request_key(each.issuer) else 1 for key in keys})
    for key, limit in keys.items():
        purse.setdefault(key, Budget(key=key, limit=limit, tat=now))
    # Not before a full burst is owed: what is owed beyond that, the rule would forgive.
    at = max([now, *(purse[key].tat - purse[key].limit.every * purse[key].limit.burst for key in keys)])
    waits_for = max(keys, key=lambda key: purse[key].tat, default="") if at > now else ""
    for _ in range(_PATIENCE):
        needed = [purse[key] for key in keys]
        answer = budget.take_all(needed, at, urgent=False, waiting=False, counts=counts)
        if isinstance(answer, TakenAll):
            purse |= {paid.key: paid for paid in answer.budgets}
            break
        last = answer.longest
        at, waits_for = max(last.until, at + timedelta(microseconds=1)), last.budget.key
    return at, waits_for


def _deployed(each: DrilledCertificate, issued: datetime, ground: DrillGround, free: dict[str, datetime]) -> datetime:
    """When the last of its targets serves it: one deployment at a time in each reload domain."""
    last = issued
    for name in each.targets:
        target = ground.targets[name]
        begins = max(issued, free.get(target.domain, ground.now), ground.frozen_until or ground.now)
        begins = first_opening(target.windows, begins) if target.windows else begins
        free[target.domain] = begins + target.takes
        last = max(last, free[target.domain])
    return last


def time_to_safe(found: Sequence[Replacement], now: datetime) -> timedelta | None:
    """Until the last of them is served; None: some never are, without a person."""
    if any(each.problems or each.served_at is None for each in found):
        return None
    return max((each.served_at - now for each in found if each.served_at), default=timedelta(0))
