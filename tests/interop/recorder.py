"""Between clients and server, when asked for: writes down each request, its JWS unpacked, and each answer.

Clients then see this one's TLS in place of the server's, so it is for finding out, not for the verdict.
"""

import base64
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPResponse, HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

HOP_BY_HOP: Final = frozenset({"connection", "transfer-encoding", "keep-alive", "content-length", "date", "server"})
SHOWN: Final = ("Location", "Retry-After", "Link", "Content-Type", "Replay-Nonce")
LONGEST: Final = 1500  # characters of a body


class Recorder(ThreadingHTTPServer):
    """Answers on one address what another says, with a file of all that was said."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], upstream: tuple[str, int], tls: tuple[Path, Path], log: Path) -> None:
        super().__init__(address, _Exchange)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*tls)
        self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.upstream, self.log, self.guard = upstream, log, threading.Lock()

    def note(self, text: str) -> None:
        with self.guard, self.log.open("a") as log:
            log.write(text)


class _Exchange(BaseHTTPRequestHandler):
    server: Recorder
    protocol_version = "HTTP/1.1"

    def _forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        line = HTTPSConnection(*self.server.upstream, context=ssl._create_unverified_context(), timeout=60)
        sent = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
        try:
            line.request(self.command, self.path, body or None, sent)
            answer = line.getresponse()
            said = answer.read()
        except OSError as error:
            self.send_error(502, f"the server does not answer: {error}")
            return
        self.server.note(exchange(self.command, self.path, body, answer, said))
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in HOP_BY_HOP:
                self.send_header(name, value)
        if answer.status not in (204, 304):
            self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)
        line.close()

    def do_GET(self) -> None:
        self._forward()

    def do_HEAD(self) -> None:
        self._forward()

    def do_POST(self) -> None:
        self._forward()

    def log_message(self, *words: object) -> None:
        pass


def exchange(method: str, path: str, body: bytes, answer: HTTPResponse, said: bytes) -> str:
    """One request and its answer, to read."""
    headers = "".join(f"  {name}: {answer.headers[name]}\n" for name in SHOWN if name in answer.headers)
    return f"> {method} {path}\n{request(body)}< {answer.status}\n{headers}  {clipped(said.decode(errors='replace'))}\n"


def request(body: bytes) -> str:
    """A JWS by its parts; keys are public ones, and the signature says nothing."""
    if not body:
        return ""
    try:
        parts = json.loads(body)
        return f"  {unpacked(parts['protected'])}\n  {clipped(unpacked(parts['payload']))}\n"
    except (ValueError, KeyError, TypeError):
        return f"  {clipped(body.decode(errors='replace'))}\n"


def unpacked(text: str) -> str:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode(errors="replace")


def clipped(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    thread = threading.Thread(target=recorder.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        recorder.shutdown()
        recorder.server_close()
