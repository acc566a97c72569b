"""pkilint, behind the extra `lint`: RFC 5280 read by someone else. About 5 ms for a certificate."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import Any, Final

from holdfast.pki.lint import Finding
from holdfast.pki.refused import PkiRefused

# pkilint takes wildcards and single labels for errors in names; how a name is written is decided by names.py.
_DECIDED_HERE: Final = frozenset({"pkix.invalid_domain_name_syntax"})

# mypy sees pkilint only where it is installed; it brings no types for most of what is used here.


def certificate_findings(der: bytes) -> list[Finding]:
    """What pkilint finds in a certificate, in its own words; a placeholder for a signature does not matter to it."""
    return _findings(_certificate_validator(), _loader("RFC5280CertificateDocumentLoader"), der)


def load() -> None:
    """Before the first certificate waits for it: loading takes longer than linting. Without pkilint, nothing."""
    with suppress(PkiRefused):
        _certificate_validator()
        _loader("RFC5280CertificateDocumentLoader")


def _findings(validator: Any, loader: Any, der: bytes) -> list[Finding]:
    try:
        document = loader.load_der_document(der, "to be signed")
    except ValueError as error:
        return [Finding("pkilint.unreadable", str(error))]
    return [
        Finding(found.finding.code, found.message or str(found.finding.severity.name).lower())
        for result in validator.validate(document.root)
        for found in result.finding_descriptions
        if found.finding.severity.name in {"WARNING", "ERROR", "FATAL"} and found.finding.code not in _DECIDED_HERE
    ]


def _missing() -> PkiRefused:
    return PkiRefused("pkilint-missing", "pkilint is not installed.", "Run: pip install 'holdfast[lint]'")


def _loader(name: str) -> Any:
    try:
        from pkilint import loader  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        raise _missing() from None
    return getattr(loader, name)()


@cache
def _certificate_validator() -> Any:
    """Built once: it takes longer than linting does."""
    try:
        from pkilint.pkix import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
            certificate,
            extension,
            name,
        )
    except ImportError:
        raise _missing() from None
    return certificate.create_pkix_certificate_validator_container(
        certificate.create_decoding_validators(name.ATTRIBUTE_TYPE_MAPPINGS, extension.EXTENSION_MAPPINGS),
        [
            certificate.create_issuer_validator_container([]),
            certificate.create_validity_validator_container(),
            certificate.create_subject_validator_container([]),
            certificate.create_extensions_validator_container([]),
            certificate.create_spki_validator_container([]),
        ],
    )
