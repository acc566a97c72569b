"""The file of a backup: written whole or not at all, compressed, encrypted, and read only if every byte is its own."""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from holdfast.core import backup
from holdfast.core.backup import MAGIC, SUFFIX, BackupHeader
from holdfast.secret import Secret

BOX: Final = 1024 * 1024  # bytes before they are compressed
_LENGTH: Final = struct.Struct(">I")
_NONCE: Final = struct.Struct(">IQ")


def write(folder: Path, header: BackupHeader, lines: Iterable[bytes], key: Secret[bytes]) -> Path:
    """Under another name first: what ends in .hfb is whole."""
    path, line = folder / header.name, backup.render(header)
    new = folder / f".{header.name}.part"
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(MAGIC + line)
            for box in _boxes(lines, key, hashlib.sha256(line).digest()):
                file.write(box)
            file.flush()
            os.fsync(file.fileno())
        new.rename(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    _sync(folder)
    return path


def header_of(path: Path) -> BackupHeader:
    with _opened(path) as file:
        return _header(file, path)[0]


def read(path: Path, key: Secret[bytes]) -> Iterator[bytes]:
    """Its lines. BackupRefused at the first byte that is not its own, or if it ends too early."""
    with _opened(path) as file:
        line = _header(file, path)[1]
        cipher, about, left = AESGCM(key.reveal()), hashlib.sha256(line).digest(), b""
        number, last = 0, False
        while not last:
            content, last = _opened_box(file, cipher, about, number, path)
            *whole, left = (left + content).split(b"\n")
            yield from (each + b"\n" for each in whole)
            number += 1
        if left or file.read(1):
            raise backup.damaged(str(path), "it goes on after its end")


def kept(folder: Path) -> list[Path]:
    """The backups in a folder, the oldest first."""
    return sorted((each for each in folder.iterdir() if each.name.endswith(SUFFIX)), key=lambda each: each.name[-20:])


def forget(folder: Path, keep: int) -> list[Path]:
    """Remove the oldest, so that so many are left."""
    gone = kept(folder)[:-keep] if keep else []
    for each in gone:
        each.unlink()
    return gone


def _boxes(lines: Iterable[bytes], key: Secret[bytes], about: bytes) -> Iterator[bytes]:
    cipher, number, held = AESGCM(key.reveal()), 0, bytearray()
    for line in lines:
        held += line
        if len(held) >= BOX:
            yield _box(cipher, bytes(held), about, number, last=False)
            number, held = number + 1, bytearray()
    yield _box(cipher, bytes(held), about, number, last=True)


def _box(cipher: AESGCM, content: bytes, about: bytes, number: int, *, last: bool) -> bytes:
    sealed = cipher.encrypt(_NONCE.pack(last, number), zlib.compress(content, 1), about)
    return _LENGTH.pack(len(sealed) | last << 31) + sealed


def _opened_box(file: IO[bytes], cipher: AESGCM, about: bytes, number: int, path: Path) -> tuple[bytes, bool]:
    head = file.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise backup.damaged(str(path), "it is cut: its end is missing")
    (length,) = _LENGTH.unpack(head)
    last, size = bool(length >> 31), length & 0x7FFFFFFF
    sealed = file.read(size) if size <= 2 * BOX + 1024 * 1024 else b""
    try:
        return zlib.decompress(cipher.decrypt(_NONCE.pack(last, number), sealed, about)), last
    except (InvalidTag, zlib.error):
        raise backup.damaged(str(path), f"it was altered or cut, in part {number + 1}") from None


def _opened(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except OSError as error:
        raise backup.BackupRefused(
            f"The backup {path} cannot be read: {error.strerror}.", "Name a file that ends in .hfb."
        ) from None


def _header(file: IO[bytes], path: Path) -> tuple[BackupHeader, bytes]:
    if file.readline(len(MAGIC) + 1) != MAGIC:
        raise backup.damaged(str(path), "it does not begin as a backup of Holdfast does")
    line = file.readline(backup.LONGEST_HEADER)
    return backup.parse(line, str(path)), line


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
