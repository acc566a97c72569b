"""Tools for assistants: the official client, in-process, over stdio and over HTTP, against the real API."""

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from tests.support.api import BASE, Desk, a_desk, on_a_port
from tests.support.channels import a_webhook, states
from tests.support.inboxes import Inbox
from tests.support.jobs import enqueue, update
from tests.support.messages import a_notification, owe
from tests.support.processes import environment
from tests.support.reaper import PATIENCE

from holdfast.core.access import Role
from holdfast.errors import Refused
from holdfast.mcp import changing
from holdfast.mcp.changing import ConfirmedPlan, NoPlan
from holdfast.mcp.line import ApiAnswer, ApiLine, ApiRequest, McpSession
from holdfast.mcp.server import TOOLS, build
from holdfast.store.database import Database, Engine
from holdfast.store.sqlite import SqliteEngine
from holdfast.world import SystemClock, SystemRandom

pytestmark = pytest.mark.anyio
NAME = "www.example.com"
NOW = datetime(2030, 1, 1, tzinfo=UTC)
PHONED = {"all": True, "note": "told by phone"}


@pytest.fixture
def make_engine(tmp_path: Path) -> Callable[[], Engine]:
    """One store is enough here: what the tools speak to is tested on both."""
    return lambda: SqliteEngine(tmp_path / "holdfast.sqlite", SystemClock())


@dataclass
class Assistant:
    """Whoever calls tools."""

    client: Client

    async def __call__(self, tool: str, **args: Any) -> Any:
        said = await self.client.call_tool(tool, args)
        assert not said.is_error, said.content
        return said.structured_content

    async def refused(self, tool: str, **args: Any) -> str:
        said = await self.client.call_tool(tool, args)
        assert said.is_error
        return str(said.content[0].text)  # type: ignore[union-attr]


def a_line(desk: Desk, token: str) -> ApiLine:
    async def send(ask: ApiRequest) -> ApiAnswer:
        answer = await desk.http.request(
            ask.method, f"{BASE}{ask.path}", json=ask.body, params=dict(ask.query),
            headers={**ask.headers, "Authorization": f"Bearer {token}"},
        )  # fmt: skip
        return ApiAnswer(answer.status_code, answer.json() if answer.content else None)

    return ApiLine(send=send, secret=token.encode(), now=SystemClock().now, new_id=SystemRandom().new_id)


@asynccontextmanager
async def an_assistant(desk: Desk, role: Role = Role.OPERATOR, **wishes: Any) -> AsyncIterator[Assistant]:
    line = a_line(desk, await desk.token(role, kind="agent", **wishes))
    async with Client(build(McpSession(line_for=lambda request: line))) as client:
        yield Assistant(client)


async def a_dead_job(db: Database) -> str:
    await enqueue(db, "lost")
    await update(db, "UPDATE jobs SET state = 'dead', last_error = 'it broke' WHERE subject = 'lost'")
    [row] = await db.read(lambda tx: tx.rows("SELECT id FROM jobs WHERE subject = 'lost'"))
    return str(row["id"])


async def job_state(db: Database, job: str) -> str:
    return str((await db.read(lambda tx: tx.rows("SELECT state FROM jobs WHERE id = :id", id=job)))[0]["state"])


