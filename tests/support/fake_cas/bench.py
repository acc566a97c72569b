"""An issuer of ours before a fake CA, made as the product makes it, without a store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Generic, TypeVar

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from holdfast import kind_settings, plugins
from holdfast.core.reasons import Reason
from holdfast.errors import Refused, TryLater
from holdfast.issuers.base import Issuer, OrderRequest, Placed
from holdfast.issuers.kind import Parts
from holdfast.pki import csr
from holdfast.secret import Secret
from holdfast.world import HttpTransport, LocalFiles, SystemClock
from tests.support.issuing import a_wish, leaf_of

C = TypeVar("C", bound=Any)
NAME = "www.holdfast.test"


async def looked_up(make: Callable[[], Issuer], request: OrderRequest, *, claims: int = 40) -> Any:
    """What `find` comes to, over as many claims as the engine would give it."""
    for _ in range(claims):
        try:
            return await make().find_order(request)
        except TryLater as why:
            if why.reason != Reason.UNDER_WAY:
                raise
    raise AssertionError(f"nothing was found out in {claims} claims")


class PushedClock(SystemClock):
    """The machine's clock, which a test pushes ahead; the CA lives by it, too."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead = timedelta(0)

    def now(self) -> datetime:
        return super().now() + self.ahead

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead.total_seconds()


def made(kind: str, settings: Mapping[str, Any], credentials: Mapping[str, str], **parts: Any) -> Issuer:
    """An issuer of a kind that needs nothing but its settings and credentials, as upstream makes it of a stored row."""
    found = plugins.kinds(plugins.ISSUERS)[kind]
    secrets = {name: Secret(value) for name, value in credentials.items()}
    given = {"name": kind, "clock": SystemClock(), "files": LocalFiles(), "memory": {}, "credentials": secrets, **parts}
    issuer: Issuer = found.make(kind_settings.read(found, settings, secrets), Parts(**given))
    return issuer


async def refused(call: Callable[..., Awaitable[Any]], *arguments: Any) -> Refused:
    """The refusal that a call must end in."""
    with pytest.raises(Refused) as why:
        await call(*arguments)
    return why.value


@dataclass
class IssuerBench(Generic[C]):
    """A fake CA, and what an issuer of its kind is made of."""

    ca: C
    transport: HttpTransport
    folder: Path
    common_name: bool = False  # whether the engine puts one into the CSRs for this kind
    clock: PushedClock = field(default_factory=PushedClock)
    memory: dict[str, Any] = field(default_factory=dict)

    def issuer(self, *, credentials: dict[str, str] | None = None, **settings: Any) -> Issuer:
        """As for the next job of the same process: made anew, with what the process remembers."""
        secrets = {**self.ca.credentials, **(credentials or {})}
        kind, given = self.ca.name.lower(), self.ca.settings(**settings)
        return made(kind, given, secrets, transport=self.transport, clock=self.clock, memory=self.memory)

    def wish(self, *names: str, key: Any = None, **more: Any) -> OrderRequest:
        """As the engine makes it for this kind."""
        names = names or ("www.example.com",)
        if not self.common_name:
            return a_wish(*names, key=key, **more)
        key = key or ec.generate_private_key(ec.SECP256R1())
        return replace(a_wish(*names, key=key, **more), csr=csr.build(names, key, common_name=True))

    async def issued(self, issuer: Issuer | None = None, **wishes: Any) -> tuple[Placed, x509.Certificate]:
        """An order that was placed and issued."""
        issuer, request = issuer or self.issuer(), self.wish(NAME, **wishes)
        placed = await issuer.place_order(request)
        return placed, leaf_of(await issuer.order_status(placed.ref, request))  # type: ignore[arg-type]

    @property
    def bodies(self) -> list[Any]:
        """What was sent to the CA by POST."""
        return [each.json() for each in self.ca.requests if each.method == "POST"]


@asynccontextmanager
async def bench_of(
    fake: Callable[[Path], C], folder: Path, *, common_name: bool = False
) -> AsyncIterator[IssuerBench[C]]:
    transport = HttpTransport()
    try:
        async with fake(folder) as ca:
            bench = IssuerBench(ca, transport, folder, common_name)
            ca.now = bench.clock.now
            yield bench
    finally:
        await transport.close()
