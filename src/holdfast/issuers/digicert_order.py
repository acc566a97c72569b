"""CertCentral's orders: the bodies we send, the fields we read, and the meaning of its words."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Literal

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from pydantic import AfterValidator, Field

from holdfast.core.reasons import Reason
from holdfast.errors import Refused
from holdfast.issuers import chains
from holdfast.issuers.base import OrderRequest
from holdfast.issuers.kind import BaseUrl, RestSettings
from holdfast.issuers.reading import instant, words
from holdfast.issuers.rest import MAX_ITEMS, Reply
from holdfast.issuers.triage import AnswerMeaning, AnswerVerdict, CaProblem, Dialect, folded
from holdfast.kind_settings import Flag, Number, Texts, whole
from holdfast.pki import csr, keys

US: Final = "https://www.digicert.com/services/v2"
_PEM: Final = re.compile(r"-----BEGIN (?:NEW )?CERTIFICATE REQUEST-----([A-Za-z0-9+/=\s]+)-----END")
_OTHER_PLATFORM: Final = -1
_SHOWN_PRODUCTS: Final = 20
RENEWED_WITHIN: Final = timedelta(
    days=90
)  # before it expires an order is renewed there, and its remaining time carried over


# ── DigicertSettings ──


def _numbered(fields: dict[str, str]) -> dict[str, str]:
    if not all(each.isdigit() for each in fields):
        raise ValueError("must be a table of texts by metadata id, which is a number")
    return fields


class DigicertSettings(RestSettings):
    """How to order."""

    base_url: BaseUrl = Field(default=US, description="Of the Services API; another one for Europe.")
    product: str = Field(
        pattern=whole("[a-z0-9_]{2,64}"), description="Its name_id; the profile of a certificate comes before it."
    )
    organization_id: Number | None = Field(default=None, description="OV and EV need one.")
    container_id: Number | None = Field(default=None, description="The division that orders.")
    renewals: Literal["new", "renewal", "reissue"] = Field(
        default="new", description="A new order, a paid order that follows the last, or a free reissue of that order."
    )
    skip_approval: Flag = Field(default=False, description="Works for keys of administrators only.")
    order_years: Number = Field(default=1, le=6, description="Of a multi-year plan: its certificates are shorter.")
    validity_days: Annotated[Number, Field(le=825)] | None = Field(
        default=None, description="Of each certificate; the longest if unset."
    )
    signature_hash: Literal["sha256", "sha384", "sha512"] = Field(default="sha256", description="Of the signature.")
    dcv_method: str | None = Field(
        default=None, pattern=whole("[a-z0-9-]{1,40}"), description="How domains are proved."
    )
    payment_method: str | None = Field(
        default=None, pattern=whole("[a-z0-9_]{1,40}"), description="Such as balance; the account's default if unset."
    )
    ca_cert_id: str | None = Field(
        default=None, pattern=whole("[A-Za-z0-9]{1,64}"), description="The intermediate that is to sign."
    )
    custom_fields: Annotated[Texts, AfterValidator(_numbered)] = Field(
        default_factory=dict, description="By metadata id: what the account asks for in each order."
    )


# ── Words ──


def _problem(value: object) -> CaProblem | None:
    """{"errors": [{"code": "a|b", "message"}]}; the list has been seen as a single object, too."""
    errors = value.get("errors") if isinstance(value, dict) else None
    listed = [errors] if isinstance(errors, dict) else errors
    known = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    if not known:
        return None
    codes = [words(each.get("code") or "", 80) for each in known[:5]]
    said = "; ".join(words(each.get("message") or each.get("code") or "", 200) for each in known[:3])
    return CaProblem(tuple(part for code in codes for part in (code, *code.split("|")) if part), said)


_APPROVAL: Final = AnswerMeaning(
    AnswerVerdict.PENDING, "An administrator of the account must approve it in CertCentral.", person=True
)  # fmt: skip
_OVER: Final = AnswerMeaning(AnswerVerdict.FAILED)
_NO_RIGHT: Final = AnswerMeaning(
    AnswerVerdict.FAILED,
    "The credential api_key is wrong, or its user has no right to do this.",
    Reason.ACCOUNT_REFUSED,
)

DIALECT: Final = Dialect(
    ca="DigiCert",
    words={
        "pending": AnswerMeaning(AnswerVerdict.PENDING, "The CA validates the organization and the domains."),
        "processing": AnswerMeaning(AnswerVerdict.PENDING),
        "needsapproval": _APPROVAL,
        "needscsr": AnswerMeaning(
            AnswerVerdict.PENDING, "The order waits for a CSR: look at it in CertCentral.", person=True
        ),
        "waitingpickup": AnswerMeaning(AnswerVerdict.PENDING),
        "reissuepending": AnswerMeaning(AnswerVerdict.PENDING),
        "approved": AnswerMeaning(AnswerVerdict.PENDING),  # of old orders: taken, not issued
        "issued": AnswerMeaning(AnswerVerdict.ISSUED),
        **dict.fromkeys(("rejected", "denied", "canceled", "cancelled"), _OVER),
        **dict.fromkeys(("revoked", "expired"), AnswerMeaning(AnswerVerdict.FAILED, again=True)),
    },
    codes={
        "request_limit_exceeded": AnswerMeaning(AnswerVerdict.TRANSIENT, reason=Reason.CA_RATE_LIMITED),
        "invalid_approver": _NO_RIGHT,
        "access_denied": _NO_RIGHT,
    },
    about={
        "organization": AnswerMeaning(
            AnswerVerdict.FAILED, "Check the setting organization_id, and that DigiCert validated it."
        ),
        "product": AnswerMeaning(AnswerVerdict.FAILED, "Check the setting product.", Reason.PROFILE_UNKNOWN),
        "container": AnswerMeaning(AnswerVerdict.FAILED, "Check the setting container_id."),
        "custom_field": AnswerMeaning(AnswerVerdict.FAILED, "Check the setting custom_fields."),
        "dns_name": AnswerMeaning(AnswerVerdict.FAILED, reason=Reason.NAME_REFUSED),
        "common_name": AnswerMeaning(AnswerVerdict.FAILED, reason=Reason.NAME_REFUSED),
    },
    statuses={406: AnswerMeaning(AnswerVerdict.TRANSIENT)},  # its balancers say so in passing
    problem=_problem,
    blame={401: "api_key", 403: "api_key"},
)


def no_such_product(product: str, offered: Sequence[str] = ()) -> Refused:
    shown = ", ".join(sorted(offered)[:_SHOWN_PRODUCTS])
    there_are = f" There are: {shown}." if shown else ""
    return Refused(
        f"DigiCert has no product {product!r:.70} for this key.{there_are} Check the setting product.",
        reason=Reason.PROFILE_UNKNOWN,
    )


# ── Bodies ──


def body(request: OrderRequest, settings: DigicertSettings, *, renewal_of: int | None) -> dict[str, object]:
    """A new order, which follows another one or none."""
    custom = [{"metadata_id": int(number), "value": value} for number, value in settings.custom_fields.items()]
    return reissue_body(request, settings) | _told(
        {
            "alternative_order_id": request.issuance,
            "organization": _by_id(settings.organization_id),
            "container": _by_id(settings.container_id),
            "order_validity": {"years": settings.order_years},
            "renewal_of_order_id": renewal_of,
            "dcv_method": settings.dcv_method,
            "payment_method": settings.payment_method,
            "custom_fields": custom or None,
            "disable_renewal_notifications": True,  # we are the one who renews
        }
    )


def reissue_body(request: OrderRequest, settings: DigicertSettings) -> dict[str, object]:
    """The common part of an order and a reissue. All names are repeated: CertCentral takes only the key of a CSR."""
    certificate = {
        "common_name": common_name(request),
        "csr": csr.to_pem(request.csr),
        "dns_names": [each.value for each in request.identifiers],
        "signature_hash": settings.signature_hash,
        "server_platform": {"id": _OTHER_PLATFORM},
        "ca_cert_id": settings.ca_cert_id,
        "cert_validity": _validity(request, settings),
    }
    return {
        "certificate": _told(certificate),
        "skip_approval": settings.skip_approval,
        "comments": f"Ordered by Holdfast as {request.issuance}.",
    }


def _told(values: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}


def _by_id(number: int | None) -> dict[str, int] | None:
    return None if number is None else {"id": number}


def _validity(request: OrderRequest, settings: DigicertSettings) -> dict[str, object] | None:
    if request.not_after is not None:
        return {"custom_expiration_date": request.not_after.astimezone(UTC).strftime("%Y-%m-%d")}
    return None if settings.validity_days is None else {"days": settings.validity_days}


def common_name(request: OrderRequest) -> str:
    """It must have one, and one has at most 64 characters."""
    short = [each.value for each in request.identifiers if len(each.value) <= csr.MAX_COMMON_NAME]
    if not short:
        raise Refused(
            f"DigiCert needs one name of at most {csr.MAX_COMMON_NAME} characters, as common name; add a shorter one.",
            reason=Reason.NAME_REFUSED,
        )
    return short[0]


# ── Answers ──


def outlives(order: Mapping[str, object], request: OrderRequest, settings: DigicertSettings, now: datetime) -> bool:
    """Whether a reissue still has a life worth having, before the plan that it belongs to is over.

    Each would otherwise be cut shorter than the one before, until the last ends with the plan.
    """
    end = order.get("order_valid_till")
    over_at = instant(end) or instant(f"{end}T00:00:00Z")
    return over_at is None or over_at - now >= min(_wanted_life(order, request, settings, now), RENEWED_WITHIN)


def _wanted_life(
    order: Mapping[str, object], request: OrderRequest, settings: DigicertSettings, now: datetime
) -> timedelta:
    if request.not_after is not None:
        return request.not_after - now
    if settings.validity_days is not None:
        return timedelta(days=settings.validity_days)
    dates = [instant(f"{certificate(order).get(name)}T00:00:00Z") for name in ("valid_from", "valid_till")]
    return RENEWED_WITHIN if dates[0] is None or dates[1] is None else dates[1] - dates[0]


def waits_for_approval(order: Mapping[str, object], request: object) -> bool:
    """Whether this request about the order, such as a reissue, waits for an administrator."""
    return any(each.get("id") == request and is_open(each) for each in requests(order))


def is_open(request: Mapping[str, object]) -> bool:
    return folded(request.get("status")) in ("pending", "submitted")


def is_denied(request: Mapping[str, object]) -> bool:
    return folded(request.get("status")) in ("rejected", "denied")


def is_revoked(order: Mapping[str, object], serial: str) -> bool:
    """By the certificate's own status: an order with a revoked certificate stays active, and can be reissued."""
    shown = certificate(order)
    known = str(shown.get("serial_number") or "").replace(":", "").lstrip("0").upper()
    return word(order) == "revoked" or (known in ("", serial) and word(shown) == "revoked")


