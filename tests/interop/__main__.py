"""`make interop`: other people's ACME clients get, renew and revoke; then again with half the nonces refused.

Everything runs in a network namespace of its own, with a DNS server of ours; packages are kept in a cache folder.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from bench.figures import figure, skipped

from tests.interop import dns, namespace, servers
from tests.interop.clients import CLIENTS
from tests.interop.packages import CannotBeHad, Package, Tool, obtain
from tests.interop.site import SCENARIOS, Client
from tests.interop.trial import Outcome, trial

TAIL: Final = 30  # lines of a client's output that a failure shows
Reasons = dict[str, str]


def main() -> int:
    args = arguments()
    chosen = [client for client in CLIENTS if not args.only or client.name in args.only]
    if not namespace.inside():
        for client in chosen:
            had(client.package, args.cache, client.name)
        if args.server == "pebble":
            had(servers.PEBBLE, args.cache, "pebble")
        namespace.enter(sys.argv[1:])
    folder = Path(tempfile.mkdtemp(prefix="holdfast-interop-"))
    folder.chmod(0o755)  # some clients give up root
    try:
        namespace.settle(folder)
        with dns.running():
            outcomes = [each for nonces in args.nonces for each in one_pass(args, chosen, folder, nonces)]
    finally:
        if args.keep:
            say(f"logs and all else, with the clients' keys, are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return report(args, chosen, outcomes)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.interop", description=__doc__)
    parser.add_argument("--server", choices=("holdfast", "pebble"), default="holdfast", help="the server under test")
    parser.add_argument("--only", nargs="+", metavar="CLIENT", choices=[client.name for client in CLIENTS])
    parser.add_argument("--nonces", nargs="+", type=int, default=[0, 50], help="percentage refused, a pass for each")
    parser.add_argument("--cache", type=Path, default=default_cache(), help="where the packages are kept")
    parser.add_argument("--keep", action="store_true", help="leave logs and everything else where they are")
    parser.add_argument("--record", action="store_true", help="show what client and server said before a failure")
    return parser.parse_args()


def default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast-interop"


def had(package: Package, cache: Path, name: str) -> bool:
    """Install it now, while there is a network."""
    try:
        obtain(package, cache)
    except CannotBeHad as why:
        say(f"{name}: skipped: {why}")
        (cache / package.folder / "reason").write_text(str(why))
        return False
    return True


def tool(package: Package, cache: Path) -> Tool | str:
    """The package, or the reason why there is none."""
    reason = cache / package.folder / "reason"
    return reason.read_text() if reason.exists() else obtain(package, cache)


def one_pass(args: argparse.Namespace, chosen: Sequence[Client], folder: Path, nonces: int) -> Iterator[Outcome]:
    """Every client once, against a fresh server."""
    place = folder / f"nonces{nonces}"
    place.mkdir()
    with server(args, place, nonces) as running:
        for client in chosen:
            found = tool(client.package, args.cache)
            if isinstance(found, str):
                yield from (Outcome(client.name, each, "skipped", nonces, detail=found) for each in client.does)
                continue
            for outcome in trial(client, place / client.name, found, running, nonces):
                show(outcome)
                yield outcome


def server(args: argparse.Namespace, folder: Path, nonces: int) -> AbstractContextManager[servers.Server]:
    if args.server == "holdfast":
        return servers.holdfast(folder, nonces, record=args.record)
    found = tool(servers.PEBBLE, args.cache)
    if isinstance(found, str):
        raise SystemExit(f"there is no pebble to try: {found}")
    return servers.pebble(folder, found, nonces, record=args.record)


# ── what is printed ──


def show(outcome: Outcome) -> None:
    say(f"{outcome.client} {outcome.scenario}: {outcome.verdict} {outcome.seconds:.1f} s")
    if outcome.verdict in ("FAILED", "limit"):
        print("\n".join(f"    | {line}" for line in outcome.detail.strip().splitlines()[-TAIL:]), flush=True)
    if outcome.verdict == "FAILED" and outcome.exchanges:
        print("\n".join(f"    {line}" for line in outcome.exchanges.splitlines()[-2 * TAIL :]), flush=True)


def report(args: argparse.Namespace, chosen: Sequence[Client], outcomes: Sequence[Outcome]) -> int:
    for nonces in args.nonces:
        print(f"\n{args.server}, {nonces} % of good nonces refused")
        table(args, chosen, [each for each in outcomes if each.nonces == nonces])
    print()
    for outcome in outcomes:
        name = ".".join(("interop", outcome.client.replace(".", "-"), outcome.scenario))
        name += f".nonces{outcome.nonces}" if outcome.nonces else ""
        if outcome.verdict in ("ok", "FAILED"):
            figure(name, int(outcome.verdict == "ok"), "passed", 1, outcome.verdict == "ok")
        else:
            skipped(name, limit(chosen, outcome) if outcome.verdict == "limit" else outcome.detail)
    return int(any(outcome.verdict == "FAILED" for outcome in outcomes))


def limit(chosen: Sequence[Client], outcome: Outcome) -> str:
    return f"the client's own limit: {next(client.nonces for client in chosen if client.name == outcome.client)}"


def table(args: argparse.Namespace, chosen: Sequence[Client], outcomes: Sequence[Outcome]) -> None:
    print(f"{'client':<16} {'version':<22}" + "".join(f"{each:<13}" for each in SCENARIOS))
    for client in chosen:
        found = tool(client.package, args.cache)
        cells = {each.scenario: each for each in outcomes if each.client == client.name}
        version = "-" if isinstance(found, str) else found.version
        print(f"{client.name:<16} {version:<22}" + "".join(f"{cell(cells.get(each)):<13}" for each in SCENARIOS))


def cell(outcome: Outcome | None) -> str:
    if outcome is None:
        return "-"
    return f"ok {outcome.seconds:.1f} s" if outcome.verdict == "ok" else outcome.verdict


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
