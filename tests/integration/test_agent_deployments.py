"""Certificates on their way to a real nginx through an agent: the server sends material, the host decides."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.agents import AgentHost, Fleet, a_fleet
from tests.support.nginx import Nginx, an_nginx, needs_nginx
from tests.support.reaper import until

pytestmark = needs_nginx
NAME = "www.example.com"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with a_fleet(tmp_path_factory.mktemp("fleet"), {"DEPLOYMENT_INTERVAL": "1s"}) as made:
        yield made


@pytest.fixture(scope="module")
def nginx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nginx]:
    with an_nginx(tmp_path_factory.mktemp("nginx")) as made:
        yield made


def _file(host: AgentHost, nginx: Nginx, *, test: str = "test", reload: str = "reload") -> None:
    def argv(words: tuple[str, ...]) -> str:
        return json.dumps(list(words))

    host.folder.mkdir(exist_ok=True, parents=True)
    host.config.write_text(
        f"""
folders = ["{nginx.live}"]
[programs.test]
argv = {argv(nginx.test_argv)}
[programs.reload]
argv = {argv(nginx.reload_argv)}
[programs.nothing]
argv = ["/bin/true"]
[programs.refuses]
argv = ["/bin/false"]
[targets.web]
kind = "files"
endpoints = ["127.0.0.1:{nginx.port}"]
[targets.web.settings]
folder = "{nginx.live}"
test = "{test}"
reload = "{reload}"
"""
    )


def _deployment(fleet: Fleet, name: str = NAME) -> dict[str, Any]:
    found: list[dict[str, Any]] = fleet.data("deployments", "ls", "--certificate", name)
    return found[-1] if found else {"state": "none"}


def _reaches(fleet: Fleet, *states: str, name: str = NAME) -> dict[str, Any]:
    try:
        until(lambda: _deployment(fleet, name)["state"] in states, f"{name}: {states}", every=0.2, seconds=60)
    except TimeoutError:
        said = "".join((each.folder / "agent.log").read_text() for each in fleet.hosts)
        raise AssertionError(f"{_deployment(fleet, name)}\n{said}") from None
    return _deployment(fleet, name)


def test_a_certificate_is_written_tested_reloaded_and_seen_by_an_agent(fleet: Fleet, nginx: Nginx) -> None:
    host = fleet.enrolled("edge")
    _file(host, nginx, test="nothing", reload="nothing")
    host.start()
    fleet.ok("target", "add", "agent", "web", "--set", "agent=edge")
    fleet.ok("issue", NAME, "--target", "web", "--wait")
    _reaches(fleet, "installed")
    nginx.configure(NAME)
    nginx.start()
    _file(host, nginx)
    fleet.ok("target", "set", "web", "--endpoint", f"127.0.0.1:{nginx.port}")
    fleet.ok("renew", NAME, "--wait")
    row = _reaches(fleet, "served")
    assert "127.0.0.1" in row["seen"]
    assert host.said("done")


def test_a_reload_that_fails_is_rolled_back_by_the_agent_and_the_old_pair_is_served(fleet: Fleet, nginx: Nginx) -> None:
    host, before = fleet.hosts[0], _current(nginx)
    _file(host, nginx, test="refuses")
    fleet.ok("renew", NAME, "--wait")
    row = _reaches(fleet, "rolled_back")
    assert row["reason_code"] == "CONFIG_TEST_FAILED"
    assert _current(nginx) == before
    _file(host, nginx)
    fleet.ok("deploy", NAME)
    _reaches(fleet, "served")
    assert _current(nginx) != before


def test_what_the_agents_file_does_not_list_is_refused_by_name(fleet: Fleet, nginx: Nginx) -> None:
    before = _current(nginx)
    fleet.ok("target", "add", "agent", "elsewhere", "--set", "agent=edge")
    assert "has no target 'elsewhere'; it has: web" in _test(fleet, "elsewhere")
    fleet.ok("target", "set", "web", "--endpoint", "127.0.0.1:22")
    fleet.ok("renew", NAME, "--wait")
    until(lambda: "lists no endpoint" in (_deployment(fleet)["error"] or ""), "the endpoint is refused", every=0.2)
    fleet.ok("target", "set", "web", "--endpoint", f"127.0.0.1:{nginx.port}")
    fleet.ok("deploy", NAME)
    _reaches(fleet, "served")
    assert _current(nginx) != before


def test_a_deployment_waits_for_an_agent_that_is_away_and_goes_on_when_it_is_back(fleet: Fleet, nginx: Nginx) -> None:
    host = fleet.hosts[0]
    host.stop(9)
    fleet.ok("renew", NAME, "--wait")
    until(lambda: _deployment(fleet)["state"] in ("queued", "writing", "failed", "held"), "it waits", every=0.2)
    before = _current(nginx)
    host.start()
    _reaches(fleet, "served")
    assert _current(nginx) != before


def test_an_agent_that_is_killed_at_any_moment_of_a_deployment_ends_with_it_served(fleet: Fleet, nginx: Nginx) -> None:
    host = fleet.hosts[0]
    for step in range(4):
        done = len(host.said("done"))
        fleet.ok("renew", NAME, "--wait")
        _has_done(host, done + step)
        host.stop(9)
        host.start()
        _reaches(fleet, "served")
    assert fleet.agent("edge")["state"] == "active"


def test_a_key_that_stays_on_the_host_is_made_there_and_served_and_the_server_never_has_it(
    fleet: Fleet, nginx: Nginx
) -> None:
    host, kept = fleet.hosts[0], "kept.example.com"
    fleet.ok("issue", kept, "--target", "web", "--key-location", "agent", "--wait")
    until(lambda: _deployment(fleet, kept)["state"] != "none", "a deployment", every=0.2)
    nginx.configure(NAME, kept)
    fleet.ok("deploy", kept)
    _reaches(fleet, "served", name=kept)
    first = (nginx.live / kept / "current" / "privkey.pem").read_bytes()
    fleet.ok("renew", kept, "--wait")
    until(lambda: (nginx.live / kept / "current" / "privkey.pem").read_bytes() != first, "a new key", every=0.1)
    _reaches(fleet, "served", name=kept)
    second = (nginx.live / kept / "current" / "privkey.pem").read_bytes()
    refused = fleet.type("fetch", kept, "--to", str(fleet.folder / "out"), "--key")
    assert refused.returncode != 0
    for key in (first, second):
        body = key.split(b"-----")[2].replace(b"\n", b"")[40:80]
        kept_here = [*fleet.folder.glob("holdfast.sqlite*"), *fleet.folder.glob("std*")]
        assert len(kept_here) > 1
        assert [each for each in kept_here if body in each.read_bytes()] == []
    assert host.said("done")


def test_a_certificate_whose_key_stays_waits_for_its_agent_and_says_so(fleet: Fleet, nginx: Nginx) -> None:
    host = fleet.hosts[0]
    fleet.ok("target", "add", "agent", "web-2", "--set", "agent=edge", "--set", "target=web")
    host.stop()
    _forget_when_it_was_heard(fleet)
    fleet.ok("issue", "late.example.com", "--target", "web-2", "--key-location", "agent")

    def says() -> bool:
        return "AGENT_CSR_AWAITED" in fleet.ok("status", "late.example.com", "-o", "json")

    until(says, "it waits for the CSR", every=0.2)
    host.start()
    until(lambda: _deployment(fleet, "late.example.com")["state"] != "none", "it was issued", every=0.2, seconds=90)


def test_keys_at_two_agents_or_with_a_csr_are_refused_when_they_are_asked_for(fleet: Fleet) -> None:
    fleet.enrolled("other")
    fleet.ok("target", "add", "agent", "there", "--set", "agent=other")
    two = fleet.type("issue", "two.example.com", "--target", "web", "--target", "there", "--key-location", "agent")
    assert "not all at one agent" in two.stderr
    none = fleet.type("issue", "none.example.com", "--key-location", "agent")
    assert "not all at one agent" in none.stderr


def _forget_when_it_was_heard(fleet: Fleet) -> None:
    """As after an hour offline, on a server that has restarted since."""
    fleet.restart()
    with sqlite3.connect(fleet.folder / "holdfast.sqlite", timeout=30) as line:
        line.execute("UPDATE agents SET last_seen_at = 1")


def _has_done(host: AgentHost, calls: int) -> None:
    until(lambda: len(host.said("done")) >= calls, f"{calls} calls", every=0.01)


def _current(nginx: Nginx) -> str:
    return (nginx.live / NAME / "current").readlink().name


def _test(fleet: Fleet, target: str) -> str:
    done = fleet.type("target", "test", target)
    return done.stdout + done.stderr
