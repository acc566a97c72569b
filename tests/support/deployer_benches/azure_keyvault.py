"""A bench for `azure-keyvault`: Microsoft's log-in and one vault, with versions, soft deletion and tags."""

from __future__ import annotations

from base64 import b64encode
from contextlib import AbstractAsyncContextManager
from typing import Any
from urllib.parse import parse_qs

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from holdfast.deployers.azure_keyvault import AzureKeyVaultDeployer, AzureKeyVaultSettings
from holdfast.deployers.base import Deployer
from holdfast.secret import Secret
from tests.support.deployer_benches.rest import FakeApi, RestBench, as_json, opened, pair
from tests.support.http_server import HttpAnswer, HttpRequest

CLIENT_SECRET = "azure~secret-of-tests"
TOKEN = "eyJ0eXAi.azure-token-of-tests"
PLACE = "/certificates/www"


def problem(status: int, code: str, message: str) -> HttpAnswer:
    return as_json({"error": {"code": code, "message": message}}, status)


class FakeVault(FakeApi):
    def __init__(self) -> None:
        super().__init__()
        self.versions: list[dict[str, Any]] = []  # as they were imported
        self.deleted = False
        self.logins = 0

    def writes(self, request: HttpRequest) -> bool:
        return request.path.endswith("/import")

    def no(self, request: HttpRequest) -> HttpAnswer:
        return problem(403, "Forbidden", f"Caller is not authorized: {TOKEN} {request.body.decode()}")

    def answered(self, request: HttpRequest) -> HttpAnswer:
        if request.path == "/contoso/oauth2/v2.0/token":
            return self._login({name: values[0] for name, values in parse_qs(request.body.decode()).items()})
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return problem(401, "Unauthorized", "AKV10022: Invalid audience.")
        assert request.query["api-version"] == "7.4"
        if request.path == f"{PLACE}/import":
            return self._imported(request.json())
        if not self.versions or self.deleted or request.path != PLACE:
            return problem(404, "CertificateNotFound", "A certificate with (name/id) www was not found")
        return as_json(self._shown())

    def _login(self, asked: dict[str, str]) -> HttpAnswer:
        self.logins += 1
        wanted = {"grant_type": "client_credentials", "client_id": "app-1", "client_secret": CLIENT_SECRET}
        if asked != {**wanted, "scope": "https://vault.azure.net/.default"}:
            text = f"AADSTS7000215: Invalid client secret provided: {asked.get('client_secret')}"
            return as_json({"error": "invalid_client", "error_description": text}, 401)
        return as_json({"token_type": "Bearer", "expires_in": 3599, "access_token": TOKEN})

    def _imported(self, asked: dict[str, Any]) -> HttpAnswer:
        if self.deleted:
            said = "Certificate www is currently in a deleted but recoverable state, and its name cannot be reused"
            return problem(409, "Conflict", said)
        assert asked["policy"]["secret_props"]["contentType"] == "application/x-pem-file"
        leaf = x509.load_pem_x509_certificates(asked["value"].encode())[0]
        key = serialization.load_pem_private_key(asked["value"].encode(), None)
        if key.public_key() != leaf.public_key():
            return problem(400, "BadParameter", "The private key does not match the certificate")
        assert len(asked["tags"]) <= 15
        self.versions.append(asked)
        return as_json(self._shown())

    def _shown(self) -> dict[str, Any]:
        now = self.versions[-1]
        leaf = x509.load_pem_x509_certificates(now["value"].encode())[0]
        der = leaf.public_bytes(serialization.Encoding.DER)
        where = f"https://vault{PLACE}/{len(self.versions):032x}"
        return {"id": where, "cer": b64encode(der).decode(), "tags": now["tags"], "attributes": {"enabled": True}}


class AzureKeyVaultBench(RestBench):
    secrets = (CLIENT_SECRET, TOKEN)
    api: FakeVault

    async def deployer(self, secret: str = CLIENT_SECRET, **changes: Any) -> Deployer:
        given = {"base_url": self.api.origin, "login_url": self.api.origin, "tenant": "contoso", "client_id": "app-1"}
        settings = AzureKeyVaultSettings(**{**given, "certificate": "www", **changes})
        return AzureKeyVaultDeployer(settings, self.parts(client_secret=secret))

    async def holds(self) -> tuple[str, Secret[bytes]]:
        value = self.api.versions[-1]["value"]
        key, begin, rest = value.partition("-----BEGIN CERTIFICATE-----")
        return pair(begin + rest, key)


def a_bench() -> AbstractAsyncContextManager[AzureKeyVaultBench]:
    return opened(FakeVault(), AzureKeyVaultBench)
