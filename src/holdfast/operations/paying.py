"""What a job pays for before it may ask a CA: an order, or a request. Budgets that nobody has used yet are made."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from holdfast.core import ca_limits
from holdfast.core.budget import Limit
from holdfast.core.certificate import Certificate, Version
from holdfast.core.issuance import Issuance
from holdfast.operations.standing import Standing
from holdfast.store import budgets, certificates, issuers, versions
from holdfast.store.issuers import IssuerRow
from holdfast.store.tx import Tx


def for_order(
    tx: Tx,
    issuance: Issuance,
    chosen: IssuerRow | None,
    found: Certificate,
    current: Version | None,
    standing: Standing | None = None,
) -> tuple[str, ...]:
    """What the first claim of an attempt pays for."""
    if chosen is None:
        return ()
    standing = standing or Standing(tx)
    keys = ca_limits.budgets_of_order(
        standing.limits_of(chosen),
        chosen.name,
        issuance.identifiers,
        renewal=_same_names(current, found, chosen),
        in_ari_window=issuance.replaces is not None and _in_window(found, tx.now()),
    )
    standing.define(keys)
    many = ca_limits.reckoned(chosen.kind, chosen.settings, len(issuance.identifiers)).order
    asked = ca_limits.request_key(chosen.name)
    return tuple(each for key in keys for each in [key] * (many if key == asked else 1))


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
        limit = ca_limits.limits_of(row.kind, row.settings).requests
        if limit is not None:
            key = ca_limits.request_key(row.name)
            many = ca_limits.reckoned(row.kind, row.settings)
            limits[key], paid[row.name] = limit, (key,) * (many.look + (many.lookup if lookup else 0))
    budgets.define_all(tx, limits)
    return paid
