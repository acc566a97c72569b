"""Issuers: whether they take orders, what their limits leave, which errors came, and who waits for a turn."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any, Final

from starlette.responses import Response

from holdfast.errors import UserError
from holdfast.operations.access import Action
from holdfast.operations.operation import named
from holdfast.pages import budgets, forms
from holdfast.pages.visit import Mistaken, Visit

_DAY: Final = timedelta(days=1)


async def show(visit: Visit) -> Response:
    rows = (await visit.call("issuers.list", limit=100)).items
    confined = visit.principal.confined
    rates = await visit.call("stats.issuance_rate", by="day", number=7)
    attempts = (await visit.call("issuances.list", limit=500)).items if not confined else []
    now = visit.frame.now()
    recent = [each for each in attempts if now - each.started_at < _DAY]
    found = [await _issuer(visit, row, rates, recent) for row in rows]
    # The busiest is open, then trouble; the others have a line each.
    found.sort(key=lambda each: (-len(each["budgets"]), -each["issued"], each["name"]))
    found[1:] = sorted(found[1:], key=lambda each: each["state"] == "active" and not each["breaker_open"])
    return await visit.show("issuers.html", found=found, can_change=visit.may(Action.CHANGE_ISSUERS) and not confined)


async def _issuer(visit: Visit, row: Any, rates: Any, recent: list[Any]) -> dict[str, Any]:
    mine = [each for each in recent if each.issuer == row.name]
    failed = Counter(each.reason_code or "INTERNAL" for each in mine if each.state == "failed")
    own = [each for each in rates if each.issuer == row.name]
    waiting = await _waiting(visit, row.name)
    left = [
        each
        for each in await budgets.of_issuer(visit, row.name)
        if "/names/" not in each.key and "/ari" not in each.key
    ]
    issued = sum(each.issued for each in own)
    return {
        **row.model_dump(),
        "budgets": sorted(left, key=lambda each: each.gauge.share)[:4],
        "errors": failed.most_common(4),
        "most": max(failed.values(), default=1),
        "tried": len(mine),
        "issued": issued,
        "mean_s": sum(each.mean_s * each.issued for each in own) / issued if issued else None,
        "longest_s": max((each.longest_s for each in own), default=None),
        "waiting": waiting["items"],
        "waits": waiting["total"] or 0,
    }


async def _waiting(visit: Visit, name: str) -> Any:
    """The first that wait for a turn there; nobody is asked where none waits at all."""
    if not (await visit.attention()).standings.get("waiting"):
        return {"items": [], "total": 0}
    return await visit.call("certificates.list", issuer=name, standing=["waiting"], sort="expires", limit=5, total=True)


_FIELDS: Final = ("name", "kind", "preset")


async def new_form(visit: Visit) -> Response:
    return await _form(visit, {key: visit.query.get(key, "") for key in _FIELDS}, {}, 200)


async def _form(visit: Visit, values: dict[str, str], errors: dict[str, str], status: int) -> Response:
    operation = named("issuers.add")
    return await visit.show(
        "issuer_new.html",
        status,
        fields=forms.fields(operation, values, errors, *_FIELDS, "settings", "credentials"),
        errors=errors,
        kinds=sorted(visit.services.issuer_kinds),
    )


async def add(visit: Visit) -> Response:
    given = [each for each in await visit.form() if not each[0].startswith("_")]
    fields = forms.read(named("issuers.add"), given)
    try:
        made = await visit.call("issuers.add", **fields)
    except Mistaken as error:
        return await _form(visit, _typed(given), error.fields, 422)
    except UserError as error:
        return await _form(visit, _typed(given), {"name": f"{error} {error.hint}".strip()}, error.status)
    return visit.back("/issuers", f"Issuer {made.name} is added. Test it before you rely on it.")


def _typed(given: list[tuple[str, str]]) -> dict[str, str]:
    """What was typed stays, except secrets."""
    return {name: value for name, value in given if name != "credentials"}


async def remove_dialog(visit: Visit) -> Response:
    return visit.part("dialogs/remove_issuer.html", found=await visit.call("issuers.get", name=visit.path("name")))


PAGES: Final = [
    ("/issuers", show, "GET"),
    ("/issuers/new", new_form, "GET"),
    ("/issuers/new", add, "POST"),
    ("/issuers/{name}/remove", remove_dialog, "GET"),
]
