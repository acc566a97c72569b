"""Sectigo Certificate Manager (SCM REST): enrolments that people approve, and "issued" that is not yet to be had.

It knows no idempotency key and shows no CSR. Our reference is in the comments of each request, and is looked for
there before anything is requested again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, Literal

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import pkcs7
from pydantic import Field

from holdfast.core.issuers.ca_limits import BY_CONTRACT, Reckoned
from holdfast.core.kind import Credential, Kind, Trait
from holdfast.core.reasons import Reason
from holdfast.errors import Refused
from holdfast.issuers import chains
from holdfast.issuers.base import (
    Failed,
    Issued,
    Listed,
    ListedPage,
    Look,
    OrderRef,
    OrderRequest,
    Pending,
    Placed,
    Uncertain,
)
from holdfast.issuers.kind import BaseUrl, IssuerKind, Parts, RestSettings
from holdfast.issuers.memory import IssuerMemory, Search, resumed
from holdfast.issuers.reading import words
from holdfast.issuers.rest import Headers, Reply, Rest, beforehand, segment
from holdfast.issuers.triage import AnswerMeaning, AnswerVerdict, CaProblem, Dialect
from holdfast.kind_settings import Number, Texts, whole
from holdfast.pki import csr

# ── Orders and answers ──
# Sectigo Certificate Manager: its settings, its words and codes, and its certificates in any wrapping.


BASE: Final = "https://cert-manager.com/api"
_MAX_COMMENTS: Final = 1024


# ── SectigoSettings ──


class SectigoSettings(RestSettings):
    """How to enrol."""

    base_url: BaseUrl = Field(default=BASE, description="Of the REST API.")
    api_version: Literal["v1", "v2"] = Field(default="v1", description="Of the paths below /ssl.")
    customer_uri: str = Field(
        pattern=whole("[A-Za-z0-9._~-]{1,128}"), description="The customer's part of the login address."
    )
    login: str = Field(pattern=whole("[!-~]{1,128}"), description="Of an administrator that may use the API.")
    org_id: Number = Field(description="The organization, or department, that enrols.")
    cert_type: Number = Field(description="The id of a profile; the profile of a certificate comes before it.")
    term: Number = Field(description="Days, one of those that the profile has.")
    renewals: Literal["new", "renew"] = Field(
        default="new", description="A new request, or the last certificate's own renewal."
    )
    dcv_mode: Literal["EMAIL", "CNAME", "HTTP", "HTTPS", "TXT", "AUTO"] | None = Field(
        default=None, description="How domains are validated, where they are not validated before."
    )
    dcv_email: str | None = Field(
        default=None, pattern=whole(r"[^@\s]{1,64}@[^@\s]{1,255}"), description="To whom it is sent, for EMAIL."
    )
    external_requester: str | None = Field(
        default=None, pattern=whole(r"[^\s]{3,512}"), description="Addresses that are told of the enrolment."
    )
    custom_fields: Texts = Field(default_factory=dict, description="What the account asks for in each request.")


# ── Words and codes ──


def _problem(value: object) -> CaProblem | None:
    """{"code": -183, "description": "…"}"""
    if not isinstance(value, dict) or not isinstance(value.get("code"), int | str):
        return None
    code, said = words(value["code"], 20), words(value.get("description") or "no more is said")
    return CaProblem((code,), f"{said} ({code})")


def _each(codes: str, meaning: AnswerMeaning) -> dict[str, AnswerMeaning]:
    return dict.fromkeys(codes.split(), meaning)


def _refusal(says: str, reason: Reason | None = None) -> AnswerMeaning:
    return AnswerMeaning(AnswerVerdict.FAILED, says, reason)


_APPROVAL: Final = AnswerMeaning(
    AnswerVerdict.PENDING, "An administrator must approve it in Sectigo Certificate Manager.", person=True
)  # fmt: skip
_AT_WORK: Final = AnswerMeaning(AnswerVerdict.PENDING)
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
        "issued": AnswerMeaning(AnswerVerdict.ISSUED),
        "declined": _refusal("An administrator declined it."),
        "rejected": _refusal("The CA rejected it."),
        "invalid": _refusal("The request is not valid."),
        **dict.fromkeys(("revoked", "expired", "replaced"), AnswerMeaning(AnswerVerdict.FAILED, again=True)),
        "unmanaged": _refusal("It is not managed there any more."),
    },
    codes={
        **_each(
            "-183 -103 -109 -1400", AnswerMeaning(AnswerVerdict.PENDING, "It is issued, and cannot be collected yet.")
        ),
        **_each("-2 -14 -129 -140 -195", AnswerMeaning(AnswerVerdict.TRANSIENT)),
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


# ── Bodies ──


def enroll_body(request: OrderRequest, settings: SectigoSettings, *, cert_type: int, term: int) -> dict[str, object]:
    told = {
        "orgId": settings.org_id,
        "csr": csr.to_pem(request.csr),
        "certType": cert_type,
        "term": term,
        "subjAltNames": ",".join(each.value for each in request.identifiers),
        "comments": f"Holdfast {request.issuance}"[:_MAX_COMMENTS],
        "externalRequester": settings.external_requester,
        "customFields": [{"name": name, "value": value} for name, value in settings.custom_fields.items()] or None,
    }
    return {name: value for name, value in (told | _dcv(settings)).items() if value is not None}


def renewal(request: OrderRequest, settings: SectigoSettings) -> dict[str, object]:
    """With our CSR: without one the old key would be used again."""
    return {
        name: value for name, value in ({"csr": csr.to_pem(request.csr)} | _dcv(settings)).items() if value is not None
    }


def _dcv(settings: SectigoSettings) -> dict[str, str | None]:
    return {"dcvMode": settings.dcv_mode, "dcvEmail": settings.dcv_email}


def common_name(request: OrderRequest) -> str:
    """The name under which Sectigo lists the order: the CSR's common name, or its first name."""
    found = x509.load_der_x509_csr(request.csr).subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    return str(found[0].value) if found else request.identifiers[0].value


