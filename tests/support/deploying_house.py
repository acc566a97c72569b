"""A house with targets: the parts that deploy, with the real files, programs and handshakes of this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.deployment import Deployment, DeploymentState
from holdfast.deployers.kind import LocalRules, NoOffers, Offers
from holdfast.endpoints import probe
from holdfast.engine.deployment import drain
from holdfast.engine.deployment.deployer_factory import Deployers
from holdfast.engine.deployment.drain import DeployServices
from holdfast.engine.deployment.looking import LookAt
from holdfast.engine.kind import JobKind
from holdfast.local_bundles import LocalBundles
from holdfast.network import SystemNet
from holdfast.operations.context import Services
from holdfast.operations.deployment import targets as manage_targets
from holdfast.ports import Points, no_points
from holdfast.store.deployments import deployments
from holdfast.world import HttpTransport, SystemClock, SystemRandom
from tests.support.engine import eventually
from tests.support.lifecycle import House
from tests.support.running import run

HOST = "here"


def a_look(each: float = 5.0) -> LookAt:
    return probe.make(SystemNet(), SystemRandom(), resolvers=[], networks=["127.0.0.0/8"], each=each).look


@dataclass
class Yard:
    """A house, and what it takes to deploy from it."""

    house: House
    local: LocalRules
    look: LookAt
    points: Points = no_points
    offers: Offers = field(default_factory=NoOffers)
    transport: HttpTransport = field(default_factory=HttpTransport)

    @property
    def deployers(self) -> Deployers:
        return Deployers(
            secret_store=self.house.certificate_context.secret_store,
            transport=self.transport,
            net=SystemNet(),
            bundles=LocalBundles(self.points),
            clock=self.house.clock or SystemClock(),
            random=SystemRandom(),
            offers=self.offers,
            host=HOST,
            local=self.local,
        )

    @property
    def tools(self) -> DeployServices:
        return DeployServices(
            db=self.house.db,
            secret_store=self.house.certificate_context.secret_store,
            open_target=self.deployers.open,
            look=self.look,
            clock=self.house.clock or SystemClock(),
            telemetry=self.house.watch.telemetry,
            host=HOST,
        )

    @property
    def kinds(self) -> Sequence[JobKind]:
        return drain.kinds(self.tools)

    @property
    def services(self) -> Services:
        return Services(
            certificate_context=self.house.certificate_context,
            issuer_kinds=frozenset({"test"}),
            probe=self.house.probe,
            post=self.house.services.post,
            targets=self.deployers,
        )

    async def do(self, verb: Any, **asked: Any) -> Any:
        return await run(self.services, verb, actor="local:alice", **asked)

    async def add(self, name: str, **asked: Any) -> Any:
        return await self.do(manage_targets.add, **{"kind": "files", "name": name, **asked})

    async def all(self, certificate: str) -> list[Deployment]:
        """The newest first."""
        found = (await self.house.view(certificate)).certificate.id
        return await self.house.read(deployments.of, found)

    async def reaches(self, certificate: str, state: DeploymentState, target: str | None = None) -> Deployment:
        """Wait until the newest deployment is in this state."""

        async def there() -> bool:
            rows = [each for each in await self.all(certificate) if target in (None, each.target)]
            return bool(rows) and rows[0].state is state

        try:
            await eventually(there)
        except BaseException:
            for each in await self.all(certificate):
                print(each)
            raise
        return next(each for each in await self.all(certificate) if target in (None, each.target))

    async def hurry(self) -> None:
        """Let deployments that wait be due now, and the jobs that drain them."""

        def write(tx: Any) -> None:
            tx.run("UPDATE deployments SET next_at = now_us() WHERE next_at IS NOT NULL")
            tx.run("UPDATE targets SET breaker_until = NULL")

        await self.house.db.write(write)
        await self.house.hurry()
