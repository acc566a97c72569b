"""/stats: the inventory in numbers, over all that the asker may see, counted by the database."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query

from holdfast.api import installation_shapes as shapes
from holdfast.api.call import Caller
from holdfast.core.inventory import Bucket
from holdfast.operations import statistics

router = APIRouter(prefix="/stats", tags=["stats"])
By = Annotated[Bucket, Query(description="How long a span is; a month has 30 days.")]
Number = Annotated[int, Query(ge=1, le=1000, description="How many spans.")]


@router.get("/summary")
async def summary(call: Caller) -> shapes.Summary:
    """How many there are, fail, are due, are under way, end soon. Jobs and dead letters: for who may see everything."""
    found = await statistics.summary(call.keeper, call.principal)
    return shapes.Summary(
        at=found.at,
        certificates=dict(found.states),
        failing=found.failing,
        due=found.due,
        under_way=found.under_way,
        awaiting_approval=found.awaiting_approval,
        never_issued=found.never_issued,
        expired=found.expired,
        expiring=dict(found.expiring),
        jobs=dict(found.jobs),
        notifications_dead=found.notifications_dead,
    )


@router.get("/expiry")
async def expiry(call: Caller, by: By = "day", number: Number = 90) -> list[shapes.Ending]:
    """From today on: how many certificates end in each span, and how many renewals are planned in it."""
    return [shapes.Ending(**asdict(each)) for each in await statistics.expiry(call.keeper, call.principal, by, number)]


@router.get("/outcomes")
async def outcomes(call: Caller, by: By = "day", number: Number = 30) -> list[shapes.Outcomes]:
    """Until now: how the attempts of each span ended, and why those failed that did."""
    found = await statistics.outcomes(call.keeper, call.principal, by, number)
    return [shapes.Outcomes(**asdict(each)) for each in found]


@router.get("/issuance-rate")
async def issuance_rate(call: Caller, by: By = "day", number: Number = 30) -> list[shapes.IssuanceRate]:
    """Until now: what each CA issued in each span, and how long that took. Spans without any are left out."""
    found = await statistics.rates(call.keeper, call.principal, by, number)
    return [shapes.IssuanceRate(**asdict(each)) for each in found]
