"""/forecast: the months to come, against what CAs allow; as things are, or as they might be."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel

from holdfast.api.call import Caller
from holdfast.core.budget import Limit
from holdfast.core.forecast_months import Month, WhatIf
from holdfast.errors import UserError
from holdfast.operations import forecasting
from holdfast.operations.access import Action

router = APIRouter(tags=["stats"])


class HalfALimit(UserError):
    code = "half-a-limit"

    def __init__(self) -> None:
        super().__init__("What a CA would allow needs the CA, a burst, and a time: one of them is missing.")
        self.hint = "Send issuer, orders_burst and orders_every_s together."


class LimitBroken(BaseModel):
    """A limit that will not be kept."""

    kind: str  # hour, week, domain or names
    what: str
    starts: datetime
    needed: int
    allowed: int


class MonthToCome(BaseModel):
    month: str  # 2027-03
    issuer: str
    starts: datetime
    orders: int
    names: int
    busiest_day: datetime | None
    busiest_day_orders: int
    busiest_hour_orders: int
    used_percent: int | None
    fits: bool
    problem: LimitBroken | None


class Outlook(BaseModel):
    at: datetime
    certificates: int
    fits: bool
    months: list[MonthToCome]


@router.get("/forecast")
async def outlook(
    call: Caller,
    months: Annotated[int, Query(ge=1, le=36)] = 12,
    issuer: Annotated[str | None, Query(max_length=63, description="Only this CA.")] = None,
    lifetime_days: Annotated[float | None, Query(ge=1, le=3650, description="No certificate lives longer.")] = None,
    more: Annotated[int, Query(ge=0, le=100_000, description="So many certificates more.")] = 0,
    orders_burst: Annotated[int | None, Query(ge=1, le=1_000_000, description="Orders that it allows at once.")] = None,
    orders_every_s: Annotated[float | None, Query(ge=0.001, le=1e7, description="And one more after so long.")] = None,
) -> Outlook:
    """What the whole fleet will ask of its CAs in each month, when it is busiest, and the first limit it breaks."""
    call.demand(Action.SEE)
    orders = None
    if (issuer, orders_burst, orders_every_s) != (issuer, None, None):
        if issuer is None or orders_burst is None or orders_every_s is None:
            raise HalfALimit
        orders = Limit(burst=orders_burst, every=timedelta(seconds=orders_every_s))
    life = None if lifetime_days is None else timedelta(days=lifetime_days)
    what_if = WhatIf(life=life, more=more, issuer=issuer, orders=orders)
    found = await forecasting.months_to_come(call.keeper, months=months, what_if=what_if)
    rows = [_shown(each) for each in found.months]
    return Outlook(at=found.now, certificates=found.certificates, fits=found.first_problem is None, months=rows)


def _shown(month: Month) -> MonthToCome:
    found = month.problem
    problem = None if found is None else LimitBroken.model_validate(found, from_attributes=True)
    return MonthToCome(
        month=f"{month.starts:%Y-%m}",
        issuer=month.issuer,
        starts=month.starts,
        orders=month.orders,
        names=month.names,
        busiest_day=month.busiest_day,
        busiest_day_orders=month.busiest_day_orders,
        busiest_hour_orders=month.busiest_hour_orders,
        used_percent=month.used_percent,
        fits=month.fits,
        problem=problem,
    )
