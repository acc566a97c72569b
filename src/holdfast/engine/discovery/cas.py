"""Lists of CAs: what our own CAs issued, and what vendors list for our account."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, Final

from holdfast.core.discovery.discovery import Discovery
from holdfast.core.discovery.find import FindSource
from holdfast.core.issuers.issuer import IssuerRow
from holdfast.core.kind import Trait
from holdfast.engine.discovery.rounds import Sighted, Step, StepResult
from holdfast.errors import Refused
from holdfast.issuers.base import Issuer, Listed, ListsCertificates
from holdfast.operations import kinds
from holdfast.operations.discovery.recording import Spot
from holdfast.pki.facts import Unreadable, facts_of
from holdfast.store import issuers
from holdfast.store.database import Store
from holdfast.store.own_ca import certificates as issued
from holdfast.store.tx import Tx

OWN_AT_ONCE: Final = 100
MakeIssuer = Callable[[IssuerRow], Awaitable[Issuer]]


def read(db: Store, make_issuer: MakeIssuer) -> Step:
    async def step(row: Discovery) -> StepResult:
        name = str(row.settings["issuer"])
        found = await db.read(lambda tx: issuers.get(tx, name))
        if found is None:
            raise Refused(f"There is no issuer {name} any more.")
        if kinds.has(found, Trait.OURS):
            return await _own(db, row, str(found.settings.get("ca") or found.name))
        made = await make_issuer(found)
        if not isinstance(made, ListsCertificates):
            raise Refused(f"Issuer {name} has no list of certificates.")
        page = await made.list_certificates(row.position.get("after") or {})
        done = int(row.position.get("done", 0)) + len(page.certificates) + page.unreadable
        sighted, unreadable = _sighted(row, name, page.certificates)
        return StepResult(
            position={"done": done, "after": page.next},
            sighted=sighted,
            counts={"tried": len(page.certificates) + page.unreadable, "unreadable": page.unreadable + unreadable},
            over=page.next is None,
        )

    return step


async def _own(db: Store, row: Discovery, ca: str) -> StepResult:
    after = str(row.position.get("after") or "")

    def look(tx: Tx) -> tuple[list[Any], datetime]:
        return issued.page(tx, ca=ca, after=after, limit=OWN_AT_ONCE), tx.now()

    rows, now = await db.read(look)
    good = [each for each in rows if each.not_after > now and each.revoked_at is None]
    listed = [Listed(chain=(each.der,), number=each.serial) for each in good]
    sighted, unreadable = _sighted(row, ca, listed)
    return StepResult(
        position={"done": int(row.position.get("done", 0)) + len(rows), "after": rows[-1].id if rows else after},
        sighted=sighted,
        counts={"tried": len(rows), "unreadable": unreadable},
        over=len(rows) < OWN_AT_ONCE,
    )


def _sighted(row: Discovery, name: str, listed: Sequence[Listed]) -> tuple[list[Sighted], int]:
    sighted, unreadable = list[Sighted](), 0
    for each in listed:
        try:
            facts = facts_of(each.chain, alone=True)
        except Unreadable:
            unreadable += 1
            continue
        spot = Spot(source=FindSource.CA, place=f"{name}: {each.number}", discovery=row.id)
        sighted.append(Sighted(facts=facts, spot=spot))
    return sighted, unreadable
