"""Certificates: the list with its filter line and views, asking for one, and acts on many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final
from urllib.parse import quote, urlencode

from starlette.responses import JSONResponse, Response

from holdfast.errors import UserError
from holdfast.operations.access import Action
from holdfast.operations.operation import named
from holdfast.pages import acting, filters, forms, states, words
from holdfast.pages.visit import Mistaken, Visit

PAGE: Final = 50
MOST: Final = 1000  # that an act on many takes at a time
_CAPPED: Final = 10_000  # above this a number is shown as 10k+


async def show(visit: Visit) -> Response:
    if "words" in visit.query:  # what was typed joins the tokens that are there
        typed = f"{visit.query.get('q', '')} {visit.query['words']}"
        return visit.back(f"/certificates?{urlencode({'q': ' '.join(typed.split())[:1000]})}")
    now = visit.frame.now()
    asked = filters.read(visit.query.get("q", "")[:1000], now)
    fields = {**asked.fields, "limit": PAGE, "cursor": visit.query.get("after") or None, "total": True}
    found = await visit.call("certificates.list", **fields)
    attention = await visit.attention()
    if not attention.certificates and not asked.tokens and not asked.words:
        return visit.back("/")
    saved = await visit.call("views.list")
    before = int(visit.query.get("from", "0")) if visit.query.get("from", "").isdigit() else 0
    return await visit.show(
        "certificates.html",
        asked=asked,
        rows=[_row(each, now) for each in found["items"]],
        total=found["total"] or 0,
        before=before,
        next=_next(asked, found["next"], before),
        tabs=_tabs(attention, saved),
        mine=next((each for each in saved if each.query == asked.text.strip()), None),
        tab=asked.text.strip(),
        columns=visit.query.get("columns", ""),
        can_ask=visit.may(Action.CREATE),
        can_renew=visit.may(Action.RENEW),
        command=_command(asked),
    )


def _row(found: Mapping[str, Any], now: Any) -> dict[str, Any]:
    status = found["status"]
    state = states.state_of(status)
    begun, ends = found["not_before"], found["not_after"]
    return {
        **found,
        "state_shown": state,
        "state_word": f"{state.word}, {status['attempt']} failed" if state.key == "retrying" else state.word,
        "next_word": next_action(status, state),
        "next_at": status["next_attempt_at"] if state.key not in ("paused", "archived") else None,
        "served": states.served(found),
        "life": (ends - begun).total_seconds() if begun and ends else 0,
    }


def next_action(status: Mapping[str, Any], state: states.State) -> str:
    """What happens next, before its time."""
    match state.key:
        case "not-served":
            return f"Deployment, try {status['attempt'] + 1}"
        case "retrying" | "failing" | "expired":
            return f"Attempt {status['attempt'] + 1}"
        case "to-approve":
            return "Request lapses"
        case "waiting":
            return {"BUDGET": "Budget: its turn", "ISSUER_PAUSED": "Issuer paused", "WINDOW": "Window opens",
                    "STAGGERED": "Its turn"}.get(status["reason_code"], "Attempt 1")  # fmt: skip
        case "renewing" | "issuing":
            return "CA decides; asked again" if status["reason_code"] == "CA_STILL_PENDING" else "Under way"
        case "revoked":
            return "Replacement issues"
        case "paused":
            return "Nothing"
        case "archived":
            return "Nothing"
    return "Renewal"


def _next(asked: filters.Asked, cursor: str | None, before: int) -> str:
    return "" if cursor is None else urlencode({"q": asked.text, "after": cursor, "from": before + PAGE})


def _tabs(attention: Any, saved: Sequence[Any]) -> list[dict[str, Any]]:
    """Views as tabs: those that all people have, then those that this person saved."""
    counted = attention.standings
    needs = sum(counted.get(each, 0) for each in filters.STANDINGS["needs-me"])
    views: list[tuple[str, str, int | None]] = [
        ("All", "", attention.certificates),
        ("Needs me", "state:needs-me", needs),
        ("Retrying", "state:retrying", counted.get("retrying", 0)),
        ("Expiring in 14 days", "expires:<14d", None),
        ("Without owner", "owner:none", None),
        *((each.name, each.query, None) for each in saved),
    ]
    return [
        {"title": title, "key": text, "href": f"/certificates?{urlencode({'q': text})}", "n": _capped(number)}
        for title, text, number in views
    ]


def _capped(number: int | None) -> int | str | None:
    return "10k+" if number is not None and number > _CAPPED else number


def _command(asked: filters.Asked) -> str:
    given = {"owner": "--owner", "issuer": "--issuer", "label": "--label"}
    parts = [f"{given[key]} {value}" for key, value in asked.tokens if key in given]
    parts += [f"--standing {each}" for each in asked.fields.get("standing", [])]
    return " ".join(["holdfast ls", *parts, *([f"--q {asked.words}"] if asked.words else [])])


# ── Views that a person saved ──


async def view_dialog(visit: Visit) -> Response:
    return visit.part("dialogs/view.html", q=visit.query.get("q", ""))


# ── Asking for one ──

_FIELDS: Final = ("names", "issuers", "owner", "labels")
_MORE: Final = ("name", "key", "profile", "lifetime_s", "approval_required")


async def request_form(visit: Visit) -> Response:
    return await _form(visit, {"names": visit.query.get("names", "")}, {}, 200)


async def _form(visit: Visit, values: Mapping[str, str], errors: Mapping[str, str], status: int) -> Response:
    operation = named("certificates.request")
    known = set(operation.input_model.model_fields)
    issuers = (await visit.call("issuers.list")).items if visit.may(Action.SEE_ISSUERS) else []
    return await visit.show(
        "request.html",
        status,
        fields=forms.fields(operation, values, errors, *(each for each in _FIELDS if each in known)),
        more=forms.fields(operation, values, errors, *(each for each in _MORE if each in known)),
        issuers=[each.name for each in issuers],
        errors=errors,
        values=values,
        plan=None,
        open_more=any(values.get(each) for each in _MORE),
    )


async def request(visit: Visit) -> Response:
    given = [each for each in await visit.form() if not each[0].startswith("_")]
    try:
        made = await visit.call("certificates.request", **forms.read(named("certificates.request"), given))
    except Mistaken as error:
        return await _form(visit, dict(given), error.fields, 422)
    except UserError as error:
        return await _form(visit, dict(given), {"names": f"{error} {error.hint}".strip()}, error.status)
    name = acting.plain(made)["name"]
    return visit.back(f"/certificates/{quote(name, safe='')}", f"{name} is requested.")


async def plan(visit: Visit) -> Response:
    """What would happen: the request is carried out, looked at, and undone."""
    given = [each for each in await visit.form() if not each[0].startswith("_")]
    fields = forms.read(named("certificates.request"), given)
    if not fields.get("names"):
        return visit.part("parts/plan.html", steps=[], problem="Type a name to see what would happen.", command="")
    try:
        made = await visit.call("certificates.request", dry_run=True, **fields)
    except Mistaken as error:
        return visit.part("parts/plan.html", 422, steps=[], problem=" ".join(error.fields.values()), command="")
    except UserError as error:
        return visit.part("parts/plan.html", error.status, steps=[], problem=f"{error} {error.hint}", command="")
    return visit.part("parts/plan.html", steps=_steps(made), problem="", command=_issue(fields))


def _steps(made: Any) -> list[str]:
    """The plan in sentences."""
    status = made.status
    names, first = words.counted(len(made.names), "name"), made.issuers[0]
    waits = status.reason_code == "AWAITING_APPROVAL"
    steps = [f"{made.name} with {names} is kept from now on, for {made.owner or 'no owner'}."]
    if waits:
        steps.append("A second person must approve it first.")
    steps.append(f"{first} is asked at once." if not waits else f"Then {first} is asked.")
    others = made.issuers[1:]
    if others:
        steps.append(f"If it cannot: {', '.join(others)}.")
    life = made.lifetime_s
    lives = (
        f"It lives {words.span(timedelta(seconds=life))}, " if life else "The issuer decides how long it lives; it is "
    )
    steps.append(f"{lives}renewed by itself when two thirds are over.")
    return steps


def _issue(fields: Mapping[str, Any]) -> str:
    first, *more = fields["names"]
    parts = ["holdfast issue", first, *(more)]
    parts += [f"--issuer {each}" for each in fields.get("issuers", [])]
    parts += [f"--owner {fields['owner']}"] if fields.get("owner") else []
    return " ".join([*parts, "--wait"])


# ── Acts on many ──


async def bulk_dialog(visit: Visit) -> Response:
    refs = visit.request.query_params.getlist("ref")[:MOST]
    return visit.part("dialogs/bulk.html", refs=refs, what=visit.path("what"))


async def bulk(visit: Visit) -> Response:
    """One operation for each, one after the other; what cannot be done to one does not hold up the others."""
    given, what = await visit.form(), visit.path("what")
    refs = [value for name, value in given if name == "ref"][:MOST]
    fields = dict(each for each in given if each[0] != "ref")
    hours = float(fields["hours"]) if fields.get("hours", "").replace(".", "", 1).isdigit() else 0.0
    done, failed = 0, list[str]()
    for place, ref in enumerate(refs):
        try:
            await _one(visit, what, ref, fields, timedelta(hours=min(hours, 168)) * place / max(1, len(refs)))
            done += 1
        except (UserError, Mistaken) as error:
            failed.append(f"{ref}: {error}")
    said = f"{_VERBS[what]}: {words.counted(done, 'certificate')}."
    if failed:
        said += f" {len(failed)} could not be: {failed[0]}"
    if "application/json" in visit.request.headers.get("accept", ""):
        return JSONResponse({"says": said, "go": visit.request.headers.get("referer", "")[:0] or None})
    return visit.back("/certificates", said)


_VERBS: Final = {"renew": "Renewal begun", "archive": "Archived", "label": "Labelled"}


async def _one(visit: Visit, what: str, ref: str, fields: Mapping[str, str], delay: timedelta) -> None:
    if what == "renew":
        await visit.call("certificates.renew", ref=ref, delay_s=delay.total_seconds())
    elif what == "archive":
        await visit.call("certificates.archive", ref=ref)
    else:
        held = acting.plain(await visit.call("certificates.get", ref=ref))
        added = forms.pairs(fields.get("labels", ""))
        labels = {**held["labels"], **added}
        await visit.call("certificates.change", version=held["version"], ref=ref, labels=labels)


# ── Export ──


async def export(visit: Visit) -> Response:
    """The list as CSV: all that match, in pages."""
    asked = filters.read(visit.query.get("q", "")[:1000], visit.frame.now())
    lines, cursor = ["name,state,owner,issuer,expires,safe until"], None
    while True:
        found = await visit.call("certificates.list", **{**asked.fields, "limit": 500, "cursor": cursor})
        lines += [_line(_row(each, visit.frame.now())) for each in found["items"]]
        cursor = found["next"]
        if cursor is None or len(lines) > 100_000:
            break
    headers = {"Content-Disposition": 'attachment; filename="certificates.csv"'}
    return Response("\n".join(lines) + "\n", media_type="text/csv", headers=headers)


def _line(row: Mapping[str, Any]) -> str:
    status: Mapping[str, Any] = row["status"]
    cells: Sequence[object] = (
        row["name"], row["state_word"], row["owner"], row["issuer"] or row["issuers"][0], row["not_after"] or "",
        status["safe_until"] or "",
    )  # fmt: skip
    return ",".join(_cell(str(each)) for each in cells)


def _cell(text: str) -> str:
    """Quoted, and never a formula to a program that opens it."""
    safe = f"'{text}" if text[:1] in "=+-@\t\r" else text
    return '"' + safe.replace('"', '""') + '"'


PAGES: Final = [
    ("/certificates", show, "GET"),
    ("/certificates.csv", export, "GET"),
    ("/certificates/request", request_form, "GET"),
    ("/certificates/request", request, "POST"),
    ("/certificates/request/plan", plan, "POST"),
    ("/certificates/view", view_dialog, "GET"),
    ("/certificates/bulk/{what:str}", bulk_dialog, "GET"),
    ("/certificates/bulk/{what:str}", bulk, "POST"),
]
