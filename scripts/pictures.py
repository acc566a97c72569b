"""Takes pictures of the main pages in light and dark, from the demo: `make pictures`."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.request import urlopen

FOLDER = Path(__file__).parent.parent / "docs" / "pictures"
PAGES = {
    "overview": "/", "certificates": "/certificates", "certificate": "/certificates/api.shop.example",
    "explain": "/certificates/api.shop.example/explain", "notifications": "/notifications?tab=dead", "issuers": "/issuers",
    "forecast": "/forecast", "cluster": "/cluster", "targets": "/targets", "our-ca": "/cas",
}  # fmt: skip


# The drawings use these; where they are not installed, the system's own fonts are in the pictures.
FONTS = {  # apt-get install -y fonts-inter fonts-jetbrains-mono
    "system-ui": "Inter",
    "sans-serif": "Inter",
    "ui-monospace": "JetBrains Mono",
    "monospace": "JetBrains Mono",
}


def _fonts(folder: Path) -> dict[str, str]:
    """Environment in which the browser takes these for the system's fonts."""
    rules = "".join(
        f"""<match target="pattern"><test name="family"><string>{asked}</string></test>
            <edit name="family" mode="prepend" binding="strong"><string>{given}</string></edit></match>"""
        for asked, given in FONTS.items()
    )
    file = folder / "fonts.conf"
    include = '<include ignore_missing="yes">/etc/fonts/fonts.conf</include>'
    file.write_text(f'<?xml version="1.0"?><fontconfig>{include}{rules}</fontconfig>')
    return {"FONTCONFIG_FILE": str(file)}


def _port() -> int:
    with socket.socket() as line:
        line.bind(("127.0.0.1", 0))
        return int(line.getsockname()[1])


async def _take(home: str, link: str, theme: str, fonts: dict[str, str]) -> None:
    from playwright.async_api import async_playwright

    async with async_playwright() as driver:
        program = shutil.which("chromium") or shutil.which("chromium-browser")
        if program is None:
            sys.exit("Chromium is not installed: apt-get install -y --no-install-recommends chromium")
        browser = await driver.chromium.launch(
            executable_path=program, args=["--no-sandbox"], env={**os.environ, **fonts}
        )
        context = await browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme=theme)  # type: ignore[arg-type]
        page = await context.new_page()
        await page.goto(link)
        for name, path in PAGES.items():
            await page.goto(home + path)
            await page.wait_for_selector("#live[data-state=live]")
            await page.screenshot(path=FOLDER / f"{name}-{theme}.png")
        await browser.close()


def main() -> None:
    program = Path(sys.executable).parent / "holdfast"
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as data:
        port = _port()
        home = f"http://localhost:{port}"
        env = os.environ | {
            "HOLDFAST_STORE_DATA_DIR": data, "HOLDFAST_SERVER_LISTEN": f"127.0.0.1:{port}",
            "HOLDFAST_ACME_LISTEN": "127.0.0.1:0", "HOLDFAST_REPLICA_NAME": "hold-1",
        }  # fmt: skip
        server = subprocess.Popen(
            [program, "dev", "--demo"], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            _until_ready(home)
            fonts = _fonts(Path(data))
            for theme in ("light", "dark"):
                said = subprocess.run(
                    [program, "people", "recover", "operator"], env=env, capture_output=True, text=True, check=True
                )
                asyncio.run(_take(home, re.findall(r"http\S+", said.stdout)[0], theme, fonts))
        finally:
            server.terminate()
            server.wait()


def _until_ready(home: str) -> None:
    for _ in range(240):
        try:
            with urlopen(f"{home}/health/ready", timeout=2) as answer:  # noqa: S310
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.25)
    sys.exit("The demo did not start.")


if __name__ == "__main__":
    main()
