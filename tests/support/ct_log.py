"""A small log of Certificate Transparency: real entries, a real Merkle tree, signed heads, tiles and get-entries.

Written after RFC 6962 and the static-ct-api specification, and not after our reader: hashes, leaves and signatures are
made here.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from tests.support.http_server import HttpAnswer, HttpRequest, HttpServer

ORIGIN = "log.example.com/2026h1"


# ── Certificates and precertificates ──


@dataclass
class LoggingCa:
    """A public CA that logs a precertificate, and issues the certificate with the same serial."""

    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))

    @property
    def name(self) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Logging CA")])

    @property
    def key_hash(self) -> bytes:
        return hashlib.sha256(
            self.key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        ).digest()

    def pair(self, *names: str, days: float = 60) -> tuple[x509.Certificate, x509.Certificate]:
        """The precertificate and the certificate."""
        leaf_key, serial = ec.generate_private_key(ec.SECP256R1()).public_key(), x509.random_serial_number()
        now = datetime.now(UTC).replace(microsecond=0)
        base = x509.CertificateBuilder().subject_name(x509.Name([])).issuer_name(self.name).public_key(leaf_key)
        base = base.serial_number(serial).not_valid_before(now - timedelta(days=1))
        base = base.not_valid_after(now + timedelta(days=days))
        base = base.add_extension(x509.SubjectAlternativeName([x509.DNSName(each) for each in names]), critical=True)
        poisoned = base.add_extension(x509.PrecertPoison(), critical=True)
        return poisoned.sign(self.key, hashes.SHA256()), base.sign(self.key, hashes.SHA256())


@dataclass(frozen=True)
class Entry:
    timestamped: bytes  # TimestampedEntry
    precertificate: bytes  # DER; empty of a certificate

    @property
    def leaf_input(self) -> bytes:
        return bytes([0, 0]) + self.timestamped

    @property
    def extra_data(self) -> bytes:
        chain = _vector(3, b"")
        return _vector(3, self.precertificate) + chain if self.precertificate else chain

    @property
    def tile_leaf(self) -> bytes:
        own = _vector(3, self.precertificate) if self.precertificate else b""
        return self.timestamped + own + _vector(2, bytes(32))


def _vector(size: int, content: bytes) -> bytes:
    return len(content).to_bytes(size, "big") + content


# ── The tree ──


def leaf_hash(leaf: bytes) -> bytes:
    return hashlib.sha256(b"\x00" + leaf).digest()


def root_of(leaves: list[bytes]) -> bytes:
    """The Merkle tree hash (RFC 6962 §2.1)."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    split = 1 << (len(leaves) - 1).bit_length() - 1
    return hashlib.sha256(b"\x01" + root_of(leaves[:split]) + root_of(leaves[split:])).digest()


