"""What people see when they type commands: whole transcripts, without the times and ids that differ each time."""

import asyncio
import json
import os
import pty
import re
import signal
import sys
import textwrap
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.support.api import on_a_port
from tests.support.engine import PATIENCE, done, kind
from tests.support.jobs import enqueue, update
from tests.support.processes import environment
from tests.support.terminal import Terminal, a_terminal, plain

from holdfast import __version__
from holdfast.cli import main, topics
from holdfast.cli.certificates import display as shown
from holdfast.cli.certificates.progress import countdown, standing
from holdfast.cli.client import Client
from holdfast.cli.completion import SCRIPTS
from holdfast.core import journal
from holdfast.core.access import Role
from holdfast.core.work.job import Again, JobFailed, Outcome
from holdfast.engine.kind import JobHandler, Work
from holdfast.errors import Refused
from holdfast.store.database import Database, Engine
from holdfast.store.sqlite import SqliteEngine
from holdfast.store.work import cluster
from holdfast.web.serve import bind
from holdfast.world import SystemClock

pytestmark = pytest.mark.anyio
NAME = "www.example.com"
NOW = datetime(2026, 8, 24, 12, 0, tzinfo=UTC)


@pytest.fixture
def make_engine(tmp_path: Path) -> Callable[[], Engine]:
    """One store is enough here: what commands speak to is tested on both."""
    return lambda: SqliteEngine(tmp_path / "holdfast.sqlite", SystemClock())


def written(text: str) -> str:
    return textwrap.dedent(text).strip("\n")


# ── the status block ──


def a_row(**status: Any) -> dict[str, Any]:
    """A certificate as the API shows it."""
    block = {
        "phase": "failing", "reason_code": "DNS_TXT_NOT_VISIBLE", "reason": "The TXT record is not there.",
        "acts_next": "you", "attempt": 3, "max_attempts": None,
        "last_error": "2 of 4 name servers lack _acme-challenge", "last_attempt_at": "2026-08-24T11:11:00Z",
        "next_attempt_at": "2026-08-24T15:12:00Z", "next_attempt_cause": "DUE_LIFETIME",
        "since": "2026-08-24T08:10:00Z", "attempts_that_fit": 16,
        "safe_until": "2026-09-12T07:00:00Z", "expires_at": "2026-09-12T08:00:00Z", "blocked_by": ["BACKOFF"],
    } | status  # fmt: skip
    return {
        "name": "api.example.com", "owner": "platform", "issuers": ["letsencrypt-prod"], "status": block,
        "not_after": block["expires_at"], "operation": None, "names": ["api.example.com"],
        "issuance_attempts": 3, "last_failure_at": "2026-08-24T11:12:00Z",
    }  # fmt: skip


def test_the_status_block_says_what_why_when_next_and_what_to_type() -> None:
    budget = [
        {"key": "ca/letsencrypt-prod/orders", "left": 292, "burst": 300},
        {"key": "ca/letsencrypt-prod/requests", "left": 20, "burst": 20},
        {"key": "ca/letsencrypt-prod/domain/example.com", "left": 1, "burst": 50},
    ]
    assert shown.block(a_row(), NOW, budget) == written(
        """
        api.example.com   FAILING   expires in 18 d 20 h (2026-09-12T08:00Z)   safe: 16 more attempts fit before expiry
        phase   failing, 3 failed attempts in a row   owner platform   CA letsencrypt-prod
        reason  DNS_TXT_NOT_VISIBLE  2 of 4 name servers lack _acme-challenge  since 3 h 50 m ago (2026-08-24T08:10Z), last failure 48 m ago (2026-08-24T11:12Z)  (you act next)
        next    in 3 h 12 m (2026-08-24T15:12Z): renewal by its lifetime (DUE_LIFETIME); held by back-off 4 h after failure 3; CA budget 292/300 left
        now     holdfast challenge test api.example.com   |   holdfast renew api.example.com --wait
        """  # noqa: E501
    )


def test_what_waits_for_a_second_person_says_when_that_ends() -> None:
    row = a_row(
        phase="awaiting_approval", reason_code="AWAITING_APPROVAL", acts_next="approver", last_error=None,
        approval_ends_at="2026-08-27T12:00:00Z", next_attempt_at="2026-08-27T13:00:00Z",
        blocked_by=["AWAITING_APPROVAL"],
    )  # fmt: skip
    row |= {"operation": {"state": "awaiting_approval", "done": False, "id": "issuance_1"}}
    lines = shown.block(row, NOW).splitlines()
    assert lines[2].endswith("(approver acts next)")
    assert lines[3] == (
        "next    rejected in 3 d (2026-08-27T12:00Z) unless approved, "
        "and then asked for again in 3 d 1 h (2026-08-27T13:00Z)"
    )


def test_a_time_that_has_come_is_never_a_negative_one() -> None:
    row = a_row(next_attempt_at="2026-08-24T11:59:00Z", last_error=None, attempt=0, phase="ok", reason_code="DUE_ARI")
    assert "next    due, waiting for a worker: renewal by its lifetime (DUE_LIFETIME)" in shown.block(row, NOW)
    assert countdown(row["status"]["next_attempt_at"], NOW) == ""


def test_a_certificate_that_failed_once_too_often_is_not_called_safe() -> None:
    late = a_row(safe_until="2026-08-24T11:00:00Z")
    assert "less time is left than an issuance may take" in shown.block(late, NOW)
    assert "safe: 1 more attempt fits before expiry" in shown.block(a_row(attempts_that_fit=1), NOW)
    assert "safe for 18 d 19 h" in shown.block(a_row(attempts_that_fit=None), NOW)


