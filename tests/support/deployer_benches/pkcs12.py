"""A bench for `pkcs12`: a keystore in a folder of this machine; what it holds, OpenSSL says."""

from __future__ import annotations

import hashlib
import os
import ssl
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from holdfast.deployers.base import Deployer
from holdfast.deployers.kind import LocalRules, Program
from holdfast.deployers.pkcs12 import Pkcs12Deployer, Pkcs12Settings
from holdfast.secret import Secret
from tests.support.deploying import CERTIFICATE, parts

PASSWORD = "planted-store-password"


class Pkcs12Bench:
    secrets = (PASSWORD,)

    def __init__(self, root: Path) -> None:
        self.root, self.keystore = root, root / "live" / "keystore.p12"
        (root / "live" / "bundles").mkdir(parents=True)
        failing = Program(argv=("/bin/sh", "-c", "echo 'keystore password was incorrect'; exit 1"))
        self.rules = LocalRules(folders=(root / "live",), programs={"failing": failing})
        self.password = PASSWORD
        self._settings = {"folder": str(root / "live" / "bundles"), "path": str(self.keystore)}

    async def deployer(self, **more: str) -> Deployer:
        credentials = {"password": Secret(self.password)}
        return Pkcs12Deployer(Pkcs12Settings(**self._settings, **more), parts(self.rules, credentials=credentials))  # type: ignore[arg-type]

    def openssl(self, *words: str) -> str:
        argv = ["openssl", "pkcs12", "-in", str(self.keystore), "-passin", "env:STORE", *words]
        env = {**os.environ, "STORE": self.password}
        return subprocess.run(argv, env=env, check=True, capture_output=True, text=True).stdout

    def encryption(self) -> str:
        argv = ["openssl", "pkcs12", "-in", str(self.keystore), "-passin", "env:STORE", "-info", "-noout"]
        env = {**os.environ, "STORE": self.password}
        return subprocess.run(argv, env=env, capture_output=True, text=True).stderr

    async def holds(self) -> tuple[str, Secret[bytes]]:
        leaf = self.openssl("-clcerts", "-nokeys")
        der = ssl.PEM_cert_to_DER_cert(leaf[leaf.index("-----BEGIN") :])
        key = self.openssl("-nocerts", "-nodes")
        return hashlib.sha256(der).hexdigest(), Secret(key[key.index("-----BEGIN") :].encode())

    async def go_away(self) -> bool:
        return False

    async def refuse(self) -> bool:
        os.chmod(self.root / "live" / "bundles" / CERTIFICATE, 0o777)
        return True

    async def come_back(self) -> None:
        os.chmod(self.root / "live" / "bundles" / CERTIFICATE, 0o755)


@asynccontextmanager
async def a_bench() -> AsyncIterator[Pkcs12Bench]:
    with tempfile.TemporaryDirectory() as folder:
        yield Pkcs12Bench(Path(folder))
