"""Which CA of its list a certificate is asked for at, as the CAs stand now; and when to leave one for another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from holdfast.core import ca_limits, renewal
from holdfast.core.certificate import Certificate, Version
from holdfast.core.issuance import Candidate, Issuance, can_help, choose, patience, patience_in_line
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


def other(
    tx: Tx, found: Certificate, current: Version | None, issuance: Issuance, now: datetime, *, wait: timedelta
) -> IssuerRow | None:
    """A CA that would take the order of this attempt sooner than the one that it waits for, if there is one."""
    names = [name for name in found.wanted.issuers if name != issuance.issuer]
    standing = Standing(tx)
    rows = standing.named(names)
    left = left_of(current, now)
    able = [
        each
        for each in _candidates(standing, names, rows, now)
        if can_help(each, left=left, now=now) and (each.turn_at or now) - now <= wait / 2
    ]
    best = min(able, key=lambda each: each.doubtful, default=None)
    return None if best is None else rows[best.name]


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


# ── When to leave ──


def left_of(current: Version | None, now: datetime) -> timedelta | None:
    """What is left of the time in which an attempt can still be made; None if there is no certificate yet."""
    return None if current is None else renewal.good_until(current) - now


def is_impatient(left: timedelta | None, *, waited: timedelta, wait: timedelta, in_line: bool) -> bool:
    """Whether an attempt without an order has waited long enough, or would have to.

    `in_line`: for its turn at a budget, and not for a CA that is away.
    """
    return wait > patience_in_line(left) if in_line else max(wait, waited) > patience(left)


def may_leave(issuance: Issuance, found: Certificate) -> bool:
    """Nothing is placed there, or may be; and there are others."""
    return issuance.ref is None and issuance.asked_at is None and len(found.wanted.issuers) > 1
