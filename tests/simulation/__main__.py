"""`python -m tests.simulation`: play seeds, print violations with the seed that shows them, and the figures."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Final

from tests.simulation import experiments
from tests.simulation.experiments import Figure, Report
from tests.simulation.faults import POINTS_HERE
from tests.simulation.life_run import play_life
from tests.simulation.run import Result, play

EXPERIMENTS: Final = ("year", "storm", "outage", "mass-revocation")
ONE_LIFE_IN: Final = 5  # seeds: a life is about three times as long as the errands of a seed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=500, help="how many of errands, from --first on")
    parser.add_argument("--lives", type=int, help="how many of the lifecycle; a fifth of --seeds unless it is given")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seed", type=int, help="play this one alone, with a trace of its faults")
    parser.add_argument("--experiment", choices=[*EXPERIMENTS, "all"], help="play this instead, and print its figures")
    parser.add_argument("--certificates", type=int, help="how many the experiment has")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    wanted = parser.parse_args()
    if wanted.experiment is not None:
        return _experiments(wanted.experiment, wanted.certificates, wanted.processes)
    if wanted.seed is not None:
        return max(_one(play, wanted.seed), _one(play_life, wanted.seed))
    lives = -(-wanted.seeds // ONE_LIFE_IN) if wanted.lives is None else wanted.lives
    first = wanted.first
    return _many(range(first, first + wanted.seeds), range(first, first + lives), wanted.processes)


# ── Seeds ──


def _one(play_it: Callable[..., Result], seed: int) -> int:
    first, second = play_it(seed, trace=True), play_it(seed)
    print("\n".join(first.trace))
    print(f"{first.what} {seed}: {first.commits} commits, {first.requests} requests, audit hash {first.audit_hash}")
    print(f"the same seed again: {'the same' if first.audit_hash == second.audit_hash else 'ANOTHER'} hash")
    if first.violation:
        print(f"VIOLATION {first.violation}")
    return 1 if first.violation or first.audit_hash != second.audit_hash else 0


def _many(seeds: range, lives: range, processes: int) -> int:
    began = time.perf_counter()
    with ProcessPoolExecutor(processes) as pool:
        living = pool.map(play_life, lives, chunksize=2)
        errands = list(pool.map(play, seeds, chunksize=5))
        results = [*errands, *living]
        again = list(pool.map(_replay, results[:: max(1, len(results) // 10)]))
    took = time.perf_counter() - began
    bad = [result for result in results if result.violation]
    for result in bad:
        print(f"VIOLATION {result.what} seed {result.seed}: {result.violation}")
    hashes = {(result.what, result.seed): result.audit_hash for result in results}
    differing = [result for result in again if hashes[result.what, result.seed] != result.audit_hash]
    for result in differing:
        print(f"{result.what} seed {result.seed} gave two different audit hashes")
    _summary("errands", errands, took)
    _summary("life", results[len(errands) :], took)
    played = f"180_for_500_seeds_{len(errands)}_and_{len(results) - len(errands)}_lives_played"
    _figure("sim_violations", len(bad), "seeds", "0", not bad)
    _figure("sim_seconds", round(took, 1), "s", played, took <= 180)
    _figure("sim_same_hash", len(again) - len(differing), f"of_{len(again)}_seeds", str(len(again)), not differing)
    unkilled = [point for point in POINTS_HERE if not sum(result.killed_at[point] for result in results)]
    share = 100 * (len(POINTS_HERE) - len(unkilled)) // len(POINTS_HERE)
    _figure("sim_points_killed_at", share, "percent", "100", not unkilled)
    return 1 if bad or differing else 0


def _replay(result: Result) -> Result:
    return (play if result.what == "errands" else play_life)(result.seed)


def _summary(what: str, results: list[Result], took: float) -> None:
    faults: Counter[str] = Counter()
    for result in results:
        faults.update(result.faults)
    commits = sum(result.commits for result in results)
    print(f"{what}: {len(results)} seeds, {faults.total()} faults, {commits} commits in {took:.1f} s")
    print("  " + ", ".join(f"{name} {number}" for name, number in sorted(faults.items())))


def _figure(name: str, value: float, unit: str, goal: str, met: bool) -> None:
    print(Figure(name=name, value=value, unit=unit, goal=goal, met=met))


# ── Experiments ──


def _experiments(which: str, number: int | None, processes: int) -> int:
    broken = 0
    for name in EXPERIMENTS if which == "all" else (which,):
        broken += len(_RUN[name](number, processes))
    return 1 if broken else 0


def _year(number: int | None, processes: int) -> list[str]:
    """One installation for each process: a core can play about half of ten thousand in a minute."""
    total, began, cpu = number or 10_000, time.perf_counter(), os.times()
    shares = [total // processes + (n < total % processes) for n in range(processes)]
    with ProcessPoolExecutor(processes) as pool:
        reports = list(pool.map(experiments.year, shares, [365] * processes, range(1, processes + 1)))
    used = os.times()
    issued, faults = sum(report.counts.get("issued", 0) for report in reports), sum(report.faults for report in reports)
    lives = ", ".join(f"{share / 10:g} % of {days}" for days, share in experiments.LIVES.items())
    print(f"year: {total} certificates in {processes} installations, {issued:g} renewals, {faults} faults")
    print(f"  days that certificates live: {lives}")
    seconds = used.children_user + used.children_system - cpu.children_user - cpu.children_system
    return _told(reports, experiments.year_figures(reports, time.perf_counter() - began, seconds))


def _storm(number: int | None, processes: int) -> list[str]:
    number = number or 10_000
    with ProcessPoolExecutor(processes) as pool:
        named, unnamed = pool.submit(experiments.storm, number), pool.submit(experiments.storm, number, 1, says=None)
        polite, silent = named.result(), unnamed.result()
    print(f"storm: {number} due, 24 h of 429; all renewed {polite.counts.get('recovered_after_h')} h after it ended")
    first = _told([polite], experiments.storm_figures(polite, "sim_storm"))
    return first + _told([silent], experiments.storm_figures(silent, "sim_storm_without_retry_after"))


def _outage(number: int | None, processes: int) -> list[str]:
    report = experiments.outage(number or 10_000)
    print(f"outage: {number or 10_000} of six days; all done {report.counts.get('recovered_after_h')} h after 8 h away")
    return _told([report], experiments.outage_figures(report))


def _mass_revocation(number: int | None, processes: int) -> list[str]:
    report = experiments.mass_revocation(number or 10_000)
    print(f"mass revocation: {number or 10_000} replaced in {report.counts.get('hours')} h")
    return _told([report], experiments.mass_revocation_figures(report))


_RUN: Final = {"year": _year, "storm": _storm, "outage": _outage, "mass-revocation": _mass_revocation}


def _told(reports: list[Report], figures: list[Figure]) -> list[str]:
    broken = [report.violation for report in reports if report.violation]
    for violation in broken:
        print(f"VIOLATION {violation}")
    for figure in figures:
        print(figure)
    return broken


if __name__ == "__main__":
    sys.exit(main())
