"""Notifications over the API: what is shown, to whom, requeued one by one or by a filter, settled with a note."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.api import a_desk
from tests.support.channels import a_webhook, draining, states
from tests.support.inboxes import Inbox
from tests.support.messages import a_notification, owe

from holdfast.core.access import Role
from holdfast.core.notifications.notification import NotificationState, Severity
from holdfast.store.database import Database

pytestmark = pytest.mark.anyio


async def test_a_notification_says_how_it_stands(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        admin = await desk.as_()
        await owe(db, a_notification(facts={"CA": "own"}, next="holdfast explain www.example.com", reason="CA_REFUSED"))
        [row] = (await admin.get("/notifications"))["items"]
        assert (row["state"], row["dead_because"], row["attempt"]) == ("dead", "ATTEMPTS_USED_UP", 0)
        assert (row["max_attempts"], row["next_attempt_at"], row["delivered_on_attempt"]) == (5, None, None)
        assert (row["name"], row["reason_code"], row["facts"]) == ("www.example.com", "CA_REFUSED", {"CA": "own"})
        full = await admin.get("/notifications/notification_01")
        assert full == {**row, "history": []}
        missing = await admin("GET", "/notifications/notification_99")
        assert (missing.status_code, missing.json()["code"]) == (404, "no-such-notification")


async def test_lists_are_filtered_and_paged_newest_first(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        admin = await desk.as_()
        made = await admin.post("/certificates", {"names": ["www.example.com"]})
        await owe(
            db,
            a_notification(id="notification_1", message="msg_1", subject=made["id"]),
            a_notification(id="notification_2", message="msg_2", state=NotificationState.PENDING, channel="mail"),
            a_notification(id="notification_3", message="msg_3", severity=Severity.INFO, event="channel.down"),
        )

        async def found(**query: Any) -> list[str]:
            return [each["id"] for each in (await admin.get("/notifications", **query))["items"]]

        assert await found() == ["notification_3", "notification_2", "notification_1"]
        assert await found(state="dead") == ["notification_3", "notification_1"]
        assert await found(channel="mail") == ["notification_2"]
        assert await found(severity="info") == ["notification_3"]
        assert await found(event="channel.down") == ["notification_3"]
        assert await found(subject="www.example.com") == ["notification_1"]
        assert await found(subject=made["id"]) == ["notification_1"]
        assert await found(subject="nobody") == []
        first = await admin.get("/notifications", limit=2)
        rest = await admin.get("/notifications", limit=2, cursor=first["next"])
        assert ([each["id"] for each in rest["items"]], rest["next"]) == (["notification_1"], None)
        assert (await admin("GET", "/notifications", cursor="x")).status_code == 400
        assert (await admin("GET", "/notifications", state="lost")).status_code == 422
        summary = await admin.get("/notifications/summary")
        assert (summary["dead"], summary["by_state"]) == (2, {"dead": 2, "pending": 1})
        assert summary["by_channel"]["mail"] == {"pending": 1}


async def test_whoever_is_confined_sees_what_belongs_to_them(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        await owe(
            db,
            a_notification(id="notification_1", message="msg_1", owner="mine"),
            a_notification(id="notification_2", message="msg_2", owner="theirs"),
            a_notification(id="notification_3", message="msg_3"),
        )
        confined = await desk.as_(Role.OPERATOR, owners=("mine",))
        assert await states(confined) == {"notification_1": "dead"}
        assert (await confined("GET", "/notifications/notification_2")).json()["code"] == "no-such-notification"
        hidden = await confined("POST", "/notifications/notification_2/resolve", {"note": "x"})
        assert hidden.json()["code"] == "no-such-notification"
        assert (await confined("POST", "/dead-letters/requeue", {"all": True})).status_code == 403
        settled = await confined.post("/notifications/notification_1/resolve", {"note": "done by hand"})
        assert (settled["state"], settled["note"]) == ("resolved", "done by hand")


async def test_a_requeued_one_is_sent_and_its_history_is_kept(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk, Inbox() as web:
        admin = await desk.as_(name="ann")
        await admin.post("/channels", a_webhook(web))
        await owe(db, a_notification())
        row = await admin.post("/notifications/notification_01/requeue")
        assert (row["state"], row["attempt"], row["last_error"], row["dead_because"]) == ("pending", 0, None, None)
        async with draining(desk):
            await desk.house.until(lambda: web.requests)
        assert web.requests[0].headers["webhook-id"] == "notification_01"
        full = await admin.get("/notifications/notification_01")
        assert (full["state"], full["delivered_on_attempt"]) == ("sent", 1)
        requeued, sent = full["history"]
        assert (requeued["name"], requeued["details"]["by"]) == ("notification.requeued", "human:ann")
        assert requeued["details"]["error"] == "Channel ops: hooks.example.com answered 503."
        assert sent["name"] == "notification.sent"
        actions = [each["action"] for each in (await admin.get("/audit", subject="notification_01"))["items"]]
        assert actions == ["notification_requeued"]


async def test_many_are_requeued_by_a_filter_or_all_if_that_is_said(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk, Inbox() as web:
        admin = await desk.as_()
        for name in ("ops", "mail"):
            await admin.post("/channels", a_webhook(web, name))
        await owe(
            db,
            a_notification(id="notification_1", message="msg_1"),
            a_notification(id="notification_2", message="msg_2", channel="mail"),
            a_notification(id="notification_3", message="msg_3", channel="gone"),
            a_notification(id="notification_4", message="msg_4", state=NotificationState.SENT, why=None),
        )
        vague = await admin("POST", "/dead-letters/requeue", {})
        assert (vague.status_code, vague.json()["code"]) == (400, "bad-filter")
        tried = await admin("POST", "/dead-letters/requeue", {"state": "dead"}, dry_run=True)
        assert tried.json() == {"number": 2}
        assert sorted((await states(admin)).values()) == ["dead", "dead", "dead", "sent"]
        assert await admin.post("/dead-letters/requeue", {"channel": "mail"}) == {"number": 1}
        after = {
            "notification_1": "dead",
            "notification_2": "pending",
            "notification_3": "dead",
            "notification_4": "sent",
        }
        assert await states(admin) == after
        assert await admin.post("/dead-letters/requeue", {"all": True}) == {"number": 1}
        assert await admin.post("/dead-letters/requeue", {"all": True}) == {"number": 0}
        assert (await states(admin))["notification_3"] == "dead"  # its channel is gone: it stays where it can be seen
        assert await admin.post("/dead-letters/resolve", {"channel": "gone", "note": "told by phone"}) == {"number": 1}
        assert (await states(admin))["notification_4"] == "sent"  # what arrived is sent again only if that is said
        alone = await admin("POST", "/notifications/notification_1/requeue")
        assert (alone.status_code, alone.json()["code"]) == (409, "notification-state")


async def test_one_whose_channel_is_gone_cannot_be_requeued(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        admin = await desk.as_()
        await owe(db, a_notification())
        answer = await admin("POST", "/notifications/notification_01/requeue")
        assert (answer.status_code, answer.json()["code"]) == (409, "no-channel")
        assert "holdfast notify channel add" in answer.json()["hint"]


async def test_a_repeated_requeue_with_the_same_key_happens_once(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk, Inbox() as web:
        admin = await desk.as_()
        await admin.post("/channels", a_webhook(web))
        await owe(db, a_notification())
        tried = await admin("POST", "/notifications/notification_01/requeue", dry_run=True)
        assert tried.json()["state"] == "pending"
        assert await states(admin) == {"notification_01": "dead"}
        first = await admin.post("/notifications/notification_01/requeue", Idempotency_Key="k1")
        assert await admin.post("/notifications/notification_01/requeue", Idempotency_Key="k1") == first
        other = await admin("POST", "/dead-letters/requeue", {"all": True}, headers={"Idempotency-Key": "k2"})
        assert other.status_code == 200


async def test_a_note_is_needed_to_settle_one(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        admin = await desk.as_(name="ann")
        await owe(db, a_notification())
        for body in ({}, {"note": ""}, {"note": "x" * 501}, {"note": "a\x00b"}):
            assert (await admin("POST", "/notifications/notification_01/resolve", body)).status_code == 422, body
        assert (await admin("POST", "/notifications/notification_01/resolve", {"note": "  "})).status_code == 400
        row = await admin.post("/notifications/notification_01/resolve", {"note": "told by phone"})
        assert (row["state"], row["note"], row["settled_by"]) == ("resolved", "told by phone", "human:ann")