# ── Answers ──


def is_ours(details: Mapping[str, object], request: OrderRequest) -> bool:
    """By the reference in its comments: it shows neither the CSR nor the key."""
    comments = details.get("comments")
    return isinstance(comments, str) and request.issuance in re.split(r"[^A-Za-z0-9_-]+", comments)


def requested_on(details: Mapping[str, object]) -> date | None:
    """As 11/16/2026 in its first version, as a date-time in its second."""
    found = details.get("requested")
    for form in ("%m/%d/%Y", "%Y-%m-%d"):
        try:
            return datetime.strptime(str(found)[:10], form).replace(tzinfo=UTC).date()
        except ValueError:
            continue
    return None


def said(details: Mapping[str, object]) -> str:
    """The comment of the person who declined the request, if it is shown."""
    found = (details.get(name) for name in ("declineMessage", "rejectReason", "reason", "message"))
    return "; ".join(words(each, 200) for each in found if isinstance(each, str) and each.strip())


def certificates(content: bytes) -> tuple[x509.Certificate, ...]:
    """PEM, or PKCS#7 in PEM or DER: Sectigo may answer in another format than asked. None if it is none of these."""
    try:
        if b"-----BEGIN PKCS7" in content or b"-----BEGIN CMS" in content:
            return tuple(pkcs7.load_pem_pkcs7_certificates(content))
        if content[:1] == b"\x30":
            return tuple(pkcs7.load_der_pkcs7_certificates(content))
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return ()
    return chains.read(content.decode("ascii", "replace"))


# ── The issuer ──


_FORMAT: Final = "x509"  # the certificate with its chain, in PEM; its order is not relied upon
_PAGE: Final = 200
LISTED_AT_ONCE: Final = 6  # of a page of the list: each is collected by a request of its own
_MOST_PAGES: Final = 3
_MOST_DETAILS: Final = 40  # that are read, to find a request of ours
_DETAILS: Final = 6  # that are read in one claim
_ANY: Final = {"Accept": "*/*"}  # a collected certificate is no JSON
_REVOKED: Final = "-110"  # what says that there is nothing to collect, and never will be
_CLOCKS_DIFFER: Final = timedelta(days=1)  # it writes dates without a time
_DAY: Final = timedelta(days=1)
_REVOCATION: Final = {0: "unspecified", 1: "key compromise", 3: "affiliation changed", 4: "superseded",
                      5: "cessation of operation"}  # fmt: skip


