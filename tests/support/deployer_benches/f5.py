"""A bench for `f5`: a BIG-IP with one client SSL profile, uploads, crypto objects and transactions."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from holdfast.deployers.base import Deployer
from holdfast.deployers.f5 import UPLOADS, F5Deployer, F5Settings
from holdfast.secret import Secret
from tests.support.deployer_benches.rest import FakeApi, RestBench, as_json, opened, pair
from tests.support.deploying import a_bundle
from tests.support.http_server import HttpAnswer, HttpRequest

PASSWORD = "f5-password-of-tests"
PROFILE = "/mgmt/tm/ltm/profile/client-ssl/~Common~www"
CRYPTO = "/mgmt/tm/sys/crypto/"
FILES = "/mgmt/tm/sys/file/ssl-"


def problem(code: int, message: str) -> HttpAnswer:
    return as_json({"code": code, "message": message, "errorStack": [], "apiError": 3}, code)


class FakeBigIp(FakeApi):
    def __init__(self) -> None:
        super().__init__()
        before = a_bundle(90)
        self.tokens = set[str]()
        self.uploads: dict[str, bytes] = {}
        self.objects = {
            "cert": {"/Common/default.crt": before.leaf},
            "key": {"/Common/default.key": before.key.reveal()},
        }
        self.pair: list[dict[str, str]] = [{"name": "a", "cert": "/Common/default.crt", "key": "/Common/default.key"}]
        self.saved = self.pair
        self.transactions: dict[int, list[Any]] = {}
        self.standby = self.slow = False
        self.synced: list[str] = []

    def writes(self, request: HttpRequest) -> bool:
        return request.path.startswith(CRYPTO)

    def no(self, request: HttpRequest) -> HttpAnswer:
        key = next(iter(self.uploads.values())).decode()
        return problem(400, f"01070712:3: unable to install {key} of {PASSWORD} {request.headers['x-f5-auth-token']}")

    def answered(self, request: HttpRequest) -> HttpAnswer:
        if request.path == "/mgmt/shared/authn/login":
            return self._login(request.json())
        if request.headers.get("x-f5-auth-token") not in self.tokens:
            return problem(401, "X-F5-Auth-Token does not exist.")
        match request.method, request.path:
            case "DELETE", path if path.startswith("/mgmt/shared/authz/tokens/"):
                self.tokens.discard(path.rpartition("/")[2])
                return as_json({})
            case "GET", "/mgmt/tm/cm/failover-status":
                said = "STANDBY" if self.standby else "ACTIVE"
                return as_json({"entries": {"0": {"nestedStats": {"entries": {"status": {"description": said}}}}}})
            case "POST", path if path.startswith("/mgmt/shared/file-transfer/uploads/"):
                return self._uploaded(path.rpartition("/")[2], request)
            case "POST", path if path.startswith(CRYPTO):
                return self._installed(path.removeprefix(CRYPTO), request.json())
            case "POST", "/mgmt/tm/util/unix-rm":
                self.uploads.pop(request.json()["utilCmdArgs"], None)
                return as_json({})
            case "POST", "/mgmt/tm/sys/config":
                self.saved = self.pair
                return as_json({})
            case "POST", "/mgmt/tm/cm":
                self.synced.append(request.json()["utilCmdArgs"])
                return as_json({})
            case _, path if path.startswith("/mgmt/tm/transaction"):
                return self._transaction(request)
            case _, path if path.startswith(FILES):
                return self._files(request)
            case _, path if path == PROFILE:
                return self._profile(request)
        return problem(404, f"Public URI path not registered: {request.path}")

    def _login(self, asked: dict[str, str]) -> HttpAnswer:
        if (asked["username"], asked["password"], asked["loginProviderName"]) != ("admin", PASSWORD, "tmos"):
            return problem(401, "Authentication failed.")
        if len(self.tokens) >= 100:
            return problem(400, "user admin has reached maximum active login tokens")
        token = f"F5TOKEN{len(self.tokens):025}"
        self.tokens.add(token)
        return as_json({"token": {"token": token, "timeout": 1200}})

    def _uploaded(self, name: str, request: HttpRequest) -> HttpAnswer:
        span, _, total = request.headers["content-range"].partition("/")
        first, _, last = span.partition("-")
        assert int(first) == 0
        assert int(last) + 1 == int(total) == len(request.body)
        self.uploads[f"{UPLOADS}/{name}"] = request.body
        return as_json({"totalByteCount": len(request.body)})

    def _installed(self, kind: str, asked: dict[str, str]) -> HttpAnswer:
        content = self.uploads.get(asked["from-local-file"])
        if content is None:
            return problem(400, "01070712:3: File not found")
        self.objects[kind][asked["name"]] = content
        return as_json(asked)

    def _transaction(self, request: HttpRequest) -> HttpAnswer:
        if request.method == "POST":
            number = 1_700_000_000 + len(self.transactions)
            self.transactions[number] = []
            return as_json({"transId": number, "state": "STARTED", "timeoutSeconds": 120})
        number = int(request.path.rpartition("/")[2])
        if request.method == "DELETE":
            del self.transactions[number]
            return as_json({})
        if request.method == "PATCH":
            assert request.json() == {"state": "VALIDATING"}
            for pairs in self.transactions[number]:
                if why := self._wrong(pairs[0]):
                    return as_json({"transId": number, "state": "FAILED", "failureReason": why})
                if not self.slow:
                    self.pair = pairs
        return as_json({"transId": number, "state": "VALIDATING" if self.slow else "COMPLETED"})

    def _wrong(self, pair: dict[str, str]) -> str:
        cert, key = self.objects["cert"].get(pair["cert"]), self.objects["key"].get(pair["key"])
        if cert is None or key is None or ("chain" in pair and pair["chain"] not in self.objects["cert"]):
            return f"01070734:3: Configuration error: {pair} was not found"
        public = x509.load_pem_x509_certificate(cert).public_key()
        fits = serialization.load_pem_private_key(key, None).public_key() == public
        return "" if fits else "01070313:3: key and certificate do not match"

    def _files(self, request: HttpRequest) -> HttpAnswer:
        kind, _, name = request.path.removeprefix(FILES).partition("/")
        if request.method == "GET":
            return as_json({"items": [{"name": each.rpartition("/")[2]} for each in self.objects[kind]]})
        path = name.replace("~", "/")
        if path in self.pair[0].values():
            return problem(400, f"01070712:3: {path} is referenced by one or more profiles")
        if self.objects[kind].pop(path, None) is None:
            return problem(404, "was not found")
        return HttpAnswer()

    def _profile(self, request: HttpRequest) -> HttpAnswer:
        if request.method == "PATCH":
            pairs = request.json()["certKeyChain"]
            number = request.headers.get("x-f5-rest-coordination-id")
            if number is None:
                self.pair = pairs  # at once, and unchecked
            else:
                self.transactions[int(number)].append(pairs)
        return as_json({"name": "www", "certKeyChain": self.pair})


class F5Bench(RestBench):
    secrets = (PASSWORD, "F5TOKEN")
    api: FakeBigIp

    async def deployer(self, password: str = PASSWORD, **changes: Any) -> Deployer:
        settings = F5Settings(**{"base_url": self.api.origin, "user": "admin", "profile": "www", **changes})
        return F5Deployer(settings, self.parts(password=password))

    async def holds(self) -> tuple[str, Secret[bytes]]:
        now = self.api.saved[0]
        return pair(self.api.objects["cert"][now["cert"]].decode(), self.api.objects["key"][now["key"]].decode())


def a_bench() -> AbstractAsyncContextManager[F5Bench]:
    return opened(FakeBigIp(), F5Bench)
