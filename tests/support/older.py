"""An installation in tests whose database is put back to an older copy, and the commands of its operator."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from cryptography import x509

from tests.support.commands import holdfast
from tests.support.ports import free_port
from tests.support.postgres import Cluster
from tests.support.processes import Served, environment
from tests.support.reaper import PATIENCE, until


@dataclass
class House:
    """One installation on SQLite, or on a database of this cluster."""

    folder: Path
    cluster: Cluster | None = None
    settings: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.settings |= {"SERVER_LISTEN": f"127.0.0.1:{free_port()}", "ENGINE_LEASE_TTL": "3s"}
        if self.cluster is not None:
            self.settings["STORE_URL"] = self.cluster.create_database()

    @contextmanager
    def served(self, *, ready: bool = True) -> Iterator[Served]:
        with Served(self.folder, self.settings) as served:
            if ready:
                served.wait_until_ready()
            yield served
            assert served.stop() == 0, served.output()

    def ask(self, *args: str, code: int = 0) -> Any:
        done = holdfast(*args, "-o", "json", env=environment(self.folder, self.settings))
        assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
        return json.loads(done.stdout) if done.stdout.strip() else done.stderr

    def issue(self, name: str) -> str:
        """The serial of a new certificate of our own CA."""
        self.ask("issue", name, "--wait")
        return next(each["serial"] for each in self.certificates() if name in each["names"])

    def certificates(self) -> list[dict[str, Any]]:
        return list(self.ask("ca", "certificates", "default"))

    def known(self) -> dict[str, bool]:
        """Every serial, and whether it is revoked."""
        return {each["serial"]: each["revoked_at"] is not None for each in self.certificates()}

    def revoke(self, serial: str, reason: str = "key-compromise") -> None:
        self.ask("ca", "revoke", serial, "--ca", "default", "--reason", reason, "--yes")

    def crl(self) -> x509.CertificateRevocationList | None:
        """As a client fetches it; None while it is withheld."""
        try:
            with urlopen(f"http://{self.settings['SERVER_LISTEN']}/pki/default/0.crl", timeout=PATIENCE) as answer:
                return x509.load_der_x509_crl(answer.read())
        except HTTPError as error:
            error.close()
            return None

    def listed(self, serial: str) -> x509.CertificateRevocationList:
        """The CRL, once it names this serial."""
        found: list[x509.CertificateRevocationList] = []

        def there() -> bool:
            crl = self.crl()
            if crl is None or crl.get_revoked_certificate_by_serial_number(int(serial, 16)) is None:
                return False
            found.append(crl)
            return True

        until(there, f"{serial} on the CRL")
        return found[0]

    # ── Copies ──

    @property
    def file(self) -> Path:
        return self.folder / "holdfast.sqlite"

    def copy(self) -> Any:
        """The database as it is now. No server runs."""
        if self.cluster is not None:
            return self.cluster.create_database(self.settings["STORE_URL"])
        path = self.folder / "older"
        with sqlite3.connect(self.file) as source, sqlite3.connect(path) as target:
            source.backup(target)
        source.close()
        target.close()
        return path

    def put_back(self, copy: Any) -> None:
        if self.cluster is not None:
            self.settings["STORE_URL"] = copy
            return
        shutil.copyfile(copy, self.file)
        for name in ("-wal", "-shm"):
            self.file.with_name(self.file.name + name).unlink(missing_ok=True)


def number(crl: x509.CertificateRevocationList) -> int:
    return crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
