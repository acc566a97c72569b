"""What an Entrust CA Gateway answers: its words, its errors, and where certificates are in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cryptography import x509

from holdfast.core.reasons import Reason
from holdfast.errors import Refused
from holdfast.issuers import chains
from holdfast.issuers.reading import words
from holdfast.issuers.rest import Reply
from holdfast.issuers.triage import Dialect, Meaning, Problem, Verdict


def _problem(value: Any) -> Problem | None:
    """Its code and its first sentence; the details describe what is behind the gateway, and are nobody's business."""
    error = value.get("error") if isinstance(value, dict) else None
    if not isinstance(error, dict):
        return None
    code = words(error.get("code") or "", 40)
    said = words(error.get("message") or "no more is said", 256)
    return Problem((code,) if code else (), f"{said} ({code})" if code else said)


_WAITS: Final = Meaning(Verdict.PENDING)
_APPROVAL: Final = Meaning(Verdict.PENDING, "It waits for a person at the CA, which may take days.", person=True)
_OVER: Final = Meaning(Verdict.FAILED)

DIALECT: Final = Dialect(
    ca="Entrust",
    words={
        **dict.fromkeys(("pending", "processing", "accepted", "issued", "completed", "normal"), _WAITS),
        **dict.fromkeys(("awaitingapproval", "held", "suspended"), _APPROVAL),
        **dict.fromkeys(("rejected", "denied", "declined", "failed", "canceled", "cancelled"), _OVER),
        **dict.fromkeys(("revoked", "expired"), Meaning(Verdict.FAILED, again=True)),
    },
    codes={"cagw-4018": Meaning(Verdict.FAILED, "Check the setting ca_id.", Reason.ACCOUNT_REFUSED)},
    statuses={501: Meaning(Verdict.FAILED, "This gateway does not offer that.")},
    problem=_problem,
    blame={401: "client_certificate_file", 403: "client_certificate_file", 404: "ca_id"},
)


def whole(reply: Reply) -> dict[str, Any]:
    """An error may come with any status: the body says which it is."""
    found = reply.json_object()
    if found.get("type") == "ErrorResponse" or isinstance(found.get("error"), dict):
        problem = _problem(found)
        said = problem.said if problem else "an error"
        raise Refused(f"{DIALECT.ca}, {reply.what}: {said} (HTTP {reply.status}).", reason=Reason.CA_REFUSED)
    return found


def inside(reply: Reply, name: str) -> dict[str, Any]:
    found = whole(reply).get(name)
    if not isinstance(found, dict):
        raise reply.broken()
    return found


def message(reply: Reply) -> str:
    found = reply.json_object().get("message")
    return words(found.get("message") or "") if isinstance(found, dict) else ""


def data(value: object) -> tuple[x509.Certificate, ...]:
    return chains.read(value.get("certificateData")) if isinstance(value, dict) else ()


def chain_of(value: Mapping[str, Any]) -> list[x509.Certificate]:
    listed = value.get("chain")
    return [found for each in listed for found in data(each)] if isinstance(listed, list) else []


def serial_of(certificate: x509.Certificate) -> str:
    return spelled(certificate.serial_number)


def spelled(serial: int) -> str:
    text = f"{serial:x}"
    return text if len(text) % 2 == 0 else f"0{text}"


def hex_or_none(value: object) -> str | None:
    text = str(value or "").strip().lower().replace(":", "")
    return text if text and all(each in "0123456789abcdef" for each in text) else None
