"""Approval follows names and CAs, not one certificate: whoever may ask cannot walk round it; on both stores."""

from pathlib import Path
from typing import Any

import pytest
from tests.support.lifecycle import House, TruthfulCa, a_house, a_moving_house
from tests.support.running import context_of

from holdfast.core.certificate import in_common_with
from holdfast.core.journal import Event
from holdfast.core.own_ca.acme import Identifier
from holdfast.core.status import Phase
from holdfast.engine.issuance import renewals
from holdfast.operations.certificates import documents
from holdfast.operations.issuance import approvals
from holdfast.operations.issuers import manage as manage_issuers
from holdfast.store import journal
from holdfast.store.database import Database

pytestmark = pytest.mark.anyio
GUARDED = "y1.internal"


async def _phase(house: House, ref: str) -> Phase:
    return (await house.view(ref)).status.phase


@pytest.mark.parametrize(
    ("names", "waits"),
    [
        ((GUARDED, "www.y1.internal"), True),
        (("*.internal",), True),
        (("www.y1.internal",), False),
        (("*.y1.internal",), False),
        (("y2.internal",), False),
    ],
    ids=["the same name", "a wildcard above it", "a name below it", "a wildcard below it", "a neighbour"],
)
async def test_names_that_need_approval_need_it_in_every_certificate(
    db: Database, tmp_path: Path, names: tuple[str, ...], waits: bool
) -> None:
    house = await a_house(db, tmp_path)
    await house.ask(GUARDED, approval_required=True)
    view = await house.ask(*names, name="bypass")
    assert (view.status.phase is Phase.AWAITING_APPROVAL) is waits
    if waits:
        [asked] = [each for each in await db.read(_events) if each.subject == view.certificate.id]
        assert asked.details["why"] == f"{names[0]} overlaps with certificate {GUARDED}, which needs approval."


def _events(tx: Any) -> list[Event]:
    return [each for each in journal.events_after(tx, 0, limit=200) if each.name == "approval.asked"]


@pytest.mark.parametrize("path", ["changed", "document", "renewed", "swept"])
async def test_whichever_way_names_are_taken_the_second_person_is_asked(tmp_path: Path, path: str) -> None:
    async with a_moving_house(tmp_path) as (house, _):
        await _taken(house, path)
        assert await _phase(house, "other") is Phase.AWAITING_APPROVAL
        assert house.cas["ca"].calls.count("place") == 1


async def _taken(house: House, path: str) -> None:
    await house.ask("b.internal", name="other")
    await house.worked("other")
    if path in ("renewed", "swept"):  # it had the name before anybody said that it needs approval
        await house.set_state("other", "paused", actor="local:alice")
        await house.change("other", names=["b.internal", GUARDED])
    await house.ask(GUARDED, approval_required=True)
    match path:
        case "changed":
            await house.change("other", names=["b.internal", GUARDED])
        case "document":
            entry = {"name": "other", "names": ["b.internal", GUARDED], "issuers": ["ca"]}
            await documents.applied(context_of(house.certificate_context), {"certificates": [entry]})
        case _:
            await house.set_state("other", "resumed", actor="local:alice")
            if path == "renewed":
                await house.renew("other", actor="local:alice")
            await renewals.sweep_due(house.certificate_context)


