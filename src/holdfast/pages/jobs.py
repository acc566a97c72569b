"""Jobs: how many there are in each state, what they wait for, and what can be done about one."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from starlette.responses import Response

from holdfast.operations.access import Action
from holdfast.pages import states
from holdfast.pages.visit import Visit

PAGE: Final = 100
_MOST: Final = 500  # that are read to count what they wait for; the page says when there are more


async def show(visit: Visit) -> Response:
    state, kind = visit.query.get("state", ""), visit.query.get("kind", "")
    page = await visit.call("jobs.list", state=_real(state), kind=kind or None, limit=_MOST)
    found: list[Any] = page.items
    now = visit.frame.now()
    shown = [each for each in found if not state or _state(each, now) == state]
    ready = [each for each in found if each.state == "ready" and each.due_at <= now]
    return await visit.show(
        "jobs.html",
        rows=[{**each.model_dump(), "shown": states.JOBS[_state(each, now)]} for each in shown[:PAGE]],
        counted=Counter(_state(each, now) for each in found),
        reasons=Counter(each.reason_code for each in found if each.reason_code and each.state == "ready").most_common(
            8
        ),
        oldest=min((each.due_at for each in ready), default=None),
        state=state,
        kind=kind,
        kinds=sorted({each.kind for each in found}),
        cut=page.next is not None,
        can_act=visit.may(Action.CHANGE_JOBS),
        SHOWN=states.JOBS,
    )


def _real(state: str) -> str | None:
    return {"waiting": "ready", "quarantined": "dead"}.get(state, state) or None


def _state(job: Any, now: Any) -> str:
    """As people see it: one that is not due yet waits; one that killed its worker is in quarantine."""
    if job.state == "ready":
        return "ready" if job.due_at <= now else "waiting"
    return "quarantined" if job.state == "dead" and job.crashes >= 3 else str(job.state)


async def cancel_dialog(visit: Visit) -> Response:
    return visit.part("dialogs/cancel_job.html", job=await visit.call("jobs.get", job=visit.path("job")))


PAGES: Final = [("/jobs", show, "GET"), ("/jobs/{job}/cancel", cancel_dialog, "GET")]
