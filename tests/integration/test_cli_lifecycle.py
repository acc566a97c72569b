"""The commands about certificates, each in a process of its own, against the real API on its local socket."""

import asyncio
import json
import re
import signal
import stat
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from tests.support.api import Desk, a_desk, another, on_a_port, on_a_socket
from tests.support.commands import Said, typed
from tests.support.engine import PATIENCE
from tests.support.processes import Served, environment
from tests.support.reaper import until

from holdfast.core.access import Role
from holdfast.core.target import TargetRow
from holdfast.errors import Refused
from holdfast.operations.installation import tokens
from holdfast.operations.installation.tokens import Grant
from holdfast.secret import Secret
from holdfast.store.database import Database, Engine
from holdfast.store.deployments import targets
from holdfast.store.sqlite import SqliteEngine
from holdfast.world import LocalFiles, SystemClock, SystemRandom

pytestmark = pytest.mark.anyio
NAME = "www.example.com"


@pytest.fixture
def make_engine(tmp_path: Path) -> Callable[[], Engine]:
    """One store is enough here: what commands speak to is tested on both."""
    return lambda: SqliteEngine(tmp_path / "holdfast.sqlite", SystemClock())


@dataclass
class Shell:
    """Somebody at a terminal on the server's machine."""

    desk: Desk
    folder: Path

    async def start(self, *args: str, env: dict[str, str] | None = None) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "holdfast.cli.main", *args,
            env=self._environment(env),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip

    def _environment(self, env: dict[str, str] | None) -> dict[str, str]:
        return environment(self.folder, {}) | {"HOME": str(self.folder)} | (env or {})

    async def __call__(self, *args: str, env: dict[str, str] | None = None, stdin: str = "") -> Said:
        return await typed(*args, env=self._environment(env), stdin=stdin)

    async def ok(self, *args: str, **more: Any) -> Said:
        said = await self(*args, **more)
        assert said.code == 0, said.err
        return said


@asynccontextmanager
async def a_shell(db: Database, folder: Path, *, works: bool = True, **manner: Any) -> AsyncIterator[Shell]:
    async with a_desk(db, folder, local=True, **manner) as desk, on_a_socket(desk, folder):
        if not works:
            yield Shell(desk, folder)
            return
        async with desk.house.working():
            yield Shell(desk, folder)


async def test_a_certificate_is_issued_shown_renewed_and_revoked(db: Database, tmp_path: Path) -> None:
    async with a_shell(db, tmp_path) as shell:
        made = await shell.ok("issue", NAME, "10.0.0.1", "--owner", "platform", "--label", "team=web", "--wait")
        assert made.out.splitlines()[0].startswith(f"{NAME}   OK   expires in 89 d 23 h (20")
        assert "issuance" not in made.out
        assert f"{NAME}: pending, " in made.err
        [row] = (await shell.ok("ls", "-o", "json")).json
        assert (row["names"], row["owner"], row["labels"]) == ([NAME, "10.0.0.1"], "platform", {"team": "web"})
        assert row["changed_by"].startswith("local:")
        again = await shell.ok("issue", NAME, "10.0.0.1")
        assert "is there already" in again.err
        other = await shell("issue", NAME, "10.0.0.1", "--key", "rsa-2048", "--owner", "platform", "--label", "team=db")
        assert (other.code, "is there already, with other key, labels; it is as it was" in other.err) == (5, True)
        renewed = await shell.ok("renew", NAME, "--wait", "-o", "json")
        assert renewed.json["serial"] != row["serial"]
        unsure = await shell("revoke", NAME, "--reason", "superseded")
        assert unsure.code == 1
        assert "--yes" in unsure.err
        await shell.ok("revoke", NAME, "--reason", "superseded", "--yes", "--wait")
        await shell.desk.house.until_no_job("revoke")
        assert len(shell.desk.house.cas["ca"].revoked) == 1
        waited = await shell.ok("wait", NAME)
        assert waited.out == ""


