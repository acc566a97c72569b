"""PostgreSQL twice, under Patroni, whose votes are kept by etcd."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.request
from pathlib import Path
from typing import Any, Final

import psycopg

from tests.cluster.space import HERE, PATH, Space, run
from tests.support.reaper import until

PROGRAMS: Final = "/usr/lib/postgresql/15/bin"
USER: Final = "postgres"
DISK: Final = 1500  # MiB of each server
START_S: Final = 120.0
TTL_S: Final = 20  # Patroni's least: for so long a dead leader keeps its lock


class PatroniPair:
    def __init__(self, space: Space, folder: Path, *, synchronous: bool) -> None:
        self.folder, self.synchronous = folder, synchronous
        self.machines = {name: space.machine(name, f"10.77.0.1{n}") for n, name in enumerate(("pg1", "pg2"), 1)}
        self._etcd: subprocess.Popen[bytes] | None = None
        for name in self.machines:
            disk = folder / name
            disk.mkdir()
            run("mount", "-t", "tmpfs", "-o", f"size={DISK}m", "tmpfs", str(disk))
            (disk / "data").mkdir(mode=0o700)
            for each in (disk, disk / "data"):
                shutil.chown(each, USER, USER)
            (folder / f"{name}.yml").write_text(json.dumps(self._config(name)))

    @property
    def url(self) -> str:
        hosts = ",".join(f"{each.address}:5432" for each in self.machines.values())
        return f"postgresql://postgres@{hosts}/holdfast"

    def _config(self, name: str) -> dict[str, Any]:
        address = self.machines[name].address
        everybody = [
            "local all all trust",
            "host all all 10.77.0.0/24 trust",
            "host replication all 10.77.0.0/24 trust",
        ]
        return {
            "scope": "holdfast",
            "name": name,
            "restapi": {"listen": f"{address}:8008", "connect_address": f"{address}:8008"},
            "etcd3": {"host": f"{HERE}:2379"},
            "bootstrap": {
                "dcs": {
                    "ttl": TTL_S,
                    "loop_wait": 2,
                    "retry_timeout": 5,
                    "synchronous_mode": self.synchronous,
                    "postgresql": {
                        "use_pg_rewind": True,
                        "parameters": {"wal_log_hints": "on", "max_wal_size": "256MB"},
                    },
                },
                "initdb": [{"encoding": "UTF8"}, "data-checksums"],
            },
            "postgresql": {
                "listen": f"{address}:5432",
                "connect_address": f"{address}:5432",
                "data_dir": str(self.folder / name / "data" / "pg"),
                "bin_dir": PROGRAMS,
                "pgpass": str(self.folder / name / "data" / "pgpass"),
                "authentication": {"superuser": {"username": "postgres"}, "replication": {"username": "postgres"}},
                "pg_hba": everybody,
                "parameters": {"unix_socket_directories": str(self.folder / name / "data"), "max_connections": 100},
            },
        }

    def start(self) -> None:
        self.start_etcd()
        for name in self.machines:
            self.start_server(name)
        until(self._both_run, "a leader and its standby", seconds=START_S, every=0.5)
        with psycopg.connect(self.address_of_leader("postgres"), autocommit=True) as connection:
            connection.execute("CREATE DATABASE holdfast")

    def start_etcd(self) -> None:
        words = [
            "etcd", "--name", "one", "--data-dir", str(self.folder / "etcd"), "--log-level", "error",
            "--listen-client-urls", f"http://{HERE}:2379", "--advertise-client-urls", f"http://{HERE}:2379",
            "--listen-peer-urls", f"http://{HERE}:2380", "--initial-advertise-peer-urls", f"http://{HERE}:2380",
            "--initial-cluster", f"one=http://{HERE}:2380",
        ]  # fmt: skip
        with (self.folder / "etcd.log").open("ab") as log:
            with_us = ["setpriv", "--pdeathsig", "KILL"]
            self._etcd = subprocess.Popen([*with_us, *words], env={"PATH": PATH}, stdout=log, stderr=log)

    def stop_etcd(self) -> None:
        if self._etcd is not None:
            self._etcd.kill()
            self._etcd.wait()

    def start_server(self, name: str) -> None:
        log = self.folder / f"{name}.log"
        self.machines[name].start("patroni", str(self.folder / f"{name}.yml"), log=log, user=USER)

    def members(self) -> dict[str, tuple[str, str]]:
        """Role and state by name, as one that answers knows them."""
        for machine in self.machines.values():
            try:
                with urllib.request.urlopen(f"http://{machine.address}:8008/cluster", timeout=2) as answer:
                    found = json.load(answer)["members"]
            except (OSError, ValueError):
                continue
            return {each["name"]: (each["role"], each["state"]) for each in found}
        return {}

    def leader(self) -> str:
        """Its name, once there is one that runs."""
        found = list[str]()

        def known() -> bool:
            found[:] = [
                name for name, (role, state) in self.members().items() if (role, state) == ("leader", "running")
            ]
            return bool(found)

        until(known, "a leader", seconds=START_S, every=0.2)
        return found[0]

    def other(self, name: str) -> str:
        return next(each for each in self.machines if each != name)

    def _both_run(self) -> bool:
        """The standby follows; where commits wait for it, it is the one they wait for."""
        roles = sorted(role for role, state in self.members().values() if state in ("running", "streaming"))
        return roles == ["leader", "sync_standby" if self.synchronous else "replica"]

    def whole(self) -> None:
        """Wait until both run."""
        until(self._both_run, "a leader and its standby", seconds=180, every=0.5)

    def switch_over(self) -> None:
        leader = self.leader()
        asked = json.dumps({"leader": leader, "candidate": self.other(leader)}).encode()
        url = f"http://{self.machines[leader].address}:8008/switchover"
        with urllib.request.urlopen(urllib.request.Request(url, data=asked, method="POST"), timeout=60) as answer:
            answer.read()

    def address_of_leader(self, database: str = "holdfast") -> str:
        return f"postgresql://postgres@{self.machines[self.leader()].address}:5432/{database}"

    def fill_disk(self, name: str) -> Path:
        """Leave no byte of the server's disk; the file that takes it."""
        taken = self.folder / name / "taken"
        with taken.open("wb") as file:
            try:
                while True:
                    file.write(b"\0" * 1_048_576)
                    file.flush()
            except OSError:
                pass
        return taken

    def close(self) -> None:
        for machine in self.machines.values():
            machine.kill()
        self.stop_etcd()
        for name in self.machines:
            run("umount", "-l", str(self.folder / name))
        os.sync()
