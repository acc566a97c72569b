"""`holdfast notify` against the real API on its local socket, and against real inboxes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.support.api import Desk, a_desk, on_a_socket
from tests.support.channels import KEY, PATH, draining
from tests.support.commands import Said, typed
from tests.support.hostile_texts import HOSTILE
from tests.support.inboxes import Answer, Inbox, Mailbox, well_signed
from tests.support.messages import a_notification, owe
from tests.support.processes import environment

from holdfast.core.notifications.notification import NotificationState
from holdfast.store import journal
from holdfast.store.database import Database, Engine
from holdfast.store.sqlite import SqliteEngine
from holdfast.world import SystemClock

pytestmark = pytest.mark.anyio


@pytest.fixture
def make_engine(tmp_path: Path) -> Callable[[], Engine]:
    """One store is enough here: what commands speak to is tested on both."""
    return lambda: SqliteEngine(tmp_path / "holdfast.sqlite", SystemClock())


@dataclass
class Shell:
    """Somebody at a terminal on the server's machine."""

    desk: Desk
    folder: Path

    async def __call__(self, *args: str, stdin: str = "", **env: str) -> Said:
        return await typed("notify", *args, stdin=stdin, env=environment(self.folder, {}) | env)

    async def ok(self, *args: str, **more: Any) -> Said:
        said = await self(*args, **more)
        assert said.code == 0, said.err
        return said


@asynccontextmanager
async def a_shell(db: Database, folder: Path) -> AsyncIterator[Shell]:
    async with a_desk(db, folder, local=True) as desk, on_a_socket(desk, folder):
        yield Shell(desk, folder)


async def test_a_channel_is_added_tried_paused_and_removed(db: Database, tmp_path: Path) -> None:
    async with a_shell(db, tmp_path) as shell, Inbox() as web, Mailbox() as mail:
        (tmp_path / "url").write_text(web.url(PATH) + "\n")
        empty = await shell.ok("channel", "ls")
        assert (empty.out, "people are told nothing" in empty.err) == ("", True)
        made = await shell.ok("channel", "add", "hook", "--kind", "webhook", "--credential", f"url={tmp_path / 'url'}",
                              "--credential", "secret=new:", "--severity", "critical", "--digest", "1h")  # fmt: skip
        [secret] = [line.split()[1] for line in made.out.splitlines() if line.startswith("secret")]
        assert "See that it arrives: holdfast notify test hook" in made.err
        assert PATH not in made.out
        tested = await shell.ok("test", "hook")
        assert "hook" in tested.out
        assert well_signed(web.requests[0], secret, now=SystemClock().now().timestamp())
        settings = {"host": "127.0.0.1", "port": mail.port, "security": "none", "from": "a@x.example"}
        words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        await shell.ok("channel", "add", "mail", "--kind", "email", *words, "--set", 'to=["b@x.example"]')
        await shell.ok("channel", "set", "hook", "--fallback", "mail", "--rate", "30/1m", "--digest", "never")
        [hook, post] = (await shell.ok("channel", "ls", "-o", "json")).json
        assert (hook["fallback"], hook["rate"], hook["digest_every_s"]) == ("mail", {"burst": 30, "every_s": 2.0}, None)
        assert (hook["severities"], post["settings"]["to"]) == (["critical"], ["b@x.example"])
        await shell.ok("channel", "pause", "mail")
        table = (await shell.ok("channel", "ls")).out.splitlines()
        assert [line.split()[:3] for line in table[1:]] == [["hook", "webhook", "ok"], ["mail", "email", "paused"]]
        await shell.ok("channel", "resume", "mail")
        needed = await shell("channel", "rm", "mail", "--yes")
        assert "Channel mail is the fallback of hook." in needed.err
        [way_out] = [line.partition(": holdfast notify ")[2] for line in needed.err.splitlines() if "hint:" in line]
        await shell.ok(*way_out.partition(" [")[0].split())
        unsure = await shell("channel", "rm", "mail")
        assert (unsure.code, "--yes" in unsure.err) == (1, True)
        await shell.ok("channel", "rm", "mail", "--yes")
        assert (await shell("channel", "show", "mail")).code == 6


async def test_a_test_that_fails_says_why_and_exits_with_1(db: Database, tmp_path: Path) -> None:
    async with a_shell(db, tmp_path) as shell, Inbox(Answer(403, body=b"invalid_token")) as web:
        await shell.ok("channel", "add", "chat", "--kind", "slack", "--credential", "url=env:CHAT", CHAT=web.url(PATH))
        said = await shell("test", "chat")
        assert said.code == 1
        assert "does not let us in (403: invalid_token). Set the credential url" in said.out
        assert PATH not in said.out + said.err


