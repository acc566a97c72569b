"""certbot's side: some certificates of the same CA in one folder, then one `certbot renew` for all of them, timed.

certbot renews one after the other, so what it needs for some tells what it needs for many.
"""

import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from tests.interop.clients.certbot import CLIENT, REGISTER
from tests.interop.packages import obtain

from bench.renew.server import HOLDFAST, Server, Unmeasured

PATIENCE_S = 150


@dataclass(frozen=True, slots=True)
class ByCertbot:
    version: str
    number: int
    wall_s: float

    @property
    def each_s(self) -> float:
        return self.wall_s / self.number


@dataclass(frozen=True, slots=True)
class Certbot:
    """certbot as it is configured here: a folder of its own, http-01 by its own small server."""

    program: str
    version: str
    folder: Path
    server: Server

    def run(self, *words: str) -> None:
        where = ["--config-dir", "c", "--work-dir", "w", "--logs-dir", "l", "--server", self.server.directory, "-n"]
        env = {"PATH": os.defpath, "HOME": str(self.folder), "REQUESTS_CA_BUNDLE": str(self.folder / "root.pem")}
        try:
            done = subprocess.run(
                [self.program, *words, *where],
                cwd=self.folder, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise Unmeasured(f"certbot {words[0]} took more than {PATIENCE_S} s") from None
        if done.returncode != 0:
            raise Unmeasured(f"certbot {words[0]}: {' '.join((done.stdout + done.stderr).split())[-300:]}")

    def obtain(self, name: str) -> None:
        standalone = ("--standalone", "--http-01-address", "127.0.0.1", "--http-01-port", str(self.server.http_port))
        self.run("certonly", *REGISTER, *standalone, "-d", name)

    def in_use(self) -> set[str]:
        """The files of the certificates that it holds now: it numbers them, and a renewal is a new number."""
        return {str(path.resolve()) for path in (self.folder / "c" / "live").glob("*/cert.pem")}


def cache() -> Path:
    """Where the interop run keeps its clients, too."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast-interop"


def measure(folder: Path, server: Server, number: int) -> ByCertbot:
    tool = obtain(CLIENT.package, cache())
    folder.mkdir()
    certbot = Certbot(tool.program("certbot"), tool.version, folder, server)
    (folder / "root.pem").write_text(_root(server))
    for each in range(number):
        certbot.obtain(f"c{each}.renew.test")
    before, began = certbot.in_use(), time.monotonic()
    certbot.run("renew", "--force-renewal", "--no-random-sleep-on-renew")
    wall_s = time.monotonic() - began
    if len(renewed := certbot.in_use() - before) != number:
        raise Unmeasured(f"certbot renewed {len(renewed)} of {number}")
    return ByCertbot(tool.version, number, wall_s)


def _root(server: Server) -> str:
    """Whom certbot is to trust for the server's TLS."""
    env = {"PATH": os.defpath, "HOLDFAST_STORE_DATA_DIR": str(server.data)}
    command = [HOLDFAST, "ca", "chain", "default", "--root"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise Unmeasured(f"holdfast ca chain: {done.stderr[-300:]}")
    return done.stdout
