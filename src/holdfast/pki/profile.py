"""From a CSR to an intent: the fields of one certificate, as the profile of its CA decides them."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric import rsa

from holdfast.core.durations import in_words
from holdfast.core.key_kind import KeyKind
from holdfast.pki import csr, keys
from holdfast.pki.keys import PublicKey
from holdfast.pki.refused import CsrRefused, MustNotSign
from holdfast.pki.signing import Algorithm, SigningCertificate
from holdfast.ports import Random

# ── Intents ──
# Everything that goes into a certificate, as one value: committed before signing, so that it can be signed again.
#
# Its JSON is canonical (sorted, no spaces): the same intent is the same bytes, and from those, with a signer that
# is deterministic, comes the same certificate: after a crash, and in another process.


VERSION: Final = 1
SERIAL_BITS: Final = 159  # 20 octets, positive (RFC 5280 §4.1.2.2)
KEY_USAGES: Final = ("digital_signature", "key_encipherment")
EXTENDED_KEY_USAGES: Final = ("serverAuth", "clientAuth")


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """One certificate that is going to be signed, and no other."""

    issuer_id: str
    issuer_sha256: str  # of the issuer's name and key, in hex: they go into the certificate
    algorithm: Algorithm
    profile: str
    serial: int
    names: tuple[str, ...]
    ips: tuple[str, ...]
    uris: tuple[str, ...] = ()
    common_name: str | None  # None: the subject is empty, and the names are critical
    spki: bytes
    not_before: datetime
    not_after: datetime
    key_usages: tuple[str, ...]
    extended_key_usages: tuple[str, ...]
    ca_issuers_url: str | None
    crl_url: str | None
    crl_shard: int | None  # fixed here for the certificate's life, however many shards there will be
    must_staple: bool

    def __post_init__(self) -> None:
        if not 0 < self.serial < 1 << SERIAL_BITS:
            raise ValueError("a serial is positive and has at most 159 bits")
        if not self.names and not self.ips and not self.uris:
            raise ValueError("a certificate has at least one name")
        if not self.not_before < self.not_after:
            raise ValueError("a certificate expires after it begins")
        if any(at.tzinfo is not UTC or at.microsecond for at in (self.not_before, self.not_after)):
            raise ValueError("certificates know only whole seconds of UTC")
        if not self.key_usages or set(self.key_usages) - set(KEY_USAGES):
            raise ValueError(f"key usages are some of {KEY_USAGES}")
        if not self.extended_key_usages or set(self.extended_key_usages) - set(EXTENDED_KEY_USAGES):
            raise ValueError(f"extended key usages are some of {EXTENDED_KEY_USAGES}")

    def to_json(self) -> bytes:
        written = {
            field.name: _CODECS[str(field.type)][0](getattr(self, field.name))
            for field in fields(self)
            if field.name != "uris" or self.uris  # intents without one are written as ever
        }
        return json.dumps({"version": VERSION, **written}, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, content: bytes) -> Intent:
        """Read exactly what to_json wrote; ValueError for anything else."""
        raw = json.loads(content)
        if not isinstance(raw, dict) or raw.pop("version", None) != VERSION:
            raise ValueError(f"this is not an intent of version {VERSION}")
        raw.setdefault("uris", [])
        if raw.keys() != {field.name for field in fields(cls)}:
            raise ValueError("an intent has other fields")
        try:
            read = {field.name: _CODECS[str(field.type)][1](raw[field.name]) for field in fields(cls)}
        except (TypeError, AttributeError) as error:
            raise ValueError(f"a field of an intent has another type: {error}") from None
        intent = cls(**read)
        if intent.to_json() != content:
            raise ValueError("an intent is written in another way")
        return intent


def _same(value: object) -> object:
    return value


# For each type of field: how it is written in JSON, and how it is read. That types match is seen by writing it again.
_CODECS: Final[dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]]] = {
    "str": (_same, _same),
    "str | None": (_same, _same),
    "int | None": (_same, _same),
    "bool": (_same, _same),
    "int": ("{:x}".format, lambda text: int(text, 16)),  # JSON's numbers lose digits in other languages
    "bytes": (lambda raw: base64.b64encode(raw).decode(), lambda text: base64.b64decode(text, validate=True)),
    "datetime": (lambda at: at.strftime("%Y-%m-%dT%H:%M:%SZ"), lambda text: _instant(text)),
    "tuple[str, ...]": (list, tuple),
    "Algorithm": (str, Algorithm),
}


def _instant(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)


def new_serial(random: Random) -> int:
    """159 unpredictable bits. Zero is not a serial; it comes up once in 2^159 draws, and is drawn again."""
    return int.from_bytes(random.token(20), "big") >> 1 or new_serial(random)


# ── Profiles ──


MAX_BACKDATE: Final = timedelta(hours=1)
SECOND: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The operator's choices for one kind of certificate."""

    name: str = "default"
    lifetime: timedelta = timedelta(days=90)
    max_lifetime: timedelta = timedelta(days=398)  # for requests that name their own end
    backdate: timedelta = timedelta(minutes=5)  # for clients whose clocks are late
    server_auth: bool = True
    client_auth: bool = False
    common_name: bool = False  # put a name into the subject, for old clients that look there
    must_staple: bool = False  # grant it to requests that ask for it
    key_kinds: frozenset[KeyKind] = keys.EVERYDAY

    def __post_init__(self) -> None:
        if not timedelta(0) <= self.backdate <= MAX_BACKDATE:
            raise ValueError(f"backdate is at most {MAX_BACKDATE}")
        if not self.backdate + timedelta(minutes=1) <= self.lifetime <= self.max_lifetime:
            raise ValueError("a lifetime is longer than the backdate, and at most max_lifetime")


