"""Three replicas behind HAProxy, each on a machine of its own with the world that it validates against."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any, Final

from tests.cluster.space import HERE, PATH, Machine, Space
from tests.support.reaper import until

ROOT: Final = Path(__file__).parents[2]
START_S: Final = 90.0
ENOUGH: Final = "1000000"  # a limit that one address does not meet here
LIMITS: Final = (
    "ORDERS_PER_ACCOUNT", "REQUESTS_PER_ADDRESS", "REQUESTS_PER_ACCOUNT", "PENDING_PER_ADDRESS", "PENDING_PER_ACCOUNT",
    "NAMES_PER_ADDRESS", "NAMES_PER_ACCOUNT", "ACCOUNTS_PER_ADDRESS",
)  # fmt: skip
BALANCER: Final = """
global
  maxconn 2000
defaults
  timeout connect 2s
  timeout client 60s
  timeout server 60s
frontend acme
  mode tcp
  bind {here}:8631
  default_backend acme
backend acme
  mode tcp
  balance roundrobin
  option httpchk GET /health/ready
  default-server check port 8630 inter 1s fall 2 rise 1 on-marked-down shutdown-sessions
{acme}
frontend web
  mode http
  bind {here}:8630
  default_backend web
backend web
  mode http
  balance roundrobin
  option httpchk GET /health/ready
  option redispatch
  retries 2
  default-server check inter 1s fall 2 rise 1
{web}
"""


class Replica:
    """One `holdfast serve`; `source` is the source folder of the version that it runs."""

    def __init__(self, machine: Machine, folder: Path, store: str) -> None:
        self.machine, self.folder, self.store = machine, folder, store
        self.source = ROOT / "src"
        (folder / machine.name).mkdir()

    @property
    def environment(self) -> dict[str, str]:
        chosen = {
            "STORE_URL": self.store,
            "STORE_DATA_DIR": str(self.folder / self.machine.name),
            "KEYS_FILE": str(self.folder / "holdfast.key"),
            "REPLICA_NAME": self.machine.name,
            "SERVER_LISTEN": "0.0.0.0:8630",
            "ACME_LISTEN": "0.0.0.0:8631",
            "ACME_BASE_URL": f"https://{HERE}:8631",
            "ACME_PUBLISH_URL": f"http://{HERE}:8630",
            "ACME_RESOLVERS": "127.0.0.1:53",
            "ACME_NETWORKS": "127.0.0.0/8",
            "ENGINE_LEASE_TTL": "10s",
            "LOG_FORMAT": "json",
            **{f"ACME_{name}": ENOUGH for name in LIMITS},
        }
        return {
            "PATH": PATH, "HOME": str(self.folder), "PYTHONPATH": str(self.source),
            **{f"HOLDFAST_{name}": value for name, value in chosen.items()},
        }  # fmt: skip

    @property
    def log(self) -> Path:
        return self.folder / f"{self.machine.name}.log"

    def start(self) -> None:
        self.machine.start(sys.executable, "-m", "holdfast.cli.main", "serve", log=self.log, env=self.environment)

    def stop(self) -> int:
        """As a service manager does; its exit code. The world around it stays."""
        process = self.machine.processes[-1]
        os.kill(process.pid, signal.SIGTERM)
        code = process.wait(60)
        self.machine.processes.remove(process)
        return code

    def kill(self) -> None:
        process = self.machine.processes.pop()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()

    def freeze(self, *, frozen: bool) -> None:
        os.kill(self.machine.processes[-1].pid, signal.SIGSTOP if frozen else signal.SIGCONT)

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.machine.address}:8630/health/ready", timeout=3) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def wait_until_ready(self) -> None:
        until(self.ready, f"{self.machine.name} to be ready: {self.log}", seconds=START_S, every=0.2)

    def command(self, *words: str) -> Any:
        """A command on its machine, in JSON."""
        done = subprocess.run(
            ["ip", "netns", "exec", self.machine.name, sys.executable, "-m", "holdfast.cli.main", *words, "-o", "json"],
            env=self.environment, capture_output=True, text=True, timeout=START_S, check=False,
        )  # fmt: skip
        if done.returncode not in (0, 10):
            raise OSError(f"holdfast {' '.join(words)}: {done.stderr or done.stdout}")
        return json.loads(done.stdout)


class Replicas:
    def __init__(self, space: Space, folder: Path, store: str, thumbprints: dict[str, str]) -> None:
        self.folder = folder
        (folder / "holdfast.key").touch(0o600)
        (folder / "holdfast.key").unlink()
        machines = [space.machine(f"r{n}", f"10.77.0.2{n}") for n in (1, 2, 3)]
        self.all = [Replica(machine, folder, store) for machine in machines]
        self._balancer: subprocess.Popen[bytes] | None = None
        self._worlds = [self._world(machine, thumbprints) for machine in machines]

    def _world(self, machine: Machine, thumbprints: dict[str, str]) -> subprocess.Popen[str]:
        """Every name leads to the machine itself, where every challenge is answered."""
        words = ["ip", "netns", "exec", machine.name, sys.executable, "-m", "bench.acme.answerer", "--dns", "53"]
        process = subprocess.Popen(
            [*words, "--http", "80"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        if process.stdin is None or process.stdout is None:
            raise AssertionError("it has pipes")
        process.stdin.write(json.dumps(thumbprints) + "\n")
        process.stdin.flush()
        if process.stdout.readline().strip() != "ready":
            raise OSError(f"the answerer of {machine.name} did not start")
        return process

    def start(self) -> None:
        """The first makes the schema and the CA; the others find them."""
        for replica in self.all:
            replica.start()
            replica.wait_until_ready()
        servers = {
            kind: "\n".join(f"  server {each.machine.name} {each.machine.address}:{port}" for each in self.all)
            for kind, port in (("acme", 8631), ("web", 8630))
        }
        config = self.folder / "haproxy.cfg"
        config.write_text(BALANCER.format(here=HERE, **servers))
        with (self.folder / "haproxy.log").open("ab") as log:
            words = ["setpriv", "--pdeathsig", "KILL", "haproxy", "-db", "-f", str(config)]
            self._balancer = subprocess.Popen(words, env={"PATH": PATH}, stdout=log, stderr=log)

    def found_again(self, what: str) -> int:
        """How many certificates or revocations witnesses gave back to a database that had lost them."""
        lines = [line for replica in self.all for line in replica.log.read_text(errors="replace").splitlines()]
        return sum(json.loads(line)[what] for line in lines if '"event": "witness.replayed"' in line)

    def close(self) -> None:
        for replica in self.all:
            replica.machine.kill()
        for world in self._worlds:
            world.kill()
            world.wait()
        if self._balancer is not None:
            self._balancer.kill()
            self._balancer.wait()
