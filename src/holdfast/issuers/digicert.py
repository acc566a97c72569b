"""DigiCert CertCentral (Services API v2): orders that people approve, and certificates that have ids of their own.

It takes nothing of a CSR but its key, and a second POST buys a second certificate. So every order carries our own
reference, and is looked up by it, then by our key, before another one is placed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from holdfast.core.issuers.budget import Limit
from holdfast.core.issuers.ca_limits import BY_CONTRACT, Reckoned
from holdfast.core.kind import Credential, Kind, Trait
from holdfast.core.reasons import Reason
from holdfast.errors import Refused, TryLater
from holdfast.issuers import chains, digicert_order
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
from holdfast.issuers.digicert_order import DIALECT, DigicertSettings
from holdfast.issuers.kind import IssuerKind, Parts
from holdfast.issuers.memory import IssuerMemory, Search, resumed
from holdfast.issuers.reading import instant, words
from holdfast.issuers.rest import Reply, Rest, beforehand, segment
from holdfast.issuers.triage import AnswerVerdict, folded

_CLOCKS_DIFFER: Final = timedelta(days=1)  # it writes dates, at times without a zone
_MOST: Final = 40  # orders that are looked at, to find ours by its key
_DETAILS: Final = 5  # that are read in one claim
_ANY: Final = {"Accept": "*/*"}  # a download is no JSON
LISTED_AT_ONCE: Final = 5  # orders of a page: each costs two requests more
_REVOCATION: Final = {
    1: "key_compromise", 3: "affiliation_changed", 4: "superseded", 5: "cessation_of_operation",
}  # fmt: skip


class DigicertIssuer:
    """One API key, one product and one organization."""

    binding = True

    def __init__(self, rest: Rest, settings: DigicertSettings, memory: IssuerMemory) -> None:
        self._rest = rest
        self._settings = settings
        self._memory = memory

    # ── Ordering ──

    async def place_order(self, request: OrderRequest) -> Placed:
        before = self._previous(request)
        if before is not None and self._settings.renewals == "reissue":
            with beforehand():
                order = await self._order(before)
            if order is not None and digicert_order.is_issued(order) and self._outlives(order, request):
                return await self._reissue(before, order, request)
        product = request.profile or self._settings.product
        body = digicert_order.body(request, self._settings, renewal_of=before)
        reply = await self._rest.post(f"/order/certificate/{segment(product)}", "a new order", body)
        if reply.is_gone:
            raise digicert_order.no_such_product(product)
        found = reply.json_object()
        number = found.get("id")
        if not isinstance(number, int):
            raise reply.broken()
        return Placed(ref=digicert_order.ref(number, found))

    def _outlives(self, order: Mapping[str, object], request: OrderRequest) -> bool:
        return digicert_order.outlives(order, request, self._settings, self._rest.clock.now())

    async def _reissue(self, number: int, order: Mapping[str, object], request: OrderRequest) -> Placed:
        """Existing certificates are remembered: where the key is reused, an earlier certificate looks like ours."""
        with beforehand():
            known = digicert_order.ids([order.get("certificate"), *await self._reissues(number)])
        body = digicert_order.reissue_body(request, self._settings)
        reply = await self._rest.post(f"/order/certificate/{number}/reissue", "a reissue", body)
        return Placed(ref=digicert_order.ref(number, reply.json_object(), known=known))

    def _previous(self, request: OrderRequest) -> int | None:
        """The order that is to be renewed or reissued, if that is what the settings want."""
        order = (request.previous or {}).get("order")
        return order if self._settings.renewals != "new" and isinstance(order, int) else None

    # ── Finding again ──

    async def find_order(self, request: OrderRequest) -> Placed | Uncertain | None:
        before = self._previous(request)
        if before is not None and self._settings.renewals == "reissue":
            reissued = await self._find_reissue(before, request)
            if reissued is not None:
                return reissued
        search = resumed(self._memory, request.issuance, _DETAILS)
        reply = await self._rest.get(f"/order/alternate/{segment(request.issuance)}", "our order by its reference")
        listed = [] if reply.status == 404 else digicert_order.listed(reply, "orders")
        known = [each["order_id"] for each in listed if isinstance(each.get("order_id"), int)]
        named = await self._first_of(known, request, search, by_reference=True)
        return named or await self._find_by_key(request, search)

    async def _first_of(
        self, orders: list[int], request: OrderRequest, search: Search, *, by_reference: bool
    ) -> Placed | None:
        """An order under our reference is ours, unless it shows another key; any other must show our key."""
        for order in sorted(set(orders) - search.ruled_out):
            search.spend(self._rest.name)
            found = await self._order(order)
            ours = None if found is None else digicert_order.is_ours(found, request)
            if ours or (by_reference and ours is None):
                return Placed(ref=digicert_order.ref(order, {"requests": (found or {}).get("requests")}))
            search.ruled_out.add(order)
            search.unclear |= found is not None and ours is None
        return None

    async def _find_by_key(self, request: OrderRequest, search: Search) -> Placed | Uncertain | None:
        """In case the reference did not get there: the youngest orders for the same name, by the key of their CSR."""
        name = digicert_order.common_name(request)
        asked = {
            "filters[common_name]": name,
            "filters[product_name_id]": request.profile or self._settings.product,
            "sort": "-date_created",
            "limit": "1000",
        }
        reply = await self._rest.get("/order/certificate", "our order by its name", asked)
        young = [each for each in digicert_order.listed(reply, "orders") if _may_be(each, name, request)]
        found = await self._first_of([each["id"] for each in young[:_MOST]], request, search, by_reference=False)
        if found is None and (search.unclear or len(young) > _MOST):
            return Uncertain(
                why=f"{self._rest.name} has {len(young)} orders for {name} that may be ours: too many to look at, or "
                f"it shows neither key nor reference. Look there for one with the reference {request.issuance}."
            )
        return found

    async def _find_reissue(self, order: int, request: OrderRequest) -> Placed | Uncertain | None:
        """A reissue has no reference of its own: it is known by the key of its CSR, and by its age."""
        reissues = await self._reissues(order)
        old = [each for each in reissues if _is_older(each.get("date_issued"), request)]
        mine = [each for each in reissues if digicert_order.same_key(each.get("csr"), request.csr) and each not in old]
        if mine:
            return Placed(ref=digicert_order.ref(order, {}, known=digicert_order.ids(old)))
        info = await self._order(order)
        if info is None or digicert_order.word(info) != "reissuepending":
            return None
        return Uncertain(
            why=f"Order {order} at {self._rest.name} is being reissued, and does not show for which key. "
            "Wait for its end, or cancel the reissue there."
        )

    # ── Looking ──

    async def order_status(self, ref: OrderRef, request: OrderRequest) -> Look:
        if ref.get("certificate") is not None:
            return await self._download(int(ref["certificate"]), request)
        reply = await self._rest.get(f"/order/certificate/{segment(ref['order'])}", "our order")
        if reply.is_gone:
            why = f"{self._rest.name} does not know order {ref['order']} any more."
            return Failed(why=why, reason=Reason.ORDER_EXPIRED)
        order = reply.json_object()
        if order.get("id") != ref["order"]:
            raise reply.broken()
        if "known" in ref:
            return await self._look_at_reissue(reply, order, ref, request)
        certificate = digicert_order.certificate_id(order)
        if certificate is not None and digicert_order.is_issued(order):
            return await self._download(certificate, request)
        return self._waits(reply, order)

    async def _look_at_reissue(
        self, reply: Reply, order: Mapping[str, Any], ref: OrderRef, request: OrderRequest
    ) -> Look:
        """The order is issued already: only a certificate for our key that was not there before counts."""
        number = _new_one([digicert_order.certificate(order)], ref, request)
        if number is None and digicert_order.word(order) != "reissuepending":  # it may not be the order's first by now
            number = _new_one(await self._reissues(ref["order"]), ref, request)
        if number is not None:
            return await self._download(number, request)
        if digicert_order.is_rejected(order, ref.get("request")):
            why = f"{self._rest.name} rejected the reissue of order {ref['order']}. {digicert_order.said(order)}"
            return Failed(why=why, reason=Reason.CA_REFUSED, retryable=False)
        if digicert_order.waits_for_approval(order, ref.get("request")):
            why = f"{self._rest.name}: an administrator must approve the reissue of order {ref['order']}."
            return Pending(why=why, word="reissue_pending", person=True)
        return self._waits(reply, order)

    def _waits(self, reply: Reply, order: Mapping[str, object]) -> Look:
        word = order.get("status")
        if digicert_order.is_issued(order):
            why = f"{self._rest.name} has issued it, and does not show the certificate yet."
            return Pending(why=why, word="issued", after_s=None)
        return reply.by_word(word, digicert_order.said(order)).look()

    async def _download(self, certificate: int, request: OrderRequest) -> Look:
        path = f"/certificate/{certificate}/download/format/pem_all"
        reply = await self._rest.get(path, "the certificate", headers=_ANY)
        if reply.status in (400, 404):  # its store is behind its orders
            why = f"{self._rest.name} has issued certificate {certificate}; it cannot be downloaded yet."
            return Pending(why=why, word="issued")
        found = chains.read(reply.good().response.body.decode("ascii", "replace"))
        if not found:
            raise reply.broken()
        leaf = next((each for each in found if chains.is_for(each, request.csr)), None)
        chain = None if leaf is None else chains.above(leaf, found)
        if chain is None:
            why = f"{self._rest.name} sent certificate {certificate}, which is not for our key or has no chain."
            return Failed(why=why, reason=Reason.WRONG_CERTIFICATE, retryable=False)
        return Issued(chain_pem=chain)

    async def _order(self, order: int) -> dict[str, object] | None:
        reply = await self._rest.get(f"/order/certificate/{order}", "our order")
        return None if reply.is_gone else reply.json_object()

    async def _reissues(self, order: int) -> list[dict[str, object]]:
        reply = await self._rest.get(f"/order/certificate/{order}/reissue", "the reissues of our order")
        return [] if reply.is_gone else digicert_order.listed(reply, "certificates")

    # ── Listing ──

    async def list_certificates(self, after: Mapping[str, Any]) -> ListedPage:
        """Orders in the order of their numbers, so that new ones do not shift the pages; each with its certificate."""
        offset = int(after.get("offset", 0))
        asked = {"sort": "date_created", "limit": str(LISTED_AT_ONCE), "offset": str(offset)}
        reply = await self._rest.get("/order/certificate", "the list of orders", asked)
        orders = digicert_order.listed(reply, "orders")
        numbers = [each["id"] for each in orders if isinstance(each.get("id"), int)]
        found = [await self._listed_one(each) for each in numbers]
        good = tuple(each for each in found if each is not None)
        more = {"offset": offset + len(orders)} if len(orders) == LISTED_AT_ONCE else None
        return ListedPage(certificates=good, unreadable=len(orders) - len(good), next=more)

    async def _listed_one(self, order: int) -> Listed | None:
        shown = await self._order(order)
        certificate = None if shown is None else digicert_order.certificate_id(shown)
        if certificate is None:
            return None
        path = f"/certificate/{certificate}/download/format/pem_all"
        reply = await self._rest.get(path, "a certificate of the list", headers=_ANY)
        if reply.status in (400, 404):
            return None
        return chains.listed(reply.good().response.body.decode("ascii", "replace"), f"order {order}")

    # ── Taking back ──

    async def cancel(self, ref: OrderRef) -> None:
        """A request without approval is rejected; an order at the CA is cancelled. 404: there is no such order."""
        note = "It is not wanted any more."
        order = await self._rest.get(f"/order/certificate/{segment(ref['order'])}", "our order")
        if order.is_gone:
            return
        shown = order.json_object()
        over = order.by_word(shown.get("status")).verdict is AnswerVerdict.FAILED
        if over or digicert_order.is_rejected(shown, ref.get("request")):
            return  # it ended without a certificate, perhaps by our own word, whose answer was lost
        if "known" in ref and digicert_order.word(shown) != "reissuepending":
            self._check_reissue(shown, ref)
            return
        if digicert_order.word(shown) == "needsapproval" and ref.get("request") is not None:
            body = {"status": "rejected", "processor_comment": note}
            (await self._rest.put(f"/request/{segment(ref['request'])}/status", "our request", body)).good()
            return
        body = {"status": "canceled", "note": note}
        (await self._rest.put(f"/order/certificate/{segment(ref['order'])}/status", "a cancellation", body)).good()

    def _check_reissue(self, order: Mapping[str, object], ref: OrderRef) -> None:
        """The order itself was issued before, and is not to be touched."""
        if digicert_order.certificate_id(order) not in ref["known"]:
            why = f"{self._rest.name} has reissued order {ref['order']} already. Revoke that certificate there."
            raise Refused(why, reason=Reason.CA_REFUSED)

    async def revoke(self, certificate: bytes, reason: int) -> None:
        """One certificate, by its serial: its order stays active. Without an administrator's key it is a request."""
        serial = f"{chains.leaf_of(certificate).serial_number:x}".upper()
        if await self._is_revoked(serial):
            return
        body = {
            "comments": "Asked for in Holdfast.",
            "skip_approval": True,
            "revocation_reason": _REVOCATION.get(reason, "unspecified"),
        }
        reply = await self._rest.put(f"/certificate/{serial}/revoke", "a revocation", body)
        if digicert_order.is_revoked_already(reply):
            return
        if digicert_order.must_wait(reply):
            raise self._reissue_pends()
        if reply.good().response.body.strip() and folded(reply.json_object().get("status")) not in ("", "approved"):
            raise self._revocation_waits(serial, reply.json_object().get("id"))

    async def _is_revoked(self, serial: str) -> bool:
        """Raises while one is asked for and not approved: asking twice makes two requests."""
        reply = await self._rest.get(f"/order/certificate/{serial}", "the order of a certificate")
        if reply.status in (400, 404):  # it may be a duplicate, or an older reissue: those are not found so
            return False
        order = reply.json_object()
        if digicert_order.is_revoked(order, serial):
            return True
        asked = [each for each in digicert_order.requests(order) if folded(each.get("type")) == "revoke"]
        for each in asked:
            if digicert_order.is_open(each):
                raise self._revocation_waits(serial, each.get("id"))
        if any(digicert_order.is_denied(each) and each.get("id") == self._asked.get(serial) for each in asked):
            number = words(self._asked.pop(serial), 20)
            raise Refused(f"{self._rest.name}: an administrator rejected request {number}.", reason=Reason.CA_REFUSED)
        if digicert_order.word(order) == "reissuepending":
            raise self._reissue_pends()
        return False

    @property
    def _asked(self) -> dict[str, object]:
        """Requests for revocations that we saw waiting, by serial: one that is rejected is not made once more."""
        found: dict[str, object] = self._memory.setdefault("revocations", {})
        return found

    def _revocation_waits(self, serial: str, request: object) -> TryLater:
        self._asked[serial] = request
        return self._later(f"has the revocation as request {words(request, 20)}: an administrator must approve it.")

    def _reissue_pends(self) -> TryLater:
        return self._later(
            "revokes nothing while a reissue of the order is pending; it is asked again until that is over."
        )

    def _later(self, why: str) -> TryLater:
        return TryLater(f"{self._rest.name} {why}", after=timedelta(hours=1), reason=Reason.CA_STILL_PENDING)

    # ── Probing ──

    async def probe(self) -> str:
        """The key, the product and the organization, without ordering anything."""
        settings = self._settings
        listed = digicert_order.listed(await self._rest.get("/product", "the list of products"), "products")
        offered = [words(each.get("name_id"), 60) for each in listed]
        if settings.product not in offered:
            raise digicert_order.no_such_product(settings.product, offered)
        if settings.organization_id is not None:
            await self._probe_organization(settings.organization_id)
        return f"{self._rest.name} answers and knows our key; product {settings.product}."

    async def _probe_organization(self, wanted: int) -> None:
        reply = await self._rest.get("/organization", "the list of organizations")
        found = next((each for each in digicert_order.listed(reply, "organizations") if each.get("id") == wanted), None)
        problem = None
        if found is None:
            problem = "is not one of this account's"
        elif folded(found.get("status", "active")) != "active":
            problem = f"is {words(found.get('status'), 40)}: DigiCert has not validated it"
        if problem is not None:
            raise Refused(
                f"Organization {wanted} {problem}. Check the setting organization_id.", reason=Reason.ACCOUNT_REFUSED
            )


