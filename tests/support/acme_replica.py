"""Replicas of the product in processes of their own, seen from outside, and the web server that they validate."""

import secrets
import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self

from tests.support import acme_child
from tests.support.child import Strike
from tests.support.forks import preload
from tests.support.grounds import Ground
from tests.support.ports import free_port
from tests.support.processes import Child

preload(acme_child.__name__)
HOSTS: Final = tuple(f"127.0.0.{n}" for n in range(1, 10))  # names that can be proved: all of them are this machine


def an_address() -> str:
    """A loopback address that nobody else is likely to use: the port can then be the same everywhere."""
    return f"127.{16 + secrets.randbelow(200)}.{secrets.randbelow(256)}.{1 + secrets.randbelow(254)}"


class AcmeReplica(Child):
    """The product in a process of its own, on this store and this address."""

    def __init__(
        self, ground: Ground, name: str, address: str, http_port: int, *wishes: str, strike: Strike | None = None
    ) -> None:
        self.address = address
        options = (f"--address={address}", f"--http-port={http_port}", *wishes)
        self._start(acme_child.main, ground, ground.folder / f"{name}.report", name, *options, strike=strike)

    @property
    def sentinel(self) -> int:
        """A file handle that can be read once it is dead."""
        return self._process.sentinel


class Answerer:
    """Answers http-01 on the same port of all HOSTS. A token of `late` is hung up on, the first time."""

    def __init__(self) -> None:
        self.proofs: dict[str, str] = {}
        self.late: set[str] = set()
        answerer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                token = self.path.rpartition("/")[2]
                if token in answerer.late:
                    answerer.late.discard(token)
                    return  # the connection ends without a word
                found = answerer.proofs.get(token)
                self.send_response(404 if found is None else 200)
                self.end_headers()
                self.wfile.write((found or "").encode())

            def handle(self) -> None:
                with suppress(ConnectionError):  # validators here are killed for a living
                    super().handle()

            def log_message(self, *_: Any) -> None:
                pass

        self.port = free_port()
        self._servers = [ThreadingHTTPServer((host, self.port), Handler) for host in HOSTS]
        for server in self._servers:
            server.daemon_threads = True
            server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._threads = [
            threading.Thread(target=each.serve_forever, args=(0.1,), name="http-01", daemon=True)
            for each in self._servers
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()
