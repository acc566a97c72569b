"""Where one client works: its folder, its package, the server it speaks to, and the names it may ask for."""

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from tests.interop.packages import Package, Tool
from tests.interop.servers import Server
from tests.support.reaper import until

PATIENCE: Final = 120  # seconds for one command of a client
HOOK: Final = Path(__file__).with_name("hook.py")
_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\n", re.DOTALL)


class ClientFailed(Exception):
    """A client did not do what it was told; the text is what it said last."""


class Site:
    """What a scenario works with."""

    def __init__(self, client: str, folder: Path, tool: Tool, server: Server) -> None:
        self.client, self.folder, self.tool, self.server = client, folder, tool, server
        self.webroot = folder / "webroot"
        self.proofs = self.webroot / ".well-known" / "acme-challenge"
        self.proofs.mkdir(parents=True)
        self.log = folder / "log"

    def name(self, scenario: str) -> str:
        return f"{scenario}.{self.client}.test"

    def program(self, name: str) -> str:
        return self.tool.program(name)

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ}
        return {**kept, "HOME": str(self.folder), **self.tool.environment, **(more or {})}

    def run(self, *command: str | Path, env: Mapping[str, str] | None = None, seconds: float = PATIENCE) -> str:
        """Run a client to its end; what it said."""
        words = [str(word) for word in command]
        process = subprocess.Popen(
            words, cwd=self.folder, env=self.environment(env), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
        try:
            said, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said, _ = process.communicate()
            said += f"\nkilled after {seconds:g} s\n"
        with self.log.open("a") as log:
            log.write(f"$ {shlex.join(words)}\n{said}\nexit {process.returncode}\n")
        if process.returncode != 0:
            raise ClientFailed(said)
        return said

    @contextmanager
    def serving(self, *command: str | Path, env: Mapping[str, str] | None = None) -> Iterator[Path]:
        """A client that is a server itself, while we look at it; where its output is."""
        output = self.folder / "output"
        with output.open("wb") as out:
            process = subprocess.Popen(
                [str(word) for word in command], cwd=self.folder, env=self.environment(env),
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip
        try:
            yield output
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            with self.log.open("a") as log:
                log.write(output.read_text(errors="replace"))

    def served(self, name: str, output: Path, good: Callable[[str], bool], seconds: float = PATIENCE) -> str:
        """Wait until port 443 shows a chain for this name that is good; the chain."""
        chains: list[str] = []

        def shown() -> bool:
            chain = served_chain(name)
            if chain and good(chain):
                chains.append(chain)
            return bool(chains)

        try:
            until(shown, f"a certificate for {name}", seconds=seconds, every=0.25)
        except TimeoutError as error:
            raise ClientFailed(f"{output.read_text(errors='replace')}\n{error}") from None
        return chains[0]

    @contextmanager
    def webserver(self) -> Iterator[None]:
        """Port 80, for clients that only write files."""
        handler = partial(_Quiet, directory=str(self.webroot))
        with ThreadingHTTPServer(("127.0.0.1", 80), handler) as server:
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
            thread.start()
            try:
                yield
            finally:
                server.shutdown()
                thread.join()

    def hook(self, *words: str) -> Path:
        """A program for the client to run."""
        path = self.folder / f"hook-{'-'.join(words)}"
        path.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, str(HOOK), *words])} "$@"\n')
        path.chmod(0o755)
        return path


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *words: object) -> None:
        pass


def served_chain(name: str) -> str:
    """What port 443 shows to somebody who asks for this name, as PEM; empty if nothing."""
    command = ["openssl", "s_client", "-connect", "127.0.0.1:443", "-servername", name, "-showcerts"]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    return "".join(_PEM.findall(done.stdout))


Scenario = Callable[[Site], str | None]

ISSUE, RENEW, REVOKE, WILDCARD, ALPN = "http-01", "renew", "revoke", "dns-01", "tls-alpn-01"
SCENARIOS: Final = (ISSUE, RENEW, REVOKE, WILDCARD, ALPN)


@dataclass(frozen=True, slots=True)
class Client:
    """One client: where it comes from and what it can do.

    A scenario answers with the chain that the client received, as PEM; `revoke` with nothing.
    """

    name: str
    package: Package
    does: Mapping[str, Scenario]
    nonces: str = ""  # its own limit where many nonces are refused, in a sentence