def test_what_is_followed_shows_phase_step_attempt_and_reason() -> None:
    row = a_row(reason="Wait.") | {"operation": {"state": "waiting", "done": False, "id": "issuance_1"}}
    assert standing(row) == "api.example.com: failing, waiting, attempt 4: DNS_TXT_NOT_VISIBLE Wait."
    assert standing(a_row(max_attempts=5, reason="Wait.")).endswith("attempt 3/5: DNS_TXT_NOT_VISIBLE Wait.")
    assert countdown(row["status"]["next_attempt_at"], NOW) == " Next in 3 h 12 m."


# ── from nothing to a renewal ──


async def test_a_first_day(db: Database, tmp_path: Path) -> None:
    async with a_terminal(db, tmp_path) as typed:
        nothing = await typed.ok("ls")
        assert (nothing.out, nothing.err) == (
            "", "There are no such certificates. Ask for one: holdfast issue NAME\n",
        )  # fmt: skip
        tried = await typed.ok("issue", NAME, "--dry-run")
        assert tried.err == "Nothing was changed: this is how it would be.\n"
        made = await typed.ok("issue", NAME, "--owner", "web", "--label", "team=a", "--wait")
        assert made.plain == written(
            """
            www.example.com  OK  expires in <span> (<time>)  safe for <span>
            phase  ok  owner web  CA ca
            reason  NOT_DUE  It is valid, and its renewal is not due yet.  since <span> ago (<time>)  (holdfast acts next)
            next  in <span> (<time>): renewal by its lifetime (DUE_LIFETIME)
            now  holdfast explain www.example.com  |  holdfast renew www.example.com --wait
            """  # noqa: E501
        )
        assert plain(made.err).startswith("www.example.com: pending, requested, attempt 1: UNDER_WAY")
        listed = await typed.ok("ls")
        assert listed.plain == written(
            """
            NAME  PHASE  EXPIRES  NEXT  REASON
            www.example.com  OK  in <span> (<time>)  in <span> (<time>)  NOT_DUE
            """
        )
        assert (await typed.ok("ls", "--columns", "owner,name")).out == "OWNER  NAME\nweb    www.example.com\n"
        assert (await typed.ok("ls", "-o", "name")).out == f"{NAME}\n"
        assert (await typed.ok("explain", NAME)).plain.splitlines()[-1] == (
            "what to do: Nothing: it is renewed then. To renew now: holdfast renew www.example.com"
        )
        wrong = await typed("ls", "--columns", "colour")
        assert (wrong.code, "There are: name, phase" in wrong.err) == (2, True)
        again = await typed.ok("renew", NAME, "--if-due")
        assert (again.out, again.err) == ("", f"{NAME} is not due: nothing to do.\n")


async def test_many_are_renewed_by_label_after_saying_how_many_and_with_a_bar_on_a_terminal(
    db: Database, tmp_path: Path
) -> None:
    async with a_terminal(db, tmp_path) as typed:
        for number in range(3):
            await typed.ok("issue", f"n{number}.example.com", "--label", f"team={'a' if number else 'b'}", "--wait")
        unsure = await typed("renew", "--label", "team=a")
        assert (unsure.code, unsure.out) == (1, "")
        assert "This renews 2 certificates: 2 at ca." in unsure.err
        done = await typed.ok("renew", "--label", "team=a", "--yes", "-o", "name", tty=True)
        assert done.out == "n1.example.com\nn2.example.com\n"
        assert "[##############################]  2/2" in done.err
        quiet = await typed.ok("--quiet", "renew", "--all", "--dry-run", "-o", "name", tty=True)
        assert (len(quiet.out.splitlines()), quiet.err) == (3, "")
        neither = await typed("renew")
        assert (neither.code, "--label or --all" in neither.err) == (2, True)


async def test_many_are_spread_over_a_time_and_a_trial_shows_when_each_begins(db: Database, tmp_path: Path) -> None:
    async with a_terminal(db, tmp_path) as typed:
        for number in range(3):
            await typed.ok("issue", f"n{number}.example.com", "--wait")
        words = ("renew", "--all", "--stagger", "6h", "--yes")
        tried = (await typed.ok(*words, "--dry-run", "-o", "json")).json
        turns = [each["status"]["next_attempt_at"] for each in tried]
        assert turns == sorted(turns)
        assert {each["status"]["reason_code"] for each in tried} == {"STAGGERED"}
        assert (await typed.ok("ls", "-o", "json")).json[0]["operation"] is None, "it was a trial"
        asked = await typed.ok(*words, "--idempotency-key", "spread")
        again = await typed.ok(*words, "--idempotency-key", "spread", "-o", "name")
        assert "This renews" not in asked.err
        assert [line.split()[0] for line in asked.out.splitlines()[1:]] == again.out.split()
        assert plain(asked.out.splitlines()[-1]).split(None, 1)[1] == (
            "WAITING  in <span> (<time>)  in <span> (<time>)  STAGGERED"
        )
        assert typed.desk.house.cas["ca"].calls.count("place") == 3, "none of them has begun"
        assert "next" in (await typed.ok("status", "n0.example.com")).out
        await typed.ok("renew", "n0.example.com", "--wait")
        assert typed.desk.house.cas["ca"].calls.count("place") == 4, "but one that somebody wants now"
        one = await typed("renew", "n0.example.com", "--stagger", "6h")
        assert (one.code, "this is one" in one.err) == (2, True)
        assert (await typed("renew", "--all", "--stagger", "8d")).code == 2


