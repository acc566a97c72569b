"""One scrape for all processes of a server: the kernel may give a request to any of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

WITHIN: Final = 3.0  # seconds; a process that does not answer is left out, and holdfast_process_up says so
LARGEST: Final = 64 * 1024 * 1024  # bytes of one process's metrics
_UP: Final = "# HELP holdfast_process_up 1 if this process answered the scrape.\n# TYPE holdfast_process_up gauge\n"
Rendered = Callable[[], Awaitable[bytes]]


def socket_of(folder: Path, number: int) -> Path:
    """Where a process answers the others alone."""
    return folder / f"holdfast.{number}.sock"


def own_site(rendered: Rendered) -> Starlette:
    async def metrics(request: Request) -> Response:
        return Response(await rendered(), media_type="text/plain")

    return Starlette(routes=[Route("/metrics", metrics)])


async def gathered(folder: Path, number: int, count: int, own: bytes) -> bytes:
    """The metrics of all, each series with the number of its process."""
    others = [each for each in range(1, count + 1) if each != number]
    found = await asyncio.gather(*(_asked(socket_of(folder, each)) for each in others))
    return merged({number: own, **dict(zip(others, found, strict=True))})


async def _asked(path: Path) -> bytes | None:
    with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
        async with asyncio.timeout(WITHIN):
            return await _get(path)
    return None


async def _get(path: Path) -> bytes | None:
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)  # an address has 108 bytes at most: go by the handle
    try:
        reader, writer = await asyncio.open_unix_connection(f"/proc/self/fd/{folder}/{path.name}", limit=LARGEST)
    finally:
        os.close(folder)
    try:
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.read(-1)
        return body if head.startswith(b"HTTP/1.1 200 ") else None
    finally:
        writer.close()


def merged(texts: Mapping[int, bytes | None]) -> bytes:
    """Samples of one name stay together, below one heading: Prometheus refuses a second."""
    headings, samples = dict[str, list[str]](), dict[str, list[str]]()
    for number, text in sorted(texts.items()):
        for name, heading, lines in _families((text or b"").decode()):
            headings.setdefault(name, heading)
            samples.setdefault(name, []).extend(_of_process(line, number) for line in lines)
    up = [
        f'holdfast_process_up{{process="{number}"}} {int(text is not None)}' for number, text in sorted(texts.items())
    ]
    blocks = ["\n".join([*headings[name], *samples[name]]) for name in headings]
    return ("\n".join([*blocks, _UP + "\n".join(up)]) + "\n").encode()


def _families(text: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """Name, the lines of HELP and TYPE, and the samples."""
    name, heading, lines = "", list[str](), list[str]()
    for line in text.splitlines():
        if not line.startswith("# "):
            lines.append(line)
            continue
        if line.startswith("# HELP ") and name:
            yield name, heading, lines
            heading, lines = [], []
        name = line.split(" ", 3)[2]
        heading.append(line)
    if name:
        yield name, heading, lines


def _of_process(line: str, number: int) -> str:
    """Its labels begin at the first brace: no name has one, and a value cannot stand before it."""
    label = f'process="{number}"'
    name, brace, rest = line.partition("{")
    if brace and " " not in name:
        return f"{name}{{{label},{rest}"
    name, _, value = line.partition(" ")
    return f"{name}{{{label}}} {value}"
