"""Whatever asks a CA for something pays for it: also revocations, and jobs that were lost; on both stores."""

from pathlib import Path
from typing import Any

import pytest
from tests.support.later import LaterCa
from tests.support.lifecycle import House, a_house

from holdfast.core.issuers import ca_limits
from holdfast.core.own_ca.acme import Identifier
from holdfast.engine import sweep
from holdfast.engine.issuance import duties as issuance_duties
from holdfast.operations import kinds
from holdfast.operations.certificates.checks import SpecificationRefused
from holdfast.operations.issuers import manage as manage_issuers
from holdfast.ports import no_points
from holdfast.store.database import Database

pytestmark = pytest.mark.anyio
NAME = "www.example.com"
LIMITS = {"requests": [100, 0.001], "orders": [5, 3600], "per_domain": [9, 3600], "per_set": [3, 3600]}
REQUEST = ca_limits.request_key("paid")


async def _paid_by(db: Database, kind: str) -> set[str]:
    [row] = await db.read(lambda tx: tx.rows("SELECT budgets FROM jobs WHERE kind = :kind", kind=kind))
    return set(row["budgets"].split())


async def _lost(house: House, kind: str) -> set[str]:
    """The job's row is gone, and its budgets with it, as after a restore; what the one pays for that comes back."""

    def lose(tx: Any) -> None:
        tx.run("DELETE FROM jobs WHERE kind = :kind", kind=kind)
        tx.run("DELETE FROM budgets")

    await house.db.write(lose)
    assert await sweep.reconcile(house.db, issuance_duties.families(house.certificate_context), no_points) == 1
    paid = await _paid_by(house.db, kind)
    kept = await house.db.read(lambda tx: tx.rows("SELECT key FROM budgets"))
    assert {row["key"] for row in kept} == paid, "a budget that is not kept limits nothing"
    return paid


async def test_an_order_whose_job_was_lost_is_paid_for_like_any_other(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    await house.add("paid", LaterCa(), limits=LIMITS)
    await house.ask(NAME, issuers=["paid"])
    before = await _paid_by(db, "issue")
    names = (Identifier("dns", NAME),)
    limits = kinds.limits_by("test", {"limits": LIMITS})
    assert before == set(ca_limits.budgets_of_order(limits, "paid", names, renewal=False, in_ari_window=False))
    assert len(before) == 4
    assert await _lost(house, "issue") == before


async def test_an_order_that_is_placed_pays_for_requests_only(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    await house.add("paid", LaterCa(), limits=LIMITS)
    async with house.working():
        await house.ask(NAME, issuers=["paid"])
        await house.until(lambda: "look" in house.cas["paid"].calls)

        async def waits() -> bool:
            return (await _paid_by(db, "issue")) == {REQUEST}

        await house.until(waits)
    assert await _lost(house, "issue") == {REQUEST}
    await house.cancel(NAME, actor="local:alice", why="a mistake")
    assert await _paid_by(db, "withdraw") == {REQUEST}
    assert await _lost(house, "withdraw") == {REQUEST}


async def test_two_rows_for_lets_encrypt_share_what_it_counts_across_accounts(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    for name in ("first", "second"):
        await house.add(name, LaterCa(), kind="acme", **kinds.presets()["letsencrypt"].settings)
        await house.ask(NAME if name == "first" else f"{name}.example.com", issuers=[name])
    left = {name: {each.key for each in await house.read(manage_issuers.left, name)} for name in ("first", "second")}
    domain = "ca/acme-v02.api.letsencrypt.org/domain/example.com"
    assert domain in left["first"] & left["second"]
    assert left["first"] ^ left["second"] == {f"ca/{name}/{each}" for name in left for each in ("requests", "orders")}


async def test_more_names_than_a_ca_allows_are_refused_before_it_is_asked(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    await house.add("le", LaterCa(), kind="acme", **kinds.presets()["letsencrypt"].settings)
    names = [f"{number}.example.com" for number in range(26)]
    with pytest.raises(SpecificationRefused, match="le puts at most 25 names into a certificate of profile 'short"):
        await house.ask(*names, issuers=["le"], profile="shortlived")
    await house.ask(*names[:25], issuers=["le"], profile="shortlived")
    with pytest.raises(SpecificationRefused, match="these are 26"):
        await house.change(names[0], names=names)


async def test_a_revocation_pays_for_its_request(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    async with house.working():
        await house.ask(NAME)
        await house.settled(NAME)
    await house.set_state(NAME, "paused", actor="local:alice")
    await house.revoke(NAME, reason=4, actor="local:alice")
    assert await _paid_by(db, "revoke") == {ca_limits.request_key("ca")}
    assert await _lost(house, "revoke") == {ca_limits.request_key("ca")}
    async with house.working():
        await house.until_no_job("revoke")
    assert [reason for _, reason in house.cas["ca"].revoked] == [4]
