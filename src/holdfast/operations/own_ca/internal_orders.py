"""Our own CAs, asked from inside: orders without challenges, their certificates, revocation, and renewal times."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from holdfast.core.own_ca.acme import Identifier, Order
from holdfast.core.reasons import Reason
from holdfast.core.revocation_reason import RevocationReason
from holdfast.errors import TryLater
from holdfast.operations.acme import names
from holdfast.operations.acme import orders as verbs
from holdfast.operations.acme.context import AcmeContext, by_current
from holdfast.operations.own_ca import revocation
from holdfast.operations.own_ca.authorities import Authority
from holdfast.pki import ari
from holdfast.store.acme import orders
from holdfast.store.own_ca import certificates
from holdfast.store.tx import Tx


def account_of(ca: Authority) -> str:
    """The account under which certificates are kept from this CA."""
    return f"acct_kept_{ca.id}"


@dataclass(frozen=True, slots=True)
class OwnCas:
    """The CAs of this installation, by their ids. TryLater: this process cannot sign with one now."""

    acme_context: AcmeContext

    def _authority(self, ca: str) -> Authority:
        found = self.acme_context.authorities.get(ca)
        if found is None:
            problem = self.acme_context.authorities.problem(ca) or "it is not there, or not opened yet"
            raise TryLater(f"Our CA {ca} cannot sign here now: {problem}.", reason=Reason.CA_DOWN)
        return found

    def is_open(self, ca: str) -> bool:
        return not self._authority(ca).closed

    async def order(
        self,
        ca: str,
        *,
        order_id: str,
        identifiers: tuple[Identifier, ...],
        csr: bytes,
        profile: str | None,
        not_after: datetime | None,
    ) -> None:
        """Place and finalize the order of this id; the certificate is signed by the job of all orders."""

        async def place(authority: Authority) -> None:
            names.check_allowed(authority, identifiers)
            await verbs.place_internal(
                self.acme_context,
                authority,
                account=account_of(authority),
                identifiers=identifiers,
                content=csr,
                profile=profile,
                not_after=not_after,
                order_id=order_id,
            )

        await by_current(self.acme_context, self._authority(ca), place)

    async def find(self, order_id: str) -> Order | None:
        return await self.acme_context.db.read(lambda tx: orders.get(tx, order_id))

    async def chain(self, ca: str, certificate: str) -> bytes | None:
        """The certificate of an order, with the chain of this CA; it counts as collected from here on."""
        issued = await self.acme_context.db.read(lambda tx: certificates.get(tx, certificate))
        if issued is None:
            return None
        self.acme_context.delivered("fetched", issued.id, issued.account)  # or it would be called uncollected
        return x509.load_der_x509_certificate(issued.der).public_bytes(Encoding.PEM) + self._authority(ca).chain_pem

    async def revoke(self, ca: str, der: bytes, reason: int) -> bool:
        """False if this CA did not issue it; once revoked it stays so, however often this is asked."""
        serial, job = f"{x509.load_der_x509_certificate(der).serial_number:x}", self.acme_context.random.new_id("job")
        authority = self._authority(ca)

        def write(tx: Tx) -> bool:
            found = certificates.by_serial(tx, authority.id, serial)
            if found is None or found.der != der:
                return False
            revocation.revoke(tx, found, RevocationReason.of(reason), actor="system", job=job)
            return True

        return await self.acme_context.db.write(write)

    async def window(self, ca: str, der: bytes) -> ari.Window | None:
        """When it should be renewed; at once if it was revoked."""
        serial, authority = f"{x509.load_der_x509_certificate(der).serial_number:x}", self._authority(ca)
        found = await self.acme_context.db.read(lambda tx: certificates.by_serial(tx, authority.id, serial))
        return None if found is None else ari.window(found.not_before, found.not_after, revoked_at=found.revoked_at)
