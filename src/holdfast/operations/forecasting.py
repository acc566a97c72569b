"""The year to come: what the whole fleet will need of its CAs."""

from __future__ import annotations

from typing import Final

from holdfast.core import ca_limits
from holdfast.core.certificate import Certificate, State, Version
from holdfast.core.forecast import LETS_ENCRYPT_LIFE, PUBLIC_LIFE, Forecast, Kept, Lives, forecast
from holdfast.operations.issuing import Keeper
from holdfast.store import certificates, issuers, versions
from holdfast.store.tx import Tx

PAGE: Final = 500


async def year_to_come(keeper: Keeper) -> list[Forecast]:
    """What the whole fleet will need of its CAs; read in pages."""
    rows = await keeper.db.read(issuers.all_issuers)
    limits = {row.name: ca_limits.limits_of(row.kind, row.settings) for row in rows}
    lives: dict[str, Lives] = {row.name: _lives(row) for row in rows if row.kind != "local"}
    fleet, after = list[Kept](), ""
    while page := await keeper.db.read(lambda tx, after=after: _kept(tx, after)):  # type: ignore[misc]
        fleet += [kept for _, kept in page if kept is not None]
        after = page[-1][0]
    now = await keeper.db.read(lambda tx: tx.now())
    return forecast(fleet, limits, now, lives=lives)


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
    )
