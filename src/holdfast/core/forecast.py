"""When certificates will be renewed, as far as it can be known: what a forecast counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import urlsplit

from holdfast.core.acme import Identifier
from holdfast.core.certificate import Window
from holdfast.core.renewal import WINDOWS_END, default_fraction, first_opening

WEEK: Final = timedelta(days=7)
SHORTEST: Final = timedelta(hours=1)  # between two renewals: a bad number must not make this run for ever

# How long publicly trusted certificates may live (CA/B ballot SC-081), from when on.
PUBLIC_LIFE: Final = (
    (datetime(2026, 3, 15, tzinfo=UTC), timedelta(days=200)),
    (datetime(2027, 3, 15, tzinfo=UTC), timedelta(days=100)),
    (datetime(2029, 3, 15, tzinfo=UTC), timedelta(days=47)),
)
# What Let's Encrypt's default profile gives.
LETS_ENCRYPT_LIFE: Final = (
    (datetime(2020, 1, 1, tzinfo=UTC), timedelta(days=90)),
    (datetime(2027, 2, 10, tzinfo=UTC), timedelta(days=64)),
    (datetime(2028, 2, 16, tzinfo=UTC), timedelta(days=45)),
)
Lives = Sequence[tuple[datetime, timedelta]]
PUBLIC_KINDS: Final = frozenset({"digicert", "sectigo", "entrust", "globalsign"})
PUBLIC_HOSTS: Final = (
    "letsencrypt.org",
    "pki.goog",
    "zerossl.com",
    "digicert.com",
    "sectigo.com",
    "ssl.com",
    "buypass.com",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A certificate, as far as its future matters."""

    issuer: str
    identifiers: tuple[Identifier, ...]
    next_at: datetime
    life: timedelta
    fraction: float | None = None
    before: timedelta | None = None  # its end, instead of a fraction
    windows: tuple[Window, ...] = ()
    assumed: bool = False  # there is none such: only its domain is like that of others, its names are its own


def lives_at(kind: str, directory: str) -> Lives:
    """What bounds a certificate's life at this CA: nothing that is known, unless the public trusts it."""
    host = "." + (urlsplit(directory).hostname or "")
    if host.endswith(".letsencrypt.org"):
        return LETS_ENCRYPT_LIFE
    public = kind in PUBLIC_KINDS or any(host.endswith(f".{each}") for each in PUBLIC_HOSTS)
    return PUBLIC_LIFE if public else ()


def renewals(kept: Kept, now: datetime, end: datetime, lives: Lives) -> Iterable[datetime]:
    """When this one will be renewed, as far as it can be known."""
    at = max(kept.next_at, now)
    while at < end:
        life = min([kept.life, *_longest(lives, at)])
        at = _in_window(kept, at, life)
        if at < end:
            yield at
        at += max(_kept_for(kept, life), SHORTEST)


def _in_window(kept: Kept, at: datetime, life: timedelta) -> datetime:
    """Moved into its next change window, unless waiting for that would be unsafe."""
    opens = first_opening(kept.windows, at) if kept.windows else at
    return max(at, min(opens, at + life * (1 - WINDOWS_END) - _kept_for(kept, life)))


def _kept_for(kept: Kept, life: timedelta) -> timedelta:
    """How long one is in use before the next is asked for, as core/renewal.py has it."""
    if kept.before is not None:
        return max(life - kept.before, life / 10)
    return life * (kept.fraction or default_fraction(life))


def _longest(lives: Lives, at: datetime) -> list[timedelta]:
    return [life for since, life in lives if since <= at][-1:]
