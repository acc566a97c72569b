"""A real browser in tests: Debian's Chromium, driven by Playwright; every page of it is watched for errors."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
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