async def test_many_are_waited_for_and_one_that_fails_is_named(db: Database, tmp_path: Path) -> None:
    async with a_terminal(db, tmp_path) as typed:
        for number in range(2):
            await typed.ok("issue", f"n{number}.example.com", "--wait")
        done = await typed.ok("renew", "--all", "--yes", "--wait", tty=True)
        assert "Issued  [##############################]  2/2" in done.err
        typed.desk.house.cas["ca"].troubles["place"] = [Refused("no", reason="CA_REFUSED")]
        failed = await typed("renew", "--all", "--yes", "--wait")
        assert (failed.code, failed.err.count("not renewed: n")) == (1, 1)
        short = await typed("renew", "--all", "--stagger", "6h", "--yes", "--wait", "--timeout", "1")
        assert (short.code, "Some are still under way" in short.err) == (3, True)


async def test_of_many_that_are_renewed_each_waits_for_its_second_person(db: Database, tmp_path: Path) -> None:
    async with a_terminal(db, tmp_path) as typed:
        house = typed.desk.house
        for number in range(2):
            await house.ask(f"n{number}.example.com", labels={"team": "a"}, approval_required=True)
        for asked in await house.pending():
            await house.approve(asked.id, actor="local:bob")
        for number in range(2):
            await house.settled(f"n{number}.example.com")
        await typed.ok("renew", "--label", "team=a", "--yes")
        views = [await house.view(f"n{number}.example.com") for number in range(2)]
        assert [view.status.phase.value for view in views] == ["awaiting_approval"] * 2
        assert len(await house.pending()) == 2
        assert house.cas["ca"].calls.count("place") == 2, "those of the first time"


async def test_a_failure_reads_like_this(db: Database, tmp_path: Path) -> None:
    async with a_terminal(db, tmp_path) as typed:
        await typed.ok("issue", NAME, "--wait")
        typed.desk.house.cas["ca"].always["place"] = Refused("names are not allowed", reason="CA_REFUSED")
        failed = await typed("renew", NAME, "--wait")
        assert failed.code == 1
        lines = failed.plain.splitlines()
        assert lines[0].startswith("www.example.com  FAILING  expires in <span> (<time>)  safe: ")
        assert lines[1:] == [
            "phase  failing, 1 failed attempt in a row  owner -  CA ca",
            "reason  CA_REFUSED  names are not allowed  since <span> ago (<time>), last failure <span> ago (<time>)  "
            "(you act next)",
            lines[3],
            "now  holdfast explain www.example.com  |  holdfast renew www.example.com --wait",
        ]
        assert lines[3].startswith("next  in <span> (<time>): ")
        missing = await typed("get", "nobody.example.com")
        assert missing.code == 6
        assert re.search(r"\[no-such-certificate, request req_\d+.*\]", missing.err)


async def test_colours_are_for_terminals_and_for_those_who_want_them(db: Database, tmp_path: Path) -> None:
    async with a_terminal(db, tmp_path) as typed:
        await typed.ok("issue", NAME, "--wait")
        assert re.search(r"\x1b\[32m.*OK\x1b\[0m", (await typed.ok("ls", tty=True)).out)
        assert "\x1b" not in (await typed.ok("ls", tty=True, env={"NO_COLOR": "1"})).out
        assert "\x1b" not in (await typed.ok("ls")).out


# ── waiting ──


async def test_on_a_terminal_one_line_is_written_over_until_it_is_over(db: Database, tmp_path: Path) -> None:
    async with a_terminal(db, tmp_path) as typed:
        said = await typed.ok("issue", NAME, "--wait", tty=True)
        assert re.search(r"\r\x1b\[2K[|/\\-] www\.example\.com: pending, requested, attempt 1: UNDER_WAY", said.err)
        assert said.err.endswith("\n")
        assert plain(said.err.splitlines()[-1].rpartition("\x1b[2K")[2]).startswith("www.example.com: ok: NOT_DUE")


async def left(folder: Path, *words: str, at: str) -> tuple[int, str, bytes]:
    """A command in a process and on a terminal of its own, as it is for people, and Ctrl-C as soon as it shows this."""
    here, there = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "holdfast.cli.main", *words,
        env=environment(folder, {}) | {"HOME": str(folder), "TERM": "xterm", "COLUMNS": "200"},
        stdin=there, stdout=asyncio.subprocess.PIPE, stderr=there,
    )  # fmt: skip
    os.close(there)
    text = await until_shown(here, at)
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(PATIENCE):
        text += await until_shown(here, "You left")
        out = await process.stdout.read() if process.stdout else b""
        code = await process.wait()
    os.close(here)
    return code, text, out


async def test_leaving_with_ctrl_c_stops_nothing_and_says_so(db: Database, tmp_path: Path) -> None:
    async with a_terminal(db, tmp_path, works=False) as typed:
        code, text, out = await left(tmp_path, "issue", NAME, "--wait", at="requested")
        assert (code, "You left; it goes on. Look again: holdfast status" in text) == (130, True)
        assert NAME.encode() in out
        assert (await typed.desk.house.view(NAME)).issuance is not None
        for word in ("one", "two"):
            await typed.ok("issue", f"{word}.example.com", "--label", "team=a")
        code, text, _ = await left(tmp_path, "renew", "--label", "team=a", "--yes", "--wait", at="See how they do")
        assert (code, "the 2 of 2 that were asked for go on. Look again: holdfast status" in text) == (130, True)