async def test_every_format_says_the_same(db: Database, tmp_path: Path) -> None:
    async with a_shell(db, tmp_path) as shell:
        for name in ("a.example.com", "b.example.com"):
            await shell.ok("issue", name, "--wait")
        table = (await shell.ok("ls")).out.splitlines()
        assert table[0].split() == ["NAME", "PHASE", "EXPIRES", "NEXT", "REASON"]
        assert re.match(r"a\.example\.com  OK +in 89 d 23 h \(\d{4}-\d\d-\d\dT\d\d:\d\dZ\)  in ", table[1])
        assert "\x1b" not in "".join(table)
        assert "LABELS" in (await shell.ok("ls", "-o", "wide")).out
        assert (await shell.ok("ls", "-o", "name")).out == "a.example.com\nb.example.com\n"
        lines = (await shell.ok("ls", "-o", "jsonl")).out.splitlines()
        assert [json.loads(line)["name"] for line in lines] == ["a.example.com", "b.example.com"]
        assert (await shell.ok("ls", "-o", "yaml")).out.startswith("- id: certificate_")
        assert (await shell.ok("ls", "b.ex", "-o", "name")).out == "b.example.com\n"
        nothing = await shell.ok("ls", "--failing")
        assert (nothing.out, "no such certificates" in nothing.err) == ("", True)
        assert (await shell.ok("ls", "--expiring", "14d", "-o", "json")).json == []
        assert len((await shell.ok("ls", "--expiring", "13w", "-o", "json")).json) == 2
        full = (await shell.ok("get", "a.example.com")).out
        assert "serial" in full


async def test_a_failure_is_told_with_its_reason_and_the_next_attempt(db: Database, tmp_path: Path) -> None:
    async with a_shell(db, tmp_path) as shell:
        await shell.ok("issue", NAME, "--wait")
        shell.desk.house.cas["ca"].always["place"] = Refused("names are not allowed", reason="CA_REFUSED")
        failed = await shell("renew", NAME, "--wait")
        assert failed.code == 1
        assert "FAILING" in failed.out
        assert "names are not allowed" in failed.out
        block = (await shell.ok("status", NAME)).out.splitlines()
        assert [line.split()[0] for line in block] == [NAME, "phase", "reason", "next", "now"]
        assert "1 failed attempt in a row" in block[1]
        assert re.search(r"CA_REFUSED  names are not allowed  since .* ago .*, last failure .* ago", block[2])
        assert re.search(r"in \d+ d( \d+ h)? \(20.*Z\)", block[3])
        assert (await shell("status", NAME, "--check")).code == 10
        fleet = await shell("status", "--check")
        assert (fleet.code, NAME in fleet.out) == (10, True)
        explained = (await shell.ok("explain", NAME)).out
        assert "back-off" in explained
        later = (await shell.ok("explain", NAME, "--at", "80d")).out
        assert later.startswith("Due")
        assert (await shell("explain", NAME, "--at", "tomorrow")).code == 2


async def test_the_exit_code_says_what_happened(db: Database, tmp_path: Path) -> None:
    async with a_shell(db, tmp_path, works=False) as shell:
        missing = await shell("get", "nobody.example.com")
        assert missing.code == 6
        assert "no-such-certificate, request req_" in missing.err
        await shell.ok("issue", NAME)
        late = await shell("wait", NAME, "--timeout", "1")
        assert late.code == 3
        assert f"holdfast wait {NAME}" in late.err or "still under way" in late.err
        await shell.ok("cancel", NAME, "--why", "enough")
        assert (await shell("cancel", NAME)).code == 5
        assert (await shell("retry", "job_nothing")).code == 6
        assert (await shell("issue")).code == 2
        assert (await shell("renew", NAME, "--colour", "red")).code == 2
        refused = await shell("issue", "a.*.example.com")
        assert refused.code == 1
        assert refused.out == ""


async def test_who_waits_for_it_to_be_served_is_told_how_to_go_on_waiting_for_that(
    db: Database, tmp_path: Path
) -> None:
    async with a_shell(db, tmp_path) as shell:
        await db.write(lambda tx: targets.insert(tx, TargetRow(name="web-1", kind="files", created_at=tx.now())))
        await shell.ok("issue", NAME, "--target", "web-1", "--wait")
        late = await shell("wait", NAME, "--for", "served", "--timeout", "1")
        assert late.code == 3, late.err
        assert f"It is still under way. Go on waiting: holdfast wait {NAME} --for served" in late.err
        assert (await shell.ok("wait", NAME)).code == 0, "it is issued"


async def test_a_dry_run_changes_nothing_and_a_repeated_key_happens_once(db: Database, tmp_path: Path) -> None:
    async with a_shell(db, tmp_path, works=False) as shell:
        dry = await shell.ok("issue", NAME, "--dry-run")
        assert "Nothing was changed" in dry.err
        assert (await shell.ok("ls", "-o", "json")).json == []
        first = await shell.ok("issue", NAME, "--idempotency-key", "k", "-o", "json")
        again = await shell.ok("issue", NAME, "--idempotency-key", "k", "-o", "json")
        assert first.json == again.json


async def test_a_second_person_is_asked(db: Database, tmp_path: Path) -> None:
    async with a_shell(db, tmp_path) as shell:
        await shell.ok("issue", NAME, "--approval")
        [waiting] = (await shell.ok("approvals", "ls", "-o", "json")).json
        assert waiting["name"] == NAME
        own = await shell("approvals", "approve", waiting["id"])
        assert own.code == 4
        assert "another person" in own.err
        await shell.ok("approvals", "reject", waiting["id"], "--note", "not yet", "--yes")
        assert "Nothing waits" in (await shell.ok("approvals", "ls")).err
        assert "APPROVAL_REJECTED" in (await shell.ok("status", NAME)).out