def _new_one(certificates: Sequence[Mapping[str, Any]], ref: OrderRef, request: OrderRequest) -> int | None:
    """The certificate for our key that was not there when the reissue was asked for."""
    for each in certificates:
        new = digicert_order.has_serial(each) and each["id"] not in ref["known"]
        if new and digicert_order.same_key(each.get("csr"), request.csr):
            return int(each["id"])
    return None


def _may_be(order: Mapping[str, object], name: str, request: OrderRequest) -> bool:
    """CertCentral has been seen to ignore filters: its list is filtered again."""
    shown = digicert_order.certificate(order).get("common_name")
    return (
        isinstance(order.get("id"), int) and shown in (None, name) and not _is_older(order.get("date_created"), request)
    )


def _is_older(date: object, request: OrderRequest) -> bool:
    """Whether it is surely from before our try."""
    at = instant(date) or instant(f"{date}T23:59:59Z")
    return at is not None and request.asked_at is not None and at < request.asked_at - _CLOCKS_DIFFER


def _make(settings: DigicertSettings, parts: Parts) -> DigicertIssuer:
    site = settings.site({"X-DC-DEVKEY": parts.credentials["api_key"]})
    return DigicertIssuer(Rest(parts.transport, parts.clock, site, DIALECT), settings, parts.memory)


# By key 1000 requests in 3 minutes and 100 in 5 seconds, rolling: 60 + 180 / 0.2 < 1000, and 60 + 5 / 0.2 < 100.
_LIMITS: Final = replace(
    BY_CONTRACT,
    requests=Limit(burst=60, every=timedelta(milliseconds=200)),
    claim=Reckoned(order=3, look=2, lookup=7),
)
_REISSUING: Final = replace(_LIMITS, claim=Reckoned(order=6, look=3, lookup=9))

DIGICERT: Final[IssuerKind[DigicertSettings]] = Kind(
    name="digicert",
    summary="DigiCert CertCentral: orders that people may have to approve.",
    settings=DigicertSettings,
    credentials=(Credential(name="api_key", summary="Of a user that may order, look at orders and revoke."),),
    limits=_LIMITS,
    traits=frozenset({Trait.LISTS}),
    limits_for=lambda settings: _REISSUING if settings.get("renewals") == "reissue" else _LIMITS,
    make=_make,
)
