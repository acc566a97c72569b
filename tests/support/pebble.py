"""Pebble, the test CA of Let's Encrypt, with its DNS server, on free ports of loopback.

with Pebble(folder, nonces=50) as pebble:
    ...  # order at pebble.place; it looks for proofs at pebble.http_port, pebble.tls_port and in pebble.dns
"""

import json
import os
import shutil
import ssl
import subprocess
import urllib.request
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.error import URLError

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from holdfast.issuers.acme.reading import ResponseContext
from tests.interop.packages import Debian
from tests.support.packages import tool
from tests.support.ports import free_port
from tests.support.reaper import PATIENCE, until

LOCAL: Final = "127.0.0.1"


def program(name: str, suite: str | None = None) -> str:
    """Of the machine, or unpacked from Debian's package; the test is skipped, and says why, if there is neither."""
    if suite is None and (found := shutil.which(name)) is not None:
        return found
    return tool(Debian(("pebble",), suite=suite), "pebble").program(name)


def tls_certificate(folder: Path, *names: str) -> tuple[Path, Path]:
    """A certificate for these names and addresses that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "loopback")])
    listed = [x509.IPAddress(ip_address(each)) if each[0].isdigit() else x509.DNSName(each) for each in names]
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(days=2))
    builder = builder.add_extension(x509.SubjectAlternativeName(listed), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    certificate_file, key_file = folder / "tls.pem", folder / "tls.key"
    certificate_file.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
    key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return certificate_file, key_file


class Pebble:
    """`suite` is for a version of another Debian; since trixie's it has renewal information."""

    def __init__(
        self,
        folder: Path,
        *,
        nonces: int = 50,
        sleep: int = 2,
        eab: dict[str, str] | None = None,
        roots: int = 1,
        suite: str | None = None,
    ) -> None:
        self._suite = suite
        self._folder = folder
        self._stack = ExitStack()
        self.port, self.management, self.http_port, self.tls_port, dns, self.dns_management = (
            free_port() for _ in range(6)
        )
        self.dns = f"{LOCAL}:{dns}"
        certificate, key = tls_certificate(folder, "localhost", LOCAL)
        self._trust = certificate
        self.place = ResponseContext(directory=f"https://localhost:{self.port}/dir", roots=certificate.read_bytes())
        self._settings: dict[str, Any] = {
            "listenAddress": f"{LOCAL}:{self.port}", "managementListenAddress": f"{LOCAL}:{self.management}",
            "certificate": str(certificate), "privateKey": str(key), "httpPort": self.http_port,
            "tlsPort": self.tls_port, "ocspResponderURL": "", "retryAfter": {"authz": 1, "order": 1},
            "externalAccountBindingRequired": eab is not None, "externalAccountMACKeys": eab or {},
        }  # fmt: skip
        self._environment = {
            "PEBBLE_WFE_NONCEREJECT": str(nonces), "PEBBLE_VA_SLEEPTIME": str(sleep), "PEBBLE_AUTHZREUSE": "0",
            "PEBBLE_ALTERNATE_ROOTS": str(roots - 1), "PEBBLE_VA_NOSLEEP": "0" if sleep else "1",
        }  # fmt: skip

    def __enter__(self) -> Self:
        pebble, dns = (program(name, self._suite) for name in ("pebble", "pebble-challtestsrv"))
        config = self._folder / "pebble.json"
        config.write_text(json.dumps({"pebble": self._settings}))
        usage = subprocess.run([dns, "-h"], capture_output=True, text=True, check=False)
        listen = "-dnsserver" if "-dnsserver" in usage.stdout + usage.stderr else "-dns01"
        off = [word for name in ("-http01", "-https01", "-tlsalpn01") for word in (name, "")]
        addresses = ["-defaultIPv4", LOCAL, "-defaultIPv6", "", "-management", f"{LOCAL}:{self.dns_management}"]
        try:
            self._start([dns, *off, *addresses, listen, self.dns], "dns.log")
            self._start([pebble, "-config", str(config), "-dnsserver", self.dns], "pebble.log")
            until(self._answers, "pebble", every=0.02)
        except BaseException:
            self._stack.close()
            raise
        return self

    def _start(self, command: list[str], log: str) -> None:
        output = self._stack.enter_context((self._folder / log).open("wb"))
        process = subprocess.Popen(command, stdout=output, stderr=output, env=os.environ | self._environment)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)

    def _answers(self) -> bool:
        try:
            return bool(self.ask(self.place.directory)) and bool(self.root(0))
        except (URLError, ConnectionError):
            return False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    # ── what only Pebble's own side knows ──

    def ask(self, url: str) -> bytes:
        trust = ssl.create_default_context(cafile=str(self._trust))
        with urllib.request.urlopen(url, context=trust, timeout=PATIENCE) as answer:
            content: bytes = answer.read()
            return content

    def root(self, number: int) -> x509.Certificate:
        return x509.load_pem_x509_certificate(self.ask(f"https://{LOCAL}:{self.management}/roots/{number}"))

    def status_of(self, certificate: x509.Certificate) -> str:
        url = f"https://{LOCAL}:{self.management}/cert-status-by-serial/{certificate.serial_number:x}"
        return str(json.loads(self.ask(url))["Status"])

    def dns_command(self, command: str, **words: str) -> None:
        """Such as set-txt and clear-txt of pebble-challtestsrv."""
        url = f"http://{LOCAL}:{self.dns_management}/{command}"
        with urllib.request.urlopen(url, data=json.dumps(words).encode(), timeout=PATIENCE):
            pass
