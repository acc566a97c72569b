"""The rail: which pages there are, in four groups, and who sees them listed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from holdfast.operations.access import Action, Principal, Verdict, allow


class Entry(NamedTuple):
    """A page of the rail. `counted` names a number of the frame, and `key` the second key of its chord after g."""

    title: str
    path: str
    icon: str
    action: Action
    counted: str = ""
    key: str = ""


RAIL: Final[Mapping[str, tuple[Entry, ...]]] = {
    "Now": (
        Entry("Overview", "/", "overview", Action.SEE, "needs", "o"),
        Entry("Approvals", "/approvals", "approvals", Action.SEE, "approvals", "a"),
        Entry("Notifications", "/notifications", "bell", Action.SEE_NOTIFICATIONS, "dead", "n"),
        Entry("Jobs", "/jobs", "jobs", Action.SEE_JOBS, "", "j"),
    ),
    "Inventory": (
        Entry("Certificates", "/certificates", "certificate", Action.SEE, "certificates", "c"),
        Entry("Targets", "/targets", "targets", Action.SEE_TARGETS, "", "t"),
        Entry("Agents", "/agents", "agents", Action.SEE_AGENTS, "", "e"),
        Entry("Finds", "/finds", "search", Action.SEE_FINDS, "unmanaged", "x"),
    ),
    "Machinery": (
        Entry("Issuers", "/issuers", "issuers", Action.SEE_ISSUERS, "", "i"),
        Entry("Our CA", "/cas", "anchor", Action.SEE_CAS, "", "u"),
        Entry("Cluster", "/cluster", "cluster", Action.SEE_CLUSTER, "", "l"),
        Entry("Forecast", "/forecast", "forecast", Action.SEE, "", "f"),
    ),
    "Admin": (
        Entry("Audit", "/audit", "audit", Action.SEE_AUDIT, "", "d"),
        Entry("Settings", "/settings", "settings", Action.SEE_SELF, "", "s"),
    ),
}
BOTTOM: Final = ("/", "/certificates", "/approvals", "/notifications")  # of the bar at 360 px
_WHOLE: Final = frozenset(
    {Action.SEE_JOBS, Action.SEE_CLUSTER, Action.SEE_CAS, Action.SEE_AUDIT, Action.SEE_FINDS}
)  # of no owner


def rail_for(who: Principal, built: frozenset[str]) -> dict[str, list[Entry]]:
    """The groups with the pages that are there and that this person may see."""
    groups = {name: [each for each in found if each.path in built and sees(who, each)] for name, found in RAIL.items()}
    return {name: found for name, found in groups.items() if found}


def sees(who: Principal, entry: Entry) -> bool:
    whole = entry.action in _WHOLE or entry.path == "/forecast"
    return allow(who, entry.action, None if whole else who.scope) is Verdict.ALLOWED


def current(path: str) -> str:
    """The entry that a page belongs to: the longest path that it begins with."""
    known = [each.path for found in RAIL.values() for each in found]
    begins = [each for each in known if path == each or (each != "/" and path.startswith(f"{each}/"))]
    return max(begins, key=len, default="")
