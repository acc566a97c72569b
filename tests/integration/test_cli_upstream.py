"""`holdfast issuer add, test, pause …` for CAs elsewhere: a real server, and a CA that behaves like its vendor's."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.commands import typed
from tests.support.fake_cas.digicert import FakeDigicert
from tests.support.processes import Served, environment

from holdfast.cli.derived import NotAPair, named_secret
from holdfast.cli.input_files import NotGiven

pytestmark = pytest.mark.anyio


@dataclass
class Shell:
    folder: Path
    ca: FakeDigicert
    said: str = ""  # all that any command has printed

    async def __call__(self, *args: str, stdin: str = "", **env: str) -> tuple[int, str]:
        said = await typed(*args, env=environment(self.folder, {}) | env, stdin=stdin, merged=True)
        self.said += said.out
        return said.code, said.out

    def given(self, **more: object) -> list[str]:
        return [word for name, value in self.ca.settings(**more).items() for word in ("--set", f"{name}={value}")]


@pytest.fixture
async def shell(tmp_path: Path) -> AsyncIterator[Shell]:
    async with FakeDigicert(tmp_path / "ca") as ca:
        with Served(tmp_path / "data", {}) as server:
            await asyncio.to_thread(server.wait_until_ready)
            shell = Shell(tmp_path / "data", ca)
            yield shell
            assert await asyncio.to_thread(server.stop) == 0
        assert ca.key not in server.output() + shell.said, "a credential is never written anywhere"


async def test_a_ca_is_added_tried_used_and_paused_and_its_key_is_never_shown(shell: Shell, tmp_path: Path) -> None:
    add = ("issuer", "add", "digicert", "dc", *shell.given())
    code, told = await shell(*add)
    assert (code, "credential api_key is missing" in told) == (1, True)
    code, told = await shell(*add, "--credential", "api_key=-", stdin="wrong\n")
    assert (code, "holdfast issuer test dc" in told) == (0, True)
    code, told = await shell("issuer", "test", "dc")
    assert (code, "api_key" in told) == (1, True)
    key = tmp_path / "key"
    key.write_text(shell.ca.key + "\n")
    assert (await shell("issuer", "set", "dc", "--credential", f"api_key={key}"))[0] == 0
    code, told = await shell("issue", "www.example.com", "--issuer", "dc", "--wait", "--timeout", "60")
    assert code == 0, told
    assert len(shell.ca.orders) == 1
    assert (await shell("issuer", "pause", "dc"))[0] == 0
    code, told = await shell("issuer", "ls", "-o", "json")
    rows = {row["name"]: row for row in json.loads(told)}
    assert (rows["dc"]["state"], rows["dc"]["credentials"]) == ("paused", ["api_key"])
    code, told = await shell("issuer", "add", "letsencrypt", "le")
    assert (code, "acme-v02.api.letsencrypt.org" in told) == (0, True), "a preset stands where a kind would"
    assert "accepts the terms of its CA: https://letsencrypt.org/repository/" in told


async def test_what_cannot_be_used_is_told_before_a_ca_is_added_or_changed(shell: Shell) -> None:
    code, told = await shell("issuer", "add", "zerossl", "zero")
    assert (code, "ZeroSSL" in told, "--eab-kid" in told) == (1, True, True)
    code, told = await shell("issuer", "add", "acme", "zero", "--directory", "http://ca.example/d")
    assert (code, "directory must begin with https://" in told) == (1, True)
    code, told = await shell("issuer", "add", "nope", "zero")
    assert (code, "digicert" in told, "letsencrypt-staging" in told) == (1, True, True)
    code, told = await shell(
        "issuer", "add", "digicert", "zero", "--set", "product=ssl_basic", "--set", "api_key=hunter2"
    )
    assert (code, "api_key is a credential" in told, "hunter2" in told) == (1, True, False)
    nowhere = "https://localhost:1/directory"
    assert (
        await shell("issuer", "add", "acme", "gone", "--directory", nowhere, "--set", 'contacts=["a@example.com"]')
    )[0] == 0
    code, told = await shell("issuer", "set", "gone", "--set", "contacts=a@example.com")
    assert (code, "contacts must be a list" in told) == (1, True)
    code, told = await shell("issuer", "set", "gone", "--set", "limits=7")
    assert (code, "limits is 7" in told) == (1, True)
    code, told = await shell("issuer", "test", "gone")
    assert (code, "Connection refused" in told, f"setting directory ({nowhere})" in told) == (1, True, True)


def test_credentials_come_from_files_and_the_environment_and_never_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text("sesame\n")
    monkeypatch.setenv("CA_PASSWORD", "open")
    given = dict(map(named_secret, (f"api_key={tmp_path / 'key'}", "password=env:CA_PASSWORD")))
    assert given == {"api_key": "sesame", "password": "open"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("api_key=/no/such/file", "/no/such/file"),
        ("sesame", "is written NAME=VALUE"),
        ("api_key=env:NO_SUCH_VARIABLE", "NO_SUCH_VARIABLE"),
        ("api_key=env:EMPTY", "EMPTY"),
        ("api_key=/dev/null", "/dev/null"),
    ],
    ids=["file", "pair", "variable", "empty variable", "empty file"],
)
def test_a_credential_that_is_not_there_is_told_by_its_place(
    given: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMPTY", "")
    with pytest.raises((NotGiven, NotAPair), match=says):
        named_secret(given)
