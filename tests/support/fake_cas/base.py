"""What every fake CA is made of: an HTTPS server with a log, faults on request, a hierarchy, and a remote control.

    async with FakeDigicert(folder) as ca:
        ca.fail(status=429, retry_after="7", times=2)           # the next two requests
        ca.fail(kind="reset", effect=True, only="POST /order")  # the order is taken, its answer is lost
        ...  # talk to ca.base, believing ca.roots
        assert len(ca.orders) == 1

As a process of its own (python -m tests.support.fake_cas.digicert --folder F) it prints one line, READY and its base,
and takes the same orders as POST /_control/<verb> with the arguments as JSON: see Remote.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import signal
import ssl
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from tests.support.http_server import HttpAnswer, HttpRequest, HttpServer, drip, hang, tls_context
from tests.support.pebble import tls_certificate
from tests.support.reaper import PATIENCE

DAY = timedelta(days=1)
FOR_EVER = 10**9
CONTROL = "/_control/"


def accepts(asked: HttpRequest, kind: str) -> bool:
    """Whether a client takes an answer of this content type; 406 is for those that do not."""
    offered = asked.headers.get("accept", "*/*")
    return any(each in offered for each in (kind, "*/*", f"{kind.partition('/')[0]}/*"))


def as_json(value: object, status: int = 200, **headers: str) -> HttpAnswer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return HttpAnswer(
        status=status, body=json.dumps(value).encode(), headers={"Content-Type": "application/json", **named}
    )


@dataclass(slots=True, kw_only=True)
class Fault:
    """What goes wrong with the next `times` requests whose line ("POST /order/…") matches `only`.

    kind: status, reset, hang, drip, garbage, redirect. `effect`: the request is obeyed first, and its answer lost.
    """

    kind: str = "status"
    status: int = 503
    retry_after: str | None = None
    body: str = ""
    location: str = "https://elsewhere.test/"
    times: int = 1
    only: str = ""
    effect: bool = False


# ── Signing ──


class Hierarchy:
    """A root and an intermediate that issue for whatever key and names they are given."""

    def __init__(self, name: str) -> None:
        self._root_key, self._key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
        self.root = self._authority(f"{name} Root", self._root_key, None)
        self.intermediate = self._authority(f"{name} Issuing CA", self._key, self.root)

    def _authority(
        self, name: str, key: ec.EllipticCurvePrivateKey, above: x509.Certificate | None
    ) -> x509.Certificate:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder(subject_name=subject, issuer_name=above.subject if above else subject)
        builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - 3650 * DAY).not_valid_after(now + 36500 * DAY)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        return builder.add_extension(identifier, critical=False).sign(self._root_key, hashes.SHA256())

    def issue(
        self, key: Any, names: list[str], *, days: float = 90, now: datetime | None = None, serial: int | None = None
    ) -> x509.Certificate:
        now = (now or datetime.now(UTC)).replace(microsecond=0)
        builder = x509.CertificateBuilder(issuer_name=self.intermediate.subject, subject_name=x509.Name([]))
        builder = builder.public_key(key).serial_number(serial or x509.random_serial_number())
        builder = builder.not_valid_before(now - timedelta(minutes=1)).not_valid_after(now + days * DAY)
        named = x509.SubjectAlternativeName(list(map(_general_name, names)))
        builder = builder.add_extension(named, critical=True)
        above = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return builder.add_extension(above, critical=False).sign(self._key, hashes.SHA256())

    @property
    def stranger(self) -> Any:
        """A public key that nobody asked about."""
        return ec.generate_private_key(ec.SECP256R1()).public_key()


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def pem(*certificates: x509.Certificate) -> bytes:
    return b"".join(each.public_bytes(Encoding.PEM) for each in certificates)


def read_csr(text: str) -> x509.CertificateSigningRequest:
    """As PEM, with or without line breaks inside; ValueError if it is none."""
    found = re.search(r"-----BEGIN (?:NEW )?CERTIFICATE REQUEST-----(.*)-----END", text, re.DOTALL)
    if found is None:
        raise ValueError("no PEM")
    inner = "".join(found.group(1).split())
    lines = "\n".join(inner[at : at + 64] for at in range(0, len(inner), 64))
    return x509.load_pem_x509_csr(
        f"-----BEGIN CERTIFICATE REQUEST-----\n{lines}\n-----END CERTIFICATE REQUEST-----\n".encode()
    )


# ── The server ──

Handler = Callable[..., HttpAnswer]


class FakeCa(HttpServer):
    """Subclasses have `routes`: (method, pattern below the base, name of a method for the request and the groups)."""

    name = "Fake"
    base_path = ""
    routes: tuple[tuple[str, str, str], ...] = ()
    verbs: frozenset[str] = frozenset({"fail", "calm", "approve", "deny", "set", "show"})

    def __init__(self, folder: Path, *, port: int = 0, client_roots: Path | None = None) -> None:
        self._certificate, key = _tls(folder)
        super().__init__(port=port, tls=tls_context(self._certificate, key, client_roots=client_roots))
        self.hierarchy = Hierarchy(self.name)
        self.faults: list[Fault] = []
        self.approval = False  # whether a person must say yes first
        self.pending_looks = 0  # how often a new order is shown as pending before it is issued
        self.wrong_certificate = False  # it hands out one for another key
        self.gives_twins = False  # the bare domain along with its wildcard, and www along with a name, unasked
        self.adds_name = ""  # another one that nobody asked for
        self.bad_names: set[str] = set()  # names that it refuses

    # ── what tests and other processes can do to it ──

    def fail(self, **fault: Any) -> None:
        self.faults.append(Fault(**fault))

    def calm(self) -> None:
        self.faults.clear()

    def set(self, **values: Any) -> None:
        for name, value in values.items():
            if not hasattr(self, name):
                raise KeyError(name)
            setattr(self, name, value)

    def approve(self, number: int | None = None) -> None:
        """What waits for a person: one order, or all of them."""

    def deny(self, number: int | None = None, words: str = "the organisation said no") -> None: ...

    def summary(self) -> dict[str, Any]:
        """The truth of this CA, for other processes."""
        return {}

    def show(self) -> dict[str, Any]:
        requests = [{"at": each.at.isoformat(), "line": each.line} for each in self.requests]
        return {"requests": requests, **self.summary()}

    # ── where it is ──

    @property
    def base(self) -> str:
        return f"https://localhost:{self.port}{self.base_path}"

    @property
    def roots(self) -> bytes:
        """PEM: who vouches for its TLS certificate."""
        return self._certificate.read_bytes()

    def lines(self, start: str = "") -> list[str]:
        return [each.line for each in self.requests if each.line.startswith(start)]

    # ── serving ──

    def counts(self, request: HttpRequest) -> bool:
        """Those of a client do, those of the test do not."""
        return not request.path.startswith(CONTROL)

    async def respond(self, request: HttpRequest, writer: asyncio.StreamWriter) -> None:
        if request.path.startswith(CONTROL):
            writer.write(self._control(request.path.removeprefix(CONTROL), request.body).encoded())
            return
        fault = self._next_fault(request)
        if fault is None:
            writer.write(self.answer(request).encoded())
            return
        if fault.effect:
            self.answer(request)
        await _go_wrong(replace(fault, body=fault.body or self.error_body(fault.status)), writer)

    def _next_fault(self, asked: HttpRequest) -> Fault | None:
        found = next((each for each in self.faults if each.times > 0 and re.match(each.only, asked.line)), None)
        if found is not None:
            found.times -= 1
        return found

    def _control(self, verb: str, body: bytes) -> HttpAnswer:
        if verb not in self.verbs:
            return as_json({"error": f"no verb {verb}"}, 404)
        return as_json(getattr(self, verb)(**json.loads(body or b"{}")))

    def named(self, names: list[str]) -> list[str]:
        """The names that it puts into a certificate for these."""
        bare = [each.removeprefix("*.").removeprefix("www.") for each in names]
        twins = [*bare, *(f"www.{each}" for each in names if not each.startswith(("*.", "www.")))]
        more = [*(twins if self.gives_twins else []), *([self.adds_name] if self.adds_name else [])]
        return list(dict.fromkeys([*names, *more]))

    # ── answering ──

    def answer(self, asked: HttpRequest) -> HttpAnswer:
        refusal = self.stranger(asked)
        if refusal is not None:
            return refusal
        for method, pattern, handler in self.routes:
            found = re.fullmatch(pattern, asked.path)
            if method == asked.method and found is not None:
                return getattr(self, handler)(asked, *found.groups())  # type: ignore[no-any-return]
        return self.nothing_here(asked)

    def stranger(self, asked: HttpRequest) -> HttpAnswer | None:
        """The refusal of somebody who is not known here; None lets them in."""
        return None

    def error_body(self, status: int) -> str:
        """How this CA words a failure of this status."""
        return ""

    def nothing_here(self, asked: HttpRequest) -> HttpAnswer:
        return as_json({}, 404)


def _tls(folder: Path) -> tuple[Path, Path]:
    """One certificate for a folder, however often a fake is started on it."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "tls.key").exists():
        return folder / "tls.pem", folder / "tls.key"
    return tls_certificate(folder, "localhost", "127.0.0.1")


