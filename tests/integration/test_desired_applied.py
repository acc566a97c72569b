"""A document is planned, applied and exported on real stores: twice is once; what is gone is archived, not revoked."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.support.ca import a_vault
from tests.support.commands import holdfast
from tests.support.lifecycle import House, TruthfulCa, a_house
from tests.support.processes import environment
from tests.support.running import add_issuer, context_of, run
from tests.support.stores import migrated, open_store

from holdfast.core.certificate import CertificateState
from holdfast.core.documents.document import DocumentRefused
from holdfast.operations import kinds
from holdfast.operations.certificates import document_steps, documents
from holdfast.operations.certificates.documents import PlanIsStale
from holdfast.operations.issuance.attempts import CertificateContext
from holdfast.store import certificates as rows
from holdfast.store import issuances, journal, versions
from holdfast.store.database import Database
from holdfast.store.sqlite import SqliteEngine
from holdfast.world import SystemClock, SystemRandom

pytestmark = pytest.mark.anyio


def _entry(name: str, *names: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "names": list(names or (f"{name}.example.com",)), **more}


def _document(*entries: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"certificates": list(entries), **more}


async def _applied(house: House, tree: Any, **wishes: Any) -> list[tuple[str, str, str]]:
    done, left = await documents.applied(context_of(house.certificate_context), tree, **wishes)
    assert left == 0
    return [(each.step.action, each.step.name, each.error) for each in done]


async def _states(db: Database) -> dict[str, str]:
    found = await db.read(lambda tx: tx.rows("SELECT name, state FROM certificates ORDER BY name"))
    return {row["name"]: row["state"] for row in found}


# ── Applying ──


async def test_what_a_document_says_comes_to_be_and_applying_it_again_does_nothing(
    db: Database, tmp_path: Path
) -> None:
    house = await a_house(db, tmp_path)
    tree = _document(_entry("a"), _entry("b", owner="web", labels={"env": "prod"}))
    assert await _applied(house, tree) == [("create", "a", ""), ("create", "b", "")]
    assert (await documents.planned(context_of(house.certificate_context), tree)).plan.empty
    before = await db.read(lambda tx: journal.audit_page(tx, 0))
    assert await _applied(house, tree) == []
    assert await db.read(lambda tx: journal.audit_page(tx, 0)) == before
    view = await house.worked("b")
    assert view.current is not None
    assert (view.certificate.wanted.owner, view.certificate.wanted.labels) == ("web", {"env": "prod"})
    assert (await documents.planned(context_of(house.certificate_context), tree)).plan.empty


async def test_a_change_of_inputs_is_issued_anew_and_another_is_not(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    await _applied(house, _document(_entry("a")))
    first = await house.worked("a")
    assert await _applied(house, _document(_entry("a", owner="web"))) == [("change", "a", "")]
    same = await house.view("a")
    assert (same.certificate.wanted.owner, same.certificate.generation, same.issuance) == ("web", 1, None)
    wider = _document(_entry("a", "a.example.com", "b.example.com", owner="web"))
    planned = await documents.planned(context_of(house.certificate_context), wider)
    assert (planned.orders, planned.approvals) == ({"ca": 1}, 0)
    await _applied(house, wider)
    second = await house.worked("a")
    assert second.certificate.generation == 2
    assert second.current is not None
    assert second.current != first.current


async def test_what_left_the_document_is_archived_if_asked_for_and_never_revoked(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    await _applied(house, _document(_entry("a"), _entry("b")))
    held = (await house.worked("b")).current
    assert held is not None
    kept = await documents.planned(context_of(house.certificate_context), _document(_entry("a")))
    assert (kept.plan.empty, kept.plan.left_alone) == (True, ("b",))
    assert await _applied(house, _document(_entry("a"))) == []
    assert await _applied(house, _document(_entry("a")), prune=True) == [("archive", "b", "")]
    assert await _states(db) == {"a": "active", "b": "archived"}
    after = await db.read(lambda tx: versions.get(tx, held.id))
    assert after == held
    assert house.cas["ca"].revoked == []
    assert await _applied(house, _document(_entry("a"), _entry("b"))) == [("create", "b", "")]


async def test_a_document_with_a_scope_leaves_the_certificates_of_others_alone(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    await _applied(house, _document(_entry("mine"), scope={"team": "web"}))
    await house.ask("other.example.com")
    assert await _applied(house, _document(scope={"team": "web"}), prune=True) == [("archive", "mine", "")]
    assert await _states(db) == {"mine": "archived", "other.example.com": "active"}


async def test_a_paused_entry_orders_nothing_until_it_is_resumed(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    await _applied(house, _document(_entry("a", paused=True)))
    view = await house.view("a")
    assert (view.certificate.state, view.issuance, view.certificate.next_action_at) == (
        CertificateState.PAUSED,
        None,
        None,
    )
    assert (
        await documents.planned(context_of(house.certificate_context), _document(_entry("a", paused=True)))
    ).plan.empty
    await _applied(house, _document(_entry("a", "x.example.com", paused=True)))
    assert await db.read(lambda tx: issuances.of(tx, view.certificate.id)) == []
    await _applied(house, _document(_entry("a", "x.example.com")))
    attempted = await house.attempt("a")
    assert attempted.current is not None
    await _applied(house, _document(_entry("a", "y.example.com", paused=True)))
    assert (await house.view("a")).issuance is None


async def test_a_step_that_fails_is_told_and_the_others_are_done(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    await _applied(house, _document(_entry("a")))
    planned = await documents.planned(
        context_of(house.certificate_context), _document(_entry("a", owner="web"), _entry("b"))
    )
    await house.ask("b.example.com", name="b")  # somebody was faster
    context = context_of(house.certificate_context)
    errors = [await document_steps.carried_out(context, step) for step in planned.plan.steps]
    assert [(each.step.name, bool(each.error)) for each in errors] == [("a", False), ("b", True)]
    assert errors[1].hint


async def test_what_changed_since_it_was_planned_is_not_overwritten(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    await _applied(house, _document(_entry("a")))
    await house.worked("a")
    tree = _document(_entry("a", owner="web"))
    planned = await documents.planned(context_of(house.certificate_context), tree)
    await house.change("a", owner="shop", actor="local:bob")
    [step] = planned.plan.steps
    assert "changed since" in (await document_steps.carried_out(context_of(house.certificate_context), step)).error
    with pytest.raises(PlanIsStale):
        await documents.applied(context_of(house.certificate_context), tree, expect=planned.plan.digest())
    again = await documents.planned(context_of(house.certificate_context), tree)
    assert await _applied(house, tree, expect=again.plan.digest()) == [("change", "a", "")]


async def test_steps_are_done_a_batch_at_a_time_until_none_is_left(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    tree = _document(*(_entry(f"c{number}") for number in range(5)))
    done, left = await documents.applied(context_of(house.certificate_context), tree, most=2)
    assert ([each.step.name for each in done], left) == (["c0", "c1"], 3)
    done, left = await documents.applied(context_of(house.certificate_context), tree, most=2, skip={"c2"})
    assert ([each.step.name for each in done], left) == (["c3", "c4"], 0)


async def test_approvals_and_orders_are_foretold(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    await house.add("second", TruthfulCa())
    tree = _document(
        _entry("a", issuers=["ca"], approval_required=True),
        _entry("b", issuers=["second", "ca"]),
        _entry("c", issuers=["ca"], paused=True),
    )
    planned = await documents.planned(context_of(house.certificate_context), tree)
    assert (planned.orders, planned.approvals) == ({"ca": 1, "second": 1}, 1)


# ── What is refused ──


@pytest.mark.parametrize(
    ("entry", "where"),
    [
        (_entry("a", "a..example.com"), "certificates[0].names"),
        (_entry("a", "x.*.example.com"), "certificates[0].names"),
        (_entry("a", "bücher.example"), "certificates[0].names"),
        (_entry("a", f"{'x' * 64}.example.com"), "certificates[0].names"),
        (_entry("a", issuers=["nobody"]), "certificates[0].issuers"),
        (_entry("a", names=[]), "certificates[0].names"),
        (_entry("a", names=[f"n{number}.example.com" for number in range(101)]), "certificates[0].names"),
    ],
)
async def test_a_document_with_a_mistake_changes_nothing(
    db: Database, tmp_path: Path, entry: dict[str, Any], where: str
) -> None:
    house = await a_house(db, tmp_path)
    with pytest.raises(DocumentRefused) as caught:
        await documents.applied(context_of(house.certificate_context), _document(entry, _entry("good")))
    assert [place for place, _ in caught.value.problems] == [where]
    assert await _states(db) == {}


async def test_more_names_than_a_ca_allows_are_a_mistake_of_the_document(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    await house.add("le", TruthfulCa(), kind="acme", **kinds.presets()["letsencrypt"].settings)
    names = [f"{number}.example.com" for number in range(26)]
    tree = _document(_entry("many", *names, issuers=["ca", "le"], profile="tlsserver"))
    with pytest.raises(DocumentRefused, match="le puts at most 25 names into a certificate of profile 'tlsserver'"):
        await documents.planned(context_of(house.certificate_context), tree)


async def test_where_there_are_several_cas_one_must_be_named(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    await house.add("second", TruthfulCa())
    with pytest.raises(DocumentRefused, match="ca, second"):
        await documents.planned(context_of(house.certificate_context), _document(_entry("a")))
    assert not (
        await documents.planned(
            context_of(house.certificate_context), _document(_entry("a"), defaults=[{"issuers": ["second"]}])
        )
    ).plan.empty


# ── Export ──


async def test_what_is_exported_plans_to_nothing_whoever_made_it(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    await house.ask("a.example.com", "192.0.2.1", "2001:db8::1", labels={"env": "prod"}, owner="web")
    await house.ask("*.example.com", approval_required=True)
    await house.ask("p.example.com")
    await house.set_state("p.example.com", "paused", actor="local:bob")
    await house.ask("z.example.com")
    await house.set_state("z.example.com", "archived", actor="local:bob")
    tree = await run(house.services, documents.export)
    assert [each["name"] for each in tree["certificates"]] == ["*.example.com", "a.example.com", "p.example.com"]
    planned = await documents.planned(context_of(house.certificate_context), json.loads(json.dumps(tree)), prune=True)
    assert (planned.plan.empty, planned.plan.unchanged) == (True, 3)
    part = await run(house.services, documents.export, label=["env=prod"])
    assert [each["name"] for each in part["certificates"]] == ["a.example.com"]
    assert (await documents.planned(context_of(house.certificate_context), part, prune=True)).plan.empty


async def test_more_than_a_page_of_certificates_is_seen(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    number = documents._PAGE + 3
    tree = _document(*(_entry(f"c{at:04}", paused=True) for at in range(number)))
    await _applied(house, tree)
    assert (await documents.planned(context_of(house.certificate_context), tree, prune=True)).plan.unchanged == number


# ── The commands ──


def _holdfast(folder: Path, *args: object) -> subprocess.CompletedProcess[str]:
    return holdfast(*args, env=environment(folder, {}))


async def _a_store(folder: Path) -> None:
    db = await migrated(open_store(SqliteEngine(folder / "holdfast.sqlite", SystemClock())))
    context = CertificateContext(db=db, random=SystemRandom(), secret_store=await a_vault(db, folder))
    await add_issuer(
        context, "ca", kind="local", kinds=frozenset({"local"}), settings={"ca": "default"}, actor="local:op"
    )
    await db.close()


async def test_the_commands_plan_apply_and_export_with_their_exit_codes(tmp_path: Path) -> None:
    await _a_store(tmp_path)
    file = tmp_path / "certificates.yaml"
    file.write_text("# ours\ncertificates:\n- names: [a.example.com]  # the first\n- names: [b.example.com]\n")
    planned = _holdfast(tmp_path, "plan", "-f", file)
    assert planned.returncode == 10, planned.stderr
    assert planned.stdout.splitlines()[0].startswith("+ create   a.example.com")
    assert "ca will be asked for 2 certificates" in planned.stderr
    tried = _holdfast(tmp_path, "apply", "-f", file, "--dry-run")
    assert (tried.returncode, tried.stdout, "Nothing was changed" in tried.stderr) == (0, planned.stdout, True)
    applied = _holdfast(tmp_path, "apply", "-f", file)
    assert applied.returncode == 0, applied.stderr
    assert applied.stdout.splitlines() == ["+ created  a.example.com", "+ created  b.example.com"]
    assert _holdfast(tmp_path, "plan", "-f", file).returncode == 0
    exported = _holdfast(tmp_path, "export")
    file.write_text(exported.stdout)
    assert _holdfast(tmp_path, "plan", "-f", file, "--prune").returncode == 0
    file.write_text(exported.stdout.replace("names: [b.example.com]", "names: [b.example.com, c.example.com]"))
    saved = tmp_path / "plan.json"
    changed = _holdfast(tmp_path, "plan", "-f", file, "--out", saved)
    assert (changed.returncode, changed.stdout[:27]) == (10, "~ change   b.example.com  n")
    assert _holdfast(tmp_path, "apply", "-f", saved).returncode == 0
    for more in ((), ("--dry-run",)):
        stale = _holdfast(tmp_path, "apply", "-f", saved, *more)
        assert stale.returncode == 5, stale.stdout + stale.stderr
    file.write_text("certificates: []")
    assert _holdfast(tmp_path, "apply", "-f", file, "--prune", "-o", "json").returncode == 0
    db = await migrated(open_store(SqliteEngine(tmp_path / "holdfast.sqlite", SystemClock())))
    assert await db.read(lambda tx: rows.page(tx)) == []
    await db.close()


async def test_a_mistake_is_told_with_its_file_and_line(tmp_path: Path) -> None:
    await _a_store(tmp_path)
    file = tmp_path / "c.yaml"
    file.write_text(
        "certificates:\n- names: [a.example.com]\n- names: [b..example.com]\n- names: [c.example.com]\n  key: x\n"
    )
    done = _holdfast(tmp_path, "plan", "-f", file)
    assert done.returncode == 1
    assert f"{file}:5: certificates[2].key: " in done.stderr
    file.write_text("certificates:\n- names: [a.example.com]\n- names: [b..example.com]\n")
    assert f"{file}:3: certificates[1].names: " in _holdfast(tmp_path, "apply", "-f", file).stderr
    file.write_text("certificates: []\ncertificates: []\n")
    assert f"{file}: Line 2: " in _holdfast(tmp_path, "plan", "-f", file).stderr
    missing = _holdfast(tmp_path, "plan", "-f", tmp_path / "missing.yaml")
    assert missing.returncode == 1
    assert "holdfast export" in missing.stderr


def test_the_schema_is_printed_without_a_store(tmp_path: Path) -> None:
    done = _holdfast(tmp_path, "export", "--schema")
    assert json.loads(done.stdout)["required"] == ["certificates"]
