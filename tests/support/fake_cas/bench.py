"""An issuer of ours before a fake CA, made as the product makes it, without a store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Generic, TypeVar

from holdfast.core.reasons import Reason
from holdfast.engine.upstream import OTHERS
from holdfast.errors import TryLater
from holdfast.issuers import kind
from holdfast.issuers.base import Issuer, Wish
from holdfast.issuers.kind import Parts
from holdfast.secret import Secret
from holdfast.world import HttpTransport, LocalFiles, SystemClock
from tests.support.issuing import a_wish

C = TypeVar("C", bound=Any)


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


@dataclass
class Bench(Generic[C]):
    ca: C
    transport: HttpTransport
    folder: Path
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
        return a_wish(*(names or ("www.example.com",)), key=key, **more)


@asynccontextmanager
async def bench_of(fake: Callable[[Path], C], folder: Path) -> AsyncIterator[Bench[C]]:
    transport = HttpTransport()
    try:
        async with fake(folder) as ca:
            bench = Bench(ca, transport, folder)
            ca.now = bench.clock.now
            yield bench
    finally:
        await transport.close()
