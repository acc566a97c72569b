"""The palette: certificates by name, what can be done with the first, and places to go to."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from starlette.responses import Response

from holdfast.operations.access import Action
from holdfast.pages import certificates, rail, states, words
from holdfast.pages.visit import Visit

_MOST: Final = 6


async def show(visit: Visit) -> Response:
    text = visit.query.get("q", "").strip()[:200]
    found = list[dict[str, Any]]()
    places = [each for group in rail.rail_for(visit.principal, visit.frame.built).values() for each in group]
    if text and text[0] not in ">":
        fields: dict[str, Any] = {"owner": text[1:]} if text[0] == "@" else {"q": text}
        now = visit.frame.now()
        items = (
            (await visit.call("certificates.list", limit=_MOST, **fields))["items"]
            if len(text) > 1 or text[0] != "@"
            else []
        )
        found = [_shown(each, now) for each in items]
    wanted = text.removeprefix(">").strip().lower()
    return visit.part(
        "parts/palette.html",
        text=text,
        found=found,
        places=[each for each in places if wanted in each.title.lower()],
        can_renew=visit.may(Action.RENEW),
        can_ask=visit.may(Action.CREATE),
    )


def _shown(found: Any, now: Any) -> dict[str, Any]:
    status = found["status"]
    state = states.state_of(status)
    at = status["next_attempt_at"]
    when = f" in {words.span(at - now)}" if at and at > now else ""
    return {
        "name": found["name"],
        "state": state,
        "says": f"{state.word}, {certificates.next_action(status, state).lower()}{when}",
        "href": f"/certificates/{quote(found['name'], safe='')}",
    }


PAGES: Final = [("/palette", show, "GET")]
