"""One owner's renewals delay the others of a CA no more than they must: turns are given back, and shared."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest
from tests.support.api import a_desk
from tests.support.lifecycle import House, a_house

from holdfast.core.access import Role
from holdfast.core.issuers.ca_limits import order_key
from holdfast.engine.issuance import issuer_fallback
from holdfast.operations import kinds
from holdfast.operations.certificates import lifecycle
from holdfast.store.database import Database
from holdfast.store.tx import Tx, from_micros
from holdfast.store.work import budgets

pytestmark = pytest.mark.anyio
TIGHT = {"limits": {"orders": [2, 600]}}


async def _tight(house: House) -> None:
    """Nothing is left of what the CA allows: whoever comes waits for a turn."""
    await house.change_issuer("ca", TIGHT, actor="local:op")
    limit = kinds.limits_by("test", TIGHT).orders
    assert limit is not None
    await house.db.write(lambda tx: budgets.define_all(tx, {order_key("ca"): limit}))
    for _ in range(3):
        await house.db.write(lambda tx: budgets.count(tx, [order_key("ca")]))


async def _issued(house: House, number: int, owner: str) -> list[str]:
    names = [f"{owner}{n}.example.com" for n in range(number)]
    async with house.working():
        for name in names:
            await house.ask(name, owner=owner)
            await house.settled(name)
    return names


async def _waits_for_a_turn(house: House, name: str) -> datetime:
    """When its job is promised a turn."""

    def look(tx: Tx) -> list[datetime]:
        rows = tx.rows(
            """SELECT jobs.due_at FROM jobs JOIN issuances ON issuances.id = jobs.subject
                 JOIN certificates ON certificates.id = issuances.certificate
                WHERE jobs.kind = 'issue' AND jobs.reason = 'BUDGET' AND certificates.name = :name""",
            name=name,
        )
        return [from_micros(row["due_at"]) for row in rows]

    async def promised() -> bool:
        return bool(await house.db.read(look))

    await house.until(promised)
    return (await house.db.read(look))[0]


async def test_a_cancelled_renewal_gives_its_turn_back(db: Database, tmp_path: Path) -> None:
    """However often one is asked for and cancelled, the next order of another waits no longer than the first would."""
    house = await a_house(db, tmp_path)
    [mine] = await _issued(house, 1, "team-a")
    await _tight(house)
    async with house.working():
        turns = []
        for _ in range(8):
            await house.renew(mine)
            turns.append(await _waits_for_a_turn(house, mine))
            await house.cancel(mine, why="to try it")
        await house.ask("team-b.example.com", owner="team-b")
        theirs = await _waits_for_a_turn(house, "team-b.example.com")
    assert theirs - turns[0] < timedelta(seconds=600)
    assert max(turns) - turns[0] < timedelta(seconds=600)


async def test_the_turn_of_a_cancelled_renewal_goes_to_the_last_in_line(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    names = await _issued(house, 3, "team-a")
    await _tight(house)
    async with house.working():
        for name in names:
            await house.renew(name)
            await _waits_for_a_turn(house, name)
        first, last = await _waits_for_a_turn(house, names[0]), await _waits_for_a_turn(house, names[2])
        await house.cancel(names[0], why="to try it")
        assert await _waits_for_a_turn(house, names[2]) == first < last


async def test_a_first_certificate_of_another_owner_is_dealt_an_early_turn(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    names = await _issued(house, 6, "team-a")
    await _tight(house)
    async with house.working():
        for name in names:
            await house.renew(name)
            await _waits_for_a_turn(house, name)
        await house.ask("team-b.example.com", owner="team-b")
        before = await _waits_for_a_turn(house, "team-b.example.com")
        await issuer_fallback.deal(house.certificate_context)
        after = await _waits_for_a_turn(house, "team-b.example.com")
    assert before - after >= timedelta(seconds=4 * 600)


async def test_renewals_of_one_certificate_by_one_token_are_limited(db: Database, tmp_path: Path) -> None:
    async with a_desk(db, tmp_path) as desk:
        await desk.house.ask("a.example.com", owner="mine")
        await desk.house.worked("a.example.com")
        agent = await desk.as_(Role.AGENT, owners=("mine",))
        admin = await desk.as_()
        for _ in range(lifecycle.RENEWALS.count):
            assert (await agent("POST", "/certificates/a.example.com/renew")).status_code == 202
            await admin.post("/certificates/a.example.com/cancel", {"why": "to try it"})
        refused = await agent("POST", "/certificates/a.example.com/renew")
        assert (refused.status_code, refused.json()["code"]) == (429, "too-many-renewals")
        assert int(refused.headers["retry-after"]) >= 1
        assert (await admin("POST", "/certificates/a.example.com/renew")).status_code == 202


async def test_renewals_that_are_not_due_leave_half_of_the_orders_to_other_teams(db: Database, tmp_path: Path) -> None:
    """By a confined token, however many certificates it has; an operator of everything may still renew any."""
    async with a_desk(db, tmp_path) as desk:
        house, names = desk.house, [f"a{n}.example.com" for n in range(3)]
        for name in names:
            await house.ask(name, owner="mine")
            await house.worked(name)
        await house.change_issuer("ca", {"limits": {"orders": [8, 600]}}, actor="local:op")
        agent, admin = await desk.as_(Role.AGENT, owners=("mine",)), await desk.as_()
        answers = []
        for turn in range(8):
            name = names[turn % 3]
            answers.append(await agent("POST", f"/certificates/{name}/renew"))
            await house.worked(name)
        refused = [each.json()["code"] for each in answers if each.status_code == 429]
        assert ([each.status_code for each in answers[:4]], set(refused)) == ([202] * 4, {"orders-kept-for-others"})
        assert int(answers[-1].headers["retry-after"]) > 1
        await house.ask("b.example.com", owner="theirs")
        view = await house.worked("b.example.com")
        assert view.current is not None
        assert (await admin("POST", f"/certificates/{names[0]}/renew")).status_code == 202
