"""Pages: written fast, and as the models say; a cursor on every list; where a wish through ACME came from."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic_core import to_json
from tests.support.acme_face import open_front
from tests.support.api import Asker, a_desk
from tests.support.lifecycle import TruthfulCa, a_house
from tests.support.terminal import a_terminal

from holdfast.core.access import Role
from holdfast.core.certificate import RenewalPolicy
from holdfast.core.inventory import InventoryFilter
from holdfast.core.windows import MaintenanceWindow
from holdfast.errors import Refused
from holdfast.operations.certificates import lifecycle
from holdfast.operations.certificates.views import CertificateView, shown, views_of
from holdfast.operations.inputs import Page, cursor
from holdfast.operations.installation import audit
from holdfast.store import inventory, journal
from holdfast.store.database import Database
from holdfast.telemetry import Metrics, labelled

pytestmark = pytest.mark.anyio


async def test_a_page_is_byte_for_byte_what_the_models_would_write(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    async with house.working():
        await house.ask("plain.example.com")
        await house.ask(
            "all.example.com",
            "127.0.0.1",
            name="All",
            owner="web",
            labels={"team": "a", "é": "ü"},
            lifetime=timedelta(days=30),
            rule=RenewalPolicy(before=timedelta(days=3.5)),
            profile="p",
            preferred_chain="x",
            windows=(MaintenanceWindow(days=frozenset({0, 6}), opens=60, closes=120),),
            reuse_key=True,
        )
        for name in ("plain.example.com", "All"):
            await house.settled(name)
        house.cas["ca"].always["place"] = Refused("no", reason="CA_REFUSED")
        await house.ask("failing.example.com")
        await house.settled("failing.example.com")
        await house.ask("waiting.example.com", approval_required=True)
    await house.set_state("plain.example.com", "paused", actor="local:test")
    views = await db.read(lambda tx: views_of(tx, inventory.find(tx, InventoryFilter(), limit=4)))
    assert {view.status.phase.value for view in views} >= {"failing", "awaiting_approval", "paused"}
    last = views[-1].certificate
    end = cursor((last.name, last.id))
    models = Page[CertificateView](items=[shown(each) for each in views], next=end, total=4)
    page = await house.do(lifecycle.list_certificates, limit=4, total=True)
    assert to_json(page) == models.model_dump_json().encode()
    for each in models.model_dump(mode="json")["items"]:
        failing = each["status"]["phase"] == "failing"
        assert ({"issuance_attempts", "last_failure_at"} <= each.keys()) is failing, "left out, not null"
        assert each.get("issuance_attempts", 0) == (1 if failing else 0)


async def _walked(ask: Asker, path: str, **query: Any) -> AsyncIterator[dict[str, Any]]:
    """Item by item, a page of two at a time."""
    more: dict[str, Any] = {}
    while True:
        page = await ask.get(path, limit=2, **query, **more)
        assert len(page["items"]) <= 2
        for item in page["items"]:
            yield item
        if page["next"] is None:
            return
        more = {"cursor": page["next"]}


async def test_approvals_and_cas_are_read_in_pages(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        alice, bob = await desk.as_(name="alice"), await desk.as_(name="bob")
        for n in range(5):
            owner = "mine" if n % 2 else "theirs"
            wish = {"names": [f"n{n}.example.com"], "approval_required": True, "owner": owner}
            await alice.post("/certificates", wish)
        waiting = [each async for each in _walked(bob, "/approvals")]
        assert len({each["id"] for each in waiting}) == 5
        assert waiting == sorted(waiting, key=lambda each: (each["expires_at"], each["id"]))
        for each in waiting[:3]:
            await bob("POST", f"/approvals/{each['id']}/reject", {})
        decided = [each["id"] async for each in _walked(bob, "/approvals", state="rejected")]
        assert decided == [each["id"] for each in reversed(waiting[:3])]  # the last first
        mine = await desk.as_(Role.VIEWER, owners=("mine",))
        seen = [each async for each in _walked(mine, "/approvals", state="rejected")]
        seen += [each async for each in _walked(mine, "/approvals")]
        assert len(seen) == 2

        for name in ("b", "a", "d"):
            made = await alice("POST", "/issuers", {"name": name, "kind": "test"})
            assert made.status_code == 201, made.text
        assert [each["name"] async for each in _walked(bob, "/issuers")] == ["a", "b", "ca", "d"]
        for path in ("/approvals", "/issuers"):
            wrong = await bob("GET", path, cursor="bm9uc2Vuc2U")
            assert (wrong.status_code, wrong.json()["code"]) == (400, "bad-cursor")


async def test_what_comes_through_acme_is_audited_with_its_address(db: Database, tmp_path: Path) -> None:
    async with open_front(db, tmp_path) as front:
        client = await front.client()
        await client.change_key(client.other().signer)
        rows = await db.read(lambda tx: journal.audit_page(tx, 0))
    shown = [audit.shown(row) for row in rows]
    [changed] = [each for each in shown if each.action == "account_key_changed"]
    assert changed.origin is not None
    assert (changed.origin.face, changed.origin.address) == ("acme", "192.0.2.7")
    assert changed.origin.client.startswith("python-httpx")
    assert "origin" not in changed.details
    assert [each.origin for each in shown if each.actor_kind == "system" and each.origin is not None] == []


# ── Series of their own ──


def test_labels_of_certificates_are_read_back_as_they_are() -> None:
    metrics, name = Metrics(), 'a"b\\c\nd'
    metrics.not_after.show([(labelled(ca="ca", certificate=name, owner="é"), 1.5), (labelled(ca="x"), 2.0)])
    families = {each.name: each for each in text_string_to_metric_families(metrics.render().decode())}
    family = families["holdfast_certificate_not_after_timestamp_seconds"]
    assert (family.type, family.documentation) == ("gauge", "When it ends.")
    assert [(each.labels, each.value) for each in family.samples] == [
        ({"ca": "ca", "certificate": name, "owner": "é"}, 1.5),
        ({"ca": "x"}, 2.0),
    ]
    metrics.not_after.show([])
    assert b"timestamp_seconds{ca" not in metrics.render()


# ── By command ──


async def test_commands_read_all_pages_and_no_more_than_was_asked_for(db: Database, tmp_path: Path) -> None:
    async with a_terminal(db, tmp_path) as typed:
        for n in range(3):
            await typed.desk.house.ask(f"n{n}.example.com", approval_required=True)
        whole = (await typed.ok("approvals", "ls", "-o", "json")).json
        assert [row["name"] for row in whole] == [f"n{n}.example.com" for n in range(3)]
        assert (await typed.ok("approvals", "ls", "--limit", "2", "-o", "json")).json == whole[:2]
        await typed.desk.house.add("second", TruthfulCa())
        assert (await typed.ok("issuer", "ls", "--limit", "1", "-o", "name")).plain.split() == ["ca"]
        assert (await typed.ok("issuer", "ls", "-o", "name")).plain.split() == ["ca", "second"]