class SectigoIssuer:
    """One account, one organization and one profile."""

    binding = True

    def __init__(self, rest: Rest, settings: SectigoSettings, memory: IssuerMemory) -> None:
        self._rest = rest
        self._settings = settings
        self._memory = memory
        self._path = f"/ssl/{settings.api_version}"

    # ── Ordering ──

    async def place_order(self, request: OrderRequest) -> Placed:
        before = self._previous(request)
        if before is not None:
            body = renewal(request, self._settings)
            reply = await self._rest.post(f"{self._path}/renewById/{before}", "a renewal", body)
        else:
            cert_type = self._cert_type(request)
            with beforehand():
                term = await self._term(request, cert_type)
            body = enroll_body(request, self._settings, cert_type=cert_type, term=term)
            reply = await self._rest.post(f"{self._path}/enroll", "a new request", body)
        found = reply.json_object()
        if not isinstance(found.get("sslId"), int):
            raise reply.broken()
        renew = found.get("renewId")
        return Placed(ref={"ssl": found["sslId"], **({"renew": words(renew, 80)} if renew else {})})

    def _previous(self, request: OrderRequest) -> int | None:
        """The order to renew: for the same names only, because a renewal keeps the names of the earlier certificate."""
        known = (request.previous or {}).get("ssl") if request.same_names else None
        return known if self._settings.renewals == "renew" and isinstance(known, int) else None

    def _cert_type(self, request: OrderRequest) -> int:
        if request.profile is None:
            return self._settings.cert_type
        if not request.profile.isdigit():
            raise Refused(
                f"Sectigo's profiles are numbers, and {request.profile!r:.60} is none.", reason=Reason.PROFILE_UNKNOWN
            )
        return int(request.profile)

    async def _term(self, request: OrderRequest, cert_type: int) -> int:
        """The configured term, or for a shorter lifetime the longest term that is not longer."""
        if request.not_after is None:
            return self._settings.term
        days = max(1, round((request.not_after - self._rest.clock.now()) / _DAY))
        if days >= self._settings.term:
            return self._settings.term
        profiles = [each for each in await self._types() if each["id"] == cert_type]
        fitting = [term for each in profiles for term in each["terms"] if isinstance(term, int) and term <= days]
        return max(fitting, default=self._settings.term)

    async def _types(self) -> list[dict[str, Any]]:
        asked = {"organizationId": str(self._settings.org_id)}
        reply = await self._rest.get(f"{self._path}/types", "the list of profiles", asked)
        found = [each for each in reply.json_list() if isinstance(each, dict) and isinstance(each.get("id"), int)]
        return [each | {"terms": each["terms"] if isinstance(each.get("terms"), list) else []} for each in found]

    # ── Finding again ──

    async def find_order(self, request: OrderRequest) -> Placed | Uncertain | None:
        """The list shows ids and names only, so each candidate is opened, the youngest first."""
        search = resumed(self._memory, request.issuance, _DETAILS)
        candidates, whole = await self._listed(common_name(request))
        before = self._previous(request)
        if before is not None:
            return await self._find_renewal([each for each in candidates if each > before], request, search)
        for ssl in candidates[:_MOST_DETAILS]:
            if ssl in search.ruled_out:
                continue
            search.spend(self._rest.name)
            details = await self._details(ssl)
            if is_ours(details, request):
                return Placed(ref={"ssl": ssl})
            if _is_older(details, request):
                return None
            search.ruled_out.add(ssl)
        return None if whole and len(candidates) <= _MOST_DETAILS else self._uncertain(candidates, request)

    async def _listed(self, name: str) -> tuple[list[int], bool]:
        """The requests for a name, the youngest first, and whether these are all of them."""
        found: list[int] = []
        for page in range(_MOST_PAGES):
            asked = {
                "commonName": name, "orgId": str(self._settings.org_id), "size": str(_PAGE),
                "position": str(page * _PAGE),
            }  # fmt: skip
            reply = await self._rest.get(self._path, "our requests by their name", asked)
            listed = [each for each in reply.json_list() if isinstance(each, dict)]
            found += [each["sslId"] for each in listed if isinstance(each.get("sslId"), int)]
            if len(listed) < _PAGE:
                return sorted(set(found), reverse=True), True
        return sorted(set(found), reverse=True), False

    async def _find_renewal(
        self, candidates: list[int], request: OrderRequest, search: Search
    ) -> Placed | Uncertain | None:
        """A renewal carries no comments of ours. An issued one shows its key; a pending one shows nothing."""
        open_ones: list[int] = search.cursor or []  # seen by this search, perhaps in claims before this one
        search.cursor = open_ones
        for ssl in candidates[:_MOST_DETAILS]:
            if ssl in search.ruled_out or ssl in open_ones:
                continue
            search.spend(self._rest.name)
            verdict = await self._verdict(ssl)
            if verdict is AnswerVerdict.ISSUED:
                search.spend(self._rest.name)
                if isinstance(await self._collect(ssl, request), Issued):
                    return Placed(ref={"ssl": ssl})
            if verdict in (
                AnswerVerdict.FAILED,
                AnswerVerdict.ISSUED,
            ):  # one that is issued was looked at, and is not ours
                search.ruled_out.add(ssl)
            else:
                open_ones.append(ssl)
        search.cursor = None
        return self._uncertain(open_ones, request) if open_ones or len(candidates) > _MOST_DETAILS else None

    async def _verdict(self, ssl: int) -> AnswerVerdict:
        reply = await self._rest.get(f"{self._path}/{ssl}", "a request")
        return reply.by_word(reply.json_object().get("status")).verdict

    def _uncertain(self, candidates: list[int], request: OrderRequest) -> Uncertain:
        shown = ", ".join(str(each) for each in candidates[:5])
        return Uncertain(
            why=f"{self._rest.name} has requests for {common_name(request)} that may be ours ({shown}) and "
            f"does not show whose they are. Look there for {request.issuance}, and decline unwanted requests."
        )

    async def _details(self, ssl: int) -> dict[str, object]:
        return (await self._rest.get(f"{self._path}/{ssl}", "a request")).json_object()

    # ── Looking ──

    async def order_status(self, ref: OrderRef, request: OrderRequest) -> Look:
        ssl = int(ref["ssl"])
        reply = await self._rest.get(f"{self._path}/{ssl}", "our request")
        if reply.is_gone:
            return Failed(why=f"{self._rest.name} does not know request {ssl} any more.", reason=Reason.ORDER_EXPIRED)
        details = reply.json_object()
        finding = reply.by_word(details.get("status"), said(details))
        if finding.verdict is not AnswerVerdict.ISSUED:
            return finding.look()
        return await self._collect(ssl, request)

    async def _collect(self, ssl: int, request: OrderRequest) -> Look:
        """HTTP 400 is how it says "not yet", and how it says "never": the code tells them apart."""
        path, asked = f"{self._path}/collect/{ssl}", {"format": _FORMAT}
        reply = await self._rest.get(path, "the certificate", asked, headers=_ANY)
        if UNREACHABLE & set(reply.codes) or not (reply.response.body.strip() or reply.finding):
            why = f"{self._rest.name} has issued it, and cannot hand it out yet."
            return Pending(why=why, word="Issued", after_s=_seconds(reply))
        if reply.finding is not None:
            if reply.finding.verdict is AnswerVerdict.PENDING or _REVOKED in reply.codes:
                return reply.finding.look()
            raise reply.finding.error()  # about us, or about the way: the order itself is issued, and paid for
        found = certificates(reply.response.body)
        if not found:
            raise reply.broken()
        leaf = next((each for each in found if chains.is_for(each, request.csr)), None)
        chain = None if leaf is None else chains.above(leaf, found)
        if chain is None:
            why = f"{self._rest.name} sent for {ssl} a certificate that is not for our key, or has no chain."
            return Failed(why=why, reason=Reason.WRONG_CERTIFICATE, retryable=False)
        return Issued(chain_pem=chain)

    # ── Listing ──

    async def list_certificates(self, after: Mapping[str, Any]) -> ListedPage:
        """Its list has ids only: each certificate is collected."""
        at = int(after.get("position", 0))
        asked = {"orgId": str(self._settings.org_id), "size": str(LISTED_AT_ONCE), "position": str(at)}
        reply = await self._rest.get(self._path, "the list of certificates", asked)
        rows = [each for each in reply.json_list() if isinstance(each, dict)]
        found = [await self._listed_one(each["sslId"]) for each in rows if isinstance(each.get("sslId"), int)]
        good = tuple(each for each in found if each is not None)
        more = {"position": at + len(rows)} if len(rows) == LISTED_AT_ONCE else None
        return ListedPage(certificates=good, unreadable=len(rows) - len(good), next=more)

    async def _listed_one(self, ssl: int) -> Listed | None:
        path = f"{self._path}/collect/{ssl}"
        reply = await self._rest.get(path, "a certificate of the list", {"format": _FORMAT}, headers=_ANY)
        if reply.finding is not None:
            if reply.finding.verdict in (AnswerVerdict.PENDING, AnswerVerdict.FAILED) or _REVOKED in reply.codes:
                return None
            raise reply.finding.error()
        return chains.listed_of(certificates(reply.response.body), f"certificate {ssl}")

    # ── Taking back ──

    async def cancel(self, ref: OrderRef) -> None:
        """A request that waits for approval is declined; one at the CA cannot be cancelled, which raises Refused."""
        path = f"{self._path}/decline/{segment(ref['ssl'])}"
        reply = await self._rest.post(path, "a withdrawal", {"message": "It is not wanted any more."})
        if reply.is_gone or (
            reply.finding is not None and reply.finding.verdict is AnswerVerdict.FAILED and await self._over(ref)
        ):
            return
        reply.good()

    async def _over(self, ref: OrderRef) -> bool:
        """Whether it ended without a certificate, perhaps by our own word, whose answer was lost."""
        return await self._verdict(int(ref["ssl"])) is AnswerVerdict.FAILED

    async def revoke(self, certificate: bytes, reason: int) -> None:
        """By serial number. A certificate that is revoked already is a success."""
        code = reason if reason in _REVOCATION else 0
        body = {"reasonCode": code, "reason": f"Asked for in Holdfast: {_REVOCATION[code]}."}
        serial = _with_colons(chains.leaf_of(certificate).serial_number)
        reply = await self._rest.post(f"{self._path}/revoke/serial/{segment(serial)}", "a revocation", body)
        if ALREADY_REVOKED in reply.codes:
            return
        if NOT_ISSUED in reply.codes:
            raise Refused(f"{self._rest.name}: only an issued certificate can be revoked.", reason=Reason.CA_REFUSED)
        reply.good()

    # ── Probing ──

    async def probe(self) -> str:
        """The login, the profile and its terms, without requesting anything."""
        settings = self._settings
        listed = await self._types()
        found = next((each for each in listed if each["id"] == settings.cert_type), None)
        if found is None:
            offered = ", ".join(f"{each['id']} {words(each.get('name'), 60)}" for each in listed[:20]) or "none"
            raise Refused(
                f"Sectigo has no profile {settings.cert_type} for organization {settings.org_id}; there are: {offered}."
                " Check the settings cert_type and org_id.",
                reason=Reason.PROFILE_UNKNOWN,
            )
        if found["terms"] and settings.term not in found["terms"]:
            offered = ", ".join(str(each) for each in found["terms"][:20])
            raise Refused(
                f"Profile {settings.cert_type} has no term of {settings.term} days; it has {words(offered, 120)}. "
                "Check the setting term.",
                reason=Reason.PROFILE_UNKNOWN,
            )
        return f"{self._rest.name} answers and knows our login; profile {words(found.get('name'), 80)}."


