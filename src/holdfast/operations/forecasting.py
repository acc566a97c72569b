"""The time to come: what the whole fleet will need of its CAs, as it is or as it might be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from holdfast.core import ca_limits
from holdfast.core.ca_limits import CaLimits
from holdfast.core.certificate import Certificate, State, Version
from holdfast.core.forecast import LETS_ENCRYPT_LIFE, PUBLIC_LIFE, Kept, Lives
from holdfast.core.forecast_months import Month, WhatIf, by_month, supposed
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
    lives: dict[str, Lives] = {row.name: _lives(row) for row in rows if row.kind != "local"}
    fleet, after = list[Kept](), ""
    while page := await keeper.db.read(lambda tx, after=after: _kept(tx, after)):  # type: ignore[misc]
        fleet += [kept for _, kept in page if kept is not None]
        after = page[-1][0]
    return _Facts(fleet, limits, lives, await keeper.db.read(lambda tx: tx.now()))


def _lives(row: issuers.IssuerRow) -> Lives:
    return LETS_ENCRYPT_LIFE if "letsencrypt.org" in str(row.settings.get("directory", "")) else PUBLIC_LIFE


def _kept(tx: Tx, after: str) -> list[tuple[str, Kept | None]]:
    page = certificates.page(tx, after=after, limit=PAGE)
    held = versions.many(tx, [each.current_version for each in page if each.current_version is not None])
    return [(each.name, _future(each, held.get(each.current_version or ""))) for each in page]


def _future(found: Certificate, current: Version | None) -> Kept | None:
    if found.state is not State.ACTIVE or current is None or found.next_action_at is None:
        return None
    return Kept(
        issuer=found.wanted.issuers[0],
        identifiers=found.wanted.identifiers,
        next_at=found.next_action_at,
        life=found.wanted.lifetime or current.life,
        fraction=found.wanted.rule.fraction,
        windows=found.wanted.windows,
    )
