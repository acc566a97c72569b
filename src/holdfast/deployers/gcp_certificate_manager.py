"""Google Cloud's Certificate Manager: a self-managed certificate is replaced, and its maps and entries stay.

A change is an operation that goes on after the answer. One that is not done yet is looked for at the next attempt,
which finds the new certificate in place.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from urllib.parse import urlencode

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from pydantic import Field

from holdfast.core import base64url
from holdfast.core.kind import DESTINATIONS, Credential, Kind, Trait
from holdfast.core.reasons import Reason
from holdfast.core.target import DeployLimits
from holdfast.deployers.base import Bundle, Written, later, refused
from holdfast.deployers.held import Held, nothing_before, texts_of
from holdfast.deployers.kind import DeployerKind, DeployerParts
from holdfast.deployers.rest import Remote, read_json, table
from holdfast.kind_settings import Address, Flag, KindSettings, Roots, problem_with, whole
from holdfast.pki import keys
from holdfast.pki.refused import PkiRefused
from holdfast.ports import Response
from holdfast.secret import Secret

_SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
_GRANT: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"  # RFC 7523
_FORM: Final = {"Content-Type": "application/x-www-form-urlencoded"}
_TOKEN_FOR: Final = 600  # seconds
_NAME: Final = "[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?"
_DENIED: Final = {
    403: "The service account needs the role certificatemanager.editor, and the API must be enabled in the project.",
    404: "Check the settings project and location.",
}


class GcpSettings(KindSettings):
    project: str = Field(pattern=whole("[a-z][a-z0-9-]{4,28}[a-z0-9]"), description="The id of the project.")
    location: str = Field(default="global", pattern=whole("[a-z0-9-]{2,40}"), description="global, or a region.")
    certificate: str = Field(pattern=whole(_NAME), description="The id of the certificate.")
    base_url: Address = Field(default="https://certificatemanager.googleapis.com", description="Another address.")
    roots: Roots = Field(default="", description="Trusted roots for its TLS certificate, in PEM.")
    take_over: Flag = Field(default=False, description="Replace a certificate that was not written from here.")


@dataclass(slots=True)
class GcpDeployer:
    settings: GcpSettings
    parts: DeployerParts
    _token: Secret[str] | None = None

    async def write(self, bundle: Bundle) -> Written:
        return await self._replaced(bundle, None)

    async def restore(self, bundle: Bundle, previous: Bundle | None) -> None:
        if previous is None:
            raise nothing_before(self.parts.target, "Certificate Manager")
        await self._replaced(previous, bundle)

    async def probe(self) -> str:
        there = "It is there." if await self._found() else "There is no such certificate yet."
        return f"Certificate Manager answers for {self.settings.certificate}. {there}"

    async def close(self) -> None:
        """The token is forgotten."""
        self._token = None

    # ── The certificate ──

    async def _replaced(self, bundle: Bundle, instead_of: Bundle | None) -> Written:
        found = await self._found()
        held = None if found is None else _held(found)
        if held is not None:
            held.yields(self.parts.target, bundle, instead_of)
        elif found is not None and not self.settings.take_over:
            why = f"{self.settings.certificate} was not written from here. Set take_over to true to replace it"
            raise refused(f"Target {self.parts.target}: {why}.", Reason.TARGET_TAKEN)
        same = found is not None and _pem(found).split() == bundle.fullchain.decode().split()
        if same and held is not None and held.number == bundle.number:
            return Written(changed=False)
        await self._put(bundle, new=found is None)
        return Written(changed=not same)

    async def _found(self) -> dict[str, Any] | None:
        response = await self._ask("GET", self._path)
        if response.status == 404 and _status(response) == "NOT_FOUND":
            return None
        found = self._api.answer(response, _DENIED)
        if "managed" in found:
            why = f"{self.settings.certificate} is one that Google renews by itself; name another"
            raise refused(f"Target {self.parts.target}: {why}.", Reason.TARGET_TAKEN)
        return found

    async def _put(self, bundle: Bundle, *, new: bool) -> None:
        pair = {"pemCertificate": bundle.fullchain.decode(), "pemPrivateKey": bundle.key.reveal().decode()}
        body = {"selfManaged": pair, "description": json.dumps({"holdfast": texts_of(bundle)})}
        if new:
            parent, _, name = self._path.rpartition("/")
            response = await self._ask("POST", f"{parent}?certificateId={name}", body)
        else:
            response = await self._ask("PATCH", f"{self._path}?updateMask=selfManaged,description", body)
        if response.status == 409:
            raise self._api.passing(response, Reason.TARGET_BUSY)  # another change is under way
        operation = self._api.answer(response, _DENIED)
        if not operation.get("done"):
            asked = await self._ask("GET", f"/v1/{operation.get('name')!s:.300}")
            operation = self._api.answer(asked, _DENIED)
        self._ended(operation)

    def _ended(self, operation: dict[str, Any]) -> None:
        if error := table(operation.get("error")):
            why = f"Certificate Manager refused it: {error.get('message')!s:.300}"
            raise refused(f"Target {self.parts.target}: {why}")
        if not operation.get("done"):
            raise later(f"Target {self.parts.target}: Certificate Manager is still at it.", Reason.TARGET_BUSY)

    @property
    def _path(self) -> str:
        place = f"projects/{self.settings.project}/locations/{self.settings.location}"
        return f"/v1/{place}/certificates/{self.settings.certificate}"

    # ── The API ──

    async def _ask(self, method: str, path: str, body: Any = b"") -> Response:
        token = await self._logged_in()
        return await self._api.ask(method, path, body=body, headers={"Authorization": f"Bearer {token.reveal()}"})

    async def _logged_in(self) -> Secret[str]:
        if self._token is None:
            account = _account(self.parts)
            login = self._remote("Google's log-in", account.token_uri)
            asked = {"grant_type": _GRANT, "assertion": account.assertion(int(self.parts.clock.now().timestamp()))}
            response = await login.ask("POST", "", body=urlencode(asked).encode(), headers=_FORM)
            advice = "Check the credential service_account, and the clock of this machine."
            given = login.answer(response, {400: advice, 401: advice}).get("access_token")
            if not isinstance(given, str) or not given:
                raise refused(f"Target {self.parts.target}: Google's log-in gave no token.")
            self._token = Secret(given)
        return self._token

    @property
    def _api(self) -> Remote:
        return self._remote("Certificate Manager", self.settings.base_url)

    def _remote(self, name: str, base: str) -> Remote:
        known = () if self._token is None else (self._token,)
        return Remote(parts=self.parts, name=name, base=base, roots=self.settings.roots, secrets=known)


# ── The service account ──


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAccount:
    email: str
    token_uri: str
    key: rsa.RSAPrivateKey
    key_id: str

    def assertion(self, now: int) -> str:
        """A signed statement that is good for one token (RFC 7523)."""
        claims = {"iss": self.email, "scope": _SCOPE, "aud": self.token_uri, "iat": now, "exp": now + _TOKEN_FOR}
        head = {"alg": "RS256", "typ": "JWT", "kid": self.key_id}
        text = ".".join(base64url.encode(json.dumps(each).encode()) for each in (head, claims))
        signature = self.key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{text}.{base64url.encode(signature)}"


def _account(parts: DeployerParts) -> ServiceAccount:
    """The file that Google gives out for a service account."""
    unfit = refused(f"Target {parts.target}: the credential service_account is no JSON key of a service account.")
    try:
        found = json.loads(parts.credentials["service_account"].reveal())
        key = keys.from_pem(Secret(found["private_key"].encode()))
        email, uri = str(found["client_email"]), str(found["token_uri"])
    except (ValueError, KeyError, TypeError, AttributeError, PkiRefused):
        raise unfit from None
    if not isinstance(key, rsa.RSAPrivateKey) or problem_with(uri):
        raise unfit
    return ServiceAccount(email=email, token_uri=uri, key=key, key_id=str(found.get("private_key_id", "")))


def _held(found: dict[str, Any]) -> Held | None:
    try:
        texts = json.loads(str(found.get("description", "")))
    except ValueError:
        return None
    return Held.read(table(table(texts).get("holdfast")))


def _pem(found: dict[str, Any]) -> str:
    return str(found.get("pemCertificate") or table(found.get("selfManaged")).get("pemCertificate") or "")


def _status(response: Response) -> str:
    return str(table(table(read_json(response)).get("error")).get("status"))


GCP_CERTIFICATE_MANAGER: Final[DeployerKind[GcpSettings]] = Kind(
    name="gcp-certificate-manager",
    summary="A self-managed certificate of Google Cloud's Certificate Manager.",
    settings=GcpSettings,
    credentials=(Credential(name="service_account", summary="The JSON key of a service account."),),
    limits=DeployLimits(certificates=1, verify_for=timedelta(minutes=30)),  # it takes its time to reach all front ends
    traits=frozenset({Trait.ATOMIC}),
    destinations=DESTINATIONS | {"project"},
    make=GcpDeployer,
)
