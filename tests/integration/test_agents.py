"""Agents as hosts run them: enrolled by one string, known by a key that never leaves, let back in after anything."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.agents import AgentHost, CutProxy, Fleet, a_fleet
from tests.support.reaper import until

from holdfast.core import base64url
from holdfast.core.agents.token_text import MARK

FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
needs_faketime = pytest.mark.skipif(not FAKETIME.exists(), reason="needs libfaketime: apt-get install faketime")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with a_fleet(tmp_path_factory.mktemp("fleet")) as made:
        yield made


def _answered(host: AgentHost, *, after: float = 0.0) -> None:
    """Wait until its agent had an answer; `after`: one that came later than this."""

    def seen() -> bool:
        file = host.state / "status.json"
        return file.exists() and file.stat().st_mtime > after and '"last_contact": true' in file.read_text()

    until(seen, f"an answer for {host.name}", every=0.05)


def _names(fleet: Fleet) -> list[str]:
    return [each["name"] for each in fleet.data("agent", "ls")]


def _changed(token: str, **changes: object) -> str:
    content = json.loads(base64url.decode(token.removeprefix(MARK)))
    return MARK + base64url.encode(json.dumps({**content, **changes}).encode())


def _sql(fleet: Fleet, text: str, *values: object) -> None:
    with sqlite3.connect(fleet.folder / "holdfast.sqlite", timeout=30) as line:
        line.execute(text, values)


async def _renewed(host: AgentHost) -> None:
    membership = host.membership()
    state = membership.folder.load()
    await membership.renew(state, membership.server_of(state), membership.signer(state))
    await membership.transport.aclose()


def test_one_string_enrols_a_host_whose_agent_is_heard_of_and_needs_little(fleet: Fleet) -> None:
    host = fleet.enrolled("first")
    host.start()
    _answered(host)
    found = fleet.agent("first")
    assert (found["state"], found["generation"]) == ("active", 1)
    assert host.resident_kib() < 40 * 1024
    told = host.type("status").stdout
    assert found["fingerprint"] in told
    assert "last answer" in told
    assert host.stop() == 0


def test_a_token_is_read_offline_and_its_secret_is_not_shown(fleet: Fleet) -> None:
    token = fleet.token()
    content = json.loads(base64url.decode(token.removeprefix(MARK)))
    shown = fleet.type("agent", "token", "show", "--token-file", "-", stdin=token)
    assert shown.returncode == 0
    assert content["t"] in shown.stdout
    assert content["p"] in shown.stdout
    assert content["s"] not in shown.stdout


def test_a_token_that_is_used_expired_revoked_cut_or_foreign_is_refused_by_name(fleet: Fleet) -> None:
    used = fleet.token()
    assert fleet.host("user-1").enrol(used).returncode == 0
    expired, revoked = fleet.token(), fleet.token()
    identity = json.loads(base64url.decode(revoked.removeprefix(MARK)))["t"]
    fleet.ok("agent", "token", "revoke", identity, "--yes")
    late = json.loads(base64url.decode(expired.removeprefix(MARK)))["t"]
    _sql(fleet, "UPDATE agent_tokens SET expires_at = 1 WHERE id = ?", late)
    refused = {
        used: "is used up",
        expired: "expired at",
        revoked: "is revoked",
        fleet.token()[:-9]: "cut or changed",
        _changed(fleet.token(), t="at_of_another"): "does not know the token",
        _changed(fleet.token(), s=base64url.encode(bytes(32))): "does not know the token",
        _changed(fleet.token(), p="0" * 64): "does not show the root",
        "hf_not_an_agent": "begins with hfa1.",
    }
    before = _names(fleet)
    for token, why in refused.items():
        done = fleet.host("refused").enrol(token)
        assert done.returncode != 0
        assert why in done.stderr, done.stderr
    assert _names(fleet) == before


def test_names_and_networks_that_a_token_does_not_allow_are_refused(fleet: Fleet) -> None:
    named = fleet.host("db-1").enrol(fleet.token("--agent-name", "edge-*"))
    assert "is for names like edge-*" in named.stderr
    placed = fleet.host("edge-9").enrol(fleet.token("--network", "192.0.2.0/24"))
    assert "is for other networks" in placed.stderr
    taken = AgentHost(fleet.folder / "another", "first").enrol(fleet.token())
    assert "There is an agent first already" in taken.stderr


def test_an_agent_that_needs_approval_shows_a_fingerprint_and_waits(fleet: Fleet) -> None:
    host, token = fleet.host("guarded"), fleet.token("--approval")
    waiting = host.enrol(token, "--no-wait")
    assert waiting.returncode == 3
    found = fleet.agent("guarded")
    assert found["state"] == "pending"
    assert found["fingerprint"] in waiting.stdout
    fleet.ok("agent", "approve", "guarded")
    assert host.enrol(token, "--no-wait").returncode == 0
    assert fleet.agent("guarded")["state"] == "active"


def test_a_reply_that_is_lost_at_any_byte_leaves_one_agent(fleet: Fleet) -> None:
    """The connection is cut after ever more bytes of the server's answers, roots and enrolment alike."""
    proxy = CutProxy(fleet.acme)
    try:
        token = fleet.token("--url", f"https://localhost:{proxy.port}")
        host, cut, lost = fleet.host("lost"), 200, 0
        while True:
            proxy.cut_after(cut)
            if host.enrol(token).returncode == 0:
                break
            lost, cut = lost + 1, cut + 331
        assert lost > 5
        assert _names(fleet).count("lost") == 1
        assert fleet.agent("lost")["generation"] == 1
        assert host.saved()["agent"] == fleet.agent("lost")["id"]
    finally:
        proxy.close()