def _is_older(details: Mapping[str, object], request: OrderRequest) -> bool:
    """Ids grow: what follows an entry from before our try is older still."""
    on = requested_on(details)
    return on is not None and request.asked_at is not None and on < (request.asked_at - _CLOCKS_DIFFER).date()


def _with_colons(serial: int) -> str:
    text = f"{serial:x}".upper()
    text = text.rjust(len(text) + len(text) % 2, "0")
    return ":".join(text[at : at + 2] for at in range(0, len(text), 2))


def _seconds(reply: Reply) -> float | None:
    return None if reply.after is None else reply.after.total_seconds()


def _make(settings: SectigoSettings, parts: Parts) -> SectigoIssuer:
    headers: Headers = {
        "customerUri": settings.customer_uri,
        "login": settings.login,
        "password": parts.credentials["password"],
    }
    return SectigoIssuer(Rest(parts.transport, parts.clock, settings.site(headers), DIALECT), settings, parts.memory)


SECTIGO: Final[IssuerKind[SectigoSettings]] = Kind(
    name="sectigo",
    summary="Sectigo Certificate Manager: enrolments that people may have to approve.",
    settings=SectigoSettings,
    credentials=(Credential(name="password", summary="Of the administrator in the setting login."),),
    limits=replace(BY_CONTRACT, claim=Reckoned(order=4, look=2, lookup=9)),
    traits=frozenset({Trait.WANTS_COMMON_NAME, Trait.LISTS}),
    make=_make,
)
