"""What an operator decides about one of our CAs, and about ACME as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from holdfast.core.notifications.notification import (
    PLAIN_LIFE,
    Crossings,
    Severity,
    crossed,
    severity_of_crossing,
    thresholds,
)
from holdfast.core.own_ca.acme import Identifier

CHALLENGES: Final = ("http-01", "dns-01", "tls-alpn-01")
EXPERIMENTAL: Final = ("dns-account-01", "dns-persist-01")  # drafts: offered only where an operator names them
MAX_NAMES: Final = 100


class CaMode(StrEnum):
    VALIDATE = "validate"  # every name is proved by a challenge
    TRUST = "trust"  # accounts bound to a key of ours get the names listed with it, without a challenge


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOptions:
    """One kind of certificate, in plain values; pki/profile.py makes certificates of it."""

    name: str = "default"
    description: str = "TLS server certificates."
    lifetime_s: int = 90 * 86400
    max_lifetime_s: int = 398 * 86400
    backdate_s: int = 300
    client_auth: bool = False
    common_name: bool = False
    must_staple: bool = False
    key_kinds: tuple[str, ...] = ()  # empty: those that every client can use


@dataclass(frozen=True, slots=True, kw_only=True)
class CaOptions:
    """The choices for one CA; kept as JSON beside it."""

    mode: CaMode = CaMode.VALIDATE
    eab_required: bool = False
    challenges: tuple[str, ...] = CHALLENGES
    profiles: tuple[ProfileOptions, ...] = (ProfileOptions(),)  # the first is the default
    shards: int = 1  # of the CRL; may grow, never shrink
    crl_lifetime_s: int = 7 * 86400
    permitted: tuple[str, ...] = ()  # name patterns; empty: every name
    dev: bool = False  # lets a self-signed certificate sign

    def profile(self, name: str | None) -> ProfileOptions | None:
        """The profile of this name, or the default one; None if there is no such profile."""
        if name is None:
            return self.profiles[0]
        return next((each for each in self.profiles if each.name == name), None)

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> CaOptions:
        profiles = tuple(
            ProfileOptions(**{**each, "key_kinds": tuple(each.get("key_kinds", ()))}) for each in raw["profiles"]
        )
        lists = {name: tuple(raw[name]) for name in ("challenges", "permitted")}
        return replace(cls(), **{**raw, **lists, "profiles": profiles, "mode": CaMode(raw["mode"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimit:
    """So many in so long; 0: no limit."""

    count: int
    span: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class CaPolicy:
    """What holds for every CA of this installation; from the settings."""

    base_url: str = "https://localhost:8631"  # never from a Host header
    publish_url: str = "http://127.0.0.1:8630"  # where CRLs and issuers' certificates are fetched, over plain HTTP
    order_for: timedelta = timedelta(days=7)
    authz_for: timedelta = timedelta(days=30)
    tries: int = 3  # of one challenge
    caa_for: timedelta = timedelta(hours=8)  # how long an answer of CAA counts
    uncollected_after: timedelta = timedelta(minutes=15)
    pause_after: int = 30  # failures in a row for one name of one account; 0: never
    accounts_per_address: RateLimit = field(default=RateLimit(count=500, span=timedelta(hours=3)))
    orders_per_account: RateLimit = field(default=RateLimit(count=3000, span=timedelta(hours=3)))
    names_per_account: RateLimit = field(default=RateLimit(count=10_000, span=timedelta(hours=3)))
    names_per_address: RateLimit = field(default=RateLimit(count=20_000, span=timedelta(hours=3)))
    pending_per_account: int = 5000  # authorizations that are not proved, at one time; 0: any number
    pending_per_address: int = 10_000
    changes_per_account: RateLimit = field(default=RateLimit(count=100, span=timedelta(hours=3)))
    requests_per_account: RateLimit = field(default=RateLimit(count=12_000, span=timedelta(minutes=1)))
    requests_per_address: RateLimit = field(default=RateLimit(count=24_000, span=timedelta(minutes=1)))
    orders_per_identifier: RateLimit = field(default=RateLimit(count=1000, span=timedelta(days=1)))
    failures_per_identifier: RateLimit = field(default=RateLimit(count=60, span=timedelta(hours=1)))
    terms_url: str = ""
    website: str = ""
    caa_identities: tuple[str, ...] = ()
    chaos_nonces: int = 0  # per cent of requests whose nonce is refused at first, to try clients out
    repeat_finalize: bool = False  # answer a repeated finalize with the order, for clients that cannot take a 403

    def acme_url(self, ca: str, *path: str) -> str:
        return "/".join((self.base_url, "acme", ca, *path))

    def crl_url(self, ca: str) -> str:
        return f"{self.publish_url}/pki/{ca}/{{shard}}.crl"

    def root_crl_url(self, ca: str) -> str:
        """Of the CRL of the root of this CA."""
        return f"{self.publish_url}/pki/{ca}/root.crl"

    def issuer_url(self, ca: str) -> str:
        return f"{self.publish_url}/pki/{ca}/issuer.cer"


class CaState(StrEnum):
    ACTIVE = "active"
    CLOSED = "closed"  # it issues nothing more, and its CRLs go on


@dataclass(frozen=True, slots=True, kw_only=True)
class CaRow:
    """One CA as it is kept. Its key is a sealed secret or is in a device, never both."""

    id: str
    state: CaState = CaState.ACTIVE
    certificate: bytes  # the issuer's, in DER
    above: str = ""  # PEM: what stands between the issuer and its root
    root: str = ""  # PEM
    alternates: tuple[str, ...] = ()  # PEM: other chains from the issuer to other roots
    key_secret: str | None = None
    key_device: str | None = None  # a PKCS#11 address (RFC 7512)
    root_secret: str | None = None  # the root's key, if it was made here; opened for lists and the next issuer alone
    options: CaOptions
    version: int = 1
    created_at: datetime


class DeliveryLevel(StrEnum):
    """How far a certificate came on its way to its client: evidence, never a reason to delete."""

    OFFERED = "offered"
    FETCHED = "fetched"
    ACKNOWLEDGED = "acknowledged"
    DEPLOYED = "deployed"


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedCertificate:
    """A certificate that we signed."""

    id: str
    ca: str
    serial: str  # hex, as it is shown
    order: str
    account: str
    profile: str
    identifiers: tuple[Identifier, ...]
    der: bytes
    spki_sha256: str
    not_before: datetime
    not_after: datetime
    shard: int | None
    issued_at: datetime
    revoked_at: datetime | None = None
    reason: int | None = None
    replaced_by: str | None = None
    delivery: DeliveryLevel = DeliveryLevel.OFFERED


@dataclass(frozen=True, slots=True, kw_only=True)
class Crl:
    ca: str
    shard: int
    number: int
    this_update: datetime
    next_update: datetime
    der: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RootCrl:
    root: str  # the SHA-256 of its certificate, in hex
    number: int
    this_update: datetime
    next_update: datetime
    der: bytes


LEAST: Final = timedelta(days=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningCertificateExpiry:
    """When the signing certificate of one CA expires, and how much of its lifetime must be left."""

    ca: str
    serial: str
    not_after: datetime
    needs: timedelta  # with less than this left, certificates that it signs expire together with it
    root_here: bool  # the key of its root is kept here, so that the next one can be made here

    def near(self, now: datetime) -> bool:
        return self.not_after - now < self.needs

    @property
    def crossing_key(self) -> str:
        """The key under which thresholds are recorded: the next signing certificate has another."""
        return f"ca/{self.ca}/{self.serial}"


def needed_lifetime(options: CaOptions) -> timedelta:
    longest = max((each.lifetime_s for each in options.profiles), default=0)
    return max(LEAST, timedelta(seconds=longest))


def expiry_crossings(end: SigningCertificateExpiry, now: datetime, told: set[int]) -> Crossings:
    """First when certificates that it signs are cut short, then at the thresholds of every certificate."""
    return crossed((end.needs, *thresholds(PLAIN_LIFE)), end.not_after, now, told)


def expiry_severity(number: int) -> Severity:
    return severity_of_crossing(max(number - 1, 0))


def expiry_remedy(ca: str, *, root_here: bool) -> str:
    """The command that renews the signing certificate."""
    if root_here:
        return f"holdfast ca renew {ca}"
    return f"holdfast pki recertify, where the root's key is; then: holdfast ca renew {ca} --chain FILE"
