"""A bench for `gcp-certificate-manager`: Google's log-in, which checks assertions, and one location."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from contextlib import AbstractAsyncContextManager
from functools import cache
from typing import Any
from urllib.parse import parse_qs

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from holdfast.deployers.base import Deployer
from holdfast.deployers.gcp_certificate_manager import GcpDeployer, GcpSettings
from holdfast.secret import Secret
from tests.support.deployer_benches.rest import FakeApi, RestBench, as_json, opened, pair
from tests.support.http_server import HttpAnswer, HttpRequest

TOKEN = "ya29.gcp-token-of-tests"
PARENT = "/v1/projects/house-1234/locations/global"
PLACE = f"{PARENT}/certificates/www"


@cache
def account_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


def account(token_uri: str) -> str:
    key = account_key().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    told = {"type": "service_account", "client_email": "hf@house-1234.iam.gserviceaccount.com", "private_key_id": "k1"}
    return json.dumps({**told, "private_key": key.decode(), "token_uri": token_uri})


def problem(code: int, status: str, message: str) -> HttpAnswer:
    return as_json({"error": {"code": code, "status": status, "message": message}}, code)


def _decoded(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


class FakeCertificateManager(FakeApi):
    def __init__(self) -> None:
        super().__init__()
        self.certificates: dict[str, dict[str, Any]] = {}
        self.slow = False  # operations go on after the answer
        self.operations: dict[str, dict[str, Any]] = {}

    def writes(self, request: HttpRequest) -> bool:
        return "/certificates" in request.path and request.method != "GET"

    def no(self, request: HttpRequest) -> HttpAnswer:
        said = f"Permission 'certificatemanager.certs.update' denied: {TOKEN} {request.body.decode()}"
        return problem(403, "PERMISSION_DENIED", said)

    def answered(self, request: HttpRequest) -> HttpAnswer:
        if request.path == "/token":
            return self._login({name: values[0] for name, values in parse_qs(request.body.decode()).items()})
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return problem(401, "UNAUTHENTICATED", "Request had invalid authentication credentials.")
        if "/operations/" in request.path:
            return as_json(self.operations[request.path.removeprefix("/v1/")])
        match request.method:
            case "GET" if found := self.certificates.get(request.path):
                return as_json({name: value for name, value in found.items() if name != "key"})
            case "GET":
                return problem(404, "NOT_FOUND", f"Resource '{request.path}' was not found")
            case "POST":
                return self._put(f"{request.path}/{request.query['certificateId']}", request.json())
            case _:
                assert request.query["updateMask"] == "selfManaged,description"
                return self._put(request.path, request.json())

    def _login(self, asked: dict[str, str]) -> HttpAnswer:
        head, claims, signature = asked["assertion"].split(".")
        told = json.loads(_decoded(claims))
        assert json.loads(_decoded(head))["alg"] == "RS256"
        assert told["aud"] == f"{self.origin}/token"
        assert told["exp"] - told["iat"] <= 3600
        try:
            key = account_key().public_key()
            key.verify(_decoded(signature), f"{head}.{claims}".encode(), padding.PKCS1v15(), hashes.SHA256())
        except InvalidSignature:
            return as_json({"error": "invalid_grant", "error_description": "Invalid JWT Signature."}, 400)
        return as_json({"access_token": TOKEN, "expires_in": 3599, "token_type": "Bearer"})

    def _put(self, path: str, asked: dict[str, Any]) -> HttpAnswer:
        pem, key = asked["selfManaged"]["pemCertificate"], asked["selfManaged"]["pemPrivateKey"]
        leaf = x509.load_pem_x509_certificates(pem.encode())[0]
        name = f"{PARENT.removeprefix('/v1/')}/operations/operation-{len(self.operations)}"
        if serialization.load_pem_private_key(key.encode(), None).public_key() != leaf.public_key():
            error = {"code": 3, "message": "The private key does not match the certificate"}
            return as_json({"name": name, "done": True, "error": error})
        self.certificates[path] = {
            "name": path.removeprefix("/v1/"), "selfManaged": {}, "pemCertificate": pem, "key": key,
            "description": asked["description"],
        }  # fmt: skip
        self.operations[name] = {"name": name, "done": not self.slow}
        return as_json({"name": name, "metadata": {"verb": "update"}})


class GcpBench(RestBench):
    secrets = (TOKEN,)
    api: FakeCertificateManager

    async def deployer(self, credential: str = "", **changes: Any) -> Deployer:
        given = {"base_url": self.api.origin, "project": "house-1234", "certificate": "www", **changes}
        told = credential or account(f"{self.api.origin}/token")
        return GcpDeployer(GcpSettings(**given), self.parts(service_account=told))

    async def holds(self) -> tuple[str, Secret[bytes]]:
        found = self.api.certificates[PLACE]
        return pair(found["pemCertificate"], found["key"])


def a_bench() -> AbstractAsyncContextManager[GcpBench]:
    return opened(FakeCertificateManager(), GcpBench)
