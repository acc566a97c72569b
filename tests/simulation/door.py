"""The way from a simulated replica to a fake CA: late, sometimes for ever, sometimes with the reply lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from holdfast.core.reasons import Reason
from holdfast.errors import TryLater
from holdfast.issuers.base import ChallengeResponse, Look, OrderRequest, Placed, RenewalWindow
from tests.simulation.authority import Authority, Order
from tests.simulation.node import Node

if TYPE_CHECKING:
    from tests.simulation.life_stage import LifeStage

T = TypeVar("T")

PATIENCE: Final = 60.0  # seconds; then a request is given up


class DoorIssuer:
    """An issuer as the engine knows it, for one replica and one CA."""

    def __init__(self, stage: LifeStage, node: Node, ca: Authority) -> None:
        self._stage = stage
        self._node = node
        self._ca = ca
        self.binding = ca.binding

    async def _call(self, what: str, act: Callable[[float], T]) -> T:
        stage, node = self._stage, self._node
        if not node.free:
            await node.gate()
        if stage.latencies:
            await node.pass_a_moment()
        self._ca.hear(what, stage.loop.time())
        answer = act(stage.loop.time())
        if stage.chance("hang"):
            await asyncio.sleep(PATIENCE)
            await node.gate()
            raise TryLater("simulated: no answer", reason=Reason.CA_DOWN)
        if stage.chance("slow"):
            await asyncio.sleep(stage.dice.uniform(1, PATIENCE - 5))
            await node.gate()
        if stage.chance("lost reply"):
            raise TryLater("simulated: the reply was lost", reason=Reason.CA_DOWN)
        return answer

    async def find_order(self, request: OrderRequest) -> Placed | None:
        paid_at = self._stage.sets_out(self._node, request)
        found = await self._call("find", lambda _: self._ca.find_order(request))
        if found is None:
            return None
        found.paid_at = paid_at  # by this claim: what an earlier one paid, and did not see the use of, was given back
        return Placed(ref={"order": found.ref})

    async def place_order(self, request: OrderRequest) -> Placed:
        paid_at, left_at = self._stage.sets_out(self._node, request), self._stage.loop.time()

        def act(now: float) -> Order:
            frozen = now - left_at > self._stage.ttl  # on its way, and overtaken: no fence reaches a CA
            if frozen or now < self._stage.doubtful_until:  # after a failover two may believe in the same lease
                self._stage.excused.add(request.issuance)
            order = self._ca.place_order(request, now, paid_at)
            if self.binding:
                self._ca.finalize(order.ref, request.csr, now)
            return order

        order = await self._call("place", act)
        return Placed(ref={"order": order.ref}, ready=not order.proofs and not order.csr)

    async def order_status(self, ref: Mapping[str, Any], request: OrderRequest) -> Look:
        return await self._call("look", lambda now: self._ca.order_status(ref["order"], now))

    async def answer(self, ref: Mapping[str, Any], response: ChallengeResponse) -> None:
        def act(_: float) -> None:
            if self._stage.shown(response):
                self._ca.orders[ref["order"]].proofs.pop(response.token, None)

        await self._call("answer", act)

    async def finalize(self, ref: Mapping[str, Any], request: OrderRequest) -> None:
        self._stage.sets_out(self._node, request)
        await self._call("finalize", lambda now: self._ca.finalize(ref["order"], request.csr, now))

    async def cancel(self, ref: Mapping[str, Any]) -> None:
        """This CA lets orders lapse by themselves."""

    async def revoke(self, certificate: bytes, reason: int) -> None:
        await self._call("revoke", lambda now: self._ca.revoke(certificate, now))

    async def renewal_window(self, certificate: bytes) -> RenewalWindow | None:
        return await self._call("ari", lambda now: self._ca.window(certificate, now))

    async def probe(self) -> str:
        return await self._call("probe", lambda _: "fine")
