"""The issuance part of `make kill`: a certificate from each kind of CA, killed at every point, on both stores."""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.kill.ca_part import spread
from tests.kill.harness import Case
from tests.kill.issuance import POINTS, IssuanceHarness, Issuing, Outcome, sown
from tests.kill.issuance_cas import FAKES, WITHOUT_TRACE, AtPebble, Ca, Hosting, Later, Own
from tests.support.acme_seed import Seed
from tests.support.child import Strike
from tests.support.grounds import Ground, look
from tests.support.postgres import Cluster
from tests.support.reaper import until

MOST: Final = 8  # passages of one point at a CA that issues later, unless all are wanted
GRACE: Final = 5.0
Figure = Callable[..., None]
HTTP: Final = frozenset({"http.asking", "http.answered"})  # our own CA is asked without


@dataclass(slots=True)
class IssuanceTally:
    """What became of all the runs at one CA, on one store."""

    name: str
    ca: str
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def unfired(self) -> list[Case]:
        """Passages that never came, and points without any."""
        points = {outcome.case.point for outcome in self.outcomes}
        wanted = POINTS - HTTP if self.ca == "own" else POINTS
        return [each.case for each in self.outcomes if not each.fired] + [Case(p, 0) for p in sorted(wanted - points)]

    @property
    def bad(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.problems]


def strike(harness: IssuanceHarness, ca: str, most: int | None) -> IssuanceTally:
    tally = IssuanceTally(harness.name, ca)
    counts = harness.census()
    cases = spread(counts, most)
    say(f"issuance, {harness.name}: {len(cases)} of {counts.total()} passages of {len(counts)} points")
    for outcome in harness.run(cases):
        tally.outcomes.append(outcome)
        if not outcome.fired or outcome.problems:
            say(f"issuance, {harness.name}: {outcome.case}: {'; '.join(outcome.problems) or 'never passed'}")
    return tally


@contextmanager
def all_cas(folder: Path) -> Iterator[dict[str, Ca]]:
    with ExitStack() as stack:
        hosting = stack.enter_context(Hosting())
        (folder / "pebble").mkdir()
        cas: list[Ca] = [Own(), stack.enter_context(AtPebble(folder / "pebble"))]
        cas += [Later(name, folder / "fakes", hosting) for name in FAKES]
        yield {each.name: each for each in cas}


def part(folder: Path, cluster: Cluster, figure: Figure, *, most: int | None, ttl: float = 30.0) -> None:
    """Run it all, and print the figures. Pebble and our own CA are struck at every passage, unless in a hurry."""
    began = time.monotonic()
    seeds = {own: [asyncio.run(sown(folder, each, own=own)) for each in (None, cluster)] for own in (False, True)}
    with all_cas(folder) as cas, ThreadPoolExecutor(4, thread_name_prefix="issuance") as threads:
        moved = threads.submit(takeover, cas["digicert"], folder, seeds[False][1], ttl)
        every = most if most is not None and most <= 2 else None
        struck = [
            threads.submit(
                strike, IssuanceHarness(ca, folder, seed), name, every if name in ("own", "pebble") else most
            )
            for name, ca in cas.items()
            for seed in seeds[name == "own"]
        ]
        tallies = [each.result() for each in struck]
        seconds = moved.result()
    say(f"issuance: took {time.monotonic() - began:.0f} s")
    figures(tallies, figure)
    figure("issuance_takeover_after_sigkill", seconds, "s", ttl + GRACE, met=seconds <= ttl + GRACE)


def figures(tallies: list[IssuanceTally], figure: Figure) -> None:
    runs = [outcome for tally in tallies for outcome in tally.outcomes]
    figure("issuance_kills", len(runs), "kills", 1, met=bool(runs))
    fired = 100 * sum(run.fired for run in runs) / max(1, len(runs))
    figure("issuance_kill_points_fired", fired, "percent", 100, met=not any(tally.unfired for tally in tallies))
    truths = [(tally.ca, run.truth) for tally in tallies for run in tally.outcomes if run.truth is not None]
    doubled = sum(truth.certificates > 1 for ca, truth in truths if ca not in WITHOUT_TRACE)
    figure("issuance_duplicate_certificates", doubled, "certificates", 0, met=doubled == 0)
    again = sum(truth.orders > 1 for ca, truth in truths if ca not in WITHOUT_TRACE)
    figure("issuance_second_orders", again, "orders", 0, met=again == 0)
    signed = max((truth.orders for ca, truth in truths if ca in WITHOUT_TRACE), default=1)
    figure("issuance_signatures_without_trace", signed, "signatures", 2, met=signed <= 2)
    keyless = sum(run.keyless for run in runs)
    figure("issuance_keyless_certificates", keyless, "certificates", 0, met=keyless == 0)
    wrong = sum(len(tally.bad) for tally in tallies)
    figure("issuance_audits_with_findings", wrong, "runs", 0, met=wrong == 0)


# ── Two replicas ──


def takeover(ca: Ca, folder: Path, seed: Seed, ttl: float) -> float:
    """Seconds from the death of the replica that placed an order to the certificate, which another one puts in use."""
    with seed.grown(folder) as place, ca.open() as one:
        where = place.folder / "ca.json"
        where.write_text(json.dumps(one.description))
        wishes = (f"--ttl={ttl}", "--stay")
        with Issuing(place, where, "first", *wishes, strike=Strike("kill", "http.answered", 2)) as first:
            died_at = first.wait_for("kill").at  # the other comes now: earlier it might have done all the work
            with Issuing(place, where, "second", *wishes) as second:
                until(lambda: _active(place), "the certificate", every=0.05)
                seconds = time.monotonic() - died_at
                if len(second.said("passed", "http.answered")) == 0:
                    raise AssertionError("the second replica had nothing to do")
        orders = len(one.fake.orders)
        if orders != 1:
            raise AssertionError(f"there are {orders} orders at the CA")
        return seconds


def _active(place: Ground) -> bool:
    return bool(look(place, lambda tx: tx.rows("SELECT id FROM certificate_versions WHERE state = 'active'")))


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