async def until_shown(handle: int, word: str) -> str:
    loop, text = asyncio.get_running_loop(), ""
    async with asyncio.timeout(PATIENCE):
        while word not in text:
            text += (await loop.run_in_executor(None, os.read, handle, 65536)).decode()
    return text


async def test_a_wait_that_is_too_short_ends_with_3_and_says_how_to_go_on(db: Database, tmp_path: Path) -> None:
    async with a_terminal(db, tmp_path, works=False) as typed:
        await typed.ok("issue", NAME)
        late = await typed("wait", NAME, "--timeout", "1")
        assert late.code == 3
        assert late.err.endswith(f"It is still under way. Go on waiting: holdfast wait {NAME}\n")


async def test_a_server_that_takes_its_time_to_answer_is_not_a_broken_line() -> None:
    line = bind("127.0.0.1", 0)
    line.listen()  # it accepts, and says nothing
    with httpx2.Client(base_url=f"http://127.0.0.1:{line.getsockname()[1]}", trust_env=False, timeout=PATIENCE) as http:
        heard = Client(http).events(after=None, subject=None, quiet_for=0.05)
        assert list(heard) == []
    line.close()


# ── changing things ──


async def test_every_command_that_changes_something_can_be_tried_and_repeated(db: Database, tmp_path: Path) -> None:
    async with a_terminal(db, tmp_path) as typed:
        await typed.ok("issue", NAME, "--wait")
        for words in (["pause", NAME], ["archive", NAME], ["revoke", NAME, "--reason", "superseded"], ["renew", NAME]):
            tried = await typed.ok(*words, "--dry-run")
            assert "Nothing was changed" in tried.err
        first = await typed.ok("renew", NAME, "--idempotency-key", "once", "-o", "json")
        again = await typed.ok("renew", NAME, "--idempotency-key", "once", "-o", "json")
        assert first.json["operation"]["id"] == again.json["operation"]["id"]
        await typed.ok("pause", NAME, "--idempotency-key", "p")
        assert "resume" in (await typed.ok("status", NAME)).out
        await typed.ok("resume", NAME, "--wait")


async def test_what_a_certificate_is_can_be_said_and_changed(db: Database, tmp_path: Path) -> None:
    async with a_terminal(db, tmp_path) as typed:
        options = [
            "--lifetime",
            "45d",
            "--reuse-key",
            "--renew-after",
            "0.6",
            "--preferred-chain",
            "Root X1",
            "--no-ari",
            "--window",
            "sat,sun 02:00-05:00",
            "--window",
            "22:00-04:00 Europe/Berlin",
        ]
        made = (await typed.ok("issue", NAME, *options, "--label", "a=1", "--wait", "-o", "json")).json
        said = [made[each] for each in ("lifetime_s", "reuse_key", "preferred_chain", "key", "approval_required")]
        assert said == [45 * 86400, True, "Root X1", "ec-p256", False]
        assert made["renewal"] == {"fraction": 0.6, "before_s": None, "ari": False}
        assert made["windows"] == [
            {"days": [5, 6], "opens": 120, "closes": 300, "zone": "UTC"},
            {"days": list(range(7)), "opens": 1320, "closes": 240, "zone": "Europe/Berlin"},
        ]
        assert "windows  sat,sun 02:00-05:00, 22:00-04:00 Europe/Berlin" in (await typed.ok("get", NAME)).plain
        nowhere = await typed("change", NAME, "--window", "22:00-04:00 Europe/Nowhere")
        assert (nowhere.code, "no time zone 'Europe/Nowhere'" in nowhere.err) == (1, True), nowhere.err
        assert (await typed.ok("change", NAME, "--window", "", "-o", "json")).json["windows"] == []
        tried = await typed.ok("change", NAME, "--owner", "web", "--dry-run", "-o", "json")
        assert (tried.json["owner"], "Nothing was changed" in tried.err) == ("web", True)
        words = ["--owner", "web", "--label", "b=2", "--remove-label", "a", "--renew-before", "30d", "--key", "ec-p384"]
        names = ["--add-name", "API.example.com", "--lifetime", "", "--idempotency-key", "once"]
        row = (await typed.ok("change", NAME, *words, *names, "--wait", "-o", "json")).json
        said = [row[each] for each in ("owner", "labels", "names", "key", "lifetime_s", "reuse_key")]
        assert said == ["web", {"b": "2"}, [NAME, "api.example.com"], "ec-p384", None, True]
        assert row["renewal"] == {"fraction": None, "before_s": 30 * 86400, "ari": False}
        assert row["serial"] != made["serial"]
        again = await typed.ok("change", NAME, "--owner", "web", "-o", "json")
        assert ("has these values already" in again.err, again.json["version"]) == (True, row["version"])
        assert (await typed("change", NAME)).code == 2
        assert (await typed("change", NAME, "--renew-after", "0.5", "--renew-before", "1d")).code == 2
        assert (await typed("change", "nobody.example.com", "--owner", "web")).code == 6


