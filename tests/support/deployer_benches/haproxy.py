"""A bench for `haproxy`: a real HAProxy with a stats socket, on loopback; what it holds, a handshake shows."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import ssl
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from holdfast.deployers.base import Deployer
from holdfast.deployers.haproxy import HaproxyDeployer, HaproxySettings
from holdfast.deployers.kind import LocalRules
from holdfast.network import SystemNet
from holdfast.ports import Tls
from holdfast.secret import Secret
from tests.support.deploying import CERTIFICATE, a_bundle, parts
from tests.support.ports import free_port
from tests.support.reaper import until
from tests.support.served import HOST, program

_CONFIG = """global
  stats socket {folder}/admin.sock level admin mode 600
  log /dev/null local0
defaults
  mode http
  timeout client 10s
  timeout server 10s
  timeout connect 10s
frontend web
  bind {host}:{port} ssl crt {folder}/live/certs/
  http-request return status 204
"""


class HaproxyBench:
    secrets = ()

    def __init__(self, root: Path) -> None:
        self.root, self.port = root, free_port()
        self.socket = root / "admin.sock"
        self.certificates = root / "live" / "certs"
        self.certificates.mkdir(parents=True)
        (root / "live" / "bundles").mkdir()
        (self.certificates / "default.pem").write_bytes(a_bundle(99, "default.invalid").combined.reveal())
        (root / "haproxy.cfg").write_text(_CONFIG.format(folder=root, port=self.port, host=HOST))
        self._rules = LocalRules(folders=(root / "live",), sockets=(self.socket,))
        self._settings = HaproxySettings(
            folder=str(root / "live" / "bundles"), certificates=str(self.certificates), socket=str(self.socket)
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        log = (self.root / "log").open("ab")
        argv = [program("haproxy", "haproxy"), "-db", "-f", str(self.root / "haproxy.cfg")]
        self._process = subprocess.Popen(argv, stdout=log, stderr=log)
        log.close()
        until(self._answers, "HAProxy", every=0.02)

    def _answers(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise AssertionError((self.root / "log").read_text()[-2000:])
        return "default.pem" in self.said("show ssl cert")

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None

    def said(self, command: str) -> str:
        """What HAProxy answers to somebody else."""
        with socket.socket(socket.AF_UNIX) as line:
            try:
                line.connect(str(self.socket))
            except OSError:
                return ""
            line.sendall(command.encode() + b"\n")
            return b"".join(iter(lambda: line.recv(65536), b"")).decode()

    async def shown(self, name: str = CERTIFICATE) -> str:
        line = await SystemNet().connect(HOST, self.port, tls=Tls(server_name=name), deadline_for=10)
        line.close()
        return hashlib.sha256(line.certificate or b"").hexdigest()

    async def deployer(self, **changes: object) -> Deployer:
        return HaproxyDeployer(self._settings.model_copy(update=changes), parts(self._rules))

    async def holds(self) -> tuple[str, Secret[bytes]]:
        pem = (self.certificates / f"{CERTIFICATE}.pem").read_bytes()
        key, _, rest = pem.partition(b"-----END PRIVATE KEY-----\n")
        leaf = ssl.PEM_cert_to_DER_cert(
            rest.partition(b"-----END CERTIFICATE-----")[0].decode() + "-----END CERTIFICATE-----"
        )
        assert await self.shown() == hashlib.sha256(leaf).hexdigest(), "memory and file differ"
        return await self.shown(), Secret(key + b"-----END PRIVATE KEY-----\n")

    async def go_away(self) -> bool:
        await asyncio.to_thread(self.stop)
        return True

    async def refuse(self) -> bool:
        """A folder that everybody may write to is not trusted: the files are refused while a transaction is open."""
        os.chmod(self.root / "live" / "bundles" / CERTIFICATE, 0o777)
        return True

    async def come_back(self) -> None:
        os.chmod(self.root / "live" / "bundles" / CERTIFICATE, 0o755)
        if self._process is None:
            await asyncio.to_thread(self.start)


@asynccontextmanager
async def a_bench() -> AsyncIterator[HaproxyBench]:
    with tempfile.TemporaryDirectory() as folder:
        bench = HaproxyBench(Path(folder))
        await asyncio.to_thread(bench.start)
        try:
            yield bench
        finally:
            bench.stop()
