"""What a confined token may not tell apart: an object of another owner looks like one that does not exist."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.support.api import Asker, a_desk, on_a_port

from holdfast.core.access import Role
from holdfast.store.database import Database

pytestmark = pytest.mark.anyio
MINE, THEIRS = "mine.example.com", "b-merger-codename.example"


async def _asked(admin: Asker, dns: str, owner: str, **wishes: Any) -> dict[str, Any]:
    found: dict[str, Any] = await admin.post("/certificates", {"names": [dns], "owner": owner, **wishes})
    return found


async def test_budgets_of_domains_are_not_shown_to_a_confined_token(db: Database, tmp_path: Path) -> None:
    """Only what holds for the whole CA is; an asker who sees all certificates sees all budgets."""
    async with a_desk(db, tmp_path) as desk:
        limits = {"orders": [20, 600], "per_domain": [5, 600], "per_set": [5, 600], "requests": [20, 1]}
        admin = await desk.as_()
        await admin.post("/issuers", {"name": "pub", "kind": "test", "settings": {"limits": limits}})
        await _asked(admin, THEIRS, "theirs", issuers=["pub"])
        keys = {each["key"] for each in await admin.get("/issuers/pub/budget")}
        assert f"ca/pub/domain/{THEIRS}" in keys
        for role in (Role.VIEWER, Role.AGENT):
            asker = await desk.as_(role, name=f"confined-{role}", owners=("mine",))
            seen = {each["key"] for each in await asker.get("/issuers/pub/budget")}
            assert seen == {"ca/pub/orders", "ca/pub/requests"}


async def test_events_of_a_hidden_certificate_are_as_of_none(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        made = await _asked(await desk.as_(), THEIRS, "theirs")
        viewer = await desk.as_(Role.VIEWER, name="v", owners=("mine",))
        none = await viewer("GET", "/events", subject="there-is.none")
        for ref in (THEIRS, made["id"], made["id"][:20]):
            answer = await viewer("GET", "/events", subject=ref)
            assert (
                (answer.status_code, answer.json())
                == (none.status_code, none.json())
                == (200, {"items": [], "next": 0})
            )


async def test_a_stream_about_a_hidden_certificate_is_as_about_none(db: Database, tmp_path: Path) -> None:
    """It stays open, in silence: an error in the middle of a stream would tell, and nobody would handle it."""
    async with a_desk(db, tmp_path) as desk, on_a_port(desk) as address:
        admin = await desk.as_()
        made = await _asked(admin, THEIRS, "theirs")
        viewer = await desk.as_(Role.VIEWER, name="v", owners=("mine",))
        lines = await asyncio.gather(*(_first_event(address, viewer, ref, admin, desk) for ref in (made["id"], THEIRS)))
        assert lines == ["nothing", "nothing"]


async def _first_event(address: str, viewer: Asker, ref: str, admin: Asker, desk: Any) -> str:
    """What a stream says until its token ends; "nothing" but that it is there."""
    headers = {"Authorization": f"Bearer {viewer.token}", "Accept": "text/event-stream"}
    said = []
    async with (
        httpx2.AsyncClient() as http,
        http.stream("GET", f"{address}/events/stream", params={"subject": ref, "after": 0}, headers=headers) as answer,
    ):
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if line.startswith("retry"):
                await admin("POST", f"/tokens/{viewer.token.split('_')[1]}/revoke")
            elif line:
                said.append(line)
    return ",".join(said) or "nothing"


async def test_pages_of_issuances_end_at_what_the_asker_sees(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        admin = await desk.as_()
        mine = [(await _asked(admin, f"{n}.{MINE}", "mine"))["operation"]["id"] for n in range(3)]
        for n in range(5):
            await _asked(admin, f"{n}.{THEIRS}", "theirs")
        viewer = await desk.as_(Role.VIEWER, name="v", owners=("mine",))
        found, cursor = list[str](), ""
        while True:
            page = await viewer.get("/issuances", limit=1, **({"cursor": cursor} if cursor else {}))
            assert len(page["items"]) == 1 or page["next"] is None, "a page that is not the last one is full"
            found += [each["id"] for each in page["items"]]
            if (cursor := page["next"]) is None:
                break
        assert sorted(found) == sorted(mine)


async def test_why_a_request_waits_does_not_name_the_certificate_of_another_owner(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        admin = await desk.as_()
        await _asked(admin, f"secret-name.{THEIRS}", "theirs", name="project-x", approval_required=True)
        await _asked(admin, f"*.{THEIRS}", "mine", name="mine")
        viewer = await desk.as_(Role.VIEWER, name="v", owners=("mine",))
        events = (await viewer.get("/events"))["items"]
        [why] = [each["details"]["why"] for each in events if each["name"] == "approval.asked"]
        assert "a certificate of another owner" in why
        assert "project-x" not in str(events)


async def test_a_confined_token_sees_the_channels_that_tell_of_its_certificates(db: Database, tmp_path: Path) -> None:
    """Where they lead to is shown only where they are for its owners alone."""
    async with a_desk(db, tmp_path) as desk:
        admin = await desk.as_()
        for name, owners in (("all", []), ("ours", ["mine"]), ("both", ["mine", "theirs"]), ("others", ["theirs"])):
            settings = {"host": "127.0.0.1", "port": 25, "security": "none", "from": "h@example.org",
                        "to": [f"{name}@example.org"]}  # fmt: skip
            await admin.post("/channels", {"name": name, "kind": "email", "settings": settings, "owners": owners})
        viewer = await desk.as_(Role.VIEWER, name="v", owners=("mine",))
        seen = {each["name"]: each for each in await viewer.get("/channels")}
        assert set(seen) == {"all", "ours", "both"}
        assert seen["ours"]["settings"]["to"] == ["ours@example.org"]
        assert seen["all"]["settings"] == seen["both"]["settings"] == {}
        assert (seen["all"]["owners"], seen["both"]["owners"], seen["ours"]["owners"]) == ([], ["mine"], ["mine"])
        hidden, none = await viewer("GET", "/channels/others"), await viewer("GET", "/channels/absent")
        assert hidden.status_code == none.status_code == 404
        assert hidden.json()["code"] == none.json()["code"] == "no-such-channel"
        assert (await viewer.get("/channels/both"))["settings"] == {}
        assert {each["name"] for each in await admin.get("/channels")} == {"all", "ours", "both", "others"}
