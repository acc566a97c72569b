"""Packages of others that add kinds: one that works, one that does not load, and two of one name."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.plugin_packages import TOKEN, FakePaper, install, install_the_guide_s
from tests.support.processes import Served, environment

from holdfast import plugins
from holdfast.core.kind import Kind
from holdfast.kind_settings import KindSettings

pytestmark = pytest.mark.anyio

BROKEN = {"holdfast.notifiers": {"pigeon": "pigeon_post:PIGEON"}}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that processes of this test find packages in."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    return tmp_path / "site"


async def command(folder: Path, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "holdfast.cli.main", *words]
    env = environment(folder, {})
    return await asyncio.to_thread(
        subprocess.run, line, env=env, input=stdin, capture_output=True, text=True, timeout=120, check=False
    )


async def test_a_ca_that_another_package_adds_issues_certificates(tmp_path: Path, site: Path) -> None:
    """The package of docs/guides/plugins.md, beside one that cannot be imported, and the product as it is."""
    install_the_guide_s(site)
    install(site, "pigeon-post", "0.3", {"pigeon_post": "import no_such_module\n"}, BROKEN)
    async with FakePaper(tmp_path / "ca") as ca:
        with Served(tmp_path / "data", {}, fresh=True) as server:
            await asyncio.to_thread(server.wait_until_ready)
            told = server.wait_for_event("plugin.broken")
            assert (told["plugin"], told["package"]) == ("pigeon", "pigeon-post 0.3")
            assert "no_such_module" in told["error"]
            roots = json.dumps(ca.roots.decode())
            adding = ("issuer", "add", "paper", "corp", "--set", f"base_url={ca.base}", "--set", f"roots={roots}")
            wrong = await command(tmp_path / "data", *adding, "--set", "departmnt=web", stdin=TOKEN)
            assert (wrong.returncode, "did you mean department?" in wrong.stderr) == (1, True), wrong.stderr
            added = await command(
                tmp_path / "data", *adding, "--set", "department=web", "--credential", "token=-", stdin=TOKEN
            )
            assert added.returncode == 0, added.stderr
            issued = await command(
                tmp_path / "data", "issue", "www.example.internal", "--issuer", "corp", "--wait", "--timeout", "60"
            )
            assert issued.returncode == 0, issued.stderr
            assert [(each["names"], each["department"]) for each in ca.signed] == [(["www.example.internal"], "web")]
            looked = await command(tmp_path / "data", "doctor", "--name", "localhost", "-o", "json")
            [found] = [each for each in json.loads(looked.stdout) if each["check"] == "plugins"]
            assert "pigeon-post 0.3" in found["saw"]


async def test_two_packages_with_one_kind_are_refused_at_the_start_by_their_names(tmp_path: Path, site: Path) -> None:
    install_the_guide_s(site)
    install(site, "other-paper", "2.0", {"other": "PAPER = 7\n"}, {"holdfast.issuers": {"paper": "other:PAPER"}})
    said = await command(tmp_path, "serve", "--stop-after=20")
    assert said.returncode != 0
    assert "Two plugins in holdfast.issuers are named 'paper'" in said.stderr
    assert "holdfast-paper 1.0 (holdfast_paper:PAPER)" in said.stderr
    assert "other-paper 2.0 (other:PAPER)" in said.stderr
    looked = await command(tmp_path, "doctor", "--name", "localhost", "-o", "json")
    assert any("other-paper 2.0" in each["saw"] for each in json.loads(looked.stdout))


def kind(name: str) -> Kind[KindSettings, None, None, None]:
    return Kind(name=name, summary="", settings=KindSettings, limits=None, make=lambda settings, parts: None)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("raise RuntimeError('no\\nlicence')", "RuntimeError: no licence"),
        ("import sys; sys.modules['holdfast'].nowhere", "AttributeError"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("THING = 7", "it is a int, and must be a holdfast.core.kind.Kind"),
        ("from tests.integration.test_plugins import kind; THING = kind('other')", "its kind is named 'other'"),
        ("", "AttributeError"),
    ],
    ids=["raises", "attribute", "exits", "no-kind", "other-name", "nothing"],
)
def test_a_plugin_that_cannot_be_used_is_a_value_that_names_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, says: str
) -> None:
    install(tmp_path, "odd-one", "1.1", {"odd_one": source}, {"holdfast.deployers": {"thing": "odd_one:THING"}})
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("odd_one", None)
    plugins.kinds.cache_clear()
    try:
        [broken] = plugins.broken()
        assert (broken.package, broken.name, says in broken.error) == ("odd-one 1.1", "thing", True), broken.error
        assert str(broken).startswith("The plugin thing (odd_one:THING, holdfast.deployers) of odd-one 1.1 cannot")
        assert "thing" not in plugins.kinds(plugins.DEPLOYERS)
        assert "odd-one 1.1" in plugins.kinds(plugins.DEPLOYERS).problem("thing")
        assert "vault" in plugins.kinds(plugins.ISSUERS)
    finally:
        plugins.kinds.cache_clear()


def test_a_kind_is_imported_when_it_is_first_asked_for() -> None:
    code = """import sys
from holdfast import plugins
plugins.kinds(plugins.ISSUERS)["local"]
print(*sys.modules)"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loaded = set(done.stdout.split())
    assert "holdfast.issuers.own_ca" in loaded
    assert not {"holdfast.issuers.digicert.issuer", "holdfast.issuers.acme.issuer", "holdfast.notifiers.email"} & loaded


@pytest.mark.parametrize("group", [plugins.ISSUERS, plugins.NOTIFIERS, plugins.SOLVERS])
def test_every_kind_describes_each_setting_and_credential_in_a_sentence(group: str) -> None:
    for found in plugins.kinds(group).values():
        described = {name: field.description or "" for name, field in found.settings.model_fields.items()}
        described |= {each.name: each.summary for each in found.credentials} | {"itself": found.summary}
        assert [name for name, said in described.items() if not said.endswith((".", "…"))] == [], found.name
        assert found.settings.model_config.get("extra") == "forbid", found.name