async def test_what_is_wrong_is_said_before_anything_is_kept(db: Database, tmp_path: Path) -> None:
    async with a_shell(db, tmp_path) as shell:
        wrong = await shell("channel", "add", "mail", "--kind", "email", "--set", "host=m.example", "--set", "from=x")
        assert (wrong.code, "to is missing" in wrong.err) == (1, True)
        secret = await shell(
            "channel", "add", "h", "--kind", "webhook", "--credential", "url=-", stdin="https://h.example"
        )
        assert (secret.code, "the credential secret is missing" in secret.err) == (1, True)
        missing = await shell("channel", "add", "h", "--kind", "slack", "--credential", f"url={tmp_path / 'none'}")
        assert (missing.code, "There is no file" in missing.err) == (1, True)
        both = await shell("requeue", "notification_1", "--all")
        assert (both.code, "--all" in both.err) == (2, True)
        nothing = await shell("resolve", "notification_1")
        assert (nothing.code, "--note" in nothing.err) == (2, True)


async def test_dead_letters_that_no_channel_wants_are_not_nothing(db: Database, tmp_path: Path) -> None:
    async with a_shell(db, tmp_path) as shell:
        assert "nothing to send again" in (await shell.ok("requeue", "--all", "--yes")).err
        await db.write(lambda tx: journal.event(tx, "store.failover", "store"))
        for how in (("--all", "--yes"), ("--dead",), ("--dead", "--dry-run")):
            said = (await shell.ok("requeue", *how)).err
            assert "1 message that is dead cannot be sent again: no channel wants it." in said
            assert "holdfast notify channel add" in said


async def test_dead_letters_are_listed_shown_requeued_and_resolved(db: Database, tmp_path: Path) -> None:
    async with a_shell(db, tmp_path) as shell, Inbox() as web:
        await shell.ok("channel", "add", "ops", "--kind", "webhook", "--credential", "url=-", "--credential",
                       "secret=env:KEY", stdin=web.url(PATH), KEY=KEY)  # fmt: skip
        assert (await shell.ok("ls", "--dead", "--check")).out == ""
        await owe(
            db,
            a_notification(id="notification_1", message="m1"),
            a_notification(id="notification_2", message="m2", channel="gone"),
            a_notification(id="notification_3", message="m3", state=NotificationState.SENT, why=None),
        )
        listed = await shell("ls", "--dead", "--check")
        assert listed.code == 10
        assert [line.split()[0] for line in listed.out.splitlines()] == ["ID", "notification_2", "notification_1"]
        shown = (await shell.ok("show", "notification_1")).out
        assert "dead (ATTEMPTS_USED_UP)" in shown
        assert "holdfast notify test ops   |   holdfast notify requeue notification_1" in shown
        tried = await shell.ok("requeue", "--dead", "--dry-run")
        assert "1 message would be sent again." in tried.err
        unsure = await shell("requeue", "--all")
        assert (unsure.code, "This sends 1 message again." in unsure.err) == (1, True)
        sent = await shell.ok("requeue", "--all", "--yes")
        assert "1 message will be sent again." in sent.err
        async with draining(shell.desk):
            await shell.desk.house.until(lambda: web.requests)
        assert [call.headers["webhook-id"] for call in web.requests] == ["notification_1"]
        await shell.ok("resolve", "notification_2", "--note", "told by phone")
        settled = (await shell.ok("show", "notification_2", "-o", "json")).json
        assert (settled["state"], settled["note"]) == ("resolved", "told by phone")
        assert "requeue" in (await shell.ok("show", "notification_1")).out
        unsure = await shell("resolve", "--all", "--note", "known")
        assert unsure.code == 0, "there is no dead letter left to ask about"
        assert (await shell("requeue", "notification_9")).code == 6
        assert (await shell("requeue", "notification_2")).code == 5


async def test_a_hostile_name_gives_a_terminal_no_orders(db: Database, tmp_path: Path) -> None:
    async with a_shell(db, tmp_path) as shell:
        texts = [text for text in HOSTILE.values() if "\x00" not in text and "\ud800" not in text]
        text = "".join(texts)
        await owe(db, a_notification(title=text, text=text, name=text, last_error=text, facts={"CA": text}))
        for args in (["ls", "-o", "wide"], ["show", "notification_01"]):
            out = (await shell.ok(*args)).out
            assert [char for char in out if not char.isprintable() and char != "\n"] == []
