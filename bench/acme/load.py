"""One process of the load: told a run on stdin, it prepares, says so, waits for the start and prints what came of it.

A line of JSON each: a Run is read, "ready" is written, the starting instant (of the monotonic clock, which all
processes share) is read, a Share is written. It ends when stdin does.
"""

import asyncio
import gc
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import chain, count

import uvloop

from bench.acme.client import Client, Directory, OrderFailed, Request
from bench.acme.jws import AccountKey
from bench.acme.wire import Broken

PREPARE_S = 15.0
GRACE_S = 6.0  # for what is in flight when the time is over; what takes longer hangs


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one process has to do."""

    directory: str
    keys: list[str]  # the secret of each lane's account; lanes that share one have the same
    accounts: list[int]  # their numbers, for the names
    label: str  # makes the names of this run and process its own
    poll_s: float
    warm_s: float
    window_s: float
    prepared: int  # requests to make before the start


@dataclass(slots=True, kw_only=True)
class Share:
    """What came of it: `counted` and `latencies` are of the window, the rest of the whole run."""

    done: int = 0
    counted: int = 0
    hung: int = 0
    requests: int = 0
    bad_nonces: int = 0
    cpu_s: float = 0.0
    latencies: list[float] = field(default_factory=list)  # milliseconds
    failures: dict[str, int] = field(default_factory=dict)


class Lane:
    """One order after the other, by one client, until the time is over."""

    def __init__(self, client: Client, requests: Iterator[Request], share: Share) -> None:
        self.client = client
        self.requests = requests
        self.share = share

    async def work(self, begin: float, end: float) -> None:
        while (began := time.monotonic()) < end:
            try:
                await self.client.obtain(next(self.requests))
            except Exception as why:  # whatever it is, the order failed, and the lane must go on
                self._failed(str(why) if isinstance(why, OrderFailed | Broken) else repr(why)[:120])
                await asyncio.sleep(0.05)  # a server that is down must not make the load spin
            except asyncio.CancelledError:
                self.share.hung += 1
                raise
            else:
                self._done(began, begin, end)

    def _done(self, began: float, begin: float, end: float) -> None:
        now = time.monotonic()
        self.share.done += 1
        if begin <= now < end:
            self.share.counted += 1
            self.share.latencies.append(1000 * (now - began))

    def _failed(self, why: str) -> None:
        self.share.failures[why] = self.share.failures.get(why, 0) + 1


def requests_for(run: Run, lane: int) -> Iterator[Request]:
    """Make this lane's share before the clock starts, and the rest, if it comes to that, when it is wanted."""
    names = (f"n{run.label}l{lane}c{n}-{run.accounts[lane]}.bench.test" for n in count())
    ready = [Request.make(next(names)) for _ in range(run.prepared // len(run.keys) + 1)]
    return chain(ready, (Request.make(name) for name in names))


async def prepare(run: Run, share: Share) -> list[Lane]:
    directory = await Directory.fetch(run.directory)
    clients = [Client(directory, AccountKey.from_secret(key), poll_s=run.poll_s) for key in run.keys]
    for client in clients:  # in turn: not every server takes many at once, and this is not what is measured
        await client.register()
    return [Lane(client, requests_for(run, lane), share) for lane, client in enumerate(clients)]


async def perform(run: Run) -> Share:
    share = Share()
    async with asyncio.timeout(PREPARE_S):
        lanes = await prepare(run, share)
    gc.collect()
    gc.freeze()
    print("ready", flush=True)
    start = float(sys.stdin.readline())  # nothing else is to be done meanwhile
    before = [(lane.client.line.requests, lane.client.bad_nonces) for lane in lanes]
    await asyncio.sleep(start - time.monotonic())
    used = time.process_time()
    begin = start + run.warm_s
    tasks = [asyncio.create_task(lane.work(begin, begin + run.window_s)) for lane in lanes]
    _, hanging = await asyncio.wait(tasks, timeout=run.warm_s + run.window_s + GRACE_S)
    share.cpu_s = time.process_time() - used
    for task in hanging:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for lane, (requests, bad_nonces) in zip(lanes, before, strict=True):
        share.requests += lane.client.line.requests - requests
        share.bad_nonces += lane.client.bad_nonces - bad_nonces
        lane.client.line.close()
    return share


def main() -> None:
    for text in iter(sys.stdin.readline, ""):
        try:
            share = uvloop.run(perform(Run(**json.loads(text))))
        except (OrderFailed, Broken, OSError, TimeoutError) as why:
            print(json.dumps({"error": f"{type(why).__name__}: {why}"}), flush=True)
        else:
            print(json.dumps(asdict(share)), flush=True)


if __name__ == "__main__":
    main()