@pytest.mark.parametrize(
    "words",
    [
        ["ls", "--columns", "NAME,NOTHING"],
        ["ls", "--expiring", "soon"],
        ["explain", NAME, "--at", "tomorrow"],
        ["renew"],
        ["issue", NAME, "--label", "web"],
        ["change", NAME, "--window", "nights"],
        ["export", "--label", "web"],
        ["simulate", "--orders", "many"],
        ["wait", NAME, "--for", "deployed"],
        ["wait", NAME, "--for", "serving"],
    ],
    ids=lambda words: " ".join([*words[:2], *words[3:]]) if words[0] == "wait" else " ".join(words[:2]),
)
async def test_an_argument_that_makes_no_sense_ends_with_2(db: Database, tmp_path: Path, words: list[str]) -> None:
    async with a_terminal(db, tmp_path, works=False) as typed:
        said = await typed(*words)
        assert (said.code, said.out) == (2, "")
        assert "hint:" in said.err or "such as" in said.err or "is not one of" in said.err


async def test_whatever_waits_for_a_person_is_found(db: Database, tmp_path: Path) -> None:
    async with a_terminal(db, tmp_path, works=False) as typed:

        async def told(line: str) -> None:
            said = await typed("status", "--check")
            assert (said.code, line in said.plain) == (10, True)

        assert (await typed.ok("status", "--check", "-o", "json")).json["not_shown"] == []
        await typed.ok("issuer", "pause", "ca")
        await told("CA ca  paused: holdfast issuer resume ca")
        await typed.ok("issuer", "resume", "ca")
        await enqueue(db, "lost")
        await update(db, "UPDATE jobs SET state = 'dead'")
        await told("dead jobs  1 were given up: holdfast jobs ls --state dead")
        await update(db, "UPDATE jobs SET state = 'ready'")
        await typed.ok("status", "--check")
        await typed.ok("issue", NAME, "--approval")
        await told("approvals  1 wait for a second person: holdfast approvals ls")
        await told("dead notifications  1 were never delivered: holdfast notify ls --dead")  # there is no channel


NOT_REPEATED = {  # by a key: doing it again does nothing, or, for a new token, cannot show it again
    "apply", "token create", "token revoke", "notify channel rm",
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        "issue", "change", "renew", "revoke", "pause", "resume", "archive", "cancel", "retry", "apply",
        "cluster drain", "cluster resume",
        "approvals approve", "approvals reject", "token create", "token revoke",
        "issuer add", "issuer set", "issuer rm", "issuer pause", "issuer resume",
        "issuer rotate-account-key", "issuer new-account",
        "notify requeue", "notify resolve", "notify channel pause", "notify channel resume",
        "notify channel add", "notify channel set", "notify channel rm",
    ],
)  # fmt: skip
def test_what_changes_something_has_the_options_of_such_commands(name: str) -> None:
    first, *rest = name.split()
    command: Any = main.load(first)
    for word in rest:
        command = command.commands[word]
    options = {flag for each in command.params for flag in each.opts}
    assert {"--dry-run"} <= options
    assert ("--idempotency-key" in options) == (name not in NOT_REPEATED)
    if name in ("issue", "change", "renew", "revoke", "resume", "retry", "cluster drain"):
        assert {"--wait", "--timeout"} <= options


async def test_a_trial_with_the_test_endpoint_of_a_ca(db: Database, tmp_path: Path) -> None:
    async with a_terminal(db, tmp_path, works=False) as typed:
        missing = await typed("issue", NAME, "--staging")
        assert (missing.code, "issuer add letsencrypt-staging letsencrypt-staging" in missing.err) == (2, True)
        directory = ("--directory", "https://ca.example/dir")
        await typed.ok("issuer", "add", "acme", "ca-staging", *directory)
        assert (await typed.ok("issue", NAME, "--staging", "-o", "json")).json["issuers"] == ["ca-staging"]
        named = await typed.ok("issue", "b.example.com", "--staging", "--issuer", "ca", "-o", "json")
        assert named.json["issuers"] == ["ca-staging"]
        await typed.ok("issuer", "add", "acme", "other-staging", *directory)
        assert (await typed("issue", "c.example.com", "--staging")).code == 2, "which of the two?"


async def test_what_a_person_decides_can_be_tried_first(db: Database, tmp_path: Path) -> None:
    async with a_terminal(db, tmp_path, works=False) as typed:
        added = await typed.ok("issuer", "add", "acme", "other", "--directory", "https://ca.example/dir", "--dry-run")
        assert "Nothing was changed" in added.err
        await typed.ok("issuer", "pause", "ca", "--dry-run")
        assert [row["state"] for row in (await typed.ok("issuer", "ls", "-o", "json")).json] == ["active"]
        tried = await typed.ok("token", "create", "ci", "--dry-run")
        assert (tried.out, "Nothing was changed" in tried.err) == ("", True)
        assert (await typed.ok("token", "ls", "-o", "json")).json == []
        await typed.ok("token", "create", "ci")
        [token] = (await typed.ok("token", "ls", "-o", "name")).out.split()
        await typed.ok("token", "revoke", token, "--dry-run")
        assert (await typed.ok("token", "ls", "-o", "json")).json[0]["revoked_at"] is None
        await typed.ok("issue", NAME, "--approval")
        [approval] = (await typed.ok("approvals", "ls", "-o", "name")).out.split()
        await typed.ok("approvals", "reject", NAME, "--dry-run")
        await typed.ok("approvals", "reject", approval[:-2], "--dry-run")
        assert (await typed("approvals", "reject", "other.example.com", "--dry-run")).code == 6
        for _ in range(2):
            await typed.ok("approvals", "reject", approval, "--idempotency-key", "once", "--yes")
        assert (await typed("approvals", "reject", approval, "--yes")).code == 5


