"""Logs to read from: tiles (static-ct-api) or get-entries (RFC 6962), behind a URL or in a folder, piece by piece."""

from __future__ import annotations

import base64
import gzip
import io
import json
import zlib
from dataclasses import dataclass
from typing import Final, Protocol

from holdfast.ct import entries, heads
from holdfast.ct.entries import MOST_OF_A_TILE, LogEntry
from holdfast.ct.heads import TreeHead
from holdfast.ct.reading import Malformed
from holdfast.errors import Refused, TryLater
from holdfast.ports import Request, Transport, Tree, Unreadable

AT_ONCE: Final = 1024  # entries that one step reads
HEAD_SIZE: Final = 64 * 1024
TILE_SIZE: Final = 16 * 1024 * 1024
PAGE_SIZE: Final = 16 * 1024 * 1024


class Shelf(Protocol):
    """Where the files of a log are: behind a URL, or in a folder."""

    async def get(self, path: str, most: int) -> bytes:
        """One file; TryLater if it cannot be read now, Refused if it is not there or too large."""


@dataclass(frozen=True, slots=True)
class UrlShelf:
    transport: Transport
    url: str  # without a slash at its end

    async def get(self, path: str, most: int) -> bytes:
        asked = Request(method="GET", url=f"{self.url}/{path}", headers={"Accept": "*/*"}, max_body=most)
        answer = await self.transport.request(asked)
        if answer.status == 200:
            return answer.body
        if answer.status == 429 or answer.status >= 500:
            raise TryLater(f"The log answers {answer.status} to {path}.")
        raise Refused(f"The log answers {answer.status} to {path}.")


@dataclass(frozen=True, slots=True)
class FolderShelf:
    tree: Tree

    async def get(self, path: str, most: int) -> bytes:
        try:
            found = self.tree.read(path, most)
        except Unreadable as why:
            raise Refused(f"{self.tree.shown(path)} cannot be read: {why}") from None
        if found is None:
            raise Refused(f"There is no file {self.tree.shown(path)}.")
        return found


class Log(Protocol):
    async def head(self) -> TreeHead: ...

    async def entries(self, first: int, size: int) -> list[LogEntry]:
        """Some entries from this one on, of a tree with so many; at least one, at most AT_ONCE."""


@dataclass(frozen=True, slots=True)
class TiledLog:
    """static-ct-api: a checkpoint, and tiles of 256 entries that never change once they are full."""

    shelf: Shelf
    key: bytes | None

    async def head(self) -> TreeHead:
        return heads.from_checkpoint(await self.shelf.get("checkpoint", HEAD_SIZE), self.key)

    async def entries(self, first: int, size: int) -> list[LogEntry]:
        found = list[LogEntry]()
        for tile in range(first // MOST_OF_A_TILE, first // MOST_OF_A_TILE + AT_ONCE // MOST_OF_A_TILE):
            begins = tile * MOST_OF_A_TILE
            if begins >= size:
                break
            found += await self._tile(tile, min(MOST_OF_A_TILE, size - begins))
        return [each for each in found if each.index >= first]

    async def _tile(self, tile: int, width: int) -> list[LogEntry]:
        content = await self.shelf.get(f"tile/data/{tile_path(tile, width)}", TILE_SIZE)
        return entries.from_tile(tile * MOST_OF_A_TILE, _unpacked(content), width)


def tile_path(tile: int, width: int) -> str:
    """1234067 is x001/x234/067; a tile that is not full says so."""
    digits = f"{tile:03}"
    digits = digits.rjust(-(-len(digits) // 3) * 3, "0")
    groups = [digits[at : at + 3] for at in range(0, len(digits), 3)]
    path = "/".join([*(f"x{each}" for each in groups[:-1]), groups[-1]])
    return path if width == MOST_OF_A_TILE else f"{path}.p/{width}"


def _unpacked(content: bytes) -> bytes:
    """Tiles may be kept compressed; one that grows beyond its bound is refused."""
    if content[:2] != b"\x1f\x8b":
        return content
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as opened:
            found = opened.read(TILE_SIZE + 1)
    except (OSError, EOFError, zlib.error):
        raise Malformed("a tile cannot be unpacked") from None
    if len(found) > TILE_SIZE:
        raise Malformed("a tile is far too large when it is unpacked")
    return found


@dataclass(frozen=True, slots=True)
class EntriesLog:
    """RFC 6962: get-sth and get-entries, which may answer with fewer entries than were asked for."""

    shelf: Shelf
    key: bytes | None

    async def head(self) -> TreeHead:
        return heads.from_sth(await self.shelf.get("ct/v1/get-sth", HEAD_SIZE), self.key)

    async def entries(self, first: int, size: int) -> list[LogEntry]:
        last = min(first + AT_ONCE, size) - 1
        body = await self.shelf.get(f"ct/v1/get-entries?start={first}&end={last}", PAGE_SIZE)
        try:
            listed = json.loads(body)["entries"]
            pairs = [
                (
                    base64.b64decode(each["leaf_input"], validate=True),
                    base64.b64decode(each["extra_data"], validate=True),
                )
                for each in listed[: last - first + 1]
            ]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise Malformed(f"the answer of get-entries from {first} on cannot be read") from None
        if not pairs:
            raise Malformed(f"the log has {size} entries, and shows none from {first} on")
        return [entries.from_json(first + number, *pair) for number, pair in enumerate(pairs)]
