"""Identities of agents: certificates of our own CA, ordered like any other, one generation after the other."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from holdfast.core import base64url
from holdfast.core.agents.agent import AgentIdentity, AgentRefusal, AgentRow
from holdfast.core.own_ca.acme import Identifier, Order, OrderState
from holdfast.core.own_ca.problem import AcmeError
from holdfast.operations.acme import orders as verbs
from holdfast.operations.acme.context import by_current
from holdfast.operations.agents.context import AgentContext, AgentProblem
from holdfast.operations.own_ca.authorities import Authority
from holdfast.pki import csr
from holdfast.pki.profile import AGENT_IDENTITY
from holdfast.pki.refused import PkiRefused
from holdfast.store.acme import orders
from holdfast.store.agents import agents
from holdfast.store.own_ca import certificates
from holdfast.store.tx import Tx

SIGNED_WITHIN: Final = 20.0  # seconds that a request waits; after that the agent asks again for the same
NOT_YET: Final = AgentRefusal(503, "not-signed-yet", "The certificate is being signed: ask again for the same.")


@dataclass(frozen=True, slots=True)
class IssuedIdentity:
    generation: int
    chain_pem: str


async def issue(context: AgentContext, row: AgentRow, content: bytes) -> IssuedIdentity:
    """The identity for the key of this CSR: the newest one if it has this key, else the next generation."""
    uri = context.policy.uri(row.id)
    try:
        request = csr.for_agent(content, uri)
    except PkiRefused as refused:
        raise AgentProblem(AgentRefusal(400, refused.code, str(refused))) from None
    spki = base64url.encode(request.spki)
    newest = await context.acme_context.db.read(lambda tx: _newest(tx, row.id))
    if newest is None or newest.spki != spki:
        newest = await _order(context, row, uri, content, request)
    return await _signed(context, newest)


def _newest(tx: Tx, agent: str) -> AgentIdentity | None:
    row = agents.get(tx, agent)
    return None if row is None else agents.identity(tx, agent, row.generation)


async def _order(
    context: AgentContext, row: AgentRow, uri: str, content: bytes, request: csr.CertificateRequest
) -> AgentIdentity:
    made: list[AgentIdentity] = []

    def also(tx: Tx, order: Order) -> None:
        current = agents.get(tx, row.id, lock=True)
        if current is None:
            raise AgentProblem(AgentRefusal(404, "agent-unknown", "There is no such agent here."))
        identity = AgentIdentity(
            agent=row.id,
            generation=current.generation + 1,
            spki=base64url.encode(request.spki),
            order_id=order.id,
            not_after=tx.now() + context.policy.identity_for,
            created_at=tx.now(),
        )
        agents.add_identity(tx, identity)
        agents.save(tx, current, generation=identity.generation)
        made[:] = [identity]

    async def place(ca: Authority) -> Order:
        now = await context.acme_context.db.read(lambda tx: tx.now())
        return await verbs.place_internal(
            context.acme_context,
            ca,
            account=f"acct_agents_{ca.id}",
            identifiers=(Identifier("uri", uri),),
            content=content,
            profile=AGENT_IDENTITY.name,
            not_after=min(now + context.policy.identity_for, ca.issuer.certificate.not_valid_after_utc),
            request=request,
            also=also,
        )

    try:
        await by_current(context.acme_context, context.authority(), place)
    except AcmeError as refused:
        raise AgentProblem(AgentRefusal(400, "identity-refused", refused.problem.detail)) from None
    return made[0]


async def _signed(context: AgentContext, identity: AgentIdentity) -> IssuedIdentity:
    """Wait for the signature as long as a request may."""
    try:
        async with asyncio.timeout(SIGNED_WITHIN):
            while (found := await _look(context, identity)) is None:
                await context.acme_context.changes.wait(identity.order_id, 1.0)
    except TimeoutError:
        raise AgentProblem(NOT_YET, retry_after=5) from None
    return found


async def _look(context: AgentContext, identity: AgentIdentity) -> IssuedIdentity | None:
    def read(tx: Tx) -> tuple[Order | None, bytes | None, str]:
        order = orders.get(tx, identity.order_id)
        found = None if order is None or order.certificate is None else certificates.get(tx, order.certificate)
        return order, None if found is None else found.der, "" if found is None else found.id

    order, der, certificate = await context.acme_context.db.read(read)
    if order is None or order.state is OrderState.INVALID:
        why = "The order of this identity is over without a certificate: ask with another key."
        raise AgentProblem(AgentRefusal(409, "identity-lost", why))
    if der is None:
        return None
    context.acme_context.delivered("fetched", certificate, order.account)
    leaf = x509.load_der_x509_certificate(der).public_bytes(Encoding.PEM)
    return IssuedIdentity(identity.generation, (leaf + context.authority().chain_pem).decode())
