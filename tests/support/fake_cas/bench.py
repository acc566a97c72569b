"""An issuer of ours before a fake CA, made as the product makes it, without a store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Generic, TypeVar

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from holdfast.core.reasons import Reason
from holdfast.engine.upstream import OTHERS
from holdfast.errors import Refused, TryLater
from holdfast.issuers import kind
from holdfast.issuers.base import Issuer, Placed, Wish
from holdfast.issuers.kind import Parts
from holdfast.pki import csr
from holdfast.secret import Secret
from holdfast.world import HttpTransport, LocalFiles, SystemClock
from tests.support.issuing import a_wish, leaf_of

C = TypeVar("C", bound=Any)
NAME = "www.holdfast.test"


async def looked_up(make: Callable[[], Issuer], wish: Wish, *, claims: int = 40) -> Any:
    """What `find` comes to, over as many claims as the engine would give it."""
    for _ in range(claims):
        try:
            return await make().find(wish)
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
        found = OTHERS[self.ca.name.lower()]
        given = {name: value for name, value in self.ca.settings(**settings).items() if value is not None}
        secrets = {**self.ca.credentials, **(credentials or {})}
        kind.check(found, given, secrets)
        return found.make(
            Parts(
                name="ca", settings=given, credentials={name: Secret(value) for name, value in secrets.items()},
                transport=self.transport, clock=self.clock, files=LocalFiles(), memory=self.memory,
            )
        )  # fmt: skip

    def wish(self, *names: str, key: Any = None, **more: Any) -> Wish:
        """As the engine makes it for this kind."""
        names = names or ("www.example.com",)
        if not self.common_name:
            return a_wish(*names, key=key, **more)
        key = key or ec.generate_private_key(ec.SECP256R1())
        return replace(a_wish(*names, key=key, **more), csr=csr.build(names, key, common_name=True))

    async def issued(self, issuer: Issuer | None = None, **wishes: Any) -> tuple[Placed, x509.Certificate]:
        """An order that was placed and issued."""
        issuer, wish = issuer or self.issuer(), self.wish(NAME, **wishes)
        placed = await issuer.place(wish)
        return placed, leaf_of(await issuer.look(placed.ref, wish))  # type: ignore[arg-type]

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
