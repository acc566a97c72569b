"""Accounts, orders, authorizations and challenges as JSON (RFC 8555 §7.1). Unknown fields are never reflected."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any, Final

from holdfast.acme.answer import Header, retry_after, rfc3339
from holdfast.acme.place import Place
from holdfast.core.acme import (
    Account,
    Authz,
    AuthzState,
    Challenge,
    ChallengeState,
    Order,
    OrderState,
)

SOON: Final = 1  # seconds; signing takes milliseconds, and polls are held open a while besides


def account(place: Place, found: Account) -> dict[str, Any]:
    shown: dict[str, Any] = {"status": found.state.value}
    if found.contacts:
        shown["contact"] = list(found.contacts)
    if found.agreed:
        shown["termsOfServiceAgreed"] = True
    if found.eab is not None:  # with the value that the client sent (§7.3.4)
        shown["externalAccountBinding"] = json.loads(found.eab)
    shown["orders"] = place.orders(found.id)
    return shown


def order(place: Place, found: Order) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "status": found.state.value,
        "expires": rfc3339(found.expires_at),
        "identifiers": [each.to_json() for each in found.identifiers],
        "profile": found.profile,
        "authorizations": [place.authz(each) for each in found.authzs],
        "finalize": place.finalize(found.id),
    }
    if found.not_before is not None:
        shown["notBefore"] = rfc3339(found.not_before)
    if found.not_after is not None:
        shown["notAfter"] = rfc3339(found.not_after)
    if found.replaces is not None:
        shown["replaces"] = found.replaces
    if found.state is OrderState.INVALID and found.error is not None:
        shown["error"] = found.error.to_json()
    if found.state is OrderState.VALID and found.certificate is not None:
        shown["certificate"] = place.certificate(found.certificate)
    return shown


def order_waits(found: Order) -> tuple[Header, ...]:
    return (retry_after(SOON),) if found.state is OrderState.PROCESSING else ()


def authz(place: Place, found: Authz) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "status": found.state.value,
        "expires": rfc3339(found.expires_at),
        "identifier": found.identifier.to_json(),
        "challenges": [challenge(place, each, found) for each in _telling(found)],
    }
    if found.wildcard:  # for others it must be absent
        shown["wildcard"] = True
    return shown


def _telling(found: Authz) -> tuple[Challenge, ...]:
    """All while one of them can still be chosen; then the one that decided (§7.1.4)."""
    if found.state is AuthzState.PENDING:
        return found.challenges
    over = (ChallengeState.VALID, ChallengeState.INVALID)
    return tuple(each for each in found.challenges if each.state in over) or found.challenges


def challenge(place: Place, found: Challenge, parent: Authz) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "type": found.type,
        "url": place.challenge(found.id),
        "status": found.state.value,
    }
    if found.type == "dns-persist-01":  # proved by a record that names the account, and so without a token
        shown |= {"issuer-domain-names": list(place.issuers), "accounturi": place.account(parent.account)}
    else:
        shown["token"] = found.token
    if found.state is ChallengeState.VALID and found.valid_at is not None:
        shown["validated"] = rfc3339(found.valid_at)
    if found.state is ChallengeState.INVALID and found.error is not None:  # with an error it must be invalid (§8)
        shown["error"] = found.error.to_json()
    return shown


def challenge_waits(found: Challenge, now: datetime) -> tuple[Header, ...]:
    """After the next try: nothing changes before (§8.2)."""
    if found.state is not ChallengeState.PROCESSING:
        return ()
    wait = timedelta(0) if found.next_try_at is None else found.next_try_at - now
    return (retry_after(wait.total_seconds() + SOON),)


def under_way(found: Authz) -> Challenge | None:
    """The challenge that is being tested."""
    return next((each for each in found.challenges if each.state is ChallengeState.PROCESSING), None)
