"""Settings: channels, policies, and where each value of the configuration comes from; access_settings has the rest."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import RedirectResponse, Response

from holdfast.errors import UserError
from holdfast.operations.access import Action
from holdfast.operations.operation import named
from holdfast.pages import forms
from holdfast.pages.visit import Mistaken, Visit

_TABS: Final = {
    "people": ("People", Action.SEE_PEOPLE),
    "tokens": ("Tokens", Action.SEE_TOKENS),
    "channels": ("Channels", Action.SEE_CHANNELS),
    "policies": ("Policies", Action.SEE),
    "sessions": ("Sessions", Action.SEE_SELF),
    "values": ("Values", Action.SEE_CLUSTER),
}
_NEW: Final = ("name", "kind", "settings", "credentials", "severities", "owners", "fallback")


def tabs(visit: Visit) -> list[dict[str, str]]:
    """The tabs that this person may see; people and tokens belong to the whole installation."""
    whole = ("people", "tokens", "values")
    return [
        {"key": key, "title": title, "href": f"/settings/{key}"}
        for key, (title, action) in _TABS.items()
        if visit.may(action) and not (key in whole and visit.principal.confined)
    ]


async def first(visit: Visit) -> Response:
    return RedirectResponse(tabs(visit)[0]["href"], 303)


async def show(visit: Visit) -> Response:
    return await _page(visit, {}, {}, 200)


async def _page(visit: Visit, typed: dict[str, str], errors: dict[str, str], status: int) -> Response:
    seen = [each["key"] for each in tabs(visit)]
    tab = visit.request.path_params.get("tab", "")
    known = await _known(visit, tab) if tab in seen else []
    new = named("channels.add")
    fields = [each for each in _NEW if each in new.input_model.model_fields]
    return await visit.show(
        "settings.html",
        status,
        tab=tab,
        tabs=tabs(visit),
        known=known,
        fields=forms.fields(new, typed, errors, *fields),
        kinds=sorted(visit.services.post.kinds),
        errors=errors,
        can_change=visit.may(Action.CHANGE_CHANNELS) and not visit.principal.confined,
    )


async def _known(visit: Visit, tab: str) -> Any:
    match tab:
        case "channels":
            return await visit.call("channels.list")
        case "policies":
            return (await visit.call("policies.list", limit=200)).items
    return visit.frame.values()


async def add_channel(visit: Visit) -> Response:
    visit.request.path_params["tab"] = "channels"
    given = [each for each in await visit.form() if not each[0].startswith("_")]
    typed = {name: value for name, value in given if name != "credentials"}
    try:
        made = await visit.call("channels.add", **forms.read(named("channels.add"), given))
    except Mistaken as error:
        return await _page(visit, typed, error.fields, 422)
    except UserError as error:
        return await _page(visit, typed, {"name": f"{error} {error.hint}".strip()}, error.status)
    return visit.back("/settings/channels", f"Channel {made.name} is added. Test it before you rely on it.")


PAGES: Final = [
    ("/settings", first, "GET"),
    ("/settings/{tab}", show, "GET"),
    ("/settings/channels", add_channel, "POST"),
]