async def test_tokens_let_commands_in_from_elsewhere(db: Database, tmp_path: Path) -> None:
    async with a_shell(db, tmp_path, works=False) as shell:
        made = await shell.ok("token", "create", "ci", "--kind", "robot", "--role", "viewer")
        token = made.out.strip()
        assert re.fullmatch(r"hf_[0-9a-z]{26}_[\w-]{43}", token)
        assert token not in made.err
        async with a_desk_elsewhere(shell.desk) as url:
            there = {"HOLDFAST_SERVER_URL": url, "HOLDFAST_TOKEN": token}
            assert (await shell.ok("token", "whoami", env=there)).out.split()[1] == "robot:ci"
            assert (await shell("issue", NAME, env=there)).code == 4
            assert (await shell("ls", env={**there, "HOLDFAST_TOKEN": "nonsense"})).code == 4
            await shell.ok("config", "show", env=there)  # they are no settings, and no mistakes either
            without = await shell("ls", env={"HOLDFAST_SERVER_URL": url})
            assert "HOLDFAST_TOKEN" in without.err
            [row] = (await shell.ok("token", "ls", "-o", "json")).json
            await shell.ok("token", "revoke", row["id"], "--yes")
            assert (await shell("ls", env=there)).code == 4


@asynccontextmanager
async def a_desk_elsewhere(desk: Desk) -> AsyncIterator[str]:
    """The same house behind a port, where a token is wanted."""
    async with (
        httpx2.AsyncClient(timeout=PATIENCE) as http,
        on_a_port(Desk(desk.house, desk.services, another(desk.services), http)) as url,
    ):
        yield url


async def test_a_key_is_fetched_into_a_file_that_others_cannot_read(db: Database, tmp_path: Path) -> None:
    async with a_shell(db, tmp_path) as shell:
        await shell.ok("issue", NAME, "--wait")
        assert (await shell.ok("fetch", NAME)).out.startswith("-----BEGIN CERTIFICATE")
        assert (await shell("fetch", NAME, "--form", "pem")).code == 1
        folder = tmp_path / "out"
        folder.mkdir()
        said = await shell.ok("fetch", NAME, "--form", "pem", "--to", str(folder))
        assert "PRIVATE" not in said.out + said.err
        key = load_pem_private_key((folder / "key.pem").read_bytes(), None)
        leaf = x509.load_pem_x509_certificate((folder / "chain.pem").read_bytes())
        assert key.public_key() == leaf.public_key()
        assert stat.S_IMODE((folder / "key.pem").stat().st_mode) == 0o600
        await shell.ok("fetch", NAME, "--form", "pkcs12", "--passphrase-stdin", "--to", str(folder), stdin="sesame\n")
        assert (folder / "bundle.p12").stat().st_size > 0


async def test_the_product_keeps_a_certificate_of_its_own_ca(tmp_path: Path) -> None:
    """`holdfast serve` as it is, and commands beside it."""
    with Served(tmp_path, {"SERVER_LISTEN": "0.0.0.0:0"}) as server:
        await asyncio.to_thread(server.wait_until_ready)
        [warned] = server.events("server.in_the_clear")
        assert "server.trusted_proxies" in warned["fix"]
        left = tmp_path / "first-token"
        assert server.wait_for_event("holdfast.first_token_written")["path"] == str(left)
        first = left.read_text().strip()
        assert stat.S_IMODE(left.stat().st_mode) == 0o600
        shell = Shell(None, tmp_path)  # type: ignore[arg-type]
        made = await shell.ok("issue", "www.example.internal", "10.0.0.1", "--wait", "--timeout", "60", "-o", "json")
        assert made.json["status"]["phase"] == "ok"
        again = await shell.ok("renew", "www.example.internal", "--wait", "--timeout", "60", "-o", "json")
        assert again.json["serial"] != made.json["serial"]
        status = (await shell.ok("status")).out
        assert "1 active" in status
        token = (await shell.ok("token", "create", "me", "--role", "viewer")).out.strip()
        there = {"HOLDFAST_SERVER_URL": server.url, "HOLDFAST_TOKEN": token}
        assert (await shell.ok("ls", "-o", "name", env=there)).out == "www.example.internal\n"
        assert token not in server.output()
        assert first not in server.output()
        await asyncio.to_thread(
            until, lambda: not left.exists(), "the file of the first token is gone, now that somebody was let in"
        )


