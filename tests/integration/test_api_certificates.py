"""Certificates by the API: asked for, waited for, changed, renewed, revoked, exported, explained; on both stores."""

import base64
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key, pkcs12
from tests.support.api import a_desk
from tests.support.lifecycle import TruthfulCa

from holdfast.core.access import Role
from holdfast.errors import Refused
from holdfast.store import journal
from holdfast.store.database import Database

pytestmark = pytest.mark.anyio
NAME = "www.example.com"
WISH = {"names": [NAME, "10.0.0.1"]}


# ── Asking for one ──


async def test_a_certificate_is_asked_for_once_and_then_there(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        ask = await desk.as_(Role.OPERATOR, "alice")
        answer = await ask("POST", "/certificates", WISH)
        assert answer.status_code == 202, answer.text
        made = answer.json()
        assert made["status"]["phase"] == "pending"
        assert answer.headers["Location"] == f"/api/v1/issuances/{made['operation']['id']}"
        async with desk.house.working():
            attempt = await ask("GET", f"/issuances/{made['operation']['id']}", headers={"Prefer": "wait=30"})
        assert attempt.json()["state"] == "issued"
        found = await ask.get(f"/certificates/{NAME}")
        assert found["id"] == made["id"]
        assert found["names"] == [NAME, "10.0.0.1"]
        assert found["status"]["phase"] == "ok"
        assert found["status"]["next_attempt_at"] is not None
        assert found["changed_by"] == "human:alice"
        assert found["operation"] is None


async def test_whoever_is_ready_to_wait_gets_the_finished_certificate(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk, desk.house.working():
        ask = await desk.as_()
        answer = await ask("POST", "/certificates", WISH, headers={"Prefer": "respond-async, wait=30"})
        assert answer.status_code == 201
        assert answer.json()["operation"]["state"] == "issued"
        assert answer.json()["serial"] == f"{desk.house.cas['ca'].issued[0].serial_number:x}"


async def test_a_repeated_key_gives_the_first_answer_and_one_certificate(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        ask = await desk.as_()
        first = await ask("POST", "/certificates", WISH, headers={"Idempotency-Key": "k1"})
        again = await ask("POST", "/certificates", WISH, headers={"Idempotency-Key": "k1"})
        assert (again.status_code, again.json()) == (first.status_code, first.json())
        assert len((await ask.get("/certificates"))["items"]) == 1
        other = await ask("POST", "/certificates", {"names": ["b.example.com"]}, headers={"Idempotency-Key": "k1"})
        assert (other.status_code, other.json()["code"]) == (422, "idempotency-key-reused")
        stranger = await desk.as_(name="bob")  # the same word of somebody else is another key
        theirs = await stranger("POST", "/certificates", WISH, headers={"Idempotency-Key": "k1"})
        assert (theirs.status_code, theirs.json()["code"]) == (409, "certificate-exists")


async def test_a_dry_run_says_what_would_be_and_changes_nothing(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        ask = await desk.as_()
        before = await db.read(journal.audit_head)
        answer = await ask("POST", "/certificates", WISH, dry_run=True)
        assert answer.status_code == 200
        assert answer.json()["status"]["phase"] == "pending"
        refused = await ask("POST", "/certificates", {**WISH, "issuers": ["nobody"]}, dry_run=True)
        assert refused.json()["code"] == "unknown-issuer"
        assert (await ask.get("/certificates", total=True))["total"] == 0
        assert await db.read(journal.audit_head) == before
        assert await db.read(lambda tx: tx.rows("SELECT id FROM jobs")) == []


@pytest.mark.parametrize(
    ("wish", "status", "code"),
    [
        ({"names": []}, 422, "invalid-request"),
        ({"names": ["a.*.example.com"]}, 400, None),
        ({"names": ["a" * 64 + ".example.com"]}, 400, None),
        ({"names": [f"n{n}.example.com" for n in range(101)]}, 400, "specification-refused"),
        ({"names": [NAME], "issuers": ["nobody"]}, 400, "unknown-issuer"),
        ({"names": [NAME], "colour": "red"}, 422, "invalid-request"),
        ({"names": ["a\u0000b"]}, 400, "name-control-character"),
        ({"names": [NAME], "labels": {"a b": "c"}}, 422, "invalid-request"),
        ({"names": [NAME], "renewal": {"fraction": 0.5, "before_s": 60}}, 400, "specification-refused"),
        ({"names": [NAME], "windows": [{"opens": 5, "closes": 5}]}, 422, "invalid-request"),
        ({"names": [NAME], "name": "two words"}, 400, "specification-refused"),
        ("nonsense", 422, "invalid-request"),
    ],
)
async def test_what_cannot_be_wished_for_is_refused_in_words(
    db: Database, tmp_path: Path, wish: object, status: int, code: str | None
) -> None:
    async with a_desk(db, tmp_path) as desk:
        ask = await desk.as_()
        answer = await ask("POST", "/certificates", wish)
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        problem = answer.json()
        assert problem["code"] == code or code is None
        assert problem["detail"]
        assert problem["hint"]
        assert problem["retryable"] is False
        assert problem["request_id"] == answer.headers["x-request-id"]
        assert (await ask.get("/certificates"))["items"] == []


# ── Lists ──


async def test_a_list_is_filtered_and_read_in_pages(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        ask = await desk.as_()
        for number in range(7):
            team = {"team": "web" if number % 2 else "db"}
            owner = "platform" if number < 3 else ""
            await ask.post("/certificates", {"names": [f"n{number}.example.com"], "labels": team, "owner": owner})
        seen, cursor = [], None
        while True:
            page = await ask.get("/certificates", limit=3, **({"cursor": cursor} if cursor else {}))
            seen += [each["name"] for each in page["items"]]
            cursor = page["next"]
            if cursor is None:
                break
        assert seen == [f"n{number}.example.com" for number in range(7)]

        async def names(**query: object) -> list[str]:
            return [each["name"][1] for each in (await ask.get("/certificates", **query))["items"]]

        assert await names(label="team=web") == ["1", "3", "5"]
        assert await names(label="team=WEB") == []
        assert await names(owner="platform") == ["0", "1", "2"]
        assert await names(unowned=True) == ["3", "4", "5", "6"]
        assert await names(q="N4.") == ["4"]
        assert await names(q="%") == []
        assert await names(issuer="ca") == [str(number) for number in range(7)]
        assert await names(failing=True) == []
        assert (await ask.get("/certificates", total=True, limit=1))["total"] == 7
        wrong = await ask("GET", "/certificates", cursor="bm9uc2Vuc2U")
        assert (wrong.status_code, wrong.json()["code"]) == (400, "bad-cursor")


async def test_what_ends_first_is_first_if_so_asked(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk, desk.house.working():
        ask, lives = await desk.as_(), {"a": 30, "b": 10, "c": 20}
        for name, days in lives.items():
            desk.house.cas["ca"].life = timedelta(days=days)
            await ask.post("/certificates", {"names": [f"{name}.example.com"]}, Prefer="wait=30")
        desk.house.cas["ca"].polls = 10**6
        for name in "de":
            await ask.post("/certificates", {"names": [f"{name}.example.com"]})
        for size in (1, 2, 3, 4, 9):  # those that have no end yet are the last
            found, cursor = list[str](), {}
            while cursor is not None:
                page = await ask.get("/certificates", sort="expires", limit=size, **cursor)
                found += [each["name"][0] for each in page["items"]]
                cursor = {"cursor": page["next"]} if page["next"] else None
            assert found == ["b", "c", "a", "d", "e"]
        first = await ask.get("/certificates", sort="expires", limit=2)
        soon = await ask.get("/certificates", expires_before=first["items"][1]["not_after"])
        assert [each["name"][0] for each in soon["items"]] == ["b"]
        summary = await ask.get("/stats/summary")
        assert summary["certificates"] == {"active": 5}
        assert summary["expiring"] == {"1": 0, "7": 0, "14": 1, "30": 3, "90": 3}


# ── Changing ──


async def test_a_change_names_the_version_that_it_changes(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        ask = await desk.as_()
        await ask.post("/certificates", WISH)
        tag = (await ask("GET", f"/certificates/{NAME}")).headers["etag"]
        path, change = f"/certificates/{NAME}", {"owner": "platform", "labels": {"a": "b"}}
        missing = await ask("PATCH", path, change)
        assert (missing.status_code, missing.json()["code"]) == (428, "precondition-required")
        changed = await ask("PATCH", path, change, headers={"If-Match": tag})
        assert changed.status_code == 200, changed.text
        assert (changed.json()["owner"], changed.json()["labels"]) == ("platform", {"a": "b"})
        stale = await ask("PATCH", path, {"owner": "x"}, headers={"If-Match": tag})
        assert (stale.status_code, stale.json()["code"]) == (412, "stale")
        newer = await ask("PATCH", path, {"key": "ec-p384"}, headers={"If-Match": "*"})
        assert (newer.json()["key"], newer.json()["generation"]) == ("ec-p384", 2)
        null = await ask("PATCH", path, {"key": None}, headers={"If-Match": "*"})
        assert null.status_code == 400


async def test_it_is_paused_resumed_and_archived(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        ask = await desk.as_()
        await ask.post("/certificates", WISH)
        assert (await ask.post(f"/certificates/{NAME}/pause"))["status"]["phase"] == "paused"
        assert (await ask("POST", f"/certificates/{NAME}/pause")).status_code == 409
        assert (await ask("POST", f"/certificates/{NAME}/renew")).json()["code"] == "certificate-state"
        assert (await ask.post(f"/certificates/{NAME}/resume"))["state"] == "active"
        gone = await ask("DELETE", f"/certificates/{NAME}")
        assert gone.json()["status"]["phase"] == "archived"
        assert (await ask("GET", f"/certificates/{NAME}")).status_code == 404
        assert (await ask.get(f"/certificates/{gone.json()['id']}"))["state"] == "archived"


# ── Its life ──


async def test_it_is_renewed_now_and_says_why_it_failed(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk, desk.house.working():
        ask, ca = await desk.as_(), desk.house.cas["ca"]
        await ask.post("/certificates", WISH, Prefer="wait=30")
        renewed = await ask("POST", f"/certificates/{NAME}/renew", headers={"Prefer": "wait=30"})
        assert (renewed.status_code, renewed.json()["operation"]["state"]) == (200, "issued")
        versions = await ask.get(f"/certificates/{NAME}/versions")
        assert [each["state"] for each in versions] == ["active", "superseded"]
        ca.always["place"] = Refused("the CA does not like it", reason="CA_REFUSED")
        failed = await ask("POST", f"/certificates/{NAME}/renew", headers={"Prefer": "wait=30"})
        assert (failed.status_code, failed.json()["operation"]["state"]) == (200, "failed")
        status = failed.json()["status"]
        assert (status["phase"], status["reason_code"], status["attempt"]) == ("failing", "CA_REFUSED", 1)
        assert status["last_error"] == "the CA does not like it"
        explained = await ask.get(f"/certificates/{NAME}/explain")
        assert explained["blocking"] == "NOT_DUE"  # an hour of back-off ends long before it is due
        assert explained["checks"][0]["rule"] == "state"
        later = await ask.get(f"/certificates/{NAME}/explain", at=versions[0]["not_after"])
        assert later["verdict"] == "The certificate has expired. Due at once."
        attempts = await ask.get("/issuances", certificate=NAME)
        assert [each["state"] for each in attempts["items"]] == ["failed", "issued", "issued"]
        [first] = (await ask.get("/issuances", certificate=NAME, limit=1))["items"]
        assert first["reason_code"] == "CA_REFUSED"
        assert [each["name"] for each in (await ask.get("/certificates", failing=True))["items"]] == [NAME]
        events = (await ask.get(f"/certificates/{NAME}/events"))["items"]
        assert events[0]["name"] == "certificate.requested"
        assert events[-1]["name"] == "issuance.failed"


async def test_an_attempt_is_cancelled(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        ask = await desk.as_()
        await ask.post("/certificates", WISH)
        assert (await ask("POST", f"/certificates/{NAME}/cancel", {"why": ""})).status_code == 422
        await ask.post(f"/certificates/{NAME}/cancel", {"why": "a mistake"})
        [attempt] = (await ask.get("/issuances", state="cancelled"))["items"]
        assert attempt["error"] == "a mistake"


async def test_a_revoked_certificate_is_replaced(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk, desk.house.working():
        ask = await desk.as_()
        await ask.post("/certificates", WISH, Prefer="wait=30")
        path = f"/certificates/{NAME}/revoke"
        assert (await ask("POST", path, {})).status_code == 422  # a reason is wanted
        answer = await ask("POST", path, {"reason": "key-compromise"}, headers={"Prefer": "wait=30"})
        assert answer.json()["operation"]["state"] == "issued", answer.text
        await desk.house.until_no_job("revoke")
        assert [reason for _, reason in desk.house.cas["ca"].revoked] == [1]


async def test_a_key_leaves_only_by_the_right_to_export_and_into_the_audit_log(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk, desk.house.working():
        ask, without = await desk.as_(), await desk.as_(rights=frozenset())
        await ask.post("/certificates", WISH, Prefer="wait=30")
        path = f"/certificates/{NAME}/export"
        refused = await without("POST", path, {})
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
        pem = await ask.post(path, {})
        leaf = x509.load_pem_x509_certificate(pem["chain_pem"].encode())
        key = load_pem_private_key(pem["key_pem"].encode(), None)
        assert key.public_key() == leaf.public_key()
        assert (await ask("POST", path, {"form": "pkcs12"})).status_code == 400
        packed = await ask.post(path, {"form": "pkcs12", "passphrase": "sesame"})
        _, certificate, _ = pkcs12.load_key_and_certificates(base64.b64decode(packed["pkcs12"]), b"sesame")
        assert certificate == leaf
        chain = await without("GET", f"/certificates/{NAME}/chain")
        assert chain.text == pem["chain_pem"]
        exported = (await ask.get("/audit", action="key_exported"))["items"]
        assert [each["details"]["form"] for each in exported] == ["pkcs12", "pem"]
        everything = (await ask("GET", f"/certificates/{NAME}")).text + (
            await ask("GET", f"/certificates/{NAME}/versions")
        ).text
        assert "PRIVATE" not in everything


async def test_a_second_person_approves(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk, desk.house.working():
        alice, bob = await desk.as_(Role.OPERATOR, "alice"), await desk.as_(Role.OPERATOR, "bob")
        made = await alice.post("/certificates", {**WISH, "approval_required": True})
        assert made["status"]["phase"] == "awaiting_approval"
        [waiting] = (await bob.get("/approvals"))["items"]
        [listed] = (await bob.get("/certificates"))["items"]
        assert listed["status"]["approval_ends_at"] == made["status"]["approval_ends_at"] == waiting["expires_at"]
        again = datetime.fromisoformat(made["status"]["next_attempt_at"])
        assert again - datetime.fromisoformat(waiting["expires_at"]) == timedelta(hours=1)
        path = f"/approvals/{waiting['id']}"
        own = await alice("POST", f"{path}/approve", {})
        assert (own.status_code, own.json()["code"]) == (403, "own-request")
        second = await desk.as_(Role.OPERATOR, "alice")  # the same person with another token
        assert (await second("POST", f"{path}/approve", {})).status_code == 403
        assert (await bob("POST", f"{path}/approve", {"note": "fine"})).status_code == 204
        over = await bob("GET", f"/issuances/{made['operation']['id']}", headers={"Prefer": "wait=30"})
        assert over.json()["state"] == "issued"
        assert (await bob("POST", f"{path}/reject", {})).status_code == 409


# ── CAs and jobs ──


async def test_cas_are_added_tested_paused_and_their_budgets_shown(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        ask = await desk.as_()
        desk.house.cas["two"] = TruthfulCa()
        wish = {"name": "two", "kind": "test", "settings": {"a": 1}, "credentials": {"eab_key": "sesame-sesame"}}
        added = await ask("POST", "/issuers", wish)
        assert (added.status_code, added.json()["credentials"]) == (201, ["eab_key"])
        assert "sesame" not in added.text
        assert (await ask("POST", "/issuers", wish)).json()["code"] == "issuer-exists"
        assert (await ask.post("/issuers/two/test"))["ok"] is True
        desk.house.cas["two"].always["probe"] = Refused("no account")
        assert "no account" in (await ask.post("/issuers/two/test"))["detail"]
        assert (await ask.post("/issuers/two/pause"))["state"] == "paused"
        assert (await ask.post("/issuers/two/resume"))["state"] == "active"
        assert isinstance(await ask.get("/issuers/two/budget"), list)
        assert [each["name"] for each in (await ask.get("/issuers"))["items"]] == ["ca", "two"]
        known = await ask.post("/issuers", {"name": "le", "preset": "letsencrypt"})
        assert known["settings"]["directory"].startswith("https://acme-v02")
        other = {"name": "le2", "preset": "letsencrypt", "settings": {"directory": "https://ca.example/directory"}}
        assert "A preset has its own directory" in (await ask("POST", "/issuers", other)).json()["detail"]
        several = await ask("POST", "/certificates", WISH)
        assert (several.status_code, several.json()["code"]) == (400, "specification-refused")
        assert (await ask("GET", "/issuers/nobody/budget")).status_code == 404


async def test_jobs_are_listed_cancelled_and_retried(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        ask = await desk.as_()
        await ask.post("/certificates", WISH)
        [job] = (await ask.get("/jobs", kind="issue"))["items"]
        assert (job["state"], job["attempt"]) == ("ready", 0)
        assert (await ask.post(f"/jobs/{job['id']}/retry"))["due_at"] == job["due_at"]  # it is due: nothing to hurry
        assert (await ask("POST", f"/jobs/{job['id']}/cancel", {"why": "x"}, dry_run=True)).status_code == 204
        assert (await ask.get(f"/jobs/{job['id']}"))["state"] == "ready"
        assert (await ask("POST", f"/jobs/{job['id']}/cancel", {"why": "x"})).status_code == 204
        assert (await ask.get(f"/jobs/{job['id']}"))["state"] == "cancelled"
