"""`make attack`: attacks of the security review, bounded and on loopback, against a server that others use meanwhile.

Each attack is watched from outside before, during and after: the latency of /health/live, the orders of another ACME
client, and the memory of the server. Every attack meets a server of its own, with its settings as they come.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from bench.acme.jws import AccountKey
from bench.acme.processes import dismiss, hear, python, tell
from bench.figures import figure

from tests.attack.attack import Attack, Operator
from tests.attack.everything import ATTACKS
from tests.attack.watch import Seen, Watch, memory, part
from tests.support.postgres import free_port
from tests.support.processes import Served

MEMORY: Final = 64.0  # MiB that an attack may add
PROBE: Final = 100.0  # ms, of 99 in 100
BYSTANDER: Final = 10_000.0  # ms, that another team's first certificate may take, the command's own start included
BYSTANDS: Final = 5
PHASES: Final = ("before", "during", "after")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each phase")
    parser.add_argument("--only", nargs="*", choices=ATTACKS, default=list(ATTACKS))
    parser.add_argument("--open-files", type=int, default=1024, help="what the server may have, as in the review")
    asked = parser.parse_args()
    for name in asked.only:
        with tempfile.TemporaryDirectory(prefix="hfattack-") as folder:
            print(f"{ATTACKS[name].finding} {name}", flush=True)
            asyncio.run(played(ATTACKS[name], Path(folder), asked.seconds, asked.open_files))


async def played(attack: Attack, folder: Path, seconds: float, open_files: int) -> None:
    key = AccountKey.new()
    with ExitStack() as stack:
        dns, http = free_port(), free_port()
        stack.enter_context(answering(dns, http, key))
        acme = free_port()
        settings = {
            "ACME_LISTEN": f"127.0.0.1:{acme}",
            "ACME_BASE_URL": f"https://localhost:{acme}",
            "ACME_RESOLVERS": f"127.0.0.1:{dns}",
            "ACME_HTTP_PORT": str(http),
            "ACME_NETWORKS": "127.0.0.0/8",
            "LOG_LEVEL": "info",
        }
        served = stack.enter_context(Served(folder / "data", settings, open_files=open_files))
        served.wait_until_ready()
        server = served.address[1]
        operator = Operator(folder / "data")
        token = attack.prepare(operator)
        watch = Watch(served.pid, server, f"https://localhost:{acme}/acme/default/directory", key)
        await watch.look(1.0)  # what is loaded with the first order is no attack's doing
        at_first, seen = memory(served.pid), dict[str, Seen]()
        seen["before"] = await watch.look(seconds)
        with attacking(attack, server, acme, http, token):
            meanwhile = asyncio.create_task(bystanding(attack, operator))
            seen["during"] = await watch.look(seconds)
            waits = await meanwhile
        seen["after"] = await watch.look(seconds)
    told(attack.name, seen, at_first)
    if waits:
        figure(f"attack.{attack.name}.bystander_most", max(waits), "ms", BYSTANDER, max(waits) <= BYSTANDER)


async def bystanding(attack: Attack, operator: Operator) -> list[float]:
    """How long what another team does took, each time, in milliseconds."""
    waits = []
    for number in range(BYSTANDS if attack.bystander else 0):
        began = time.monotonic()
        await asyncio.to_thread(attack.bystander, operator, number)  # type: ignore[arg-type]
        waits.append(1000 * (time.monotonic() - began))
    return waits


@contextmanager
def answering(dns: int, http: int, key: AccountKey) -> Iterator[None]:
    """The world that orders are validated against."""
    process = python("bench.acme.answerer", "--dns", str(dns), "--http", str(http))
    try:
        tell(process, json.dumps({"0": key.thumbprint}))
        hear(process)
        yield
    finally:
        dismiss(process)


@contextmanager
def attacking(attack: Attack, server: int, acme: int, http: int, token: str) -> Iterator[None]:
    command = [
        sys.executable,
        "-m",
        "tests.attack.attacker",
        attack.name,
        f"--server={server}",
        f"--acme={acme}",
        f"--http={http}",
    ]
    told = {**os.environ, "ATTACKER_TOKEN": token}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=told) as process:
        try:
            if process.stdout is None or process.stdout.readline() != b"begun\n":
                raise RuntimeError(f"the attacker did not begin: {attack.name}")
            yield
        finally:
            process.kill()


def told(name: str, seen: dict[str, Seen], at_first: float) -> None:
    most = max(each.memory for each in seen.values()) - at_first
    figure(f"attack.{name}.memory_added", most, "MiB", MEMORY, most <= MEMORY)
    for phase in PHASES:
        of = seen[phase]
        for word, share in (("p50", 0.5), ("p99", 0.99)):
            probe = part(of.probes, share)
            figure(f"attack.{name}.{phase}.probe_{word}", probe, "ms", PROBE, probe <= PROBE)
        lost = of.probes_failed
        figure(f"attack.{name}.{phase}.probes_failed", lost, f"of_{len(of.probes)}", 0, not lost)
        for word, share in (("p50", 0.5), ("p99", 0.99)):
            figure(f"attack.{name}.{phase}.order_{word}", part(of.orders, share), "ms", "any", met=True)
        failed = len(of.failures)
        figure(f"attack.{name}.{phase}.orders_failed", failed, f"of_{failed + len(of.orders)}", 0, not failed)
        for why in sorted(set(of.failures)):
            print(f"  {why}", flush=True)


if __name__ == "__main__":
    main()
