"""What is printed: a table of all runs, and a figure for every goal."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median

from bench.acme.drive import Load, Measured
from bench.figures import figure, skipped

OURS = ("holdfast-sqlite", "holdfast-postgresql")
SHORT = 80  # characters of a reason; the table has all of it

# What a column shows, the median of the runs, and with how many digits; "ms" of a process is CPU a certificate,
# "others" the cores that the rest of the machine used meanwhile: above a few tenths, run it again at a quieter time.
COLUMNS: tuple[tuple[str, Callable[[Measured], float | None], int], ...] = (
    ("in flight", lambda run: None, 0),
    ("accounts", lambda run: None, 0),
    ("certs/s", lambda run: run.rate, 1),
    ("p50 ms", lambda run: run.p50, 1),
    ("p99 ms", lambda run: run.p99, 1),
    ("failed", lambda run: None, 0),
    ("requests", lambda run: run.requests, 2),
    ("server ms", lambda run: run.server_ms["server"], 2),
    ("database ms", lambda run: run.server_ms.get("database"), 2),
    ("client ms", lambda run: run.client_ms, 2),
    ("answerer ms", lambda run: run.answerer_ms, 2),
    ("commits", lambda run: run.commits, 2),
    ("sync ms", lambda run: run.sync_ms, 1),
    ("others", lambda run: run.others, 2),
)


@dataclass(slots=True)
class Results:
    """All runs by server and load, and why there are none where there are none."""

    by_turn: dict[tuple[str, Load], dict[int, Measured]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)  # server → why it, or a run of it, is not there
    lost: Counter[str] = field(default_factory=Counter)  # server → orders of runs that gave no certificate

    def note(self, server: str, load: Load, turn: int, run: Measured) -> None:
        self.by_turn.setdefault((server, load), {})[turn] = run

    def runs(self, server: str, load: Load) -> list[Measured]:
        return list(self.by_turn.get((server, load), {}).values())

    def ratio(self, mine: tuple[str, Load], theirs: tuple[str, Load]) -> float | None:
        """Compare within each round, where runs are seconds apart: the disk of one minute is not that of the next."""
        above, below = self.by_turn.get(mine, {}), self.by_turn.get(theirs, {})
        found = [above[turn].rate / below[turn].rate for turn in above if turn in below and below[turn].rate]
        return median(found) if found else None

    def why(self, *servers: str) -> str:
        return next((self.missing[each][:SHORT] for each in servers if each in self.missing), "it was not measured")


def table(results: Results) -> None:
    print(_line("server", [title for title, _, _ in COLUMNS]) + "  certs/s of each run")
    for (server, load), runs in results.by_turn.items():
        print(_row(server, load, list(runs.values())))
    for (server, load), runs in results.by_turn.items():
        failures = sum((Counter(run.failures) for run in runs.values()), Counter[str]())
        for reason, times in failures.most_common(3):
            print(f"{server}, {load}: {times} orders failed with {reason}")
    for server, why in results.missing.items():
        print(f"{server}: {why}")


def _row(server: str, load: Load, runs: list[Measured]) -> str:
    failed, orders = sum(run.failed + run.hung for run in runs), sum(run.failed + run.hung + run.done for run in runs)
    known = {
        "in flight": f"{load.lanes}",
        "accounts": "one" if load.one_account else "own",
        "failed": f"{failed}/{orders}",
    }
    cells = [known.get(title) or _cell([what(run) for run in runs], digits) for title, what, digits in COLUMNS]
    return _line(server, cells) + f"  {', '.join(f'{run.rate:.0f}' for run in runs)}"


def _cell(values: list[float | None], digits: int) -> str:
    known = [value for value in values if value is not None]
    return f"{median(known):.{digits}f}" if known else "-"


def _line(server: str, cells: list[str]) -> str:
    return f"{server:20}" + "".join(
        f"{cell:>{max(len(title), 8) + 2}}" for cell, (title, _, _) in zip(cells, COLUMNS, strict=True)
    )


def figures(results: Results) -> None:
    for server in OURS:
        _rates(results, server)
        _failed(results, server)
        _costs(results, server)
        _latencies(results, server)


def _rates(results: Results, server: str) -> None:
    store = server.removeprefix("holdfast-")
    for lanes in (8, 32):
        _ratio(results, f"acme_{store}_vs_caddy_at_{lanes}", (server, Load(lanes)), ("caddy", Load(lanes)), 2)
    for lanes in (8, 32):
        shared = (server, Load(lanes, one_account=True))
        _ratio(results, f"acme_{store}_one_account_vs_own_at_{lanes}", shared, (server, Load(lanes)), 0.9)
    _ratio(results, f"acme_{store}_vs_pebble_at_8", (server, Load(8)), ("pebble", Load(8)), 0.5)


def _ratio(results: Results, name: str, mine: tuple[str, Load], theirs: tuple[str, Load], least: float) -> None:
    ratio = results.ratio(mine, theirs)
    if ratio is None:
        skipped(name, results.why(mine[0], theirs[0]))
    else:
        figure(name, round(ratio, 2), "x", f">={least}", ratio >= least)


def _failed(results: Results, server: str) -> None:
    name = f"acme_{server.removeprefix('holdfast-')}_failed_orders"
    runs = [run for (each, _), found in results.by_turn.items() if each == server for run in found.values()]
    if not runs:
        return skipped(name, results.why(server))
    failed = sum(run.failed + run.hung for run in runs) + results.lost[server]
    return figure(name, failed, "orders", 0, failed == 0 and server not in results.missing)


def _costs(results: Results, server: str) -> None:
    store = server.removeprefix("holdfast-")
    runs = results.runs(server, Load(8))
    used = [run.server_ms["server"] for run in runs]
    _at_most(results, server, f"acme_{store}_server_cpu_per_certificate", used, "ms", 5)
    for lanes in (1, 8):
        commits = [run.commits for run in results.runs(server, Load(lanes)) if run.commits is not None]
        name = f"acme_{store}_commits_per_order_at_{lanes}"
        if runs and not commits:
            skipped(name, "the server does not count its commits")
        else:
            _at_most(results, server, name, commits, "commits", 6)


def _latencies(results: Results, server: str) -> None:
    """For a goal they have Caddy's of the same run."""
    ways: Mapping[str, Callable[[Measured], float]] = {"p50": lambda run: run.p50, "p99": lambda run: run.p99}
    for lanes in (8, 32):
        for name, what in ways.items():
            mine, theirs = ([what(run) for run in results.runs(each, Load(lanes))] for each in (server, "caddy"))
            title = f"acme_{server.removeprefix('holdfast-')}_{name}_at_{lanes}_vs_caddy"
            if theirs:
                _at_most(results, server, title, mine, "ms", round(median(theirs), 1))
            else:
                skipped(title, results.why("caddy"))


def _at_most(results: Results, server: str, name: str, values: list[float], unit: str, most: float) -> None:
    if values:
        figure(name, round(median(values), 2), unit, f"<={most}", median(values) <= most)
    else:
        skipped(name, results.why(server))
