"""Approvals: what waits for a second person, what would happen on yes and on no, and what was decided."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from holdfast.operations.access import Action, Owned
from holdfast.pages.visit import Visit

_DECIDED: Final = ("approved", "rejected", "timed_out", "withdrawn")


async def show(visit: Visit) -> Response:
    waiting = [await _in_full(visit, each) for each in (await visit.call("approvals.list", limit=50)).items]
    decided = [
        await _in_full(visit, each)
        for state in _DECIDED
        for each in (await visit.call("approvals.list", state=state, limit=10)).items
    ]
    chosen = next((each for each in waiting if each["id"] == visit.query.get("id")), waiting[0] if waiting else None)
    decided.sort(key=lambda each: each["decided_at"], reverse=True)
    return await visit.show("approvals.html", waiting=waiting, decided=decided[:20], chosen=chosen)


async def _in_full(visit: Visit, found: Any) -> dict[str, Any]:
    about = await visit.call("certificates.get", ref=found.certificate)
    mine = visit.principal.actor in (found.requested_by, about.changed_by)
    owned = Owned(about.owner, about.labels)
    return {
        **found.model_dump(),
        "about": about,
        "mine": mine,
        "may": visit.may(Action.APPROVE, owned) and not mine,
    }


PAGES: Final = [("/approvals", show, "GET")]
