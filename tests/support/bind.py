"""BIND, with a zone that nobody may change and one that we may, on a port of loopback."""

import os
import shutil
import socket
import subprocess
from base64 import b64encode
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import dns.message
import dns.query

from tests.interop.packages import Debian
from tests.support.packages import tool
from tests.support.reaper import PATIENCE, until
from tests.support.secrets_planted import TSIG_KEY

LOCAL: Final = "127.0.0.1"
KEY_NAME: Final = "holdfast"
KEY: Final = TSIG_KEY
FIXED, OURS = "holdfast.test", "proofs.test"

_ZONE: Final = """$TTL 60
@ IN SOA ns1 hostmaster 1 60 60 60 1
@ IN NS ns1.{zone}.
ns1 IN A 127.0.0.1
{more}
"""
_CONFIG: Final = """
options {{
  directory "{folder}"; listen-on port {port} {{ 127.0.0.1; }}; listen-on-v6 {{ none; }}; pid-file none;
  session-keyfile "{folder}/session.key"; recursion no; notify no; dnssec-validation no;
}};
controls {{ }};
key "holdfast" {{ algorithm hmac-sha256; secret "{secret}"; }};
zone "holdfast.test" {{ type primary; file "holdfast.zone"; allow-update {{ none; }}; }};
zone "proofs.test" {{ type primary; file "proofs.zone"; allow-update {{ key holdfast; }}; }};
"""


def _program() -> tuple[str, dict[str, str]]:
    if (found := shutil.which("named") or shutil.which("named", path="/usr/sbin")) is not None:
        return found, {}
    bind = tool(Debian(("bind9",)), "BIND")
    return bind.program("named"), dict(bind.environment)


class Bind:
    def __init__(self, folder: Path, port: int, *, fixed: str = "", ours: str = "") -> None:
        self.port, self.address = port, f"{LOCAL}:{port}"
        self._folder = folder
        (folder / "holdfast.zone").write_text(_ZONE.format(zone=FIXED, more=fixed))
        (folder / "proofs.zone").write_text(_ZONE.format(zone=OURS, more=ours))
        secret = b64encode(KEY).decode()
        (folder / "named.conf").write_text(_CONFIG.format(folder=folder, port=port, secret=secret))

    def __enter__(self) -> Self:
        program, environment = _program()
        command = [program, "-g", "-n", "1", "-c", str(self._folder / "named.conf")]
        log = (self._folder / "named.log").open("wb")
        self._process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | environment)
        log.close()
        try:
            until(self._answers, "BIND", every=0.02)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            raise AssertionError((self._folder / "named.log").read_text()[-2000:])
        try:
            with socket.create_connection((LOCAL, self.port), timeout=PATIENCE):
                return bool(self.ask(f"ns1.{OURS}", "A"))
        except OSError:
            return False

    def ask(self, name: str, kind: str) -> list[str]:
        """What it says now, asked by a library that the product does not ask by."""
        answer = dns.query.tcp(dns.message.make_query(name, kind), LOCAL, port=self.port, timeout=PATIENCE)
        return [record.to_text() for found in answer.answer for record in found]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
