"""Our own CA in process: the names are trusted, the pipeline is that of every order of ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.core.acme import OrderState
from holdfast.core.problem import AcmeError
from holdfast.core.reasons import Reason
from holdfast.errors import Refused, TryLater
from holdfast.issuers.base import Failed, Issued, Look, Pending, Placed, Proof, RenewalWindow, Wish
from holdfast.operations import own_ca
from holdfast.operations.authorities import Authority
from holdfast.operations.desk import Desk
from holdfast.pki.refused import PkiRefused

SOON_S: Final = 0.1  # a signature takes milliseconds
ASK_AGAIN_S: Final = 6 * 3600.0


class LocalIssuer:
    """One of the CAs of this installation, by its id."""

    kind = "local"
    binding = False  # placing again is the same order

    def __init__(self, desk: Desk, ca: str) -> None:
        self._desk = desk
        self._ca = ca

    def _authority(self) -> Authority:
        found = self._desk.authorities.get(self._ca)
        if found is None:
            problem = self._desk.authorities.problem(self._ca) or "it is not there, or not opened yet"
            raise TryLater(f"Our CA {self._ca} cannot sign here now: {problem}.", reason=Reason.CA_DOWN)
        return found

    async def find(self, wish: Wish) -> Placed | None:
        found = await own_ca.find(self._desk, _order_of(wish))
        return None if found is None else Placed(ref={"order": found.order.id})

    async def place(self, wish: Wish) -> Placed:
        try:
            order = await own_ca.order(
                self._desk,
                self._authority(),
                order_id=_order_of(wish),
                identifiers=wish.identifiers,
                content=wish.csr,
                profile=wish.profile,
                not_after=wish.not_after,
            )
        except AcmeError as refused:
            raise Refused(
                refused.problem.detail, reason=_REASONS.get(refused.problem.type, Reason.CA_REFUSED)
            ) from None
        except PkiRefused as refused:
            raise Refused(str(refused), reason=Reason.CA_REFUSED) from None
        return Placed(ref={"order": order.id})

    async def look(self, ref: Mapping[str, Any], wish: Wish) -> Look:
        found = await own_ca.find(self._desk, ref["order"])
        if found is None:
            return Failed(why="Our CA does not know the order any more.", reason=Reason.ORDER_EXPIRED)
        if found.issued is not None:
            self._desk.delivered("fetched", found.issued.id, found.issued.account)  # or it would be called uncollected
            return Issued(chain_pem=own_ca.chain(self._authority(), found.issued))
        if found.order.state is OrderState.INVALID:
            why = "The order is over." if found.order.error is None else found.order.error.detail
            return Failed(why=why, reason=Reason.CA_REFUSED)
        return Pending(why="It is being signed.", after_s=SOON_S, word=found.order.state.value)

    async def answer(self, ref: Mapping[str, Any], proof: Proof) -> None:
        """Nothing has to be proved here."""

    async def finalize(self, ref: Mapping[str, Any], wish: Wish) -> None:
        """It was handed in with the order."""

    async def cancel(self, ref: Mapping[str, Any]) -> None:
        """It is signed within milliseconds: too late."""

    async def revoke(self, certificate: bytes, reason: int) -> None:
        if not await own_ca.revoke(self._desk, self._authority(), certificate, reason, actor="holdfast"):
            raise Refused(f"Our CA {self._ca} did not issue that certificate.", reason=Reason.CA_REFUSED)

    async def renewal_window(self, certificate: bytes) -> RenewalWindow | None:
        window = await own_ca.window(self._desk, self._authority(), certificate)
        if window is None:
            return None
        return RenewalWindow(start=window.start, end=window.end, ask_again_after_s=ASK_AGAIN_S)

    async def probe(self) -> str:
        ca = self._authority()
        if ca.closed:
            why = f"Our CA {ca.id} is closed: it takes no new orders. To open it: holdfast ca open {ca.id}"
            raise Refused(why, reason=Reason.CA_REFUSED)
        return f"Our CA {ca.id} is open."


_REASONS: Final = {"rejectedIdentifier": Reason.NAME_REFUSED, "invalidProfile": Reason.PROFILE_UNKNOWN}


def _order_of(wish: Wish) -> str:
    """One order for an issuance, however often it is placed."""
    return f"order_{wish.issuance.partition('_')[2] or wish.issuance}"
