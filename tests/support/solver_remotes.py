"""A place where proofs are published behind every kind of solver: their conformance suite runs on these."""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.issuers.base import ChallengeResponse
from holdfast.network import SystemNet
from holdfast.secret import Secret
from holdfast.solvers.base import Solver
from holdfast.solvers.dns_record import record_name, record_value
from holdfast.solvers.http01 import WELL_KNOWN
from holdfast.solvers.kind import SolverParts, make
from holdfast.world import LocalFiles, SystemRandom
from tests.support.bind import KEY, KEY_NAME, OURS, Bind
from tests.support.dns_server import SOA, DnsServer
from tests.support.issuing import Rows
from tests.support.ports import free_port
from tests.support.secrets_planted import LEXICON_TOKEN


@dataclass(kw_only=True)
class Remote:
    """`shown` says whether a CA would find a proof; `away` makes a solver whose remote cannot be reached."""

    solver: Callable[[], Solver]
    shown: Callable[[ChallengeResponse], bool]
    away: Callable[[], Solver] | None = None  # None: it is our own store, and the worker waits for that
    domain: str = "solver.test"  # where names can be proved
    away_domain: str = "solver.test"  # and where not, by `away`
    secrets: tuple[str, ...] = ()


Open = Callable[[Path], AbstractAsyncContextManager[Remote]]


def _parts(rows: Rows | None = None, **more: Any) -> SolverParts:
    rows = rows or Rows()
    given = {"files": LocalFiles(), "net": SystemNet(), "random": SystemRandom(), "resolvers": ()}
    given |= {"python": sys.executable, "put": rows.put, "delete": rows.delete, "tls_alpn_shown": True}
    return SolverParts(**{**given, **more})


def _in_store(kind: str) -> Open:
    @asynccontextmanager
    async def opened(folder: Path) -> AsyncIterator[Remote]:
        rows = Rows()
        yield Remote(solver=lambda: make(kind, {}, _parts(rows)), shown=lambda response: response.token in rows.proofs)

    return opened


@asynccontextmanager
async def _webroot(folder: Path) -> AsyncIterator[Remote]:
    root, blocked = folder / "root", folder / "blocked"
    root.mkdir()
    blocked.mkdir()
    (blocked / ".well-known").write_text("a file in the way of the folder")

    def solver(where: Path) -> Solver:
        return make("webroot", {"folder": str(where)}, _parts())

    yield Remote(
        solver=lambda: solver(root),
        shown=lambda response: (root / WELL_KNOWN / response.token).is_file(),
        away=lambda: solver(blocked),
    )


# ── DNS ──

_CHANGE = """#!{python} -I
import json, pathlib, sys
told, file = json.load(sys.stdin), pathlib.Path({file!r})
if told["zone"] == "away.test":
    print("failed ConnectionError")
    raise SystemExit(3)
kept = [each for each in json.loads(file.read_text()) if each != [told["name"], told["value"]]]
file.write_text(json.dumps(kept + [[told["name"], told["value"]]] if told["action"] == "add" else kept))
print("done")
"""


class FileZone(DnsServer):
    """A zone of which another process writes the TXT records, into a file."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file
        file.write_text("[]")
        for zone in ("solver.test", "away.test"):
            self.add(zone, "SOA", f"{SOA} 60")
            self.add(zone, "NS", "ns.solver.test.")
        self.add("ns.solver.test", "A", "127.0.0.1")

    def values(self, name: str) -> list[str]:
        return [value for each, value in json.loads(self.file.read_text()) if each == name]

    def reply(self, packet: bytes, *, tcp: bool) -> bytes | None:
        for name in {each for each, kind in self._records if kind == "TXT"}:
            self.remove(name, "TXT")
        for name, value in json.loads(self.file.read_text()):
            self.add(name, "TXT", f'"{value}"')
        return super().reply(packet, tcp=tcp)


def _by_process(kind: str) -> Open:
    """One that changes the zone by starting a program: the operator's, or that of dns-lexicon."""

    @asynccontextmanager
    async def opened(folder: Path) -> AsyncIterator[Remote]:
        async with FileZone(folder / "zone.json") as zone:
            program = folder / "change"
            program.write_text(_CHANGE.format(python=sys.executable, file=str(zone.file)))
            program.chmod(0o755)

            def solver(domain: str) -> Solver:
                hooked = kind == "dns-hook"
                settings: dict[str, Any] = {"argv": [str(program)]} if hooked else {"provider": "cloudflare"}
                secrets = {} if hooked else {"auth_token": Secret(LEXICON_TOKEN)}
                parts = _parts(resolvers=(zone.address,), dns_port=zone.port, python=str(program), credentials=secrets)
                return make(kind, {**settings, "zone": domain}, parts)

            yield Remote(
                solver=lambda: solver("solver.test"),
                shown=lambda response: record_value(response) in zone.values(record_name(response)),
                away=lambda: solver("away.test"),
                away_domain="away.test",
                secrets=(LEXICON_TOKEN,),
            )

    return opened


@asynccontextmanager
async def _rfc2136(folder: Path) -> AsyncIterator[Remote]:
    key = b64encode(KEY).decode()
    with Bind(folder, free_port()) as bind:

        def solver(server: str) -> Solver:
            parts = _parts(resolvers=(bind.address,), dns_port=bind.port, credentials={"key": Secret(key)})
            return make("dns-rfc2136", {"server": server, "key_name": KEY_NAME}, parts)

        yield Remote(
            solver=lambda: solver(bind.address),
            shown=lambda response: f'"{record_value(response)}"' in bind.ask(record_name(response), "TXT"),
            away=lambda: solver(f"127.0.0.1:{free_port()}"),
            domain=OURS,
            away_domain=OURS,
            secrets=(key,),
        )


REMOTES: dict[str, Open] = {
    "http": _in_store("http"),
    "tls-alpn": _in_store("tls-alpn"),
    "webroot": _webroot,
    "dns-hook": _by_process("dns-hook"),
    "dns-lexicon": _by_process("dns-lexicon"),
    "dns-rfc2136": _rfc2136,
}
