"""The simulator's fake CA behind a real HTTP server: it outlives its clients, and so it is the witness against them.

    with CaServer() as server:
        ca = server.open()
        ...  # replicas talk to ca.base
        assert ca.certificates == {"errand-1": 1}

One server holds any number of CAs, each under a path of its own, so that many runs can share it.
"""

import threading
import time
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from types import TracebackType
from typing import Any, Final, Self

from holdfast.core.issuers.budget import Limit
from tests.simulation.remote import FakeCa

HOST: Final = "127.0.0.1"
PLENTY: Final = Limit(burst=10_000, every=timedelta(milliseconds=1))


class Ca:
    """One CA: what it was told to do wrong, and what it saw. Whatever a test reads here was counted under the lock."""

    def __init__(self, base: str, limit: Limit) -> None:
        self.base = base
        self.failing: set[str] = set()  # errands whose next order is answered by 503
        self.slow: dict[str, float] = {}  # errands whose answers take so many seconds
        self.ordered: Counter[str] = Counter()  # orders accepted, repeated ones too: what a CA without keys would do
        self._fake = FakeCa(limit=limit, issue_after=0.0)
        self._guard = threading.Lock()
        self._open = threading.Event()  # closed while answers are held back
        self._open.set()
        self._held = 0

    def hang(self) -> None:
        """Accept requests from now on, and answer none before release()."""
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    @property
    def held(self) -> int:
        """Requests that wait for release() now; one whose client died still counts."""
        return self._held

    @property
    def certificates(self) -> dict[str, int]:
        with self._guard:
            return dict(self._fake.certificates)

    @property
    def requests(self) -> int:
        return self._fake.requests

    @property
    def over_limit(self) -> list[str]:
        return list(self._fake.over_limit)

    def answer(self, method: str, path: str) -> tuple[int, bytes]:
        """Called on a thread of the server's for each request."""
        errand = path.rpartition("/")[2].removeprefix("ref-").lstrip("0123456789").removeprefix("-")
        with self._guard:
            status, body = self._decide(method, path, errand)
        time.sleep(self.slow.get(errand, 0.0))
        if not self._open.is_set():
            with self._guard:
                self._held += 1
            self._open.wait()
            with self._guard:
                self._held -= 1
        return status, body

    def _decide(self, method: str, path: str, errand: str) -> tuple[int, bytes]:
        if method == "POST" and errand in self.failing:
            self.failing.discard(errand)
            return 503, b"not now"
        status, _, body = self._fake.answer(method, path, time.monotonic())
        if method == "POST" and status == 200:
            self.ordered[errand] += 1
        return status, body


class CaServer:
    """A thread that answers for all CAs, on a port of its own."""

    def __init__(self) -> None:
        self._cas: dict[str, Ca] = {}
        self._numbers = count(1)
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("content-length") or 0))
                name, _, path = self.path.lstrip("/").partition("/")
                status, body = server._cas[name].answer(self.command, path)
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self) -> None:
                self.answer()

            def do_POST(self) -> None:
                self.answer()

            def handle(self) -> None:
                with suppress(ConnectionError):  # clients here are killed for a living
                    super().handle()

            def log_message(self, *_: Any) -> None:
                pass

        self._http = ThreadingHTTPServer((HOST, 0), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), name="ca", daemon=True)

    def open(self, limit: Limit = PLENTY) -> Ca:
        """A CA that nobody has asked anything yet."""
        name = f"ca{next(self._numbers)}"
        ca = self._cas[name] = Ca(f"http://{HOST}:{self._http.server_port}/{name}", limit)
        return ca

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for ca in self._cas.values():
            ca.release()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()
