"""What a find means: who manages it by its paths, how urgent it is, and the one command that adopts or ignores it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from shlex import quote
from typing import Final

from holdfast.core.discovery.find import HERE, MOST_NAMES, Find, FindState, Manager

TELL_AT: Final = (30, 14, 3, 0)  # days before its end: people are told of a find that is not managed here
SOON: Final = timedelta(days=TELL_AT[0])
_PATHS: Final = (  # how a path names the client that wrote it
    ("/etc/letsencrypt/", Manager.CERTBOT),
    ("/letsencrypt/live/", Manager.CERTBOT),
    ("/.acme.sh/", Manager.ACME_SH),
    ("/acme.sh/", Manager.ACME_SH),
    ("/.lego/", Manager.LEGO),
    ("/lego/certificates/", Manager.LEGO),
)
_IMPORTS: Final = {
    Manager.CERTBOT: "sudo holdfast import certbot /etc/letsencrypt",
    Manager.ACME_SH: "holdfast import acme.sh ~/.acme.sh",
    Manager.LEGO: "holdfast import lego .lego",
}


def manager_of(path: str) -> Manager:
    """The client that keeps a file, by where it is."""
    return next((manager for part, manager in _PATHS if part in path), Manager.UNKNOWN)


def better_known(before: Manager, now: Manager) -> Manager:
    """One place may know more than another: a handshake says nothing of certbot, its files do."""
    if before in HERE or now is Manager.UNKNOWN:
        return before
    return now


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """What a person can do about a find, as commands; empty: nothing need be done."""

    adopt: str
    ignore: str
    why_not: str = ""  # why it cannot be adopted


def remedy_of(find: Find) -> Remedy:
    if find.manager in HERE or find.state in (FindState.ADOPTED, FindState.GONE):
        return Remedy(adopt="", ignore="")
    ignore = "" if find.state is FindState.IGNORED else f"holdfast finds ignore {find.id} --reason TEXT"
    if why_not := problem_with_adopting(find):
        return Remedy(adopt="", ignore=ignore, why_not=why_not)
    return Remedy(adopt=_IMPORTS.get(find.manager) or f"holdfast finds adopt {quote(find.id)}", ignore=ignore)


def problem_with_adopting(find: Find) -> str:
    """Why no certificate can be asked for in its place, as a sentence; empty: one can."""
    if find.facts.authority:
        return "It is the certificate of a CA: create or connect the CA instead."
    if not find.facts.names:
        return "It has no DNS name or address that a certificate could be asked for."
    if len(find.facts.names) >= MOST_NAMES:
        return f"It has more names than the {MOST_NAMES - 1} that a certificate here may have."
    return ""


def tell_now(find: Find, now: datetime) -> int | None:
    """The number of days that people must be told of now; None: they know, or need not."""
    waits = find.state is FindState.ADOPTED and find.served  # what takes its place is not served there yet
    if not find.places or not (find.unmanaged or waits):
        return None
    left = find.facts.not_after - now
    reached = [days for days in TELL_AT if left <= timedelta(days=days)]
    if not reached:
        return None
    nearest = min(reached)
    return nearest if find.told_days is None or nearest < find.told_days else None


def sentence_of(find: Find, now: datetime) -> str:
    """How it stands, to be read after its name."""
    left = find.facts.not_after - now
    ends = "has expired" if left <= timedelta(0) else f"expires in {max(left.days, 1)} d"
    if find.manager is Manager.HOLDFAST:
        return f"is managed here, and {ends}"
    if find.manager is Manager.ACME_CLIENT:
        return f"was issued by our own CA to an ACME client, and {ends}"
    who = "is not managed here" if find.manager is Manager.UNKNOWN else f"is managed by {find.manager}"
    return f"{who}, and {ends}"
