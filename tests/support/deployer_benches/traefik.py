"""A bench for `traefik`: its folders; what it holds is what its dynamic file names."""

from __future__ import annotations

import hashlib
import json
import os
import ssl
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from holdfast.deployers.base import Deployer
from holdfast.deployers.kind import LocalRules
from holdfast.deployers.traefik import TraefikDeployer, TraefikSettings
from holdfast.secret import Secret
from tests.support.deploying import CERTIFICATE, parts


class TraefikBench:
    secrets = ()

    def __init__(self, root: Path) -> None:
        self.bundles, self.dynamic = root / "live", root / "dynamic"
        for each in (self.bundles, self.dynamic):
            each.mkdir()
        self._rules = LocalRules(folders=(self.bundles, self.dynamic))
        self._settings = TraefikSettings(folder=str(self.bundles), dynamic=str(self.dynamic))

    async def deployer(self) -> Deployer:
        return TraefikDeployer(self._settings, parts(self._rules))

    async def holds(self) -> tuple[str, Secret[bytes]]:
        certificate, key = self.named()
        first = certificate.read_text().partition("-----END CERTIFICATE-----")
        der = ssl.PEM_cert_to_DER_cert(first[0] + first[1])
        return hashlib.sha256(der).hexdigest(), Secret(key.read_bytes())

    def named(self) -> tuple[Path, Path]:
        """The pair that the dynamic file names."""
        [pair] = json.loads((self.dynamic / f"holdfast-{CERTIFICATE}.yml").read_text())["tls"]["certificates"]
        return Path(pair["certFile"]), Path(pair["keyFile"])

    async def go_away(self) -> bool:
        return False

    async def refuse(self) -> bool:
        os.chmod(self.bundles / CERTIFICATE, 0o777)
        return True

    async def come_back(self) -> None:
        os.chmod(self.bundles / CERTIFICATE, 0o755)


@asynccontextmanager
async def a_bench() -> AsyncIterator[TraefikBench]:
    with tempfile.TemporaryDirectory() as folder:
        yield TraefikBench(Path(folder))
