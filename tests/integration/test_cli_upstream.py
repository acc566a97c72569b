"""`holdfast ca add, test, pause …` for CAs elsewhere: a real server, and a CA that behaves like its vendor's."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.commands import typed
from tests.support.fake_cas.digicert import FakeDigicert
from tests.support.processes import Served, environment

from holdfast.cli.given import NotGiven
from holdfast.cli.issuer import credentials

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
    add = ("ca", "add", "digicert", "dc", *shell.given())
    code, told = await shell(*add)
    assert (code, "credential api_key is missing" in told) == (1, True)
    code, told = await shell(*add, "--credential-stdin", "api_key", stdin="wrong\n")
    assert (code, "holdfast ca test dc" in told) == (0, True)
    code, told = await shell("ca", "test", "dc")
    assert (code, "api_key" in told) == (1, True)
    key = tmp_path / "key"
    key.write_text(shell.ca.key + "\n")
    assert (await shell("ca", "credentials", "dc", "--credential-file", f"api_key={key}"))[0] == 0
    code, told = await shell("issue", "www.example.com", "--ca", "dc", "--wait", "--timeout", "60")
    assert code == 0, told
    assert len(shell.ca.orders) == 1
    assert (await shell("ca", "pause", "dc"))[0] == 0
    code, told = await shell("issuer", "ls", "-o", "json")
    rows = {row["name"]: row for row in json.loads(told)}
    assert (rows["dc"]["state"], rows["dc"]["credentials"]) == ("paused", ["api_key"])
    code, told = await shell("ca", "add", "letsencrypt", "le")
    assert (code, "acme-v02.api.letsencrypt.org" in told) == (0, True), "a preset stands where a kind would"
    assert "agree to the CA's terms: https://letsencrypt.org/repository/" in told


async def test_what_cannot_be_used_is_told_before_a_ca_is_added_or_changed(shell: Shell) -> None:
    code, told = await shell("ca", "add", "zerossl", "zero")
    assert (code, "ZeroSSL" in told, "--eab-kid" in told) == (1, True, True)
    code, told = await shell("ca", "add", "acme", "zero", "--directory", "http://ca.example/d")
    assert (code, "directory must begin with https://" in told) == (1, True)
    code, told = await shell("ca", "add", "nope", "zero")
    assert (code, "digicert" in told, "letsencrypt-staging" in told) == (1, True, True)
    code, told = await shell("ca", "add", "digicert", "zero", "--set", "product=ssl_basic", "--set", "api_key=hunter2")
    assert (code, "api_key is a credential" in told, "hunter2" in told) == (1, True, False)
    nowhere = "https://localhost:1/directory"
    assert (await shell("ca", "add", "acme", "gone", "--directory", nowhere, "--set", 'contacts=["a@example.com"]'))[
        0
    ] == 0
    code, told = await shell("issuer", "set", "gone", "--set", "contacts=a@example.com")
    assert (code, "contacts must be a list" in told) == (1, True)
    code, told = await shell("issuer", "set", "gone", "--set", "limits=7")
    assert (code, "limits is 7" in told) == (1, True)
    code, told = await shell("ca", "test", "gone")
    assert (code, "Connection refused" in told, f"setting directory ({nowhere})" in told) == (1, True, True)


def test_credentials_come_from_files_and_the_environment_and_never_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text("sesame\n")
    monkeypatch.setenv("CA_PASSWORD", "open")
    given = credentials(None, [f"api_key={tmp_path / 'key'}"], ["password=CA_PASSWORD"])
    assert given == {"api_key": "sesame", "password": "open"}


@pytest.mark.parametrize(
    ("files", "env", "says"),
    [
        (["api_key=/no/such/file"], None, "/no/such/file"),
        (["sesame"], None, "names no credential and its place"),
        (None, ["api_key=NO_SUCH_VARIABLE"], "NO_SUCH_VARIABLE"),
        (None, ["api_key=EMPTY"], "api_key is empty"),
    ],
    ids=["file", "pair", "variable", "empty"],
)
def test_a_credential_that_is_not_there_is_told_by_its_place(
    files: list[str] | None, env: list[str] | None, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMPTY", "")
    with pytest.raises(NotGiven, match=says):
        credentials(None, files, env)
