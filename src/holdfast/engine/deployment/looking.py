"""Looks whether the endpoints of a target show a certificate, and judges all of them together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from holdfast.core.deployment_decision import Seen, Sight
from holdfast.core.endpoint import Endpoint, Expected, Outcome, Sighting, Verdict, endpoint_of, is_address, judge
from holdfast.deployers.base import Bundle
from holdfast.pki import chain

SAMPLES: Final = 3  # fresh connections to each address: a daemon has several workers, a balancer several machines
LookAt = Callable[[Endpoint], Awaitable[tuple[Sighting, ...]]]
_UNSEEN = frozenset({Outcome.UNREACHABLE, Outcome.REFUSED, Outcome.PROTOCOL, Outcome.DENIED})


def endpoints_for(texts: Sequence[str], names: Sequence[str]) -> list[Endpoint]:
    """Where a certificate with these names must be seen: at endpoints of its names, and at bare addresses."""
    given = [replace(endpoint_of(each), samples=SAMPLES) for each in texts]
    first = next((each.replace("*", "www") for each in names), None)
    found = [each for each in given if any(covers(name, each.name) for name in names)]
    return found + [replace(each, server_name=first) for each in given if each not in found and is_address(each.host)]


def covers(name: str, host: str) -> bool:
    """Whether a name of a certificate is good for this host; a wildcard, for one label only."""
    return name == host or (name.startswith("*.") and fnmatchcase(host, name) and host.count(".") == name.count("."))


async def look(at: LookAt, places: Sequence[Endpoint], bundle: Bundle, old: Collection[str], now: datetime) -> Seen:
    if not places:
        return Seen(sight=Sight.NOTHING, words="There is no endpoint to look at.")
    above = tuple(each.fingerprint(hashes.SHA256()).hex() for each in _above(bundle))
    expected = [Expected(label="the new certificate", leaf=bundle.leaf_sha256, chain=above)]
    sightings = await asyncio.gather(*(at(each) for each in places))
    verdicts = [
        judge(expected, old, found, now=now, name=each.name) for each, found in zip(places, sightings, strict=True)
    ]
    words = " ".join(f"{each.shown}: {verdict.sentence}" for each, verdict in zip(places, verdicts, strict=True))
    return Seen(sight=sight_of(verdicts), words=words)


def sight_of(verdicts: Sequence[Verdict]) -> Sight:
    """All endpoints together; a daemon that is gone or wrong at one of them is not made well by another."""
    seen = {each.outcome for verdict in verdicts for each in verdict.seen}
    if all(verdict.served for verdict in verdicts):
        return Sight.NEW
    if any(verdict.wrong for verdict in verdicts):
        return Sight.OTHER
    if seen == {Outcome.REFUSED}:
        return Sight.GONE
    if seen <= _UNSEEN:
        return Sight.UNREACHABLE
    return Sight.OLD if Outcome.NEW not in seen else Sight.SOME


def _above(bundle: Bundle) -> Sequence[x509.Certificate]:
    return chain.without_root(chain.parse_bundle(bundle.fullchain))[1:]
