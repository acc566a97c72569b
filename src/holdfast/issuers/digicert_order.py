"""CertCentral's orders: what is sent for one, what is read from one, and what its words mean."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Self

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

from holdfast.core.reasons import Reason
from holdfast.errors import Refused
from holdfast.issuers import chains
from holdfast.issuers.base import Wish
from holdfast.issuers.kind import Options
from holdfast.issuers.reading import instant, words
from holdfast.issuers.rest import MAX_ITEMS, Reply
from holdfast.issuers.triage import Dialect, Meaning, Problem, Verdict, folded
from holdfast.pki import csr, keys

US: Final = "https://www.digicert.com/services/v2"
_PRODUCT: Final = "[a-z0-9_]{2,64}"
_PEM: Final = re.compile(r"-----BEGIN (?:NEW )?CERTIFICATE REQUEST-----([A-Za-z0-9+/=\s]+)-----END")
_OTHER_PLATFORM: Final = -1
_SHOWN_PRODUCTS: Final = 20
RENEWED_WITHIN: Final = timedelta(days=90)  # of its end an order is renewed there, and what is left of it carried over


# ── Settings ──


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to order; each field is a setting of the same name."""

    base_url: str
    product: str  # its name_id; a certificate's own profile comes before it
    organization_id: int | None = None  # OV and EV need one
    container_id: int | None = None
    renewals: str = "new"  # or "renewal" (a paid order that follows the last) or "reissue" (of that order, free)
    skip_approval: bool = False  # works for keys of administrators only
    order_years: int = 1  # of a multi-year plan: its certificates are shorter
    validity_days: int | None = None  # of each certificate; None: the longest that is allowed
    signature_hash: str = "sha256"
    dcv_method: str | None = None
    payment_method: str | None = None
    ca_cert_id: str | None = None
    custom_fields: Mapping[str, str] = field(default_factory=dict)  # metadata id → value

    @classmethod
    def read(cls, settings: Mapping[str, Any]) -> Self:
        options = Options(settings)
        found = cls(
            base_url=options.address("base_url", US),
            product=options.text("product", like=_PRODUCT),
            organization_id=options.number("organization_id"),
            container_id=options.number("container_id"),
            renewals=options.choice("renewals", ("new", "renewal", "reissue"), "new"),
            skip_approval=options.flag("skip_approval", default=False),
            order_years=options.number("order_years", 1, most=6) or 1,
            validity_days=options.number("validity_days", most=825),
            signature_hash=options.choice("signature_hash", ("sha256", "sha384", "sha512"), "sha256"),
            dcv_method=options.text("dcv_method", "", like="[a-z0-9-]{1,40}") or None,
            payment_method=options.text("payment_method", "", like="[a-z0-9_]{1,40}") or None,
            ca_cert_id=options.text("ca_cert_id", "", like="[A-Za-z0-9]{1,64}") or None,
            custom_fields=options.mapping("custom_fields"),
        )
        options.done()
        if not all(each.isdigit() for each in found.custom_fields):
            raise ValueError("custom_fields must be a table of texts by metadata id, which is a number")
        return found


# ── Words ──


def _problem(value: Any) -> Problem | None:
    """{"errors": [{"code": "a|b", "message"}]}; the list has been seen as a single object, too."""
    errors = value.get("errors") if isinstance(value, dict) else None
    listed = [errors] if isinstance(errors, dict) else errors
    known = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    if not known:
        return None
    codes = [words(each.get("code") or "", 80) for each in known[:5]]
    said = "; ".join(words(each.get("message") or each.get("code") or "", 200) for each in known[:3])
    return Problem(tuple(part for code in codes for part in (code, *code.split("|")) if part), said)


_APPROVAL: Final = Meaning(
    Verdict.PENDING, "An administrator of the account must approve it in CertCentral.", person=True
)  # fmt: skip
_OVER: Final = Meaning(Verdict.FAILED)
_NO_RIGHT: Final = Meaning(
    Verdict.FAILED, "The credential api_key is wrong, or its user has no right to do this.", Reason.ACCOUNT_REFUSED
)

