"""Who may do what: every route, by every role, on one's own and on another's; tokens; what no answer may show."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from scripts import access_page
from tests.support.api import Asker, Desk, a_desk
from tests.support.messages import a_notification, owe
from tests.support.verdicts import ROLES, TABLE, Row

from holdfast.api import openapi
from holdfast.api.caller import Throttle
from holdfast.core.access import Role
from holdfast.core.agents.agent import AgentRow
from holdfast.operations.access import MAY, Action, Owned, Principal, Verdict, allow
from holdfast.operations.installation import tokens
from holdfast.operations.installation.tokens import Grant, TokenRefused, Unauthenticated
from holdfast.operations.operation import declared
from holdfast.secret import Secret
from holdfast.store import access
from holdfast.store.agents import agents
from holdfast.store.database import Database
from holdfast.store.tx import Tx

pytestmark = pytest.mark.anyio
HIDDEN = ("no-such-certificate", "no-such-issuance", "no-such-approval", "no-such-notification", "no-such-endpoint",
          "no-such-agent")  # fmt: skip
MINE, THEIRS = "mine.example.com", "theirs.example.com"


class Unbounded(Throttle):
    """Nobody's bad tokens come in great numbers here, from one address."""

    def failed(self, address: str) -> float:
        return 0.0


# ── The table ──


def _documented(desk: Desk) -> set[tuple[str, str]]:
    paths = openapi.whole()["paths"]
    return {(method.upper(), path) for path, item in paths.items() for method in item}


def _with_dry_run(desk: Desk) -> set[tuple[str, str]]:
    paths = openapi.whole()["paths"]
    found = [(method.upper(), path, each) for path, item in paths.items() for method, each in item.items()]
    return {(method, path) for method, path, each in found if "'dry_run'" in str(each.get("parameters"))}


