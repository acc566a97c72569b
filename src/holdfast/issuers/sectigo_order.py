"""Sectigo Certificate Manager: its settings, its words and codes, and its certificates in any wrapping."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any, Final, Self

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import pkcs7

from holdfast.core.reasons import Reason
from holdfast.issuers import chains
from holdfast.issuers.base import Wish
from holdfast.issuers.kind import Options
from holdfast.issuers.reading import words
from holdfast.issuers.triage import Dialect, Meaning, Problem, Verdict
from holdfast.pki import csr

BASE: Final = "https://cert-manager.com/api"
_DCV: Final = ("EMAIL", "CNAME", "HTTP", "HTTPS", "TXT", "AUTO")
_MAX_COMMENTS: Final = 1024


# ── Settings ──


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to enrol; each field is a setting of the same name."""

    base_url: str
    api_version: str = "v1"
    customer_uri: str
    login: str
    org_id: int
    cert_type: int  # the id of a profile; a certificate's own profile comes before it
    term: int  # days, one of those that the profile has
    renewals: str = "new"  # or "renew": the last certificate's own renewal
    dcv_mode: str | None = None  # where domains are not validated before
    dcv_email: str | None = None
    external_requester: str | None = None
    custom_fields: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, settings: Mapping[str, Any]) -> Self:
        options = Options(settings)
        found = cls(
            base_url=options.address("base_url", BASE),
            api_version=options.choice("api_version", ("v1", "v2"), "v1"),
            customer_uri=options.text("customer_uri", like="[A-Za-z0-9._~-]{1,128}"),
            login=options.text("login", like="[!-~]{1,128}"),
            org_id=options.needed("org_id"),
            cert_type=options.needed("cert_type"),
            term=options.needed("term"),
            renewals=options.choice("renewals", ("new", "renew"), "new"),
            dcv_mode=options.choice("dcv_mode", _DCV, "") or None,
            dcv_email=options.text("dcv_email", "", like=r"[^@\s]{1,64}@[^@\s]{1,255}") or None,
            external_requester=options.text("external_requester", "", like=r"[^\s]{3,512}") or None,
            custom_fields=options.mapping("custom_fields"),
        )
        options.done()
        return found


# ── Words and codes ──


def _problem(value: Any) -> Problem | None:
    """{"code": -183, "description": "…"}"""
    if not isinstance(value, dict) or not isinstance(value.get("code"), int | str):
        return None
    code, said = words(value["code"], 20), words(value.get("description") or "no more is said")
    return Problem((code,), f"{said} ({code})")


def _each(codes: str, meaning: Meaning) -> dict[str, Meaning]:
    return dict.fromkeys(codes.split(), meaning)


def _refusal(says: str, reason: Reason | None = None) -> Meaning:
    return Meaning(Verdict.FAILED, says, reason)


_APPROVAL: Final = Meaning(
    Verdict.PENDING, "An administrator must approve it in Sectigo Certificate Manager.", person=True
)  # fmt: skip
_AT_WORK: Final = Meaning(Verdict.PENDING)
_LOGIN: Final = _refusal(
    "Check the settings customer_uri and login, and the credential password.", Reason.ACCOUNT_REFUSED
)
_RIGHTS: Final = _refusal("The account of the setting login has no right to do this.", Reason.ACCOUNT_REFUSED)
UNREACHABLE: Final = frozenset({"-129", "-140", "-195"})  # the CA behind it, from where SCM is
ALREADY_REVOKED: Final = "-159"
NOT_ISSUED: Final = "-102"

