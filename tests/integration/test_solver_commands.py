"""Solvers by command: BIND is set up without a restart, and a wildcard that failed for want of it is issued."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator

import pytest
from tests.integration.test_new_users import Site
from tests.support.bind import KEY, KEY_NAME, OURS, Bind
from tests.support.ports import free_port
from tests.support.processes import Served
from tests.support.reaper import until


@pytest.fixture(scope="module")
def bind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bind]:
    with Bind(tmp_path_factory.mktemp("bind"), free_port()) as bind:
        yield bind


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, bind: Bind) -> Iterator[Site]:
    """Its own CA is asked over ACME, and validates names by BIND alone."""
    folder, port = tmp_path_factory.mktemp("solvers"), free_port()
    settings = {"ACME_LISTEN": f"127.0.0.1:{port}", "ACME_RESOLVERS": bind.address}
    with Served(folder, settings) as server:
        server.wait_until_ready()
        site = Site(server, folder)
        root = site.ok("ca", "chain", "default", "--root")
        site.ok("issuer", "add", "acme", "self", "--directory", site.directory, "--set", f"roots={root}")
        yield site


def a_solver(bind: Bind, name: str, *more: object, key: bytes = KEY) -> tuple[tuple[object, ...], str]:
    words = ("--kind", "dns-rfc2136", "--for", f"*.{OURS}", "--set", f"server={bind.address}")
    words += ("--set", f"key_name={KEY_NAME}", "--set", "propagation=false", "--credential", "key=-")
    return ("solver", "add", name, *words, *more), f"{b64encode(key).decode()}\n"


def test_a_solver_is_added_tested_and_used_without_a_restart(site: Site, bind: Bind) -> None:
    failed = site.type("issue", f"*.{OURS}", "--issuer", "self", "--wait", "--timeout", "60s")
    assert failed.returncode == 1
    assert "NO_SOLVER" in failed.stdout
    assert [each["certificate"] for each in site.data("solver", "gaps")] == [f"*.{OURS}"]
    assert "its next renewal will fail" in site.type("status", "--check").stdout
    words, key = a_solver(bind, "zone")
    added = site.type(*words, stdin=key)
    assert (added.returncode, key.strip() in added.stdout + added.stderr) == (0, False), added.stderr
    assert site.data("solver", "gaps") == []
    assert "was removed again" in site.ok("solver", "test", "zone")
    assert bind.ask(f"_acme-challenge.holdfast-test.{OURS}", "TXT") == []
    site.ok("renew", f"*.{OURS}", "--wait", "--timeout", "60s")  # or within a minute, by the sweep
    [row] = site.data("solver", "ls")
    assert (row["names"], row["credentials"], row["state"]) == ([f"*.{OURS}"], ["key"], "active")
    site.ok("solver", "pause", "zone")
    assert site.data("solver", "show", "zone")["state"] == "paused"
    site.ok("solver", "rm", "zone", "--yes")
    assert site.data("solver", "ls") == []


def test_a_wrong_key_shows_in_the_test_and_nothing_that_runs_here_is_added_by_api(site: Site, bind: Bind) -> None:
    words, key = a_solver(bind, "wrong", key=b"x" * 32)
    assert site.type(*words, stdin=key).returncode == 0
    tested = site.type("solver", "test", "wrong")
    assert tested.returncode == 1
    assert "wrong" in tested.stdout
    site.ok("solver", "rm", "wrong", "--yes")
    hook = ("solver", "add", "hook", "--kind", "dns-hook", "--for", "*", "--set", 'argv=["/bin/true"]')
    refused = site.type(*hook)
    assert (refused.returncode, "keeping.solvers_file" in refused.stderr) == (1, True)
    missing = site.type("solver", "add", "x", "--kind", "dns-rfc2136", "--for", "a.example")
    assert (missing.returncode, "server" in missing.stderr) == (1, True)


def test_a_certificate_asks_for_its_challenge_and_its_solver(site: Site, bind: Bind) -> None:
    name = f"asked.{OURS}"
    words, key = a_solver(bind, "asked")
    assert site.type(*words, stdin=key).returncode == 0
    site.ok("issue", name, "--issuer", "self", "--challenge", "dns-01", "--solver", "asked", "--wait")
    events = [each for each in site.data("events", name) if "proofs" in each["details"]]
    assert [each["details"]["proofs"] for each in events] == [[f"dns-01 for {name}"]]
    until(lambda: bind.ask(f"_acme-challenge.{name}", "TXT") == [], "the solver to remove what it published")
    in_use = site.type("solver", "rm", "asked", "--yes")
    assert (in_use.returncode, f"holdfast change {name} --solver ''" in in_use.stderr) == (5, True)
    site.ok("solver", "pause", "asked")
    assert "its next renewal will fail: no solver can prove" in site.type("status", name).stdout
    assert site.type("status", name, "--check").returncode == 10
    assert f"no solver here can prove {name}" in site.ok("explain", name)
    site.ok("change", name, "--solver", "", "--challenge", "any")
    assert site.type("status", name, "--check").returncode == 0
    assert "no solver" not in site.ok("explain", name)
    site.ok("solver", "rm", "asked", "--yes")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("*.corp.example", "--challenge", "http-01"), "is proved by dns-01 only, not by http-01"),
        (("192.0.2.1", "--challenge", "dns-01"), "cannot be proved by dns-01"),
        (("www.corp.example", "--solver", "nothing"), "There is no solver 'nothing'."),
        (("www.corp.example", "--solver", "narrow"), "Solver narrow is not for www.corp.example."),
    ],
)
def test_a_challenge_that_can_never_fit_is_refused_at_the_prompt(
    site: Site, bind: Bind, words: tuple[str, ...], problem: str
) -> None:
    if site.type("solver", "show", "narrow").returncode != 0:
        add, key = a_solver(bind, "narrow")
        assert site.type(*add, stdin=key).returncode == 0
    refused = site.type("issue", *words)
    assert (refused.returncode, problem in refused.stderr) == (1, True), refused.stderr
