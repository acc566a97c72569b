"""What an Entrust CA Gateway did lately: pages of events, read over as many claims as it takes, compared by key."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509

from holdfast.issuers import chains
from holdfast.issuers.base import Wish
from holdfast.issuers.entrust_reading import whole
from holdfast.issuers.rest import Rest
from holdfast.issuers.search import Search

CLOCKS_DIFFER: Final = timedelta(minutes=5)
_SHOWN_LATE: Final = timedelta(hours=1)  # what happened so long before a reading may not have been in it yet
_EVENTS: Final = 50  # on a page: what its hosted form allows


@dataclass(slots=True)
class _Reading:
    """One way through the pages."""

    start: datetime
    begun: datetime
    again: bool = False
    claims: int = 1
    page: str | None = None  # the next one


async def find(rest: Rest, path: str, wish: Wish, asked_at: datetime, search: Search) -> x509.Certificate | None:
    """A certificate for our key among what this CA did since then. TryLater: there is more than one claim may read.

    Pages may shift while they are read so slowly. So what has happened meanwhile is then read once more: to see none
    in it may be to order again. What was read to its end is not read again, but for the last hour of it.
    """
    known = search.since or asked_at
    fresh = _Reading(start=max(known - _SHOWN_LATE, asked_at) - CLOCKS_DIFFER, begun=rest.clock.now())
    reading: _Reading = search.cursor or fresh
    reading.claims += search.cursor is not None
    search.cursor = reading
    found = await _read(rest, path, wish, asked_at, search, reading)
    if found is None and reading.claims > 1 and not reading.again:
        reading = _Reading(start=reading.begun - CLOCKS_DIFFER, begun=reading.begun, again=True)
        search.cursor = reading
        found = await _read(rest, path, wish, asked_at, search, reading)
    search.cursor, search.since = None, reading.begun
    return found


async def _read(
    rest: Rest, path: str, wish: Wish, asked_at: datetime, search: Search, reading: _Reading
) -> x509.Certificate | None:
    start = f"{reading.start.astimezone(UTC):%Y-%m-%dT%H:%M:%S}.00Z"
    while True:
        search.spend(rest.name)
        query = {"startDate": start, "preferredPageSize": str(_EVENTS)}
        if reading.page is not None:
            query["nextPageIndex"] = reading.page
        reply = await rest.get(f"{path}/certificate-events", "its events", query)
        page = whole(reply)
        events = page.get("events", [])
        if not isinstance(events, list) or "morePages" not in page:
            raise reply.broken()
        for event in events:
            found = chains.read(event.get("certificate")) if isinstance(event, dict) else ()
            if found and chains.answers(found[0], wish.csr, asked_at):
                return found[0]
        if not page.get("morePages"):
            return None
        reading.page = str(page.get("nextPageIndex"))
