"""The key file: a version line, then a line for each key (id, when it was made, base64), the newest first."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from holdfast.errors import StoreRefused
from holdfast.keyring import Kek
from holdfast.ports import Files
from holdfast.secret import Secret

FIRST_LINE: Final = "holdfast-keys 1"
NOTE: Final = """\
# Whoever has this file and the database can read every secret in it, and without this file nobody can.
# Keep a copy in a safe place, apart from the backups of the database. One file for one database.
"""


def read(files: Files, path: Path) -> list[Kek] | None:
    """The keys in it, or None if there is no such file."""
    try:
        content = files.read(path)
        if content is None:
            return None
        mode = files.mode(path)
    except OSError as error:
        raise StoreRefused(
            f"The key file {path} cannot be read: {error.strerror or error}.",
            "It must belong to the user that Holdfast runs as (keys.file says where it is looked for).",
        ) from error
    if mode & 0o077:
        raise StoreRefused(
            f"The key file {path} is open to other users of this machine (mode {mode:04o}).",
            f"Run: chmod 600 {path}   If others may have read it, run 'holdfast key rotate' after that.",
        )
    return parse(content, path)


def create(files: Files, path: Path, kek: Kek) -> list[Kek] | None:
    """Make the file. If another replica made it meanwhile, its keys count, and ours is forgotten."""
    try:
        _write(files, path, [kek], replace=False)
    except FileExistsError:
        return read(files, path)
    return [kek]


def rewrite(files: Files, path: Path, keks: Sequence[Kek]) -> None:
    """Replace the file's keys, all at once: a crash leaves the old file or the new one."""
    _write(files, path, keks, replace=True)


def _write(files: Files, path: Path, keks: Sequence[Kek], *, replace: bool) -> None:
    try:
        files.write_private(path, render(keks), replace=replace)
    except FileExistsError:
        raise
    except OSError as error:
        raise StoreRefused(
            f"The key file {path} cannot be written: {error.strerror or error}.",
            "Make its folder writable for the user that Holdfast runs as, or name another with keys.file.",
        ) from error


def render(keks: Sequence[Kek]) -> bytes:
    lines = "".join(
        f"{kek.id} {kek.created_at.isoformat()} {base64.b64encode(kek.key.reveal()).decode()}\n" for kek in keks
    )
    return f"{FIRST_LINE}\n{NOTE}{lines}".encode()


def parse(content: bytes, path: Path) -> list[Kek]:
    """Read what render wrote. A line that is not understood is never skipped: it may be the key we need."""
    try:
        first, *lines = content.decode("ascii").splitlines() or [""]
    except UnicodeDecodeError:
        raise _malformed(path, "it is not text") from None
    if first != FIRST_LINE:
        raise _malformed(path, f"its first line is not '{FIRST_LINE}'")
    keks = [
        _kek(line, path, number)
        for number, line in enumerate(lines, start=2)
        if line.strip() and not line.startswith("#")
    ]
    if len({kek.id for kek in keks}) < len(keks):
        raise _malformed(path, "it has two keys of the same id")
    return keks


def _kek(line: str, path: Path, number: int) -> Kek:
    try:
        kek_id, created, key = line.split()
        created_at = datetime.fromisoformat(created)
        if created_at.tzinfo is None:
            raise ValueError("a date without a zone")
        return Kek(id=kek_id, key=Secret(base64.b64decode(key, validate=True)), created_at=created_at)
    except ValueError:  # never quoted: the line may well be a key
        raise _malformed(path, f"line {number} is not an id, a date and a key") from None


def _malformed(path: Path, problem: str) -> StoreRefused:
    return StoreRefused(
        f"The key file {path} is damaged: {problem}.",
        "Restore it from your copy. Do not remove it: without its key the secrets in the database are lost.",
    )
