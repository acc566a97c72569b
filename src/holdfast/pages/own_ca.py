"""Our CA: its chain, its orders by stage, what it issued, its ACME clients, its profiles and its CRLs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final
from urllib.parse import quote, urlencode

from starlette.responses import RedirectResponse, Response

from holdfast.operations.access import Action
from holdfast.operations.operation import named
from holdfast.pages import forms
from holdfast.pages.visit import Mistaken, Visit

LATE: Final = timedelta(minutes=15)  # a certificate without a download on record
_LISTS: Final = {  # tab: (operation, its title)
    "orders": ("orders.list", "Orders"),
    "certificates": ("issued.list", "Certificates"),
    "accounts": ("accounts.list", "Accounts"),
    "eab": ("eab.list", "EAB keys"),
}
_SHOWN: Final = ("names", "owner", "note")


async def first(visit: Visit) -> Response:
    found = (await visit.call("ca.list")).items
    if found:
        return RedirectResponse(f"/cas/{quote(found[0].ca, safe='')}", 303)
    return await visit.show("own_ca_none.html")


async def show(visit: Visit) -> Response:
    """The overview of one CA, or one of its lists."""
    name, tab = visit.path("ca"), visit.request.path_params.get("tab", "overview")
    found = await visit.call("ca.get", ca=name)
    stages = await visit.call("ca.stages", ca=name)
    page = None
    if tab in _LISTS:
        page = await visit.call(_LISTS[tab][0], ca=name, limit=50, cursor=visit.query.get("cursor"))
    recent = [] if tab != "overview" else await _under_way(visit, name)
    return await visit.show(
        "own_ca.html",
        found=found,
        stages=stages,
        tab=tab if tab in (*_LISTS, "profiles", "crls") else "overview",
        tabs=_tabs(found, stages),
        others=[each.ca for each in (await visit.call("ca.list")).items],
        page=page,
        older=f"?{urlencode({'cursor': page.next})}" if page is not None and page.next else "",
        under_way=recent,
        pauses=(await visit.call("pauses.list")).items if tab == "overview" else [],
        offered=next(each for each in stages.deliveries if each.stage == "offered"),
        late=LATE,
        may=visit.may(Action.CHANGE_ACME_CLIENTS) and not visit.principal.confined,
        may_revoke=visit.may(Action.REVOKE_ISSUED) and not visit.principal.confined,
        common_name=_common_name,
    )


def _common_name(subject: str) -> str:
    """What people call a CA: the common name of its subject."""
    return next((part[3:] for part in subject.split(",") if part.startswith("CN=")), subject)


async def _under_way(visit: Visit, ca: str) -> list[Any]:
    """The oldest orders that are not over."""
    return list((await visit.call("orders.list", ca=ca, under_way=True, limit=10)).items)


def _tabs(found: Any, stages: Any) -> list[dict[str, Any]]:
    base = f"/cas/{quote(found.ca, safe='')}"
    under_way = sum(each.number for each in stages.orders)
    numbers = {"orders": under_way, "certificates": stages.valid}
    lists = [
        {"key": key, "title": title, "href": f"{base}/{key}", "n": numbers.get(key)}
        for key, (_, title) in _LISTS.items()
    ]
    return [
        {"key": "overview", "title": "Overview", "href": base},
        *lists,
        {"key": "profiles", "title": "Profiles", "href": f"{base}/profiles", "n": len(found.options.profiles)},
        {"key": "crls", "title": "CRLs", "href": f"{base}/crls", "n": len(stages.crls)},
    ]


async def eab_form(visit: Visit) -> Response:
    return await _eab(visit, {}, {})


async def eab_create(visit: Visit) -> Response:
    """The MAC key is shown on this page, and never again: so no other page follows."""
    ca, operation, given = visit.path("ca"), named("eab.create"), await visit.form()
    try:
        made = await visit.call("eab.create", **{**forms.read(operation, given), "ca": ca})
    except Mistaken as wrong:
        return await _eab(visit, dict(given), wrong.fields, status=422)
    directory = (await visit.call("ca.get", ca=ca)).directory
    return await visit.show("own_ca_eab.html", ca=ca, made=made, fields=[], directory=directory)


async def _eab(visit: Visit, values: dict[str, str], errors: dict[str, str], status: int = 200) -> Response:
    shown = forms.fields(named("eab.create"), values, errors, *_SHOWN)
    return await visit.show("own_ca_eab.html", status, ca=visit.path("ca"), made=None, fields=shown, directory="")


async def revoke_dialog(visit: Visit) -> Response:
    return visit.part("dialogs/revoke_issued.html", ca=visit.path("ca"), serial=visit.path("serial"))


async def chain(visit: Visit) -> Response:
    text = await visit.call("ca.chain", ca=visit.path("ca"), root=True)
    headers = {"Content-Disposition": 'attachment; filename="chain.pem"'}
    return Response(text, media_type="application/x-pem-file", headers=headers)


PAGES: Final = [
    ("/cas", first, "GET"),
    ("/cas/{ca:str}", show, "GET"),
    ("/cas/{ca:str}/chain.pem", chain, "GET"),
    ("/cas/{ca:str}/eab/new", eab_form, "GET"),
    ("/cas/{ca:str}/eab/new", eab_create, "POST"),
    ("/cas/{ca:str}/revoke/{serial:str}", revoke_dialog, "GET"),
    ("/cas/{ca:str}/{tab:str}", show, "GET"),
]
