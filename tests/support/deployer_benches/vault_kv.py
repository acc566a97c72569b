"""A bench for `vault-kv`: a key-value store, version 2, with versions, deletions and check-and-set."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from holdfast.deployers.base import Deployer
from holdfast.deployers.vault_kv import VaultKvDeployer, VaultKvSettings
from holdfast.secret import Secret
from tests.support.deployer_benches.rest import FakeApi, RestBench, as_json, opened, pair
from tests.support.http_server import HttpAnswer, HttpRequest
from tests.support.secrets_planted import VAULT_TOKEN

PLACE = "/v1/secret/data/tls/www"


class FakeKv(FakeApi):
    def __init__(self) -> None:
        super().__init__()
        self.versions: list[dict[str, Any] | None] = []  # None: deleted
        self.meanwhile: list[Callable[[], None]] = []  # before a write: somebody is faster

    def no(self, request: HttpRequest) -> HttpAnswer:
        key = request.json()["data"]["private_key"]
        return as_json({"errors": [f"permission denied for {VAULT_TOKEN} with {key}"]}, 403)

    def answered(self, request: HttpRequest) -> HttpAnswer:
        if request.headers.get("x-vault-token") != VAULT_TOKEN:
            return as_json({"errors": ["permission denied"]}, 403)
        if request.path != PLACE:
            return as_json({"errors": ["no handler for route"]}, 404)
        return self._shown(request) if request.method == "GET" else self._stored(request.json())

    def _shown(self, request: HttpRequest) -> HttpAnswer:
        version = int(request.query.get("version", 0)) or len(self.versions)
        if not 0 < version <= len(self.versions):
            return as_json({"errors": []}, 404)
        data = self.versions[version - 1]
        return as_json({"data": {"data": data, "metadata": {"version": version}}}, 404 if data is None else 200)

    def _stored(self, asked: dict[str, Any]) -> HttpAnswer:
        for each in self.meanwhile:
            each()
        if asked["options"]["cas"] != len(self.versions):
            said = "check-and-set parameter did not match the current version"
            return as_json({"errors": [said]}, 400)
        self.versions.append(asked["data"])
        return as_json({"data": {"version": len(self.versions)}})


class VaultKvBench(RestBench):
    secrets = (VAULT_TOKEN,)
    api: FakeKv

    async def deployer(self, **changes: Any) -> Deployer:
        settings = VaultKvSettings(**{"base_url": self.api.origin, "path": "tls/www", **changes})
        return VaultKvDeployer(settings, self.parts(token=VAULT_TOKEN))

    async def holds(self) -> tuple[str, Secret[bytes]]:
        data = self.api.versions[-1] or {}
        return pair(data["fullchain"], data["private_key"])


def a_bench() -> AbstractAsyncContextManager[VaultKvBench]:
    return opened(FakeKv(), VaultKvBench)