def is_revoked_already(reply: Reply) -> bool:
    """Its codes are not listed anywhere; it says so in words."""
    return _refuses_with(reply, "already", "revoked")


def must_wait(reply: Reply) -> bool:
    """A pending reissue, or a request of another user, is in the way for now."""
    return _refuses_with(reply, "pending")


def _refuses_with(reply: Reply, *parts: str) -> bool:
    found = " ".join((*reply.codes, "" if reply.finding is None else reply.finding.why)).lower()
    return 400 <= reply.status < 500 and all(each in found for each in parts)


def word(thing: Mapping[str, object]) -> str:
    """The status of an order or of a certificate, in one spelling."""
    return folded(thing.get("status"))


def ref(order: int, reply: Mapping[str, object], *, known: Sequence[int] | None = None) -> dict[str, object]:
    """The `ref` of an order: its number and ids; `known` are the certificates that a reissue replaces."""
    request = next((each.get("id") for each in requests(reply)), None)
    number = reply.get("certificate_id")
    found = {
        "order": order,
        "request": request if isinstance(request, int) else None,
        "certificate": number if isinstance(number, int) and number not in (known or ()) else None,
        "known": None if known is None else list(known),
    }
    return _told(found)


def requests(order: Mapping[str, object]) -> list[dict[str, object]]:
    found = order.get("requests")
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def listed(reply: Reply, name: str) -> list[dict[str, Any]]:
    """A list in an answer; an empty object is how it says that there is none."""
    found = reply.json_object().get(name, [])
    if not isinstance(found, list) or len(found) > MAX_ITEMS:
        raise reply.broken()
    return [each for each in found if isinstance(each, dict)]


