"""`make pending`: 1,000 orders wait 14 simulated days for somebody at the CA; nobody is held, and all are issued after.

The engine, its SQL and its ladder are the product's own; time is virtual, and the store is in memory, so that its size
is taken off what the process has.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final

from tests.simulation.authority import Authority
from tests.simulation.clockwork import VirtualLoop
from tests.simulation.fleet import Member, enlist
from tests.simulation.life_stage import LifeStage, Rhythm
from tests.simulation.run import Result, pass_time, perform, stop_all

from bench.figures import figure
from holdfast.core.backoff import next_poll
from holdfast.engine.replica import Pace
from holdfast.store.tx import Tx

MINUTE: Final = timedelta(minutes=1)
HOUR: Final = timedelta(hours=1)
DAY: Final = timedelta(days=1)
PACE: Final = Pace(poll=MINUTE, ttl=6 * MINUTE, drain=MINUTE, retry=HOUR, reconcile=HOUR, timeout=HOUR, cleanup=DAY)
NEVER: Final = 1e12
LOOK_EVERY: Final = 6 * 3600.0 + 77  # seconds; not when all replicas happen to look
SETTLED: Final = 0.2  # of the time: by then everything is loaded that ever will be
FLAT_MIB: Final = 16.0


@dataclass(slots=True)
class Found:
    held: int = 0  # jobs in a worker's hands, at the worst of all looks
    looks: int = 0
    mib: list[float] = field(default_factory=list)  # what the process has, without the store
    issued: int = 0
    second_orders: int = 0
    violation: str = ""

    @property
    def grown(self) -> float:
        settled = self.mib[int(len(self.mib) * SETTLED) :]
        return max(settled) - settled[0]


def experiment(orders: int, days: float, seed: int = 1) -> Found:
    """All certificates are due at once, and the CA takes all orders and issues none until the last day."""
    ca = Authority(name="alpha", life=90 * DAY, issue_after=NEVER)
    found = Found()

    async def story(stage: LifeStage, result: Result, trace: bool) -> None:
        names = [f"n{n}.example.com" for n in range(orders)]
        enlist(stage, (Member(name=name, issuers=("alpha",), age=61 * DAY) for name in names))
        end = days * DAY.total_seconds()
        while stage.loop.time() < end:
            await pass_time(stage, min(LOOK_EVERY, end - stage.loop.time()))
            found.held = max(found.held, stage.truth.look(_running))
            found.mib.append(_own_mib(stage))
        found.looks = ca.asked["look"]
        for order in ca.orders.values():
            order.ready_at = stage.loop.time()
        await pass_time(stage, 2 * 3600.0)
        found.issued = sum(bool(order.chain) for order in ca.orders.values())
        found.second_orders = len(ca.orders) - orders
        await stop_all(stage)

    rhythm = Rhythm(renewal=6 * HOUR, ask=DAY, others=DAY)

    def make(loop: VirtualLoop) -> LifeStage:
        return LifeStage(loop, seed, replicas=2, cas=[ca], pace=PACE, rhythm=rhythm, vigilant=False, latencies=False)

    found.violation = perform(make, story, Result(seed, "pending"), every=1_000_000).violation
    return found


def allowed(days: float) -> int:
    """How many looks at one order the ladder has in this time, if jitter shortened each wait as much as it may."""
    at, polls, end = timedelta(0), 0, days * DAY
    while at < end:
        polls += 1
        wait, _ = next_poll(polls, waited=at, window=timedelta(0), age=at, asked=None, key=f"x{polls}")
        at += wait * 0.8
    return polls


def _running(tx: Tx) -> int:
    return int(tx.rows("SELECT COUNT(*) AS n FROM jobs WHERE state = 'running'")[0]["n"])


def _own_mib(stage: LifeStage) -> float:
    pages = stage.truth.look(lambda tx: tx.rows("PRAGMA page_count")[0]["page_count"])
    size = stage.truth.look(lambda tx: tx.rows("PRAGMA page_size")[0]["page_size"])
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    return (resident - pages * size) / 2**20


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.pending", description=__doc__)
    parser.add_argument("--orders", type=int, default=1000)
    parser.add_argument("--days", type=float, default=14.0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="installations, with a share each")
    args = parser.parse_args()
    began, installations = time.monotonic(), max(1, args.processes)
    each = args.orders // installations
    with ProcessPoolExecutor(installations) as pool:
        found = list(pool.map(experiment, [each] * installations, [args.days] * installations, range(installations)))
    looks = sum(one.looks for one in found)
    print(f"took {time.monotonic() - began:.0f} s, {looks} looks, {installations} installations", file=sys.stderr)
    for one in found:
        if one.violation:
            print(f"VIOLATION {one.violation}", file=sys.stderr)
    figures(found, each * installations, args.days)
    return 0


def figures(found: Sequence[Found], orders: int, days: float) -> None:
    held = max(one.held for one in found)
    grown = max(one.grown for one in found)
    looks, most = sum(one.looks for one in found) / orders, allowed(days)
    issued, again = sum(one.issued for one in found), sum(one.second_orders for one in found)
    broken = sum(bool(one.violation) for one in found)
    figure("pending_workers_held", held, "workers", 0, held == 0)
    figure("pending_memory_grown", grown, "MiB", FLAT_MIB, grown <= FLAT_MIB)
    figure("pending_looks_at_one_order", looks, "requests", most, looks <= most)
    figure("pending_issued_after_approval", issued, "orders", orders, issued == orders)
    figure("pending_second_orders", again, "orders", 0, again == 0)
    figure("pending_violations", broken, "promises", 0, broken == 0)


if __name__ == "__main__":
    sys.exit(main())