async def test_the_first_token_is_left_in_a_file_until_it_is_used_or_replaced(db: Database, tmp_path: Path) -> None:
    files, random = LocalFiles(), SystemRandom()
    left = await tokens.leave_first_token(db, random, files, tmp_path / "one")
    assert left is not None
    assert await tokens.remove_first_token(db, files, tmp_path / "one") == 0
    other = await tokens.leave_first_token(db, random, files, tmp_path / "two")  # of another replica
    assert other is not None
    assert [await tokens.remove_first_token(db, files, each.parent) for each in (left, other)] == [1, 0]
    who = await tokens.authenticate(db, Secret(other.read_text().strip()))
    await db.write(lambda tx: tokens.create(tx, tokens.drawn(random), Grant(name="me", role=Role.ADMIN), by=who))
    assert await tokens.remove_first_token(db, files, tmp_path / "two") == 1
    assert await tokens.leave_first_token(db, random, files, tmp_path / "two") is None
    assert not left.exists()
    assert not other.exists()


async def test_the_first_token_logs_an_admin_in_from_elsewhere(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk, on_a_port(desk) as url:
        home = {"HOME": str(tmp_path / "home")}
        shell = Shell(desk, tmp_path / "nothing-here")
        first = await tokens.first(db, desk.house.certificate_context.random)
        assert first is not None
        server = url.removesuffix("/api/v1")
        assert (await shell("login", server, "--token-stdin", env=home, stdin="nonsense\n")).code == 4
        said = await shell.ok("login", server, env=home, stdin=f"{first.reveal()}\n")  # piped in: nothing is asked
        assert "(admin)" in said.err
        assert "Warning" not in said.err
        assert "Commands still go to" not in said.err
        [kept] = (tmp_path / "home").rglob("*.json")
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
        assert first.reveal() not in kept.read_text()
        assert (await shell.ok("ls", "-o", "json", env=home)).json == []
        other = await shell("ls", "--server", "http://127.0.0.1:9", env=home)
        assert "needs a token" in other.err  # which goes to no other server
        await shell.ok("logout", env=home)
        assert (await shell("ls", env=home)).code == 1


async def test_without_a_server_it_says_how_to_get_one(tmp_path: Path) -> None:
    shell = Shell(None, tmp_path)  # type: ignore[arg-type]
    said = await shell("ls")
    assert said.code == 1
    assert "holdfast serve" in said.err


async def test_events_are_shown_and_followed(db: Database, tmp_path: Path) -> None:
    async with a_shell(db, tmp_path) as shell:
        await shell.ok("issue", NAME, "--wait")
        shown = (await shell.ok("events", NAME, "-o", "json")).json
        assert [each["name"] for each in shown][-1] == "certificate.activated"
        following = await shell.start("events", "-f", "--after", "0", "-o", "jsonl")
        assert following.stdout is not None
        async with asyncio.timeout(PATIENCE):
            seen = [json.loads(await following.stdout.readline())["name"] for _ in range(len(shown) + 1)]
            following.send_signal(signal.SIGINT)
            _, err = await following.communicate()
        assert seen[-len(shown) :] == [each["name"] for each in shown]  # after that the CA was added
        assert following.returncode == 130
        assert "holdfast events -f --after" in err.decode()


async def test_cas_are_added_with_their_secret_from_stdin(db: Database, tmp_path: Path) -> None:
    async with a_shell(db, tmp_path, works=False) as shell:
        added = await shell.ok(
            "issuer", "add", "letsencrypt", "le", "--eab-kid", "k1", "--credential", "eab_key=-", stdin="sesame\n"
        )
        assert "sesame" not in added.out + added.err
        assert "acme-v02" in added.out
        await shell.ok("issuer", "pause", "le")
        rows = {row["name"]: row for row in (await shell.ok("issuer", "ls", "-o", "json")).json}
        assert (rows["le"]["state"], rows["le"]["credentials"]) == ("paused", ["eab_key"])
        assert (await shell.ok("issuer", "test", "ca")).out == "fine\n"
        assert "several issuers" in (await shell("issue", NAME)).err


async def test_two_roles_see_two_things(db: Database, tmp_path: Path) -> None:
    async with a_shell(db, tmp_path, works=False) as shell:
        await shell.ok("issue", "a.example.com", "--owner", "mine")
        await shell.ok("issue", "b.example.com", "--owner", "theirs")
        token = await shell.desk.token(Role.OPERATOR, owners=("mine",))
        async with a_desk_elsewhere(shell.desk) as url:
            there = {"HOLDFAST_SERVER_URL": url, "HOLDFAST_TOKEN": token}
            assert (await shell.ok("ls", "-o", "name", env=there)).out == "a.example.com\n"
            assert (await shell("renew", "b.example.com", env=there)).code == 6