class CtLog(HttpServer):
    """Serves both: checkpoint and tiles, get-sth and get-entries."""

    def __init__(self) -> None:
        super().__init__()
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.entries: list[Entry] = []
        self.page = 1000  # entries of one answer of get-entries, at most
        self.lies: dict[str, bytes] = {}  # answers by the beginning of their path
        self.endless = ""  # the path whose answer never ends

    @property
    def public_key(self) -> str:
        return base64.b64encode(self._spki).decode()

    @property
    def _spki(self) -> bytes:
        return self.key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)

    # ── Filling ──

    def add(self, certificate: x509.Certificate) -> int:
        return self._append(0, _vector(3, certificate.public_bytes(Encoding.DER)), b"")

    def add_precertificate(self, poisoned: x509.Certificate, final: x509.Certificate, ca: LoggingCa) -> int:
        """The TBSCertificate of an entry has no poison extension: here it is that of the certificate to come."""
        entry = ca.key_hash + _vector(3, final.tbs_certificate_bytes)
        return self._append(1, entry, poisoned.public_bytes(Encoding.DER))

    def add_unreadable(self) -> int:
        return self._append(0, _vector(3, b"no certificate"), b"")

    def _append(self, kind: int, entry: bytes, precertificate: bytes) -> int:
        index = len(self.entries)
        stamp = int(datetime.now(UTC).timestamp() * 1000)
        extensions = _vector(2, bytes([0]) + _vector(2, index.to_bytes(5, "big")))
        timestamped = stamp.to_bytes(8, "big") + kind.to_bytes(2, "big") + entry + extensions
        self.entries.append(Entry(timestamped, precertificate))
        return index

    # ── Heads ──

    def root(self) -> bytes:
        return root_of([leaf_hash(each.leaf_input) for each in self.entries])

    def _signed(self, stamp: int) -> bytes:
        head = bytes([0, 1]) + stamp.to_bytes(8, "big") + len(self.entries).to_bytes(8, "big") + self.root()
        return bytes([4, 3]) + _vector(2, self.key.sign(head, ec.ECDSA(hashes.SHA256())))

    def checkpoint(self) -> bytes:
        stamp = int(datetime.now(UTC).timestamp() * 1000)
        log_id = hashlib.sha256(self._spki).digest()
        key_id = hashlib.sha256(ORIGIN.encode() + b"\n\x05" + log_id).digest()[:4]
        signature = base64.b64encode(key_id + stamp.to_bytes(8, "big") + self._signed(stamp)).decode()
        root = base64.b64encode(self.root()).decode()
        return f"{ORIGIN}\n{len(self.entries)}\n{root}\n\n— {ORIGIN} {signature}\n".encode()

    def sth(self) -> bytes:
        stamp = int(datetime.now(UTC).timestamp() * 1000)
        return json.dumps(
            {
                "tree_size": len(self.entries),
                "timestamp": stamp,
                "sha256_root_hash": base64.b64encode(self.root()).decode(),
                "tree_head_signature": base64.b64encode(self._signed(stamp)).decode(),
            }
        ).encode()

    # ── Files and answers ──

    def tile(self, number: int, width: int) -> bytes:
        return b"".join(each.tile_leaf for each in self.entries[number * 256 : number * 256 + width])

    def write(self, folder: Path) -> None:
        """The log as files, as a mirror keeps it."""
        (folder / "checkpoint").write_bytes(self.checkpoint())
        for number in range(0, len(self.entries), 256):
            width = min(256, len(self.entries) - number)
            name = f"{number // 256:03}" + ("" if width == 256 else f".p/{width}")
            at = folder / "tile" / "data" / name
            at.parent.mkdir(parents=True, exist_ok=True)
            at.write_bytes(self.tile(number // 256, width))

    def get_entries(self, first: int, last: int) -> bytes:
        found = self.entries[first : min(last + 1, first + self.page)]
        return json.dumps(
            {
                "entries": [
                    {
                        "leaf_input": base64.b64encode(each.leaf_input).decode(),
                        "extra_data": base64.b64encode(each.extra_data).decode(),
                    }
                    for each in found
                ]
            }
        ).encode()

    async def respond(self, request: HttpRequest, writer: asyncio.StreamWriter) -> None:
        if self.endless and request.path.startswith(self.endless):
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            while True:
                writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
                await writer.drain()
        lie = next((body for path, body in self.lies.items() if request.path.startswith(path)), None)
        writer.write((self._answer(request) if lie is None else HttpAnswer(body=lie)).encoded())

    def _answer(self, request: HttpRequest) -> HttpAnswer:
        path = request.path
        if path == "/checkpoint":
            return HttpAnswer(body=self.checkpoint())
        if path == "/ct/v1/get-sth":
            return HttpAnswer(body=self.sth())
        if path == "/ct/v1/get-entries":
            return HttpAnswer(body=self.get_entries(int(request.query["start"]), int(request.query["end"])))
        if path.startswith("/tile/data/"):
            name, partial, width = path.removeprefix("/tile/data/").partition(".p/")
            number = int(name.replace("/", "").replace("x", ""))
            whole = len(self.entries) >= (number + 1) * 256
            if not partial and not whole:
                return HttpAnswer(status=404)
            return HttpAnswer(body=self.tile(number, int(width) if partial else 256))
        return HttpAnswer(status=404)
