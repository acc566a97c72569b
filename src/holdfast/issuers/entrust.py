"""Entrust CA Gateway (API v1): a client certificate is all that it knows us by, and a certificate is all that counts.

What its status words promise differs between the CAs behind it, so a certificate in the answer decides before any word.
There is no key by which an order is the same order again: after an answer that was lost its list of events is read.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from pydantic import Field

from holdfast.core.issuers.ca_limits import BY_CONTRACT, Reckoned
from holdfast.core.kind import Kind
from holdfast.core.reasons import Reason
from holdfast.errors import Refused, TryLater
from holdfast.issuers import chains, client_certificate, triage
from holdfast.issuers.base import Issued, Look, OrderRef, OrderRequest, Pending, Placed, Uncertain
from holdfast.issuers.client_certificate import ClientCertificateSettings
from holdfast.issuers.kind import BaseUrl, IssuerKind, Parts
from holdfast.issuers.memory import IssuerMemory, Remembered, Search, resumed
from holdfast.issuers.reading import instant, words
from holdfast.issuers.rest import Reply, Rest, beforehand, segment
from holdfast.issuers.triage import AnswerMeaning, AnswerVerdict, CaProblem, Dialect
from holdfast.kind_settings import Flag, Number, Text, Texts
from holdfast.secret import Secret

# ── Answers ──
# What an Entrust CA Gateway answers: its words, its errors, and where certificates are in it.


def _problem(value: object) -> CaProblem | None:
    """Its code and its first sentence; the details describe systems behind the gateway, and are left out."""
    error = value.get("error") if isinstance(value, dict) else None
    if not isinstance(error, dict):
        return None
    code = words(error.get("code") or "", 40)
    said = words(error.get("message") or "no more is said", 256)
    return CaProblem((code,) if code else (), f"{said} ({code})" if code else said)


_WAITS: Final = AnswerMeaning(AnswerVerdict.PENDING)
_APPROVAL: Final = AnswerMeaning(
    AnswerVerdict.PENDING, "It waits for a person at the CA, which may take days.", person=True
)
_OVER: Final = AnswerMeaning(AnswerVerdict.FAILED)

DIALECT: Final = Dialect(
    ca="Entrust",
    words={
        **dict.fromkeys(("pending", "processing", "accepted", "issued", "completed", "normal"), _WAITS),
        **dict.fromkeys(("awaitingapproval", "held", "suspended"), _APPROVAL),
        **dict.fromkeys(("rejected", "denied", "declined", "failed", "canceled", "cancelled"), _OVER),
        **dict.fromkeys(("revoked", "expired"), AnswerMeaning(AnswerVerdict.FAILED, again=True)),
    },
    codes={"cagw-4018": AnswerMeaning(AnswerVerdict.FAILED, "Check the setting ca_id.", Reason.ACCOUNT_REFUSED)},
    statuses={501: AnswerMeaning(AnswerVerdict.FAILED, "This gateway does not offer that.")},
    problem=_problem,
    blame={401: "client_certificate_file", 403: "client_certificate_file", 404: "ca_id"},
)


def whole(reply: Reply) -> dict[str, object]:
    """An error may come with any status: the body says which it is."""
    found = reply.json_object()
    if found.get("type") == "ErrorResponse" or isinstance(found.get("error"), dict):
        problem = _problem(found)
        said = problem.said if problem else "an error"
        raise Refused(f"{DIALECT.ca}, {reply.what}: {said} (HTTP {reply.status}).", reason=Reason.CA_REFUSED)
    return found


def inside(reply: Reply, name: str) -> dict[str, object]:
    found = whole(reply).get(name)
    if not isinstance(found, dict):
        raise reply.broken()
    return found


def message(reply: Reply) -> str:
    found = reply.json_object().get("message")
    return words(found.get("message") or "") if isinstance(found, dict) else ""


def data(value: object) -> tuple[x509.Certificate, ...]:
    return chains.read(value.get("certificateData")) if isinstance(value, dict) else ()


def chain_of(value: Mapping[str, object]) -> list[x509.Certificate]:
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


# ── Orders ──
# An enrollment at an Entrust CA Gateway, with the subject variables that its profile wants.


_TYPES: Final = {"dns": "dNSName", "ip": "iPAddress"}
_COMMON_NAME: Final = frozenset({"cn", "commonname"})
_LONGEST_COMMON_NAME: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class EntrustProfile:
    """A kind of certificate: which variables of the subject it has, and which it insists on."""

    id: str
    name: str = ""
    variables: Mapping[str, bool] = field(default_factory=dict)  # name → required


def read_profile(name: str, value: Mapping[str, object]) -> EntrustProfile:
    listed = value.get("subjectVariableRequirements")
    found = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    variables = {words(each.get("name"), 80): each.get("required") is True for each in found if each.get("name")}
    return EntrustProfile(id=name, name=words(value.get("name") or "", 80), variables=variables)


def enrollment_body(
    request: OrderRequest, profile: EntrustProfile, *, variables: Mapping[str, str], lasts: timedelta
) -> dict[str, object]:
    """An enrollment. Names and validity are always said: its hosted form takes neither from the CSR."""
    return {
        "profileId": profile.id,
        "requiredFormat": {"format": "X509", "protection": None},
        "csr": base64.b64encode(request.csr).decode(),
        "subjectVariables": _variables(request, profile, variables),
        "subjectAltNames": [{"type": _TYPES[each.type], "value": each.value} for each in request.identifiers],
        "optionalCertificateRequestDetails": {
            "useSANFromCSR": False,
            "validityPeriod": f"PT{max(int(lasts.total_seconds()), 60)}S",
        },
        "includeCa": True,
        "properties": {"tracking.trackingInfo": request.issuance},  # our own reference, for people who look for it
    }


def _variables(request: OrderRequest, profile: EntrustProfile, given: Mapping[str, str]) -> list[dict[str, str]]:
    said = dict(given)
    for name, required in profile.variables.items():
        if name not in said and name.lower() in _COMMON_NAME and (common := _common_name(request)) is not None:
            said[name] = common
        if required and name not in said:
            raise Refused(
                f"The profile {profile.id} wants {name} in the subject. Set it: subject_variables.{name}.",
                reason=Reason.CA_REFUSED,
            )
    return [{"type": name, "value": value} for name, value in said.items()]


def _common_name(request: OrderRequest) -> str | None:
    return next((each.value for each in request.identifiers if len(each.value) <= _LONGEST_COMMON_NAME), None)


# ── Events ──
# What an Entrust CA Gateway did lately: pages of events, read over as many claims as it takes, compared by key.


CLOCKS_DIFFER: Final = timedelta(minutes=5)
_SHOWN_LATE: Final = timedelta(hours=1)  # what happened so long before a reading may not have been in it yet
_EVENTS: Final = 50  # on a page: what its hosted form allows


@dataclass(slots=True)
class _Reading:
    """One way through the pages."""

    start: datetime
    begun: datetime
    again: bool = False
    claims: int = 1
    page: str | None = None  # the next one


async def find(
    rest: Rest, path: str, request: OrderRequest, asked_at: datetime, search: Search
) -> x509.Certificate | None:
    """A certificate for our key among what this CA did since then. TryLater: there is more than one claim may read.

    Pages may shift while they are read so slowly. So what has happened meanwhile is then read once more: to see none
    in it may be to order again. What was read to its end is not read again, but for the last hour of it.
    """
    known = search.since or asked_at
    fresh = _Reading(start=max(known - _SHOWN_LATE, asked_at) - CLOCKS_DIFFER, begun=rest.clock.now())
    reading: _Reading = search.cursor or fresh
    reading.claims += search.cursor is not None
    search.cursor = reading
    found = await _read(rest, path, request, asked_at, search, reading)
    if found is None and reading.claims > 1 and not reading.again:
        reading = _Reading(start=reading.begun - CLOCKS_DIFFER, begun=reading.begun, again=True)
        search.cursor = reading
        found = await _read(rest, path, request, asked_at, search, reading)
    search.cursor, search.since = None, reading.begun
    return found


async def _read(
    rest: Rest, path: str, request: OrderRequest, asked_at: datetime, search: Search, reading: _Reading
) -> x509.Certificate | None:
    start = f"{reading.start.astimezone(UTC):%Y-%m-%dT%H:%M:%S}.00Z"
    while True:
        search.spend(rest.name)
        query = {"startDate": start, "preferredPageSize": str(_EVENTS)}
        if reading.page is not None:
            query["nextPageIndex"] = reading.page
        reply = await rest.get(f"{path}/certificate-events", "its events", query)
        page = whole(reply)
        events = page.get("events", [])
        if not isinstance(events, list) or "morePages" not in page:
            raise reply.broken()
        for event in events:
            found = chains.read(event.get("certificate")) if isinstance(event, dict) else ()
            if found and chains.answers(found[0], request.csr, asked_at):
                return found[0]
        if not page.get("morePages"):
            return None
        reading.page = str(page.get("nextPageIndex"))


# ── The issuer ──


_PAGES_LOOKED_UP, _PAGES_LOOKED_AT = 8, 2  # in one claim, for an order that may be there and for one that is
_KEPT_FOR: Final = 3600.0  # seconds, of what its CA and its profile say of themselves
_NOT_OFFERED: Final = (404, 405, 501)
_ACTED: Final = frozenset({"completed", "succeeded", "revoked"})  # what an action is called that was carried out
_REASONS: Final = {
    0: "unspecified", 1: "keyCompromise", 2: "caCompromise", 3: "affiliationChanged", 4: "superseded",
    5: "cessationOfOperation", 6: "certificateHold", 9: "privilegeWithdrawn",
}  # fmt: skip


class EntrustSettings(ClientCertificateSettings):
    """How to order at one CA behind a gateway."""

    base_url: BaseUrl = Field(description="With the path of the gateway, without the version: https://…/cagw.")
    ca_id: Text = Field(description="The CA behind the gateway.")
    profile_id: Text = Field(description="The profile; the profile of a certificate comes before it.")
    approval: Flag = Field(default=True, description="Whether a person may have to approve: what waits is not listed.")
    subject_variables: Texts = Field(default_factory=dict, description="Of the subject, as the profile names them.")
    validity_days: Number = Field(default=90, le=1200, description="Of certificates that ask for no lifetime.")
    client_id: Text = Field(default="", description="Sent as ca-client-id, where the gateway wants it.")


class EntrustIssuer:
    """One CA and one profile behind one gateway."""

    binding = True

    def __init__(self, rest: Rest, terms: EntrustSettings, memory: Remembered, searches: IssuerMemory) -> None:
        self._rest = rest
        self._terms = terms
        self._memory = memory
        self._searches = searches
        self._path = f"/v1/certificate-authorities/{segment(terms.ca_id)}"

    # ── Ordering ──

    async def find_order(self, request: OrderRequest) -> Placed | Uncertain | None:
        """A certificate for our key shows among the events; an enrollment that waits for approval shows nowhere."""
        if (issued := await self._among_events(request, request.asked_at, _PAGES_LOOKED_UP)) is not None:
            return Placed(ref={"certificate": chains.text(issued), "serial": serial_of(issued)})
        if not self._terms.approval:
            return None  # it shows within moments, and the engine looks for a while
        return Uncertain(
            why=f"{self._rest.name} may have our order and cannot be asked while it waits for approval. Look for the "
            f"reference {request.issuance} in its list of enrollments. A profile that issues at once has "
            f"approval=false.",
            for_a_person=True,
        )

    async def place_order(self, request: OrderRequest) -> Placed:
        with beforehand():
            profile = await self._profile(request.profile or self._terms.profile_id)
        now = self._rest.clock.now()
        end = request.not_after or now + timedelta(days=self._terms.validity_days)
        body = enrollment_body(request, profile, variables=self._terms.subject_variables, lasts=end - now)
        reply = await self._rest.post(f"{self._path}/enrollments", "a new enrollment", body)
        enrollment = inside(reply, "enrollment")
        found, number = _leaf(enrollment.get("body"), request), words(enrollment.get("id") or "", 200)
        said = reply.by_word(enrollment.get("status"), message(reply))
        if (
            found is None and said.verdict is AnswerVerdict.FAILED
        ):  # the only answer that a gateway without GET ever gives
            raise said.error()
        if found is None and not number:
            raise reply.broken()
        ref = {
            "enrollment": number or None,
            "placed_at": self._rest.clock.now().astimezone(UTC).isoformat(),
            "serial": serial_of(found) if found else hex_or_none(enrollment.get("serialNumber")),
            "certificate": chains.text(found) if found else None,
        }
        return Placed(ref={name: value for name, value in ref.items() if value is not None})

    async def _profile(self, name: str) -> EntrustProfile:
        """The profile; read before ordering, so that a wrong profile name is reported as such."""

        async def read() -> EntrustProfile:
            reply = await self._rest.get(f"{self._path}/profiles/{segment(name)}", "its profile")
            if reply.status == 404 and "cagw-4018" not in reply.codes:
                raise Refused(
                    f"{self._rest.name} has no profile {words(name, 80)!r} in {self._terms.ca_id}, or no such CA. "
                    "Check the settings profile_id and ca_id.",
                    reason=Reason.PROFILE_UNKNOWN,
                )
            return read_profile(name, inside(reply, "profile"))

        return await self._memory.kept((self._path, "profile", name), read, _KEPT_FOR)

    # ── Looking ──

    async def order_status(self, ref: OrderRef, request: OrderRequest) -> Look:
        if known := chains.read(ref.get("certificate")):
            return await self._issued(request, known[0])
        if "enrollment" in ref:
            reply = await self._rest.get(f"{self._path}/enrollments/{segment(ref['enrollment'])}", "our enrollment")
            if reply.status not in _NOT_OFFERED:
                return await self._judged(request, reply, inside(reply, "enrollment"), "body")
        return await self._elsewhere(ref, request)

    async def _judged(self, request: OrderRequest, reply: Reply, found: Mapping[str, object], content: str) -> Look:
        """The certificate first, then the word."""
        if (leaf := _leaf(found.get(content), request)) is not None:
            return await self._issued(request, leaf, *chains.read(found.get(content)), *chain_of(found))
        if found.get(content):
            raise reply.broken()
        return reply.by_word(found.get("status"), message(reply)).look()

    async def _elsewhere(self, ref: OrderRef, request: OrderRequest) -> Look:
        """For a gateway that does not show enrollments: the certificate by its serial, or by our key."""
        if "serial" in ref:
            reply = await self._rest.get(f"{self._path}/certificates/{ref['serial']}", "our certificate")
            if reply.status not in _NOT_OFFERED:
                return await self._judged(request, reply, inside(reply, "certificate"), "certificateData")
        issued = await self._among_events(request, instant(ref.get("placed_at")), _PAGES_LOOKED_AT)
        if issued is not None:
            return await self._issued(request, issued)
        return Pending(why=f"{self._rest.name} took the order and does not show it; it is waited for.")

    async def _among_events(self, request: OrderRequest, since: datetime | None, pages: int) -> x509.Certificate | None:
        search = resumed(self._searches, f"{request.issuance}/events", pages)
        asked_at = since or self._rest.clock.now() - timedelta(days=1)
        return await find(self._rest, self._path, request, asked_at, search)

    async def _issued(self, request: OrderRequest, leaf: x509.Certificate, *beside: x509.Certificate) -> Look:
        if not chains.is_for(leaf, request.csr):
            return chains.not_ours(self._rest.name)
        above = chains.above(leaf, [*beside, *await self._authorities()])
        if above is None:
            why = f"{self._rest.name} issued it and does not show the CA that signed it. Check the setting ca_id."
            return Pending(why=why, word="issued")
        return Issued(chain_pem=above)

    async def _authorities(self) -> tuple[x509.Certificate, ...]:
        """The CA and those above it: left out of its answers unless they are asked for."""

        async def read() -> tuple[x509.Certificate, ...]:
            fields = {"$fields": "ca.certificate,ca.chain"}
            ca = inside(await self._rest.get(self._path, "its CA", fields), "ca")
            return (*data(ca.get("certificate")), *chain_of(ca))

        return await self._memory.kept((self._path, "chain"), read, _KEPT_FOR)

    # ── What else there is ──

    async def cancel(self, ref: OrderRef) -> None:
        """Its API has no such call. An enrollment that is decided already needs none."""
        if "certificate" in ref or "enrollment" not in ref:
            return
        reply = await self._rest.get(f"{self._path}/enrollments/{segment(ref['enrollment'])}", "our enrollment")
        if reply.status not in _NOT_OFFERED:
            found = inside(reply, "enrollment")
            if found.get("body") or reply.by_word(found.get("status")).verdict is not AnswerVerdict.PENDING:
                return
        raise Refused(
            f"{self._rest.name} has no way to withdraw enrollment {ref['enrollment']}. Have it denied there.",
            reason=Reason.CA_REFUSED,
        )

    async def revoke(self, certificate: bytes, reason: int) -> None:
        """Again is harmless: it says so itself (succeedIfAlreadyInRequestedState)."""
        serial = chains.leaf_of(certificate).serial_number
        action = {"type": "RevokeAction", "reason": _REASONS.get(reason, "unspecified"), "comment": "by Holdfast"}
        for name in dict.fromkeys((spelled(serial), f"{serial:040x}", f"{serial:x}")):  # gateways differ
            path = f"{self._path}/certificates/{name}/actions"
            reply = await self._rest.post(path, "a revocation", {"action": action})
            if reply.status != 404:
                break
        try:
            done = inside(reply, "action")
        except Refused:
            if await self._is_revoked(name):
                return
            raise
        word = triage.folded(done.get("status"))
        if word in _ACTED:
            return
        revoked = await self._is_revoked(name)
        if word == "rejected" and not revoked:
            said = words(done.get("reason") or "no more is said")
            raise Refused(f"{self._rest.name} rejected the revocation: {said}", reason=Reason.CA_REFUSED)
        if revoked is False:
            why = f"{self._rest.name} took the revocation ({words(done.get('status'), 40)}) and has not done it yet."
            raise TryLater(why, reason=Reason.CA_STILL_PENDING)

    async def _is_revoked(self, serial: str) -> bool | None:
        """By the certificate's own status; None: this gateway does not show it."""
        reply = await self._rest.get(f"{self._path}/certificates/{serial}", "a certificate")
        if reply.finding is not None or reply.status in _NOT_OFFERED:
            return None
        return triage.folded(inside(reply, "certificate").get("status")) == "revoked"

    async def probe(self) -> str:
        ca = inside(await self._rest.get(self._path, "its CA"), "ca")
        profile = await self._profile(self._terms.profile_id)
        named = words(ca.get("name") or self._terms.ca_id, 80)
        ends = client_certificate.until(self._rest.site.identity)
        return f"{self._rest.name} knows us; CA {named}, profile {words(profile.name or profile.id, 80)}; {ends}."


def _leaf(content: object, request: OrderRequest) -> x509.Certificate | None:
    """Of the certificates in a body the one for our key; if there is none, the first: it is not what was asked for."""
    found = chains.read(content)
    return next((each for each in found if chains.is_for(each, request.csr)), found[0] if found else None)


def _make(settings: EntrustSettings, parts: Parts) -> EntrustIssuer:
    headers = {"ca-client-id": Secret(settings.client_id)} if settings.client_id else {}
    identity = client_certificate.shown_by(settings, parts)
    site = settings.site(headers, base=settings.base_url.removesuffix("/v1"), identity=identity)
    memory: Remembered = parts.memory.setdefault("remembered", Remembered(parts.clock))
    return EntrustIssuer(Rest(parts.transport, parts.clock, site, DIALECT), settings, memory, parts.memory)


ENTRUST: Final[IssuerKind[EntrustSettings]] = Kind(
    name="entrust",
    summary="Entrust CA Gateway: orders that people may have to approve.",
    settings=EntrustSettings,
    credentials=client_certificate.CREDENTIALS,
    limits=replace(BY_CONTRACT, claim=Reckoned(order=4, look=4, lookup=8)),
    make=_make,
)
