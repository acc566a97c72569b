"""dns-01 by dynamic updates (RFC 2136), signed with TSIG (RFC 8945): BIND, Knot, PowerDNS, Windows with GSS aside."""

from __future__ import annotations

from base64 import b64decode
from binascii import Error
from dataclasses import dataclass
from typing import Final, Literal

import dns.exception
import dns.message
import dns.name
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.tsig
import dns.update
from pydantic import Field

from holdfast.core.kind import Credential, Kind
from holdfast.kind_settings import Number, Text
from holdfast.ports import NetProblem
from holdfast.secret import Secret
from holdfast.solvers.base import never, not_now
from holdfast.solvers.dns_client import DnsClient
from holdfast.solvers.dns_record import DnsSolver, TxtRecord
from holdfast.solvers.kind import DnsSettings, SolverKind, SolverParts
from holdfast.validators.resolver import server

ALGORITHMS: Final = {
    name: getattr(dns.tsig, name.upper().replace("-", "_")) for name in ("hmac-sha256", "hmac-sha384", "hmac-sha512")
}
_WAIT_FOR: Final = 10.0
_LATER: Final = (dns.rcode.SERVFAIL, dns.rcode.NOTIMP)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateServer:
    """Whom to tell, and by which key it knows us."""

    address: str  # 192.0.2.1, 192.0.2.1:5353 or [2001:db8::1]:53
    key_name: str
    key: Secret[bytes]
    algorithm: str = "hmac-sha256"
    ttl: int = 60

    def __post_init__(self) -> None:
        server(self.address)


class Rfc2136:
    """A provider for DnsSolver. To add a record that is there, or remove one that is not, changes nothing (§3.4.2)."""

    side_by_side = True

    def __init__(self, client: DnsClient, told: UpdateServer) -> None:
        self._client = client
        self._told = told

    async def add(self, record: TxtRecord) -> None:
        update = self._update(record)
        update.add(dns.name.from_text(record.name), self._told.ttl, "TXT", f'"{record.value}"')
        await self._send(update, record)

    async def remove(self, record: TxtRecord) -> None:
        update = self._update(record)
        update.delete(dns.name.from_text(record.name), "TXT", f'"{record.value}"')
        await self._send(update, record)

    def _update(self, record: TxtRecord) -> dns.update.UpdateMessage:
        key = dns.tsig.Key(self._told.key_name, self._told.key.reveal(), ALGORITHMS[self._told.algorithm])
        return dns.update.UpdateMessage(record.zone, keyring=key)

    async def _send(self, update: dns.update.UpdateMessage, record: TxtRecord) -> None:
        address, port = server(self._told.address)
        try:
            packet = await self._client.exchange(address, port, update, tcp=True, deadline_for=_WAIT_FOR)
            answer = dns.message.from_wire(packet, keyring=update.keyring, request_mac=update.mac)
        except NetProblem as problem:
            raise not_now(f"The update of {record.zone} got no answer: {problem}.") from None
        except (dns.exception.DNSException, ValueError) as error:  # our key is unknown there, or it is an impostor
            raise never(f"The update of {record.zone} was answered without trust: {type(error).__name__}.") from None
        if answer.rcode() != dns.rcode.NOERROR:
            said = f"The update of {record.zone} was refused: {dns.rcode.to_text(answer.rcode())}."
            raise not_now(said) if answer.rcode() in _LATER else never(said)
        if not answer.had_tsig:
            raise never(f"The update of {record.zone} was answered without a signature.")


class Rfc2136Settings(DnsSettings):
    server: Text = Field(description="The name server that takes updates: 192.0.2.1, 192.0.2.1:5353, [2001:db8::1]:53.")
    key_name: Text = Field(description="The name of the TSIG key, as the server knows it.")
    algorithm: Literal["hmac-sha256", "hmac-sha384", "hmac-sha512"] = Field(
        default="hmac-sha256", description="Of the TSIG key."
    )
    ttl: Number = Field(default=60, le=2**31 - 1, description="Seconds that records may be cached.")


def _make(settings: Rfc2136Settings, parts: SolverParts) -> DnsSolver:
    try:
        key = b64decode(parts.credentials["key"].reveal(), validate=True)
    except (Error, ValueError):
        raise ValueError("the credential key must be base64, as in the name server's own settings") from None
    told = UpdateServer(
        address=settings.server,
        key_name=settings.key_name,
        key=Secret(key),
        algorithm=settings.algorithm,
        ttl=settings.ttl,
    )
    return settings.solver(parts, Rfc2136(parts.client, told))


DNS_RFC2136: Final[SolverKind[Rfc2136Settings]] = Kind(
    name="dns-rfc2136",
    summary="dns-01, by dynamic updates (RFC 2136) signed with TSIG: BIND, Knot, PowerDNS.",
    settings=Rfc2136Settings,
    credentials=(Credential(name="key", summary="The TSIG key, in base64."),),
    limits=None,
    address="server",
    make=_make,
)
