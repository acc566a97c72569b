"""Azure Key Vault: each import is a new version of a certificate object, which App Gateway and others pick up.

There is no way to make an older version current again: a rollback imports the previous bundle once more.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from urllib.parse import urlencode

from pydantic import Field

from holdfast.core.kind import DESTINATIONS, Credential, Kind, Trait
from holdfast.core.reasons import Reason
from holdfast.core.target import DeployLimits
from holdfast.deployers.base import Bundle, Written, refused
from holdfast.deployers.held import Held, nothing_before, texts_of
from holdfast.deployers.kind import DeployerKind, DeployerParts
from holdfast.deployers.rest import Remote, RestTargetSettings, read_json, table
from holdfast.kind_settings import Address, Flag, whole
from holdfast.ports import Response
from holdfast.secret import Secret

VERSION: Final = "7.4"  # of the API
_TAG: Final = "holdfast-"
_FORM: Final = {"Content-Type": "application/x-www-form-urlencoded"}
_DENIED: Final = {
    401: "Check the settings base_url and scope: the vault takes tokens of its own cloud only.",
    403: "The application needs the role Key Vault Certificates Officer, or certificates/get and certificates/import; "
    "a firewall of the vault answers so, too.",
}


class AzureKeyVaultSettings(RestTargetSettings):
    base_url: Address = Field(description="The address of the vault, such as https://NAME.vault.azure.net.")
    certificate: str = Field(pattern=whole("[0-9A-Za-z-]{1,127}"), description="The name of the certificate object.")
    tenant: str = Field(pattern=whole("[0-9A-Za-z.-]{1,100}"), description="The id of the tenant (directory).")
    client_id: str = Field(pattern=whole("[0-9A-Za-z-]{1,100}"), description="The id of the application.")
    login_url: Address = Field(
        default="https://login.microsoftonline.com", description="Where tokens come from; other clouds have others."
    )
    scope: str = Field(
        default="https://vault.azure.net/.default",
        pattern=whole(r"https://[a-z0-9.-]+/\.default"),
        description="What tokens are for; other clouds have others.",
    )
    take_over: Flag = Field(default=False, description="Import over a certificate that was not imported from here.")


@dataclass(slots=True)
class AzureKeyVaultDeployer:
    settings: AzureKeyVaultSettings
    parts: DeployerParts
    _token: Secret[str] | None = None

    async def write(self, bundle: Bundle) -> Written:
        return await self._imported(bundle, None)

    async def restore(self, bundle: Bundle, previous: Bundle | None) -> None:
        if previous is None:
            raise nothing_before(self.parts.target, "Key Vault")
        await self._imported(previous, bundle)

    async def probe(self) -> str:
        there = "It is there." if await self._found() else "There is no such certificate yet."
        return f"Key Vault answers for {self.settings.certificate}. {there}"

    async def close(self) -> None:
        """The token is forgotten."""
        self._token = None

    # ── The certificate ──

    async def _imported(self, bundle: Bundle, instead_of: Bundle | None) -> Written:
        found = await self._found()
        held = None if found is None else _held(found)
        if held is not None:
            held.yields(self.parts.target, bundle, instead_of)
        elif found is not None and not self.settings.take_over:
            why = f"{self.settings.certificate} was not imported from here. Set take_over to true to import over it"
            raise refused(f"Target {self.parts.target}: {why}.", Reason.TARGET_TAKEN)
        same = found is not None and _leaf(found.get("cer")) == bundle.leaf.strip()
        if same and held is not None and held.number == bundle.number:
            return Written(changed=False)
        await self._import(bundle)
        return Written(changed=not same)

    async def _found(self) -> dict[str, Any] | None:
        response = await self._ask("GET", "")
        if response.status == 404 and _code(response) == "CertificateNotFound":
            return None
        return self._vault.answer(response, {**_DENIED, 404: "Check the setting base_url."})

    async def _import(self, bundle: Bundle) -> None:
        body = {
            "value": bundle.combined.reveal().decode(),
            "policy": {"secret_props": {"contentType": "application/x-pem-file"}},
            "preserveCertOrder": True,
            "tags": {f"{_TAG}{name}": text[:256] for name, text in texts_of(bundle).items()},
        }
        response = await self._ask("POST", "/import", body)
        if response.status == 409:
            advice = f"A deleted {self.settings.certificate} is in the way: recover it, or purge it."
            raise self._vault.refusal(response, advice, Reason.TARGET_TAKEN)
        found = self._vault.answer(response, _DENIED)
        if _leaf(found.get("cer")) != bundle.leaf.strip():
            raise refused(f"Target {self.parts.target}: Key Vault holds another certificate than was imported.")

    # ── The vault ──

    async def _ask(self, method: str, path: str, body: Any = b"") -> Response:
        token = await self._logged_in()
        where = f"/certificates/{self.settings.certificate}{path}?api-version={VERSION}"
        return await self._vault.ask(method, where, body=body, headers={"Authorization": f"Bearer {token.reveal()}"})

    async def _logged_in(self) -> Secret[str]:
        """A token for this one deployment (RFC 6749 §4.4)."""
        if self._token is None:
            asked = {
                "grant_type": "client_credentials",
                "client_id": self.settings.client_id,
                "client_secret": self.parts.credentials["client_secret"].reveal(),
                "scope": self.settings.scope,
            }
            login = self._remote("Microsoft's log-in", self.settings.login_url)
            path = f"/{self.settings.tenant}/oauth2/v2.0/token"
            response = await login.ask("POST", path, body=urlencode(asked).encode(), headers=_FORM)
            advice = "Check the settings tenant, client_id and scope, and the credential client_secret."
            given = login.answer(response, {400: advice, 401: advice}).get("access_token")
            if not isinstance(given, str) or not given:
                raise refused(f"Target {self.parts.target}: Microsoft's log-in gave no token.")
            self._token = Secret(given)
        return self._token

    @property
    def _vault(self) -> Remote:
        return self._remote("Key Vault", self.settings.base_url)

    def _remote(self, name: str, base: str) -> Remote:
        known = (*self.parts.credentials.values(), *([] if self._token is None else [self._token]))
        return Remote(parts=self.parts, name=name, base=base, roots=self.settings.roots, secrets=known)


def _held(found: dict[str, Any]) -> Held | None:
    tags = table(found.get("tags")).items()
    return Held.read({name.removeprefix(_TAG): text for name, text in tags if name.startswith(_TAG)})


def _leaf(cer: object) -> bytes:
    """As PEM; the API shows it as DER in base64."""
    text = cer if isinstance(cer, str) else ""
    try:
        lines = b64encode(b64decode(text)).decode()
    except ValueError:
        return b""
    rows = "\n".join(lines[at : at + 64] for at in range(0, len(lines), 64))
    return f"-----BEGIN CERTIFICATE-----\n{rows}\n-----END CERTIFICATE-----".encode()


def _code(response: Response) -> str:
    return str(table(table(read_json(response)).get("error")).get("code"))


AZURE_KEYVAULT: Final[DeployerKind[AzureKeyVaultSettings]] = Kind(
    name="azure-keyvault",
    summary="A certificate of Azure Key Vault: each deployment is a new version of it.",
    settings=AzureKeyVaultSettings,
    credentials=(Credential(name="client_secret", summary="The secret of the application."),),
    limits=DeployLimits(certificates=1, verify_for=timedelta(hours=24)),  # App Service looks once a day
    traits=frozenset({Trait.ATOMIC}),
    destinations=DESTINATIONS | {"login_url", "tenant", "client_id", "scope"},
    make=AzureKeyVaultDeployer,
)
