"""What new users stumbled over, each as they typed it against a served Holdfast."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from tests.support.commands import holdfast
from tests.support.processes import Served, environment
from tests.support.reaper import until


@dataclass(frozen=True)
class Site:
    """A served Holdfast, and somebody who types on its machine."""

    server: Served
    folder: Path

    def type(self, *words: object, stdin: str = "", **env: str) -> CompletedProcess[str]:
        return holdfast(*words, env=environment(self.folder, {}) | env, stdin=stdin)

    def ok(self, *words: object, **more: Any) -> str:
        done = self.type(*words, **more)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def data(self, *words: object) -> Any:
        return json.loads(self.ok(*words, "-o", "json"))

    @property
    def directory(self) -> str:
        base = self.server.wait_for_event("holdfast.serving")["acme"]
        return f"{base}/acme/default/directory"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    with Served(folder, {}) as server:
        server.wait_until_ready()
        yield Site(server, folder)


# ── A person must act ──


def test_an_error_that_no_waiting_cures_is_told_at_once_everywhere(site: Site) -> None:
    site.ok("issuer", "add", "acme", "untrusted", "--directory", site.directory)
    waited = site.type("issue", "x.internal", "--ca", "untrusted", "--wait", "--timeout", "5m")
    assert waited.returncode == 1
    assert "An operator of Holdfast must act first: " in waited.stderr
    assert "CA_TLS_FAILED" in waited.stdout
    assert site.type("wait", "x.internal", "--timeout", "5m").returncode == 1
    everything = site.type("status", "--check")
    assert everything.returncode == 10
    assert "x.internal   PENDING" in everything.stdout
    alerts = [each["event"] for each in site.data("notify", "ls")]  # a dead letter, as there is no channel
    assert "issuer.down" in alerts
    site.ok("archive", "x.internal", "--yes")
    site.ok("issuer", "rm", "untrusted", "--yes")
