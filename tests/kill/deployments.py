"""A deployment to a real daemon, killed at a passage of a point; readers watch files and handshakes meanwhile."""

import asyncio
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from holdfast.core.deployment import DeploymentState
from holdfast.operations.deployment import targets as manage_targets
from tests.support.daemons import Daemon, a_daemon, careless
from tests.support.deploying_child import NAME, a_yard

EVERY: Final = 0.001  # seconds between two looks at the pair


@dataclass
class Watcher:
    """Opens the pair again and again, and shakes hands: what it must never see is counted."""

    daemon: Daemon
    looks: int = 0
    mixed: int = 0
    readable: int = 0
    broken: list[str] = field(default_factory=list)
    handshakes: int = 0
    seconds: float = 0.0
    _stop: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def watching(self) -> Iterator[None]:
        began = time.monotonic()
        threads = [threading.Thread(target=self._read), threading.Thread(target=self._shake)]
        for each in threads:
            each.start()
        try:
            yield
        finally:
            self._stop.set()
            for each in threads:
                each.join()
            self.seconds = time.monotonic() - began

    def _read(self) -> None:
        known: dict[tuple[bytes, bytes], bool] = {}
        due = time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            due = max(due + EVERY, time.monotonic() - 100 * EVERY)  # what was missed is made up for, a little
            chain, key, mode = self.daemon.pair()
            self.readable += bool(stat.S_IMODE(mode) & 0o077)
            if (chain, key) not in known:
                known[chain, key] = _is_pair(chain, key)
            self.mixed += not known[chain, key]
            self.looks += 1

    def _shake(self) -> None:
        context = careless()
        while not self._stop.wait(0.02):
            try:
                self.daemon.shake(context)
                self.handshakes += 1
            except OSError as error:
                self.broken.append(str(error))


def _is_pair(chain: bytes, key: bytes) -> bool:
    [leaf, *_] = x509.load_pem_x509_certificates(chain)
    return leaf.public_key() == load_pem_private_key(key, None).public_key()


@dataclass(frozen=True)
class Killed:
    """One run: where it was to be killed, whether it was, and what is wrong after the next life."""

    point: str
    nth: int
    killed: bool
    problems: list[str]
    watcher: Watcher


@dataclass
class DeploymentGround:
    """A store, a daemon, and a certificate that is served by it."""

    store: str
    folder: Path
    daemon: Daemon
    rules: Path

    @classmethod
    @contextmanager
    def prepared(cls, store: str, folder: Path, daemon: str = "nginx") -> Iterator["DeploymentGround"]:
        with a_daemon(daemon, folder, NAME) as found:
            rules = folder / "rules.toml"
            rules.write_text(found.rules)
            here = cls(store, folder, found, rules)
            asyncio.run(here._first())
            yield here

    async def _first(self) -> None:
        yard = await a_yard(self.store, self.folder, self.rules.read_text())
        await yard.add("web-1", kind=self.daemon.kind, settings=self.daemon.quiet)
        await yard.house.ask(NAME, targets=("web-1",))
        async with yard.house.working(kinds=yard.kinds):
            await yard.reaches(NAME, DeploymentState.INSTALLED)
        self.daemon.start()
        settings, endpoints = self.daemon.settings, [self.daemon.endpoint]
        await yard.do(manage_targets.change, name="web-1", settings=settings, endpoints=endpoints)
        await yard.house.renew(NAME)
        async with yard.house.working(kinds=yard.kinds):
            await yard.reaches(NAME, DeploymentState.SERVED)
        await yard.house.db.close()

    def life(self, point: str = "none", nth: int = 0) -> int:
        """The exit code of one life; -9: it was killed."""
        command = [sys.executable, "-m", "tests.support.deploying_child", self.store, str(self.folder), str(self.rules)]
        return subprocess.run([*command, point, str(nth)], check=False, timeout=3600).returncode

    def killed_at(self, point: str, nth: int) -> Killed:
        watcher, started = Watcher(self.daemon), time.monotonic()
        with watcher.watching():
            killed = self.life(point, nth) == -9
            ended = self.life()
        return Killed(point, nth, killed, self._problems(ended, watcher, started), watcher)

    def swapped(self, times: int) -> Killed:
        """One life with so many renewals, each of them served before the next."""
        watcher, started = Watcher(self.daemon), time.monotonic()
        with watcher.watching():
            ended = self.life("swaps", times)
        return Killed("swaps", times, False, self._problems(ended, watcher, started), watcher)

    @staticmethod
    def _problems(ended: int, watcher: Watcher, started: float) -> list[str]:
        problems = [] if ended == 0 else [f"the life after ended with {ended}"]
        problems += [f"{watcher.mixed} mixed pairs"] if watcher.mixed else []
        problems += [f"{watcher.readable} looks at a key that others may read"] if watcher.readable else []
        problems += [f"{len(watcher.broken)} handshakes failed: {watcher.broken[0]}"] if watcher.broken else []
        if watcher.looks < (time.monotonic() - started):
            problems.append(f"only {watcher.looks} looks at the pair")
        return problems
