"""One certificate: a sentence, key figures, its life line, and tabs for what happened, what is held, and why."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

from starlette.responses import Response

from holdfast.core import reasons
from holdfast.core.documents import yaml_text
from holdfast.core.revocation_reason import RevocationReason
from holdfast.operations.access import Action, Owned
from holdfast.pages import states, targets, timeline, words
from holdfast.pages.visit import Visit

_EVENTS: Final = 500
_PAGES: Final = 20  # of events that are read
_SHOWN: Final = 50  # entries at first


async def show(visit: Visit) -> Response:
    return await _page(visit, "timeline", **await _timeline(visit))


async def versions(visit: Visit) -> Response:
    found = await visit.call("certificates.versions", ref=visit.path("ref"))
    return await _page(
        visit,
        "versions",
        versions=list(reversed(found)) if found and found[0].issued_at < found[-1].issued_at else found,
    )


async def served(visit: Visit) -> Response:
    return await _page(visit, "served")


async def explain(visit: Visit) -> Response:
    given = visit.query.get("at", "")
    at = f"{given}:00Z" if len(given) == 16 else given or None
    found = await visit.call("certificates.explain", ref=visit.path("ref"), at=at)
    return await _page(visit, "explain", explained=found, at=given, code=found.blocking or "", command=_command(found))


async def raw(visit: Visit) -> Response:
    found = await visit.call("certificates.get", ref=visit.path("ref"))
    text = json.dumps(found.model_dump(mode="json"), indent=2, ensure_ascii=False)
    return await _page(visit, "raw", text=words.plain(text))


async def _page(visit: Visit, tab: str, **more: Any) -> Response:
    ref, now = visit.path("ref"), visit.frame.now()
    found = await visit.call("certificates.get", ref=ref)
    attempts = (await visit.call("issuances.list", certificate=found.id, limit=50)).items
    status = found.status.model_dump()
    state = states.state_of(status)
    owned = Owned(found.owner, found.labels)
    seen = await _served(visit, found)
    pushed = await _pushed(visit, found)
    return await visit.show(
        "certificate.html",
        tab=tab,
        found=found,
        status=found.status,
        state=state,
        says=_says(found, state, now),
        line=timeline.life_line(found, attempts, now),
        seen=seen,
        pushed=pushed,
        PUSHED=targets.STATES,
        place=f"/certificates/{quote(found.name, safe='')}",
        can={each.name.lower(): visit.may(each, owned) for each in (Action.RENEW, Action.CHANGE, Action.REVOKE)},
        copies=_copies(found),
        actor=_actor(found),
        **more,
    )


# ── The sentence ──


def _says(found: Any, state: states.State, now: datetime) -> tuple[str, list[str]]:
    """What is wrong or that nothing is; then what happens next; then whether it is safe."""
    status = found.status
    first = _first(found, state)
    rest = list[str]()
    if status.attempt and state.key in ("retrying", "failing", "expired"):
        rest.append(f"{words.counted(status.attempt, 'attempt')} failed" + (";" if status.next_attempt_at else "."))
        if status.next_attempt_at:
            rest.append(f"attempt {status.attempt + 1} begins {_in(status.next_attempt_at, now)}.")
    elif state.key == "ok" and status.next_attempt_at:
        rest.append(f"It is renewed {_in(status.next_attempt_at, now)}.")
    elif state.key == "waiting" and status.next_attempt_at and status.reason_code != "ISSUER_PAUSED":
        rest.append(f"It goes on {_in(status.next_attempt_at, now)}.")
    elif status.approval_ends_at:
        rest.append(f"The request lapses {_in(status.approval_ends_at, now)}.")
    fits = status.attempts_that_fit
    if fits is not None and state.key == "retrying":
        rest.append(f"It is safe: {words.counted(fits, 'more attempt fits', 'more attempts fit')} before it expires.")
    elif state.key == "failing" and status.expires_at:
        rest.append(f"It expires {_in(status.expires_at, now)}, and no attempt before that is planned.")
    return first, rest


def _first(found: Any, state: states.State) -> str:
    status = found.status
    if state.key == "ok":
        return "All is well."
    if state.key == "expired" and status.reason_code != "EXPIRED":
        return f"It has expired. {status.reason}"
    return str(status.reason)


def _in(at: datetime, now: datetime) -> str:
    return f"in {words.span(at - now)}" if at > now else "now"


def _actor(found: Any) -> str:
    match found.status.acts_next:
        case "you":
            return found.owner or "its owner"
        case "ca":
            return "the issuer"
        case "holdfast":
            return "Holdfast"
        case "nobody":
            return "no person"
        case other:
            return f"an {other}"


# ── Tabs ──


async def _timeline(visit: Visit) -> dict[str, Any]:
    ref, now = visit.path("ref"), visit.frame.now()
    found = await visit.call("certificates.get", ref=ref)
    events, after = list[Any](), 0
    for _ in range(_PAGES):
        page = await visit.call("certificates.events", ref=ref, after=after, limit=_EVENTS)
        events += page.items
        if len(page.items) < _EVENTS:
            break
        after = page.next
    letters = []
    if visit.may(Action.SEE_NOTIFICATIONS, Owned(found.owner, found.labels)):
        letters = (await visit.call("notifications.list", subject=found.id, limit=50)).items
    entries = timeline.past(events, letters, found.status.since, found.status.expires_at)
    only = visit.query.get("only", "")
    entries = [
        each for each in entries if not only or each.group == only or (only == "attempts" and each.kind == "gap")
    ]
    earlier = visit.query.get("all") is not None
    backoff = _backoff(found, now)
    return {
        "future": timeline.future(found.status, now),
        "entries": entries if earlier else entries[:_SHOWN],
        "number": len(events),
        "more": 0 if earlier else max(0, len(entries) - _SHOWN),
        "only": only,
        "opened": next((each for each in entries if each.steps), None),
        "backoff": backoff,
    }


def _backoff(found: Any, now: datetime) -> dict[str, str] | None:
    """The wait that is under way, with how much of it is over."""
    status = found.status
    last, again = found.last_failure_at, status.next_attempt_at
    if last is None or again is None or again <= now or not status.attempt:
        return None
    left = None if status.since is None or status.expires_at is None else status.expires_at - status.since
    over = f"{words.span(now - last)} of {words.span(again - last)} are over"
    return {"formula": timeline.formula(status.attempt, left), "over": over}


async def _served(visit: Visit, found: Any) -> list[Any]:
    """What was seen at each address where it is to be served."""
    if not visit.may(Action.SEE_ENDPOINTS):
        return []
    page = await visit.call("endpoints.list", limit=500)
    return [each for each in page.items if each.certificate == found.name]


async def _pushed(visit: Visit, found: Any) -> list[Any]:
    """Its deployments that are wanted, one for each target."""
    if not found.targets or not visit.may(Action.SEE_TARGETS):
        return []
    page = await visit.call("deployments.list", certificate=found.name, limit=50)
    return [each for each in page.items if each.state != "superseded"]


def _command(found: Any) -> str:
    _, colon, command = found.would_change_it.rpartition(": holdfast ")
    return f"holdfast {command}" if colon else ""


def _copies(found: Any) -> dict[str, str]:
    name = quote(found.name, safe="")
    asked: Mapping[str, Any] = {
        "names": found.names,
        "issuers": found.issuers,
        "owner": found.owner,
        "labels": found.labels,
    }
    document = {"certificates": [{"name": found.name, **{key: value for key, value in asked.items() if value}}]}
    return {
        "Command": f"holdfast status {found.name}",
        "curl": f'curl -H "Authorization: Bearer $HOLDFAST_TOKEN" $HOLDFAST_SERVER_URL/api/v1/certificates/{name}',
        "YAML": yaml_text.write(document),
    }


# ── Dialogs ──


async def revoke_dialog(visit: Visit) -> Response:
    found = await visit.call("certificates.get", ref=visit.path("ref"))
    return visit.part("dialogs/revoke.html", found=found, reasons=[each.value for each in RevocationReason])


async def archive_dialog(visit: Visit) -> Response:
    return visit.part("dialogs/archive.html", found=await visit.call("certificates.get", ref=visit.path("ref")))


# ── Reasons ──


async def all_reasons(visit: Visit) -> Response:
    """Every reason code with its sentence: the page that chips lead to."""
    known = [(code.value, meaning.sentence, meaning.acts_next) for code, meaning in reasons.MEANINGS.items()]
    return await visit.show("reasons.html", known=sorted(known))


PAGES: Final = [
    ("/certificates/{ref}", show, "GET"),
    ("/certificates/{ref}/versions", versions, "GET"),
    ("/certificates/{ref}/served", served, "GET"),
    ("/certificates/{ref}/explain", explain, "GET"),
    ("/certificates/{ref}/raw", raw, "GET"),
    ("/certificates/{ref}/revoke", revoke_dialog, "GET"),
    ("/certificates/{ref}/archive", archive_dialog, "GET"),
    ("/reasons", all_reasons, "GET"),
]
