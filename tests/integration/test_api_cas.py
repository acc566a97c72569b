"""Our own CAs through the API: administered from anywhere by role, in pages, by version, and in the document."""

from pathlib import Path
from typing import Any

import pytest
from tests.support.api import Desk, a_desk
from tests.support.ca import authorities_of, issue

from holdfast.api import openapi
from holdfast.core.access import Role
from holdfast.core.own_ca.ca import CaPolicy
from holdfast.operations.context import OwnCaServices
from holdfast.operations.own_ca.authorities import Authorities
from holdfast.store.database import Database

pytestmark = pytest.mark.anyio


class Opened:
    """The authorities of a process whose vault is there only once it has begun."""

    def __init__(self) -> None:
        self.authorities: Authorities | None = None

    async def refresh(self) -> None:
        assert self.authorities is not None
        await self.authorities.refresh()

    def services(self) -> OwnCaServices:
        return OwnCaServices(policy=CaPolicy(), refresh=self.refresh, problem=lambda ca: None)

    def begin(self, desk: Desk) -> Authorities:
        self.authorities = authorities_of(desk.house.certificate_context.secret_store)
        return self.authorities


async def test_a_ca_is_created_listed_and_its_certificate_revoked_by_an_admin_elsewhere(
    db: Database, tmp_path: Path
) -> None:
    opened = Opened()
    async with a_desk(db, tmp_path, own_ca=opened.services()) as desk:
        authorities = opened.begin(desk)
        admin, viewer = await desk.as_(), await desk.as_(Role.VIEWER)
        asked = {"ca": "lab", "permitted": ["*.example.internal"]}
        refused = await viewer("POST", "/cas", asked)
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
        refused = await viewer("POST", "/cas", {"nonsense": 1})
        assert refused.status_code == 403, "who may not do it is told so before the body is read"
        made = await admin("POST", "/cas", asked)
        assert made.status_code == 201, made.text
        assert made.json()["directory"].endswith("/acme/lab/directory")
        assert [each["ca"] for each in (await viewer.get("/cas"))["items"]] == ["lab"]
        lab = authorities.get("lab")  # the change holds for this process at once
        assert lab is not None
        issued = await issue(db, lab)
        path, why = f"/cas/lab/certificates/{issued.serial}/revoke", {"reason": "superseded"}
        assert (await viewer("POST", path, why)).status_code == 403
        assert (await admin.post(path, why))["serial"] == issued.serial
        [listed] = (await viewer.get("/cas/lab/certificates"))["items"]
        assert listed["revoked_at"] is not None
        rows = (await admin.get("/audit", action="certificate_revoked"))["items"]
        assert [(each["actor"], each["origin"]["face"]) for each in rows] == [("human:admin", "api")]
        chain = await viewer("GET", "/cas/lab/chain", root=True)
        assert (chain.headers["content-type"].partition(";")[0], chain.text[:27]) == (
            "application/x-pem-file", "-----BEGIN CERTIFICATE-----",
        )  # fmt: skip


async def test_a_device_is_named_only_on_the_machine_of_the_server(db: Database, tmp_path: Path) -> None:
    """Its address names a library that the server would load, and a file that it would read."""
    async with a_desk(db, tmp_path, own_ca=Opened().services()) as desk:
        admin = await desk.as_()
        address = f"pkcs11:token=x;object=y?module-path={tmp_path / 'evil.so'}&pin-source={tmp_path / 'pin'}"
        refused = await admin("POST", "/cas/lab/adopt", {"chain": "-----", "device": address})
        assert (refused.status_code, refused.json()["code"]) == (400, "ca-refused"), refused.text
        assert "only by a user of the server's machine" in refused.json()["detail"]


async def test_a_change_of_a_ca_names_the_version_that_was_read(db: Database, tmp_path: Path) -> None:
    opened = Opened()
    async with a_desk(db, tmp_path, own_ca=opened.services()) as desk:
        opened.begin(desk)
        admin = await desk.as_()
        await admin.post("/cas", {"ca": "lab"})
        tag = (await admin("GET", "/cas/lab")).headers["etag"]
        assert (await admin("PATCH", "/cas/lab", {"eab_required": True})).status_code == 428
        changed = await admin("PATCH", "/cas/lab", {"eab_required": True}, headers={"If-Match": tag})
        assert changed.json()["options"]["eab_required"] is True
        stale = await admin("PATCH", "/cas/lab", {"eab_required": False}, headers={"If-Match": tag})
        assert (stale.status_code, stale.json()["code"]) == (412, "ca-changed")


async def test_lists_of_our_cas_come_in_pages(db: Database, tmp_path: Path) -> None:
    opened = Opened()
    async with a_desk(db, tmp_path, own_ca=opened.services()) as desk:
        opened.begin(desk)
        admin = await desk.as_()
        for name in ("a", "b", "c"):
            await admin.post("/cas", {"ca": name})
            await admin.post("/acme/eab-keys", {"ca": "a"})
        for path, key in (("/cas", "ca"), ("/acme/eab-keys", "kid")):
            whole = [each[key] for each in (await admin.get(path))["items"]]
            first = await admin.get(path, limit=2)
            rest = await admin.get(path, limit=2, cursor=first["next"])
            assert [each[key] for each in first["items"] + rest["items"]] == whole
            assert (len(whole), rest["next"]) == (3, None)


async def test_the_mac_key_of_an_eab_key_is_shown_once_and_kept_for_no_repetition(db: Database, tmp_path: Path) -> None:
    opened = Opened()
    async with a_desk(db, tmp_path, own_ca=opened.services()) as desk:
        opened.begin(desk)
        admin = await desk.as_()
        await admin.post("/cas", {"ca": "lab"})
        tried = await admin("POST", "/acme/eab-keys", {"ca": "lab"}, dry_run=True)
        assert (tried.status_code, tried.json()["mac"]) == (201, "")
        made = await admin.post("/acme/eab-keys", {"ca": "lab"}, Idempotency_Key="once")
        again = await admin.post("/acme/eab-keys", {"ca": "lab"}, Idempotency_Key="once")
        assert made["mac"] != again["mac"]
        assert all("mac" not in each for each in (await admin.get("/acme/eab-keys"))["items"])


def test_every_operation_on_our_cas_is_in_the_document() -> None:
    paths: dict[str, Any] = openapi.whole()["paths"]
    found = {each["operationId"]: each for item in paths.values() for each in item.values()}
    cas = {"ca.create", "ca.adopt", "ca.list", "ca.get", "ca.chain", "ca.close", "ca.open", "ca.change", "ca.renew"}
    cas |= {"ca.root-crl", "issued.list", "issued.revoke", "keys.block", "accounts.list", "accounts.revoke"}
    cas |= {"eab.create", "eab.list", "eab.revoke", "orders.list", "pauses.list", "pauses.add", "pauses.delete"}
    many = {"documents.plan", "documents.apply", "documents.export", "imports.account", "imports.certificates"}
    assert cas | many <= found.keys()
    secret = {name for name in cas | many if found[name]["x-holdfast"]["not_on_mcp"]}
    assert secret == {"ca.adopt", "eab.create", "imports.account", "imports.certificates"}
    assert not found["documents.plan"]["x-holdfast"]["changes"]
