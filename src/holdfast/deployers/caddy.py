"""Caddy's `get_certificate http`: it asks us at each handshake, and serves what a deployment has put on offer.

Nothing is written on its machine. A deployment is done when an endpoint shows the certificate, as for any target.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from holdfast.core.kind import Credential, Kind, Trait
from holdfast.core.reasons import Reason
from holdfast.core.target import DeployLimits
from holdfast.deployers.base import Bundle, Written, refused
from holdfast.deployers.held import nothing_before
from holdfast.deployers.kind import DeployerKind, DeployerParts
from holdfast.kind_settings import KindSettings
from holdfast.secret import Secret

SHORTEST: Final = 20  # characters of a token


class CaddySettings(KindSettings):
    """Nothing: Caddy asks us."""


@dataclass(frozen=True, slots=True)
class CaddyDeployer:
    settings: CaddySettings
    parts: DeployerParts

    async def write(self, bundle: Bundle) -> Written:
        return await self._offer(bundle, bundle)

    async def restore(self, bundle: Bundle, previous: Bundle | None) -> None:
        if previous is None:
            raise nothing_before(self.parts.target, "the offer")
        await self._offer(previous, bundle)

    async def probe(self) -> str:
        return f"Caddy gets certificates from /pull of this server, as user {self.parts.target} with the token."

    async def close(self) -> None:
        """Nothing stays open."""

    async def _offer(self, bundle: Bundle, instead_of: Bundle) -> Written:
        target = self.parts.target
        number, content = await self.parts.offers.current(target, bundle.certificate) or (-1, "")
        if number > instead_of.number:
            raise refused(f"Target {target}: deployment {number} is on offer, which is newer.", Reason.TARGET_HAS_NEWER)
        await self.parts.offers.put(target, bundle)
        return Written(changed=content != bundle.content_id)


def _fits(settings: CaddySettings, credentials: Mapping[str, object]) -> None:
    token = credentials.get("token")
    text = token.reveal() if isinstance(token, Secret) else token
    if isinstance(text, str | bytes) and len(text) < SHORTEST:
        raise ValueError(f"the credential token must have at least {SHORTEST} characters, as: openssl rand -hex 32")


CADDY: Final[DeployerKind[CaddySettings]] = Kind(
    name="caddy",
    summary="Caddy, which asks for certificates at each handshake (get_certificate http).",
    settings=CaddySettings,
    credentials=(Credential(name="token", summary="The password that Caddy shows, at least 20 characters."),),
    limits=DeployLimits(),
    traits=frozenset({Trait.ATOMIC}),
    fits=_fits,
    make=CaddyDeployer,
)
