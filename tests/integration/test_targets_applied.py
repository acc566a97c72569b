"""Targets as objects of a document: planned, tried, applied, exported, pruned; never with their credentials."""

from pathlib import Path
from typing import Any

import pytest
from tests.support.deploying_house import HOST, Yard, a_look
from tests.support.lifecycle import a_house
from tests.support.running import run

from holdfast.core.access import Role
from holdfast.core.deployment import DeploymentState
from holdfast.core.documents.document import DocumentRefused
from holdfast.deployers.kind import LocalRules, Program
from holdfast.operations.certificates import documents
from holdfast.operations.deployment import targets as manage_targets
from holdfast.operations.runner import Options
from holdfast.store import journal
from holdfast.store.database import Database
from holdfast.store.deployments import targets

pytestmark = pytest.mark.anyio
NAME = "www.example.com"


@pytest.fixture
async def yard(db: Database, tmp_path: Path) -> Yard:
    (tmp_path / "live").mkdir()
    programs = {each: Program(argv=("/bin/true",)) for each in ("nginx-test", "nginx-reload", "other")}
    rules = LocalRules(folders=(tmp_path / "live",), programs=programs)
    return Yard(await a_house(db, tmp_path), rules, a_look())


def _document(folder: Path, *certificates: dict[str, Any], **target: Any) -> dict[str, Any]:
    web = {"name": "web-1", "kind": "nginx", "settings": {"folder": str(folder / "live")}, **target}
    return {"targets": [web], "certificates": list(certificates)}


CERTIFICATE = {"names": [NAME], "targets": ["web-1"]}


async def _planned(yard: Yard, tree: Any, **more: Any) -> list[tuple[str, str, str, list[str]]]:
    found = await yard.do(documents.plan, document=tree, **more)
    return [(each.action, each.what, each.name, [it.field for it in each.changes]) for each in found.steps]


async def _applied(yard: Yard, tree: Any, **more: Any) -> list[tuple[str, str, str]]:
    found = await yard.do(documents.apply, document=tree, **more)
    assert found.left == 0
    return [(each.action, each.name, each.error) for each in found.done]


async def test_a_target_and_a_certificate_that_names_it_come_to_be_in_this_order(yard: Yard, tmp_path: Path) -> None:
    tree = _document(tmp_path, CERTIFICATE)
    assert await _planned(yard, tree) == [
        ("create", "target", "web-1", []), ("create", "certificate", NAME, [])
    ]  # fmt: skip
    before = await yard.house.db.read(journal.audit_head)
    tried = await run(yard.services, documents.apply, options=Options(dry_run=True), document=tree)
    assert [(each.name, each.error) for each in tried.done] == [("web-1", ""), (NAME, "")]
    assert await yard.house.db.read(journal.audit_head) == before, "it was only tried"
    assert await _applied(yard, tree) == [("create", "web-1", ""), ("create", NAME, "")]
    assert await _planned(yard, tree) == []
    async with yard.house.working(kinds=yard.kinds):
        await yard.reaches(NAME, DeploymentState.INSTALLED)
    row = await yard.house.read(targets.get, "web-1")
    assert row is not None
    assert (row.kind, row.host, row.settings["reload"]) == ("files", HOST, "nginx-reload")


async def test_drift_is_seen_and_put_right(yard: Yard, tmp_path: Path) -> None:
    tree = _document(tmp_path, owner="web", endpoints=["www.example.com:443"])
    await _applied(yard, tree)
    await yard.do(manage_targets.change, name="web-1", settings={"reload": "other", "group": "root"}, rollout="x")
    await yard.do(manage_targets.pause, name="web-1")
    assert await _planned(yard, tree) == [("change", "target", "web-1", ["rollout", "paused", "settings"])]
    assert await _applied(yard, tree) == [("change", "web-1", "")]
    row = await yard.house.read(targets.get, "web-1")
    assert row is not None
    assert (row.settings.get("group"), row.settings["reload"], row.rollout, row.state.value) == (
        None, "nginx-reload", "", "active"
    )  # fmt: skip