async def test_jobs_are_listed_shown_and_given_back(db: Database, tmp_path: Path) -> None:
    async with a_terminal(db, tmp_path, works=False) as typed:
        await enqueue(db, "lost")
        await update(db, "UPDATE jobs SET state = 'dead', attempts = 3, last_error = 'it broke'")
        listed = await typed.ok("jobs", "ls", "--state", "dead")
        assert listed.plain == written(
            """
            ID  KIND  ABOUT  STATE  ATTEMPT  DUE  REASON
            <job>  k  lost  dead  3/3  <span> ago (<time>)  -
            """
        )
        [job] = (await typed.ok("jobs", "ls", "-o", "name")).out.split()
        assert "it broke" in (await typed.ok("jobs", "show", job)).out
        await typed.ok("retry", job[:-2])
        assert (await typed.ok("jobs", "ls", "-o", "json")).json[0]["state"] == "ready"
        assert (await typed("retry", job, "--wait", "--timeout", "1")).code == 3, "nobody works here"


def answering(outcome: Outcome) -> JobHandler:
    async def handler(work: Work) -> Outcome:
        return outcome

    return handler


async def test_a_job_that_is_retried_is_followed_to_its_end(db: Database, tmp_path: Path) -> None:
    async with a_terminal(db, tmp_path, works=False) as typed:
        ends, fails = [await enqueue(db, name, kind=name) for name in ("ends", "fails")]
        again = await enqueue(db, "again", kind="again")
        later = Again(after=timedelta(hours=1), reason="SCHEDULED")
        kinds = [
            kind("ends", done), kind("fails", answering(JobFailed(error="it broke", reason="X"))),
            kind("again", answering(later)),
        ]  # fmt: skip
        await update(db, "UPDATE jobs SET due_at = due_at + 3600000000")
        async with typed.desk.house.working(kinds=kinds):
            over = await typed.ok("retry", ends, "--wait")
            assert f"{ends}: ends, done, attempt 1/1" in over.err
            assert (await typed("retry", ends)).code == 5
            assert "state    done" in (await typed.ok("jobs", "show", ends)).out
            failed = await typed("retry", fails, "--wait")
            assert (failed.code, "failed, attempt 1/3: X it broke" in failed.err) == (1, True)
            ran = await typed.ok("retry", again, "--wait")
            assert "ready: SCHEDULED" in ran.err, "it never ends: it has run"


# ── the installation ──


async def test_the_cluster_is_shown_with_replicas_leases_and_loops(db: Database, tmp_path: Path) -> None:
    async with a_terminal(db, tmp_path, works=False) as typed:
        await db.write(lambda tx: cluster.replica_seen(tx, "replica_1", "alpha", "0.0.9", draining=False))
        said = await typed.ok("cluster")
        assert plain(said.out.splitlines()[1]).startswith("alpha  alive  0.0.9  <span> ago (<time>)")
        assert (await typed.ok("cluster", "replicas", "--columns", "replica")).out == "REPLICA\nalpha\n"
        skew = await typed("version", "--with-server")
        assert (skew.code, skew.out) == (10, f"{__version__}\nserver 0.0.9\n")
        assert "upgrade the older" in skew.err


async def heartbeat(db: Database, *, rests: bool) -> None:
    loops = json.dumps({cluster.HEARTBEAT: {"tried": 0, "period": 10, "rests": rests, "ahead": 1.25}})
    await db.write(lambda tx: cluster.replica_seen(tx, "replica_1", "alpha", "1", draining=False, loops=loops))


async def test_at_a_terminal_a_replica_is_drained_waited_for_and_resumed(db: Database, tmp_path: Path) -> None:
    async with a_terminal(db, tmp_path, works=False) as typed:
        await heartbeat(db, rests=False)
        last = await typed("cluster", "drain", "alpha")
        assert (last.code, "--even-last" in last.err) == (5, True)
        asked = await typed.ok("cluster", "drain", "alpha", "--even-last")
        assert plain(asked.out.splitlines()[1]).startswith("alpha  draining  1  <span> ago (<time>)")
        assert "Follow it: holdfast cluster drain alpha --wait" in asked.err
        short = await typed("cluster", "drain", "alpha", "--wait", "--timeout", "1")
        assert (short.code, "alpha: draining, 0 of its jobs run" in short.err) == (3, True)
        await heartbeat(db, rests=True)
        over = await typed.ok("cluster", "drain", "alpha", "--wait")
        assert "alpha has nothing left to do, and can be stopped." in over.err
        assert "drained" in (await typed.ok("cluster", "replicas")).out
        told = await typed("status", "--check")
        assert (told.code, "nothing is renewed: holdfast cluster resume alpha" in told.out) == (10, True)
        assert "all were drained" in (await typed("doctor")).out
        await typed.ok("cluster", "resume", "alpha")
        assert "drained" not in (await typed.ok("status", "--check")).out
        await heartbeat(db, rests=True)  # it is silent after a while
        shown_again = await typed.ok("cluster", "replicas", "--columns", "state,clock")
        assert shown_again.out.splitlines()[1] == "alive  +1.2 s"
        assert (await typed("cluster", "drain", "beta")).code == 6


