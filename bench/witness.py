"""`make bench-witness`: certificates a second with the witness on the disk, and with a witness that costs no disk.

Servers of one kind run side by side and are loaded in turns; the medians count. The witness of the second one lies in
memory, where a sync costs nothing: the difference is what the disk of the witness costs.
"""

import argparse
import shutil
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

from tests.support.postgres import Cluster

from bench.acme import ours
from bench.acme.__main__ import answering
from bench.acme.drive import Driver, Load, Server
from bench.acme.jws import AccountKey
from bench.acme.space import Ports

LANES = (8, 32)
MEMORY = Path("/dev/shm")


def servers(stack: ExitStack, folder: Path, memory: Path, ports: Ports) -> dict[str, tuple[Server, Server]]:
    """Of each store: with its witness on the disk, and in memory."""
    cluster = stack.enter_context(Cluster(durable=True))
    found = {}
    for store in ("sqlite", "postgresql"):
        pair = []
        for name, witness in ((f"{store}-disk", ""), (f"{store}-memory", str(memory / store))):
            settings = {"HOLDFAST_WITNESS_FOLDER": witness} if witness else {}
            if store == "postgresql":
                settings["HOLDFAST_STORE_URL"] = cluster.create_database()
            where, pid = stack.enter_context(ours._serving(name, folder / name, ports, settings))
            pair.append(ours._server(name, where, {"server": pid}))
        found[store] = (pair[0], pair[1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    wanted = parser.parse_args()
    folder, memory = Path(tempfile.mkdtemp(prefix="holdfast-bench-")), Path(tempfile.mkdtemp(dir=MEMORY))
    keys = [AccountKey.new() for _ in range(max(LANES))]
    ports = Ports(dns=ours.free_port(), http=ours.free_port())
    rates: dict[tuple[str, int, int], list[float]] = {}
    try:
        with ExitStack() as stack:
            answerer = stack.enter_context(answering(ports, keys))
            chosen = SimpleNamespace(processes=2, keys=keys, answerer=answerer, folder=folder, warm_s=0.7, window_s=2.5)
            driver = stack.enter_context(Driver(**vars(chosen)))
            pairs = servers(stack, folder, memory, ports)
            for _ in range(wanted.rounds):
                for store, pair in pairs.items():
                    for lanes in LANES:
                        for which, server in enumerate(pair):
                            measured = driver.measure(server, Load(lanes))
                            rates.setdefault((store, lanes, which), []).append(measured.rate)
    finally:
        for each in (folder, memory):
            shutil.rmtree(each, ignore_errors=True)
    for store, lanes in sorted({key[:2] for key in rates}):
        disk, free = (statistics.median(rates[store, lanes, which]) for which in (0, 1))
        print(f"FIGURE witness_{store}_{lanes} certificates_per_s disk={disk:.1f} memory={free:.1f} "
              f"ratio={disk / free:.3f} rounds={wanted.rounds}")  # fmt: skip


if __name__ == "__main__":
    main()
