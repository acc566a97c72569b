"""dns-01 (RFC 8555 §8.4): the record, the provider that changes its zone, and whether every name server has it."""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Protocol

from holdfast.issuers.base import ChallengeResponse
from holdfast.ports import NetProblem
from holdfast.solvers.base import never
from holdfast.solvers.dns_client import DnsClient, values

# ── Propagation ──
# Whether a TXT record is on every server of its zone, asked of those servers themselves: caches would lie.


DNS_PORT: Final = 53


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Which servers have it, which do not, and which could not be asked."""

    having: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Servers that cannot be reached from here say nothing either way; but one at least must have said yes."""
        return bool(self.having) and not self.lacking

    def __str__(self) -> str:
        if not (self.having or self.lacking):
            return "none of the zone's name servers could be asked"
        asked = len(self.having) + len(self.lacking)
        return f"{len(self.lacking)} of {asked} name servers lack it" if self.lacking else f"all of {asked} have it"


class Propagation:
    """The port is another one in laboratories only."""

    def __init__(self, client: DnsClient, *, port: int = DNS_PORT) -> None:
        self._client = client
        self._port = port

    async def look(self, name: str, value: str) -> Spread:
        """A look at a record; `name` is where it was put, after all aliases."""
        servers = await self._client.name_servers(await self._client.zone(name))
        found = await asyncio.gather(*(self._has(addresses, name, value) for addresses in servers.values()))
        told = dict(zip(servers, found, strict=True))

        def those(wanted: bool | None) -> tuple[str, ...]:
            return tuple(server for server, has in told.items() if has is wanted)

        return Spread(having=those(True), lacking=those(False), silent=those(None))

    async def _has(self, addresses: list[str], name: str, value: str) -> bool | None:
        """What one server says, at the first of its addresses that answers; None if none does."""
        for address in addresses:
            try:
                answer = await self._client.ask_at(address, self._port, name, "TXT")
            except NetProblem:
                continue
            return value.encode() in values(answer)
        return None


# ── The solver ──


@dataclass(frozen=True, slots=True)
class TxtRecord:
    """A TXT record; there may be others of the same name, for a wildcard or for another account."""

    name: str  # after all aliases
    value: str
    zone: str


class Provider(Protocol):
    """A way to change a zone. Both can be repeated."""

    side_by_side: bool  # as of a solver

    async def add(self, record: TxtRecord) -> None: ...

    async def remove(self, record: TxtRecord) -> None: ...


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

    async def publish(self, response: ChallengeResponse) -> None:
        await self._provider.add(await self._record(response))

    async def visible(self, response: ChallengeResponse) -> bool:
        spread = await self.spread(response)
        return spread is None or spread.complete

    async def spread(self, response: ChallengeResponse) -> Spread | None:
        """Which servers of the zone have the record, for messages to people; None if propagation is not checked."""
        if self._propagation is None:
            return None
        name = await self._client.target(record_name(response))
        return await self._propagation.look(name, record_value(response))

    async def clean(self, response: ChallengeResponse) -> None:
        await self._provider.remove(await self._record(response))

    async def _record(self, response: ChallengeResponse) -> TxtRecord:
        name = await self._client.target(record_name(response))
        zone = self._zone or await self._client.zone(name)
        if name != zone and not name.endswith(f".{zone}"):
            raise never(f"{name} is not in the zone {zone}.")
        return TxtRecord(name, record_value(response), zone)


def record_name(response: ChallengeResponse) -> str:
    if response.identifier.type != "dns":
        raise never("An address cannot be proved by DNS (RFC 8738 §7).")
    return f"_acme-challenge.{response.identifier.base}"


def record_value(response: ChallengeResponse) -> str:
    return urlsafe_b64encode(sha256(response.key_authorization.encode()).digest()).rstrip(b"=").decode()