async def test_several_servers_are_kept_apart_as_contexts(db: Database, tmp_path: Path) -> None:
    async with a_terminal(db, tmp_path, works=False) as typed, on_a_port(typed.desk) as url:
        server = url.removesuffix("/api/v1")
        typed.desk.api.state.local = False
        token = await typed.desk.token(Role.VIEWER)
        for name in ("prod", "test"):
            said = await typed.ok("login", server, "--token-stdin", "--name", name, stdin=f"{token}\n")
            assert f"Commands still go to the Holdfast that runs on this machine (data folder {tmp_path})" in said.err
            assert f"HOLDFAST_CONTEXT={name}" in said.err
        apart = {"XDG_CONFIG_HOME": str(tmp_path / "xdg"), "HOLDFAST_CONTEXT": "apart"}
        said = await typed.ok("login", server, "--name", "apart", stdin=f"{token}\n", env=apart)
        assert "Commands still go to" not in said.err
        assert json.loads((tmp_path / "xdg/holdfast/login.json").read_text())["current"] == "apart"
        assert (await typed.ok("context", "ls")).out == (
            f"   NAME  SERVER\n   prod  {server}\n*  test  {server}\n"
        )  # fmt: skip
        await typed.ok("context", "use", "prod")
        assert json.loads((tmp_path / ".config/holdfast/login.json").read_text())["current"] == "prod"
        assert (tmp_path / ".config/holdfast/login.json").stat().st_mode & 0o777 == 0o600
        me = await typed.ok("token", "whoami", env={"HOLDFAST_CONTEXT": "test"})
        assert "viewer" in me.out
        nowhere = await typed("ls", env={"HOLDFAST_CONTEXT": "moon"})
        assert (nowhere.code, "There are: prod, test." in nowhere.err) == (6, True)
        await typed.ok("logout", "prod")
        assert (await typed.ok("context", "ls", "-o", "name")).out == "test\n"


async def test_a_token_that_is_set_is_used_on_the_servers_machine_as_well(db: Database, tmp_path: Path) -> None:
    async with a_terminal(db, tmp_path, works=False) as typed:
        (tmp_path / "certificates.yaml").write_text("certificates: [{names: [x.example.com]}]")
        viewer = {"HOLDFAST_TOKEN": await typed.desk.token(Role.VIEWER, "ada")}
        assert "ada" in (await typed.ok("token", "whoami", env=viewer)).out
        await typed.ok("issue", "app.example.com")
        for words in (("pause", "app.example.com"), ("apply", "-f", str(tmp_path / "certificates.yaml"))):
            refused = await typed(*words, env=viewer)
            assert (refused.code, "forbidden" in refused.err) == (4, True)
        assert (await typed("ls", env={"HOLDFAST_TOKEN": "hf_nobody"})).code == 4


async def test_where_there_is_no_store_the_server_one_is_logged_in_to_is_checked(db: Database, tmp_path: Path) -> None:
    async with a_terminal(db, tmp_path, works=False) as typed, on_a_port(typed.desk) as url:
        typed.desk.api.state.local = False
        token, server = await typed.desk.token(Role.ADMIN), url.removesuffix("/api/v1")
        await typed.ok("login", server, "--token-stdin", "--name", "prod", stdin=f"{token}\n")
        asked = f"The server at {server} was asked"
        assert asked not in (await typed.ok("audit", "verify")).err
        for elsewhere in ({"HOLDFAST_CONTEXT": "prod"}, {"HOLDFAST_STORE_DATA_DIR": str(tmp_path / "empty")}):
            checked = await typed.ok("audit", "verify", env=elsewhere)
            assert (asked in checked.err, "The audit chain holds" in checked.out) == (True, True)
            looked = await typed("doctor", "-o", "json", env=elsewhere)
            assert (asked in looked.err, {row["about"] for row in looked.json}) == (True, {"server"})


async def test_a_copy_of_the_audit_log_is_checked_by_itself_and_against_the_store(db: Database, tmp_path: Path) -> None:
    async with a_terminal(db, tmp_path, works=False) as typed:
        await typed.ok("issue", "app.example.com")
        await typed.ok("pause", "app.example.com")
        copy = tmp_path / "audit.jsonl"
        copy.write_text((await typed.ok("audit", "export")).out)
        both = ("audit", "verify", "--file", str(copy))
        held = await typed.ok(*both, "--against-store")
        assert f"The audit chain holds: {len(copy.read_text().splitlines())} rows" in held.out
        lines = copy.read_text().splitlines(keepends=True)
        copy.write_text("".join(lines[1:]))  # from the second on
        await typed.ok(*both, "--against-store")
        copy.write_text("".join([lines[0], *lines[2:]]))
        assert "row 2 is missing" in (await typed(*both)).out
        copy.write_text("".join(lines).replace("paused", "mended", 1))
        broken = await typed(*both)
        assert (broken.code, "was altered" in broken.out) == (10, True)
        rows = [json.loads(line) | {"actor": "human:mallory"} for line in lines]
        copy.write_text("".join(forged(rows)))
        await typed.ok(*both)  # whoever can write all of it can make a chain that holds
        other = await typed(*both, "--against-store")
        assert (other.code, "row 1 is another one in the store" in other.out) == (10, True)
        copy.write_text("nothing of ours")
        assert (await typed(*both)).code == 1


def forged(rows: list[Any]) -> Iterator[str]:
    previous = ""
    for row in rows:
        details = journal.canonical(row["details"])
        facts = (row["seq"], row["at_us"], row["actor"], row["action"], row["subject"])
        previous = journal.link(previous, *facts, details)
        yield json.dumps(row | {"hash": previous}) + "\n"