DIALECT: Final = Dialect(
    ca="DigiCert",
    words={
        "pending": Meaning(Verdict.PENDING, "The CA validates the organization and the domains."),
        "processing": Meaning(Verdict.PENDING),
        "needsapproval": _APPROVAL,
        "needscsr": Meaning(Verdict.PENDING, "The order waits for a CSR: look at it in CertCentral.", person=True),
        "waitingpickup": Meaning(Verdict.PENDING),
        "reissuepending": Meaning(Verdict.PENDING),
        "approved": Meaning(Verdict.PENDING),  # of old orders: taken, not issued
        "issued": Meaning(Verdict.ISSUED),
        **dict.fromkeys(("rejected", "denied", "canceled", "cancelled"), _OVER),
        **dict.fromkeys(("revoked", "expired"), Meaning(Verdict.FAILED, again=True)),
    },
    codes={
        "request_limit_exceeded": Meaning(Verdict.TRANSIENT, reason=Reason.CA_RATE_LIMITED),
        "invalid_approver": _NO_RIGHT,
        "access_denied": _NO_RIGHT,
    },
    about={
        "organization": Meaning(Verdict.FAILED, "Check the setting organization_id, and that DigiCert validated it."),
        "product": Meaning(Verdict.FAILED, "Check the setting product.", Reason.PROFILE_UNKNOWN),
        "container": Meaning(Verdict.FAILED, "Check the setting container_id."),
        "custom_field": Meaning(Verdict.FAILED, "Check the setting custom_fields."),
        "dns_name": Meaning(Verdict.FAILED, reason=Reason.NAME_REFUSED),
        "common_name": Meaning(Verdict.FAILED, reason=Reason.NAME_REFUSED),
    },
    statuses={406: Meaning(Verdict.TRANSIENT)},  # its balancers say so in passing
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


# ── What is sent ──


def body(wish: Wish, settings: Settings, *, renewal_of: int | None) -> dict[str, Any]:
    """A new order, which follows another one or none."""
    custom = [{"metadata_id": int(number), "value": value} for number, value in settings.custom_fields.items()]
    return reissue_body(wish, settings) | _told(
        {
            "alternative_order_id": wish.issuance,
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


def reissue_body(wish: Wish, settings: Settings) -> dict[str, Any]:
    """What an order and a reissue have in common. All names are repeated: of the CSR only its key is taken."""
    certificate = {
        "common_name": common_name(wish),
        "csr": csr.to_pem(wish.csr),
        "dns_names": [each.value for each in wish.identifiers],
        "signature_hash": settings.signature_hash,
        "server_platform": {"id": _OTHER_PLATFORM},
        "ca_cert_id": settings.ca_cert_id,
        "cert_validity": _validity(wish, settings),
    }
    return {
        "certificate": _told(certificate),
        "skip_approval": settings.skip_approval,
        "comments": f"Ordered by Holdfast as {wish.issuance}.",
    }


def _told(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _by_id(number: int | None) -> dict[str, int] | None:
    return None if number is None else {"id": number}


def _validity(wish: Wish, settings: Settings) -> dict[str, Any] | None:
    if wish.not_after is not None:
        return {"custom_expiration_date": wish.not_after.astimezone(UTC).strftime("%Y-%m-%d")}
    return None if settings.validity_days is None else {"days": settings.validity_days}


def common_name(wish: Wish) -> str:
    """It must have one, and one has at most 64 characters."""
    short = [each.value for each in wish.identifiers if len(each.value) <= csr.MAX_COMMON_NAME]
    if not short:
        raise Refused(
            f"DigiCert needs one name of at most {csr.MAX_COMMON_NAME} characters, as common name; add a shorter one.",
            reason=Reason.NAME_REFUSED,
        )
    return short[0]


# ── What is read ──


def outlives(order: Mapping[str, Any], wish: Wish, settings: Settings, now: datetime) -> bool:
    """Whether a reissue still has a life worth having, before the plan that it belongs to is over.

    Each would otherwise be cut shorter than the one before, until the last ends with the plan.
    """
    end = order.get("order_valid_till")
    over_at = instant(end) or instant(f"{end}T00:00:00Z")
    return over_at is None or over_at - now >= min(_wanted_life(order, wish, settings, now), RENEWED_WITHIN)


def _wanted_life(order: Mapping[str, Any], wish: Wish, settings: Settings, now: datetime) -> timedelta:
    if wish.not_after is not None:
        return wish.not_after - now
    if settings.validity_days is not None:
        return timedelta(days=settings.validity_days)
    dates = [instant(f"{certificate(order).get(name)}T00:00:00Z") for name in ("valid_from", "valid_till")]
    return RENEWED_WITHIN if dates[0] is None or dates[1] is None else dates[1] - dates[0]


def waits_for_approval(order: Mapping[str, Any], request: object) -> bool:
    """Whether this request about the order, such as a reissue, waits for an administrator."""
    return any(each.get("id") == request and is_open(each) for each in requests(order))


def is_open(request: Mapping[str, Any]) -> bool:
    return folded(request.get("status")) in ("pending", "submitted")


def is_denied(request: Mapping[str, Any]) -> bool:
    return folded(request.get("status")) in ("rejected", "denied")


def is_revoked(order: Mapping[str, Any], serial: str) -> bool:
    """By the certificate's own status: an order with a revoked certificate stays active, and can be reissued."""
    shown = certificate(order)
    known = str(shown.get("serial_number") or "").replace(":", "").lstrip("0").upper()
    return word(order) == "revoked" or (known in ("", serial) and word(shown) == "revoked")


def is_revoked_already(reply: Reply) -> bool:
    """Its codes are not listed anywhere; it says so in words."""
    return _refuses_with(reply, "already", "revoked")


def must_wait(reply: Reply) -> bool:
    """A reissue that is pending, or a request that somebody else made, is in the way for now."""
    return _refuses_with(reply, "pending")


def _refuses_with(reply: Reply, *parts: str) -> bool:
    found = " ".join((*reply.codes, "" if reply.finding is None else reply.finding.why)).lower()
    return 400 <= reply.status < 500 and all(each in found for each in parts)


def word(thing: Mapping[str, Any]) -> str:
    """The status of an order or of a certificate, in one spelling."""
    return folded(thing.get("status"))


def ref(order: int, reply: Mapping[str, Any], *, known: Sequence[int] | None = None) -> dict[str, Any]:
    """What is kept of an order: its number, and what the answer gave besides; `known` is what a reissue replaces."""
    request = next((each.get("id") for each in requests(reply)), None)
    number = reply.get("certificate_id")
    found = {
        "order": order,
        "request": request if isinstance(request, int) else None,
        "certificate": number if isinstance(number, int) and number not in (known or ()) else None,
        "known": None if known is None else list(known),
    }
    return _told(found)


def requests(order: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = order.get("requests")
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def listed(reply: Reply, name: str) -> list[dict[str, Any]]:
    """A list in an answer; an empty object is how it says that there is none."""
    found = reply.json_object().get(name, [])
    if not isinstance(found, list) or len(found) > MAX_ITEMS:
        raise reply.broken()
    return [each for each in found if isinstance(each, dict)]


def certificate(order: Mapping[str, Any]) -> dict[str, Any]:
    """The order's current one; before it is issued it has names only."""
    found = order.get("certificate")
    return found if isinstance(found, dict) else {}


def ids(certificates: Sequence[object]) -> list[int]:
    found = [each.get("id") for each in certificates if isinstance(each, dict)]
    return sorted({each for each in found if isinstance(each, int)})


def certificate_id(order: Mapping[str, Any]) -> int | None:
    number = certificate(order).get("id")
    return number if isinstance(number, int) else None


def is_issued(order: Mapping[str, Any]) -> bool:
    """Of an old order "approved" may mean it, too: then there is a serial number."""
    return word(order) == "issued" or (word(order) == "approved" and has_serial(certificate(order)))


def is_rejected(order: Mapping[str, Any], request: object) -> bool:
    """Whether a person said no to this request about the order."""
    return any(each.get("id") == request and is_denied(each) for each in requests(order))


def has_serial(certificate: Mapping[str, Any]) -> bool:
    return isinstance(certificate.get("id"), int) and bool(certificate.get("serial_number"))


def is_ours(order: Mapping[str, Any], wish: Wish) -> bool | None:
    """By our reference and by the key of its CSR, each of which it may not show; None: it shows neither."""
    reference = order.get("alternative_order_id")
    if reference and reference != wish.issuance:
        return False
    theirs = _key_of(certificate(order).get("csr"))
    if theirs is None:
        return True if reference else None
    return theirs == chains.public_key(wish.csr)


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


def said(order: Mapping[str, Any]) -> str:
    """What a person wrote when deciding about it, if anything."""
    notes = [each.get("processor_comment") for each in requests(order)]
    notes += [order.get(name) for name in ("note", "status_note", "reject_reason")]
    return "; ".join(words(each, 200) for each in notes if isinstance(each, str) and each.strip())
