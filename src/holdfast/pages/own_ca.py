"""Our CA: its chain, orders by stage with evidence of delivery, certificates, accounts, keys and profiles."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from starlette.responses import Response

from holdfast.operations.access import Action
from holdfast.pages import states
from holdfast.pages.visit import Visit

_TABS: Final = ("overview", "orders", "certificates", "accounts", "eab", "profiles")
_STAGES: Final = ("pending", "ready", "processing", "valid")
_DELIVERY: Final = ("offered", "fetched", "acknowledged", "deployed")
_STATE: Final = {
    "pending": states.State("pending", "Pending", "active", "renewing"),
    "ready": states.State("ready", "Ready", "planned", "clock"),
    "processing": states.State("processing", "Processing", "active", "renewing"),
    "valid": states.State("valid", "Valid", "ok", "ok"),
    "invalid": states.State("invalid", "Invalid", "fail", "failing"),
}
_NEXT: Final = {
    "pending": "the client proves its names",
    "ready": "the client sends its CSR",
    "processing": "it is signed",
    "valid": "the client fetches it",
    "invalid": "nothing",
}


async def first(visit: Visit) -> Response:
    found = (await visit.call("ca.list")).items
    if found:
        return await _page(visit, found[0].ca, found)
    return await visit.show("own_ca_none.html", can_make=visit.may(Action.CHANGE_CAS))


async def show(visit: Visit) -> Response:
    return await _page(visit, visit.path("ca"), (await visit.call("ca.list")).items)


async def _page(visit: Visit, ca: str, everyone: list[Any]) -> Response:
    tab = visit.query.get("tab", "overview")
    tab = tab if tab in _TABS else "overview"
    orders = (await visit.call("orders.list", ca=ca, limit=500)).items
    issued = (await visit.call("issued.list", ca=ca, limit=500)).items
    good = [each for each in issued if each.revoked_at is None]
    open_orders = [each for each in orders if each.state in ("pending", "ready", "processing")]
    return await visit.show(
        "own_ca.html",
        tab=tab,
        everyone=everyone,
        found=await visit.call("ca.get", ca=ca),
        orders=orders,
        under_way=open_orders[:20],
        stages=[(each, _counted(orders, "state")[each], _oldest(orders, each)) for each in _STAGES],
        delivery=[(each, _counted(good, "delivery")[each]) for each in _DELIVERY],
        issued=issued,
        accounts=(await visit.call("accounts.list", ca=ca, limit=200)).items,
        keys=(await visit.call("eab.list", ca=ca, limit=200)).items,
        pauses=(await visit.call("pauses.list", limit=50)).items,
        waiting=_counted(good, "delivery")["offered"],
        can_change=visit.may(Action.CHANGE_ACME_CLIENTS),
        can_revoke=visit.may(Action.REVOKE_ISSUED),
        SHOWN=_STATE,
        NEXT=_NEXT,
    )


def _counted(rows: list[Any], field: str) -> Counter[str]:
    return Counter(getattr(each, field) for each in rows)


def _oldest(orders: list[Any], state: str) -> Any:
    return min((each.created_at for each in orders if each.state == state), default=None)


async def revoke_dialog(visit: Visit) -> Response:
    return visit.part("dialogs/revoke_issued.html", ca=visit.path("ca"), serial=visit.path("serial"))


async def eab_dialog(visit: Visit) -> Response:
    return visit.part("dialogs/eab.html", ca=visit.path("ca"))


PAGES: Final = [
    ("/cas", first, "GET"),
    ("/cas/{ca}", show, "GET"),
    ("/cas/{ca}/eab", eab_dialog, "GET"),
    ("/cas/{ca}/revoke/{serial}", revoke_dialog, "GET"),
]
