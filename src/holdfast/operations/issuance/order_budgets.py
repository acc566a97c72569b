"""What a job pays for before it may ask a CA: an order, or a request. Budgets are made at their first use."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from holdfast.core.certificate import Certificate, Version
from holdfast.core.issuance import Issuance
from holdfast.core.issuers import budget, ca_limits
from holdfast.core.issuers.budget import Limit
from holdfast.core.issuers.issuer import IssuerRow
from holdfast.operations import kinds
from holdfast.operations.issuance.issuer_choice import IssuerSnapshot
from holdfast.store import certificates, issuers, versions
from holdfast.store.tx import Tx
from holdfast.store.work import budgets


def for_order(
    tx: Tx,
    issuance: Issuance,
    chosen: IssuerRow | None,
    found: Certificate,
    current: Version | None,
    snapshot: IssuerSnapshot | None = None,
) -> tuple[str, ...]:
    """What the first claim of an attempt pays for."""
    if chosen is None:
        return ()
    snapshot = snapshot or IssuerSnapshot(tx)
    keys = ca_limits.budgets_of_order(
        snapshot.limits_of(chosen),
        chosen.name,
        issuance.identifiers,
        renewal=_same_names(current, found, chosen),
        in_ari_window=issuance.replaces is not None and _in_window(found, tx.now()),
    )
    snapshot.define(keys)
    many = kinds.requests_of(chosen, len(issuance.identifiers)).order
    asked = ca_limits.request_key(chosen.name)
    return tuple(each for key in keys for each in [key] * (many if key == asked else 1))


def half_free_at(tx: Tx, found: Certificate, current: Version) -> datetime | None:
    """When half of what the first issuer allows is free for an order of this certificate; None if it is now."""
    chosen = issuers.get(tx, found.wanted.issuers[0])
    if chosen is None:
        return None
    limits, same = kinds.limits_of(chosen), _same_names(current, found, chosen)
    names = found.wanted.identifiers
    keys = ca_limits.budgets_of_order(limits, chosen.name, names, renewal=same, in_ari_window=False)
    held = budgets.load(tx, [key for key in keys if key != ca_limits.request_key(chosen.name)])
    return max((at for each in held if (at := budget.half_free_at(each, tx.now()))), default=None)


def _same_names(current: Version | None, found: Certificate, chosen: IssuerRow) -> bool:
    """Whether this CA would call it a renewal: the generation counts every change of names."""
    return current is not None and current.issuer == chosen.name and current.generation == found.generation


def _in_window(found: Certificate, now: datetime) -> bool:
    return found.ari is not None and found.ari.start <= now < found.ari.end


def for_the_rest(tx: Tx, issuance: Issuance) -> tuple[str, ...]:
    """For an attempt whose job was lost: an order that was placed is paid for, and what follows are requests only."""
    if issuance.ref is not None:
        return for_request(tx, issuance.issuer)
    found = certificates.get(tx, issuance.certificate)
    if found is None:
        return ()
    return for_order(tx, issuance, issuers.get(tx, issuance.issuer), found, versions.get(tx, found.current_version))


def for_request(tx: Tx, issuer: str, *, lookup: bool = False) -> tuple[str, ...]:
    return for_requests(tx, [issuer], lookup=lookup).get(issuer, ())


def for_requests(tx: Tx, names: Iterable[str], *, lookup: bool = False) -> dict[str, tuple[str, ...]]:
    """By the name of the CA; one that limits nothing, or is gone, is paid nothing.

    A key is there as often as there are requests to pay for. `lookup`: the order may have to be found first.
    """
    limits: dict[str, Limit] = {}
    paid: dict[str, tuple[str, ...]] = {}
    for row in issuers.named(tx, sorted(set(names))).values():
        limit = kinds.limits_of(row).requests
        if limit is not None:
            key = ca_limits.request_key(row.name)
            many = kinds.requests_of(row)
            limits[key], paid[row.name] = limit, (key,) * (many.look + (many.lookup if lookup else 0))
    budgets.define_all(tx, limits)
    return paid
