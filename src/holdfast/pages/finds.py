"""Finds: certificates that were seen somewhere; those that are served and not managed here first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.responses import Response

from holdfast.operations.access import Action
from holdfast.pages.states import State
from holdfast.pages.visit import Visit

_MOST: Final = 200
STATES: Final[Mapping[str, State]] = {
    "new": State("new", "Not managed", "retry", "unlinked"),
    "adopted": State("adopted", "Adopted", "ok", "linked"),
    "ignored": State("ignored", "Ignored", "still", "archived"),
    "gone": State("gone", "Gone", "still", "archived"),
}


async def show(visit: Visit) -> Response:
    summary = await visit.call("discovery.summary")
    found = await visit.call("finds.list", limit=_MOST, state=["new", "adopted", "ignored"])
    rows = sorted(found.items, key=lambda each: (each.state != "new" or not each.adopt, each.not_after, each.id))
    return await visit.show(
        "finds.html",
        summary=summary,
        finds=rows,
        can_change=visit.may(Action.CHANGE_FINDS) and not visit.principal.confined,
        SHOWN=STATES,
    )


PAGES: Final = [("/finds", show, "GET")]
