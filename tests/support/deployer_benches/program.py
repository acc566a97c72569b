"""A bench for `program`: a deploy hook as certbot's users write them; it copies the pair to where a daemon has it."""

from __future__ import annotations

import hashlib
import ssl
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from holdfast.deployers.base import Deployer
from holdfast.deployers.kind import LocalRules, Program
from holdfast.deployers.program import ProgramDeployer, ProgramSettings
from holdfast.secret import Secret
from tests.support.deploying import parts

_HOOK = """#!/bin/sh
set -e
for domain in $RENEWED_DOMAINS; do
  [ "$domain" = "$(basename "$RENEWED_LINEAGE")" ]
done
if [ -e "$HERE/exit" ]; then
  cat "$RENEWED_LINEAGE/privkey.pem"
  echo "the password is $PASSWORD"
  exit "$(cat "$HERE/exit")"
fi
umask 077
env > "$HERE/env"
cp "$RENEWED_LINEAGE/fullchain.pem" "$HERE/server.crt"
cp "$RENEWED_LINEAGE/privkey.pem" "$HERE/server.key"
"""


class ProgramBench:
    secrets = ("planted-password",)

    def __init__(self, root: Path) -> None:
        self.root, self.folder = root, root / "live"
        self.folder.mkdir()
        hook = root / "hook"
        hook.write_text(_HOOK)
        hook.chmod(0o755)
        env = {"HERE": str(root), "PASSWORD": self.secrets[0]}
        programs = {"hook": Program(argv=(str(hook),), env=env)}
        self.rules = LocalRules(folders=(self.folder,), programs=programs)

    async def deployer(self, name: str = "hook") -> Deployer:
        return ProgramDeployer(ProgramSettings(program=name, folder=str(self.folder)), parts(self.rules))

    async def holds(self) -> tuple[str, Secret[bytes]]:
        assert self.left() == [], "a key is left behind"
        first = (self.root / "server.crt").read_text().partition("-----END CERTIFICATE-----")
        der = ssl.PEM_cert_to_DER_cert(first[0] + first[1])
        return hashlib.sha256(der).hexdigest(), Secret((self.root / "server.key").read_bytes())

    def left(self) -> list[Path]:
        return sorted(each for each in self.folder.rglob("*") if each.is_file() and each.name != "deployed.json")

    def exits_with(self, code: int) -> None:
        (self.root / "exit").write_text(str(code))

    async def go_away(self) -> bool:
        self.exits_with(75)
        return True

    async def refuse(self) -> bool:
        self.exits_with(77)
        return True

    async def come_back(self) -> None:
        (self.root / "exit").unlink()


@asynccontextmanager
async def a_bench() -> AsyncIterator[ProgramBench]:
    with tempfile.TemporaryDirectory() as folder:
        yield ProgramBench(Path(folder))
