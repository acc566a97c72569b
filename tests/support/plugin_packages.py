"""Packages of strangers in tests, installed into a folder that PYTHONPATH names: a module and its dist-info."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.fake_cas.base import FakeCa, as_json, pem, read_csr
from tests.support.http_server import HttpAnswer, HttpRequest

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "plugins.md"
TOKEN = "paper-token-1234"


def install(
    site: Path, name: str, version: str, modules: Mapping[str, str], entry_points: Mapping[str, Mapping[str, str]]
) -> None:
    """What an installer would leave there."""
    site.mkdir(exist_ok=True)
    for module, source in modules.items():
        (site / f"{module}.py").write_text(source, encoding="utf-8")
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    sections = [
        f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in named.items()) for group, named in entry_points.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(sections))


def install_the_guide_s(site: Path) -> None:
    """The package that the guide shows, file by file."""
    blocks = re.findall(
        r"^`([\w.]+)`:\n\n```\w+\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    files = dict(blocks)
    project: dict[str, Any] = tomllib.loads(files.pop("pyproject.toml"))["project"]
    modules = {name.removesuffix(".py"): source for name, source in files.items()}
    install(site, project["name"], project["version"], modules, project["entry-points"])


class FakePaper(FakeCa):
    """The CA of the guide."""

    name = "Paper"
    routes = (("POST", "/sign", "sign"), ("POST", "/revoke", "revoke"), ("GET", "/", "alive"))

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.signed: list[dict[str, Any]] = []

    def stranger(self, asked: HttpRequest) -> HttpAnswer | None:
        return None if asked.headers.get("x-token") == TOKEN else as_json({"error": "who are you?"}, 403)

    def sign(self, asked: HttpRequest) -> HttpAnswer:
        body = asked.json()
        self.signed.append(body)
        leaf = self.hierarchy.issue(read_csr(body["csr"]).public_key(), body["names"])
        return as_json({"chain": pem(leaf, self.hierarchy.intermediate).decode()})

    def revoke(self, asked: HttpRequest) -> HttpAnswer:
        return as_json({})

    def alive(self, asked: HttpRequest) -> HttpAnswer:
        return as_json({})
