"""Static files: content-hashed names, compressed once, kept by browsers for a year."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

PREFIX: Final = "/static"
_TYPES: Final = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml", "ico": "image/x-icon"}
_FOREVER: Final = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class Asset:
    address: str
    media: str
    content: bytes
    packed: bytes


def _load(name: str) -> Asset:
    content = files("holdfast.pages").joinpath("static", *name.split("/")).read_bytes()
    digest = hashlib.sha256(content).hexdigest()[:12]
    stem, _, ending = name.rpartition(".")
    packed = gzip.compress(content, 9, mtime=0)
    return Asset(f"{PREFIX}/{stem}.{digest}.{ending}", _TYPES[ending], content, packed)


NAMES: Final = ("holdfast.css", "holdfast.js", "live.js", "passkey.js", "icons.svg", "mark.svg", "vendor/htmx.min.js")


class Assets:
    """All of them, read once when the pages are put together."""

    def __init__(self) -> None:
        self._by_name: Mapping[str, Asset] = {name: _load(name) for name in NAMES}
        self._by_address = {each.address: each for each in self._by_name.values()}

    def address(self, name: str) -> str:
        return self._by_name[name].address

    def route(self) -> Route:
        return Route(f"{PREFIX}/{{name:path}}", self._answer, methods=["GET"])

    async def _answer(self, request: Request) -> Response:
        found = self._by_address.get(request.url.path)
        if found is None:
            return PlainTextResponse("There is no such file.\n", 404)
        headers = {"Cache-Control": _FOREVER, "Vary": "Accept-Encoding"}
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(found.packed, headers={**headers, "Content-Encoding": "gzip"}, media_type=found.media)
        return Response(found.content, headers=headers, media_type=found.media)
