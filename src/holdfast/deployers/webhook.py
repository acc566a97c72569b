"""A signed webhook, after Standard Webhooks: the receiver is told of a bundle, and fetches it once.

The message holds no key. It holds an address that hands the bundle over to the first who asks, within 15 minutes. A
receiver answers 200 when the bundle is in place; after 202 it is told again until then.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, timedelta
from typing import Any, Final, Literal

from pydantic import Field

from holdfast.core.kind import Credential, Kind
from holdfast.core.reasons import Reason
from holdfast.core.target import DeployLimits
from holdfast.deployers.base import Bundle, Written, refused
from holdfast.deployers.held import nothing_before
from holdfast.deployers.kind import DeployerKind, DeployerParts
from holdfast.deployers.rest import Remote, read_json, table
from holdfast.kind_settings import Address, KindSettings, Roots
from holdfast.ports import Response
from holdfast.secret import Secret
from holdfast.webhook_signature import signed, signing_key

FETCHED_WITHIN: Final = timedelta(minutes=15)
_DENIED: Final = "Check the credential secret, and that of the receiver."


class WebhookSettings(KindSettings):
    url: Address = Field(description="The https address that messages are posted to.")
    roots: Roots = Field(default="", description="Trusted roots for its TLS certificate, in PEM.")


@dataclass(frozen=True, slots=True)
class WebhookDeployer:
    settings: WebhookSettings
    parts: DeployerParts

    async def write(self, bundle: Bundle) -> Written:
        said = await self._told("deploy", bundle, bundle)
        return Written(changed=said.get("changed") is not False, atomic=False)

    async def restore(self, bundle: Bundle, previous: Bundle | None) -> None:
        if previous is None:
            raise nothing_before(self.parts.target, "the receiver")
        await self._told("restore", previous, bundle)

    async def probe(self) -> str:
        await self._post(f"test-{self.parts.random.token(8).hex()}", {"type": "target.test", "data": {}})
        return f"{self.settings.url} takes signed messages."

    async def close(self) -> None:
        """Nothing stays open."""

    async def _told(self, why: Literal["deploy", "restore"], bundle: Bundle, instead_of: Bundle) -> dict[str, Any]:
        address = await self.parts.offers.once(self.parts.target, bundle, FETCHED_WITHIN)
        data = {**self._data(bundle), "replaces_up_to": instead_of.number, "fetch": address.reveal()}
        return await self._post(self._message(why, bundle), {"type": f"certificate.{why}", "data": data}, address)

    def _message(self, why: str, bundle: Bundle) -> str:
        """The same for the same wish, however often it is told."""
        about = f"{self.parts.target}\n{bundle.certificate}\n{bundle.number}\n{bundle.content_id}\n{why}"
        return f"msg_{hashlib.sha256(about.encode()).hexdigest()[:32]}"

    def _data(self, bundle: Bundle) -> dict[str, Any]:
        return {
            "target": self.parts.target,
            "certificate": bundle.certificate,
            "names": list(bundle.names),
            "number": bundle.number,
            "serial": bundle.serial,
            "leaf_sha256": bundle.leaf_sha256,
            "not_after": bundle.not_after.astimezone(UTC).isoformat(),
        }

    async def _post(self, message: str, content: dict[str, Any], *hidden: Secret[str]) -> dict[str, Any]:
        """What a good answer says, if it says anything; `hidden` is in no error, even if the receiver repeats it."""
        now, remote = self.parts.clock.now(), self._remote(*hidden)
        body = json.dumps({**content, "timestamp": now.astimezone(UTC).isoformat()}).encode()
        response = await remote.ask("POST", "", body=body, headers=signed(self._keys(), message, now, body))
        self._judge(remote, response)
        return table(read_json(response))

    def _judge(self, remote: Remote, response: Response) -> None:
        match response.status:
            case 202:
                raise remote.passing(response, Reason.TARGET_BUSY)
            case 409:
                raise remote.refusal(response, "It holds a newer one.", Reason.TARGET_HAS_NEWER)
            case 410:
                raise remote.refusal(response, "The receiver is gone for good: remove the target, or change its url.")
            case 401 | 403:
                raise remote.refusal(response, _DENIED)
            case status if not 200 <= status < 300:
                raise remote.refusal(response)

    def _keys(self) -> list[Secret[bytes]]:
        found = [(name, self.parts.credentials.get(name)) for name in ("secret", "old_secret")]
        try:
            return [signing_key(text) for name, text in found if text]
        except ValueError as why:
            raise refused(f"Target {self.parts.target}: a signing secret {why}.") from None

    def _remote(self, *hidden: Secret[str]) -> Remote:
        return Remote(
            parts=self.parts, name="The receiver", base=self.settings.url, roots=self.settings.roots,
            secrets=(*self.parts.credentials.values(), *hidden),
        )  # fmt: skip


WEBHOOK: Final[DeployerKind[WebhookSettings]] = Kind(
    name="webhook",
    summary="A signed webhook: its receiver fetches the bundle once, and puts it in place.",
    settings=WebhookSettings,
    credentials=(
        Credential(name="secret", summary="The signing secret: whsec_ and base64.", kept_as="old_secret"),
        Credential(name="old_secret", summary="The one before, while the receiver changes to the new.", required=False),
    ),
    limits=DeployLimits(),
    address="url",
    make=WebhookDeployer,
)
