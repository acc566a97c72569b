"""What `doctor` looks at from outside: the lists of our own CAs, at the addresses that certificates name."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509

from holdfast.core.finding import Finding, bad, note, ok
from holdfast.errors import TryLater
from holdfast.ports import Request, Transport

WITHIN: Final = 5.0  # seconds
LARGEST: Final = 64 * 1024 * 1024
MISSING: Final = "there is none"
AHEAD: Final = timedelta(seconds=30)  # whoever checks a certificate has a clock of their own
MOST: Final = 128  # shards


async def own_lists(
    transport: Transport, place: str, cas: Sequence[str], now: datetime, *, chosen: bool
) -> list[Finding]:
    """One finding for each CA; `place` is acme.publish_url, `chosen` that somebody set it."""
    return [await _lists_of(transport, place, ca, now, chosen=chosen) for ca in cas]


async def _lists_of(transport: Transport, place: str, ca: str, now: datetime, *, chosen: bool) -> Finding:
    check, base = f"lists of own CA {ca}", f"{place}/pki/{ca}"
    try:
        for shard in range(MOST):  # how many there are, only the first that is missing tells
            seen = await _look(transport, f"{base}/{shard}.crl", now)
            if seen == MISSING:
                break
            if seen is not None:
                return _bad(check, seen, ca)
        if shard == 0:
            return _none(check, f"{base}/0.crl", chosen=chosen)
        seen = await _look(transport, f"{base}/root.crl", now)
    except TryLater as why:
        return bad(check, f"{base}/ does not answer: {why}", _where(chosen=chosen))
    return _bad(check, seen, ca) if seen not in (None, MISSING) else ok(check, f"they are at {base}/, and good now")


def _bad(check: str, saw: str | None, ca: str) -> Finding:
    return bad(check, saw or "", f"Look at this machine's clock, and why the CA does not sign: holdfast ca show {ca}")


async def _look(transport: Transport, url: str, now: datetime) -> str | None:
    """What is wrong with the list there; None if nothing is."""
    answer = await transport.request(Request(method="GET", url=url, deadline_for=WITHIN, max_body=LARGEST))
    if answer.status == 404:
        return MISSING
    problem = _problem(answer.status, answer.body, now)
    return None if problem is None else f"{url}: {problem}"


def signing(ca: str, problem: str | None) -> list[Finding]:
    """Nothing, if this replica can sign for the CA, and could when it was last asked to."""
    return [bad(f"own CA {ca}", problem, f"See all about it: holdfast ca show {ca}")] if problem else []


def _none(check: str, url: str, *, chosen: bool) -> Finding:
    if chosen:
        return bad(check, f"there is none at {url}", _where(chosen=True))
    return note(check, f"there is none at {url} yet", "It is signed a moment after the CA is made: look again.")


def _where(*, chosen: bool) -> str:
    if chosen:
        return "Let a proxy lead acme.publish_url to server.listen, which serves /pki/, or let server.listen be there"
    return "Start the server: holdfast serve. For others than this machine, set acme.publish_url"


def _problem(status: int, body: bytes, now: datetime) -> str | None:
    if status != 200:
        return f"it answers with status {status}"
    try:
        found = x509.load_der_x509_crl(body)
    except ValueError:
        return "what is there is no list"
    if found.last_update_utc > now + AHEAD:
        return f"it begins only at {found.last_update_utc:%F %T}Z"
    if found.next_update_utc is not None and found.next_update_utc <= now:
        return f"it ended at {found.next_update_utc:%F %T}Z"
    return None
