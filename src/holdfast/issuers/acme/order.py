"""Orders and authorizations as a CA shows them (RFC 8555 §7.1.3, §7.1.4), read into values of ours."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from holdfast.core.own_ca.acme import Identifier
from holdfast.core.reasons import Reason
from holdfast.issuers import reading
from holdfast.issuers.acme import reading as acme_reading
from holdfast.issuers.acme.reading import AcmeProblem, ResponseContext
from holdfast.issuers.base import Failed

KNOWN: Final = frozenset({"http-01", "dns-01", "tls-alpn-01"})  # the challenges that solvers can answer
MOST_NAMES: Final = 1000
_MOST_CHALLENGES: Final = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class CaOrder:
    status: str
    identifiers: frozenset[Identifier]
    authorizations: tuple[str, ...]
    finalize: str
    certificate: str | None
    expires_at: datetime | None
    profile: str | None  # if the CA has them, and shows them
    error: AcmeProblem | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CaChallenge:
    type: str
    url: str
    status: str
    token: str
    error: AcmeProblem | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Authorization:
    url: str
    identifier: Identifier
    status: str
    challenges: tuple[CaChallenge, ...]  # of the known types

    @property
    def disproved(self) -> bool:
        """Whether the CA looked and did not find. Smallstep's then goes back to "pending", with the error beside it."""
        ended = any(challenge.status == "invalid" for challenge in self.challenges)
        failed = any(challenge.status == "pending" and challenge.error for challenge in self.challenges)
        return self.status == "invalid" or ended or failed


def read_order(value: Mapping[str, object], place: ResponseContext) -> CaOrder:
    what = f"An order of {place.name}"
    certificate, profile = value.get("certificate"), value.get("profile")
    named = reading.items(value, "identifiers", what, most=MOST_NAMES)
    listed = reading.items(value, "authorizations", what, most=MOST_NAMES)
    return CaOrder(
        status=reading.text(value, "status", what),
        identifiers=frozenset(_identifier(each, what) for each in named),
        authorizations=tuple(place.checked(each, "an authorization") for each in listed),
        finalize=place.checked(value.get("finalize"), "finalize"),
        certificate=None if certificate is None else place.checked(certificate, "a certificate"),
        expires_at=reading.instant(value.get("expires")),
        profile=profile if isinstance(profile, str) else None,
        error=acme_reading.parse_problem(value.get("error")),
    )


def read_authorization(
    value: Mapping[str, object], place: ResponseContext, url: str, wanted: frozenset[Identifier]
) -> Authorization:
    what = f"An authorization of {place.name}"
    listed = reading.items(value, "challenges", what, most=_MOST_CHALLENGES)
    known = [each for each in listed if isinstance(each, dict) and each.get("type") in KNOWN]
    found = _identifier(value.get("identifier"), what)
    return Authorization(
        url=url,
        identifier=_as_ordered(found, wanted, wildcard=value.get("wildcard") is True),
        status=reading.text(value, "status", what),
        challenges=tuple(_challenge(each, place, what) for each in known),
    )


def _challenge(value: Mapping[str, object], place: ResponseContext, what: str) -> CaChallenge:
    return CaChallenge(
        type=reading.text(value, "type", what),
        url=place.checked(value.get("url"), "a challenge"),
        status=reading.text(value, "status", what),
        token=acme_reading.token(value.get("token")),
        error=acme_reading.parse_problem(value.get("error")),
    )


def _identifier(value: object, what: str) -> Identifier:
    """In our spelling: CAs may answer in capitals, or write an IPv6 address in full."""
    if not isinstance(value, dict) or not isinstance(value.get("value"), str) or len(value["value"]) > 255:
        raise reading.unreadable(what)
    match value.get("type"), value["value"]:
        case "dns", name:
            return Identifier("dns", name.lower())
        case "ip", address:
            try:
                return Identifier("ip", str(ipaddress.ip_address(address)))
            except ValueError:
                pass
    raise reading.unreadable(what)


def _as_ordered(found: Identifier, wanted: frozenset[Identifier], *, wildcard: bool) -> Identifier:
    """An authorization names the domain alone; `wildcard` says which of our names it is for (§7.1.4)."""
    below = Identifier(found.type, f"*.{found.value}")
    if below in wanted and (wildcard or found not in wanted):  # some CAs forget to say so
        return below
    if found not in wanted or wildcard:
        raise acme_reading.unacceptable(
            "The CA wants a name validated that was not ordered; no challenge of it is answered."
        )
    return found


# ── What went wrong ──


def why_failed(order: CaOrder, authorizations: tuple[Authorization, ...], place: ResponseContext) -> Failed:
    """The end of an order, told by the name that it failed for if there is one."""
    for each in authorizations:
        if each.disproved:
            return _why_refused(each, place)
    ended = next((each for each in authorizations if each.status in ("expired", "deactivated", "revoked")), None)
    if ended is not None:
        why = f"{place.name}: the authorization of {ended.identifier.value} is {ended.status}."
        return Failed(why=why, reason=Reason.ORDER_EXPIRED)
    if order.error is not None:
        return Failed(why=f"{place.name}: {order.error}", reason=order.error.about_a_name())
    return Failed(why=f"{place.name} gave the order up and does not say why.", reason=Reason.ORDER_EXPIRED)


def _why_refused(authorization: Authorization, place: ResponseContext) -> Failed:
    name = authorization.identifier.value
    told = next((each for each in authorization.challenges if each.error is not None), None)
    if told is None or told.error is None:
        return Failed(
            why=f"{place.name} did not accept the challenge response for {name}.", reason=Reason.VALIDATION_FAILED
        )
    return Failed(why=f"{place.name}, {told.type} for {name}: {told.error}", reason=told.error.about_a_name())
