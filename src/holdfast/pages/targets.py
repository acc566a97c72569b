"""Targets and endpoints: what is wanted where, what was pushed, and what was seen served; trouble first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.responses import Response

from holdfast.operations.access import Action
from holdfast.pages.states import State
from holdfast.pages.visit import Visit

_MOST: Final = 500
STATES: Final[Mapping[str, State]] = {
    "queued": State("queued", "Queued", "planned", "clock"),
    "writing": State("writing", "Writing", "active", "renewing"),
    "testing": State("testing", "Testing", "active", "renewing"),
    "reloading": State("reloading", "Reloading", "active", "renewing"),
    "verifying": State("verifying", "Verifying", "active", "renewing"),
    "rolling_back": State("rolling_back", "Rolling back", "retry", "undo"),
    "served": State("served", "Served", "ok", "linked"),
    "installed": State("installed", "Installed", "ok", "ok"),
    "held": State("held", "Held", "still", "lock"),
    "rolled_back": State("rolled_back", "Rolled back", "retry", "undo"),
    "rollback_failed": State("rollback_failed", "Rollback failed", "fail", "failing"),
    "failed": State("failed", "Retrying", "retry", "retrying"),
    "superseded": State("superseded", "Superseded", "still", "archived"),
}
_RANK: Final = {
    name: place for place, name in enumerate(("rollback_failed", "failed", "rolled_back", "rolling_back", "held"))
}


async def show(visit: Visit) -> Response:
    found = await visit.call("deployments.list", limit=_MOST)
    wanted = [each for each in found.items if each.state != "superseded"]
    wanted.sort(key=lambda each: (_RANK.get(each.state, 9), each.target, each.certificate))
    endpoints = (await visit.call("endpoints.list", limit=_MOST)).items if visit.may(Action.SEE_ENDPOINTS) else []
    endpoints.sort(key=lambda each: (not each.troubled, each.place))
    return await visit.show(
        "targets.html",
        targets=await visit.call("targets.list"),
        deployments=wanted,
        amiss=[each for each in wanted if each.state in _RANK],
        endpoints=endpoints,
        troubled=[each for each in endpoints if each.troubled],
        can_change=visit.may(Action.CHANGE_TARGETS) and not visit.principal.confined,
        can_deploy=visit.may(Action.CHANGE),
        can_check=visit.may(Action.CHANGE_ENDPOINTS),
        SHOWN=STATES,
        trouble=_RANK,
    )


PAGES: Final = [("/targets", show, "GET")]
