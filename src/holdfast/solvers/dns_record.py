"""dns-01 (RFC 8555 §8.4): where the record goes and what it says, whichever way it gets there."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol

from holdfast.issuers.base import Proof
from holdfast.solvers.base import never
from holdfast.solvers.dns_client import DnsClient
from holdfast.solvers.propagation import Propagation, Spread


@dataclass(frozen=True, slots=True)
class Record:
    """A TXT record; there may be others of the same name, for a wildcard or for another account."""

    name: str  # after all aliases
    value: str
    zone: str


class Provider(Protocol):
    """A way to change a zone. Both can be repeated."""

    side_by_side: bool  # as of a solver

    async def add(self, record: Record) -> None: ...

    async def remove(self, record: Record) -> None: ...


class DnsSolver:
    """Publishes by any provider. An alias of _acme-challenge leads to the zone that is changed instead."""

    type = "dns-01"

    def __init__(
        self, provider: Provider, client: DnsClient, propagation: Propagation | None, *, zone: str | None = None
    ) -> None:
        self._provider = provider
        self._client = client
        self._propagation = propagation  # None: the operator says that it cannot be seen from here
        self._zone = zone  # None: found by its SOA record
        self.side_by_side = provider.side_by_side

    async def publish(self, proof: Proof) -> None:
        await self._provider.add(await self._record(proof))

    async def visible(self, proof: Proof) -> bool:
        spread = await self.spread(proof)
        return spread is None or spread.complete

    async def spread(self, proof: Proof) -> Spread | None:
        """Which servers of the zone have it, for whoever wants to know more than yes or no; None if it is not asked."""
        if self._propagation is None:
            return None
        name = await self._client.target(record_name(proof))
        return await self._propagation.look(name, record_value(proof))

    async def clean(self, proof: Proof) -> None:
        await self._provider.remove(await self._record(proof))

    async def _record(self, proof: Proof) -> Record:
        name = await self._client.target(record_name(proof))
        zone = self._zone or await self._client.zone(name)
        if name != zone and not name.endswith(f".{zone}"):
            raise never(f"{name} is not in the zone {zone}.")
        return Record(name, record_value(proof), zone)


def record_name(proof: Proof) -> str:
    if proof.identifier.type != "dns":
        raise never("An address cannot be proved by DNS (RFC 8738 §7).")
    return f"_acme-challenge.{proof.identifier.base}"


def record_value(proof: Proof) -> str:
    return urlsafe_b64encode(sha256(proof.key_authorization.encode()).digest()).rstrip(b"=").decode()
