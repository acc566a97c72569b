"""The server under test: ours, or Pebble, with which the clients' own part is tried first."""

import json
import os
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.error import URLError

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from tests.interop.packages import Debian, Package, Tool
from tests.interop.recorder import Recorder, recording
from tests.support.reaper import PATIENCE, until

ADDRESS: Final = "127.0.0.1:14443"
BEHIND: Final = "127.0.0.1:14444"  # a server that is recorded
MANAGEMENT: Final = "127.0.0.1:15000"


@dataclass(frozen=True, slots=True)
class Server:
    """An ACME server while it runs."""

    directory: str
    trust: Path  # PEM; whom to trust for its TLS
    root: Path  # PEM; where the chains that it issues end
    log: Path
    ours: bool  # its certificates and CRLs are ours to answer for
    exchanges: Path | None = None  # what a recorder wrote down

    def admits_revocation(self, certificate: x509.Certificate) -> bool:
        """Pebble has no CRL, and says it this way."""
        url = f"https://{MANAGEMENT}/cert-status-by-serial/{certificate.serial_number:x}"
        return bool(json.loads(fetch(url, self.trust))["Status"] == "Revoked")


# ── Pebble ──

PEBBLE: Final[Package] = Debian(("pebble",), suite="trixie")


@contextmanager
def pebble(folder: Path, tool: Tool, nonces: int, *, record: bool) -> Iterator[Server]:
    """Debian's Pebble, on the real ports, refusing this percentage of good nonces."""
    trust, key = _tls_certificate(folder)
    settings = {
        "listenAddress": BEHIND if record else ADDRESS, "managementListenAddress": MANAGEMENT,
        "certificate": str(trust), "privateKey": str(key), "httpPort": 80, "tlsPort": 443, "ocspResponderURL": "",
        "externalAccountBindingRequired": False, "retryAfter": {"authz": 1, "order": 1},
        "certificateValidityPeriod": 90 * 24 * 3600,
    }  # fmt: skip
    config = folder / "pebble.json"
    config.write_text(json.dumps({"pebble": settings}))
    command = [tool.program("pebble"), "-config", str(config), "-dnsserver", "127.0.0.1:53"]
    environment = {"PEBBLE_VA_NOSLEEP": "1", "PEBBLE_WFE_NONCEREJECT": str(nonces), "PEBBLE_AUTHZREUSE": "0"}
    server = Server("https://localhost:14443/dir", trust, folder / "root.pem", folder / "pebble.log", ours=False)
    with (
        _process(command, environment, server.log) as process,
        _recorded(server, (trust, key)) if record else nullcontext(server) as shown,
    ):
        _wait(shown, process)
        server.root.write_bytes(fetch(f"https://{MANAGEMENT}/roots/0", trust))
        yield shown


def _tls_certificate(folder: Path) -> tuple[Path, Path]:
    """Pebble comes without one, and a recorder needs one; who trusts it, trusts it alone."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    names = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(days=2))
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    certificate = builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    (folder / "tls.pem").write_bytes(certificate)
    (folder / "tls.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return folder / "tls.pem", folder / "tls.key"


# ── ours ──


@contextmanager
def holdfast(folder: Path, nonces: int, *, record: bool) -> Iterator[Server]:
    """`holdfast serve` as an operator starts it, refusing this percentage of good nonces."""
    settings = {
        "STORE_DATA_DIR": str(folder / "data"),
        "SERVER_LISTEN": "127.0.0.1:8630",
        "ACME_LISTEN": BEHIND if record else ADDRESS,
        "ACME_BASE_URL": "https://localhost:14443",
        "ACME_RESOLVERS": "127.0.0.1:53",
        "ACME_NETWORKS": "127.0.0.0/8",
        "ACME_CHAOS_NONCES": str(nonces),
    }
    environment = {f"HOLDFAST_{name}": value for name, value in settings.items()}
    root = folder / "root.pem"
    server = Server("https://localhost:14443/acme/default/directory", root, root, folder / "holdfast.log", ours=True)
    with _process([*OURS, "serve"], environment, server.log) as process:
        _root(server, environment, process)
        with _recorded(server, _tls_certificate(folder)) if record else nullcontext(server) as shown:
            _wait(shown, process)
            yield shown


OURS: Final = (sys.executable, "-m", "holdfast.cli.main")


def _root(server: Server, environment: Mapping[str, str], process: subprocess.Popen[bytes]) -> None:
    """Ask for the root, once the server has made its CA."""

    def ready() -> bool:
        _alive(server, process)
        try:
            return bool(fetch("http://127.0.0.1:8630/health/ready", None))
        except (URLError, ConnectionError):
            return False

    try:
        until(ready, "readiness", every=0.1)
    except TimeoutError as error:
        raise SystemExit(f"{error}:\n{server.log.read_text()[-4000:]}") from None
    command = [*OURS, "ca", "chain", "default", "--root"]
    done = subprocess.run(command, env=_environment(environment), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"holdfast ca chain: {done.stderr}")
    server.root.write_text(done.stdout)


@contextmanager
def _recorded(server: Server, tls: tuple[Path, Path]) -> Iterator[Server]:
    """The server by way of a recorder."""
    recorder = Recorder(_address(ADDRESS), _address(BEHIND), tls, server.log.with_name("exchanges.log"))
    with recording(recorder):
        yield replace(server, trust=tls[0], exchanges=recorder.log)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.partition(":")
    return host, int(port)


# ── both ──


@contextmanager
def _process(command: list[str], environment: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as out:
        process = subprocess.Popen(
            command, env=_environment(environment), stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Ours without what the machine has set for a Holdfast of its own."""
    return {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")} | dict(settings)


def _alive(server: Server, process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        raise SystemExit(f"the server ended with {process.returncode}:\n{server.log.read_text()[-4000:]}")


def _wait(server: Server, process: subprocess.Popen[bytes]) -> None:
    def answers() -> bool:
        _alive(server, process)
        try:
            return "newNonce" in json.loads(fetch(server.directory, server.trust))
        except (URLError, ConnectionError):
            return False

    until(answers, f"{server.directory} to answer", every=0.05)


def fetch(url: str, trust: Path | None) -> bytes:
    """Get a page; plain HTTP for a CRL."""
    context = ssl.create_default_context(cafile=trust) if url.startswith("https:") else None
    with urllib.request.urlopen(url, timeout=PATIENCE, context=context) as answer:
        return bytes(answer.read())
