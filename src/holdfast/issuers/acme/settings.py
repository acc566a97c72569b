"""The settings of an issuer that speaks ACME, and the public CAs that we know."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StringConstraints

from holdfast.core.issuers.budget import Limit
from holdfast.core.issuers.ca_limits import PUBLIC_LIVES, UNKNOWN, CaLimits, Reckoned
from holdfast.core.kind import Credential
from holdfast.issuers import reading
from holdfast.issuers.acme.reading import ResponseContext
from holdfast.issuers.kind import IssuerSettings
from holdfast.kind_settings import Flag, whole
from holdfast.secret import Secret

# ── Known CAs ──
# The public CAs that speak ACME, as far as they are known (as of 2026-08): where they are, and what they allow.


_MINUTE: Final = timedelta(minutes=1)
_SHORT_PROFILES: Final = {"tlsserver": 25, "shortlived": 25}
# The few requests of a claim count as one; each further name is an authorization to read, and a challenge to answer.
_CLAIM: Final = Reckoned(order_by_name=2, look_by_name=1)
LETS_ENCRYPT_LIVES: Final = (  # of its default profile
    (datetime(2020, 1, 1, tzinfo=UTC), timedelta(days=90)),
    (datetime(2027, 2, 10, tzinfo=UTC), timedelta(days=64)),
    (datetime(2028, 2, 16, tzinfo=UTC), timedelta(days=45)),
)
LETS_ENCRYPT: Final = CaLimits(
    requests=Limit(burst=20, every=timedelta(milliseconds=50)),
    orders=Limit(burst=300, every=timedelta(seconds=36)),
    per_domain=Limit(burst=50, every=202 * _MINUTE),
    per_set=Limit(burst=5, every=timedelta(hours=34)),
    failures=Limit(burst=5, every=12 * _MINUTE),
    renewals_exempt=True,
    ari_exempt=True,
    counted_at="acme-v02.api.letsencrypt.org",
    fewer_names=_SHORT_PROFILES,
    claim=_CLAIM,
    lives=LETS_ENCRYPT_LIVES,
)
LETS_ENCRYPT_STAGING: Final = replace(
    LETS_ENCRYPT,
    orders=Limit(burst=1500, every=timedelta(seconds=7.2)),
    per_domain=Limit(burst=30000, every=timedelta(seconds=20)),
    per_set=Limit(burst=30000, every=timedelta(seconds=20)),
    failures=Limit(burst=200, every=timedelta(seconds=18)),
    counted_at="acme-staging-v02.api.letsencrypt.org",
)
PRIVATE: Final = replace(UNKNOWN, claim=_CLAIM)  # of a server that is none of these
PUBLIC: Final = replace(PRIVATE, lives=PUBLIC_LIVES)
GOOGLE: Final = replace(
    PUBLIC,
    requests=Limit(burst=10, every=timedelta(seconds=1)),
    orders=Limit(burst=30, every=timedelta(seconds=2)),
    answers=20,  # of 30 challenge calls in a minute
)
ZEROSSL: Final = replace(PUBLIC, orders=Limit(burst=30, every=timedelta(seconds=10)))
DIGICERT: Final = replace(PUBLIC, requests=Limit(burst=100, every=timedelta(milliseconds=180)), orders=None)


@dataclass(frozen=True, slots=True)
class KnownCa:
    """One of them, by the end of its host name; the first that fits counts."""

    host: str
    limits: CaLimits = PUBLIC
    binding: str = ""  # makes no account without an external account binding; where to get it
    presets: Mapping[str, str] | None = None  # directories, by the name that people know them by


_GOOGLE_EAB: Final = "Google (gcloud publicca external-account-keys create)"
KNOWN: Final = (
    KnownCa("acme-v02.api.letsencrypt.org", LETS_ENCRYPT,
          presets={"letsencrypt": "https://acme-v02.api.letsencrypt.org/directory"}),
    KnownCa("acme-staging-v02.api.letsencrypt.org", LETS_ENCRYPT_STAGING,
          presets={"letsencrypt-staging": "https://acme-staging-v02.api.letsencrypt.org/directory"}),
    KnownCa("acme.zerossl.com", ZEROSSL, "ZeroSSL (its page Developer, EAB Credentials)",
          presets={"zerossl": "https://acme.zerossl.com/v2/DV90"}),
    KnownCa("dv.acme-v02.api.pki.goog", GOOGLE, _GOOGLE_EAB,
          presets={"google": "https://dv.acme-v02.api.pki.goog/directory"}),
    KnownCa("dv.acme-v02.test-api.pki.goog", GOOGLE, _GOOGLE_EAB,
          presets={"google-staging": "https://dv.acme-v02.test-api.pki.goog/directory"}),
    KnownCa("acme.digicert.com", DIGICERT, "DigiCert (CertCentral, Automation, ACME Directory URLs)",
          presets={"digicert-acme": "https://acme.digicert.com/v2/acme/directory/"}),
    KnownCa("one.digicert.com", DIGICERT),
    KnownCa("letsencrypt.org", replace(PRIVATE, lives=LETS_ENCRYPT_LIVES)),
    *(KnownCa(each) for each in ("pki.goog", "zerossl.com", "digicert.com", "sectigo.com", "ssl.com", "buypass.com")),
)  # fmt: skip
PRESETS: Final = {
    name: {"directory": directory} for each in KNOWN for name, directory in (each.presets or {}).items()
}  # fmt: skip


def known_at(directory: str) -> KnownCa | None:
    host = f".{urlsplit(directory).hostname or ''}"
    return next((each for each in KNOWN if host.endswith(f".{each.host}")), None)


def limits_for(settings: Mapping[str, object]) -> CaLimits:
    """By the host of the directory."""
    found = known_at(str(settings.get("directory") or ""))
    return PRIVATE if found is None else found.limits


# ── Settings ──
# The settings of a CA that speaks ACME.


EAB_KEY: Final = "eab_key"
CREDENTIALS: Final = (
    Credential(name=EAB_KEY, summary="The key of the external account binding, as the CA shows it.", required=False),
)
_HOST: Final = r"[A-Za-z0-9.\-]{1,253}(?::[0-9]{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](?::[0-9]{1,5})?"
_CONTACT: Final = r"(?:mailto:)?[^@\s,?]{1,64}@[^@\s,?]{1,255}"
_BASE64URL: Final = re.compile(r"[A-Za-z0-9_-]{22,1000}={0,2}")  # of 128 bits at least

Host = Annotated[str, StringConstraints(pattern=whole(_HOST))]
Contact = Annotated[str, StringConstraints(pattern=whole(_CONTACT))]


def _https(found: str) -> str:
    if found.lower().startswith("http://"):
        raise ValueError("must begin with https://")
    if reading.origin(found) is None:
        raise ValueError(f"is not an https address: {reading.words(found.rpartition('@')[2], 120)!r}")
    return found


class AcmeSettings(IssuerSettings):
    directory: Annotated[str, AfterValidator(_https)] = Field(
        max_length=500, description="The address of its directory."
    )
    hosts: tuple[Host, ...] = Field(
        default=(), description="Hosts that it may send us to, besides its own.", examples=[["other.ca.example"]]
    )
    contacts: tuple[Contact, ...] | None = Field(
        default=None, description="Addresses that the CA may write to.", examples=[["ops@example.com"]]
    )
    terms_agreed: Flag = Field(default=True, description="Whether we agree to its terms of service.")
    eab_kid: str = Field(
        default="", pattern=whole("[!-~]{1,400}"), description="The id of an external account binding."
    )

    def place(self) -> ResponseContext:
        return ResponseContext(
            directory=self.directory,
            hosts=self.hosts,
            roots=self.roots.encode(),
            deadline_for=self.request_timeout_seconds,
        )


def binding_fits(settings: AcmeSettings, credentials: Mapping[str, object]) -> None:
    """A key without its id is accepted: a person who adds both to an issuer gives one after the other.

    Of a credential that is just given, its value; one that is kept already is there by its name alone.
    """
    kid, key = settings.eab_kid, credentials.get(EAB_KEY)
    known = known_at(settings.directory)
    if known is not None and known.binding and (not kid or EAB_KEY not in credentials):
        raise ValueError(
            f"{'the credential eab_key' if kid else 'eab_kid'} is missing: {known.binding} makes no account without an "
            "external account binding; give --eab-kid ID and --credential eab_key=-"
        )
    if kid and EAB_KEY not in credentials:
        raise ValueError("the credential eab_key is missing, which belongs to eab_kid; give it first")
    if isinstance(key, Secret) and not _BASE64URL.fullmatch(_text(key)):
        raise ValueError("the credential eab_key is not base64url of 128 bits or more; take it as the CA shows it")


def _text(key: Secret[bytes] | Secret[str]) -> str:
    found = key.reveal()
    return (found.decode("utf-8", "replace") if isinstance(found, bytes) else found).strip()
