"""What people are told about the channels themselves, mostly through the others."""

from __future__ import annotations

from holdfast.core.notice import Severity
from holdfast.core.told import SHOWN, About, Details, Told, clear, said


def down(details: Details, about: About) -> Told:
    return Told(
        severity=Severity.WARNING,
        title=f"Channel {about.name} is down",
        text=f"{said(details)} What it is owed waits, for 72 hours at most.",
        mode="opens",
        key=f"channel/{about.name}",
        next=f"holdfast notify test {about.name}",
        reason="CHANNEL_DOWN",
        not_to=about.name,
    )


def up(details: Details, about: About) -> Told:
    title = f"Channel {about.name} works again"
    return clear(title, "What waited for it is sent.", f"channel/{about.name}", not_to=about.name)


def recipients_missed(details: Details, about: About) -> Told:
    return Told(
        severity=Severity.WARNING,
        title=f"Channel {about.name} does not reach everybody",
        text=f"{said(details)} The others behind it have it.",
        mode="opens",
        key=f"recipients/{about.name}",
        next=f"holdfast notify channel show {about.name}",
    )


def fallback_gone(details: Details, about: About) -> Told:
    return Told(
        severity=Severity.WARNING,
        title=f"Channel {about.name} has lost its fallback",
        text=f"What it cannot deliver is for {str(details['to'])[:SHOWN]}, and there is no such channel any more.",
        mode="opens",
        key=f"fallback/{about.name}",
        next=f"holdfast notify channel set {about.name} --fallback none",
    )


def fallback_well(details: Details, about: About) -> Told:
    return clear(
        f"Nothing is wrong any more with the fallback of channel {about.name}",
        "It is there, or none is asked for.",
        f"fallback/{about.name}",
    )


def dead_letters(details: Details, about: About) -> Told:
    return Told(
        severity=Severity.WARNING,
        title=f"There are dead letters of channel {about.name}",
        text=f"Notices could not be delivered, and are not tried again by themselves. {said(details)}",
        mode="opens",
        key=f"dead-letters/{about.name}",
        next="holdfast notify ls --state dead",
        reason=str(details.get("reason") or ""),
        not_to=about.name,
    )


def letters_gone(details: Details, about: About) -> Told:
    title = f"No dead letters of channel {about.name} are left"
    return clear(title, "They were requeued or resolved.", str(details["key"]), not_to=about.name)