async def test_what_is_exported_plans_to_nothing_and_has_no_credentials(yard: Yard, tmp_path: Path) -> None:
    await _applied(yard, _document(tmp_path, CERTIFICATE, paused=True))
    keystore = {"folder": str(tmp_path / "live"), "path": str(tmp_path / "live" / "k.p12")}
    await yard.add("java", kind="pkcs12", settings=keystore, credentials={"password": "sesame-open"})
    exported = await yard.do(documents.export)
    assert [each["name"] for each in exported["targets"]] == ["java", "web-1"]
    assert "sesame" not in str(exported)
    assert await _planned(yard, exported, prune=True) == []
    row = await yard.house.read(targets.get, "java")
    exported["targets"][0]["owner"] = "web"
    assert await _applied(yard, exported) == [("change", "java", "")]
    after = await yard.house.read(targets.get, "java")
    assert row is not None
    assert after is not None
    assert after.credentials == row.credentials, "a document keeps them"


async def test_a_target_that_needs_a_credential_is_added_by_a_person(yard: Yard, tmp_path: Path) -> None:
    keystore = {"folder": str(tmp_path / "live"), "path": str(tmp_path / "live" / "k.p12")}
    tree = {"targets": [{"name": "java", "kind": "pkcs12", "settings": keystore}], "certificates": []}
    [(action, name, error)] = await _applied(yard, tree)
    assert (action, name) == ("create", "java")
    assert "password" in error
    assert await yard.house.read(targets.get, "java") is None


async def test_what_left_the_document_is_deleted_once_nothing_names_it(yard: Yard, tmp_path: Path) -> None:
    await _applied(yard, _document(tmp_path, CERTIFICATE))
    without = {"targets": [], "certificates": [{"names": [NAME]}]}
    kept = await yard.do(documents.plan, document={"targets": [], "certificates": []})
    assert (kept.steps, kept.targets_left_alone) == ([], ["web-1"])
    still = await yard.do(documents.plan, document={"targets": [], "certificates": [CERTIFICATE]}, prune=True)
    assert (still.steps, still.targets_left_alone) == ([], ["web-1"]), "a certificate names it"
    tried = await run(yard.services, documents.apply, options=Options(dry_run=True), document=without, prune=True)
    assert [each.error for each in tried.done] == ["", ""]
    assert await _applied(yard, without, prune=True) == [("change", NAME, ""), ("delete", "web-1", "")]
    assert await yard.house.read(targets.all_targets) == []


async def test_kind_and_host_stay_and_unknown_ones_are_refused_with_their_place(yard: Yard, tmp_path: Path) -> None:
    await _applied(yard, _document(tmp_path))
    for change, place in (({"kind": "ssh"}, "targets[0].kind"), ({"host": "other"}, "targets[0].host")):
        with pytest.raises(DocumentRefused) as caught:
            await _planned(yard, _document(tmp_path, **change))
        assert [where for where, _ in caught.value.problems] == [place]
    with pytest.raises(DocumentRefused, match=r"targets\[0\].kind: There is no such kind of target"):
        await _planned(yard, _document(tmp_path, kind="toaster"))
    with pytest.raises(DocumentRefused, match=r"certificates\[0\].targets: There is no target named 'web-9'"):
        await _planned(yard, _document(tmp_path, {**CERTIFICATE, "targets": ["web-9"]}))


async def test_an_operator_applies_certificates_and_only_an_admin_targets(yard: Yard, tmp_path: Path) -> None:
    tree = _document(tmp_path, CERTIFICATE)
    done = (await run(yard.services, documents.apply, role=Role.OPERATOR, document=tree)).done
    assert "may not" in done[0].error
    assert (await yard.house.read(targets.all_targets)) == []
