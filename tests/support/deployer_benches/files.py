"""A bench for `files`: a folder of this machine, and a program that can be told to fail."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from holdfast.deployers.base import Deployer
from holdfast.deployers.files import FilesDeployer, FilesSettings
from holdfast.deployers.kind import LocalRules, Program
from holdfast.secret import Secret
from tests.support.deploying import CERTIFICATE, parts


class FilesBench:
    secrets = ()

    def __init__(self, root: Path, **settings: str) -> None:
        self.root = root
        self.ran = root / "ran"
        script = root / "program"
        script.write_text(f"#!/bin/sh\necho ran >> {self.ran}\n[ ! -e {root}/fail ]\n")
        script.chmod(0o755)
        self._rules = LocalRules(folders=(root / "live",), programs={"daemon": Program(argv=(str(script),))})
        (root / "live").mkdir()
        self._settings = FilesSettings(folder=str(root / "live"), test="daemon", reload="daemon", **settings)

    @property
    def folder(self) -> Path:
        return self.root / "live" / CERTIFICATE

    async def deployer(self) -> Deployer:
        return FilesDeployer(self._settings, parts(self._rules))

    async def holds(self) -> tuple[str, Secret[bytes]]:
        leaf = x509.load_pem_x509_certificate((self.folder / "current" / "fullchain.pem").read_bytes())
        digest = hashlib.sha256(leaf.public_bytes(Encoding.DER)).hexdigest()
        return digest, Secret((self.folder / "current" / "privkey.pem").read_bytes())

    async def go_away(self) -> bool:
        return False

    async def refuse(self) -> bool:
        """A folder that everybody may write to is not trusted."""
        os.chmod(self.folder, 0o777)
        return True

    async def come_back(self) -> None:
        os.chmod(self.folder, 0o755)


@asynccontextmanager
async def a_bench() -> AsyncIterator[FilesBench]:
    with tempfile.TemporaryDirectory() as folder:
        yield FilesBench(Path(folder))
