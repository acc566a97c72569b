"""Our own CA in process: the names are trusted, and orders go through the same pipeline as those of ACME clients."""

from __future__ import annotations

from datetime import datetime
from typing import Final, Protocol

from pydantic import Field

from holdfast.core.issuers.ca_limits import CaLimits
from holdfast.core.kind import Kind, Trait
from holdfast.core.own_ca.acme import Identifier, Order, OrderState
from holdfast.core.own_ca.problem import AcmeError
from holdfast.core.reasons import Reason
from holdfast.errors import Refused
from holdfast.issuers.base import Failed, Issued, Look, OrderRef, OrderRequest, Pending, Placed, RenewalWindow
from holdfast.issuers.kind import IssuerKind, IssuerSettings, Parts
from holdfast.kind_settings import whole
from holdfast.pki.ari import Window
from holdfast.pki.refused import PkiRefused

SOON_S: Final = 0.1  # a signature takes milliseconds
ASK_AGAIN_S: Final = 6 * 3600.0


class OwnCaOrders(Protocol):
    """The CAs of this installation, by their ids. Any of these raises TryLater if this process cannot sign now."""

    def is_open(self, ca: str) -> bool: ...

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
        """Place the order of this id, with its CSR; again is the same order. AcmeError and PkiRefused say why not."""

    async def find(self, order_id: str) -> Order | None: ...

    async def chain(self, ca: str, certificate: str) -> bytes | None:
        """The certificate of an order, with its chain, in PEM."""

    async def revoke(self, ca: str, der: bytes, reason: int) -> bool:
        """False if this CA did not issue it."""

    async def window(self, ca: str, der: bytes) -> Window | None: ...


class LocalIssuer:
    """One of the CAs of this installation, by its id."""

    binding = False  # placing again is the same order

    def __init__(self, own: OwnCaOrders, ca: str) -> None:
        self._own = own
        self._ca = ca

    async def find_order(self, request: OrderRequest) -> Placed | None:
        found = await self._own.find(_order_of(request))
        return None if found is None else Placed(ref={"order": found.id})

    async def place_order(self, request: OrderRequest) -> Placed:
        order_id = _order_of(request)
        try:
            await self._own.order(
                self._ca,
                order_id=order_id,
                identifiers=request.identifiers,
                csr=request.csr,
                profile=request.profile,
                not_after=request.not_after,
            )
        except AcmeError as refused:
            raise Refused(
                refused.problem.detail, reason=_REASONS.get(refused.problem.type, Reason.CA_REFUSED)
            ) from None
        except PkiRefused as refused:
            raise Refused(str(refused), reason=Reason.CA_REFUSED) from None
        return Placed(ref={"order": order_id})

    async def order_status(self, ref: OrderRef, request: OrderRequest) -> Look:
        found = await self._own.find(ref["order"])
        if found is None:
            return Failed(why="Our CA does not know the order any more.", reason=Reason.ORDER_EXPIRED)
        if found.certificate is not None and (chain := await self._own.chain(self._ca, found.certificate)) is not None:
            return Issued(chain_pem=chain)
        if found.state is OrderState.INVALID:
            why = "The order is over." if found.error is None else found.error.detail
            return Failed(why=why, reason=Reason.CA_REFUSED)
        return Pending(why="It is being signed.", after_s=SOON_S, word=found.state.value)

    async def revoke(self, certificate: bytes, reason: int) -> None:
        if not await self._own.revoke(self._ca, certificate, reason):
            raise Refused(f"Our CA {self._ca} did not issue that certificate.", reason=Reason.CA_REFUSED)

    async def renewal_window(self, certificate: bytes) -> RenewalWindow | None:
        window = await self._own.window(self._ca, certificate)
        if window is None:
            return None
        return RenewalWindow(start=window.start, end=window.end, ask_again_after_s=ASK_AGAIN_S)

    async def probe(self) -> str:
        if not self._own.is_open(self._ca):
            why = f"Our CA {self._ca} is closed: it takes no new orders. To open it: holdfast ca open {self._ca}"
            raise Refused(why, reason=Reason.CA_REFUSED)
        return f"Our CA {self._ca} is open."


_REASONS: Final = {"rejectedIdentifier": Reason.NAME_REFUSED, "invalidProfile": Reason.PROFILE_UNKNOWN}


def _order_of(request: OrderRequest) -> str:
    """One order for an issuance, however often it is placed."""
    return f"order_{request.issuance.partition('_')[2] or request.issuance}"


class LocalSettings(IssuerSettings):
    ca: str = Field(
        default="", pattern=whole("[a-z0-9-]{1,63}"), description="The id of the CA; else the issuer's name."
    )


def _make(settings: LocalSettings, parts: Parts) -> LocalIssuer:
    if parts.own_cas is None:
        raise Refused("This process has no CA of its own.", reason=Reason.UNKNOWN_ISSUER)
    return LocalIssuer(parts.own_cas, settings.ca or parts.name)


LOCAL: Final[IssuerKind[LocalSettings]] = Kind(
    name="local",
    summary="A CA of this installation, asked in process.",
    settings=LocalSettings,
    limits=CaLimits(requests=None),  # it limits itself
    traits=frozenset({Trait.OURS}),
    make=_make,
    address="ca",
)
