"""Sectigo Certificate Manager (SCM REST, header login) as its reference and its public clients describe it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, pkcs7

from tests.support.fake_cas.base import FakeCa, accepts, as_json, pem, read_csr, serve
from tests.support.http_server import HttpAnswer, HttpRequest
from tests.support.secrets_planted import SECTIGO_PASSWORD

PROFILES = {3: "Multi-Domain SSL", 7: "Instant SSL"}
TERMS = [90, 199, 365]


def error(status: int, code: int, description: str) -> HttpAnswer:
    return as_json({"code": code, "description": description}, status)


@dataclass
class Enrolment:
    id: int
    names: list[str]
    common_name: str
    csr: str
    comments: str
    created_at: datetime
    status: str = "Applied"
    looks: int = 0
    collect_lag: int = 0
    note: str = ""
    issued: x509.Certificate | None = None
    revoked: bool = False


class FakeSectigo(FakeCa):
    name = "Sectigo"
    base_path = "/api"
    routes = (
        ("GET", "/ssl/v1/types", "types"),
        ("GET", "/ssl/v1", "listed"),
        ("POST", "/ssl/v1/enroll", "enroll"),
        ("POST", r"/ssl/v1/renewById/(\d+)", "renew"),
        ("GET", r"/ssl/v1/collect/(\d+)", "collect"),
        ("POST", r"/ssl/v1/approve/(\d+)", "say_yes"),
        ("POST", r"/ssl/v1/decline/(\d+)", "say_no"),
        ("POST", "/ssl/v1/revoke/serial/([0-9A-F:]+)", "revoke"),
        ("GET", r"/ssl/v1/(\d+)", "details"),
    )

    def __init__(self, folder: Path, **more: Any) -> None:
        super().__init__(folder, **more)
        self.customer_uri, self.login, self.password = "example-inc", "api-user", SECTIGO_PASSWORD
        self.collect_lag = 0  # how often an issued one is "not collectable"
        self.wait_code = -183
        self.may_collect = True  # a right of the account of its own
        self.bundle = "pem"  # or p7b, der: it does not always send what was asked for
        self.organization_status = "Validated"
        self.wants_common_name = True  # in the CSR: it is what a request is filed under
        self.word: str | None = None  # what every state is called instead
        self.strangers = False  # another certificate of the same name is among those that are collected
        self.placed: list[Enrolment] = []
        self._ids = count(901)

    @property
    def orders(self) -> list[Enrolment]:
        return self.placed

    def settings(self, **more: Any) -> dict[str, Any]:
        return {
            "base_url": self.base, "customer_uri": self.customer_uri, "login": self.login, "org_id": 42, "cert_type": 3,
            "term": 199, "roots": self.roots.decode(), **more,
        }  # fmt: skip

    @property
    def credentials(self) -> dict[str, str]:
        return {"password": self.password}

    # ── People ──

    def approve(self, number: int | None = None) -> None:
        for each in self._chosen(number):
            if each.status == "Requested":
                each.status = "Applied"

    def deny(self, number: int | None = None, words: str = "the organisation said no") -> None:
        for each in self._chosen(number):
            if each.status in ("Requested", "Applied"):
                each.status, each.note = "Declined" if each.status == "Requested" else "Rejected", words

    def _chosen(self, number: int | None) -> list[Enrolment]:
        return [each for each in self.placed if number in (None, each.id)]

    def summary(self) -> dict[str, Any]:
        return {"orders": [{"id": each.id, "status": each.status, "reference": each.comments} for each in self.placed]}

    # ── Doors ──

    def stranger(self, asked: HttpRequest) -> HttpAnswer | None:
        shown = tuple(asked.headers.get(name) for name in ("customeruri", "login", "password"))
        if shown != (self.customer_uri, self.login, self.password):
            return error(401, -16, f"Unknown user {shown[1]} with {shown[2]}")
        return None

    def error_body(self, status: int) -> str:
        return "<html>busy</html>" if status in (429, 502, 503) else json.dumps({"code": -1, "description": "odd"})

    def nothing_here(self, asked: HttpRequest) -> HttpAnswer:
        return error(404, -1, "There is nothing here.")

    def types(self, asked: HttpRequest) -> HttpAnswer:
        keys = {"RSA": ["2048", "4096"], "EC": ["P-256"]}
        listed = [{"id": number, "name": name, "terms": TERMS, "keyTypes": keys} for number, name in PROFILES.items()]
        return as_json(listed if asked.query.get("organizationId") in (None, "42") else [])

    # ── Enrolling ──

    def enroll(self, asked: HttpRequest) -> HttpAnswer:
        body = asked.json()
        if body.get("orgId") != 42:
            return error(400, -1023, "The organization is not valid.")
        if self.organization_status != "Validated":
            return error(400, -1023, f"The organization is {self.organization_status}.")
        if body.get("certType") not in PROFILES:
            return error(400, -111, f"No certificate profile found by id {body.get('certType')}")
        if body.get("term") not in TERMS:
            return error(400, -36, "The validity period (term) is invalid for this certificate profile.")
        names = [each for each in str(body.get("subjAltNames", "")).split(",") if each]
        return self._take(body["csr"], names, str(body.get("comments", "")))

    def renew(self, asked: HttpRequest, number: str) -> HttpAnswer:
        before = self._by_number(number)
        if before is None or before.issued is None:
            return error(400, -124, f"Wrong SSL certificate id {number}.")
        return self._take(asked.json().get("csr") or before.csr, before.names, before.comments.partition(" ")[0])

    def _take(self, csr: str, names: list[str], comments: str) -> HttpAnswer:
        try:
            request = read_csr(csr)
        except ValueError:
            return error(400, -10, "Error while decoding CSR.")
        shown = request.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
        if self.wants_common_name and not shown:
            return error(400, -138, "Invalid CSR.")
        common_name = str(shown[0].value) if shown else names[0]
        names = list(dict.fromkeys([common_name, *names]))
        if refused := self.bad_names & set(names):
            return error(400, -1010, f"The domain {sorted(refused)[0]} is not allowed.")
        made = Enrolment(
            id=next(self._ids), names=names, common_name=common_name, csr=csr, comments=comments,
            created_at=self.now(), status="Requested" if self.approval else "Applied", looks=self.pending_looks,
            collect_lag=self.collect_lag,
        )  # fmt: skip
        self.placed.append(made)
        return as_json({"sslId": made.id, "renewId": f"renew-{made.id}"})

    # ── Looking ──

    def details(self, asked: HttpRequest, number: str) -> HttpAnswer:
        found = self._by_number(number)
        if found is None:
            return error(404, -124, f"Wrong SSL certificate id {number}.")
        self._proceed(found)
        shown = {
            "id": found.id, "sslId": found.id, "status": self.word or found.status, "commonName": found.common_name,
            "orgId": 42, "comments": found.comments, "requested": f"{found.created_at:%m/%d/%Y}",
            "subjectAlternativeNames": found.names,
        }  # fmt: skip
        return as_json(shown | ({"declineMessage": found.note} if found.note else {}))

    def _proceed(self, found: Enrolment) -> None:
        if found.status != "Applied":
            return
        if found.looks > 0:
            found.looks -= 1
            return
        key = self.hierarchy.stranger if self.wrong_certificate else read_csr(found.csr).public_key()
        found.issued = self.hierarchy.issue(key, self.named(found.names), now=self.now())
        found.status = "Issued"

    def listed(self, asked: HttpRequest) -> HttpAnswer:
        found = [each for each in self.placed if asked.query.get("commonName") in (None, each.common_name)]
        at, size = int(asked.query.get("position", "0")), int(asked.query.get("size", "200"))
        page = [{"sslId": each.id, "commonName": each.common_name} for each in found[at : at + size]]
        return as_json(page, X_Total_Count=str(len(found)))

    def _by_number(self, number: str) -> Enrolment | None:
        return next((each for each in self.placed if str(each.id) == number), None)

    def collect(self, asked: HttpRequest, number: str) -> HttpAnswer:
        if not accepts(asked, "application/octet-stream"):
            return HttpAnswer(status=406)
        if not self.may_collect:
            return error(403, -37, "The user has no permission to download certificates.")
        found = self._by_number(number)
        if found is None:
            return error(400, -124, f"Wrong SSL certificate id {number}.")
        if found.revoked:
            return error(400, -110, "Certificate has been revoked and cannot be downloaded.")
        if found.issued is None or found.collect_lag > 0:
            found.collect_lag = max(0, found.collect_lag - 1)
            return error(400, self.wait_code, "Certificate is not collectable.")
        return HttpAnswer(body=self._bundle(found.issued), headers={"Content-Type": "application/octet-stream"})

    def _bundle(self, leaf: x509.Certificate) -> bytes:
        """Root first, leaf last, as in the documented sample."""
        others = [self.hierarchy.issue(self.hierarchy.stranger, ["www.holdfast.test"])] if self.strangers else []
        all_of_it = [*others, self.hierarchy.root, self.hierarchy.intermediate, leaf, *others]
        if self.bundle == "pem":
            return pem(*all_of_it)
        return pkcs7.serialize_certificates(all_of_it, Encoding.DER if self.bundle == "der" else Encoding.PEM)

    # ── Deciding and taking back ──

    def say_yes(self, asked: HttpRequest, number: str) -> HttpAnswer:
        self.approve(int(number))
        return HttpAnswer(status=204)

    def say_no(self, asked: HttpRequest, number: str) -> HttpAnswer:
        found = self._by_number(number)
        if found is None or found.status != "Requested":
            return error(400, -1, "Only requested certificates can be declined.")
        self.deny(found.id, asked.json().get("message", ""))
        return HttpAnswer(status=204)

    def revoke(self, asked: HttpRequest, serial: str) -> HttpAnswer:
        wanted = int(serial.replace(":", ""), 16)
        found = next((each for each in self.placed if each.issued and each.issued.serial_number == wanted), None)
        body = asked.json()
        if not 1 <= len(body.get("reason", "")) <= 512 or body.get("reasonCode") not in (0, 1, 3, 4, 5):
            return error(400, -7, "reason is required but missing.")
        if found is None:
            return error(404, -102, "Only issued certificates could be revoked.")
        if found.revoked:
            return error(400, -159, "Your certificate already revoked")
        found.revoked, found.status = True, "Revoked"
        return HttpAnswer(status=204)


if __name__ == "__main__":
    serve(FakeSectigo)
