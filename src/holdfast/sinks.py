"""Where audit rows go besides the database: a file, or syslog; in order, and again if it failed."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from holdfast.ports import AuditLine

PATIENCE: Final = 10.0  # seconds
PRIORITY: Final = 13 * 8 + 6  # facility "log audit", severity "informational" (RFC 5424 §6.2.1)
LONGEST_DATAGRAM: Final = 60_000  # bytes


class FileSink:
    """Lines of JSON, appended and synced: a crash loses none. Opened each time, so that it may be rotated."""

    def __init__(self, path: Path) -> None:
        self.name = f"file:{path}"
        self._path = path

    async def write(self, lines: Sequence[AuditLine]) -> None:
        await asyncio.to_thread(self._append, "".join(f"{each.text}\n" for each in lines).encode())

    def _append(self, content: bytes) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(self._path, flags, 0o600)
        try:
            size = os.fstat(handle).st_size
            torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"  # a crash cut the last line: it comes again
            _write_all(handle, b"\n" + content if torn else content)
            os.fsync(handle)
        finally:
            os.close(handle)
        if size == 0:
            _sync_folder(self._path.parent)


def _write_all(handle: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(handle, left) :]


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class SyslogSink:
    """RFC 5424, to a socket of this machine or over UDP or TCP. Nobody confirms anything: a file is the safer place."""

    def __init__(self, address: str, host: str) -> None:
        self.name = f"syslog:{address}"
        self._address = urlsplit(address)
        self._host = "".join(char for char in host if char.isascii() and char.isprintable() and char != " ") or "-"

    async def write(self, lines: Sequence[AuditLine]) -> None:
        await asyncio.to_thread(self._send, [self._message(each) for each in lines])

    def _message(self, line: AuditLine) -> bytes:
        at = line.at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        head = f'<{PRIORITY}>1 {at} {self._host} holdfast - audit [audit@32473 seq="{line.seq}"] '
        return f"{head}{line.text}".encode()

    def _send(self, messages: Sequence[bytes]) -> None:
        with self._connected() as line:
            for message in messages:
                if line.type == socket.SOCK_STREAM:
                    line.sendall(b"%d %s" % (len(message), message))  # octet counting (RFC 6587 §3.4.1)
                else:
                    line.send(message[:LONGEST_DATAGRAM])

    def _connected(self) -> socket.socket:
        match self._address.scheme:
            case "unix":
                line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                target: object = self._address.path
            case "udp":
                target = (self._address.hostname, self._address.port or 514)
                line = socket.socket(_family(target), socket.SOCK_DGRAM)
            case _:
                return socket.create_connection((self._address.hostname, self._address.port or 601), PATIENCE)
        line.settimeout(PATIENCE)
        try:
            line.connect(target)  # type: ignore[arg-type]
        except OSError:
            line.close()
            raise
        return line


def _family(target: tuple[str | None, int]) -> int:
    return socket.getaddrinfo(*target, type=socket.SOCK_DGRAM)[0][0]
