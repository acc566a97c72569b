"""DigiCert CertCentral (Front API v2) as its documentation and its public clients describe it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

from cryptography import x509

from tests.support.fake_cas.base import FakeCa, accepts, as_json, pem, read_csr, serve
from tests.support.http_server import HttpAnswer, HttpRequest
from tests.support.secrets_planted import DIGICERT_KEY

PRODUCTS = ("ssl_basic", "ssl_securesite_flex", "ssl_dv_geotrust", "private_ssl_plus")
WITHOUT_ORGANIZATION = ("ssl_dv_geotrust",)


def error(status: int, code: str, message: str) -> HttpAnswer:
    return as_json({"errors": [{"code": code, "message": message}]}, status)


@dataclass
class Certificate:
    id: int
    csr: str
    names: list[str]
    issued: x509.Certificate | None = None
    revoked: bool = False


@dataclass
class Order:
    id: int
    product: str
    reference: str | None
    body: dict[str, Any]
    created_at: datetime
    certificates: list[Certificate]  # the first, then its reissues
    status: str = "pending"
    looks: int = 0  # that are still shown as pending
    request: int = 0
    request_status: str = "approved"
    note: str = ""
    revocation: dict[str, Any] | None = None  # the last request for one
    revoking: Certificate | None = None  # what it is about
    reissue: dict[str, Any] | None = None  # the request for the last one

    @property
    def current(self) -> Certificate:
        return self.certificates[-1]


@dataclass
class _Counters:
    orders: Any = field(default_factory=lambda: count(110_001))
    certificates: Any = field(default_factory=lambda: count(550_001))
    requests: Any = field(default_factory=lambda: count(770_001))


class FakeDigicert(FakeCa):
    name = "DigiCert"
    base_path = "/services/v2"
    routes = (
        ("GET", "/user/me", "me"),
        ("GET", "/product", "products"),
        ("GET", "/organization", "organizations"),
        ("GET", "/order/certificate", "list_orders"),
        ("GET", "/order/certificate/status-changes", "changes"),
        ("POST", r"/order/certificate/(\d+)/reissue", "reissue"),
        ("GET", r"/order/certificate/(\d+)/reissue", "reissues"),
        ("PUT", r"/order/certificate/(\d+)/status", "set_status"),
        ("POST", "/order/certificate/([^/]+)", "order"),
        ("GET", "/order/certificate/([^/]+)", "order_info"),
        ("GET", "/order/alternate/([^/]+)", "by_reference"),
        ("PUT", r"/request/(\d+)/status", "set_request"),
        ("GET", r"/certificate/(\d+)/download/format/pem_all", "download"),
        ("PUT", "/certificate/([^/]+)/revoke", "revoke"),
    )

    def __init__(self, folder: Path, **more: Any) -> None:
        super().__init__(folder, **more)
        self.key = DIGICERT_KEY
        self.rights = True  # of the key's user: an administrator
        self.organization_status = "active"
        self.keeps_references = True
        self.shows_references = True  # in what it tells of one order; in the list by reference it is found all the same
        self.csrs = "pem"  # how it shows them: pem, bare (base64 alone), none
        self.unknown_reference = "error"  # what it says then: error, empty (a 404 without a body), list (of none)
        self.longest_days = 90.0  # of one certificate; that of an order ends with it
        self.at_once = False  # private products issue in the answer
        self.rate_limited = False  # 100 requests in 5 s
        self.download_lag = 0  # downloads that are answered with 404 although it is issued
        self.word: str | None = None  # what every order's state is called instead
        self.strangers = False  # another certificate of the same name is among those that are downloaded
        self.placed: list[Order] = []
        self._next = _Counters()

    @property
    def orders(self) -> list[Order]:
        return self.placed

    def settings(self, **more: Any) -> dict[str, Any]:
        return {
            "base_url": self.base,
            "product": "ssl_basic",
            "organization_id": 17,
            "roots": self.roots.decode(),
            **more,
        }

    @property
    def credentials(self) -> dict[str, str]:
        return {"api_key": self.key}

    # ── People ──

    def approve(self, number: int | None = None) -> None:
        for each in self._chosen(number):
            if each.status == "needs_approval":
                each.status, each.request_status = "pending", "approved"
            elif each.revocation is not None and each.revoking is not None:
                each.revoking.revoked, each.revocation = True, {**each.revocation, "status": "approved"}

    def deny(self, number: int | None = None, words: str = "the organisation said no") -> None:
        for each in self._chosen(number):
            if each.status in ("needs_approval", "pending"):
                each.status, each.request_status, each.note = "rejected", "rejected", words
            if each.revocation is not None and each.revocation["status"] == "pending":
                each.revocation = {**each.revocation, "status": "rejected", "processor_comment": words}
            if each.status == "reissue_pending" and each.reissue is not None:
                each.status, each.reissue = "issued", {**each.reissue, "status": "rejected", "processor_comment": words}
                each.certificates.pop()

    def _chosen(self, number: int | None) -> list[Order]:
        return [each for each in self.placed if number in (None, each.id)]

    def summary(self) -> dict[str, Any]:
        return {"orders": [{"id": each.id, "status": each.status, "reference": each.reference} for each in self.placed]}

    # ── Doors ──

    def stranger(self, asked: HttpRequest) -> HttpAnswer | None:
        if asked.headers.get("x-dc-devkey") != self.key:
            said = f"The API key {asked.headers.get('x-dc-devkey')} is not valid."
            return error(401, "access_denied", said)
        if asked.headers.get("content-type") != "application/json" or "user-agent" not in asked.headers:
            return error(406, "not_acceptable", "JSON is wanted.")
        recent = [each for each in self.requests if each.at > self.now() - timedelta(seconds=5)]
        return (
            HttpAnswer(status=429, body=self.error_body(429).encode())
            if self.rate_limited and len(recent) > 100
            else None
        )

    def error_body(self, status: int) -> str:
        code = {429: "request_limit_exceeded", 400: "invalid_parameter", 401: "access_denied", 403: "access_denied"}
        message = "Service request limit exceeded" if status == 429 else f"this is {status}"
        return json.dumps({"errors": [{"code": code.get(status, "server_error"), "message": message}]})

    def nothing_here(self, asked: HttpRequest) -> HttpAnswer:
        return error(404, "not_found|route", "The specified service endpoint doesn't exist.")

    def me(self, asked: HttpRequest) -> HttpAnswer:
        return as_json({"id": 1, "username": "api", "access_roles": [{"id": 1, "name": "Administrator"}]})

    def products(self, asked: HttpRequest) -> HttpAnswer:
        return as_json({"products": [{"name_id": each, "group_name": "ssl_certificate"} for each in PRODUCTS]})

    def organizations(self, asked: HttpRequest) -> HttpAnswer:
        return as_json({"organizations": [{"id": 17, "name": "Example", "status": self.organization_status}]})

    # ── Ordering ──

    def order(self, asked: HttpRequest, product: str) -> HttpAnswer:
        if product not in PRODUCTS:
            return self.nothing_here(asked)
        body = asked.json()
        refusal = self._refusal(product, body)
        if refusal is not None:
            return refusal
        order = Order(
            id=next(self._next.orders), product=product, body=body, created_at=self.now(), looks=self.pending_looks,
            reference=body.get("alternative_order_id") if self.keeps_references else None,
            certificates=[self._wanted(body)], request=next(self._next.requests),
        )  # fmt: skip
        self.placed.append(order)
        if self.approval and not (self.rights and body.get("skip_approval")):
            order.status, order.request_status = "needs_approval", "pending"
        reply = {"id": order.id, "requests": [{"id": order.request, "status": order.request_status}]}
        if self.at_once and order.status == "pending":
            self._issue(order)
            reply["certificate_id"] = order.current.id
            reply["certificate_chain"] = [{"subject_common_name": "x", "pem": self._pem(order.current).decode()}]
        return as_json(reply, 201)

    def _refusal(self, product: str, body: dict[str, Any]) -> HttpAnswer | None:
        certificate = body.get("certificate", {})
        for name in ("common_name", "csr", "signature_hash"):
            if not isinstance(certificate.get(name), str):
                return error(400, f"missing_{name}", f"A value for {name} is required.")
        try:
            read_csr(certificate["csr"])
        except ValueError:
            return error(400, "invalid_csr", "The CSR cannot be read.")
        refused = self.bad_names & {certificate["common_name"], *certificate.get("dns_names", [])}
        if refused:
            return error(400, "invalid_dns_name", f"The domain {sorted(refused)[0]} is not allowed.")
        if product not in WITHOUT_ORGANIZATION:
            if body.get("organization", {}).get("id") != 17:
                return error(400, "invalid_organization", "The organization is not one of this account.")
            if self.organization_status != "active":
                return error(400, "organization_not_validated", "The organization has not been validated.")
        return None

    def _wanted(self, body: dict[str, Any]) -> Certificate:
        wanted = body["certificate"]
        names = list(dict.fromkeys([wanted["common_name"], *wanted.get("dns_names", [])]))
        return Certificate(id=next(self._next.certificates), csr=wanted["csr"], names=names)

    def reissue(self, asked: HttpRequest, number: str) -> HttpAnswer:
        order = self._by_number(number)
        if order is None or order.status != "issued" or self.now() > self._valid_till(order):
            return error(400, "reissue_not_allowed", "This order cannot be reissued.")
        order.certificates.append(self._wanted(asked.json()))
        order.status, order.looks = "reissue_pending", self.pending_looks
        order.reissue = {"id": next(self._next.requests), "status": "pending" if self.approval else "approved"}
        return as_json({"id": order.id, "requests": [order.reissue]}, 201)

    def reissues(self, asked: HttpRequest, number: str) -> HttpAnswer:
        order = self._by_number(number)
        listed = order.certificates[1:] if order else []
        return as_json({"certificates": [self._shown(each) for each in listed]})

    # ── Looking ──

    def order_info(self, asked: HttpRequest, number: str) -> HttpAnswer:
        order = self._by_number(number) or self._by_serial(number)
        if order is None:
            return error(404, "not_found", "The order does not exist.")
        self._proceed(order)
        info: dict[str, Any] = {
            "id": order.id, "status": self.word or order.status, "product": {"name_id": order.product},
            "certificate": self._shown(order.current), "date_created": order.created_at.isoformat(),
            "requests": [{"id": order.request, "status": order.request_status, "processor_comment": order.note}],
        }  # fmt: skip
        if order.status == "reissue_pending":  # the old one is still the order's
            info["certificate"] = self._shown(order.certificates[-2])
        info["order_valid_till"] = f"{self._valid_till(order):%Y-%m-%d}"
        if order.status == "issued" and self.now() > self._valid_till(order):
            info["status"] = "expired"
        if order.reference is not None and self.shows_references:
            info["alternative_order_id"] = order.reference
        info["requests"] += [each for each in (order.revocation, order.reissue) if each is not None]
        return as_json(info)

    def _proceed(self, order: Order) -> None:
        waits = order.reissue is not None and order.reissue["status"] == "pending"
        if order.status not in ("pending", "processing", "reissue_pending") or waits:
            return
        if order.looks > 0:
            order.looks -= 1
            order.status = "processing" if order.status == "pending" else order.status
        else:
            self._issue(order)

    def _valid_till(self, order: Order) -> datetime:
        """The end of the plan: no certificate of it lasts longer."""
        years = order.body.get("order_validity", {}).get("years", 1)
        return order.created_at + timedelta(days=365 * years)

    def _issue(self, order: Order) -> None:
        wanted = order.current
        key = self.hierarchy.stranger if self.wrong_certificate else read_csr(wanted.csr).public_key()
        left = (self._valid_till(order) - self.now()) / timedelta(days=1)
        names, days = self.named(wanted.names), min(self.longest_days, left)
        wanted.issued = self.hierarchy.issue(key, names, days=days, now=self.now())
        order.status = "issued"

    def _shown(self, certificate: Certificate) -> dict[str, Any]:
        shown: dict[str, Any] = {"common_name": certificate.names[0], "dns_names": certificate.names}
        if self.csrs != "none":
            lines = certificate.csr.splitlines()
            bare = "".join(line for line in lines if "-----" not in line)
            shown["csr"] = bare if self.csrs == "bare" else certificate.csr
        if certificate.issued is not None:
            shown |= {"id": certificate.id, "serial_number": f"{certificate.issued.serial_number:x}".upper()}
            shown |= {"status": "revoked" if certificate.revoked else "approved"}
            begins, ends = certificate.issued.not_valid_before_utc, certificate.issued.not_valid_after_utc
            shown |= {"date_issued": begins.isoformat()}
            shown |= {"valid_from": f"{begins:%Y-%m-%d}", "valid_till": f"{ends:%Y-%m-%d}"}
        return shown

    def list_orders(self, asked: HttpRequest) -> HttpAnswer:
        name = asked.query.get("filters[common_name]")
        found = [each for each in self.placed if name in (None, each.current.names[0])]
        listed = [
            {
                "id": each.id, "status": each.status, "date_created": each.created_at.isoformat(),
                "certificate": {"common_name": each.current.names[0]}, "product": {"name_id": each.product},
            }
            for each in (found if asked.query.get("sort") == "date_created" else reversed(found))
        ]  # fmt: skip
        limit, offset = int(asked.query.get("limit", "1000")), int(asked.query.get("offset", "0"))
        page = {"total": len(listed), "limit": limit, "offset": offset}
        return as_json({"orders": listed[offset : offset + limit], "page": page})

    def by_reference(self, asked: HttpRequest, reference: str) -> HttpAnswer:
        found = [each for each in self.placed if each.reference == reference]
        if not found and self.unknown_reference == "error":
            return error(404, "not_found", "No order has this alternative order id.")
        if not found and self.unknown_reference == "empty":
            return HttpAnswer(status=404)
        return as_json({"orders": [{"order_id": each.id, "status": each.status} for each in found]})

    def changes(self, asked: HttpRequest) -> HttpAnswer:
        found = [
            {"order_id": each.id, "certificate_id": each.current.id, "status": each.status} for each in self.placed
        ]
        return as_json({"orders": found} if found else {})

    def _by_number(self, number: str) -> Order | None:
        return next((each for each in self.placed if str(each.id) == number), None)

    def _by_serial(self, serial: str) -> Order | None:
        """By the primary certificate only: the last that was issued."""
        for each in self.placed:
            issued = [one for one in each.certificates if one.issued is not None]
            if issued and _has_serial(issued[-1], serial):
                return each
        return None

    # ── Certificates ──

    def download(self, asked: HttpRequest, number: str) -> HttpAnswer:
        if not accepts(asked, "application/x-pem-file"):
            return error(406, "not_acceptable", "The client does not take application/x-pem-file.")
        found = [each for order in self.placed for each in order.certificates if str(each.id) == number]
        if not found or found[0].issued is None or self.download_lag > 0:
            self.download_lag = max(0, self.download_lag - 1)
            return error(404, "not_found", "The certificate does not exist.")
        return HttpAnswer(body=self._pem(found[0]), headers={"Content-Type": "application/x-pem-file"})

    def _pem(self, certificate: Certificate) -> bytes:
        assert certificate.issued is not None
        others = [self.hierarchy.issue(self.hierarchy.stranger, certificate.names)] if self.strangers else []
        # Root first, as its glossary lists them.
        return pem(*others, self.hierarchy.root, self.hierarchy.intermediate, certificate.issued, *others)

    # ── Taking back ──

    def set_status(self, asked: HttpRequest, number: str) -> HttpAnswer:
        order = self._by_number(number)
        if order is None:
            return error(404, "not_found", "The order does not exist.")
        if asked.json().get("status") != "canceled":
            return error(400, "invalid_status", f"{asked.json().get('status')} is no status of an order.")
        if order.status == "reissue_pending":
            order.certificates.pop()
            order.status = "issued"
        elif order.status in ("pending", "processing", "waiting_pickup"):
            order.status = "canceled"
        else:
            return error(400, "invalid_status", f"An order that is {order.status} cannot be canceled.")
        return HttpAnswer(status=204)

    def set_request(self, asked: HttpRequest, number: str) -> HttpAnswer:
        order = next((each for each in self.placed if str(each.request) == number), None)
        if order is None or order.status != "needs_approval":
            return error(400, "invalid_request", "The request is not pending.")
        wish = asked.json()
        self.deny(order.id, wish.get("processor_comment", "")) if wish["status"] == "rejected" else self.approve(
            order.id
        )
        return HttpAnswer(status=204)

    def revoke(self, asked: HttpRequest, name: str) -> HttpAnswer:
        """One certificate, by its id or serial, a reissued one too. The order stays active, and can be reissued."""
        pairs = [(order, each) for order in self.placed for each in order.certificates]
        order, found = next((pair for pair in pairs if _is(pair[1], name)), (None, None))
        if order is None or found is None:
            return error(404, "not_found", "The certificate does not exist.")
        if order.status == "reissue_pending":
            return error(400, "reissue_pending", "Certificates with a pending reissue order cannot be revoked.")
        if found.revoked:
            return error(400, "already_revoked", "The certificate is revoked already.")
        if self.rights and asked.json().get("skip_approval"):
            found.revoked = True
            return HttpAnswer(status=204)
        order.revoking = found
        order.revocation = {"id": next(self._next.requests), "type": "revoke", "status": "pending"}
        return as_json({**order.revocation, "comments": asked.json().get("comments")}, 201)


def _is(certificate: Certificate, name: str) -> bool:
    return certificate.issued is not None and (str(certificate.id) == name or _has_serial(certificate, name))


def _has_serial(certificate: Certificate, serial: str) -> bool:
    return certificate.issued is not None and f"{certificate.issued.serial_number:x}" == serial.lower()


if __name__ == "__main__":
    serve(FakeDigicert)