async def test_dead_notifications_are_shown_and_given_back(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk, Inbox() as web, an_assistant(desk) as assistant:
        await (await desk.as_()).post("/channels", a_webhook(web))
        await owe(
            db, a_notification(channel="ops"), a_notification(id="notification_02", message="msg_2", channel="gone")
        )
        found = await assistant("needs_attention")
        assert {each["id"] for each in found["dead_notifications"]} == {"notification_01", "notification_02"}
        assert "nothing to requeue" in await assistant.refused("requeue_dead_letters", jobs=["job_nothing"])
        planned = await assistant("requeue_dead_letters")
        assert planned["would"]["notifications"][0]["title"]
        done = await assistant("confirm", plan=planned["plan"])
        assert (done["result"]["jobs"], done["result"]["notifications"]) == ([], ["notification_01"])
        [problem] = done["result"]["problems"]
        assert problem.startswith("notification_02: ")  # its channel is gone: it stays where it can be seen
        assert await states(await desk.as_(Role.VIEWER)) == {"notification_01": "pending", "notification_02": "dead"}
        assert "nothing to requeue" in await assistant.refused(
            "requeue_dead_letters", notifications=["notification_01"], jobs=[]
        )


# ── over the wire ──


async def renews_explains_and_requeues(assistant: Assistant, desk: Desk, job: str) -> None:
    """What an assistant is for, by whatever way it came."""
    before = await assistant("certificate_status", certificate=NAME)
    begun = await assistant("renew", certificate=NAME)
    assert begun["attempt"]["kind"] == "issuance"
    over = await assistant("wait", certificate=NAME, seconds=30)
    assert over["certificate"]["phase"] == "ok"
    assert over["certificate"]["serial"] != before["serial"]
    explained = await assistant("explain", certificate=NAME)
    assert explained["blocking"] == "NOT_DUE"
    found = await assistant("needs_attention")
    assert [each["id"] for each in found["dead_jobs"]] == [job]
    planned = await assistant("requeue_dead_letters", jobs=[job])
    assert planned["would"]["jobs"][0]["last_error"] == "it broke"
    assert await job_state(desk.house.db, job) == "dead"
    done = await assistant("confirm", plan=planned["plan"])
    assert done["result"]["jobs"] == [job]
    assert await job_state(desk.house.db, job) == "ready"
    entries = (await (await desk.as_(Role.AUDITOR)).get("/audit", subject="lost"))["items"]
    assert "agent:operator" in [entry["actor"] for entry in entries]


@asynccontextmanager
async def a_served_desk(db: Database, folder: Path) -> AsyncIterator[tuple[Desk, str, str]]:
    """The desk behind a real server, its address, and an assistant's token."""
    async with a_desk(db, folder) as desk, on_a_port(desk) as url, desk.house.working():
        await desk.house.ask(NAME)
        await desk.house.settled(NAME)
        yield desk, url.removesuffix("/api/v1"), await desk.token(Role.OPERATOR, kind="agent")


async def test_over_stdio_a_client_renews_explains_and_requeues(db: Database, tmp_path: Path) -> None:
    async with a_served_desk(db, tmp_path) as (desk, url, token):
        job = await a_dead_job(db)
        env = environment(tmp_path, {}) | {"HOME": str(tmp_path), "HOLDFAST_SERVER_URL": url, "HOLDFAST_TOKEN": token}
        started = StdioServerParameters(command=sys.executable, args=["-m", "holdfast.cli.main", "mcp"], env=env)
        async with Client(started) as client:
            await renews_explains_and_requeues(Assistant(client), desk, job)


async def test_over_http_each_client_asks_with_its_own_token(db: Database, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        desk, url, token = await stack.enter_async_context(a_served_desk(db, tmp_path))
        job = await a_dead_job(db)
        env = environment(tmp_path, {}) | {"HOME": str(tmp_path), "HOLDFAST_SERVER_URL": url}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "holdfast.cli.main", "mcp", "--http", "127.0.0.1:0",
            env=env, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            assert process.stderr is not None
            async with asyncio.timeout(PATIENCE):
                told = (await process.stderr.readline()).decode()
            address = told.rsplit(maxsplit=1)[-1]
            async with a_client(address, token) as client:
                await renews_explains_and_requeues(Assistant(client), desk, job)
            viewer = await desk.token(Role.VIEWER, kind="agent")
            async with a_client(address, viewer) as client:
                assert "may not renew" in await Assistant(client).refused("renew", certificate=NAME)
            async with httpx2.AsyncClient(timeout=PATIENCE) as http:
                nobody = await http.post(address, json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
            assert nobody.status_code == 401
        finally:
            process.terminate()
            await process.wait()


@asynccontextmanager
async def a_client(address: str, token: str) -> AsyncIterator[Client]:
    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE) as http,
        Client(streamable_http_client(address, http_client=http)) as client,
    ):
        yield client


async def test_without_a_token_of_its_own_an_assistant_is_not_let_in(tmp_path: Path) -> None:
    env = environment(tmp_path, {}) | {"HOME": str(tmp_path)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "holdfast.cli.main", "mcp", env=env,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    assert (process.returncode, out) == (1, b"")
    assert b"holdfast token create" in err


# ── the tools ──


async def test_each_tool_says_what_it_may_do_and_none_of_them_is_long_winded(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk, an_assistant(desk) as assistant:
        tools = {tool.name: tool for tool in (await assistant.client.list_tools()).tools}
    assert len(tools) == len(TOOLS) <= 22
    hurting = {name for name, tool in tools.items() if tool.annotations and tool.annotations.destructive_hint}
    assert hurting == {"revoke", "cancel_attempt", "archive", "requeue_dead_letters", "confirm", "call_operation"}
    reading = {name for name, tool in tools.items() if tool.annotations and tool.annotations.read_only_hint}
    assert tools.keys() - reading - hurting == {"renew"}
    assert all(30 < len(tool.description or "") < 400 for tool in tools.values())
    assert all(tool.input_schema["additionalProperties"] is False for tool in tools.values())


async def test_an_operation_without_a_tool_is_found_by_words_and_called(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk, an_assistant(desk, Role.ADMIN) as assistant:
        admin = await desk.as_()
        channel = {"name": "ops", "kind": "pagerduty", "credentials": {"routing_key": "x"}}
        await admin.post("/channels", channel)
        found = await assistant("find_operation", words="pause a channel")
        assert found["operations"][0]["name"] == "channels.pause"
        assert "name" in found["operations"][0]["input"]["properties"]
        paused = await assistant("call_operation", name="channels.pause", arguments={"name": "ops"})
        assert paused["result"]["state"] == "paused"
        plan = await assistant("call_operation", name="channels.delete", arguments={"name": "ops"})
        assert (plan["action"], plan["would"]["would"]) == ("operation", {"number": 0})
        assert [each["name"] for each in await admin.get("/channels")] == ["ops"]
        await assistant("confirm", plan=plan["plan"])
        assert await admin.get("/channels") == []
        assert "no operation 'channels.paint'" in await assistant.refused("call_operation", name="channels.paint")
        assert "needs name" in await assistant.refused("call_operation", name="channels.pause")
        strange = {"name": "ops", "reason": "x"}
        assert "no field 'reason'" in await assistant.refused(
            "call_operation", name="channels.pause", arguments=strange
        )
        for name in ("approvals.approve", "approvals.reject", "channels.add"):
            assert "not offered to assistants" in await assistant.refused("call_operation", name=name)


async def test_a_plan_of_an_operation_is_bound_to_what_its_dry_run_showed(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk, an_assistant(desk, Role.ADMIN) as assistant:
        admin = await desk.as_()
        await admin.post("/issuers", {"name": "spare", "kind": "test"})
        stale = await assistant("call_operation", name="issuers.delete", arguments={"name": "spare"})
        assert stale["would"]["would"]["state"] == "active"
        await admin.post("/issuers/spare/pause")
        assert "changed since" in await assistant.refused("confirm", plan=stale["plan"])
        fresh = await assistant("call_operation", name="issuers.delete", arguments={"name": "spare"})
        assert (await assistant("confirm", plan=fresh["plan"]))["result"]["state"] == "paused"
        await owe(db, a_notification(id="notification_1", message="m1"))
        many = await assistant("call_operation", name="notifications.resolve-many", arguments=PHONED)
        assert many["would"]["would"] == {"number": 1}
        await owe(db, a_notification(id="notification_2", message="m2"))
        assert "changed since" in await assistant.refused("confirm", plan=many["plan"])
        assert {*(await states(admin)).values()} == {"dead"}


async def test_a_plan_whose_dry_run_makes_ids_and_times_can_be_confirmed(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk, desk.house.working(), an_assistant(desk, Role.ADMIN) as assistant:
        await desk.house.ask(NAME)
        await desk.house.settled(NAME)
        given = {"ref": NAME, "reason": "superseded"}
        plan = await assistant("call_operation", name="certificates.revoke", arguments=given)
        assert plan["would"]["would"]["operation"]["id"].startswith("issuance_0000")
        await assistant("confirm", plan=plan["plan"])
        await desk.house.until_no_job("revoke")
        assert len(desk.house.cas["ca"].revoked) == 1


async def test_a_dry_run_among_the_arguments_changes_nothing_and_needs_no_plan(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk, an_assistant(desk, Role.ADMIN) as assistant:
        admin = await desk.as_()
        for name in ("issuers.pause", "issuers.delete"):
            tried = await assistant("call_operation", name=name, arguments={"name": "ca", "dry_run": True})
            assert tried["result"]["name"] == "ca"
            said = await assistant.refused("call_operation", name=name, arguments={"name": "ca", "dry_run": "true"})
            assert "dry_run is true or false." in said
        assert (await admin.get("/issuers/ca"))["state"] == "active"
        none = {"name": "ca", "dry_run": True}
        assert "no field 'dry_run'" in await assistant.refused("call_operation", name="issuers.get", arguments=none)


async def test_an_argument_that_a_tool_does_not_have_is_refused_and_not_dropped(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk, an_assistant(desk) as assistant:
        said = await assistant.refused("requeue_dead_letters", ids=["notification_nothing"])
        assert "no argument 'ids'. It has: jobs, notifications." in said
        assert "no argument 'bogus'" in await assistant.refused("renew", certificate=NAME, bogus=1)
        said = await assistant.refused("wait", certificate=NAME, seconds=0)
        assert said == "wait: seconds: Input should be greater than or equal to 1"


async def test_what_needs_somebody_comes_first_and_what_is_well_does_not_come(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk, desk.house.working(), an_assistant(desk) as assistant:
        for name in (NAME, "bad.example.com"):
            await desk.house.ask(name)
            await desk.house.settled(name)
        assert (await assistant("needs_attention"))["count"] == 0
        desk.house.cas["ca"].always["place"] = Refused("not these names", reason="NAME_REFUSED")
        await assistant("renew", certificate="bad.example.com")
        await desk.house.settled("bad.example.com")
        found = await assistant("needs_attention")
        [row] = found["certificates"]
        assert (row["name"], row["reason_code"], row["acts_next"]) == ("bad.example.com", "NAME_REFUSED", "you")
        listed = await assistant("list_certificates", failing=True)
        assert [each["name"] for each in listed["certificates"]] == ["bad.example.com"]
        happened = await assistant("events", certificate="bad.example.com")
        assert "issuance.failed" in [each["name"] for each in happened["items"]]
        cas = await assistant("list_cas")
        assert [each["name"] for each in cas["cas"]] == ["ca"]
        coming = await assistant("forecast", days=90)
        assert len(coming["days"]) == 90
        assert sum(day["renewals"] for day in coming["days"]) == 2
        assert set(coming["budgets"]) == {"ca"}
        assert (len(coming["months"]["months"]), coming["months"]["fits"]) == (12, True)
        assert sum(month["orders"] for month in coming["months"]["months"]) >= 2
        assert (await assistant("doctor"))["you"]["actor"] == "agent:operator"
        assert (await assistant("approvals"))["approvals"] == []


async def test_a_certificate_is_planned_then_asked_for_and_only_once(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk, an_assistant(desk) as assistant:
        planned = await assistant("plan_certificate", names=["new.example.com"], owner="web", labels={"team": "a"})
        assert planned["would"]["names"] == ["new.example.com"]
        assert (await assistant("list_certificates"))["certificates"] == []
        done = await assistant("confirm", plan=planned["plan"])
        assert (done["done"], done["result"]["name"]) == ("request", "new.example.com")
        again = await assistant.refused("confirm", plan=planned["plan"])
        assert "new.example.com" in again or "changed since" in again
        assert len((await assistant("list_certificates"))["certificates"]) == 1


async def test_revoking_takes_two_calls_and_the_second_only_what_the_first_showed(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk, desk.house.working(), an_assistant(desk) as assistant:
        await desk.house.ask(NAME)
        await desk.house.settled(NAME)
        stale = await assistant("revoke", certificate=NAME, reason="superseded")
        await assistant("renew", certificate=NAME)
        await assistant("wait", certificate=NAME)
        assert "changed since" in await assistant.refused("confirm", plan=stale["plan"])
        assert desk.house.cas["ca"].revoked == []
        fresh = await assistant("revoke", certificate=NAME, reason="superseded")
        assert fresh["would"]["serial"] != stale["would"]["serial"]
        await assistant("confirm", plan=fresh["plan"])
        await desk.house.until_no_job("revoke")
        assert len(desk.house.cas["ca"].revoked) == 1
        assert "changed since" in await assistant.refused("confirm", plan=fresh["plan"])


async def test_a_plan_is_of_no_use_to_anybody_else(db: Database, tmp_path: Path) -> None:
    async with (
        a_desk(db, tmp_path) as desk,
        an_assistant(desk, name="one") as one,
        an_assistant(desk, name="two") as two,
    ):
        planned = await one("plan_certificate", names=["new.example.com"])
        assert "not a plan of yours" in await two.refused("confirm", plan=planned["plan"])
        assert "no plan id" in await one.refused("confirm", plan="plan_%%%")


async def test_a_plan_confirmed_twice_at_once_on_two_processes_is_carried_out_once(
    db: Database, tmp_path: Path
) -> None:
    async with a_desk(db, tmp_path) as desk:
        line = a_line(desk, await desk.token(Role.OPERATOR, kind="agent"))
        async with (
            Client(build(McpSession(line_for=lambda request: line))) as here,
            Client(build(McpSession(line_for=lambda request: line))) as there,
        ):
            planned = await Assistant(here)("plan_certificate", names=["new.example.com"])
            both = await asyncio.gather(
                *(client.call_tool("confirm", {"plan": planned["plan"]}) for client in (here, there))
            )
        assert any(not said.is_error for said in both)
        rows = await db.read(lambda tx: tx.rows("SELECT action FROM audit WHERE action = 'certificate_requested'"))
        assert len(rows) <= 1
        assert len(await db.read(lambda tx: tx.rows("SELECT id FROM certificates"))) == 1


async def test_the_role_decides_what_the_tools_can_do(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        await desk.house.ask("mine.example.com", owner="web")
        await desk.house.ask("theirs.example.com", owner="db")
        async with an_assistant(desk, Role.AGENT, owners=("web",)) as assistant:
            listed = await assistant("list_certificates")
            assert [each["name"] for each in listed["certificates"]] == ["mine.example.com"]
            assert "no-such-certificate" in await assistant.refused("renew", certificate="theirs.example.com")
            told = await assistant.refused("revoke", certificate="mine.example.com", reason="superseded")
            assert "may not revoke" in told
            assert "dead_jobs" in (await assistant("needs_attention"))["not_shown"]


async def test_no_answer_of_any_tool_holds_a_key_or_a_token(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk, desk.house.working(), an_assistant(desk, Role.ADMIN) as assistant:
        await desk.house.ask(NAME)
        await desk.house.settled(NAME)
        answers = [
            await assistant(name, **args)
            for name, args in {
                "needs_attention": {}, "list_certificates": {}, "certificate_status": {"certificate": NAME},
                "explain": {"certificate": NAME}, "events": {}, "forecast": {}, "list_cas": {}, "dead_letters": {},
                "search_audit": {}, "doctor": {},
            }.items()
        ]  # fmt: skip
    text = json.dumps(answers)
    assert "PRIVATE" not in text
    assert not re.search(r'"(key_pem|pkcs12|token|credentials|chain_pem)"', text)


async def test_an_argument_that_makes_no_sense_is_refused_before_anybody_is_asked(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk, an_assistant(desk) as assistant:
        assert "reason" in await assistant.refused("revoke", certificate=NAME, reason="because")
        assert "no name and no id" in await assistant.refused("explain", certificate="../tokens")
        assert "no_such_tool" in await assistant.refused("no_such_tool")


# ── plans ──


def a_plan(**changes: Any) -> ConfirmedPlan:
    plain: Mapping[str, Any] = {
        "action": "revoke", "args": {"a": 1}, "saw": "x", "once": "plan_1", "expires_at": NOW + timedelta(minutes=10),
    }  # fmt: skip
    return ConfirmedPlan(**{**plain, **changes})


def test_a_plan_opens_for_its_maker_until_it_ends() -> None:
    sealed = changing.seal(a_plan(), b"token")
    assert changing.opened(sealed, b"token", NOW) == a_plan()
    with pytest.raises(NoPlan, match="another token"):
        changing.opened(sealed, b"other", NOW)
    with pytest.raises(NoPlan, match="ended"):
        changing.opened(sealed, b"token", NOW + timedelta(minutes=10))


def test_no_byte_of_a_plan_can_be_changed() -> None:
    sealed = changing.seal(a_plan(), b"token")
    for place in range(len(changing.PREFIX), len(sealed)):
        swapped = "A" if sealed[place] != "A" else "B"
        altered = sealed[:place] + swapped + sealed[place + 1 :]
        try:
            found = changing.opened(altered, b"token", NOW)
        except NoPlan:
            continue
        assert found == a_plan()  # the last character may hold bits that belong to no byte


def test_a_digest_is_the_same_for_the_same_thing_however_it_is_ordered() -> None:
    assert (
        changing.digest({"a": 1, "b": [2]})
        == changing.digest({"b": [2], "a": 1})
        != changing.digest({"a": 1, "b": [3]})
    )
    assert replace(a_plan(), saw="y") != a_plan()
