"""Whether a TXT record is on every server of its zone, asked of those servers themselves: caches would lie."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from holdfast.ports import NetProblem
from holdfast.solvers.dns_client import DnsClient, values

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