async def test_a_plan_is_made_and_carried_out_where_one_is_logged_in(db: Database, tmp_path: Path) -> None:
    async with a_terminal(db, tmp_path, works=False) as typed, on_a_port(typed.desk) as url:
        typed.desk.api.state.local = False
        token, server = await typed.desk.token(Role.ADMIN), url.removesuffix("/api/v1")
        await typed.ok("login", server, "--token-stdin", "--name", "prod", stdin=f"{token}\n")
        file, empty = tmp_path / "certificates.yaml", tmp_path / "empty"
        for elsewhere in ({"HOLDFAST_CONTEXT": "prod"}, {"HOLDFAST_STORE_DATA_DIR": str(empty)}):
            file.write_text((await typed.ok("export", env=elsewhere)).out)
            assert (await typed.ok("plan", "-f", str(file), "--prune", env=elsewhere)).out == ""
        assert not empty.exists()  # nothing was begun here


async def test_help_explains_the_exit_codes_and_every_command(db: Database, tmp_path: Path) -> None:
    async with a_terminal(db, tmp_path, works=False) as typed:
        said = await typed.ok("help", "exit-codes")
        told = {int(number) for number in re.findall(r"^  (\d+) ", said.out, re.MULTILINE)}
        assert told == {0, 1, 2, 3, 4, 5, 6, 10, 130} >= set(main.EXIT_OF_STATUS.values())
        assert (await typed.ok("help")).out.splitlines() == [f"holdfast help {name}" for name in topics.TOPICS]
        assert "Usage: holdfast renew" in (await typed.ok("help", "renew")).out
        assert (await typed("help", "nonsense")).code == 6
        assert (await typed.ok("help", "NOT_DUE")).out.startswith("It is valid, and its renewal is not due yet. ")
        assert "Read it again. More: docs/reference/problems.md" in (await typed.ok("help", "stale")).out


# ── completion ──


async def completed(typed: Terminal, *words: str) -> list[str]:
    return (await typed.ok("__complete", "--", *words)).out.splitlines()


async def test_words_are_completed_with_commands_options_choices_and_live_names(db: Database, tmp_path: Path) -> None:
    async with a_terminal(db, tmp_path, works=False) as typed:
        for name in ("api.example.com", "app.example.com", "www.example.com"):
            await typed.ok("issue", name)
        assert await completed(typed, "re") == ["renew", "restore", "resume", "retry", "revoke"]
        assert await completed(typed, "renew", "ap") == ["api.example.com", "app.example.com"]
        assert await completed(typed, "--quiet", "get", "www") == ["www.example.com"]
        assert await completed(typed, "renew", "--dry") == ["--dry-run"]
        assert await completed(typed, "ls", "-o", "j") == ["json", "jsonl"]
        assert await completed(typed, "token", "c") == ["create"]
        assert "__complete" not in await completed(typed, "")
        assert await completed(typed, "nonsense", "x") == []


async def test_ids_and_names_of_everything_else_are_live_as_well(db: Database, tmp_path: Path) -> None:
    async with a_terminal(db, tmp_path, works=False) as typed:
        await typed.ok("issue", "api.example.com", "--owner", "platform", "--approval")
        await typed.ok("issue", "web.example.com", "--owner", "web")
        token = (await typed.ok("token", "create", "ci", "--role", "viewer", "-o", "json")).json["id"]
        [approval] = (await typed.ok("approvals", "ls", "-o", "json")).json
        jobs = sorted(row["id"] for row in (await typed.ok("jobs", "ls", "-o", "json")).json)
        [notification] = (await typed.ok("notify", "ls", "--dead", "-o", "json")).json
        for words, expected in (
            (["issue", "x.example.com", "--issuer", ""], ["ca"]),
            (["approvals", "approve", "app"], [approval["id"]]),
            (["approvals", "reject", ""], [approval["id"]]),
            (["notify", "show", "no"], [notification["id"]]),
            (["notify", "requeue", ""], [notification["id"]]),
            (["jobs", "show", "job"], jobs),
            (["retry", ""], jobs),
            (["token", "revoke", ""], [token]),
            (["issuer", "show", ""], ["ca"]),
            (["ls", "--owner", "p"], ["platform"]),
        ):
            assert await completed(typed, *words) == expected, words
        replicas = [row["name"] for row in (await typed.ok("cluster", "-o", "json")).json["replicas"]]
        assert await completed(typed, "cluster", "drain", "") == sorted(replicas)


@pytest.mark.parametrize("shell", SCRIPTS)
async def test_each_shell_has_a_script_that_asks_for_the_words(db: Database, tmp_path: Path, shell: str) -> None:
    async with a_terminal(db, tmp_path, works=False) as typed:
        said = await typed.ok("completion", shell)
    assert "holdfast __complete --" in said.out
    assert said.err == ""


async def test_in_a_real_bash_the_script_offers_what_the_program_says(tmp_path: Path) -> None:
    fake = tmp_path / "holdfast"
    fake.write_text('#!/bin/sh\nshift 2\nprintf "%s\\n" "saw:$*" other\n')
    fake.chmod(0o755)
    script = f"""{SCRIPTS["bash"]}
COMP_WORDS=(holdfast renew ap); COMP_CWORD=2; _holdfast; printf '%s|' "${{COMPREPLY[@]}}" """
    process = await asyncio.create_subprocess_exec(
        "bash", "-c", script, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert out.decode() == "saw:renew ap|other|"


def test_no_time_in_a_transcript_depends_on_the_hour() -> None:
    later = NOW + timedelta(hours=11, minutes=7)
    row = a_row(next_attempt_at=(later + timedelta(hours=3, minutes=12)).isoformat())
    assert plain(shown.block(row, NOW)).splitlines()[3] == plain(shown.block(row, later)).splitlines()[3]
