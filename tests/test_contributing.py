"""The four changes that CONTRIBUTING.md shows, made in a copy of the source: each appears everywhere by itself.

The copy comes first on the path of a process of its own, which calls one of the functions at the end of this module.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from scripts.shape import FILES_GOALS, examples

ROOT = Path(__file__).resolve().parent.parent
SHOWN = examples((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
COPIED = ("src", "scripts", "pyproject.toml", "docs/reference")
DATA = Path("data")  # in the copy
HUNK = re.compile(r"^@@\n", re.MULTILINE)


def apply(copy: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = copy / name
        path.write_text(patched(path.read_text(encoding="utf-8"), text) if path.exists() else text, encoding="utf-8")


def patched(source: str, shown: str) -> str:
    for hunk in HUNK.split(shown):
        lines = hunk.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] != "+")
        after = "".join(line[1:] for line in lines if line[0] != "-")
        assert source.count(before) == 1, f"CONTRIBUTING.md shows a place that is not there, or not once:\n{before}"
        source = source.replace(before, after)
    return source


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in COPIED:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / name)
        else:
            shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / DATA).mkdir()
    return tmp_path


def installed(copy: Path) -> None:
    """The entry points of the copy's pyproject.toml, as an installer would leave them: the first on the path count."""
    project = tomllib.loads((copy / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    info = copy / "src" / f"holdfast-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: holdfast\nVersion: {project['version']}\n")
    sections = (
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in found.items())
        for group, found in project["entry-points"].items()
    )
    (info / "entry_points.txt").write_text("\n".join(sections))


