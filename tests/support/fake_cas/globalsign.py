"""GlobalSign Atlas (HVCA, API v2) as its reference and its own client show it: a policy, tokens, serials first."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

from tests.support.fake_cas.base import FakeCa, as_json, pem, serve
from tests.support.fake_cas.clients import client_roots as clients
from tests.support.http_server import HttpAnswer, HttpRequest
from tests.support.secrets_planted import GLOBALSIGN_KEY, GLOBALSIGN_SECRET

PROBLEM = "application/problem+json;charset=utf-8"
CONTENT = "application/json;charset=utf-8"


def error(status: int, description: str, **errors: str) -> HttpAnswer:
    body = {"description": description, "id": "a1b2c3d4", **({"errors": errors} if errors else {})}
    return HttpAnswer(status=status, body=json.dumps(body).encode(), headers={"Content-Type": PROBLEM})


@dataclass
class Order:
    serial: int
    body: dict[str, Any]
    key: Any
    placed_at: datetime
    looks: int
    issued: x509.Certificate | None = None
    issued_at: datetime | None = None
    refused: str = ""
    revoked: str | None = None


def a_policy() -> dict[str, Any]:
    return {
        "validity": {
            "secondsmin": 3600, "secondsmax": 90 * 86400, "not_before_negative_skew": 120,
            "not_before_positive_skew": 0, "issuer_expiry": 0,
        },
        "subject_dn": {
            "common_name": {"presence": "REQUIRED", "format": r"^[a-z0-9*.-]+$"},
            "organization": {"presence": "STATIC", "format": "Example"},
            "country": {"presence": "STATIC", "format": "DE"},
            "email": {"presence": "FORBIDDEN", "format": ""},
            "organizational_unit": {"static": False, "list": [".*"], "mincount": 0, "maxcount": 3},
        },
        "san": {
            "dns_names": {"static": False, "list": [".*"], "mincount": 1, "maxcount": 10},
            "ip_addresses": {"static": False, "list": [], "mincount": 0, "maxcount": 0},
            "emails": {"static": False, "list": [], "mincount": 0, "maxcount": 0},
        },
        "extended_key_usages": {"ekus": {"static": True, "list": ["1.3.6.1.5.5.7.3.1"], "mincount": 1, "maxcount": 1}},
        "signature": {
            "algorithm": {"presence": "STATIC", "list": ["RSA-PSS"]},
            "hash_algorithm": {"presence": "REQUIRED", "list": ["SHA-256", "SHA-512"]},
        },
        "public_key": {"key_type": "ECDSA", "allowed_lengths": [256, 384], "key_format": "PKCS8"},
        "public_key_signature": "REQUIRED",
    }  # fmt: skip


class FakeGlobalSign(FakeCa):
    name = "GlobalSign"
    base_path = "/v2"
    routes = (
        ("POST", "/login", "login"),
        ("GET", "/validationpolicy", "validation_policy"),
        ("POST", "/certificates", "order"),
        ("GET", "/certificates/([^/]+)", "certificate"),
        ("PATCH", "/certificates/([^/]+)", "revoke"),
        ("GET", "/trustchain", "trust_chain"),
        ("GET", "/quotas/issuance", "quota"),
        ("GET", "/counters/certificates/issued", "counter"),
        ("GET", "/stats/issued", "issued"),
        ("GET", "/claims/domains", "list_claims"),
    )

    def __init__(self, folder: Path, *, client_roots: Path | None = None, **more: Any) -> None:
        super().__init__(folder, client_roots=client_roots or clients(folder), **more)
        self.folder = folder
        self.key, self.secret = GLOBALSIGN_KEY, GLOBALSIGN_SECRET
        self.tokens: dict[str, datetime] = {}  # and when they end
        self.token_for = timedelta(minutes=10)
        self.policy = a_policy()
        self.claims = {"example.com", "holdfast.test"}  # verified
        self.quota_left = 1000
        self.absolute = False  # whether Location has the whole address
        self.decimal = False  # how it spells serials in statistics
        self.unknown_looks = 0  # looks that are answered with 404 after an order
        self.word: str | None = None
        self.placed: list[Order] = []

    @property
    def orders(self) -> list[Order]:
        return self.placed

    def settings(self, **more: Any) -> dict[str, Any]:
        return {
            "base_url": self.base,
            "client_certificate_file": str(self.folder / "client.pem"),
            "client_key_file": str(self.folder / "client.key"),
            "roots": self.roots.decode(),
            **more,
        }

    @property
    def credentials(self) -> dict[str, str]:
        return {"api_key": self.key, "api_secret": self.secret}

    # ── People ──

    def approve(self, number: int | None = None) -> None:
        """There are none here: an order that waits is made at its next look."""
        for each in self.placed:
            each.looks = 0

    def deny(self, number: int | None = None, words: str = "the organisation said no") -> None:
        for each in self.placed:
            if each.issued is None:
                each.refused = words

    def summary(self) -> dict[str, Any]:
        return {"orders": [{"serial": f"{each.serial:X}", "issued": each.issued is not None} for each in self.placed]}

    def error_body(self, status: int) -> str:
        return error(status, f"this is {status}").body.decode()

    # ── Doors ──

    def stranger(self, asked: HttpRequest) -> HttpAnswer | None:
        if asked.method in ("POST", "PATCH"):
            if "content-length" not in asked.headers:
                return error(411, "Content-Length is required")
            if asked.headers.get("content-type") != CONTENT:
                return error(415, "the content type is not supported")
        if asked.path == "/login":
            return None
        token = asked.headers.get("authorization", "").removeprefix("Bearer ")
        if self.tokens.get(token, self.now()) <= self.now():
            return error(401, f"unauthorized: {token}")
        return None

    def nothing_here(self, asked: HttpRequest) -> HttpAnswer:
        return error(404, "not found")

    def login(self, asked: HttpRequest) -> HttpAnswer:
        told = asked.json()
        if (told.get("api_key"), told.get("api_secret")) != (self.key, self.secret):
            return error(401, f"no account has the key {told.get('api_key')} and the secret {told.get('api_secret')}")
        token = f"eyJ.token-{len(self.tokens) + 1}.sig"
        self.tokens[token] = self.now() + self.token_for
        return as_json({"access_token": token})

    def validation_policy(self, asked: HttpRequest) -> HttpAnswer:
        return as_json(self.policy)

    # ── Ordering ──

    def order(self, asked: HttpRequest) -> HttpAnswer:
        body = asked.json()
        if self.quota_left <= 0:
            return error(402, "the issuance quota was reached")
        refusal = self._refusal(body)
        if refusal is not None:
            return refusal
        key = self._proved_key(body)
        if key is None:
            return error(422, "the public key was not proved", public_key="invalid")
        self.quota_left -= 1
        made = Order(
            serial=x509.random_serial_number(), body=body, key=key, placed_at=self.now(), looks=self.pending_looks
        )
        self.placed.append(made)
        where = f"/certificates/{made.serial:X}"
        return HttpAnswer(status=201, headers={"Location": f"{self.base}{where}" if self.absolute else f"/v2{where}"})

    def _refusal(self, body: dict[str, Any]) -> HttpAnswer | None:
        validity, policy = body.get("validity", {}), self.policy
        start, end = validity.get("not_before"), validity.get("not_after", 0)
        if not isinstance(start, int) or "subject_dn" not in body:
            return error(422, "validity and subject_dn are required")
        at = int(self.now().timestamp())
        if start > at + policy["validity"]["not_before_positive_skew"] + 1 or start < at - 121:
            return error(422, "not_before is outside of the policy", validity="not_before")
        if end and end - start > policy["validity"]["secondsmax"]:
            return error(422, "not_after is outside of the policy", validity="not_after")
        for field, rule in policy["subject_dn"].items():
            presence = rule.get("presence", "OPTIONAL")
            if presence in ("STATIC", "FORBIDDEN") and field in body["subject_dn"]:
                return error(422, f"the request does not match the policy: {field} is {presence}")
            if presence == "REQUIRED" and field not in body["subject_dn"]:
                return error(422, f"the request does not match the policy: {field} is required")
        if "extended_key_usages" in body and policy["extended_key_usages"]["ekus"]["static"]:
            return error(422, "the request does not match the policy: extended_key_usages is static")
        if "hash_algorithm" not in body.get("signature", {}):
            return error(422, "signature.hash_algorithm is required")
        names = body.get("san", {}).get("dns_names", [])
        unclaimed = [name for name in names if not self._claimed(name.removeprefix("*."))]
        if unclaimed:
            return error(422, "one or more domains are not authorized", san=f"no claim for {unclaimed[0]}")
        if refused := self.bad_names & {*names}:
            return error(422, f"the name {sorted(refused)[0]} is on a blocklist")
        return None

    def _claimed(self, name: str) -> bool:
        return any(name == each or name.endswith(f".{each}") for each in self.claims)

    def _proved_key(self, body: dict[str, Any]) -> Any:
        text = body.get("public_key", "")
        if self.policy["public_key"]["key_format"] == "PKCS10":
            csr = x509.load_pem_x509_csr(text.encode())
            return csr.public_key() if csr.is_signature_valid and "public_key_signature" not in body else None
        key = load_pem_public_key(text.encode())
        if self.policy["public_key_signature"] != "REQUIRED":
            return key
        der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        signature = base64.b64decode(body.get("public_key_signature", ""))
        try:
            if isinstance(key, ec.EllipticCurvePublicKey):
                key.verify(signature, der, ec.ECDSA(hashes.SHA256()))
            elif isinstance(key, rsa.RSAPublicKey):
                key.verify(signature, der, padding.PKCS1v15(), hashes.SHA256())
        except InvalidSignature:
            return None
        return key

    # ── Looking ──

    def certificate(self, asked: HttpRequest, serial: str) -> HttpAnswer:
        found = self._by_serial(serial)
        if found is None or self.unknown_looks > 0:
            self.unknown_looks = max(0, self.unknown_looks - 1)
            return error(404, "no such certificate")
        self._proceed(found)
        if found.refused:
            return error(422, found.refused)
        if found.issued is None:
            return as_json({"description": "the certificate is not ready yet"}, 202)
        status = self.word or ("REVOKED" if found.revoked else "ISSUED")
        return as_json({"certificate": pem(found.issued).decode(), "status": status, "updated_at": 1})

    def _by_serial(self, serial: str) -> Order | None:
        return next((each for each in self.placed if f"{each.serial:X}" == serial), None)

    def _proceed(self, order: Order) -> None:
        if order.issued is not None or order.refused or self.approval:
            return
        if order.looks > 0:
            order.looks -= 1
            return
        end = order.body["validity"]["not_after"]
        days = (end - self.now().timestamp()) / 86400 if end else 90
        key = self.hierarchy.stranger if self.wrong_certificate else order.key
        names = self.named(order.body["san"]["dns_names"])
        order.issued = self.hierarchy.issue(key, names, days=days, now=self.now(), serial=order.serial)
        order.issued_at = self.now()

    def trust_chain(self, asked: HttpRequest) -> HttpAnswer:
        return as_json([pem(self.hierarchy.intermediate).decode(), pem(self.hierarchy.root).decode()])

    def quota(self, asked: HttpRequest) -> HttpAnswer:
        return as_json({"value": self.quota_left})

    def counter(self, asked: HttpRequest) -> HttpAnswer:
        return as_json({"value": len([each for each in self.placed if each.issued])})

    def issued(self, asked: HttpRequest) -> HttpAnswer:
        start, end = int(asked.query["from"]), int(asked.query["to"])
        if end > self.now().timestamp():
            return error(422, "the end of the time window is in the future", to="invalid")
        for each in self.placed:
            if each.issued is None:
                self._proceed(each)
                each.issued_at = each.issued and each.placed_at  # made then, and not because somebody looks
        made = [each for each in self.placed if each.issued is not None and each.issued_at is not None]
        found = [each for each in made if start <= int((each.issued_at or self.now()).timestamp()) <= end]
        size, page = int(asked.query["per_page"]), int(asked.query["page"])
        shown = [
            {"serial_number": str(each.serial) if self.decimal else f"{each.serial:X}", "not_before": 0, "not_after": 0}
            for each in found[(page - 1) * size : page * size]
        ]
        return as_json(shown, Total_Count=str(len(found)))

    def list_claims(self, asked: HttpRequest) -> HttpAnswer:
        shown = [{"id": "0" * 32, "status": "VERIFIED", "domain": each} for each in sorted(self.claims)]
        return as_json(shown if asked.query.get("status") == "VERIFIED" else [], Total_Count=str(len(shown)))

    # ── Taking back ──

    def revoke(self, asked: HttpRequest, serial: str) -> HttpAnswer:
        found = self._by_serial(serial)
        if found is None:
            return error(404, "no such certificate")
        if found.revoked or found.issued is None:
            return error(409, "the certificate is already revoked, rejected or still pending")
        found.revoked = asked.json()["revocation_reason"]
        return HttpAnswer(status=204)


if __name__ == "__main__":
    serve(FakeGlobalSign)
