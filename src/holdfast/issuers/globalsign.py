"""GlobalSign Atlas (HVCA, API v2): a client certificate and a token that lasts ten minutes; orders without a reference.

The serial number is fixed before the certificate is made: it is the order's name. Its API has neither a key by which an
order is the same order again nor a reference of ours, so after an answer that was lost the list of what was issued is
read, and compared by public key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Final

from cryptography import x509
from pydantic import Field

from holdfast.core.issuers.ca_limits import BY_CONTRACT, Reckoned
from holdfast.core.kind import Credential, Kind, Trait
from holdfast.core.reasons import Reason
from holdfast.errors import Refused, TryLater
from holdfast.issuers import chains, client_certificate, globalsign_policy
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
from holdfast.issuers.client_certificate import ClientCertificateSettings
from holdfast.issuers.globalsign_policy import GlobalSignPolicy
from holdfast.issuers.kind import BaseUrl, IssuerKind, Parts
from holdfast.issuers.memory import IssuerMemory, Remembered, Search, resumed
from holdfast.issuers.reading import instant, words
from holdfast.issuers.rest import Reply, Rest, beforehand, segment
from holdfast.issuers.triage import AnswerMeaning, AnswerVerdict, CaProblem, Dialect, folded
from holdfast.kind_settings import Texts
from holdfast.secret import Secret

# ── Answers ──
# What GlobalSign Atlas answers: two words, refusals in a form of its own, and serials in several spellings.


SERIAL: Final = re.compile(r"[0-9A-Fa-f]{1,64}")


def _problem(value: object) -> CaProblem | None:
    """Not RFC 7807: {description, id, errors}. Its support asks for the id."""
    if not isinstance(value, dict) or not isinstance(value.get("description"), str):
        return None
    errors = value.get("errors")
    kinds = [*errors.items()][:5] if isinstance(errors, dict) else []
    told = "; ".join(f"{words(name, 60)}: {words(detail, 160)}" for name, detail in kinds)
    number = f" (id {words(value['id'], 60)})" if value.get("id") else ""
    said = words(value["description"])
    return CaProblem(
        tuple(words(name, 60) for name, _ in kinds), f"{said}: {told}{number}" if told else f"{said}{number}"
    )


DIALECT: Final = Dialect(
    ca="GlobalSign",
    words={"issued": AnswerMeaning(AnswerVerdict.ISSUED), "revoked": AnswerMeaning(AnswerVerdict.FAILED, again=True)},
    statuses={
        402: AnswerMeaning(
            AnswerVerdict.TRANSIENT,
            "The account has used up its quota: nothing can be ordered before GlobalSign raises it.",
            Reason.CA_QUOTA_USED_UP,
        )
    },
    problem=_problem,
    blame={401: "api_key", 403: "api_key"},
)
_LOGIN: Final = AnswerMeaning(
    AnswerVerdict.FAILED,
    "Check the credentials api_key and api_secret, and the client certificate.",
    Reason.ACCOUNT_REFUSED,
)
LOGIN: Final = Dialect(
    ca="GlobalSign", words={}, statuses=dict.fromkeys((400, 401, 403, 422), _LOGIN), problem=_problem
)  # fmt: skip


def ref_of(serial: str, now: datetime) -> dict[str, str]:
    return {"certificate": serial, "placed_at": now.astimezone(UTC).isoformat()}


def spellings(serial: object) -> list[str]:
    """Some of its documents have decimal numbers there, and others hexadecimal ones."""
    text = str(serial) if isinstance(serial, str | int) else ""
    if not SERIAL.fullmatch(text):
        return []
    return [text, f"{int(text):X}"] if text.isdigit() else [text]


def description(reply: Reply) -> str:
    return words(reply.json_object().get("description") or "") if reply.response.body else ""


# ── The issuer ──


PRODUCTION: Final = "https://emea.api.hvca.globalsign.com:8443/v2"
TOKEN_FOR: Final = 540.0  # seconds, of the ten minutes that one lasts
KNOWN_AFTER: Final = timedelta(minutes=10)  # until then an order of ours may be unknown to one of its servers
QUOTA_AFTER: Final = timedelta(hours=1)  # a person must buy more first
_KEPT_FOR: Final = 3600.0
_PAGE, _MOST_PAGES = 100, 3
_SOON: Final = timedelta(minutes=1)
LISTED_AT_ONCE: Final = 6  # of a page of the list: each is read by a request of its own
LISTED_FOR: Final = timedelta(days=400)  # longer than any certificate of theirs lives
_DETAILS: Final = 9  # certificates that are read in one claim, to find ours by its key
_CONTENT: Final = "application/json;charset=utf-8"  # exactly so, or 415
_REASONS: Final = {
    1: "keyCompromise", 3: "affiliationChanged", 4: "superseded", 5: "cessationOfOperation", 9: "privilegeWithdrawn",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalSignAccount:
    api_key: Secret[str]
    api_secret: Secret[str]
    subject: Mapping[str, str] = field(default_factory=dict)  # besides the common name, where the policy wants it

    @property
    def name(self) -> bytes:
        return sha256(f"{self.api_key.reveal()}\n{self.api_secret.reveal()}".encode()).digest()


class GlobalSignSettings(ClientCertificateSettings):
    base_url: BaseUrl = Field(default=PRODUCTION, description="Of the region, with or without the version.")
    subject: Texts = Field(default_factory=dict, description="Besides the common name, where the policy wants it.")


class GlobalSignIssuer:
    """One account. `memory` is shared by all that speak for it in this process: one token is enough for them."""

    binding = True

    def __init__(
        self, rest: Rest, door: Rest, account: GlobalSignAccount, memory: Remembered, searches: IssuerMemory
    ) -> None:
        self._rest = rest
        self._door = door  # the same place, where a refusal is about our credentials
        self._account = account
        self._memory = memory
        self._searches = searches

    # ── The token ──

    async def _ask(self, method: str, path: str, what: str, **more: object) -> Reply:
        """A request with our token; with a new one if it turns out to be over."""
        token = await self._token()
        reply = await self._with(token, method, path, what, **more)
        if reply.status != 401:
            return reply
        self._memory.forget((self._account.name, "token"), token)
        return await self._with(await self._token(), method, path, what, **more)

    async def _with(self, token: Secret[str], method: str, path: str, what: str, **more: Any) -> Reply:
        bearer = Secret(f"Bearer {token.reveal()}")
        headers: dict[str, str | Secret[str]] = {"Authorization": bearer, "Content-Type": _CONTENT}
        return await self._rest.ask(method, path, what, headers=headers, hide=[token], **more)

    async def _token(self) -> Secret[str]:
        return await self._memory.kept((self._account.name, "token"), self._log_in, TOKEN_FOR)

    async def _log_in(self) -> Secret[str]:
        told = {"api_key": self._account.api_key.reveal(), "api_secret": self._account.api_secret.reveal()}
        reply = await self._door.post("/login", "logging in", told, headers={"Content-Type": _CONTENT})
        token = reply.json_object().get("access_token")
        if not isinstance(token, str) or not token.isascii() or not token.isprintable() or not token:
            raise reply.broken()
        return Secret(token)

    # ── Ordering ──

    async def find_order(self, request: OrderRequest) -> Placed | Uncertain | None:
        """By our key, among certificates issued since we asked. An order under way is invisible for seconds."""
        now, since = self._rest.clock.now(), request.asked_at
        if since is None:
            return None
        search = resumed(self._searches, request.issuance, _DETAILS)
        span = {"from": str(int(since.timestamp()) - 60), "to": str(int(now.timestamp()))}
        listed = await self._listed("/stats/issued", "what was issued", span)
        if listed is None:
            return Uncertain(
                why=f"{self._rest.name} issued too much since then to look for our order. Look for a certificate for "
                f"{request.identifiers[0].value} in its list, issued after {since:%F %T}Z."
            )
        if not all(spellings(row.get("serial_number")) for row in listed):  # ours may be among those without
            raise TryLater("GlobalSign, what was issued: it cannot be understood.", reason=Reason.ANSWER_MALFORMED)
        hidden = False  # one that is listed and cannot be read yet may be ours
        for names in [spellings(row.get("serial_number")) for row in listed]:
            if search.ruled_out.issuperset(names):
                continue
            serial, found = await self._first_shown(names, search)
            if found is not None and chains.answers(found, request.csr, since):
                return Placed(ref=ref_of(serial, now))
            if found is None and now < since + KNOWN_AFTER:
                hidden = True
            else:
                search.ruled_out.update(names)
        if hidden:
            why = f"{self._rest.name} lists a certificate that may be ours, and does not show it yet."
            raise TryLater(why, after=_SOON, reason=Reason.ORDER_UNANSWERED)
        return None

    async def _first_shown(self, names: list[str], search: Search) -> tuple[str, x509.Certificate | None]:
        """A serial is spelled in two ways, and only one of them is known there."""
        for serial in names:
            search.spend(self._rest.name)
            if (found := await self._certificate(serial)) is not None:
                return serial, found
        return "", None

    async def _listed(self, path: str, what: str, query: Mapping[str, str]) -> list[dict[str, object]] | None:
        """All pages of a list; None if they are too many."""
        found: list[dict[str, object]] = []
        for page in range(1, _MOST_PAGES + 1):
            asked = {"page": str(page), "per_page": str(_PAGE), **query}
            reply = await self._ask("GET", path, what, query=asked)
            listed = [each for each in reply.json_list() if isinstance(each, dict)]
            found += listed
            total = reply.response.headers.get("total-count", "")
            if len(listed) < _PAGE or (total.isdigit() and page * _PAGE >= int(total)):
                return found
        return None

    async def _certificate(self, serial: str) -> x509.Certificate | None:
        reply = await self._ask("GET", f"/certificates/{segment(serial)}", "a certificate")
        if reply.status in (202, 404, 422):
            return None
        return next(iter(chains.read(reply.json_object().get("certificate"))), None)

    async def list_certificates(self, after: Mapping[str, Any]) -> ListedPage:
        """What was issued in the last year or so, a page of serials at a time; each is fetched by its serial."""
        now, page = self._rest.clock.now(), int(after.get("page", 1))
        begun = int(after.get("to", int(now.timestamp())))  # the same end on all pages
        asked = {
            "page": str(page), "per_page": str(LISTED_AT_ONCE), "to": str(begun),
            "from": str(begun - int(LISTED_FOR.total_seconds())),
        }  # fmt: skip
        reply = await self._ask("GET", "/stats/issued", "the list of what was issued", query=asked)
        rows = [each for each in reply.json_list() if isinstance(each, dict)]
        found = [await self._listed_one(spellings(each.get("serial_number"))) for each in rows]
        good = tuple(each for each in found if each is not None)
        more = {"page": page + 1, "to": begun} if len(rows) == LISTED_AT_ONCE else None
        return ListedPage(certificates=good, unreadable=len(rows) - len(good), next=more)

    async def _listed_one(self, names: list[str]) -> Listed | None:
        for serial in names:
            if (found := await self._certificate(serial)) is not None:
                return chains.listed_of([found], f"certificate {serial}")
        return None

    async def place_order(self, request: OrderRequest) -> Placed:
        with beforehand():
            policy = await self._policy()
            await self._token()
        body = globalsign_policy.body(request, policy, subject=self._account.subject, now=self._rest.clock.now())
        if policy.wants_signature():
            body["public_key_signature"] = await globalsign_policy.signature(request)
        reply = await self._ask("POST", "/certificates", "a new order", body=body)
        if reply.status == 422:
            raise await self._explained(reply, request)
        if reply.status == 402 and reply.finding is not None:
            raise TryLater(reply.finding.why, after=QUOTA_AFTER, reason=Reason.CA_QUOTA_USED_UP, sent=False)
        serial = reply.good().response.headers.get("location", "").rstrip("/").rpartition("/")[2]
        if not SERIAL.fullmatch(serial):
            raise reply.broken()
        return Placed(ref=ref_of(serial, self._rest.clock.now()))

    async def _policy(self) -> GlobalSignPolicy:
        async def read() -> GlobalSignPolicy:
            return GlobalSignPolicy((await self._ask("GET", "/validationpolicy", "its policy")).json_object())

        return await self._memory.kept((self._account.name, "policy"), read, _KEPT_FOR)

    async def _explained(self, reply: Reply, request: OrderRequest) -> Refused:
        """A name is mostly refused because it is not validated at GlobalSign yet, which happens apart from orders."""
        self._memory.forget((self._account.name, "policy"), await self._policy())  # it may have been changed
        why = str(reply.finding.why if reply.finding else "")
        unclaimed = await self._unclaimed(request) if re.search("claim|domain|dns_name|san", why, re.IGNORECASE) else []
        if not unclaimed:
            return Refused(why, reason=Reason.CA_REFUSED)
        shown = ", ".join(unclaimed[:5])
        return Refused(
            f"{why} No verified domain claim covers {shown}: claim the domain at GlobalSign (Atlas, Domains; or POST "
            "/claims/domains/<domain>), prove it by DNS, HTTP or e-mail, and ask again.",
            reason=Reason.NAME_REFUSED,
        )

    async def _unclaimed(self, request: OrderRequest) -> list[str]:
        try:
            listed = await self._listed("/claims/domains", "our domain claims", {"status": "VERIFIED"})
        except (TryLater, Refused):  # the refusal itself is the message to show
            return []
        if listed is None:
            return []
        claimed = {str(each.get("domain")).lower() for each in listed}
        names = [each.base for each in request.identifiers if each.type == "dns"]
        return [name for name in names if not any(name == one or name.endswith(f".{one}") for one in claimed)]

    # ── Looking ──

    async def order_status(self, ref: OrderRef, request: OrderRequest) -> Look:
        reply = await self._ask("GET", f"/certificates/{segment(ref['certificate'])}", "our certificate")
        match reply.status:
            case 202:
                after = None if reply.after is None else reply.after.total_seconds()
                return Pending(why=f"GlobalSign: {description(reply) or 'not yet'}", after_s=after, word="202")
            case 404:
                return self._unknown(ref)
            case 422:
                why = reply.finding.why if reply.finding else "GlobalSign refused it."
                return Failed(why=why, reason=Reason.CA_REFUSED, retryable=False)
        found = reply.json_object()
        finding = reply.by_word(found.get("status"))
        if finding.verdict is not AnswerVerdict.ISSUED:
            return finding.look()
        certificates = chains.read(found.get("certificate"))
        if not certificates:
            raise reply.broken()
        if not chains.is_for(certificates[0], request.csr):
            return chains.not_ours(self._rest.name)
        return await self._issued(certificates[0])

    def _unknown(self, ref: OrderRef) -> Look:
        placed_at, now = instant(ref.get("placed_at")), self._rest.clock.now()
        if placed_at is not None and now < placed_at + KNOWN_AFTER:
            return Pending(why="GlobalSign does not show the order yet.", word="404")
        return Failed(why="GlobalSign does not know the order any more.", reason=Reason.ORDER_EXPIRED)

    async def _issued(self, leaf: x509.Certificate) -> Look:
        above = chains.above(leaf, await self._authorities())
        if above is None:
            self._memory.forget((self._account.name, "chain"), await self._authorities())
            return Pending(why="GlobalSign issued it and does not show the CA that signed it.", word="issued")
        return Issued(chain_pem=above)

    async def _authorities(self) -> tuple[x509.Certificate, ...]:
        async def read() -> tuple[x509.Certificate, ...]:
            listed = (await self._ask("GET", "/trustchain", "its chain")).json_list()
            return tuple(found for each in listed for found in chains.read(each))

        return await self._memory.kept((self._account.name, "chain"), read, _KEPT_FOR)

    # ── What else there is ──

    async def cancel(self, ref: OrderRef) -> None:
        """Issuance takes seconds, and an order under way cannot be withdrawn (409): Refused names the certificate."""
        reply = await self._ask("GET", f"/certificates/{segment(ref['certificate'])}", "our certificate")
        if reply.status == 422 or (reply.status == 404 and isinstance(self._unknown(ref), Failed)):
            return  # it was refused, or is gone: nothing comes of it
        issued = reply.status not in (202, 404) and folded(reply.json_object().get("status"))
        if issued == "revoked":
            return
        state = "is issued" if issued else "is being made"
        raise Refused(
            f"{self._rest.name}: certificate {ref['certificate']} {state}, and an order cannot be withdrawn there. "
            "Revoke it there if it must not be used.",
            reason=Reason.CA_REFUSED,
        )

    async def revoke(self, certificate: bytes, reason: int) -> None:
        serial = chains.leaf_of(certificate).serial_number
        told = {"revocation_reason": _REASONS.get(reason, "unspecified")}
        plain = f"{serial:X}"
        for spelled in dict.fromkeys((plain, plain.zfill(len(plain) + len(plain) % 2))):
            reply = await self._ask("PATCH", f"/certificates/{spelled}", "a revocation", body=told)
            if reply.status == 409 and await self._is_revoked(spelled):
                return
            if reply.status != 404:
                break
        reply.good()

    async def _is_revoked(self, serial: str) -> bool:
        shown = await self._ask("GET", f"/certificates/{serial}", "a certificate")
        return shown.status == 200 and folded(shown.json_object().get("status")) == "revoked"

    async def probe(self) -> str:
        policy = await self._policy()
        reply = await self._ask("GET", "/quotas/issuance", "its quota")
        left = reply.json_object().get("value") if reply.finding is None else None
        shown = isinstance(left, int) and left >= 0  # below zero: there is no limit
        quota = f"{left} certificates are left in its quota" if shown else "its quota is not shown"
        kind = words(policy.part("public_key").get("key_type") or "any", 20)
        names = policy.number("san", "dns_names", "maxcount")
        ends = client_certificate.until(self._rest.site.identity)
        return f"{self._rest.name} knows us; {quota}; keys: {kind}; names in a certificate: up to {names}; {ends}."


def _make(settings: GlobalSignSettings, parts: Parts) -> GlobalSignIssuer:
    base = f"{settings.base_url.removesuffix('/v2')}/v2"  # with the version, once: its own clients differ in that
    hidden, identity = tuple(parts.credentials.values()), client_certificate.shown_by(settings, parts)
    site = settings.site({}, base=base, identity=identity, hidden=hidden)
    account = GlobalSignAccount(
        api_key=parts.credentials["api_key"], api_secret=parts.credentials["api_secret"], subject=settings.subject
    )
    memory: Remembered = parts.memory.setdefault("remembered", Remembered(parts.clock))
    rest, door = (Rest(parts.transport, parts.clock, site, dialect) for dialect in (DIALECT, LOGIN))
    return GlobalSignIssuer(rest, door, account, memory, parts.memory)


GLOBALSIGN: Final[IssuerKind[GlobalSignSettings]] = Kind(
    name="globalsign",
    summary="GlobalSign Atlas (HVCA): certificates within seconds, for domains that are claimed there.",
    settings=GlobalSignSettings,
    credentials=(
        Credential(name="api_key", summary="Of the Atlas account."),
        Credential(name="api_secret", summary="Of the same account."),
        *client_certificate.CREDENTIALS,
    ),
    limits=replace(BY_CONTRACT, claim=Reckoned(order=6, look=3, lookup=12)),
    traits=frozenset({Trait.LISTS}),
    make=_make,
)