def run(copy: Path, code: str) -> str:
    path = os.pathsep.join(map(str, (copy / "src", copy, ROOT)))
    env = {**os.environ, "PYTHONPATH": path, "HOLDFAST_STORE_DATA_DIR": str(copy / DATA), "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=copy, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


MAKE_DOCS = (
    "from scripts import command_table as c, make_reference; c.FILE.write_text(c.table()); make_reference.main()"
)


@pytest.mark.parametrize("what", FILES_GOALS)
def test_a_change_touches_no_more_files_than_its_goal(what: str) -> None:
    assert 1 <= len(SHOWN[what]) <= FILES_GOALS[what]


def test_an_operation_appears_on_every_face_and_in_the_docs(copy: Path) -> None:
    apply(copy, SHOWN["operation"])
    installed(copy)
    run(copy, f"{MAKE_DOCS}; from tests.test_contributing import operation_is_offered as f; f()")
    reference = copy / "docs" / "reference"
    assert "| `POST /certificates/{ref}/notes` | Write a note about a certificate" in (reference / "api.md").read_text()
    assert "holdfast audit note" in (reference / "commands.md").read_text()
    [row] = [line for line in (reference / "access.md").read_text().splitlines() if line.startswith("| `audit.note` |")]
    assert "| change certificates | a certificate | admin, operator |" in row
    help_page = run(
        copy, "import sys; from holdfast.cli.main import main; sys.argv[1:] = 'audit note --help'.split(); main()"
    )
    assert "Write a note about a certificate into the audit log." in help_page
    assert "--dry-run" in help_page


def test_a_field_appears_in_the_store_the_api_documents_and_commands(copy: Path) -> None:
    apply(copy, SHOWN["field"])
    run(copy, "from tests.test_contributing import field_is_kept as f; f()")
    for command in ("issue", "change"):
        code = f"import sys; from holdfast.cli.main import main; sys.argv[1:] = ['{command}', '--help']; main()"
        assert re.search(r"--purpose .*What the certificate is used for\.", run(copy, code))


@pytest.mark.parametrize(("what", "group", "name"), [("CA", "issuers", "cfssl"), ("channel", "notifiers", "ntfy")])
def test_a_kind_is_found_by_its_entry_point_and_listed(copy: Path, what: str, group: str, name: str) -> None:
    apply(copy, SHOWN[what])
    installed(copy)
    run(copy, f"{MAKE_DOCS}; from tests.test_contributing import kind_is_found as f; f('holdfast.{group}', '{name}')")
    assert f"\n### {name}\n" in (copy / "docs" / "reference" / "kinds.md").read_text()


# ── In a process of the copy ──


def operation_is_offered() -> None:
    from holdfast.api import openapi

    found = openapi.whole()["paths"]["/certificates/{ref}/notes"]["post"]
    assert (found["operationId"], found["summary"]) == (
        "audit.note",
        "Write a note about a certificate into the audit log.",
    )
    asyncio.run(_call_the_operation())


async def _call_the_operation() -> None:
    from tests.integration.test_mcp import an_assistant
    from tests.support.api import a_desk

    async with _a_store() as db, a_desk(db, DATA) as desk, an_assistant(desk) as assistant:
        ask = await desk.as_()
        made = await ask.post("/certificates", {"names": ["www.example.com"]})
        noted = await ask.post("/certificates/www.example.com/notes", {"text": "Moved."})
        assert noted == {"certificate": "www.example.com", "text": "Moved."}
        refused = await ask("POST", "/certificates/www.example.com/notes", {"txt": "Moved."})
        assert refused.status_code == 422
        entries = (await ask.get("/audit", action="certificate_noted"))["items"]
        assert [(each["subject"], each["details"]["text"]) for each in entries] == [(made["id"], "Moved.")]
        found = await assistant("find_operation", words="write a note about a certificate")
        assert found["operations"][0]["name"] == "audit.note"


def field_is_kept() -> None:
    from holdfast.core.documents.fields import KEYS
    from holdfast.core.documents.schema import schema
    from holdfast.store import certificates

    assert "purpose" in certificates.TABLE.names
    assert "purpose" in KEYS
    described = schema()["properties"]["certificates"]["items"]["properties"]["purpose"]["description"]
    assert described == "What the certificate is used for."
    asyncio.run(_ask_for_the_field())


async def _ask_for_the_field() -> None:
    from holdfast.api import openapi
    from tests.support.api import a_desk

    assert openapi.whole()["components"]["schemas"]["NewCertificate"]["properties"]["purpose"]["description"]
    async with _a_store() as db, a_desk(db, DATA) as desk:
        ask = await desk.as_()
        await ask.post("/certificates", {"names": ["www.example.com"], "purpose": "The shop."})
        assert (await ask.get("/certificates/www.example.com"))["purpose"] == "The shop."
        await ask("PATCH", "/certificates/www.example.com", {"purpose": "The old shop."}, headers={"If-Match": "*"})
        assert (await ask.get("/documents"))["certificates"][0]["purpose"] == "The old shop."
        refused = await ask("POST", "/certificates", {"names": ["b.example.com"], "purpose": "two\nlines"})
        assert refused.status_code == 422


def kind_is_found(group: str, name: str) -> None:
    from holdfast import plugins

    assert plugins.broken() == []
    found = plugins.kinds(group)[name]
    made = found.make(*_made_with(group, found))
    assert callable(made.send if group == plugins.NOTIFIERS else made.place_order)


def _made_with(group: str, kind: Any) -> tuple[Any, Any]:
    from holdfast import plugins
    from holdfast.issuers.kind import Parts
    from holdfast.notifiers.kind import SenderParts
    from holdfast.secret import Secret
    from holdfast.world import HttpTransport, LocalFiles, SystemClock

    secrets = {each.name: Secret("https://remote.example.com/a-word") for each in kind.credentials}
    parts: dict[str, Any] = {"credentials": secrets, "transport": HttpTransport(), "clock": SystemClock()}
    if group == plugins.NOTIFIERS:
        return kind.settings(), SenderParts(channel="phones", **parts)
    settings = kind.settings(base_url="https://remote.example.com")
    return settings, Parts(name="corp", files=LocalFiles(), memory={}, **parts)


@asynccontextmanager
async def _a_store() -> AsyncIterator[Any]:
    """Of the copy, migrated, on SQLite."""
    from holdfast.store.sqlite import SqliteEngine
    from holdfast.world import SystemClock
    from tests.support.stores import migrated, open_store

    store = await migrated(open_store(SqliteEngine(DATA / "holdfast.sqlite", SystemClock())))
    try:
        yield store
    finally:
        await store.close()
