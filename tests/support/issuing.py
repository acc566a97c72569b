"""Driving an issuer in tests as the engine does: step by step, looking after each one."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from holdfast.core.own_ca.acme import Identifier
from holdfast.core.reasons import Reason
from holdfast.errors import TryLater
from holdfast.issuers.acme.issuer import AcmeIssuer
from holdfast.issuers.base import ChallengeResponse, Failed, Issued, Look, NeedsProof, OrderRequest, Pending, Ready
from holdfast.pki import chain, csr, signing
from holdfast.pki.keys import PrivateKey
from holdfast.solvers.base import Solver
from tests.support.challenge_server import WebServer, page
from tests.support.engine import PATIENCE


def a_wish(*names: str, key: PrivateKey | None = None, **wishes: Any) -> OrderRequest:
    ips = [name for name in names if name[0].isdigit() or ":" in name]
    dns = [name for name in names if name not in ips]
    own = key or ec.generate_private_key(ec.SECP256R1())
    identifiers = tuple(Identifier("ip" if name in ips else "dns", name) for name in names)

    async def sign(content: bytes) -> bytes:
        return signing.proof_of(own, content)

    given = {"issuance": "issuance_1", "csr": csr.build(dns, own, ips=ips), "sign": sign, **wishes}
    return OrderRequest(identifiers=identifiers, **given)


def a_dns_proof(name: str, number: int = 1) -> ChallengeResponse:
    return ChallengeResponse(
        type="dns-01",
        identifier=Identifier("ip" if name[0].isdigit() else "dns", name),
        token=f"token-{number}",
        key_authorization=f"token-{number}.thumbprint",
    )


class Rows:
    """The store's part of http-01 and tls-alpn-01: rows that any replica serves."""

    def __init__(self) -> None:
        self.proofs: dict[str, ChallengeResponse] = {}

    async def put(self, response: ChallengeResponse) -> None:
        self.proofs[response.token] = response

    async def delete(self, response: ChallengeResponse) -> None:
        self.proofs.pop(response.token, None)

    async def by_identifier(self, identifier: Identifier) -> str | None:
        """As the listener of tls-alpn-01 asks."""
        found = (each.key_authorization for each in self.proofs.values() if each.identifier == identifier)
        return next(found, None)

    @asynccontextmanager
    async def served(self, port: int) -> AsyncIterator[WebServer]:
        async def respond(head: str, writer: asyncio.StreamWriter) -> None:
            found = self.proofs.get(head.split()[1].removeprefix("/.well-known/acme-challenge/"))
            writer.write(page(found.key_authorization.encode()) if found else page(b"", status="404 Not Found"))

        async with WebServer(respond, port=port) as web:
            yield web


async def patiently(call: Any, *arguments: Any, **more: Any) -> Any:
    """A step again, as the engine would, when too many nonces in a row were refused."""
    while True:
        try:
            return await call(*arguments, **more)
        except TryLater as why:
            if why.reason != Reason.CA_DOWN or "badNonce" not in str(why):
                raise


async def obtain(issuer: AcmeIssuer, request: OrderRequest, *solvers: Solver) -> Issued | Failed:
    """An order from its beginning to its end."""
    placed = await patiently(issuer.place_order, request)
    return await complete(issuer, placed.ref, request, *solvers)


async def complete(
    issuer: AcmeIssuer, ref: Mapping[str, Any], request: OrderRequest, *solvers: Solver
) -> Issued | Failed:
    published: list[tuple[Solver, ChallengeResponse]] = []
    told = set[str]()
    async with asyncio.timeout(PATIENCE):
        while True:
            look: Look = await patiently(issuer.order_status, ref, request)
            match look:
                case NeedsProof(choices=choices):
                    for solver, response in _chosen(choices, solvers):
                        if response.ref["challenge"] not in told:
                            await solver.publish(response)
                            published.append((solver, response))
                            assert await solver.visible(response)
                            await patiently(issuer.answer, ref, response)
                            told.add(response.ref["challenge"])
                case Ready():
                    await patiently(issuer.finalize, ref, request)
                case Pending():
                    pass
                case Issued() | Failed():
                    for solver, response in published:
                        await solver.clean(response)
                    return look
            await asyncio.sleep(0.1)  # Pebble hangs when it is asked more often


def _chosen(
    choices: Sequence[Sequence[ChallengeResponse]], solvers: Sequence[Solver]
) -> list[tuple[Solver, ChallengeResponse]]:
    return [
        next((solver, response) for solver in solvers for response in offers if response.type == solver.type)
        for offers in choices
    ]


def leaf_of(issued: Issued | Failed) -> x509.Certificate:
    assert isinstance(issued, Issued), issued
    return chain.parse_bundle(issued.chain_pem)[0]
