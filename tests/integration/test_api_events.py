"""What happens, as pages and as a stream that resumes after any id on any replica; and what the API says of itself."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from tests.support.api import Asker, Desk, a_desk, another, on_a_port
from tests.support.engine import PATIENCE, eventually
from tests.support.stores import open_store

from holdfast.api.app import mount
from holdfast.core.access import Role
from holdfast.operations.installation.events import STREAMS
from holdfast.store.database import Database, Engine
from holdfast.telemetry import SilentLog
from holdfast.world import SystemClock

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def streaming(
    url: str, token: str, *, last: int | None = None, **query: Any
) -> AsyncIterator[AsyncIterator[Any]]:
    headers = {"Authorization": f"Bearer {token}"}
    headers |= {} if last is None else {"Last-Event-ID": str(last)}
    async with (
        asyncio.timeout(PATIENCE),
        httpx2.AsyncClient(timeout=PATIENCE) as http,
        http.stream("GET", f"{url}/events/stream", headers=headers, params=query) as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield _events(answer)


async def _events(answer: httpx2.Response) -> AsyncIterator[Any]:
    async for line in answer.aiter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


async def _take(events: AsyncIterator[Any], number: int) -> list[Any]:
    return [await anext(events) for _ in range(number)]


async def test_a_token_follows_so_many_streams_at_once_and_others_are_not_held_up(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk, on_a_port(desk) as url:
        ask, other = await desk.as_(), await desk.as_(Role.VIEWER)
        counted = desk.services.streams
        counted[_id_of(ask)] = STREAMS - 1
        async with streaming(url, ask.token):
            one_more = await ask("GET", "/events/stream")
            assert (one_more.status_code, one_more.json()["code"]) == (429, "too-many-streams")
            assert one_more.headers["retry-after"] == "5"
            assert one_more.json()["detail"] == f"This token follows {STREAMS} streams of events already."
            assert (await ask("GET", "/events")).status_code == 200
            async with streaming(url, other.token):
                assert counted == {_id_of(ask): STREAMS, _id_of(other): 1}
        await eventually(lambda: counted == {_id_of(ask): STREAMS - 1})


def _id_of(asker: Asker) -> str:
    return asker.token.split("_")[1]


async def test_a_stream_shows_what_happens_from_now_on(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk, on_a_port(desk) as url:
        ask = await desk.as_()
        await ask.post("/certificates", {"names": ["before.example.com"]})
        async with streaming(url, ask.token) as events:
            made = await ask.post("/certificates", {"names": ["after.example.com"]})
            seen = await _take(events, 2)
        assert [each["name"] for each in seen] == ["certificate.requested", "issuance.begun"]
        assert {each["subject"] for each in seen} == {made["id"]}


async def test_a_stream_ends_with_the_token_it_was_opened_with(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk, on_a_port(desk) as url:
        ask, admin = await desk.as_(Role.VIEWER), await desk.as_(Role.ADMIN)
        async with streaming(url, ask.token) as events:
            await admin.post(f"/tokens/{ask.token.split('_')[1]}/revoke")
            await admin.post("/certificates", {"names": ["after.example.com"]})
            assert [each["name"] async for each in events] == []


async def test_a_stream_goes_on_where_another_replica_was_cut_off(
    make_engine: Callable[[], Engine], db: Database, tmp_path: Path
) -> None:
    async with a_desk(db, tmp_path) as desk, on_a_port(desk) as url, _another(desk, make_engine) as second:
        ask = await desk.as_()
        for number in range(5):
            await ask.post("/certificates", {"names": [f"n{number}.example.com"]})
        async with streaming(url, ask.token, after=0) as events:
            first = await _take(events, 4)
        async with streaming(second, ask.token, last=first[-1]["id"]) as events:
            rest = await _take(events, 8)
        ids = [each["id"] for each in first + rest]
        assert ids == list(range(ids[0], ids[0] + 12))


@asynccontextmanager
async def _another(desk: Desk, make_engine: Callable[[], Engine]) -> AsyncIterator[str]:
    """A second replica; on SQLite, which has one, the same store behind another server."""
    shared = desk.house.db.engine.shared
    db = open_store(make_engine()) if shared else desk.house.db
    services = replace(desk.services, certificate_context=replace(desk.services.certificate_context, db=db))
    async with on_a_port(Desk(house=desk.house, services=services, app=another(services), http=desk.http)) as url:
        yield url
    if shared:
        await db.close()


async def test_a_stream_shows_nothing_that_the_asker_may_not_see(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk, on_a_port(desk) as url:
        admin, agent = await desk.as_(), await desk.as_(Role.AGENT, owners=("mine",))
        async with streaming(url, agent.token, after=0) as events:
            await admin.post("/certificates", {"names": ["a.example.com"], "owner": "theirs"})
            made = await admin.post("/certificates", {"names": ["b.example.com"], "owner": "mine"})
            [first] = await _take(events, 1)
        assert first["subject"] == made["id"]


async def test_a_stream_may_be_about_one_certificate(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk, on_a_port(desk) as url:
        ask = await desk.as_()
        for name in ("a.example.com", "b.example.com"):
            await ask.post("/certificates", {"names": [name]})
        async with streaming(url, ask.token, after=0, subject="b.example.com") as events:
            [first] = await _take(events, 1)
        assert first["details"]["certificate"] == "b.example.com"


async def test_a_stream_ends_by_itself_when_its_replica_leaves(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        left = asyncio.Event()
        services = replace(desk.services, leaving=left.is_set)
        async with on_a_port(Desk(house=desk.house, services=services, app=another(services), http=desk.http)) as url:
            ask = await desk.as_()
            await ask.post("/certificates", {"names": ["a.example.com"]})
            async with streaming(url, ask.token, after=0) as events:
                await _take(events, 1)
                left.set()
                rest = [each async for each in events]  # ends, and is no error
        assert all(each["id"] for each in rest)


@pytest.mark.parametrize("last", ["-1", "x", "9" * 30, "1.0"])
async def test_a_last_event_id_is_a_number(db: Database, tmp_path: Path, last: str) -> None:
    async with a_desk(db, tmp_path) as desk:
        ask = await desk.as_()
        answer = await ask("GET", "/events/stream", headers={"Last-Event-ID": last})
        assert (answer.status_code, answer.json()["code"]) == (400, "bad-header")


async def test_events_are_read_in_pages(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        ask = await desk.as_()
        for number in range(3):
            await ask.post("/certificates", {"names": [f"n{number}.example.com"]})
        seen, after = [], 0
        while page := (found := await ask.get("/events", after=after, limit=2))["items"]:
            seen += [each["id"] for each in page]
            after = found["next"]
        assert seen == sorted(set(seen))
        assert len(seen) >= 6


async def test_a_method_that_is_not_there_is_told_which_are(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        ask = await desk.as_()
        answer = await ask("PUT", "/certificates/a")
        assert (answer.status_code, answer.headers["allow"]) == (405, "DELETE, GET, PATCH")


# ── The audit log ──


async def test_the_audit_log_is_searched_and_read_backwards(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        ask = await desk.as_(name="alice")
        made = await ask.post("/certificates", {"names": ["a.example.com"]})
        await ask.post(f"/certificates/{made['id']}/pause")
        page = await ask.get("/audit", subject=made["id"], limit=2)
        rest = await ask.get("/audit", subject=made["id"], limit=2, cursor=page["next"])
        actions = [each["action"] for each in page["items"] + rest["items"]]
        assert actions == ["certificate_paused", "issuance_cancelled", "issuance_begun", "certificate_requested"]
        assert {each["actor"] for each in (await ask.get("/audit", actor="human:alice"))["items"]} == {"human:alice"}


# ── What the API says of itself ──


async def test_the_document_names_every_answer_and_every_field(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        document = (await desk.http.get("http://x/api/v1/openapi.json")).json()
        assert document["openapi"].startswith("3.1")
        shapes = document["components"]["schemas"]
        assert not [name for name in shapes if "__" in name]  # two models of one name: generators stumble over it
        assert "Problem" in document["components"]["schemas"]
        operations = [each for item in document["paths"].values() for each in item.values()]
        assert len({each["operationId"] for each in operations}) == len(operations)
        for each in operations:
            assert {"401", "403", "503"} <= set(each["responses"]), each["operationId"]
            assert each["security"], each["operationId"]


async def test_before_the_store_is_open_it_says_so(tmp_path: Path) -> None:
    app = Starlette(routes=[mount(lambda: None, SilentLog(), new_id=lambda: "req", now=SystemClock().now)])
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app)) as http:
        answer = await Asker(http, "hf_x")("GET", "/certificates")
    assert (answer.status_code, answer.json()["retryable"]) == (503, True)
    assert answer.headers["retry-after"] == "5"


@pytest.mark.parametrize(("method", "path"), [("GET", "/nothing"), ("POST", "/self"), ("GET", "/certificates/%00")])
async def test_whatever_goes_wrong_is_a_problem_document(db: Database, tmp_path: Path, method: str, path: str) -> None:
    async with a_desk(db, tmp_path) as desk:
        ask = await desk.as_()
        answer = await ask(method, path)
        assert 400 <= answer.status_code < 500
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["request_id"]