async def test_every_route_has_its_row_of_verdicts(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        assert _documented(desk) == set(TABLE)
        assert all(len(row.verdicts) == len(ROLES) and len(row.foreign) in (0, len(ROLES)) for row in TABLE.values())


async def _askers(desk: Desk, first: str) -> dict[str, Asker]:
    """The first token is made again at the end: letting somebody in ends it."""
    found = {role.value: await desk.as_(role) for role in (Role.ADMIN, Role.OPERATOR, Role.VIEWER, Role.AUDITOR)}
    found["agent"] = await desk.as_(Role.AGENT, owners=("mine",))
    found["confined operator"] = await desk.as_(Role.OPERATOR, owners=("mine",))
    await desk.house.db.write(lambda tx: tx.run("UPDATE tokens SET revoked_at = NULL WHERE role = 'first'"))
    return {**found, "first": Asker(desk.http, first), "nobody": Asker(desk.http, "hf_x")}


async def _seeded(desk: Desk) -> dict[str, dict[str, str]]:
    """One certificate of each owner, with all that hangs on it; and what fills the place of each path's parameter."""
    admin = await desk.as_(name="seeder")
    places: dict[str, dict[str, str]] = {}
    for owner, name in (("mine", MINE), ("theirs", THEIRS)):
        async with desk.house.working():
            await admin.post("/certificates", {"names": [name], "owner": owner}, Prefer="wait=30")
        await desk.house.db.write(partial(_add_agent, owner=owner))
        await admin.post("/endpoints", {"place": name, "certificate": name})
        asked = await admin.post(
            "/certificates", {"names": [f"asked.{name}"], "owner": owner, "approval_required": True}
        )
        await owe(desk.house.db, a_notification(id=f"notification_{owner}", message=f"msg_{owner}", owner=owner))
        [waiting] = [each for each in (await admin.get("/approvals"))["items"] if each["certificate"] == asked["id"]]
        places[owner] = {
            "ref": name, "issuance": asked["operation"]["id"], "approval": waiting["id"], "name": "ca",
            "job": "job_unknown", "token": "unknown", "notification": f"notification_{owner}", "replica": "unknown",
            "ca": "default", "session": "unknown", "serial": "ab", "kid": "unknown", "account": "unknown",
            "policy": "unknown", "endpoint": name, "agent": f"agent-{owner}", "find": "unknown",
            "discovery": "unknown",
        }  # fmt: skip
    return places


def _add_agent(tx: Tx, *, owner: str) -> None:
    name, now = f"agent-{owner}", tx.now()
    row = AgentRow(
        id=f"id-{owner}", name=name, owner=owner, binding_key="", binding_sha256=owner, created_at=now, changed_at=now
    )
    assert agents.insert(tx, row)


def test_the_declarations_say_what_the_reviewed_table_says() -> None:
    derived = {(each.method, each.path): access_page.verdicts(each) for each in declared()}
    assert derived == {route: (row.verdicts, row.foreign) for route, row in TABLE.items()}


async def test_each_role_gets_the_verdict_of_the_table(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        first = await tokens.first(db, desk.house.certificate_context.random)
        assert first is not None
        places, askers = await _seeded(desk), await _askers(desk, first.reveal())
        desk.api.state.throttle = Unbounded()
        wrong, trials = [], _with_dry_run(desk)
        for (method, path), row in sorted(
            TABLE.items(), key=lambda item: item[0] == ("POST", "/tokens")
        ):  # it ends one
            for owner, verdicts in (("mine", row.verdicts), ("theirs", row.foreign)):
                for role, expected in reversed(list(zip(ROLES, verdicts, strict=False))):
                    tried = (method, path) in trials
                    got = await _verdict(askers[role], method, path, places[owner], row, owner, tried=tried)
                    wrong += [(method, path, owner, role, got, expected)] if got != expected else []
        assert wrong == []


async def _verdict(
    asker: Asker, method: str, path: str, places: dict[str, str], row: Row, owner: str, *, tried: bool
) -> str:
    """What they are told; a dry run asks the same question, and spoils nothing for the next one."""
    body = _filled(row.body, owner)
    url = re.sub(r"\{(\w+)\}", lambda found: places[found[1]], path)
    query = {"dry_run": True} if tried and path != "/tokens" else {}
    answer = await asker(method, url, body, headers=dict(row.headers), **query)
    problem = answer.json() if answer.headers.get("content-type", "").startswith("application/problem") else {}
    if answer.status_code == 401 or problem.get("code") == "forbidden":
        return "n"
    if answer.status_code == 404 and problem["code"] in HIDDEN:
        return "h"
    assert answer.status_code < 500, answer.text
    return "y"


def _filled(body: Any, owner: str) -> Any:
    return {name: owner if each == "{owner}" else each for name, each in body.items()} if body else body


async def test_who_may_not_ask_is_told_that_and_nothing_of_what_is_wrong_with_the_request(
    db: Database, tmp_path: Path
) -> None:
    async with a_desk(db, tmp_path) as desk:
        first = await tokens.first(db, desk.house.certificate_context.random)
        assert first is not None
        askers = await _askers(desk, first.reveal())
        for (method, path), row in TABLE.items():
            for role, verdict in zip(ROLES, row.verdicts, strict=True) if row.wrong is not None else ():
                answer = await askers[role](method, path, row.wrong, headers=dict(row.headers))
                assert (role, answer.status_code in (401, 403)) == (role, verdict == "n"), answer.text


async def test_lists_show_only_what_the_asker_may_see(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        await _seeded(desk)
        agent = await desk.as_(Role.AGENT, owners=("mine",))
        mine = {MINE, f"asked.{MINE}"}
        assert {each["name"] for each in (await agent.get("/certificates"))["items"]} == mine
        assert (await agent.get("/certificates", owner="theirs", total=True)) == {"items": [], "next": None, "total": 0}
        ids = {each["id"] for each in (await agent.get("/certificates"))["items"]}
        assert {each["certificate"] for each in (await agent.get("/issuances"))["items"]} == ids
        assert {each["certificate"] for each in (await agent.get("/approvals"))["items"]} <= ids
        assert {each["subject"] for each in (await agent.get("/events"))["items"]} == ids
        hidden = await agent("GET", "/issuances", certificate=THEIRS)
        assert hidden.status_code == 404
        assert (await agent.get("/events", subject="ca"))["items"] == []


async def test_a_confined_operator_cannot_give_a_certificate_away(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        await _seeded(desk)
        confined = await desk.as_(Role.OPERATOR, owners=("mine",))
        answer = await confined("PATCH", f"/certificates/{MINE}", {"owner": "theirs"}, headers={"If-Match": "*"})
        assert answer.status_code == 403
        admin = await desk.as_()
        assert (await admin.get(f"/certificates/{MINE}"))["owner"] == "mine"
        made = await confined.post("/certificates", {"names": ["third.example.com"]})
        assert made["owner"] == "mine"  # theirs to ask for, so theirs


async def test_labels_confine_as_owners_do(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        admin = await desk.as_()
        for name, team in (("a.example.com", "web"), ("b.example.com", "WEB"), ("c.example.com", "we_")):
            await admin.post("/certificates", {"names": [name], "labels": {"team": team}})
        agent = await desk.as_(Role.AGENT, labels={"team": "web"})
        assert [each["name"] for each in (await agent.get("/certificates"))["items"]] == ["a.example.com"]
        assert (await agent("GET", "/certificates/b.example.com")).status_code == 404
        assert (await agent.get("/certificates", label="team=WEB"))["items"] == []


def test_nothing_is_allowed_that_a_role_does_not_name() -> None:
    for role in Role:
        who = Principal(id="t", name="t", kind="human", role=role)
        for action in Action:
            allowed = allow(who, action, Owned("x", {})) is Verdict.ALLOWED
            assert allowed == (action in MAY[role] and action is not Action.EXPORT)


# ── Tokens ──


async def test_a_token_is_shown_once_and_kept_as_a_hash(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        admin = await desk.as_()
        made = await admin.post("/tokens", {"name": "ci", "kind": "robot", "role": "operator"})
        ask = Asker(desk.http, made["token"])
        assert (await ask.get("/self"))["actor"] == "robot:ci"
        listed = await admin("GET", "/tokens")
        assert made["token"].split("_", 2)[2] not in listed.text
        assert "hash" not in listed.text
        used = {each["id"]: each["last_used_at"] for each in listed.json()["items"]}
        assert used[made["id"]] is not None
        rows = await db.read(lambda tx: tx.rows("SELECT * FROM tokens"))
        assert made["token"] not in repr(rows)
        revoked = await admin.post(f"/tokens/{made['id']}/revoke")
        assert revoked["revoked_at"] is not None
        assert (await ask("GET", "/self")).status_code == 401
        actions = [each["action"] for each in (await admin.get("/audit", subject=made["id"]))["items"]]
        assert actions == ["token_revoked", "token_created"]


@pytest.mark.parametrize("token", ["", "hf_", "hf_x_y", "nonsense", "hf_" + "a" * 26 + "_" + "A" * 43, "é"])
async def test_a_text_that_is_no_token_of_ours_lets_nobody_in(db: Database, token: str) -> None:
    with pytest.raises(Unauthenticated):
        await tokens.authenticate(db, Secret(token))


async def test_the_public_part_of_a_token_is_not_enough(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        ask = await desk.as_()
        public, _, private = ask.token.rpartition("_")
        other = f"{public}_{private[:-2]}{'AA' if not private.endswith('AA') else 'BB'}"
        with pytest.raises(Unauthenticated):
            await tokens.authenticate(db, Secret(other))
        assert (await tokens.authenticate(db, Secret(ask.token))).role is Role.ADMIN


async def test_an_expired_token_lets_nobody_in(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        ask = await desk.as_(lives_for=timedelta(microseconds=1))
        answer = await ask("GET", "/self")
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
        assert answer.headers["www-authenticate"].startswith("Bearer")


async def test_the_first_token_makes_one_admin_and_ends(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        random = desk.house.certificate_context.random
        shown_to_nobody = await tokens.first(db, random)
        first = await tokens.first(db, random)
        assert first is not None
        assert shown_to_nobody is not None
        with pytest.raises(Unauthenticated):
            await tokens.authenticate(db, shown_to_nobody)
        ask = Asker(desk.http, first.reveal())
        assert (await ask("GET", "/certificates")).status_code == 403
        assert (await ask("POST", "/tokens", {"name": "me", "role": "viewer"})).status_code == 400
        made = await ask.post("/tokens", {"name": "me", "role": "admin", "rights": ["export"]})
        assert (await Asker(desk.http, made["token"]).get("/self"))["rights"] == ["export"]
        assert (await ask("POST", "/tokens", {"name": "you", "role": "admin"})).status_code == 401
        assert await tokens.first(db, random) is None


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"role": "agent", "owners": ["mine"]}, "agent"),
        ({"role": "viewer"}, "human"),
        ({"role": "viewer", "kind": "robot"}, "robot"),
    ],
    ids=["agent", "nothing-said", "said"],
)
async def test_a_token_of_the_role_agent_is_an_agents(
    db: Database, tmp_path: Path, more: dict[str, Any], kind: str
) -> None:
    async with a_desk(db, tmp_path) as desk:
        made = await (await desk.as_()).post("/tokens", {"name": "me", **more})
        assert (await Asker(desk.http, made["token"]).get("/self"))["actor"] == f"{kind}:me"


@pytest.mark.parametrize(
    ("path", "word", "near"),
    [
        ("/certificates?bogus=1", "bogus", "nearest"),
        ("/certificates?limt=5&limit=3", "limt", "nearest is limit."),
        ("/tokens?cursr=x", "cursr", "nearest is cursor."),
        ("/self?x=1", "x", "There are no parameters here."),
    ],
    ids=["strange", "misspelt", "of-a-list", "none-known"],
)
async def test_a_parameter_that_a_route_does_not_know_is_refused_and_the_nearest_named(
    db: Database, tmp_path: Path, path: str, word: str, near: str
) -> None:
    async with a_desk(db, tmp_path) as desk:
        answer = await (await desk.as_())("GET", path)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid-request")
        assert answer.json()["errors"][0]["pointer"] == f"/query/{word}"
        assert near in answer.json()["detail"]
        assert (await Asker(desk.http, "nonsense")("GET", path)).status_code == 401


async def test_nobody_gives_what_they_do_not_have(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        plain = await desk.as_(rights=frozenset())
        assert (await plain("POST", "/tokens", {"name": "x", "role": "admin", "rights": ["export"]})).status_code == 400
        confined = await desk.as_(owners=("mine",))
        assert (await confined("POST", "/tokens", {"name": "x", "role": "admin"})).status_code == 403
        who = await tokens.authenticate(db, Secret(confined.token))
        grant, new = Grant(name="x", role=Role.ADMIN), tokens.drawn(desk.house.certificate_context.random)
        with pytest.raises(TokenRefused):
            await desk.house.write(tokens.create, new, grant, by=who)
        with pytest.raises(TokenRefused):
            Grant(name="a", role=Role.AGENT).check()


async def test_bad_tokens_again_and_again_are_not_listened_to(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        bad = Asker(desk.http, "nonsense")
        statuses = [(await bad("GET", "/self")).status_code for _ in range(32)]
        assert statuses == [401] * 30 + [429] * 2
        good = await desk.as_()
        assert (await good("GET", "/self")).status_code == 200  # from the same address


# ── The door itself ──


async def test_without_a_token_nothing_is_told(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        for method, path in TABLE:  # no token is not a bad one: nothing is counted
            answer = await desk.http.request(method, f"http://holdfast.test/api/v1{path}")
            assert answer.status_code == 401, (method, path, answer.text)


async def test_the_local_socket_needs_no_token_and_names_its_user(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path, local=True) as desk:
        answer = await desk.http.get("http://local/api/v1/self", headers={"X-Holdfast-User": "root"})
        assert answer.json()["actor"] == "local:root"
        odd = await desk.http.get("http://local/api/v1/self", headers={"X-Holdfast-User": "a b:c"})
        assert odd.json()["actor"] == "local:unknown"


async def test_the_header_of_the_local_socket_means_nothing_elsewhere(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        answer = await desk.http.get("http://x/api/v1/self", headers={"X-Holdfast-User": "root"})
        assert answer.status_code == 401


async def test_a_body_that_is_too_long_is_not_read_to_its_end(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        ask = await desk.as_()
        answer = await ask("POST", "/certificates", {"names": ["a" * 300_000]})
        assert (answer.status_code, answer.json()["code"]) == (413, "too-large")
        assert "256 KiB" in answer.json()["detail"]


async def test_what_cannot_be_read_is_said_in_words_and_nobody_is_sent_elsewhere(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        ask, where = await desk.as_(), "http://evil.example/api/v1/certificates"
        bearer = {"Authorization": f"Bearer {ask.token}"}
        slashed = await desk.http.get(f"{where}/", headers=bearer)
        assert (slashed.status_code, "none ends with a slash" in slashed.json()["detail"]) == (404, True)
        form = await desk.http.post(where, content="names=a", headers=bearer | {"Content-Type": "text/plain"})
        assert (form.status_code, "application/json" in form.json()["hint"]) == (415, True)
        broken = await desk.http.post(
            where, content='{"names": [', headers=bearer | {"Content-Type": "application/json"}
        )
        assert broken.status_code == 422
        assert broken.json()["errors"][0]["pointer"] == "/body"
        assert broken.json()["detail"].startswith("The request: The body is not JSON: ")


async def test_the_first_token_lets_one_admin_in_however_many_ask_at_once(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        first = await tokens.first(db, desk.house.certificate_context.random)
        assert first is not None
        asker = Asker(desk.http, first.reveal())
        asked = [asker("POST", "/tokens", {"name": f"admin-{n}", "role": "admin"}) for n in range(12)]
        answers = sorted(each.status_code for each in await asyncio.gather(*asked))
        assert answers == [201] + [401] * 11
        assert len(await db.read(access.token_page)) == 2
