"""The words about our own CAs: an issuer that comes to its end."""

from __future__ import annotations

from datetime import timedelta

from holdfast.core import ca_end
from holdfast.core.told import About, Details, Told, clear, in_words


def issuer_key(ca: str) -> str:
    return f"ca-issuer/{ca}"


def issuer_ends(details: Details, about: About) -> Told:
    left = timedelta(seconds=details["left_s"])
    over = left <= timedelta(0)
    text = f"It {'ended' if over else 'ends'} at {details['not_after']}, and what it signs lives no longer. "
    text += f"Give it a later end: {ca_end.remedy(about.name, root_here=bool(details.get('root_here')))}"
    return Told(
        severity=ca_end.severity(int(details["threshold"])),
        title=f"The issuer of our CA {about.name} has {'ended' if over else f'{in_words(left)} left'}",
        text=text,
        mode="continues",
        key=issuer_key(about.subject),
        next=f"holdfast ca show {about.name}",
        facts={"ca": about.name, "not_after": str(details["not_after"])},
    )


def issuer_well(details: Details, about: About) -> Told:
    title = f"The issuer of our CA {about.name} has time enough again"
    return clear(title, "What it signs is not cut to its end.", issuer_key(about.subject))
