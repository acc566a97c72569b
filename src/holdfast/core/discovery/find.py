"""A find: a certificate that was seen somewhere, who manages it, and what a person decided about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, Literal

from holdfast.errors import IllegalMove

MOST_NAMES: Final = 101  # of a certificate, that are kept: one more than a certificate here may have
MOST_PLACES: Final = 200  # of a find, that are shown


class FindSource(StrEnum):
    """How it was found."""

    NETWORK = "network"  # a handshake from the server
    HOST = "host"  # files and sockets of a host, read on that host
    CA = "ca"  # a CA says that it was issued
    CT = "ct"  # a log of Certificate Transparency


class Manager(StrEnum):
    """Who renews it."""

    HOLDFAST = "holdfast"  # it is a version of a certificate here
    ACME_CLIENT = "acme-client"  # one of our own CAs issued it to an ACME client, which renews it
    CERTBOT = "certbot"
    ACME_SH = "acme.sh"
    LEGO = "lego"
    UNKNOWN = "unknown"


HERE: Final = frozenset({Manager.HOLDFAST, Manager.ACME_CLIENT})  # this installation hands out what comes next


class FindState(StrEnum):
    NEW = "new"  # a person has not decided about it
    ADOPTED = "adopted"  # a certificate here takes its place
    IGNORED = "ignored"  # a person said why it is left alone
    GONE = "gone"  # it is not seen anywhere any more


FindEvent = Literal["adopted", "ignored", "reconsidered", "gone", "seen", "seen, adopted", "seen, ignored"]

MOVES: Final[Mapping[tuple[FindState, FindEvent], FindState]] = {
    (FindState.NEW, "adopted"): FindState.ADOPTED,
    (FindState.NEW, "ignored"): FindState.IGNORED,
    (FindState.IGNORED, "adopted"): FindState.ADOPTED,
    (FindState.IGNORED, "reconsidered"): FindState.NEW,
    (FindState.ADOPTED, "reconsidered"): FindState.NEW,
    (FindState.NEW, "gone"): FindState.GONE,
    (FindState.ADOPTED, "gone"): FindState.GONE,
    (FindState.IGNORED, "gone"): FindState.GONE,
    (FindState.GONE, "seen"): FindState.NEW,
    (FindState.GONE, "seen, adopted"): FindState.ADOPTED,
    (FindState.GONE, "seen, ignored"): FindState.IGNORED,
}


def move(state: FindState, event: FindEvent) -> FindState:
    """The state after an event; nothing else says what state a find is in."""
    try:
        return MOVES[state, event]
    except KeyError:
        raise IllegalMove(f"a find that is {state} cannot be {event!r}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateFacts:
    """What a certificate says of itself, and the chain that was shown with it."""

    fingerprint: str  # SHA-256 in hexadecimal; empty: only its precertificate is known
    serial: str
    serial_key: str  # of issuer and serial: a precertificate and its certificate have the same
    issuer: str
    names: tuple[str, ...]
    not_before: datetime
    not_after: datetime
    spki_sha256: str
    self_signed: bool = False
    authority: bool = False  # it is the certificate of a CA
    chain: tuple[str, ...] = ()  # SHA-256 of all that was shown, the leaf first
    gap: str = ""  # where the chain breaks, as a clause

    @property
    def key(self) -> str:
        """By which a find is known. Appliances share issuer and serial, so only a precertificate is known by these."""
        return self.fingerprint or f"pre:{self.serial_key}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Find:
    id: str
    key: str
    facts: CertificateFacts
    manager: Manager = Manager.UNKNOWN
    certificate: str | None = None  # the certificate here whose version it is, or that takes its place
    state: FindState = FindState.NEW
    why: str = ""  # the reason to ignore it
    decided_by: str = ""
    decided_at: datetime | None = None
    served: bool = False  # it is shown in handshakes, somewhere, now
    places: int = 0  # where it is seen now
    told_days: int | None = None  # people were told that it expires within so many days
    first_seen_at: datetime
    last_seen_at: datetime
    version: int = 1

    @property
    def unmanaged(self) -> bool:
        """It is not managed here, and a person has not decided about it."""
        return self.state is FindState.NEW and self.manager not in HERE

    @property
    def name(self) -> str:
        """What people call it: its first name."""
        return next(iter(self.facts.names), "") or self.facts.issuer


@dataclass(frozen=True, slots=True, kw_only=True)
class FindPlace:
    """One place where a find is seen."""

    find: str
    source: FindSource
    place: str  # tls://192.0.2.1:443, a path, an order of a CA, an entry of a log
    discovery: str  # the discovery, or the host, that looks there
    served: bool  # it was shown in a handshake
    program: str = ""  # that listens there, or whose configuration names the file
    notes: str = ""  # such as the mode and owner of its key file
    first_seen_at: datetime
    last_seen_at: datetime
    gone_at: datetime | None = None


def seen_again(find: Find) -> FindState:
    """The state of a find that was seen, by what was decided about it before it was gone."""
    if find.state is not FindState.GONE:
        return find.state
    if find.why:
        return move(find.state, "seen, ignored")
    return move(find.state, "seen, adopted" if find.certificate is not None else "seen")
