"""A bench for `aws-acm`: ACM with one imported certificate, which checks signatures and the rules of an import."""

from __future__ import annotations

import hashlib
import hmac
import ssl
from base64 import b64decode
from contextlib import AbstractAsyncContextManager
from typing import Any

from cryptography import x509

from holdfast.deployers.aws_acm import AwsAcmDeployer, AwsAcmSettings
from holdfast.deployers.base import Deployer
from holdfast.secret import Secret
from tests.support.deployer_benches.rest import FakeApi, RestBench, as_json, opened, pair
from tests.support.deploying import a_bundle
from tests.support.http_server import HttpAnswer, HttpRequest

ARN = "arn:aws:acm:eu-central-1:123456789012:certificate/12345678-1234-1234-1234-123456789012"
CREDENTIALS = {
    "access_key_id": "AKIDEXAMPLE",
    "secret_access_key": "aws-secret-key-of-tests",
    "session_token": "aws-session",
}


def problem(code: str, message: str, status: int = 400) -> HttpAnswer:
    return as_json({"__type": code, "message": message}, status)


class FakeAcm(FakeApi):
    def __init__(self) -> None:
        super().__init__()
        before = a_bundle(90)  # imported by hand
        self.held = {"Certificate": before.leaf.decode(), "PrivateKey": before.key.reveal().decode()}
        self.tags: dict[str, str] = {}
        self.algorithm, self.type = "EC_prime256v1", "IMPORTED"
        self.throttles = self.loses_imports = False

    def writes(self, request: HttpRequest) -> bool:
        return request.headers["x-amz-target"].endswith(("ImportCertificate", "AddTagsToCertificate"))

    def no(self, request: HttpRequest) -> HttpAnswer:
        said = f"not authorized: {CREDENTIALS['secret_access_key']} {request.body.decode()}"
        return problem("AccessDeniedException", said)

    def answered(self, request: HttpRequest) -> HttpAnswer:
        if not self._is_signed(request):
            return problem("InvalidSignatureException", "The request signature we calculated does not match")
        if self.throttles:
            return problem("ThrottlingException", "Rate exceeded")
        asked = request.json()
        if asked.pop("CertificateArn") != ARN:
            return problem("com.amazonaws.acm#ResourceNotFoundException", "Could not find certificate")
        done: HttpAnswer = getattr(self, request.headers["x-amz-target"].removeprefix("CertificateManager."))(asked)
        return done

    def _is_signed(self, request: HttpRequest) -> bool:
        """As the documentation of Signature Version 4 has it, step by step."""
        fields = dict(each.split("=", 1) for each in request.headers["authorization"].split(" ", 1)[1].split(", "))
        _, date, region, service, end = fields["Credential"].split("/")
        names = fields["SignedHeaders"].split(";")
        assert {"host", "x-amz-date", "x-amz-target", "x-amz-security-token"} <= set(names)
        canonical = "POST\n/\n\n" + "".join(f"{each}:{request.headers[each]}\n" for each in names)
        canonical += f"\n{fields['SignedHeaders']}\n{hashlib.sha256(request.body).hexdigest()}"
        scope = f"{date}/{region}/{service}/{end}"
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        text = f"AWS4-HMAC-SHA256\n{request.headers['x-amz-date']}\n{scope}\n{digest}"
        key = f"AWS4{CREDENTIALS['secret_access_key']}".encode()
        for each in (date, "eu-central-1", "acm", "aws4_request", text):
            key = hmac.new(key, each.encode(), hashlib.sha256).digest()
        return key.hex() == fields["Signature"]

    def DescribeCertificate(self, asked: dict[str, Any]) -> HttpAnswer:
        leaf = x509.load_pem_x509_certificate(self.held["Certificate"].encode())
        serial = leaf.serial_number.to_bytes(16, "big").hex(":")
        shown = {"Serial": serial, "KeyAlgorithm": self.algorithm, "Type": self.type, "DomainName": "www.example.com"}
        return as_json({"Certificate": shown})

    def ImportCertificate(self, asked: dict[str, Any]) -> HttpAnswer:
        if "Tags" in asked:
            return problem("InvalidParameterException", "You cannot apply tags when reimporting a certificate")
        given = {name: b64decode(text).decode() for name, text in asked.items()}
        ssl.PEM_cert_to_DER_cert(given["CertificateChain"])
        assert given["Certificate"].count("BEGIN") == 1
        if not self.loses_imports:
            self.held = given
        return as_json({"CertificateArn": ARN})

    def ListTagsForCertificate(self, asked: dict[str, Any]) -> HttpAnswer:
        return as_json({"Tags": [{"Key": key, "Value": value} for key, value in self.tags.items()]})

    def AddTagsToCertificate(self, asked: dict[str, Any]) -> HttpAnswer:
        self.tags |= {each["Key"]: each["Value"] for each in asked["Tags"]}
        return HttpAnswer()


class AwsAcmBench(RestBench):
    secrets = (CREDENTIALS["secret_access_key"], CREDENTIALS["session_token"])
    api: FakeAcm

    async def deployer(self, **changes: str) -> Deployer:
        settings = AwsAcmSettings(arn=ARN, base_url=self.api.origin)
        return AwsAcmDeployer(settings, self.parts(**{**CREDENTIALS, **changes}))

    async def holds(self) -> tuple[str, Secret[bytes]]:
        return pair(self.api.held["Certificate"], self.api.held["PrivateKey"])


def a_bench() -> AbstractAsyncContextManager[AwsAcmBench]:
    return opened(FakeAcm(), AwsAcmBench)
