"""A deployment to a real nginx, killed at a passage of a point; readers watch files and handshakes meanwhile."""

import asyncio
import os
import socket
import ssl
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
from tests.support.deploying_child import NAME, a_yard
from tests.support.nginx import Nginx, an_nginx

EVERY: Final = 0.001  # seconds between two looks at the pair


@dataclass
class Watcher:
    """Opens the pair again and again, and shakes hands: what it must never see is counted."""

    nginx: Nginx
    looks: int = 0
    mixed: int = 0
    readable: int = 0
    broken: list[str] = field(default_factory=list)
    handshakes: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def watching(self) -> Iterator[None]:
        threads = [threading.Thread(target=self._read), threading.Thread(target=self._shake)]
        for each in threads:
            each.start()
        try:
            yield
        finally:
            self._stop.set()
            for each in threads:
                each.join()

    def _read(self) -> None:
        known: dict[tuple[bytes, bytes], bool] = {}
        folder = self.nginx.live / NAME
        while not self._stop.wait(EVERY):
            handle = os.open(folder / "current", os.O_RDONLY | os.O_DIRECTORY)
            try:
                chain, key = (_content(handle, name) for name in ("fullchain.pem", "privkey.pem"))
                mode = os.stat("privkey.pem", dir_fd=handle).st_mode
            finally:
                os.close(handle)
            self.readable += bool(stat.S_IMODE(mode) & 0o077)
            if (chain, key) not in known:
                known[chain, key] = _is_pair(chain, key)
            self.mixed += not known[chain, key]
            self.looks += 1

    def _shake(self) -> None:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        while not self._stop.wait(0.02):
            try:
                with (
                    socket.create_connection(("127.0.0.1", self.nginx.port), 10) as line,
                    context.wrap_socket(line, server_hostname=NAME),
                ):
                    self.handshakes += 1
            except OSError as error:
                self.broken.append(str(error))


def _content(folder: int, name: str) -> bytes:
    handle = os.open(name, os.O_RDONLY, dir_fd=folder)
    with os.fdopen(handle, "rb") as file:
        return file.read()


def _is_pair(chain: bytes, key: bytes) -> bool:
    leaf = x509.load_pem_x509_certificate(chain)
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
    """A store, an nginx, and a certificate that is served by it."""

    store: str
    folder: Path
    nginx: Nginx
    rules: Path

    @classmethod
    @contextmanager
    def prepared(cls, store: str, folder: Path) -> Iterator["DeploymentGround"]:
        with an_nginx(folder) as nginx:
            rules = folder / "rules.toml"
            test, reload = ([*argv] for argv in (nginx.test_argv, nginx.reload_argv))
            rules.write_text(
                f'folders = ["{nginx.live}"]\n[programs.nginx-test]\nargv = {test}\n'
                f'[programs.nginx-reload]\nargv = {reload}\n[programs.nothing]\nargv = ["/bin/true"]\n'
            )
            here = cls(store, folder, nginx, rules)
            asyncio.run(here._first())
            yield here

    async def _first(self) -> None:
        yard = await a_yard(self.store, self.folder, self.rules.read_text())
        await yard.add("web-1", settings={"folder": str(self.nginx.live), "reload": "nothing"})
        await yard.house.ask(NAME, targets=("web-1",))
        async with yard.house.working(kinds=yard.kinds):
            await yard.reaches(NAME, DeploymentState.INSTALLED)
        self.nginx.configure(NAME)
        self.nginx.start()
        settings = {"test": "nginx-test", "reload": "nginx-reload"}
        endpoints = [f"127.0.0.1:{self.nginx.port}"]
        await yard.do(manage_targets.change, name="web-1", settings=settings, endpoints=endpoints)
        await yard.house.renew(NAME)
        async with yard.house.working(kinds=yard.kinds):
            await yard.reaches(NAME, DeploymentState.SERVED)
        await yard.house.db.close()

    def life(self, point: str = "none", nth: int = 0) -> int:
        """The exit code of one life; -9: it was killed."""
        command = [sys.executable, "-m", "tests.support.deploying_child", self.store, str(self.folder), str(self.rules)]
        return subprocess.run([*command, point, str(nth)], check=False, timeout=150).returncode

    def killed_at(self, point: str, nth: int) -> Killed:
        watcher, started = Watcher(self.nginx), time.monotonic()
        with watcher.watching():
            killed = self.life(point, nth) == -9
            ended = self.life()
        problems = [] if ended == 0 else [f"the life after ended with {ended}"]
        problems += [f"{watcher.mixed} mixed pairs"] if watcher.mixed else []
        problems += [f"{watcher.readable} looks at a key that others may read"] if watcher.readable else []
        problems += [f"{len(watcher.broken)} handshakes failed: {watcher.broken[0]}"] if watcher.broken else []
        if watcher.looks < (time.monotonic() - started):
            problems.append(f"only {watcher.looks} looks at the pair")
        return Killed(point, nth, killed, problems, watcher)