# ── What goes wrong ──


async def _go_wrong(fault: Fault, writer: asyncio.StreamWriter) -> None:
    await _FAULTS[fault.kind](fault, writer)


async def _status(fault: Fault, writer: asyncio.StreamWriter) -> None:
    waits = {} if fault.retry_after is None else {"Retry-After": fault.retry_after}
    writer.write(HttpAnswer(status=fault.status, body=fault.body.encode(), headers=waits).encoded())


async def _reset(_: Fault, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    raise ConnectionResetError


async def _hang(_: Fault, writer: asyncio.StreamWriter) -> None:
    await hang(writer)


async def _drip(_: Fault, writer: asyncio.StreamWriter) -> None:
    await drip(writer)


async def _garbage(_: Fault, writer: asyncio.StreamWriter) -> None:
    body = b"<html><body>Welcome to the proxy</body></html>"
    writer.write(HttpAnswer(status=200, body=body, headers={"Content-Type": "text/html"}).encoded())


async def _redirect(fault: Fault, writer: asyncio.StreamWriter) -> None:
    status = fault.status if 300 <= fault.status < 400 else 302
    writer.write(HttpAnswer(status=status, headers={"Location": fault.location}).encoded())


_FAULTS: Mapping[str, Callable[[Fault, asyncio.StreamWriter], Awaitable[None]]] = {
    "status": _status, "reset": _reset, "hang": _hang, "drip": _drip, "garbage": _garbage, "redirect": _redirect,
}  # fmt: skip


# ── As a process of its own ──


class Remote:
    """The control of a fake that is another process."""

    def __init__(self, base: str, folder: Path) -> None:
        self.base = base
        self.roots = (folder / "tls.pem").read_bytes()
        self._origin = "{0.scheme}://{0.netloc}".format(urlsplit(base))
        self._context = ssl.create_default_context(cadata=self.roots.decode())
        if (folder / "client.pem").exists():  # one that wants to see a client's certificate wants to see this one
            self._context.load_cert_chain(folder / "client.pem", folder / "client.key")

    def do(self, verb: str, **arguments: Any) -> Any:
        request = urllib.request.Request(
            f"{self._origin}{CONTROL}{verb}", data=json.dumps(arguments).encode(), method="POST"
        )
        with urllib.request.urlopen(request, context=self._context, timeout=PATIENCE) as answer:
            return json.loads(answer.read() or b"null")


def serve(kind: Callable[..., FakeCa], argv: list[str] | None = None) -> None:
    """Until SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--client-roots", type=Path, default=None)
    told = parser.parse_args(argv)

    async def run() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        async with kind(told.folder, port=told.port, client_roots=told.client_roots) as ca:
            print(f"READY {ca.base}", flush=True)
            await stop.wait()

    asyncio.run(run())
