"""Who may have which names: from the API, from documents, from ACME clients; and what violates a policy made later."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.acme_desk import open_office
from tests.support.api import a_desk

from holdfast.core.access import Role
from holdfast.core.own_ca.acme import Identifier
from holdfast.core.own_ca.problem import AcmeError
from holdfast.core.policy import Policy
from holdfast.store import policies
from holdfast.store.database import Database

pytestmark = pytest.mark.anyio
TEAM_A = {"policy": "team-a", "names": ["*.team-a.example"], "owners": ["team-a"]}
TEAM_B = {"policy": "team-b", "names": ["*.team-b.example"], "owners": ["team-b"]}


def refusal(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


async def test_a_team_gets_no_certificate_for_the_name_of_another(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        admin = await desk.as_()
        ann = await desk.as_(Role.OPERATOR, "ann", owners=("team-a",))
        for each in (TEAM_A, TEAM_B):
            await admin.post("/policies", each)
        await ann.post("/certificates", {"names": ["www.team-a.example"]})
        for names in (["www.team-b.example"], ["www.team-a.example", "x.team-b.example"], ["www.other.example"]):
            refused = await ann("POST", "/certificates", {"names": names, "name": "another"})
            assert refusal(refused) == (403, "name-not-allowed"), refused.text
        assert "Policy 'team-a' says so." in refused.json()["detail"]
        changed = await ann(
            "PATCH", "/certificates/www.team-a.example", {"names": ["b.team-b.example"]}, headers={"If-Match": "*"}
        )
        assert refusal(changed) == (403, "name-not-allowed")
        document = {"certificates": [{"names": ["b.team-b.example"], "owner": "team-a", "issuers": ["ca"]}]}
        applied = await admin("POST", "/documents/apply", {"document": document})
        assert "reserved for owner team-b" in applied.text, "an admin's document is held to it, too"
        assert (await admin.get("/certificates", q="team-b"))["items"] == []


async def test_without_any_policy_a_confined_token_gets_no_name_that_others_hold(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        admin = await desk.as_()
        ann = await desk.as_(Role.OPERATOR, "ann", owners=("team-a",))
        await admin.post("/certificates", {"names": ["secret.team-b.example"], "owner": "team-b"})
        for name in ("secret.team-b.example", "*.team-b.example"):
            refused = await ann("POST", "/certificates", {"names": [name], "name": "mine"})
            assert refusal(refused) == (403, "name-not-allowed")
            assert "team-b'" not in refused.text, "whose it is stays unsaid"
        await ann.post("/certificates", {"names": ["open.team-b.example"]})
        await admin.post("/certificates", {"names": ["secret.team-b.example"], "name": "twin"})


async def test_a_policy_made_later_is_violated_by_name_and_stops_no_renewal(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        admin = await desk.as_()
        await admin.post("/certificates", {"names": ["www.team-b.example"], "owner": "team-a"})
        await admin.post("/certificates", {"names": ["www.team-a.example"], "owner": "team-a"})
        for each in (TEAM_A, TEAM_B):
            await admin.post("/policies", each)
        [bad] = (await admin.get("/policies/violations"))["items"]
        assert (bad["certificate"], bad["policy"], bad["owner"]) == ("www.team-b.example", "team-b", "team-a")
        explained = await admin.get("/certificates/www.team-b.example/explain")
        assert explained["checks"][0]["rule"] == "policy"
        assert "violates policy team-b" in explained["checks"][0]["verdict"]
        assert (await admin.get("/certificates/www.team-a.example/explain"))["checks"][0]["rule"] != "policy"
        await admin.post("/certificates/www.team-b.example/renew")
        labelled = await admin(
            "PATCH", "/certificates/www.team-b.example", {"labels": {"x": "y"}}, headers={"If-Match": "*"}
        )
        assert labelled.status_code == 200, "what policies do not look at may be changed"
        await admin("DELETE", "/policies/team-b")
        assert [each["policy"] for each in (await admin.get("/policies/violations"))["items"]] == ["team-a"]


async def test_a_policy_is_changed_by_version_checked_and_audited(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        admin, viewer = await desk.as_(), await desk.as_(Role.VIEWER)
        made = await admin.post("/policies", {**TEAM_A, "max_lifetime_s": 30 * 86400, "key_kinds": ["ec-p256"]})
        assert refusal(await admin("POST", "/policies", TEAM_A)) == (409, "policy-exists")
        assert refusal(await admin("POST", "/policies", {**TEAM_A, "names": ["not a name"]}))[0] == 400
        assert refusal(await viewer("POST", "/policies", TEAM_B)) == (403, "forbidden")
        stale = {"If-Match": f'"{made["version"] + 7}"'}
        changed = await admin("PATCH", "/policies/team-a", {"key_kinds": []}, headers=stale)
        assert refusal(changed) == (412, "policy-changed")
        changed = await admin(
            "PATCH", "/policies/team-a", {"key_kinds": []}, headers={"If-Match": f'"{made["version"]}"'}
        )
        assert (changed.json()["key_kinds"], changed.json()["max_lifetime_s"]) == ([], 30 * 86400)
        asked = {"names": ["www.team-a.example"], "owner": "team-a"}
        verdict = await admin.post("/policies/check", asked)
        assert (verdict["allowed"], verdict["policy"]) == (False, "team-a")
        assert "--lifetime 30d" in verdict["why"]
        verdict = await admin.post("/policies/check", {**asked, "lifetime_s": 86400})
        assert (verdict["allowed"], verdict["covered_by"]) == (True, ["team-a"])
        actions = [each["action"] for each in (await admin.get("/audit", subject="team-a"))["items"]]
        assert actions == ["policy_changed", "policy_added"]


async def test_an_acme_account_is_held_to_the_policies_of_its_owner(db: Database, tmp_path: Path) -> None:
    async with open_office(db, tmp_path) as office, office.working():
        mine, other = await office.client(), await office.client()
        await db.write(lambda tx: tx.run("UPDATE acme_accounts SET owner = 'team-a' WHERE id = :id", id=mine.account))
        order, late = await office.ready(mine), await office.ready(other)
        reserved = Policy(name="a", names=("*",), owners=("team-a",), created_at=await db.read(lambda tx: tx.now()))
        await db.write(lambda tx: policies.insert(tx, replace(reserved, key_kinds=("rsa-2048",))))
        with pytest.raises(AcmeError) as refused:
            await office.order(other, Identifier("dns", "a.corp.example"))
        assert refused.value.problem.type == "rejectedIdentifier"
        assert "team-a" not in refused.value.problem.detail
        with pytest.raises(AcmeError) as refused:  # an order of before is held to it at its last step
            await office.finalize(other, late)
        assert refused.value.problem.type == "rejectedIdentifier"
        with pytest.raises(AcmeError):  # the key is known only now
            await office.finalize(mine, order)
        await db.write(lambda tx: policies.save(tx, reserved, key_kinds=("ec-p256",)))
        await office.finalize(mine, order)
        assert (await office.ended(mine, order.id)).certificate is not None
