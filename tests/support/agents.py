"""Hosts with agents: real processes, each with a state folder of its own, against a served Holdfast."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from holdfast.agent.identity import Membership
from holdfast.agent.line import AgentTransport
from holdfast.agent.state import AgentFolder
from holdfast.machine import LocalFiles, SystemRandom
from holdfast.system_clock import SystemClock
from tests.support.commands import holdfast
from tests.support.ports import free_port
from tests.support.processes import Served, environment
from tests.support.reaper import PATIENCE, until
from tests.support.secrets_watch import WATCH

QUICK = ("--start-within", "0", "--reconnect-within", "0.5")


@dataclass(slots=True, kw_only=True)
class OneShot(Membership):
    transport: AgentTransport


@dataclass
class AgentHost:
    """One host: its state folder, and the agent's process while it runs."""

    folder: Path
    name: str
    env: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def _log(self) -> Path:
        return self.folder / "agent.log"

    def type(self, *words: object, stdin: str = "") -> CompletedProcess[str]:
        self.folder.mkdir(exist_ok=True, parents=True)
        given = {**environment(self.folder, {}), "HOLDFAST_AGENT_STATE": str(self.state), **self.env}
        return holdfast("agent", *words, env=given, stdin=stdin)

    def enrol(self, token: str, *more: object) -> CompletedProcess[str]:
        return self.type("enrol", "--token-file", "-", "--name", self.name, *more, stdin=token)

    @property
    def config(self) -> Path:
        """Its own file: what may be done on it."""
        return self.folder / "agent.toml"

    def start(self, *more: str) -> None:
        self.folder.mkdir(exist_ok=True, parents=True)
        more = ("--host-file", str(self.config), *more)
        command = [sys.executable, "-m", "holdfast.agent", "--state", str(self.state), *QUICK, *more]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **self.env}
            )

    def said(self, event: str) -> list[str]:
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [line for line in lines if f" agent.{event}" in line]

    def wait_for(self, event: str, *, times: int = 1) -> str:
        def seen() -> bool:
            found = len(self.said(event)) >= times
            if not found and self.process is not None and self.process.poll() is not None:
                raise AssertionError(f"it ended with {self.process.returncode}:\n{self._log.read_text()}")
            return found

        until(seen, f"agent.{event} of {self.name}", every=0.05)
        return self.said(event)[times - 1]

    def saved(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.state / "agent.json").read_text())
        return found

    def save(self, **changes: object) -> None:
        (self.state / "agent.json").write_text(json.dumps({**self.saved(), **changes}))

    def membership(self) -> OneShot:
        """Its keys, for requests that a test makes in its place."""
        folder = AgentFolder(path=self.state, files=LocalFiles())
        return OneShot(folder=folder, transport=AgentTransport(), clock=SystemClock(), random=SystemRandom())

    def ended(self) -> int:
        """Wait for its end; its exit code."""
        assert self.process is not None
        return self.process.wait(PATIENCE)

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.ended()

    def resident_kib(self) -> int:
        assert self.process is not None
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.split("VmRSS:")[1].split()[0])

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self._log.exists():
            WATCH.file(self._log)


@dataclass
class Fleet:
    """A served Holdfast, and hosts around it."""

    server: Served
    folder: Path
    settings: Mapping[str, str]
    hosts: list[AgentHost] = field(default_factory=list)

    def restart(self) -> None:
        with self.server:
            self.server.stop()
        self.server = Served(self.folder, self.settings)
        self.server.wait_until_ready()

    def type(self, *words: object, stdin: str = "") -> CompletedProcess[str]:
        return holdfast(*words, env=environment(self.folder, {}), stdin=stdin)

    def ok(self, *words: object, **more: Any) -> str:
        done = self.type(*words, **more)
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    def data(self, *words: object) -> Any:
        return json.loads(self.ok(*words, "-o", "json"))

    def token(self, *more: object) -> str:
        return str(self.data("agent", "token", "create", "trial", *more)["token"])

    def host(self, name: str, **env: str) -> AgentHost:
        made = AgentHost(self.folder / f"host-{name}", name, env)
        self.hosts.append(made)
        return made

    def enrolled(self, name: str, *more: object) -> AgentHost:
        host = self.host(name)
        done = host.enrol(self.token(*more))
        assert done.returncode == 0, done.stderr
        return host

    def agent(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.data("agent", "show", name)
        return found

    @property
    def acme(self) -> tuple[str, int]:
        base = str(self.server.wait_for_event("holdfast.serving")["acme"])
        host, _, port = base.removeprefix("https://").rpartition(":")
        return host, int(port)


@contextmanager
def a_fleet(folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[Fleet]:
    """A server at an address that stays, so that it can be restarted."""
    chosen = {"AGENTS_POLL": "2s", "ACME_LISTEN": f"127.0.0.1:{free_port()}", **(settings or {})}
    fleet = Fleet(Served(folder, chosen), folder, chosen)
    try:
        fleet.server.wait_until_ready()
        yield fleet
    finally:
        for each in fleet.hosts:
            each.close()
        fleet.server.__exit__(None, None, None)


class CutProxy:
    """Carries bytes to the server, and hangs up once it has carried so many of its answers."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target, self.after, self.carried = target, 1 << 30, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_after(self, size: int) -> None:
        self.after, self.carried = size, 0

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                threading.Thread(target=self._pump, args=(near, far, False), daemon=True).start()
                threading.Thread(target=self._pump, args=(far, near, True), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if counted:
                    data = data[: max(0, self.after - self.carried)]
                    self.carried += len(data)
                sink.sendall(data)
                if counted and self.carried >= self.after:
                    break
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def close(self) -> None:
        self._listener.close()
