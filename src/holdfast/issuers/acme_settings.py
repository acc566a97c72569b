"""The settings of a CA that speaks ACME, checked by name as those of all others are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from holdfast.issuers import kind, reading
from holdfast.issuers.kind import MAX_TIMEOUT_S, Options
from holdfast.secret import Secret

CREDENTIALS: Final = ("eab_key",)
_HOST: Final = r"[A-Za-z0-9.\-]{1,253}(?::[0-9]{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](?::[0-9]{1,5})?"
_CONTACT: Final = r"(?:mailto:)?[^@\s,?]{1,64}@[^@\s,?]{1,255}"
_BASE64URL: Final = re.compile(r"[A-Za-z0-9_-]{22,1000}={0,2}")  # of 128 bits at least
# Those that make no account without one of theirs; where to get it.
_BINDING: Final = {
    "acme.zerossl.com": "ZeroSSL (its page Developer, EAB Credentials)",
    "dv.acme-v02.api.pki.goog": "Google (gcloud publicca external-account-keys create)",
    "dv.acme-v02.test-api.pki.goog": "Google (gcloud publicca external-account-keys create)",
    "acme.digicert.com": "DigiCert (CertCentral, Automation, ACME Directory URLs)",
}


def check(settings: Mapping[str, Any], credentials: Mapping[str, object]) -> None:
    """ValueError names the setting or the credential that is missing, unknown or malformed.

    Of a credential that is just given, its value; one that is kept already is there by its name alone.
    """
    kind.in_the_open(settings, CREDENTIALS)
    if unknown := sorted(set(credentials) - set(CREDENTIALS)):
        raise ValueError(f"there is no credential {unknown[0]!r:.40}; there are {', '.join(CREDENTIALS)}")
    options = Options(settings)
    directory = _directory(options)
    options.texts("hosts", like=_HOST, example='["other.ca.example"]')
    options.texts("contacts", like=_CONTACT, example='["ops@example.com"]')
    options.flag("terms_agreed", default=True)
    kid = options.text("eab_kid", "", like="[!-~]{1,400}")
    options.done()
    _binding(directory, kid, credentials)


def _directory(options: Options) -> str:
    found = options.text("directory", like=r"\S{1,500}")
    if found.lower().startswith("http://"):
        raise ValueError("directory must begin with https://")
    if reading.origin(found) is None:
        raise ValueError(f"directory is not an https address: {reading.words(found.rpartition('@')[2], 120)!r}")
    return found


def _binding(directory: str, kid: str, credentials: Mapping[str, object]) -> None:
    """The key without the id is let through: whoever adds both to a CA that is there gives one after the other."""
    key = credentials.get("eab_key")
    wants = _BINDING.get(urlsplit(directory).hostname or "")
    if wants and (not kid or key is None):
        raise ValueError(
            f"{'the credential eab_key' if kid else 'eab_kid'} is missing: {wants} makes no account without an "
            "external account binding; give --eab-kid ID and --credential-stdin eab_key"
        )
    if kid and key is None:
        raise ValueError("the credential eab_key is missing, which belongs to eab_kid; give it first")
    if isinstance(key, Secret) and not _BASE64URL.fullmatch(_text(key)):
        raise ValueError("the credential eab_key is not base64url of 128 bits or more; take it as the CA shows it")


def _text(key: Secret[bytes] | Secret[str]) -> str:
    found = key.reveal()
    return (found.decode("utf-8", "replace") if isinstance(found, bytes) else found).strip()


def request_timeout_s(settings: Mapping[str, Any]) -> float:
    """Of a row that may be older than the check above."""
    found = settings.get("request_timeout_seconds")
    good = isinstance(found, int | float) and 0.1 <= found <= MAX_TIMEOUT_S
    return float(found) if good and found is not None else 30.0


def check_local(settings: Mapping[str, Any]) -> None:
    """Those of our own CA: its name, and what all have."""
    options = Options(settings)
    options.text("ca", "", like="[a-z0-9-]{1,63}")
    options.done()
