"""What certificates of one kind look like, and the step from a request to an intent."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography.hazmat.primitives.asymmetric import rsa

from holdfast.pki import csr, keys
from holdfast.pki.intent import Intent
from holdfast.pki.issuer import Issuer
from holdfast.pki.keys import KeyKind, PublicKey
from holdfast.pki.refused import CsrRefused, IssuerRefused

MAX_BACKDATE: Final = timedelta(hours=1)
SECOND: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The operator's choices for one kind of certificate."""

    name: str = "default"
    lifetime: timedelta = timedelta(days=90)
    max_lifetime: timedelta = timedelta(days=398)  # for requests that name their own end
    backdate: timedelta = timedelta(minutes=5)  # for clients whose clocks are late
    client_auth: bool = False
    common_name: bool = False  # put a name into the subject, for old clients that look there
    must_staple: bool = False  # grant it to requests that ask for it
    key_kinds: frozenset[KeyKind] = keys.EVERYDAY

    def __post_init__(self) -> None:
        if not timedelta(0) <= self.backdate <= MAX_BACKDATE:
            raise ValueError(f"backdate is at most {MAX_BACKDATE}")
        if not self.backdate + timedelta(minutes=1) <= self.lifetime <= self.max_lifetime:
            raise ValueError("a lifetime is longer than the backdate, and at most max_lifetime")


def plan(
    profile: Profile,
    request: csr.Request,
    issuer: Issuer,
    *,
    serial: int,
    now: datetime,
    asked_at: datetime | None = None,
    not_before: datetime | None = None,
    not_after: datetime | None = None,
) -> Intent:
    """The certificate that this request gets, or a refusal. Requested dates are kept exactly, or refused.

    `asked_at` is when those dates were asked for, if that was before now.
    """
    key = request.public_key
    _check_key(profile, key)
    if request.must_staple and not profile.must_staple:
        raise CsrRefused("csr-must-staple", "Must-staple certificates are not issued here (RFC 7633).")
    begins, ends = validity(profile, issuer, now, not_before, not_after, asked_at=asked_at)
    shard = issuer.shard_of(serial)
    rsa_too = ("key_encipherment",) if isinstance(key, rsa.RSAPublicKey) else ()
    return Intent(
        issuer_id=issuer.id,
        issuer_sha256=issuer.sha256,
        algorithm=issuer.algorithm,
        profile=profile.name,
        serial=serial,
        names=request.names,
        ips=request.ips,
        common_name=_common_name(request) if profile.common_name else None,
        spki=request.spki,
        not_before=begins,
        not_after=ends,
        key_usages=("digital_signature", *rsa_too),
        extended_key_usages=("serverAuth", "clientAuth") if profile.client_auth else ("serverAuth",),
        ca_issuers_url=issuer.ca_issuers_url,
        crl_url=issuer.url_of(shard),
        crl_shard=shard,
        must_staple=request.must_staple,
    )


def _check_key(profile: Profile, key: PublicKey) -> None:
    kind = _nearest_kind(key)
    if kind not in profile.key_kinds:
        allowed = ", ".join(sorted(profile.key_kinds))
        raise CsrRefused("csr-key-kind", f"Profile {profile.name!r} does not allow this kind of key, only: {allowed}.")


def _nearest_kind(key: PublicKey) -> KeyKind | None:
    """RSA-2056 counts as RSA-2048: what is allowed is a strength, not a number."""
    if isinstance(key, rsa.RSAPublicKey):
        sizes = {4096: KeyKind.RSA_4096, 3072: KeyKind.RSA_3072, 2048: KeyKind.RSA_2048}
        return next((kind for size, kind in sizes.items() if size <= key.key_size), None)
    return keys.kind_of(key)


def _common_name(request: csr.Request) -> str | None:
    """The request's own, or the first name that fits; a wildcard or an address will do."""
    candidates = (request.common_name, *request.names, *request.ips)
    return next((name for name in candidates if name and len(name) <= csr.MAX_COMMON_NAME), None)


def validity(
    profile: Profile,
    issuer: Issuer,
    now: datetime,
    not_before: datetime | None,
    not_after: datetime | None,
    *,
    asked_at: datetime | None = None,
) -> tuple[datetime, datetime]:
    """From a moment ago, for the profile's lifetime, and never longer than the issuer itself."""
    issuer_begins, issuer_ends = issuer.certificate.not_valid_before_utc, issuer.certificate.not_valid_after_utc
    if not issuer_begins <= now < issuer_ends:
        raise IssuerRefused("issuer-not-valid", f"CA {issuer.id!r} is not valid now ({issuer_ends:%F %T}Z).")
    begins = _whole(not_before or max(_begin(profile, now, not_after), issuer_begins))
    if begins < _whole((asked_at or now) - MAX_BACKDATE) or begins < issuer_begins:
        raise CsrRefused("csr-begins-too-early", f"A certificate cannot begin at {begins:%F %T}Z.")
    # Both ends belong to the validity (RFC 5280 §4.1.2.5): without the second taken off, 90 days are a second too long.
    ends = _whole(not_after or min(begins + profile.lifetime - SECOND, issuer_ends))
    if ends <= max(begins, now):
        raise CsrRefused("csr-ends-too-early", f"A certificate cannot end at {ends:%F %T}Z.")
    if ends > issuer_ends:
        raise CsrRefused("csr-outlives-issuer", f"The CA itself ends at {issuer_ends:%F %T}Z.")
    if ends - begins + SECOND > profile.max_lifetime:
        raise CsrRefused("csr-too-long", f"Profile {profile.name!r} issues for at most {profile.max_lifetime}.")
    return begins, ends


def _begin(profile: Profile, now: datetime, not_after: datetime | None) -> datetime:
    """A moment ago, unless a requested end allows less: only that end was asked for, the backdate is our own idea."""
    begins = now - profile.backdate
    return begins if not_after is None else max(begins, min(now, not_after + SECOND - profile.max_lifetime))


def _whole(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(microsecond=0)
