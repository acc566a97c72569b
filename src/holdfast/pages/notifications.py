"""Notifications: all, those that are tried again, and dead letters by cause; requeue, resolve, test a channel."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlencode

from starlette.responses import Response

from holdfast.operations.access import Action
from holdfast.pages import states, words
from holdfast.pages.visit import Visit

PAGE: Final = 50
_ROWS: Final = 3  # of a group, at first
_STATES: Final = {"all": None, "failing": "failed", "dead": "dead"}
_WHY: Final = {
    "ATTEMPTS_USED_UP": "{channel} answered with an error five times",
    "CHANNEL_DOWN": "{channel} was down for 72 hours",
    "CHANNEL_GONE": "Channel {channel} is not there any more",
    "CHANNEL_MISCONFIGURED": "{channel} refuses us",
    "REFUSED": "{channel} refuses these notifications",
    "POISON": "{channel} broke down while sending",
    "NO_CHANNEL": "No channel wants to hear of this",
}


async def show(visit: Visit) -> Response:
    tab = visit.query.get("tab", "")
    whole = not visit.principal.confined
    summary = await visit.call("notifications.summary") if whole else None
    counted = summary.by_state if summary else {}
    if tab not in _STATES:
        tab = "dead" if counted.get("dead") else "all"
    channel, severity = visit.query.get("channel") or None, visit.query.get("severity") or None
    groups, rows, more = list[Any](), list[Any](), None
    if tab == "dead" and whole:
        groups = await _groups(visit, channel, severity)
    else:
        fields: dict[str, Any] = {
            "state": _STATES[tab],
            "channel": channel,
            "severity": severity,
            "cursor": visit.query.get("after"),
        }
        page = await visit.call("notifications.list", limit=PAGE, **fields)
        rows, more = page.items, page.next
    return await visit.show(
        "notifications.html",
        tab=tab,
        counted=counted,
        groups=groups,
        rows=rows,
        next=urlencode({"tab": tab, "after": more}) if more else "",
        channels=await visit.call("channels.list") if visit.may(Action.SEE_CHANNELS) else [],
        channel=channel or "",
        severity=severity or "",
        oldest=min((each["first_at"] for each in groups), default=None),
        can_act=visit.may(Action.CHANGE_NOTIFICATIONS),
        can_test=visit.may(Action.CHANGE_CHANNELS) and whole,
        SHOWN=states.NOTIFICATIONS,
        SEVERITIES=states.SEVERITIES,
    )


async def _groups(visit: Visit, channel: str | None, severity: str | None) -> list[dict[str, Any]]:
    found = await visit.call("notifications.causes")
    groups = []
    for cause in found:
        if channel and cause.channel != channel:
            continue
        asked: dict[str, Any] = {"state": "dead", "channel": cause.channel or None, "severity": severity, "limit": PAGE}
        page = await visit.call("notifications.list", **asked)
        rows = [
            each for each in page.items if each.channel == cause.channel and each.dead_because == cause.dead_because
        ]
        text = _WHY.get(cause.dead_because, cause.dead_because).format(channel=cause.channel or "nobody")
        known = cause.model_dump()
        groups.append(
            {**known, "title": text, "rows": rows, "first": rows[:_ROWS], "rest": rows[_ROWS:], "says": _says(cause)}
        )
    return groups


def _says(cause: Any) -> str:
    severities = ", ".join(f"{number} {name}" for name, number in sorted(cause.severities.items()))
    return f"{words.counted(cause.number, 'notification')}: {severities}."


async def resolve_dialog(visit: Visit) -> Response:
    """One notification, or all dead letters of a channel."""
    return visit.part(
        "dialogs/resolve.html", one=visit.query.get("notification", ""), channel=visit.query.get("channel", "")
    )


async def detail(visit: Visit) -> Response:
    found = await visit.call("notifications.get", notification=visit.path("notification"))
    return await visit.show(
        "notification.html",
        found=found,
        can_act=visit.may(Action.CHANGE_NOTIFICATIONS),
        SHOWN=states.NOTIFICATIONS,
        SEVERITIES=states.SEVERITIES,
    )


PAGES: Final = [
    ("/notifications", show, "GET"),
    ("/notifications/resolve", resolve_dialog, "GET"),
    ("/notifications/{notification}", detail, "GET"),
]