def test_an_identity_is_renewed_and_the_one_before_is_good_until_the_new_one_was_used(fleet: Fleet) -> None:
    host = fleet.enrolled("renews")
    before = (host.state / "agent.json").read_bytes()
    asyncio.run(_renewed(host))
    assert fleet.agent("renews")["generation"] == 2
    (host.state / "agent.json").write_bytes(before)  # the reply was lost: it knows its first identity only
    host.start()
    _answered(host)
    host.stop()
    host.save(renew_at=1.0)
    host.start()
    host.wait_for("renewed")
    _answered(host, after=time.time())
    host.stop()
    (host.state / "agent.json").write_bytes(before)
    host.start()
    host.wait_for("recovered")  # the first identity is refused by now, and its key is gone
    host.stop()
    found = fleet.agent("renews")
    assert (found["generation"], found["recoveries"]) == (4, 1)


def test_an_identity_that_expired_ninety_days_ago_recovers_by_the_binding_key_and_is_counted(fleet: Fleet) -> None:
    host = fleet.enrolled("away")
    identity = host.saved()["agent"]
    ago = int((time.time() - 90 * 86400) * 1e6)
    _sql(fleet, "UPDATE agent_identities SET not_after = ? WHERE agent = ?", ago, identity)
    host.start()
    host.wait_for("recovered")
    _answered(host)
    found = fleet.agent("away")
    assert (found["generation"], found["recoveries"], found["recoveries_left"]) == (2, 1, 4)
    assert fleet.data("audit", "ls", "--action", "agent_recovered")[0]["subject"] == identity
    host.stop()


def test_an_agent_that_has_recovered_too_often_is_let_in_by_a_person(fleet: Fleet) -> None:
    host = fleet.enrolled("often")
    identity = host.saved()["agent"]
    _sql(fleet, "UPDATE agent_identities SET not_after = 1 WHERE agent = ?", identity)
    _sql(fleet, "UPDATE agents SET recoveries_left = 0 WHERE id = ?", identity)
    host.start()
    host.wait_for("unanswered")
    assert "recovered as often as it may" in host.said("unanswered")[0]
    fleet.ok("agent", "recoveries", "often", "--left", "1")
    host.wait_for("recovered")
    host.stop()


def test_a_copied_state_folder_is_found_and_neither_host_gets_work(fleet: Fleet) -> None:
    host, copy = fleet.enrolled("original"), fleet.host("copy")
    shutil.copytree(host.state, copy.state)
    host.start()
    _answered(host)
    copy.start()
    until(lambda: fleet.agent("original")["state"] == "cloned", "the copy is found")
    for each in (host, copy):
        each.stop()
    assert copy.type("reset").returncode == 0
    fleet.ok("agent", "settle", "original")
    host.start()
    _answered(host, after=time.time())
    assert fleet.agent("original")["state"] == "active"
    assert copy.enrol(fleet.token()).returncode == 0
    host.stop()


def test_a_restarted_agent_is_no_copy(fleet: Fleet) -> None:
    host = fleet.enrolled("restarts")
    for _ in range(4):
        host.start()
        _answered(host, after=time.time())
        host.stop(9)
    assert fleet.agent("restarts")["state"] == "active"


def test_ban_retire_and_delete_are_three_different_things(fleet: Fleet) -> None:
    host = fleet.enrolled("judged")
    fleet.ok("agent", "ban", "judged", "--yes")
    host.start()
    assert host.ended() == 0
    assert "banned" in host.said("banned")[0]
    assert host.enrol(fleet.token()).returncode != 0
    fleet.ok("agent", "unban", "judged")
    host.start()
    _answered(host, after=time.time())
    fleet.ok("agent", "retire", "judged", "--yes")
    assert host.ended() == 0
    assert host.said("retired")
    fleet.ok("agent", "rm", "judged", "--yes")
    host.start()
    host.wait_for("unanswered")
    assert "There is no such agent" in host.said("unanswered")[-1]
    assert (host.state / "binding.pem").exists()
    host.stop()
    assert host.enrol(fleet.token()).returncode == 0
    assert fleet.agent("judged")["state"] == "active"


@needs_faketime
@pytest.mark.parametrize("wrong", ["-10y", "+1y"])
def test_a_clock_that_is_wrong_by_years_does_not_keep_an_agent_away(fleet: Fleet, wrong: str) -> None:
    name = f"clock{'-late' if wrong.startswith('-') else '-early'}"
    host = fleet.host(name, LD_PRELOAD=str(FAKETIME), FAKETIME=wrong, FAKETIME_DONT_FAKE_MONOTONIC="1")
    assert host.enrol(fleet.token()).returncode == 0
    host.start()
    _answered(host)
    found = fleet.agent(name)
    assert (found["recoveries"], found["state"]) == (0, "active")
    host.stop()
