"""The time to come: what the whole fleet will need of its CAs, as it is or as it might be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from holdfast.core import ca_limits
from holdfast.core.ca_limits import CaLimits
from holdfast.core.certificate import Certificate, State, Version
from holdfast.core.forecast import Kept, Lives, lives_at
from holdfast.core.forecast_months import COMMON_LIFE, Month, WhatIf, by_month, supposed
from holdfast.core.renewal import decide
from holdfast.operations.issuers import NoSuchIssuer
from holdfast.operations.issuing import Keeper
from holdfast.pki.aside import aside
from holdfast.store import certificates, issuers, versions
from holdfast.store.tx import Tx

PAGE: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    now: datetime
    certificates: int
    months: tuple[Month, ...]

    @property
    def first_problem(self) -> Month | None:
        return min((each for each in self.months if not each.fits), key=lambda each: each.starts, default=None)


@dataclass(frozen=True, slots=True)
class _Facts:
    fleet: list[Kept]
    limits: dict[str, CaLimits]
    lives: dict[str, Lives]
    now: datetime


async def months_to_come(keeper: Keeper, *, months: int, what_if: WhatIf) -> Outlook:
    """What the fleet will need of its CAs by calendar month, with what is assumed.

    Reckoned aside, as a large fleet takes a second or two.
    """
    facts = await _facts(keeper)
    name, limits = what_if.issuer, facts.limits
    if name is not None and name not in limits:
        raise NoSuchIssuer(name)
    if name is not None and what_if.orders is not None:
        limits = {**limits, name: replace(limits[name], orders=what_if.orders)}
    fleet = supposed(facts.fleet, what_if, facts.now)
    found = await aside(by_month, fleet, limits, facts.now, months=months, lives=facts.lives)
    return Outlook(now=facts.now, certificates=len(fleet), months=tuple(found))


async def _facts(keeper: Keeper) -> _Facts:
    """Read in pages."""
    rows = await keeper.db.read(issuers.all_issuers)
    limits = {row.name: ca_limits.limits_of(row.kind, row.settings) for row in rows}
    lives = {row.name: lives_at(row.kind, str(row.settings.get("directory", ""))) for row in rows}
    fleet, after = list[Kept](), ""
    while page := await keeper.db.read(lambda tx, after=after: _kept(tx, after)):  # type: ignore[misc]
        fleet += [kept for _, kept in page if kept is not None]
        after = page[-1][0]
    return _Facts(fleet, limits, lives, await keeper.db.read(lambda tx: tx.now()))


def _kept(tx: Tx, after: str) -> list[tuple[str, Kept | None]]:
    page = certificates.page(tx, after=after, limit=PAGE)
    held = versions.many(tx, [each.current_version for each in page if each.current_version is not None])
    now = tx.now()
    return [(each.name, _future(each, held.get(each.current_version or ""), now)) for each in page]


def _future(found: Certificate, current: Version | None, now: datetime) -> Kept | None:
    """Where an attempt is under way nothing is planned: its order may still wait, in a storm with all the others."""
    if found.state is not State.ACTIVE:
        return None
    return Kept(
        issuer=found.wanted.issuers[0],
        identifiers=found.wanted.identifiers,
        next_at=found.next_action_at or decide(found, current, now).at or now,
        life=found.wanted.lifetime or (COMMON_LIFE if current is None else current.life),
        fraction=found.wanted.rule.fraction,
        before=found.wanted.rule.before,
        windows=found.wanted.windows,
    )
