"""The record of a ceremony: what was made, by what it can be known again, and what to do with each file."""

from __future__ import annotations

import textwrap
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from holdfast.pki import keys
from holdfast.pki.ceremony import INTERMEDIATE, INTERMEDIATE_KEY, ROOT, ROOT_KEY, Plan, Result
from holdfast.pki.describe import name_in_words

_WIDTH: Final = 100
_REPLACE_BEFORE: Final = timedelta(days=365)


def transcript(plan: Plan, result: Result, folder: Path, *, now: datetime, version: str) -> str:
    """For people to read, sign and file; it holds no secret."""
    ends = result.intermediate.not_valid_after_utc
    paragraphs = [
        f"Key ceremony for {plan.name!r}\n"
        f"Made at {now:%F %T}Z by Holdfast {version} in {folder}. Both keys: {plan.key_kind}.",
        _authority("The root", result.root, "signs intermediates only; at most 1 CA below it"),
        _authority("The intermediate", result.intermediate, f"signs end certificates only; names: {_names(plan)}"),
        "Checked: both certificates against our rules before they were signed, each signature after that, and that\n"
        "both encrypted keys open again with their passphrases.",
        "What to do now\n"
        + _step(ROOT, "is public. Install it on every machine that is to trust this CA; compare its fingerprint there.")
        + _step(
            ROOT_KEY,
            "is encrypted, and is needed only to make the next intermediate. Copy it to two media that are kept in two "
            "places, try to read both copies, then remove it from this machine. Keep its passphrase apart from them. "
            "Whoever has both can make certificates that everyone above trusts; without either of them, the CA ends "
            "with its intermediate.",
        )
        + _step(INTERMEDIATE, "is public. The CA sends it to clients along with each certificate.")
        + _step(
            INTERMEDIATE_KEY,
            "is encrypted, and is used every day: it goes to the CA server, with its passphrase, and into its backup.",
        )
        + _step(
            "calendar", f"Make the next intermediate before {ends - _replace_before(plan):%F}; this one ends {ends:%F}."
        ),
    ]
    return "\n\n".join(paragraphs)


def succession(plan: Plan, root: x509.Certificate, made: x509.Certificate, folder: Path, *, now: datetime) -> str:
    """The record of a new intermediate under a root that was there before."""
    ends = made.not_valid_after_utc
    paragraphs = [
        f"The next intermediate of {plan.name!r}\nMade at {now:%F %T}Z in {folder}. Its key: {plan.key_kind}.",
        _authority("The root, brought out for this", root, "put it away again"),
        _authority("The intermediate", made, f"signs end certificates only; names: {_names(plan)}"),
        "What to do now\n"
        + _step(INTERMEDIATE, "is public. The CA sends it to clients along with each certificate.")
        + _step(INTERMEDIATE_KEY, "is encrypted: 'holdfast ca adopt' takes it over, with its passphrase.")
        + _step("calendar", f"Make the next one before {ends - _replace_before(plan):%F}; this one ends {ends:%F}."),
    ]
    return "\n\n".join(paragraphs)


def _replace_before(plan: Plan) -> timedelta:
    """A year ahead, or less for a short life: certificates must not outlive it."""
    return min(_REPLACE_BEFORE, plan.intermediate_years * _REPLACE_BEFORE / 4)


def _authority(title: str, certificate: x509.Certificate, may: str) -> str:
    key = certificate.public_key()
    rows = {
        "subject": name_in_words(certificate.subject),
        "serial": f"{certificate.serial_number:x}",
        "valid": f"{certificate.not_valid_before_utc:%F %T}Z to {certificate.not_valid_after_utc:%F %T}Z",
        "it": may,
        "SHA-256 of the certificate": certificate.fingerprint(hashes.SHA256()).hex(),
        "SHA-256 of its public key": keys.spki_sha256(key).hex() if isinstance(key, keys.PublicKey) else "",
    }
    width = max(map(len, rows))
    return "\n".join([title, *(f"  {word.ljust(width)}  {text}" for word, text in rows.items())])


def _names(plan: Plan) -> str:
    return f"only {', '.join(plan.permit)} and below" if plan.permit else "any"


def _step(what: str, text: str) -> str:
    filled = textwrap.wrap(text, _WIDTH - 24)
    return "".join(
        f"  {word.ljust(22)}{line}\n" for word, line in zip([what, *[""] * len(filled)], filled, strict=False)
    )