def certificate(order: Mapping[str, object]) -> dict[str, object]:
    """The order's current one; before it is issued it has names only."""
    found = order.get("certificate")
    return found if isinstance(found, dict) else {}


def ids(certificates: Sequence[object]) -> list[int]:
    found = [each.get("id") for each in certificates if isinstance(each, dict)]
    return sorted({each for each in found if isinstance(each, int)})


def certificate_id(order: Mapping[str, object]) -> int | None:
    number = certificate(order).get("id")
    return number if isinstance(number, int) else None


def is_issued(order: Mapping[str, object]) -> bool:
    """Of an old order "approved" may mean it, too: then there is a serial number."""
    return word(order) == "issued" or (word(order) == "approved" and has_serial(certificate(order)))


def is_rejected(order: Mapping[str, object], request: object) -> bool:
    """Whether a person said no to this request about the order."""
    return any(each.get("id") == request and is_denied(each) for each in requests(order))


def has_serial(certificate: Mapping[str, object]) -> bool:
    return isinstance(certificate.get("id"), int) and bool(certificate.get("serial_number"))


def is_ours(order: Mapping[str, object], request: OrderRequest) -> bool | None:
    """By our reference and by the key of its CSR, each of which it may not show; None: it shows neither."""
    reference = order.get("alternative_order_id")
    if reference and reference != request.issuance:
        return False
    theirs = _key_of(certificate(order).get("csr"))
    if theirs is None:
        return True if reference else None
    return theirs == chains.public_key(request.csr)


def same_key(shown: object, request: bytes) -> bool:
    """Whether a CSR that CertCentral shows has the key of ours."""
    return _key_of(shown) == chains.public_key(request)


def _key_of(shown: object) -> bytes | None:
    """The key of a CSR, as PEM with line breaks or without, or as bare base64; None if it cannot be read."""
    text = shown if isinstance(shown, str) and len(shown) < 64 * 1024 else ""
    found = _PEM.search(text)
    try:
        content = base64.b64decode("".join((found.group(1) if found else text).split()), validate=True)
        return keys.spki(x509.load_der_x509_csr(content).public_key())  # type: ignore[arg-type]
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None


def said(order: Mapping[str, object]) -> str:
    """The comment of the person who decided about the request, if there is one."""
    notes = [each.get("processor_comment") for each in requests(order)]
    notes += [order.get(name) for name in ("note", "status_note", "reject_reason")]
    return "; ".join(words(each, 200) for each in notes if isinstance(each, str) and each.strip())
