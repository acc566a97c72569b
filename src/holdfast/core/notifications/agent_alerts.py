"""The texts of alerts about agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from holdfast.core.notifications.alert import About, Alert, AlertRule, Details, clear, said
from holdfast.core.notifications.notification import Severity


def agent_key(agent: str) -> str:
    return f"agent/{agent}"


def _enrolled(details: Details, about: About) -> Alert | None:
    if details["state"] != "pending":
        return None
    name = details["agent"]
    return Alert(
        severity=Severity.INFO,
        title=f"Agent {name} waits for approval",
        text=f"It enrolled from {details['address']}. Compare its fingerprint with that on the host first.",
        mode="plain",
        next=f"holdfast agent show {name}",
    )


def _recovered(details: Details, about: About) -> Alert:
    name = details["agent"]
    return Alert(
        severity=Severity.INFO,
        title=f"Agent {name} recovered by its binding key",
        text=f"It came from {details['address']}, and may recover {details['left']} times more.",
        mode="plain",
        next=f"holdfast agent show {name}",
    )


def _recovery_refused(details: Details, about: About) -> Alert:
    name = details["agent"]
    return Alert(
        severity=Severity.WARNING,
        title=f"Agent {name} cannot come back",
        text=f"{said(details)} It asked from {details['address']}.",
        mode="opens",
        key=agent_key(about.subject),
        gate=agent_key(about.subject) + "/recovery",
        next=f"holdfast agent recoveries {name}",
    )


def _cloned(details: Details, about: About) -> Alert:
    name = details["agent"]
    return Alert(
        severity=Severity.CRITICAL,
        title=f"Agent {name} runs on two hosts",
        text=f"Its keys are used by {details['here']} and by {details['there']} at once: neither gets work.",
        mode="opens",
        key=agent_key(about.subject),
        next=f"holdfast agent reset, on the copy; then: holdfast agent settle {name}",
    )


def _active(details: Details, about: About) -> Alert:
    return clear(f"Agent {details['agent']} is active", "It gets work again.", agent_key(about.subject))


AGENT_ALERTS: Final[Mapping[str, AlertRule]] = {
    "agent.enrolled": _enrolled,
    "agent.recovered": _recovered,
    "agent.recovery_refused": _recovery_refused,
    "agent.cloned": _cloned,
    "agent.active": _active,
}
