"""What an order may not ask for: dates that cannot be kept, names that are paused, certificates not to be replaced."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from holdfast.core.acme import Identifier, OrderState, state_at
from holdfast.core.problem import AcmeError, SubProblem
from holdfast.operations.authorities import Authority
from holdfast.pki.ari import parse_cert_id
from holdfast.pki.profile import validity
from holdfast.pki.refused import IssuerRefused, PkiRefused
from holdfast.store import acme_limits, acme_orders, ca_certificates
from holdfast.store.tx import Tx

AFTER_FAILURES: Final = "paused after many failures in a row; ask the operator of this CA to unpause it"
BY_OPERATOR: Final = "paused by the operator of this CA; ask there"


def check_dates(
    ca: Authority, profile: str, not_before: datetime | None, not_after: datetime | None, now: datetime
) -> None:
    """By the rule of finalize: an order that is accepted can be fulfilled as it was asked for (§7.4).

    Also if no date was asked for: an issuer that has ended signs nothing.
    """
    chosen = ca.profile(profile)
    if chosen is None:
        return
    try:
        validity(chosen, ca.issuer, now, not_before, not_after)
    except IssuerRefused as refused:
        raise AcmeError.server_internal(str(refused)) from None
    except PkiRefused as refused:
        raise AcmeError.malformed(str(refused)) from None


def check_pauses(tx: Tx, account: str, identifiers: Sequence[Identifier]) -> None:
    kinds = {each.base: each.type for each in identifiers}
    paused = acme_limits.paused_names(tx, account, list(kinds))
    if paused:
        whys = {name: AFTER_FAILURES if failures else BY_OPERATOR for name, failures in paused.items()}
        subproblems = tuple(SubProblem("rateLimited", why, (kinds[name], name)) for name, why in whys.items())
        told = "; ".join(f"{name}: {why}" for name, why in list(whys.items())[:3])
        raise AcmeError.rate_limited(f"{told}.", subproblems=subproblems, retry_after=86400)


def replaceable(
    tx: Tx, ca: Authority, account: str, named: str, identifiers: Sequence[Identifier]
) -> ca_certificates.Issued:
    """The certificate that an order says it replaces (RFC 9773 §5)."""
    try:
        key_identifier, serial = parse_cert_id(named)
    except ValueError:
        raise AcmeError.malformed("replaces is not a certificate identifier (RFC 9773 §4.1).") from None
    found = ca_certificates.by_serial(tx, ca.id, serial) if key_identifier == ca.issuer.key_identifier else None
    if found is None:
        raise AcmeError.malformed("replaces names a certificate that this CA did not issue.")
    if found.account != account:
        raise AcmeError.unauthorized("replaces names a certificate of another account.")
    if not set(found.identifiers) & set(identifiers):
        raise AcmeError.malformed("replaces names a certificate that shares no name with this order.")
    if found.replaced_by is not None:
        other = acme_orders.get(tx, found.replaced_by)
        if other is not None and state_at(other, tx.now()) is not OrderState.INVALID:
            raise AcmeError.already_replaced("Another order replaces this certificate already.")
    return found
