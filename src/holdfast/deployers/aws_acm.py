"""AWS Certificate Manager: a certificate is imported again under its ARN, so all that uses it goes on with the new one.

ACM shows no key and keeps nothing from before. The number is a tag, set before an import: if we die in between, an
older bundle is refused all the same.
"""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from pydantic import Field

from holdfast.core.kind import DESTINATIONS, Credential, Kind, Trait
from holdfast.core.reasons import Reason
from holdfast.core.target import DeployLimits
from holdfast.deployers.aws_signature import AwsSigner
from holdfast.deployers.base import Bundle, Written, later, refused
from holdfast.deployers.held import Held, nothing_before, texts_of
from holdfast.deployers.kind import DeployerKind, DeployerParts
from holdfast.deployers.rest import Remote, read_json, table
from holdfast.kind_settings import Address, KindSettings, Roots, whole

_TAG: Final = "holdfast:"
_PASSES: Final = frozenset({"ThrottlingException", "RequestInProgressException", "ConflictException"})
_ADVICE: Final = {
    "AccessDeniedException": "Its policy must allow acm:DescribeCertificate, acm:ImportCertificate, "
    "acm:ListTagsForCertificate and acm:AddTagsToCertificate on the ARN.",
    "ExpiredTokenException": "Set the credentials anew.",
    "UnrecognizedClientException": "Check the credentials access_key_id, secret_access_key and session_token.",
    "InvalidSignatureException": "Check the credential secret_access_key, and the clock of this machine.",
    "ResourceNotFoundException": "Check the setting arn: the certificate is imported once by hand.",
    "LimitExceededException": "ACM allows so many imports a year and region; ask AWS for more.",
}


class AwsAcmSettings(KindSettings):
    arn: str = Field(
        pattern=whole(r"arn:aws[a-z-]*:acm:[a-z0-9-]+:[0-9]{12}:certificate/[0-9A-Za-z-]+"),
        description="The ARN of an imported certificate; its region is where it is imported.",
    )
    base_url: Address = Field(default="", description="Another address of ACM, such as a VPC endpoint.")
    roots: Roots = Field(default="", description="Trusted roots for its TLS certificate, in PEM.")

    @property
    def region(self) -> str:
        return self.arn.split(":")[3]

    @property
    def address(self) -> str:
        suffix = ".cn" if self.arn.startswith("arn:aws-cn:") else ""
        return self.base_url or f"https://acm.{self.region}.amazonaws.com{suffix}"


