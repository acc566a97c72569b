"""`python -m holdfast.simulation`: play seeds, print violations with the seed that shows them, and the figures."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from holdfast.simulation.faults import POINTS_HERE
from holdfast.simulation.run import Result, play


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m holdfast.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=500, help="how many, from --first on")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seed", type=int, help="play this one alone, with a trace of its faults")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    wanted = parser.parse_args()
    if wanted.seed is not None:
        return _one(wanted.seed)
    return _many(range(wanted.first, wanted.first + wanted.seeds), wanted.processes)


def _one(seed: int) -> int:
    first, second = play(seed, trace=True), play(seed)
    print("\n".join(first.trace))
    print(f"seed {seed}: {first.commits} commits, {first.requests} requests, audit hash {first.audit_hash}")
    print(f"the same seed again: {'the same' if first.audit_hash == second.audit_hash else 'ANOTHER'} hash")
    if first.violation:
        print(f"VIOLATION {first.violation}")
    return 1 if first.violation or first.audit_hash != second.audit_hash else 0


def _many(seeds: range, processes: int) -> int:
    began = time.perf_counter()
    with ProcessPoolExecutor(processes) as pool:
        results = list(pool.map(play, seeds, chunksize=5))
        sample = [result.seed for result in results[:: max(1, len(results) // 10)]]
        again = {result.seed: result.audit_hash for result in pool.map(play, sample)}
    took = time.perf_counter() - began
    bad = [result for result in results if result.violation]
    for result in bad:
        print(f"VIOLATION seed {result.seed}: {result.violation}")
    differing = [r.seed for r in results if r.seed in again and again[r.seed] != r.audit_hash]
    for seed in differing:
        print(f"seed {seed} gave two different audit hashes")
    _summary(results, took)
    _figure("sim_violations", len(bad), "seeds", "0", not bad)
    _figure("sim_seconds", round(took, 1), "s", f"180_for_500_seeds_{len(results)}_played", took <= 180)
    _figure("sim_same_hash", len(again) - len(differing), f"of_{len(again)}_seeds", str(len(again)), not differing)
    unkilled = [point for point in POINTS_HERE if not sum(result.killed_at[point] for result in results)]
    share = 100 * (len(POINTS_HERE) - len(unkilled)) // len(POINTS_HERE)
    _figure("sim_points_killed_at", share, "percent", "100", not unkilled)
    return 1 if bad or differing else 0


def _summary(results: list[Result], took: float) -> None:
    faults: Counter[str] = Counter()
    for result in results:
        faults.update(result.faults)
    commits = sum(result.commits for result in results)
    print(f"{len(results)} seeds, {sum(faults.values())} faults, {commits} commits in {took:.1f} s")
    print("  " + ", ".join(f"{name} {number}" for name, number in sorted(faults.items())))


def _figure(name: str, value: float, unit: str, goal: str, met: bool) -> None:
    print(f"FIGURE {name} {value} {unit} goal {goal} {'met' if met else 'short'}")


if __name__ == "__main__":
    sys.exit(main())
