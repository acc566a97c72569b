"""Our side of a run: the load processes are told what to do, and what they and the server used is added up."""

import json
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from subprocess import Popen
from types import TracebackType
from typing import Self

from bench.acme.jws import AccountKey
from bench.acme.load import Run, Share
from bench.acme.processes import cpu_seconds, dismiss, hear, machine_seconds, python, tell

POLL_S = 0.005  # the first pause between two looks
LEAD_S = 0.1  # between saying when to start and starting


class LoadFailed(Exception):
    """The run gave nothing to count: no server, no account, or not one certificate for so many orders."""

    def __init__(self, why: str, *, orders: int = 0) -> None:
        super().__init__(why)
        self.orders = orders


@dataclass(frozen=True, slots=True)
class Server:
    """A server under load; `processes` are those whose work is counted, by what they are."""

    name: str
    directory: str
    processes: Mapping[str, int]
    commits: Callable[[], float | None] = lambda: None  # so far


@dataclass(frozen=True, slots=True)
class Load:
    """So many orders in flight, each lane with an account of its own or all with one."""

    lanes: int
    one_account: bool = False

    def __str__(self) -> str:
        return f"{self.lanes} in flight, {'one account' if self.one_account else 'own accounts'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one run gave."""

    rate: float  # certificates a second, within the window
    p50: float  # milliseconds an order
    p99: float
    done: int
    failed: int
    hung: int
    requests: float  # a certificate
    client_ms: float  # CPU a certificate
    server_ms: Mapping[str, float]
    answerer_ms: float
    commits: float | None  # an order
    others: float  # cores that the rest of the machine used meanwhile
    sync_ms: float  # one durable write on this disk, just before
    failures: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What had been used up to an instant, in seconds of CPU, and how many commits had been made."""

    at: float
    machine: float
    server: Mapping[str, float]
    answerer: float
    commits: float | None


class Driver:
    """The load processes, which stay for all runs, and the account keys that every server is asked with."""

    def __init__(
        self, *, processes: int, keys: list[AccountKey], answerer: int, folder: Path, warm_s: float, window_s: float
    ) -> None:
        self.processes = processes
        self.keys = keys
        self.answerer = answerer
        self.folder = folder
        self.warm_s = warm_s
        self.window_s = window_s
        self._runs = 0

    def __enter__(self) -> Self:
        self._workers = [python("bench.acme.load") for _ in range(self.processes)]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            dismiss(worker)

    def measure(self, server: Server, load: Load) -> Measured:
        """Make one run; LoadFailed if there is nothing to count."""
        workers = self._workers[: load.lanes]
        self._prepare(workers, server, load)
        sync, before = sync_ms(self.folder), self._read(server)
        for worker in workers:
            tell(worker, str(time.monotonic() + LEAD_S))
        shares = [Share(**json.loads(said)) for said in self._heard(workers, "{")]
        return summed(shares, before, self._read(server), window_s=self.window_s, sync=sync)

    def _read(self, server: Server) -> Reading:
        return Reading(
            at=time.monotonic(),
            machine=machine_seconds(),
            server={what: cpu_seconds(pid) for what, pid in server.processes.items()},
            answerer=cpu_seconds(self.answerer),
            commits=server.commits(),
        )

    def _prepare(self, workers: list[Popen[str]], server: Server, load: Load) -> None:
        self._runs += 1
        for number, worker in enumerate(workers):
            lanes = range(number, load.lanes, len(workers))
            accounts = [0 if load.one_account else lane for lane in lanes]
            run = Run(
                directory=server.directory,
                keys=[self.keys[account].secret for account in accounts],
                accounts=accounts,
                label=f"{self._runs}p{number}",
                poll_s=POLL_S,
                warm_s=self.warm_s,
                window_s=self.window_s,
                prepared=int(250 / len(workers) * (self.warm_s + self.window_s)),
            )
            tell(worker, json.dumps(asdict(run)))
        self._heard(workers, "ready")

    def _heard(self, workers: list[Popen[str]], beginning: str) -> list[str]:
        """What each says next; if one says something else, they all start anew, because the rest wait for it."""
        heard = [hear(worker) for worker in workers]
        other = [said for said in heard if not said.startswith(beginning) or said.startswith('{"error"')]
        if other:
            self.__exit__(None, None, None)
            self.__enter__()
            raise LoadFailed(other[0] or "a load process ended")
        return heard


def summed(shares: list[Share], before: Reading, after: Reading, *, window_s: float, sync: float) -> Measured:
    done, hung = sum(share.done for share in shares), sum(share.hung for share in shares)
    latencies = sorted(ms for share in shares for ms in share.latencies)
    failures = sum((Counter(share.failures) for share in shares), Counter[str]())
    if len(latencies) < 2:
        why = f"{done} certificates, {hung} orders hung, failures: {dict(failures.most_common(3))}"
        raise LoadFailed(why, orders=hung + failures.total())
    cuts = statistics.quantiles(latencies, n=100, method="inclusive")
    client, answerer = sum(share.cpu_s for share in shares), after.answerer - before.answerer
    server = {what: after.server[what] - before.server[what] for what in after.server}
    others = after.machine - before.machine - client - answerer - sum(server.values())
    return Measured(
        rate=sum(share.counted for share in shares) / window_s,
        p50=cuts[49],
        p99=cuts[98],
        done=done,
        failed=failures.total(),
        hung=hung,
        requests=sum(share.requests for share in shares) / done,
        client_ms=1000 * client / done,
        answerer_ms=1000 * answerer / done,
        server_ms={what: 1000 * seconds / done for what, seconds in server.items()},
        commits=None if before.commits is None or after.commits is None else (after.commits - before.commits) / done,
        others=others / (after.at - before.at),
        sync_ms=sync,
        failures=failures,
    )


def sync_ms(folder: Path) -> float:
    """What one durable write costs just now: it bounds every server but pebble, and on a shared disk it changes."""
    costs = []
    with (folder / "sync").open("wb", buffering=0) as file:
        for _ in range(9):
            file.write(bytes(4096))
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            costs.append(1000 * (time.perf_counter() - began))
    return statistics.median(costs)
