"""Agents: those that a person must look at first, then the silent ones; and one string that lets a host enrol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from starlette.responses import Response

from holdfast.errors import UserError
from holdfast.operations.access import Action
from holdfast.operations.operation import named
from holdfast.pages import forms
from holdfast.pages.states import State
from holdfast.pages.visit import Mistaken, Visit

_MOST: Final = 500
SILENT_AFTER: Final = timedelta(hours=1)
STATES: Final[Mapping[str, State]] = {
    "pending": State("pending", "To approve", "approval", "people"),
    "cloned": State("cloned", "Keys copied", "fail", "failing"),
    "silent": State("silent", "Silent", "retry", "warning"),
    "active": State("active", "Active", "ok", "ok"),
    "banned": State("banned", "Banned", "still", "revoked"),
    "retired": State("retired", "Retired", "still", "archived"),
}
_RANK: Final = {name: place for place, name in enumerate(STATES)}
_FIELDS: Final = ("name", "uses", "names", "networks", "owner", "approval")


def state_of(agent: Any, now: datetime) -> State:
    """As people see it: an active one that was not heard of for long is silent."""
    heard = agent.last_seen_at or agent.created_at
    silent = agent.state == "active" and now - heard > SILENT_AFTER
    return STATES["silent" if silent else agent.state]


async def show(visit: Visit) -> Response:
    return await _page(visit, [], {}, 200)


async def _page(
    visit: Visit, given: Sequence[tuple[str, str]], errors: Mapping[str, str], status: int, *, made: Any = None
) -> Response:
    now, found = visit.frame.now(), await visit.call("agents.list", limit=_MOST)
    rows = [(each, state_of(each, now)) for each in found.items]
    rows.sort(key=lambda row: (_RANK[row[1].key], row[0].last_seen_at or now, row[0].name))
    may_enrol = visit.may(Action.MAKE_AGENT_TOKENS) and not visit.principal.confined
    tokens = (await visit.call("agent_tokens.list", limit=100)).items if may_enrol else []
    return await visit.show(
        "agents.html",
        status,
        rows=rows,
        cut=found.next is not None,
        tokens=[each for each in tokens if each.revoked_at is None and each.expires_at > now and each.used < each.uses],
        fields=forms.fields(named("agent_tokens.create"), dict(given), errors, *_FIELDS),
        errors=errors,
        made=made,
        can_change=visit.may(Action.CHANGE_AGENTS),
        may_enrol=may_enrol,
    )


async def create_token(visit: Visit) -> Response:
    given, operation = await visit.form(), named("agent_tokens.create")
    try:
        made = await visit.call(operation.name, **forms.read(operation, given))
    except Mistaken as error:
        return await _page(visit, given, error.fields, 422)
    except UserError as error:
        return await _page(visit, given, {"name": f"{error} {error.hint}".strip()}, error.status)
    return await _page(visit, [], {}, 200, made=made)


async def detail(visit: Visit) -> Response:
    found = await visit.call("agents.get", agent=visit.path("agent"))
    state = state_of(found, visit.frame.now())
    return await visit.show("agent.html", found=found, state=state, can_change=visit.may(Action.CHANGE_AGENTS))


PAGES: Final = [
    ("/agents", show, "GET"),
    ("/agents/tokens", create_token, "POST"),
    ("/agents/{agent}", detail, "GET"),
]