# What agents have: they are clients of ours, and serve nobody. No ACME client can ask for it.
AGENT_IDENTITY: Final = Profile(
    name="agent-identity",
    lifetime=timedelta(days=7),
    max_lifetime=timedelta(days=31),
    backdate=MAX_BACKDATE,
    server_auth=False,
    client_auth=True,
)


def plan(
    profile: Profile,
    request: csr.CertificateRequest,
    issuer: SigningCertificate,
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
    check_key_kind(profile, _nearest_kind(key))
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
        uris=request.uris,
        common_name=_common_name(request) if profile.common_name else None,
        spki=request.spki,
        not_before=begins,
        not_after=ends,
        key_usages=("digital_signature", *rsa_too),
        extended_key_usages=("serverAuth",) * profile.server_auth + ("clientAuth",) * profile.client_auth,
        ca_issuers_url=issuer.ca_issuers_url,
        crl_url=issuer.url_of(shard),
        crl_shard=shard,
        must_staple=request.must_staple,
    )


def check_key_kind(profile: Profile, kind: KeyKind | None) -> None:
    if kind not in profile.key_kinds:
        allowed = ", ".join(sorted(profile.key_kinds))
        raise CsrRefused("csr-key-kind", f"Profile {profile.name!r} does not allow this kind of key, only: {allowed}.")


def _nearest_kind(key: PublicKey) -> KeyKind | None:
    """RSA-2056 counts as RSA-2048: a profile allows a strength, not a number of bits."""
    if isinstance(key, rsa.RSAPublicKey):
        sizes = {4096: KeyKind.RSA_4096, 3072: KeyKind.RSA_3072, 2048: KeyKind.RSA_2048}
        return next((kind for size, kind in sizes.items() if size <= key.key_size), None)
    return keys.kind_of(key)


def _common_name(request: csr.CertificateRequest) -> str | None:
    """The request's own, or the first name that fits; a wildcard or an address will do."""
    candidates = (request.common_name, *request.names, *request.ips)
    return next((name for name in candidates if name and len(name) <= csr.MAX_COMMON_NAME), None)


def validity(
    profile: Profile,
    issuer: SigningCertificate,
    now: datetime,
    not_before: datetime | None,
    not_after: datetime | None,
    *,
    asked_at: datetime | None = None,
) -> tuple[datetime, datetime]:
    """From a moment ago, for the profile's lifetime, and never longer than the issuer itself."""
    issuer_begins, issuer_ends = issuer.certificate.not_valid_before_utc, issuer.certificate.not_valid_after_utc
    if not issuer_begins <= now < issuer_ends:
        raise MustNotSign("issuer-not-valid", f"CA {issuer.id!r} is not valid now ({issuer_ends:%F %T}Z).")
    begins = _whole(not_before or max(_begin(profile, now, not_after), issuer_begins))
    if begins < _whole((asked_at or now) - MAX_BACKDATE) or begins < issuer_begins:
        raise CsrRefused("csr-begins-too-early", f"A certificate cannot begin at {begins:%F %T}Z.")
    # Both ends belong to the validity (RFC 5280 §4.1.2.5): without the second taken off, 90 days are a second too long.
    ends = _whole(not_after or min(begins + profile.lifetime - SECOND, issuer_ends))
    if ends <= max(begins, now):
        raise CsrRefused("csr-ends-too-early", f"A certificate cannot expire at {ends:%F %T}Z.")
    if ends > issuer_ends:
        raise CsrRefused("csr-outlives-issuer", f"The CA itself expires at {issuer_ends:%F %T}Z.")
    if ends - begins + SECOND > profile.max_lifetime:
        raise CsrRefused(
            "csr-too-long", f"Profile {profile.name!r} issues for at most {in_words(profile.max_lifetime)}."
        )
    return begins, ends


def _begin(profile: Profile, now: datetime, not_after: datetime | None) -> datetime:
    """A moment ago, unless a requested end allows less: only that end was asked for, the backdate is our own idea."""
    begins = now - profile.backdate
    return begins if not_after is None else max(begins, min(now, not_after + SECOND - profile.max_lifetime))


def _whole(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(microsecond=0)