async def test_a_ca_may_issue_nothing_without_approval(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    await house.add("strict", TruthfulCa(), approval_required=True)
    assert await _phase(house, (await house.ask("free.example")).certificate.id) is Phase.PENDING
    for chosen in (("strict",), ("ca", "strict")):  # an attempt may move on to the second
        view = await house.ask(f"{len(chosen)}.example", issuers=chosen)
        assert view.status.phase is Phase.AWAITING_APPROVAL
    first, _ = await house.pending()
    with pytest.raises(approvals.NotYours):
        await house.approve(first.id, actor="local:alice")
    await house.change_issuer("strict", {"approval_required": False}, actor="local:admin")
    assert await _phase(house, (await house.ask("now.example", issuers=["strict"])).certificate.id) is Phase.PENDING


async def test_a_plan_counts_all_that_will_wait(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    await house.add("strict", TruthfulCa(), approval_required=True)
    await house.ask(GUARDED, approval_required=True)
    names = {"other": (GUARDED, "ca"), "free": ("a.example", "ca"), "b": ("b.example", "strict")}
    entries = [{"name": name, "names": [each], "issuers": [ca]} for name, (each, ca) in names.items()]
    assert (await documents.planned(context_of(house.certificate_context), {"certificates": entries})).approvals == 2


async def test_the_rule_of_a_ca_is_true_or_false(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    with pytest.raises(manage_issuers.IssuerRefused, match="approval_required is 'yes'") as refused:
        await house.change_issuer("ca", {"approval_required": "yes"}, actor="local:admin")
    assert refused.value.hint == "It is true or false."


async def test_one_that_is_archived_guards_nothing_and_none_guards_itself(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    await house.ask(GUARDED, approval_required=True)
    await house.set_state(GUARDED, "archived", actor="local:alice")
    assert await _phase(house, (await house.ask(GUARDED)).certificate.id) is Phase.PENDING


@pytest.mark.parametrize(
    ("ours", "theirs", "found"),
    [
        ("a.b.c", "a.b.c", "a.b.c"),
        ("a.b.c", "*.b.c", "a.b.c"),
        ("*.b.c", "a.b.c", "*.b.c"),
        ("b.c", "*.b.c", None),
        ("*.b.c", "b.c", None),
        ("a.a.b.c", "*.b.c", None),
        ("localhost", "other", None),
        ("10.0.0.1", "*.0.0.1", None),
    ],
)
def test_names_overlap_as_tls_reads_wildcards(ours: str, theirs: str, found: str | None) -> None:
    one = [Identifier("ip" if ours[0] == "1" else "dns", ours)]
    assert in_common_with([Identifier("dns", theirs)])(one) == found


async def test_who_needs_approval_is_found_by_an_index(db: Database) -> None:
    """Or each attempt would cost as much as there are certificates."""
    asked = "SELECT name FROM certificates WHERE approval_required AND state <> 'archived' AND id <> 'x'"
    if db.engine.name == "sqlite":
        [plan] = await db.read(lambda tx: tx.rows(f"EXPLAIN QUERY PLAN {asked}"))
        assert "certificates_guarded" in plan["detail"]


async def _changed(house: House, actor: str, **changes: Any) -> None:
    await house.change("mine", actor=actor, **changes)


async def test_nobody_approves_a_change_of_their_own_that_another_changed_after_them(
    db: Database, tmp_path: Path
) -> None:
    """Alice adds a name, Bob changes the key type: neither may approve what holds both their changes."""
    house = await a_house(db, tmp_path)
    await _approved(house, "carol")
    await _changed(house, "human:alice", names=["mine.example", "bank-admin.corp.example"])
    await _changed(house, "human:bob", key="ec-p384")
    for actor in ("human:alice", "human:bob"):
        with pytest.raises(approvals.NotYours):
            await house.approve((await house.pending())[0].id, actor=actor)
    await house.approve((await house.pending())[0].id, actor="human:carol")


async def _approved(house: House, by: str) -> None:
    """A certificate that needs approval and was issued with it."""
    await house.ask("mine.example", name="mine", approval_required=True)
    await house.approve((await house.pending())[0].id, actor=f"human:{by}")
    await house.worked("mine")


async def test_who_changed_what_another_approved_may_approve_the_next_change(db: Database, tmp_path: Path) -> None:
    """Approved means approved, also where the CA refused it then: two people can go on without a third."""
    house = await a_house(db, tmp_path)
    await _approved(house, "carol")
    await _changed(house, "human:alice", names=["mine.example", "other.example"])
    await house.approve((await house.pending())[0].id, actor="human:bob")
    await _changed(house, "human:bob", key="ec-p384")
    [waiting] = await house.pending()
    with pytest.raises(approvals.NotYours):
        await house.approve(waiting.id, actor="human:bob")
    await house.approve(waiting.id, actor="human:alice")