@dataclass(frozen=True, slots=True)
class AwsAcmDeployer:
    settings: AwsAcmSettings
    parts: DeployerParts

    async def write(self, bundle: Bundle) -> Written:
        found, held = await self._described(), await self._held(bundle)
        if held is not None:
            held.yields(self.parts.target, bundle)
        if _serial(found.get("Serial")) == int(bundle.serial, 16):
            await self._tag(bundle, held)
            return Written(changed=False)
        self._check_fits(found, bundle)
        await self._tag(bundle, held)
        await self._import(bundle)
        return Written(changed=True)

    async def restore(self, bundle: Bundle, previous: Bundle | None) -> None:
        """The tag goes last: until then it allows this to be repeated."""
        if previous is None:
            raise nothing_before(self.parts.target, "ACM")
        found, held = await self._described(), await self._held(bundle)
        if held is not None:
            held.yields(self.parts.target, previous, bundle)
        if _serial(found.get("Serial")) != int(previous.serial, 16):
            self._check_fits(found, previous)
            await self._import(previous)
        await self._tag(previous, held)

    async def probe(self) -> str:
        found = await self._described()
        return f"ACM holds {found.get('DomainName')!s:.100} under this ARN, with a key {found.get('KeyAlgorithm')}."

    async def close(self) -> None:
        """Nothing stays open."""

    # ── Calls ──

    async def _described(self) -> dict[str, Any]:
        found = table((await self._call("DescribeCertificate", {})).get("Certificate"))
        if found.get("Type") != "IMPORTED":
            why = f"the certificate is {str(found.get('Type'))!r:.40}, and ACM replaces imported ones only"
            raise refused(f"Target {self.parts.target}: {why}. Check the setting arn.", Reason.TARGET_TAKEN)
        return found

    def _check_fits(self, found: dict[str, Any], bundle: Bundle) -> None:
        before, now = str(found.get("KeyAlgorithm")).replace("-", "_"), _algorithm(bundle)
        if before != now:
            why = f"the certificate at ACM has a key {before:.40}, the new one {now}; ACM wants the same type and size"
            advice = "Give the certificate that type of key, or import it under another ARN"
            raise refused(f"Target {self.parts.target}: {why}. {advice}.", Reason.BUNDLE_UNFIT)

    async def _held(self, bundle: Bundle) -> Held | None:
        tags = (await self._call("ListTagsForCertificate", {})).get("Tags")
        pairs = [table(each) for each in tags] if isinstance(tags, list) else []
        texts = {str(each.get("Key")).removeprefix(_TAG): each.get("Value") for each in pairs}
        same = texts.get("certificate") == _tagged(bundle)
        return Held.read(texts | ({"certificate": bundle.certificate} if same else {}))

    async def _tag(self, bundle: Bundle, held: Held | None) -> None:
        if held is not None and held.number == bundle.number:
            return
        texts = {**texts_of(bundle), "certificate": _tagged(bundle)}
        await self._call(
            "AddTagsToCertificate", {"Tags": [{"Key": f"{_TAG}{k}", "Value": v} for k, v in texts.items()]}
        )

    async def _import(self, bundle: Bundle) -> None:
        pem = {"Certificate": bundle.leaf, "PrivateKey": bundle.key.reveal(), "CertificateChain": bundle.chain}
        await self._call("ImportCertificate", {name: b64encode(text).decode() for name, text in pem.items() if text})
        if _serial((await self._described()).get("Serial")) != int(bundle.serial, 16):
            raise later(f"Target {self.parts.target}: ACM does not show the new certificate yet.", Reason.TARGET_BUSY)

    async def _call(self, action: str, asked: dict[str, Any]) -> dict[str, Any]:
        remote = self._remote()
        body = json.dumps({"CertificateArn": self.settings.arn, **asked}).encode()
        headers = {
            "host": urlsplit(self.settings.address).netloc,
            "content-type": "application/x-amz-json-1.1",
            "x-amz-target": f"CertificateManager.{action}",
        }
        signed = self._signer().signed(headers, body, self.parts.clock.now())
        response = await remote.ask("POST", "/", body=body, headers=signed)
        said = table(read_json(response))
        code = str(said.get("__type", "")).rpartition("#")[2]
        if response.status >= 400 and code in _PASSES:
            raise remote.passing(response, Reason.TARGET_BUSY)
        if response.status >= 400:
            raise remote.refusal(response, _ADVICE.get(code, ""))
        return said

    def _remote(self) -> Remote:
        secrets = tuple(self.parts.credentials.values())
        return Remote(
            parts=self.parts, name="ACM", base=self.settings.address, roots=self.settings.roots, secrets=secrets
        )  # fmt: skip

    def _signer(self) -> AwsSigner:
        given = self.parts.credentials
        return AwsSigner(
            access_key_id=given["access_key_id"].reveal(),
            secret_access_key=given["secret_access_key"],
            session_token=given.get("session_token"),
            region=self.settings.region,
            service="acm",
        )


def _tagged(bundle: Bundle) -> str:
    """Its name, as the value of a tag, which has no *."""
    return bundle.certificate.replace("*", "_")


def _serial(text: object) -> int | None:
    """ACM writes it as aa:bb:cc."""
    try:
        return int(str(text).replace(":", ""), 16)
    except ValueError:
        return None


def _algorithm(bundle: Bundle) -> str:
    key = x509.load_pem_x509_certificate(bundle.leaf).public_key()
    if isinstance(key, ec.EllipticCurvePublicKey):
        return f"EC_{'prime256v1' if key.curve.name == 'secp256r1' else key.curve.name}"
    return f"RSA_{key.key_size}" if isinstance(key, rsa.RSAPublicKey) else "that ACM does not know"


AWS_ACM: Final[DeployerKind[AwsAcmSettings]] = Kind(
    name="aws-acm",
    summary="AWS Certificate Manager: imported again under its ARN, for load balancers, CloudFront and API Gateway.",
    settings=AwsAcmSettings,
    credentials=(
        Credential(name="access_key_id", summary="The id of an access key."),
        Credential(name="secret_access_key", summary="Its secret."),
        Credential(name="session_token", summary="The token of temporary credentials.", required=False),
    ),
    limits=DeployLimits(verify_for=timedelta(minutes=15), certificates=1),
    traits=frozenset({Trait.ATOMIC}),
    make=AwsAcmDeployer,
    destinations=DESTINATIONS | {"arn"},
)
