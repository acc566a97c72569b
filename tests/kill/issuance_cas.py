"""The CAs that an issuance is killed at: Pebble, our own, and those that issue later; each keeps its own truth."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Protocol, Self

from cryptography.hazmat.primitives.serialization import Encoding

from holdfast.engine.issuance.issuer_factory import Upstream
from holdfast.issuers.acme.issuer import AcmeIssuer
from holdfast.store import issuers
from tests.support.fake_cas.base import FakeCa
from tests.support.fake_cas.digicert import FakeDigicert
from tests.support.fake_cas.entrust import FakeEntrust
from tests.support.fake_cas.globalsign import FakeGlobalSign
from tests.support.fake_cas.sectigo import FakeSectigo
from tests.support.fake_cas.vault import FakeVault
from tests.support.pebble import Pebble
from tests.support.reaper import PATIENCE

LOOKS: Final = 2  # how often a new order is shown as pending


@dataclass(frozen=True, slots=True)
class Truth:
    """What a CA knows of the orders of one run."""

    orders: int
    certificates: int


class CaOfOneRun(Protocol):
    """A CA for one run. What is asked for is in its JSON; its truth is read when all is over."""

    description: dict[str, Any]
    solvers: str  # TOML
    more_orders: int  # that an ambiguous death may cost at this CA
    doubtful: bool  # it cannot be asked whether it has an order

    def known(self) -> bool:
        """Whether it has an order."""

    def an_hour_passes(self) -> None: ...

    async def truth(self, upstream: Upstream) -> Truth | None: ...


class Ca(Protocol):
    name: str

    def open(self) -> Any:
        """A context with a CaOfOneRun."""


# ── Our own ──


class Own:
    """In the same store: it is read there."""

    name = "own"

    @contextmanager
    def open(self) -> Iterator[CaOfOneRun]:
        yield _Own()


@dataclass
class _Own:
    description: dict[str, Any] = field(default_factory=lambda: {"kind": "local", "settings": {}, "credentials": {}})
    solvers: str = ""
    more_orders: int = 0
    doubtful: bool = False

    def known(self) -> bool:
        return False

    def an_hour_passes(self) -> None:
        pass

    async def truth(self, upstream: Upstream) -> Truth | None:
        def count(tx: Any) -> Truth:
            rows = [tx.rows(f"SELECT id FROM {table}") for table in ("acme_orders", "ca_certificates")]
            return Truth(*map(len, rows))

        return await upstream._certificate_context.db.read(count)


# ── Pebble ──


class AtPebble:
    """One Pebble for all runs: each has an account of its own, whose orders Pebble lists."""

    name = "pebble"

    def __init__(self, folder: Path) -> None:
        self._webroot = folder / "webroot"
        self._webroot.mkdir(parents=True)
        self._pebble = Pebble(folder, nonces=0, sleep=0)

    def __enter__(self) -> Self:
        quiet = type("Quiet", (SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
        handler = partial(quiet, directory=str(self._webroot))
        self._server = ThreadingHTTPServer(("127.0.0.1", self._pebble.http_port), handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True).start()
        self._pebble.__enter__()
        return self

    def __exit__(self, *_: Any) -> None:
        self._pebble.__exit__(None, None, None)
        self._server.shutdown()
        self._server.server_close()

    @contextmanager
    def open(self) -> Iterator[CaOfOneRun]:
        place = self._pebble.place
        settings = {"directory": place.directory, "roots": place.roots.decode(), "limits": {"requests": None}}
        solvers = f'[[solver]]\nkind = "webroot"\nnames = ["*"]\nfolder = {json.dumps(str(self._webroot))}\n'
        yield _Account({"kind": "acme", "settings": settings, "credentials": {}}, solvers)


@dataclass
class _Account:
    description: dict[str, Any]
    solvers: str
    more_orders: int = 0
    doubtful: bool = False

    def known(self) -> bool:
        return False

    def an_hour_passes(self) -> None:
        pass

    async def truth(self, upstream: Upstream) -> Truth | None:
        row = await upstream._certificate_context.db.read(lambda tx: issuers.get(tx, "ca"))
        if row is None:
            return None
        issuer = await upstream.make(row)
        if not isinstance(issuer, AcmeIssuer):
            raise AssertionError(issuer)
        orders = await issuer._orders()
        shown = [(await issuer._wire.fetch(url, issuer._account, "an order")).json() for url in orders]
        return Truth(len(orders), len({each["certificate"] for each in shown if each.get("certificate")}))


# ── Those that issue later ──

FAKES: Final[dict[str, Callable[..., FakeCa]]] = {
    "digicert": FakeDigicert,
    "sectigo": FakeSectigo,
    "entrust": FakeEntrust,
    "globalsign": FakeGlobalSign,
    "vault": FakeVault,
}
DOUBTFUL: Final = frozenset({"entrust"})  # what waits for approval there is nowhere to be seen
WITHOUT_TRACE: Final = frozenset({"vault"})  # a signature costs nothing there, and cannot be looked up


class Hosting:
    """Runs fakes on a thread of its own, one for each run."""

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fakes", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def do(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE)


class Later:
    def __init__(self, name: str, folder: Path, hosting: Hosting) -> None:
        self.name = name
        self._folder = folder / name
        self._hosting = hosting

    @contextmanager
    def open(self) -> Iterator[CaOfOneRun]:
        fake = FAKES[self.name](self._folder)
        fake.pending_looks = LOOKS
        self._hosting.do(fake.__aenter__())
        try:
            given = {"limits": {"requests": None, "orders": None}, "order_lookup_seconds": 3}
            described = {"kind": self.name, "settings": fake.settings(**given), "credentials": fake.credentials}
            yield _Fake(described, fake, more_orders=int(self.name in WITHOUT_TRACE), doubtful=self.name in DOUBTFUL)
        finally:
            self._hosting.do(fake.__aexit__(None, None, None))


@dataclass
class _Fake:
    description: dict[str, Any]
    fake: Any
    more_orders: int = 0
    doubtful: bool = False
    solvers: str = ""

    def known(self) -> bool:
        return bool(self.fake.orders)

    def an_hour_passes(self) -> None:
        """It has worked on what it has."""
        for order in self.fake.orders:
            if hasattr(order, "looks"):
                order.looks = 0

    async def truth(self, upstream: Upstream) -> Truth | None:
        made = {each.public_bytes(Encoding.DER) for order in self.fake.orders for each in _certificates(order)}
        return Truth(len(self.fake.orders), len(made))


def _certificates(order: Any) -> list[Any]:
    """Of whichever fake: what it issued for this order."""
    found = [getattr(order, "issued", None), getattr(order, "certificate", None)]
    found += [each.issued for each in getattr(order, "certificates", ())]
    return [each for each in found if each is not None]
