"""Which issuer of its list a certificate is asked for at, as the issuers stand now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from holdfast.core import ca_limits, renewal
from holdfast.core.certificate import Certificate, Version
from holdfast.core.issuance import Candidate, choose, left_of
from holdfast.operations.standing import Standing
from holdfast.store.issuers import IssuerRow
from holdfast.store.tx import Tx


def chosen(
    standing: Standing, found: Certificate, current: Version | None, rows: Mapping[str, IssuerRow], now: datetime
) -> IssuerRow | None:
    """The CA for the next attempt; None if none may be asked."""
    if len(found.wanted.issuers) == 1:  # nothing to choose, and nothing to look up
        only = rows.get(found.wanted.issuers[0])
        return None if only is None or only.state == "paused" else only
    best = choose(
        _candidates(standing, found.wanted.issuers, rows, now),
        failures=0 if found.failing is None else found.failing.attempts or 1,
        left=left_of(current, now),
        now=now,
        short=timedelta(0) if current is None else current.life * renewal.SHORT_SHARE,
    )
    return None if best is None else rows[best.name]


def others(tx: Tx, found: Certificate, issuer: str, now: datetime) -> list[Candidate]:
    """The issuers of the certificate beside this one, as they stand now."""
    names = [name for name in found.wanted.issuers if name != issuer]
    standing = Standing(tx)
    return _candidates(standing, names, standing.named(names), now) if names else []


def _candidates(
    standing: Standing, names: Sequence[str], rows: Mapping[str, IssuerRow], now: datetime
) -> list[Candidate]:
    shared = {name: (ca_limits.request_key(name), ca_limits.order_key(name)) for name in names}
    lines = standing.lines([key for keys in shared.values() for key in keys], now)
    return [
        Candidate(
            name=name,
            known=name in rows,
            paused=name in rows and rows[name].state == "paused",
            down=name in rows and rows[name].breaker.shut_at(now),
            doubtful=name in rows and rows[name].breaker.until is not None,
            held_until=max((lines[key].held_until for key in shared[name] if key in lines), default=None),
            turn_at=max((lines[key].turn_at for key in shared[name] if key in lines), default=None),
        )
        for name in names
    ]
