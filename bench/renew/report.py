"""What is printed: what each renewal and each scan took, and a figure for every goal."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.figures import figure, skipped
from bench.renew.certbot import ByCertbot
from bench.renew.ours import ByUs
from bench.renew.scan import Table

SHORT = 80  # characters of a reason; the lines above have all of it
MILLION = 1_000_000
FASTER, SLOWER = 20, 1.5  # than certbot, at least; than the small table, at most


@dataclass(slots=True)
class Results:
    """All that was measured, by store, and why the rest was not."""

    certbot: ByCertbot | None = None
    ours: dict[str, ByUs] = field(default_factory=dict)
    scans: dict[str, list[Table]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def why(self, *names: str) -> str:
        return next((self.missing[each][:SHORT] for each in names if each in self.missing), "it was not measured")


def table(results: Results, number: int) -> None:
    """ "others" are the cores that the rest of the machine used meanwhile: above a few tenths, run it again."""
    for store, run in results.ours.items():
        database = "" if run.database_cpu_s is None else f", database {1000 * run.database_cpu_s / run.number:.2f} ms"
        print(
            f"holdfast on {store}: {run.number} renewed in {run.wall_s:.2f} s, {run.number / run.wall_s:.0f} a second; "
            f"CPU each: server {1000 * run.server_cpu_s / run.number:.2f} ms{database}; others {run.others:.2f}"
        )
    if (theirs := results.certbot) is not None:
        print(
            f"certbot {theirs.version}: {theirs.number} renewed in {theirs.wall_s:.2f} s, {theirs.each_s:.2f} s each; "
            f"reckoned from these, not measured: {number} in {theirs.each_s * number:.0f} s"
        )
    for store, tables in results.scans.items():
        for each in tables:
            print(f"{store}, {each.rows} certificates: scan {each.scan_ms:.2f} ms, sweep {each.sweep_ms:.0f} ms")


def figures(results: Results, stores: Sequence[str]) -> None:
    for store in stores:
        _renewals(results, store)
    for store in stores:
        _scans(results, store)


def _renewals(results: Results, store: str) -> None:
    name, mine, theirs = f"renew_vs_certbot_{store}", results.ours.get(store), results.certbot
    if mine is None or theirs is None:
        return skipped(name, results.why(store, "certbot"))
    ratio = theirs.each_s / mine.each_s
    return figure(name, round(ratio, 1), "x", f">={FASTER}", ratio >= FASTER)


def _scans(results: Results, store: str) -> None:
    """The scan alone, and the whole sweep, which begins what it found."""
    for what in ("scan", "sweep"):
        name = f"due_{what}_1m_vs_10k_{store}"
        if store not in results.scans:
            skipped(name, results.why(store))
            continue
        if (rows := results.scans[store][1].rows) != MILLION:
            skipped(name, f"it was asked for with {rows} certificates")
            continue
        small, large = (each.scan_ms if what == "scan" else each.sweep_ms for each in results.scans[store])
        figure(name, round(large / small, 2), "x", f"<={SLOWER}", large / small <= SLOWER)
