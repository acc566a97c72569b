"""Channels over the API: added, changed, tried out, removed; credentials go in and never come out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.api import a_desk
from tests.support.channels import KEY, a_webhook, draining, states
from tests.support.engine import PATIENCE
from tests.support.inboxes import Answer, Inbox, Mailbox, well_signed
from tests.support.messages import a_notification, owe
from tests.support.secrets_planted import MARK, MISPLACED_HOOK_KEY, NEW_HOOK_KEY

from holdfast.core.notifications.notification import NotificationState
from holdfast.operations.notifications import routing
from holdfast.store.database import Database, Engine
from holdfast.store.sqlite import SqliteEngine
from holdfast.world import SystemClock

pytestmark = pytest.mark.anyio
NEW_KEY = NEW_HOOK_KEY


@pytest.fixture
def make_engine(tmp_path: Path) -> Callable[[], Engine]:
    """One store is enough here: the operations are tested on both."""
    return lambda: SqliteEngine(tmp_path / "holdfast.sqlite", SystemClock())


async def test_a_channel_is_added_shown_changed_paused_and_removed(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk, Inbox() as web:
        admin = await desk.as_()
        await admin.post("/channels", a_webhook(web, "spare"))
        more = {"severities": ["critical"], "owners": ["web"], "labels": {"team": "x"}, "fallback": "spare"}
        made = await admin.post("/channels", a_webhook(web, digest_every_s=3600, heartbeat_every_s=86400, **more))
        assert {name: made[name] for name in more} == more
        assert (made["digest_every_s"], made["heartbeat_every_s"], made["state"]) == (3600, 86400, "active")
        assert made["credentials"] == ["secret", "url"]
        answer = await admin("GET", "/channels/ops")
        assert (answer.json(), answer.headers["etag"]) == (made, '"1"')
        assert [each["name"] for each in await admin.get("/channels")] == ["ops", "spare"]
        for dry_run in (True, False):
            kept = await admin("DELETE", "/channels/spare", dry_run=dry_run)
            assert (kept.status_code, kept.json()["code"]) == (409, "channel-in-use")
        change = {"severities": ["info", "critical"], "fallback": None, "rate": {"burst": 2, "every_s": 5}}
        assert (await admin("PATCH", "/channels/ops", change)).status_code == 428
        stale = await admin("PATCH", "/channels/ops", change, headers={"If-Match": '"7"'})
        assert (stale.status_code, stale.json()["code"]) == (412, "channel-changed")
        changed = (await admin("PATCH", "/channels/ops", change, headers={"If-Match": '"1"'})).json()
        assert (changed["severities"], changed["fallback"], changed["owners"]) == (["info", "critical"], None, ["web"])
        assert (changed["rate"], changed["version"]) == ({"burst": 2, "every_s": 5.0}, 2)
        assert (await admin.post("/channels/ops/pause"))["state"] == "paused"
        assert (await admin.post("/channels/ops/resume"))["state"] == "active"
        await owe(db, a_notification(state=NotificationState.PENDING, why=None))
        more_than_a_page = (
            a_notification(id=f"notification_x{n}", message=f"x{n}", state=NotificationState.PENDING)
            for n in range(250)
        )
        await owe(db, *more_than_a_page)
        async with asyncio.timeout(PATIENCE):
            tried = await admin("DELETE", "/channels/ops", dry_run=True)
        assert tried.json() == {"number": 251}
        assert (await admin("DELETE", "/channels/ops")).json() == {"number": 251}
        assert (await admin("GET", "/channels/ops")).json()["code"] == "no-such-channel"
        rows = (await admin.get("/notifications", channel="ops"))["items"]
        assert {(each["state"], each["dead_because"]) for each in rows} == {("dead", "CHANNEL_GONE")}


async def test_credentials_go_in_and_never_come_out(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk, Inbox(Answer(403, echo=True)) as web:
        admin = await desk.as_()
        answers = [await admin("POST", "/channels", a_webhook(web)), await admin("POST", "/channels", a_webhook(web))]
        answers += [await admin("GET", "/channels"), await admin("GET", "/channels/ops")]
        answers += [
            await admin("POST", "/channels/ops/test"),
            await admin("GET", "/audit"),
            await admin("GET", "/events"),
        ]
        bad = a_webhook(web, "bad")
        bad["credentials"]["secret"] = MISPLACED_HOOK_KEY
        answers += [await admin("POST", "/channels", bad)]
        assert [each.status_code for each in answers] == [201, 409, 200, 200, 200, 200, 200, 400]
        assert [each.text for each in answers if MARK in each.text or KEY in each.text] == []
        rows = await db.read(lambda tx: [tx.rows(f"SELECT * FROM {table}") for table in ("channels", "secrets")])
        assert "sentinel" not in repr(rows)


async def test_settings_are_checked_before_a_channel_is_kept(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk, Inbox() as web:
        admin = await desk.as_()
        wrong: list[tuple[dict[str, Any], int, str]] = [
            ({"name": "x", "kind": "smoke"}, 400, "There is no kind of channel 'smoke'."),
            ({"name": "x", "kind": "slack"}, 400, "the credential url is missing"),
            ({"name": "x", "kind": "slack", "settings": {"url": "https://x"}}, 400, "url is a credential"),
            ({"name": "x", "kind": "email", "settings": {"host": "m"}}, 400, "from and to are missing"),
            (a_webhook(web, fallback="nobody"), 404, "There is no channel named 'nobody'."),
            (a_webhook(web, fallback="ops"), 400, "cannot be its own fallback"),
            (a_webhook(web, "UPPER"), 422, "name: It has 1 to 63 lower-case letters"),
            (a_webhook(web, digest_every_s=1), 422, "digest_every_s"),
            (a_webhook(web, severities=[]), 422, "severities"),
            (a_webhook(web, colour="red"), 422, "colour"),
        ]
        for body, status, words in wrong:
            answer = await admin("POST", "/channels", body)
            assert (answer.status_code, words in answer.json()["detail"]) == (status, True), answer.text
        assert await admin.get("/channels") == []
        await admin.post("/channels", a_webhook(web))
        bad = {"credentials": {"url": "ftp://x"}}
        answer = await admin("PATCH", "/channels/ops", bad, headers={"If-Match": "*"})
        assert "the credential url must" in answer.json()["detail"]
        missing = await admin("PATCH", "/channels/ops", {"credentials": {"url": None}}, headers={"If-Match": "*"})
        assert "the credential url is missing" in missing.json()["detail"]


async def test_a_new_secret_signs_beside_the_old_one_until_that_is_taken_away(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk, Inbox() as web:
        admin = await desk.as_()
        await admin.post("/channels", a_webhook(web))

        async def change(credentials: dict[str, str | None]) -> None:
            answer = await admin("PATCH", "/channels/ops", {"credentials": credentials}, headers={"If-Match": "*"})
            assert answer.status_code == 200, answer.text
            assert (await admin.post("/channels/ops/test"))["ok"]

        await change({"secret": NEW_KEY})
        await change({"old_secret": None})
        now = SystemClock().now().timestamp()
        both, new = web.requests
        assert (well_signed(both, KEY, now=now), well_signed(both, NEW_KEY, now=now)) == (True, True)
        assert (well_signed(new, KEY, now=now), well_signed(new, NEW_KEY, now=now)) == (False, True)
        kept = await db.read(lambda tx: tx.rows("SELECT COUNT(*) AS n FROM secrets"))
        assert (await admin.get("/channels/ops"))["credentials"] == ["secret", "url"]
        await change({"url": web.url("/other")})
        assert await db.read(lambda tx: tx.rows("SELECT COUNT(*) AS n FROM secrets")) == kept  # none is left behind


async def test_a_setting_is_merged_and_null_takes_it_away(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk, Mailbox() as mail:
        admin = await desk.as_()
        settings = {
            "host": "127.0.0.1",
            "port": mail.port,
            "security": "none",
            "from": "a@x.example",
            "to": "b@x.example",
        }
        await admin.post("/channels", {"name": "mail", "kind": "email", "settings": {**settings, "hello": "x.example"}})
        change = {"settings": {"to": ["c@x.example"], "hello": None}}
        changed = (await admin("PATCH", "/channels/mail", change, headers={"If-Match": "*"})).json()
        assert changed["settings"] == {**settings, "to": ["c@x.example"]}
        told = await admin.post("/channels/mail/test")
        assert told["ok"]
        assert mail.letters[0].recipients == ["c@x.example"]


async def test_a_test_goes_by_the_same_way_and_says_what_happened(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk, Inbox() as web:
        admin = await desk.as_()
        await admin.post("/channels", a_webhook(web))
        told = await admin.post("/channels/ops/test")
        assert told["ok"]
        assert web.requests[0].json()["type"] == "test"
        web.answers = [Answer(404), Answer(503), Answer(429)]
        for words in ("has nothing at this address (404", "answered 503", "too many messages (429)"):
            told = await admin.post("/channels/ops/test")
            assert (told["ok"], words in told["detail"]) == (False, True), told
        assert (await admin("POST", "/channels/none/test")).status_code == 404


async def test_a_channel_in_trouble_is_shown_and_a_test_that_goes_well_ends_it(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk, Inbox(Answer(503, body=b"down for lunch")) as web:
        admin = await desk.as_()
        await admin.post("/channels", a_webhook(web))
        await owe(db, *(a_notification(id=f"notification_{n}", message=f"m{n}") for n in range(4)))
        await admin.post("/dead-letters/requeue", {"all": True})
        async with draining(desk):

            async def down() -> bool:
                return bool((await admin.get("/channels/ops"))["breaker_open"])

            await desk.house.until(down)
            row = await admin.get("/channels/ops")
            assert "answered 503: down for lunch" in row["breaker_error"]
            assert row["down_since"] is not None
            assert "dead" not in (await states(admin)).values()
            web.usual = Answer()
            assert (await admin.post("/channels/ops/test"))["ok"]
            assert not (await admin.get("/channels/ops"))["breaker_open"]


async def test_a_mailbox_that_says_later_gets_the_letter_later_and_a_test_names_it(
    db: Database, tmp_path: Path
) -> None:
    async with a_desk(db, tmp_path) as desk, Mailbox() as mail:
        admin = await desk.as_()
        settings = {"host": "127.0.0.1", "port": mail.port, "security": "none", "from": "a@x.example"}
        await admin.post(
            "/channels", {"name": "ops", "kind": "email", "settings": settings | {"to": "b@x.example, grey@x.example"}}
        )
        mail.refusals = {"grey@x.example": "450 greylisted"}
        told = await admin.post("/channels/ops/test")
        assert (told["ok"], "not for grey@x.example (450 greylisted)" in told["detail"]) == (False, True)
        await owe(db, a_notification(state=NotificationState.PENDING, why=None))

        async def in_state(state: str) -> bool:
            return set((await states(admin)).values()) == {state}

        async with draining(desk):
            await db.write(lambda tx: routing.wake(tx, {"ops"}))
            await desk.house.until(lambda: in_state("failed"))
            mail.refusals = {}
        await db.write(
            lambda tx: [tx.run("UPDATE notifications SET next_retry_at = 0"), tx.run("UPDATE jobs SET due_at = 0")]
        )
        async with draining(desk):
            await desk.house.until(lambda: in_state("sent"))
        _, first, again = mail.letters
        assert (first.recipients, again.recipients) == (["b@x.example"], ["grey@x.example"])
        assert first.message["Message-ID"] == again.message["Message-ID"]
