"""The adapter of Offers: a bundle is offered by a row, so that any replica can hand it over."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from holdfast.core import base64url
from holdfast.core.reasons import Reason
from holdfast.deployers.base import Bundle, refused
from holdfast.operations.deployment.fetching import digest_of
from holdfast.ports import Random
from holdfast.secret import Secret
from holdfast.store import certificates
from holdfast.store.database import Store
from holdfast.store.deployments import deployments, offers
from holdfast.store.deployments.offers import Offer
from holdfast.store.tx import Tx


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredOffers:
    db: Store
    random: Random
    address: str  # scheme://host, by which targets reach this installation

    async def current(self, target: str, certificate: str) -> tuple[int, str] | None:
        def read(tx: Tx) -> tuple[int, str] | None:
            known = certificates.by_name(tx, certificate)
            found = None if known is None else offers.get(tx, target, known.id)
            return None if found is None else (found.number, found.content_id)

        return await self.db.read(read)

    async def put(self, target: str, bundle: Bundle) -> None:
        await self.db.write(lambda tx: offers.put(tx, _offer(tx, target, bundle)))

    async def once(self, target: str, bundle: Bundle, lasts_for: timedelta) -> Secret[str]:
        token = base64url.encode(self.random.token(32))

        def write(tx: Tx) -> None:
            offers.hand_over(tx, digest_of(token), _offer(tx, target, bundle), tx.now() + lasts_for)

        await self.db.write(write)
        return Secret(f"{self.address}/handover/{token}")


def _offer(tx: Tx, target: str, bundle: Bundle) -> Offer:
    """Its version is that of the deployment, which has the same number."""
    known = certificates.by_name(tx, bundle.certificate)
    row = None if known is None else deployments.numbered(tx, known.id, target, bundle.number)
    if row is None:
        raise refused(f"Target {target}: there is no deployment {bundle.number} any more.", Reason.BUNDLE_UNFIT)
    return Offer(
        target=target,
        certificate=row.certificate,
        certificate_version=row.certificate_version,
        number=row.number,
        content_id=bundle.content_id,
    )
