"""A real browser in tests: Debian's Chromium, driven by Playwright; every page of it is watched for errors."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import pytest
from starlette.applications import Starlette

from holdfast.core.public_address import PublicAddress
from holdfast.demo import fill
from holdfast.store.database import Database
from holdfast.web.serve import bind, serving
from tests.support.browser import WebDesk, a_web_desk

INSTALL = "apt-get install -y --no-install-recommends chromium"
AXE = Path(__file__).parent.parent / "assets" / "axe.min.js"
# What no screen reader test can decide by itself is left to people; all rules of WCAG 2.2 A and AA are asked.
RULES = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}}


@cache
def program() -> str | None:
    """Where Chromium is; it is installed where that is allowed."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(INSTALL.split(), check=False, capture_output=True)
        found = shutil.which("chromium")
    return found


@dataclass
class Watched:
    """A page, and all that went wrong on it: errors of scripts, violations of the policy, requests to others."""

    page: Any
    home: str
    wrong: list[str] = field(default_factory=list)

    async def go(self, path: str) -> Any:
        return await self.page.goto(self.home + path)

    def heard(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(f"{self.page.url}: {message.text}")

    def asked(self, request: Any) -> None:
        if not request.url.startswith((self.home, "data:", "blob:")):
            self.wrong.append(f"{self.page.url} asked for {request.url}")

    async def axe(self) -> list[str]:
        """Violations of WCAG 2.2 AA on the page as it is."""
        await self.page.evaluate(AXE.read_text())
        found = await self.page.evaluate("rules => axe.run(document, rules)", RULES)
        return [
            f"{urlsplit(self.page.url).path} {each['id']}: {node['target']} {node['failureSummary']}"
            for each in found["violations"]
            for node in each["nodes"][:3]
        ]


@dataclass
class Site:
    """The pages on a port, and a way to look at them."""

    desk: WebDesk
    home: str
    browser: Any

    async def logged_in(self, name: str = "alice", **manner: Any) -> Watched:
        seen = await self.visitor(**manner)
        await seen.go(await self.desk.link(name))
        return seen

    async def visitor(self, **manner: Any) -> Watched:
        manner.setdefault("viewport", {"width": 1440, "height": 900})
        context = await self.browser.new_context(bypass_csp=manner.pop("bypass_csp", False), **manner)
        page = await context.new_page()
        seen = Watched(page=page, home=self.home)
        page.on("console", seen.heard)
        page.on("pageerror", lambda error: seen.wrong.append(f"{page.url}: {error}"))
        page.on("request", seen.asked)
        return seen


@asynccontextmanager
async def a_site(db: Database, folder: Path, *, demo: bool = False) -> AsyncIterator[Site]:
    if program() is None:
        pytest.skip(f"Chromium is not installed: {INSTALL}")
    playwright = pytest.importorskip("playwright.async_api", reason="pip install playwright")
    line = bind("127.0.0.1", 0)
    home = f"http://localhost:{line.getsockname()[1]}"
    async with a_web_desk(db, folder, address=PublicAddress(home)) as desk:
        if demo:
            await fill.fill(db, desk.services.certificate_context.secret_store)
        async with serving(Starlette(routes=desk.app.routes), line), playwright.async_playwright() as driver:
            browser = await driver.chromium.launch(executable_path=program(), args=["--no-sandbox"])
            try:
                yield Site(desk=desk, home=home, browser=browser)
            finally:
                await browser.close()


class Relay:
    """One address for several replicas: it leads to one of them, or to none, and can cut all lines at once."""

    def __init__(self, line: Any) -> None:
        self.to: int | None = None  # the port of a replica
        self._line, self._writers = line, set[asyncio.StreamWriter]()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, sock=self._line)
        return self

    async def __aexit__(self, *why: object) -> None:
        self.cut()
        self._server.close()

    def cut(self) -> None:
        for each in list(self._writers):
            each.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.to is None:
            writer.transport.abort()
            return
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self.to)
        both = {writer, inner_writer}
        self._writers |= both
        await asyncio.gather(_pipe(reader, inner_writer), _pipe(inner_reader, writer))
        self._writers -= both


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while content := await reader.read(1 << 16):
            writer.write(content)
            await writer.drain()
    writer.transport.abort()


@asynccontextmanager
async def two_replicas(db: Database, folder: Path) -> AsyncIterator[tuple[Site, Relay, list[int]]]:
    """A site with the demo, behind a relay; and the ports of its two replicas."""
    if program() is None:
        pytest.skip(f"Chromium is not installed: {INSTALL}")
    playwright = pytest.importorskip("playwright.async_api", reason="pip install playwright")
    front, first, second = (bind("127.0.0.1", 0) for _ in range(3))
    home = f"http://localhost:{front.getsockname()[1]}"
    ports = [each.getsockname()[1] for each in (first, second)]
    async with a_web_desk(db, folder, address=PublicAddress(home)) as desk:
        await fill.fill(db, desk.services.certificate_context.secret_store)
        other = desk.replica()
        async with (
            Relay(front) as relay,
            serving(Starlette(routes=desk.app.routes), first),
            serving(Starlette(routes=other.app.routes), second),
            playwright.async_playwright() as driver,
        ):
            relay.to = ports[0]
            browser = await driver.chromium.launch(executable_path=program(), args=["--no-sandbox"])
            try:
                yield Site(desk=desk, home=home, browser=browser), relay, ports
            finally:
                await browser.close()
                relay.cut()
