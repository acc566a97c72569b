"""A bench for `ssh`: a real sshd on loopback, with keys of its own."""

from __future__ import annotations

import asyncio
import getpass
import hashlib
import os
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.deployers.base import Deployer
from holdfast.deployers.kind import LocalRules, Program
from holdfast.deployers.ssh import SSH, SshSettings
from holdfast.secret import Secret
from tests.support.deploying import CERTIFICATE, parts
from tests.support.ports import free_port
from tests.support.reaper import until

_CONFIG = """ListenAddress 127.0.0.1:{port}
HostKey {root}/host_key
AuthorizedKeysFile {root}/login.pub
PidFile none
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
PasswordAuthentication no
Subsystem sftp internal-sftp
"""


class SshBench:
    secrets = ()

    def __init__(self, root: Path) -> None:
        self.root, self.port, self.live = root, free_port(), root / "live"
        self.live.mkdir()
        for name in ("host_key", "other_key", "login"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(root / name)], check=True)
        (root / "config").write_text(_CONFIG.format(port=self.port, root=root))
        failing = Program(argv=("/bin/sh", "-c", "echo it is 'so'; exit 3"))
        programs = {"failing": failing, "touch": Program(argv=("touch", f"{root}/a file"))}
        self.rules = LocalRules(programs={**programs, "flooding": Program(argv=("yes",), timeout=0.5)})
        self.host_key = "host_key"
        self.made: list[Deployer] = []
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        sshd = shutil.which("sshd") or "/usr/sbin/sshd"
        if not Path(sshd).exists():
            pytest.skip("there is no sshd here: apt-get install openssh-server")
        Path("/run/sshd").mkdir(exist_ok=True)
        with (self.root / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sshd, "-D", "-e", "-f", str(self.root / "config")], stdout=log, stderr=log
            )
        until(self._answers, "sshd", every=0.02)

    def _answers(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise AssertionError((self.root / "log").read_text()[-2000:])
        with socket.socket() as line:
            return line.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None

    def only_receives(self) -> None:
        """Its key runs holdfast-receive from now on, whatever the client asks for."""
        rules = self.root / "deployment.toml"
        rules.write_text(f'folders = ["{self.live}"]\n[programs.daemon]\nargv = ["{self.root}/daemon"]\n')
        (self.root / "daemon").write_text(f"#!/bin/sh\necho ran >> {self.root}/ran\n[ ! -e {self.root}/fail ]\n")
        (self.root / "daemon").chmod(0o755)
        command = f"{Path(sys.executable).with_name('holdfast-receive')} {rules}"
        key = (self.root / "login.pub").read_text()
        (self.root / "login.pub").write_text(f'restrict,command="{command}" {key}')

    async def deployer(self, **more: Any) -> Deployer:
        settings = SshSettings(
            host="127.0.0.1", port=self.port, user=getpass.getuser(), folder=str(self.live),
            host_key=(self.root / f"{self.host_key}.pub").read_text().strip(), **more,
        )  # fmt: skip
        credentials = {"key": Secret((self.root / "login").read_text())}
        made = SSH.make(settings, parts(self.rules, credentials=credentials))
        self.made.append(made)
        return made

    async def holds(self) -> tuple[str, Secret[bytes]]:
        current = self.live / CERTIFICATE / "current"
        first = (current / "fullchain.pem").read_text().partition("-----END CERTIFICATE-----")
        der = ssl.PEM_cert_to_DER_cert(first[0] + first[1])
        return hashlib.sha256(der).hexdigest(), Secret((current / "privkey.pem").read_bytes())

    async def go_away(self) -> bool:
        await asyncio.to_thread(self.stop)
        return True

    async def refuse(self) -> bool:
        self.host_key = "other_key"
        return True

    async def come_back(self) -> None:
        self.host_key = "host_key"
        if self._process is None:
            await asyncio.to_thread(self.start)


@asynccontextmanager
async def a_bench() -> AsyncIterator[SshBench]:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        bench = SshBench(Path(folder))
        await asyncio.to_thread(bench.start)
        try:
            yield bench
        finally:
            for each in bench.made:
                await each.close()
            bench.stop()