DIALECT: Final = Dialect(
    ca="Sectigo",
    words={
        **dict.fromkeys(("init", "requested", "awaitingapproval"), _APPROVAL),
        **dict.fromkeys(("saapproved", "approved", "applied", "pending", "enrolledpendingdownload"), _AT_WORK),
        "issued": Meaning(Verdict.ISSUED),
        "declined": _refusal("An administrator declined it."),
        "rejected": _refusal("The CA rejected it."),
        "invalid": _refusal("The request is not valid."),
        **dict.fromkeys(("revoked", "expired", "replaced"), Meaning(Verdict.FAILED, again=True)),
        "unmanaged": _refusal("It is not managed there any more."),
    },
    codes={
        **_each("-183 -103 -109 -1400", Meaning(Verdict.PENDING, "It is issued, and cannot be collected yet.")),
        **_each("-2 -14 -129 -140 -195", Meaning(Verdict.TRANSIENT)),
        **_each("-16 -970 -410", _LOGIN),
        **_each("-3 -25 -37", _RIGHTS),
        **_each("-10 -11 -13 -138 -194", _refusal("It does not accept our CSR; another key type may help.")),
        **_each("-170", _refusal("It takes no EC keys here: ask for an RSA key.")),
        **_each("-36", _refusal("Check the setting term.")),
        **_each("-39 -111", _refusal("Check the setting cert_type.", Reason.PROFILE_UNKNOWN)),
        **_each("-107 -737 -1137", _refusal("Validate the domain there, or check the setting dcv_mode.")),
        **_each("-1010", _refusal("The domain is not delegated to the organization.", Reason.NAME_REFUSED)),
        **_each("-639 -1023", _refusal("Check the setting org_id, and that the organization is validated.")),
        **_each("-62 -1601", _refusal("Check the setting custom_fields.")),
        **_each("-110", _refusal("It was revoked there.")),
    },
    problem=_problem,
    blame={401: "login", 403: "login"},
)


# ── What is sent ──


def body(wish: Wish, settings: Settings, *, cert_type: int, term: int) -> dict[str, Any]:
    told = {
        "orgId": settings.org_id,
        "csr": csr.to_pem(wish.csr),
        "certType": cert_type,
        "term": term,
        "subjAltNames": ",".join(each.value for each in wish.identifiers),
        "comments": f"Holdfast {wish.issuance}"[:_MAX_COMMENTS],
        "externalRequester": settings.external_requester,
        "customFields": [{"name": name, "value": value} for name, value in settings.custom_fields.items()] or None,
    }
    return {name: value for name, value in (told | _dcv(settings)).items() if value is not None}


def renewal(wish: Wish, settings: Settings) -> dict[str, Any]:
    """With our CSR: without one the old key would be used again."""
    return {
        name: value for name, value in ({"csr": csr.to_pem(wish.csr)} | _dcv(settings)).items() if value is not None
    }


def _dcv(settings: Settings) -> dict[str, str | None]:
    return {"dcvMode": settings.dcv_mode, "dcvEmail": settings.dcv_email}


def common_name(wish: Wish) -> str:
    """What it lists the order under: the CSR's common name, or its first name."""
    found = x509.load_der_x509_csr(wish.csr).subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    return str(found[0].value) if found else wish.identifiers[0].value


# ── What is read ──


def is_ours(details: Mapping[str, Any], wish: Wish) -> bool:
    """By the reference in its comments: it shows neither the CSR nor the key."""
    comments = details.get("comments")
    return isinstance(comments, str) and wish.issuance in re.split(r"[^A-Za-z0-9_-]+", comments)


def requested_on(details: Mapping[str, Any]) -> date | None:
    """As 11/16/2026 in its first version, as a date-time in its second."""
    found = details.get("requested")
    for form in ("%m/%d/%Y", "%Y-%m-%d"):
        try:
            return datetime.strptime(str(found)[:10], form).replace(tzinfo=UTC).date()
        except ValueError:
            continue
    return None


def said(details: Mapping[str, Any]) -> str:
    """What a person wrote when declining it, if it is shown."""
    found = (details.get(name) for name in ("declineMessage", "rejectReason", "reason", "message"))
    return "; ".join(words(each, 200) for each in found if isinstance(each, str) and each.strip())


def certificates(content: bytes) -> tuple[x509.Certificate, ...]:
    """PEM, or PKCS#7 in PEM or DER: what is asked for is not always what comes. None if it is none of these."""
    try:
        if b"-----BEGIN PKCS7" in content or b"-----BEGIN CMS" in content:
            return tuple(pkcs7.load_pem_pkcs7_certificates(content))
        if content[:1] == b"\x30":
            return tuple(pkcs7.load_der_pkcs7_certificates(content))
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return ()
    return chains.read(content.decode("ascii", "replace"))
