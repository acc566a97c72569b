"""Benches for `pkcs12` and `jks`: a keystore in a folder of this machine; what it holds, OpenSSL and keytool say."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import ssl
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.deployers.base import Deployer
from holdfast.deployers.jks import JKS, JksSettings
from holdfast.deployers.kind import DeployerParts, LocalRules, Program
from holdfast.deployers.pkcs12 import PKCS12, Pkcs12Settings
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
        return self.made({**self._settings, **more}, parts(self.rules, credentials=credentials))

    def made(self, settings: dict[str, Any], given: DeployerParts) -> Deployer:
        return PKCS12.make(Pkcs12Settings(**settings), given)

    def keytool(self, *words: str, store: Path | None = None) -> str:
        program = shutil.which("keytool")
        if program is None:
            pytest.skip("there is no keytool here: apt-get install openjdk-17-jre-headless")
        argv = [program, *words, "-keystore", str(store or self.keystore), "-storepass:env", "STORE"]
        ended = subprocess.run(argv, env={**os.environ, "STORE": self.password}, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

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


class JksBench(Pkcs12Bench):
    def made(self, settings: dict[str, Any], given: DeployerParts) -> Deployer:
        return JKS.make(JksSettings(**settings), given)

    async def holds(self) -> tuple[str, Secret[bytes]]:
        """keytool shows no keys, but converts."""
        copy = Pkcs12Bench.__new__(Pkcs12Bench)
        copy.keystore, copy.password = self.root / "copy.p12", self.password
        copy.keystore.unlink(missing_ok=True)
        asked = ["-importkeystore", "-srckeystore", str(self.keystore), "-srcstoretype", "JKS", "-srcstorepass:env"]
        await asyncio.to_thread(self.keytool, *asked, "STORE", "-deststoretype", "PKCS12", store=copy.keystore)
        return await copy.holds()


@asynccontextmanager
async def a_bench() -> AsyncIterator[Pkcs12Bench]:
    with tempfile.TemporaryDirectory() as folder:
        yield Pkcs12Bench(Path(folder))


@asynccontextmanager
async def a_jks_bench() -> AsyncIterator[JksBench]:
    with tempfile.TemporaryDirectory() as folder:
        yield JksBench(Path(folder))
