"""What others notice: how long a probe takes, whether orders are carried out and how fast, and the server's memory."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final

from bench.acme.client import Client, Directory, OrderFailed, Request
from bench.acme.jws import AccountKey
from bench.acme.wire import Broken

EVERY: Final = 0.02  # seconds between two probes
GIVEN_UP_AFTER: Final = 30.0  # seconds, of one probe or one order
LIVE: Final = b"GET /health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
names: Final = count()
More = Callable[[], bool]  # whether to go on


def memory(pid: int) -> float:
    """MiB that the process has in memory."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) / 1024


@dataclass(slots=True)
class Seen:
    """In one phase. Latencies in milliseconds."""

    probes: list[float] = field(default_factory=list)
    probes_failed: int = 0
    orders: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    memory: float = 0.0  # MiB, at most


def part(values: list[float], share: float) -> float:
    """The value that so many of all do not exceed; a phase that saw none was endless."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else float("inf")


class Watch:
    """Somebody's probe, and somebody's ACME client, side by side."""

    def __init__(self, pid: int, server: int, directory: str, key: AccountKey) -> None:
        self._pid, self._server, self._directory, self._key = pid, server, directory, key

    async def look(self, seconds: float, *, least_orders: int = 1) -> Seen:
        """Watch for so long, and until so many orders were tried."""
        seen, until = Seen(), time.monotonic() + seconds

        def more() -> bool:
            return time.monotonic() < until or len(seen.orders) + len(seen.failures) < least_orders

        await asyncio.gather(self._probe(seen, more), self._order(seen, more))
        return seen

    async def _probe(self, seen: Seen, more: More) -> None:
        while more():
            began = time.monotonic()
            try:
                async with asyncio.timeout(GIVEN_UP_AFTER):
                    good = await self._asked()
            except (OSError, TimeoutError):
                good = False
            seen.probes.append(1000 * (time.monotonic() - began))
            seen.probes_failed += not good
            seen.memory = max(seen.memory, memory(self._pid))
            await asyncio.sleep(EVERY)

    async def _asked(self) -> bool:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._server)
        try:
            writer.write(LIVE)
            return (await reader.read()).startswith(b"HTTP/1.1 200 ")
        finally:
            writer.close()

    async def _order(self, seen: Seen, more: More) -> None:
        while more():
            began = time.monotonic()
            try:
                async with asyncio.timeout(GIVEN_UP_AFTER):
                    await self._obtain()
                seen.orders.append(1000 * (time.monotonic() - began))
            except (OSError, TimeoutError, OrderFailed, Broken) as why:
                seen.failures.append(repr(why)[:200])

    async def _obtain(self) -> None:
        """As a client that comes once a day: a new connection for each order."""
        client = Client(await Directory.fetch(self._directory), self._key, poll_s=0.02)
        try:
            await client.register()
            await client.obtain(Request.make(f"n{next(names)}-0.bench.test"))
        finally:
            client.line.close()
