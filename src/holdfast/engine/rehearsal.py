"""A certificate that our own CA really issues in a drill: for a fresh key, checked, thrown away and revoked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from cryptography.hazmat.primitives.serialization import Encoding

from holdfast.core.certificate import CertificateSpec
from holdfast.core.issuers.issuer import IssuerRow
from holdfast.core.key_kind import KeyKind
from holdfast.core.revocation_reason import RevocationReason
from holdfast.errors import Refused
from holdfast.issuers.base import Failed, Issued, Issuer, OrderRequest
from holdfast.pki import chain as chains
from holdfast.pki import csr, keys
from holdfast.ports import Clock, Random

WITHIN: Final = 20.0  # seconds, from order to certificate
LOOK_EVERY: Final = 0.2
Rehearse = Callable[[IssuerRow, CertificateSpec], Awaitable[str]]


def rehearse(make: Callable[[IssuerRow], Awaitable[Issuer]], clock: Clock, random: Random) -> Rehearse:
    """The key never leaves this function, so the certificate is of no use to anybody, and is revoked at once."""

    async def one(row: IssuerRow, wanted: CertificateSpec) -> str:
        issuer, key = await make(row), await keys.generate(KeyKind(wanted.key_kind))
        dns = [each.value for each in wanted.identifiers if each.type == "dns"]
        ips = [each.value for each in wanted.identifiers if each.type == "ip"]
        request = OrderRequest(
            issuance=random.new_id("drill"), identifiers=wanted.identifiers, csr=csr.build(dns, key, ips=ips)
        )
        chain = await _ordered(issuer, request, row.name, clock)
        leaf, *_ = found = chains.parse_bundle(chain)
        problem = chains.problem_with(found, key=key.public_key(), names=dns, ips=ips, now=clock.now())
        await issuer.revoke(leaf.public_bytes(Encoding.DER), RevocationReason.SUPERSEDED.number)
        if problem is not None:
            raise Refused(f"{row.name} issued a certificate that does not fit: {problem}")
        return f"{row.name} issued it for a fresh key, and revoked it."

    return one


async def _ordered(issuer: Issuer, request: OrderRequest, name: str, clock: Clock) -> bytes:
    placed = await issuer.place_order(request)
    until = clock.monotonic() + WITHIN
    while clock.monotonic() < until:
        match await issuer.order_status(placed.ref, request):
            case Issued(chain_pem=chain):
                return chain
            case Failed(why=why):
                raise Refused(why)
        await clock.sleep(LOOK_EVERY)
    raise Refused(f"{name} did not issue it within {WITHIN:g} s.")
