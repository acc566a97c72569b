"""Vault's PKI engine, as far as its clients see it: a token, a mount, roles, signatures at once."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from cryptography import x509

from tests.support.fake_cas.base import FakeCa, as_json, pem, read_csr, serve
from tests.support.http_server import HttpAnswer, HttpRequest
from tests.support.secrets_planted import VAULT_TOKEN


def error(status: int, *said: str) -> HttpAnswer:
    return as_json({"errors": list(said)}, status)


@dataclass
class Signature:
    body: dict[str, Any]
    certificate: x509.Certificate
    revoked: bool = False

    @property
    def serial(self) -> str:
        text = f"{self.certificate.serial_number:x}"
        return bytes.fromhex(text if len(text) % 2 == 0 else f"0{text}").hex(":")


class FakeVault(FakeCa):
    name = "Vault"
    base_path = ""
    routes = (
        ("POST", "/v1/pki/sign/([^/]+)", "sign"),
        ("POST", "/v1/pki/issuer/main/sign/([^/]+)", "sign"),
        ("GET", "/v1/pki/roles/([^/]+)", "role"),
        ("POST", "/v1/pki/revoke", "revoke"),
        ("GET", "/v1/pki/cert/([^/]+)", "certificate"),
        ("GET", "/v1/auth/token/lookup-self", "token_info"),
        ("POST", "/v1/auth/token/renew-self", "renew"),
    )

    def __init__(self, folder: Path, **more: Any) -> None:
        super().__init__(folder, **more)
        self.token = VAULT_TOKEN
        self.namespace: str | None = None
        self.sealed = False
        self.no_store = False
        self.revocations_pend = False  # another cluster has the certificate
        self.max_ttl_days = 30.0
        self.lone_root = False  # the mount's CA is a root: there is no chain
        self.token_ttl, self.token_life = 3600, 3600
        self.renewals = 0
        self.reads_roles = True  # whether our policy lets us
        self.signed: list[Signature] = []

    @property
    def orders(self) -> list[Signature]:
        return self.signed

    def settings(self, **more: Any) -> dict[str, Any]:
        return {"base_url": self.base, "mount": "pki", "role": "web", "roots": self.roots.decode(), **more}

    @property
    def credentials(self) -> dict[str, str]:
        return {"token": self.token}

    def summary(self) -> dict[str, Any]:
        return {"orders": [{"serial": each.serial, "names": each.body.get("alt_names")} for each in self.signed]}

    def error_body(self, status: int) -> str:
        return json.dumps({"errors": [f"this is {status}"]})

    def stranger(self, asked: HttpRequest) -> HttpAnswer | None:
        if self.sealed:
            return error(503, "Vault is sealed")
        if asked.headers.get("x-vault-token") != self.token or asked.headers.get("x-vault-request") != "true":
            return error(403, "permission denied")
        if asked.headers.get("x-vault-namespace") != self.namespace:
            return error(403, "permission denied")
        return None

    def nothing_here(self, asked: HttpRequest) -> HttpAnswer:
        return error(404, f'no handler for route "{asked.path}"')

    def sign(self, asked: HttpRequest, role: str) -> HttpAnswer:
        body = asked.json()
        if role != "web":
            return error(404, f"unknown role: {role}")
        if not body.get("common_name"):
            return error(400, "the common_name field is required, or must be provided in a CSR")
        try:
            csr = read_csr(body["csr"])
        except (KeyError, ValueError):
            return error(400, "certificate request could not be parsed")
        names = [each for field in ("alt_names", "ip_sans") for each in body.get(field, "").split(",") if each]
        if refused := self.bad_names & {*names}:
            return error(400, f"subject alternate name {sorted(refused)[0]} not allowed by this role")
        key = self.hierarchy.stranger if self.wrong_certificate else csr.public_key()
        days = min(self._asked_days(body), self.max_ttl_days)
        made = Signature(body, self.hierarchy.issue(key, names, days=days, now=self.now()))
        self.signed.append(made)
        data: dict[str, Any] = {
            "certificate": pem(made.certificate).decode().strip(), "serial_number": made.serial,
            "issuing_ca": pem(self.hierarchy.intermediate).decode().strip(),
            "expiration": int((self.now() + timedelta(days=days)).timestamp()),
        }  # fmt: skip
        if not self.lone_root:
            data["ca_chain"] = [pem(self.hierarchy.intermediate).decode(), pem(self.hierarchy.root).decode()]
        return as_json({"request_id": "r", "lease_id": "", "data": data, "warnings": None})

    def _asked_days(self, body: dict[str, Any]) -> float:
        found = re.fullmatch(r"(\d+)(s|m|h)", body.get("ttl", ""))
        return int(found.group(1)) * {"s": 1, "m": 60, "h": 3600}[found.group(2)] / 86400 if found else 30

    def role(self, asked: HttpRequest, role: str) -> HttpAnswer:
        if not self.reads_roles:
            return error(403, "permission denied")
        return as_json({"data": {"max_ttl": 0}}) if role == "web" else error(404)

    def certificate(self, asked: HttpRequest, serial: str) -> HttpAnswer:
        found = next((each for each in self.signed if each.serial == serial), None)
        return error(404) if found is None else as_json({"data": {"certificate": pem(found.certificate).decode()}})

    def revoke(self, asked: HttpRequest) -> HttpAnswer:
        """By its serial, unless the role keeps nothing (no_store); or by the certificate itself."""
        serial, shown = asked.json().get("serial_number"), asked.json().get("certificate", "").strip()
        known = [each for each in self.signed if shown == pem(each.certificate).decode().strip()]
        if serial is not None and not self.no_store:
            known = [each for each in self.signed if each.serial == serial]
        if not known:
            return error(400, f"certificate with serial {serial} not found or was already revoked")
        if self.revocations_pend:
            return as_json({"data": {"revocation_time": 0, "state": "pending"}})
        known[0].revoked = True
        return as_json({"data": {"revocation_time": 1, "state": "revoked"}})

    def token_info(self, asked: HttpRequest) -> HttpAnswer:
        shown = {"ttl": self.token_ttl, "creation_ttl": self.token_life, "renewable": True}
        return as_json({"data": shown})

    def renew(self, asked: HttpRequest) -> HttpAnswer:
        self.renewals += 1
        self.token_ttl = self.token_life
        return as_json({"auth": {"client_token": self.token, "lease_duration": self.token_life, "renewable": True}})


if __name__ == "__main__":
    serve(FakeVault)
