"""A bench for `kubernetes`: an API server with one namespace, which applies Secrets as the real one does."""

from __future__ import annotations

from base64 import b64decode
from contextlib import AbstractAsyncContextManager
from typing import Any

from holdfast.deployers.base import Deployer
from holdfast.deployers.kind import LocalRules
from holdfast.deployers.kubernetes import KubernetesDeployer, KubernetesSettings
from holdfast.secret import Secret
from tests.support.deployer_benches.rest import FakeApi, RestBench, as_json, opened, pair
from tests.support.http_server import HttpAnswer, HttpRequest

TOKEN = "eyJhbGciOi.kube-token"
PLACE = "/api/v1/namespaces/prod/secrets/www-tls"


def status(code: int, reason: str, message: str, **details: Any) -> HttpAnswer:
    told = {"kind": "Status", "status": "Failure", "reason": reason, "message": message, "code": code}
    return as_json({**told, "details": details}, code)


class FakeKubernetes(FakeApi):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = {TOKEN}
        self.namespaces = {"prod"}
        self.secrets: dict[str, dict[str, Any]] = {}
        self.managers: dict[str, dict[str, str]] = {}  # place → field → manager
        self.clock = 100
        self.meanwhile: list[Any] = []  # called before an apply: somebody is faster

    def no(self, request: HttpRequest) -> HttpAnswer:
        who = 'User "system:serviceaccount:prod:hf" cannot patch resource "secrets"'
        return status(403, "Forbidden", f"secrets is forbidden: {who}; {TOKEN} sent {request.body.decode()}")

    def put(self, place: str, secret: dict[str, Any], manager: str) -> dict[str, Any]:
        self.clock += 1
        metadata = {**secret.get("metadata", {}), "resourceVersion": str(self.clock)}
        self.secrets[place] = {**secret, "metadata": metadata}
        self.managers.setdefault(place, {}).update(dict.fromkeys(secret["data"], manager))
        return self.secrets[place]

    def answered(self, request: HttpRequest) -> HttpAnswer:
        if request.headers.get("authorization", "").removeprefix("Bearer ") not in self.tokens:
            return status(401, "Unauthorized", "Unauthorized")
        if request.method == "PATCH":
            return self._apply(request)
        if found := self.secrets.get(request.path):
            return as_json(found)
        return status(404, "NotFound", f'secrets "{request.path.rpartition("/")[2]}" not found', kind="secrets")

    def _apply(self, request: HttpRequest) -> HttpAnswer:
        for each in self.meanwhile:
            each()
        assert request.headers["content-type"] == "application/apply-patch+yaml"
        assert "last-applied" not in request.body.decode()
        place, wanted, manager = request.path, request.json(), request.query["fieldManager"]
        namespace = place.split("/")[4]
        if namespace not in self.namespaces:
            return status(404, "NotFound", f'namespaces "{namespace}" not found', kind="namespaces")
        found, version = self.secrets.get(place), wanted["metadata"].pop("resourceVersion", None)
        if version is not None and (found is None or found["metadata"]["resourceVersion"] != version):
            return status(409, "Conflict", "the object has been modified; please apply your changes again")
        if found is not None and found.get("type") != wanted.get("type"):
            return status(422, "Invalid", "type: Invalid value: field is immutable")
        others = {
            field: owner
            for field, owner in self.managers.get(place, {}).items()
            if owner != manager and found is not None and found["data"].get(field) != wanted["data"].get(field)
        }
        if others and request.query.get("force") != "true":
            said = {field: f'conflict with "{owner}" using v1' for field, owner in others.items()}
            causes = [
                {"reason": "FieldManagerConflict", "message": text, "field": f".data.{field}"}
                for field, text in said.items()
            ]
            return status(409, "Conflict", "Apply failed with 2 conflicts", causes=causes)
        return as_json(self.put(place, wanted, manager), 200 if found else 201)


class KubernetesBench(RestBench):
    secrets = (TOKEN,)
    api: FakeKubernetes

    async def deployer(self, rules: LocalRules | None = None, **changes: Any) -> Deployer:
        given = {"base_url": self.api.origin, "namespace": "prod", "secret": "www-tls", **changes}
        credentials = {} if "token_file" in changes else {"token": TOKEN}
        return KubernetesDeployer(KubernetesSettings(**given), self.parts(rules, **credentials))

    async def holds(self) -> tuple[str, Secret[bytes]]:
        data = {name: b64decode(text).decode() for name, text in self.api.secrets[PLACE]["data"].items()}
        return pair(data["tls.crt"], data["tls.key"])


def a_bench() -> AbstractAsyncContextManager[KubernetesBench]:
    return opened(FakeKubernetes(), KubernetesBench)
