"""Entrust CA Gateway (API v1) as Entrust's own clients and its cut-down OpenAPI text show it."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from tests.support.fake_cas.base import FakeCa, as_json, pem, serve
from tests.support.fake_cas.clients import client_roots as clients
from tests.support.http_server import HttpAnswer, HttpRequest

CA = "partition~ca-1"
PROFILE = "CA-PROF-1001"


def error(status: int, code: str, message: str) -> HttpAnswer:
    inside = {"code": code, "message": message, "target": "enrollment", "details": [{"message": "backend-7.internal"}]}
    return as_json({"type": "ErrorResponse", "error": inside}, status)


def b64(certificate: x509.Certificate) -> str:
    return base64.b64encode(certificate.public_bytes(Encoding.DER)).decode()


@dataclass
class Enrollment:
    id: str
    body: dict[str, Any]
    csr: x509.CertificateSigningRequest
    names: list[str]
    placed_at: datetime
    status: str
    looks: int
    note: str = ""
    issued: x509.Certificate | None = None
    issued_at: datetime | None = None
    revoked: str | None = None

    @property
    def reference(self) -> str:
        return str(self.body.get("properties", {}).get("tracking.trackingInfo", ""))


class FakeEntrust(FakeCa):
    name = "Entrust"
    base_path = "/cagw"
    routes = (
        ("GET", "/v1/certificate-authorities", "authorities"),
        ("GET", "/v1/certificate-authorities/([^/]+)", "authority"),
        ("GET", "/v1/certificate-authorities/([^/]+)/profiles", "profiles"),
        ("GET", "/v1/certificate-authorities/([^/]+)/profiles/([^/]+)", "profile"),
        ("POST", "/v1/certificate-authorities/([^/]+)/enrollments", "enroll"),
        ("GET", "/v1/certificate-authorities/([^/]+)/enrollments/([^/]+)", "enrollment"),
        ("GET", "/v1/certificate-authorities/([^/]+)/certificates/([^/]+)", "certificate"),
        ("POST", "/v1/certificate-authorities/([^/]+)/certificates/([^/]+)/actions", "act"),
        ("GET", "/v1/certificate-authorities/([^/]+)/certificate-events", "events"),
    )

    def __init__(self, folder: Path, *, client_roots: Path | None = None, **more: Any) -> None:
        super().__init__(folder, client_roots=client_roots or clients(folder), **more)
        self.folder = folder
        self.placed: list[Enrollment] = []
        self.variables: dict[str, bool] = {"cn": True}  # of the subject: name, and whether the profile insists on it
        self.at_once = False  # the certificate is in the answer to the order
        self.enrollments_answer = 200  # 404, 405 or 501: a gateway that does not show enrollments
        self.next_serial: int | None = None  # in place of a random one
        self.padded = False  # twenty octets, as the hosted form writes serials
        self.word: str | None = None  # what every enrollment's state is called instead
        self.pem_bodies = False
        self.chain_bodies = False  # the whole chain in each body, root first
        self.rejects: str | None = None  # the words with which each enrollment is rejected in the answer to it
        self.shows_ids = True  # of those; any field may be missing
        self.shows_chain = True
        self.rejects_actions = False
        self.action_word = "COMPLETED"  # anything else: it is taken, and not done yet
        self.errors_with_200 = False
        self.page = 50
        self._numbers = count(1)

    @property
    def orders(self) -> list[Enrollment]:
        return self.placed

    def settings(self, **more: Any) -> dict[str, Any]:
        return {
            "base_url": self.base,
            "ca_id": CA,
            "profile_id": PROFILE,
            "client_certificate_file": str(self.folder / "client.pem"),
            "client_key_file": str(self.folder / "client.key"),
            "roots": self.roots.decode(),
            **more,
        }

    @property
    def credentials(self) -> dict[str, str]:
        return {}

    # ── People ──

    def approve(self, number: int | None = None) -> None:
        for each in self._chosen(number):
            if each.status == "AWAITING_APPROVAL":
                each.status = "PROCESSING"

    def deny(self, number: int | None = None, words: str = "the organisation said no") -> None:
        for each in self._chosen(number):
            if each.issued is None:
                each.status, each.note = "REJECTED", words

    def _chosen(self, number: int | None) -> list[Enrollment]:
        return [each for at, each in enumerate(self.placed) if number in (None, at)]

    def summary(self) -> dict[str, Any]:
        shown = [{"id": each.id, "status": each.status, "reference": each.reference} for each in self.placed]
        return {"orders": shown}

    def error_body(self, status: int) -> str:
        return error(status, f"cagw-{status}", f"this is {status}").body.decode()

    # ── Doors ──

    def stranger(self, asked: HttpRequest) -> HttpAnswer | None:
        if self.errors_with_200:
            return HttpAnswer(body=error(200, "cagw-4000", "The profile is not in use.").body)
        found = re.match("/v1/certificate-authorities/([^/]+)", asked.path)
        if found is not None and found.group(1) != CA:
            return error(404, "cagw-4018", f"There is no CA {found.group(1)}.")
        if "~" in CA and "~" not in asked.raw and "%7E" not in asked.raw and found is not None:
            return error(400, "cagw-4000", "The id of the CA is spelled wrongly.")
        return None

    def nothing_here(self, asked: HttpRequest) -> HttpAnswer:
        return error(404, "cagw-4040", "There is nothing here.")

    def authorities(self, asked: HttpRequest) -> HttpAnswer:
        return as_json({"type": "CAListResponse", "caList": [{"id": CA, "name": "Issuing", "properties": {}}]})

    def authority(self, asked: HttpRequest, _: str) -> HttpAnswer:
        ca: dict[str, Any] = {"id": CA, "name": "Issuing", "properties": {"connector-name": "com.entrust.PKIHub"}}
        wanted = asked.query.get("$fields", "")
        if "ca.certificate" in wanted and self.shows_chain:
            ca["certificate"] = {"certificateData": b64(self.hierarchy.intermediate)}
        if "ca.chain" in wanted and self.shows_chain:
            ca["chain"] = [
                {"certificateData": b64(each)} for each in (self.hierarchy.root, self.hierarchy.intermediate)
            ]
        return as_json({"type": "CAResponse", "ca": ca})

    def profiles(self, asked: HttpRequest, _: str) -> HttpAnswer:
        return as_json({"type": "ProfilesResponse", "profiles": [{"id": PROFILE, "name": "TLS server"}]})

    def profile(self, asked: HttpRequest, _: str, name: str) -> HttpAnswer:
        if name != PROFILE:
            return error(404, "cagw-4041", "There is no such profile.")
        wanted = [{"name": name, "required": required} for name, required in self.variables.items()]
        shown = {"id": PROFILE, "name": "TLS server", "subjectVariableRequirements": wanted}
        return as_json({"profile": {**shown, "subjectAltNameRequirements": [{"type": "dNSName", "required": False}]}})

    # ── Ordering ──

    def enroll(self, asked: HttpRequest, _: str) -> HttpAnswer:
        body = asked.json()
        try:
            csr = x509.load_der_x509_csr(base64.b64decode(body["csr"], validate=True))  # no armour, no line breaks
        except (KeyError, ValueError):
            return error(400, "cagw-4001", "The CSR cannot be read.")
        if not csr.is_signature_valid:
            return error(400, "cagw-4002", "Proof of possession failed.")
        if body.get("profileId") != PROFILE:
            return error(400, "cagw-4003", "The profile is not known.")
        if body.get("requiredFormat", {}).get("format") not in ("X509", "PEM"):
            return error(400, "cagw-4004", "The format is not known.")
        given = {each["type"] for each in body.get("subjectVariables", [])}
        if {name for name, required in self.variables.items() if required} - given:
            return error(400, "cagw-4005", "A subject variable is missing.")
        names = [each["value"] for each in body.get("subjectAltNames", [])]  # never those of the CSR
        if refused := self.bad_names & {*names}:
            return error(400, "cagw-4006", f"The name {sorted(refused)[0]} is not allowed.")
        made = Enrollment(
            id=f"enr-{next(self._numbers)}", body=body, csr=csr, names=names, placed_at=self.now(),
            status="AWAITING_APPROVAL" if self.approval else "PROCESSING", looks=self.pending_looks,
        )  # fmt: skip
        if self.rejects is not None:
            made.status, made.note = "REJECTED", self.rejects
            shown = self._shown(made)
            if not self.shows_ids:
                del shown["enrollment"]["id"]
            return as_json(shown)
        self.placed.append(made)
        if self.at_once and not self.approval:
            self._issue(made)
        return as_json(self._shown(made), 200 if made.issued is not None else 201)

    def _issue(self, made: Enrollment) -> None:
        details = made.body.get("optionalCertificateRequestDetails") or {}
        found = re.fullmatch(r"PT(\d+)S", details.get("validityPeriod") or "")
        days = int(found.group(1)) / 86400 if found else 3 * 365
        key = self.hierarchy.stranger if self.wrong_certificate else made.csr.public_key()
        names = self.named(made.names)
        made.issued = self.hierarchy.issue(key, names, days=days, now=self.now(), serial=self.next_serial)
        made.status, made.issued_at = "ACCEPTED", self.now()

    def _proceed(self, made: Enrollment) -> None:
        if made.status != "PROCESSING":
            return
        if made.looks > 0:
            made.looks -= 1
        else:
            self._issue(made)

    def _shown(self, made: Enrollment) -> dict[str, Any]:
        enrollment: dict[str, Any] = {"id": made.id, "status": self.word or made.status, "properties": {}}
        if made.issued is not None:
            enrollment["serialNumber"] = self.serial(made.issued)
            enrollment["body"] = self._text(made.issued)
        message = {"message": made.note or "The request was received.", "details": []}
        return {"type": "EnrollmentResponse", "message": message, "enrollment": enrollment}

    def _text(self, certificate: x509.Certificate) -> str:
        if self.chain_bodies:
            return pem(self.hierarchy.root, self.hierarchy.intermediate, certificate).decode()
        return certificate.public_bytes(Encoding.PEM).decode() if self.pem_bodies else b64(certificate)

    def serial(self, certificate: x509.Certificate) -> str:
        text = f"{certificate.serial_number:x}"  # whole octets, of which the hosted form has twenty
        return text.zfill(40 if self.padded else len(text) + len(text) % 2)

    # ── Looking ──

    def enrollment(self, asked: HttpRequest, _: str, number: str) -> HttpAnswer:
        found = next((each for each in self.placed if each.id == number), None)
        if found is not None:
            self._proceed(found)
        if self.enrollments_answer != 200:
            return error(self.enrollments_answer, "cagw-5010", "This operation is not offered.")
        if found is None:
            return error(404, "cagw-4042", "There is no such enrollment.")
        return as_json(self._shown(found))

    def certificate(self, asked: HttpRequest, _: str, serial: str) -> HttpAnswer:
        found = self._by_serial(serial)
        if found is None or found.issued is None:
            return error(404, "cagw-4043", "There is no such certificate.")
        shown = {"status": "revoked" if found.revoked else "Normal", "certificateData": b64(found.issued)}
        named = {"serialNumber": self.serial(found.issued), "issuerName": "CN=Issuing"}
        return as_json({"type": "CertificateResponse", "certificate": {**shown, **named}, "chain": []})

    def _by_serial(self, serial: str) -> Enrollment | None:
        return next((each for each in self.placed if each.issued and self.serial(each.issued) == serial), None)

    def events(self, asked: HttpRequest, _: str) -> HttpAnswer:
        start = datetime.fromisoformat(asked.query["startDate"])
        for each in self.placed:
            self._proceed(each)
        size = min(int(asked.query.get("preferredPageSize", "100")), self.page)
        first = int(asked.query.get("nextPageIndex", "0"))
        listed = [
            {
                "action": "EnrollAction", "event": "issued", "eventDate": each.issued_at.isoformat(),
                "certificate": b64(each.issued), "serialNumber": self.serial(each.issued),
            }
            for each in self.placed if each.issued and each.issued_at and each.issued_at >= start
        ]  # fmt: skip
        shown = listed[first : first + size]
        more = first + size < len(listed)
        return as_json({"events": shown, "morePages": more, "nextPageIndex": first + size if more else 0})

    # ── Taking back ──

    def act(self, asked: HttpRequest, _: str, serial: str) -> HttpAnswer:
        found, action = self._by_serial(serial), asked.json()["action"]
        if found is None:
            return error(404, "cagw-4043", "There is no such certificate.")
        if action["type"] != "RevokeAction":
            return error(400, "cagw-4009", "The action is not known.")
        status = "REJECTED" if self.rejects_actions else self.action_word
        if status == "COMPLETED":
            found.revoked = found.revoked or action["reason"]
        done = {"type": "RevokeAction", "id": "1", "status": status, "reason": action["reason"]}
        return as_json({"type": "ActionResponse", "action": {**done, "succeedIfAlreadyInRequestedState": True}}, 201)


if __name__ == "__main__":
    serve(FakeEntrust)
