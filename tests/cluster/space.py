"""Machines without machines: network namespaces on a bridge, in a network of our own that ends with us."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from bench.acme.space import raise_loopback

HERE: Final = "10.77.0.1"  # clients, the load balancer and etcd
PATH: Final = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin:/usr/lib/postgresql/15/bin"
PACKAGES: Final = {
    "ip": "iproute2", "iptables": "iptables", "unshare": "util-linux", "setpriv": "util-linux", "etcd": "etcd-server",
    "patroni": "patroni", "haproxy": "haproxy", "postgres": "postgresql-15", "pg_rewind": "postgresql-15",
}  # fmt: skip


def missing() -> list[str]:
    """Packages of Debian that have what is not here."""
    return sorted({package for program, package in PACKAGES.items() if shutil.which(program, path=PATH) is None})


def enter(module: str, *words: str) -> None:
    """Start the module again in a new network and with mounts of its own, in place of this process."""
    os.execvp("unshare", ["unshare", "--net", "--mount", sys.executable, "-m", module, *words])


def run(*words: str) -> None:
    done = subprocess.run(words, env={"PATH": PATH}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")


class Space:
    """The bridge, and the machines on it."""

    def __init__(self) -> None:
        raise_loopback()
        run("mount", "-t", "tmpfs", "tmpfs", "/run/netns") if Path("/run/netns").exists() else None
        run("ip", "link", "add", "br0", "type", "bridge")
        run("ip", "addr", "add", f"{HERE}/24", "dev", "br0")
        run("ip", "link", "set", "br0", "up")

    def machine(self, name: str, address: str) -> Machine:
        run("ip", "netns", "add", name)
        run("ip", "link", "add", f"v-{name}", "type", "veth", "peer", "name", "eth0", "netns", name)
        run("ip", "link", "set", f"v-{name}", "master", "br0", "up")
        for words in (("link", "set", "lo", "up"), ("addr", "add", f"{address}/24", "dev", "eth0")):
            run("ip", "-n", name, *words)
        run("ip", "-n", name, "link", "set", "eth0", "up")
        return Machine(name, address)


class Machine:
    """A namespace with an address and the processes that were started in it."""

    def __init__(self, name: str, address: str) -> None:
        self.name, self.address = name, address
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *command: str, log: Path, user: str = "", env: dict[str, str] | None = None) -> None:
        """Start a program here; it dies with us."""
        as_user = ["--reuid", user, "--regid", user, "--clear-groups"] if user else []
        words = ["ip", "netns", "exec", self.name, "setpriv", "--pdeathsig", "KILL", *as_user, *command]
        with log.open("ab") as out:
            self.processes.append(
                subprocess.Popen(
                    words, env={"PATH": PATH, **(env or {})}, stdin=subprocess.DEVNULL, stdout=out, stderr=out
                )
            )

    def kill(self) -> None:
        """Everything that runs here: a server of PostgreSQL is no child of the Patroni that started it."""
        while pids := self._pids():
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for process in self.processes:
                process.wait()
        self.processes.clear()

    def _pids(self) -> list[int]:
        done = subprocess.run(["ip", "netns", "pids", self.name], env={"PATH": PATH}, capture_output=True, check=True)
        return [int(each) for each in done.stdout.split()]

    def cut_off(self) -> None:
        run("ip", "link", "set", f"v-{self.name}", "down")

    def connect_again(self) -> None:
        run("ip", "link", "set", f"v-{self.name}", "up")

    def refuse(self, address: str, *, refused: bool) -> None:
        """Nothing goes to or comes from there, and nobody is told: packets are dropped."""
        how = "-A" if refused else "-D"
        for chain, which in (("INPUT", "-s"), ("OUTPUT", "-d")):
            run("ip", "netns", "exec", self.name, "iptables", how, chain, which, address, "-j", "DROP")
