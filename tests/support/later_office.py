"""One house with one commercial CA: the real connector, before a server that behaves like the vendor's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from holdfast.core.issuers import ca_limits
from holdfast.core.work.job import Claim
from holdfast.engine.issuance import duties as issuance_duties
from holdfast.engine.issuance import renewals
from holdfast.engine.issuance.issuer_factory import Upstream, check
from holdfast.engine.issuance.issuer_factory import kinds as issuer_kinds
from holdfast.secret import Secret
from holdfast.world import HttpTransport
from tests.kill.issuance_cas import FAKES
from tests.support.later import Days, a_still_house
from tests.support.lifecycle import House, MovedClock
from tests.support.running import add_issuer

WIDE = {"requests": [1000, 0.001], "orders": None}
HOUR = timedelta(hours=1)


class Reckoning(Days):
    """Days that keep, for each claim, how many requests it paid for and how many it made."""

    def __init__(self, house: House, clock: MovedClock, kinds: Any, ca: Any) -> None:
        super().__init__(house, clock, kinds)
        self._ca = ca
        self.claims: list[tuple[int, int]] = []

    async def _work(self, claim: Claim) -> None:
        before = len(self._ca.requests)
        await super()._work(claim)
        self.claims.append((claim.budgets.count(ca_limits.request_key("later")), len(self._ca.requests) - before))


@dataclass
class Office:
    house: House
    clock: MovedClock
    ca: Any
    kind: str
    days: Reckoning
    upstream: Upstream

    async def pass_by(self, span: timedelta) -> None:
        await self.days.go_on(self.clock.now() + span)

    async def live(self, span: timedelta, *, sweep_every: timedelta = HOUR / 2) -> None:
        """Time with sweeps: what failed is begun again when its ladder says so."""
        end = self.clock.now() + span
        while self.clock.now() < end:
            await renewals.sweep_due(self.house.certificate_context)
            await self.pass_by(min(sweep_every, end - self.clock.now()))

    async def events(self, ref: str) -> list[str]:
        return [each.name for each in await self.house.timeline(ref)]

    async def notifications(self) -> list[str]:
        rows = await self.house.db.read(lambda tx: tx.rows("SELECT event FROM notifications ORDER BY created_at, id"))
        return [row["event"] for row in rows]


@asynccontextmanager
async def an_office(folder: Path, kind: str, **settings: Any) -> AsyncIterator[Office]:
    async with a_still_house(folder) as (house, clock), FAKES[kind](folder / "ca") as ca:
        transport = HttpTransport()
        ca.now = clock.now
        given = ca.settings(**{"limits": WIDE, **settings})
        credentials = {name: Secret(value.encode()) for name, value in ca.credentials.items()}
        await add_issuer(
            house.certificate_context, "later", kind=kind, kinds=issuer_kinds(), credentials=credentials,
            actor="local:op", fit=check, settings={name: value for name, value in given.items() if value is not None},
        )  # fmt: skip
        upstream = Upstream(context=house.certificate_context, own_cas=None, transport=transport, clock=clock)
        kinds = issuance_duties.kinds(replace(house.tools, make_issuer=upstream.make))
        try:
            yield Office(house, clock, ca, kind, Reckoning(house, clock, kinds, ca), upstream)
        finally:
            await transport.close()
