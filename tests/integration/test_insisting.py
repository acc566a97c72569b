"""What CAs are to be told, of revocations and of orders that nobody wants, while they are away or take their time."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.later import Days, LaterCa, a_still_house
from tests.support.later_office import HOUR, Office, an_office
from tests.support.lifecycle import DAY, House, TruthfulCa, a_house
from tests.support.running import set_credentials

from holdfast.core import backoff
from holdfast.core.issuance import IssuanceState
from holdfast.engine.notifications import duties
from holdfast.errors import Refused, TryLater
from holdfast.operations.issuers import manage as manage_issuers
from holdfast.operations.own_ca import revocation
from holdfast.secret import Secret
from holdfast.store import issuances, versions
from holdfast.store.database import Database
from holdfast.store.work import jobs

pytestmark = pytest.mark.anyio
NAME = "www.example.com"
WIDE = {"limits": {"requests": [1000, 0.001], "orders": None}}
FOR_EVER = 10**9


async def told(house: House) -> list[tuple[str, str]]:
    rows = await house.db.read(lambda tx: tx.rows("SELECT event, title FROM notifications ORDER BY created_at, id"))
    return [(row["event"], row["title"]) for row in rows]


async def held(office: Office) -> str:
    """The id of the version in use."""
    await office.house.ask(NAME, issuers=["later"])
    await office.pass_by(HOUR)
    current = (await office.house.view(NAME)).current
    assert current is not None
    return current.id


async def revoked(house: House, version: str) -> bool:
    found = await house.db.read(lambda tx: versions.get(tx, version))
    return found is not None and found.revoked_at is not None


# ── Revocations ──


async def test_a_revocation_is_waited_for_over_a_weekend_and_told_of_once(tmp_path: Path) -> None:
    async with an_office(tmp_path, "digicert") as office:
        version = await held(office)
        office.ca.rights = False
        await office.house.revoke(NAME, reason=1, actor="local:alice")
        before = len(office.ca.requests)
        await office.pass_by(60 * HOUR)
        [job] = await office.house.db.read(lambda tx: tx.rows("SELECT * FROM jobs WHERE kind = 'revoke'"))
        assert (job["state"], job["attempts"], job["reason"]) == ("ready", 0, "CA_STILL_PENDING")
        assert "an administrator must approve it" in job["last_error"]
        assert len(office.ca.lines("PUT /services/v2/certificate")) <= 1
        assert len(office.ca.requests) - before < 100
        office.ca.approve()
        await office.pass_by(2 * HOUR)
        assert await revoked(office.house, version)
        await duties.watch(office.house.db, HOUR)
        assert await told(office.house) == [
            ("revocation.waits", f"{NAME} is not revoked yet at its issuer"),
            ("revocation.settled", f"{NAME} is revoked at its issuer"),
        ]


@pytest.mark.parametrize("status", [503, 429])
async def test_a_ca_that_is_away_for_hours_hears_of_a_revocation_when_it_is_back(tmp_path: Path, status: int) -> None:
    async with an_office(tmp_path, "sectigo") as office:
        version = await held(office)
        office.ca.fail(status=status, times=FOR_EVER)
        await office.house.revoke(NAME, reason=1, actor="local:alice")
        await office.pass_by(8 * HOUR)
        assert not await revoked(office.house, version)
        office.ca.calm()
        await office.pass_by(HOUR)
        assert await revoked(office.house, version)


PROXY = "<html>404 Not Found</html>"


@pytest.mark.parametrize(("status", "body"), [(401, ""), (404, PROXY)])
async def test_a_revocation_outlives_a_refused_account_and_a_proxy_and_mended_credentials_resume_it(
    tmp_path: Path, status: int, body: str
) -> None:
    async with an_office(tmp_path, "digicert") as office:
        version = await held(office)
        office.ca.fail(status=status, body=body, times=FOR_EVER)
        await office.house.revoke(NAME, reason=1, actor="local:alice")
        await office.pass_by(3 * HOUR)
        [job] = await office.house.db.read(lambda tx: tx.rows("SELECT * FROM jobs WHERE kind = 'revoke'"))
        assert (job["state"], job["attempts"]) == ("ready", 0)
        assert [event for event, _ in await told(office.house) if "revocation" in event] == ["revocation.waits"]
        assert "revocation.waits" in await office.events(NAME)
        [owed] = (await office.house.view(NAME)).status.owed
        assert (owed.kind, owed.of, owed.issuer, owed.given_up) == ("revocation", version, "later", False)
        assert str(status) in (owed.error or "")
        office.ca.calm()
        await mended(office)
        await office.pass_by(timedelta(seconds=2))
        assert await revoked(office.house, version)
        assert (await office.house.view(NAME)).status.owed == ()


async def mended(office: Office) -> None:
    given = {name: Secret(value.encode()) for name, value in office.ca.credentials.items()}
    await set_credentials(office.house.certificate_context, "later", given, actor="local:op")


async def test_a_revocation_that_the_ca_refuses_is_in_the_events_of_its_certificate_and_new_credentials_ask_again(
    tmp_path: Path,
) -> None:
    async with an_office(tmp_path, "digicert") as office:
        version = await held(office)
        refusal = '{"errors": [{"code": "invalid_status", "message": "not this one"}]}'
        office.ca.fail(status=400, body=refusal, times=FOR_EVER, only="PUT /certificate")
        await office.house.revoke(NAME, reason=1, actor="local:alice")
        await office.pass_by(HOUR)
        assert "revocation.given_up" in await office.events(NAME)
        [owed] = (await office.house.view(NAME)).status.owed
        assert owed.given_up
        office.ca.calm()
        await mended(office)
        await office.pass_by(timedelta(seconds=2))
        assert await revoked(office.house, version)


async def test_what_ended_before_its_ca_revoked_it_is_asked_for_no_more(tmp_path: Path) -> None:
    async with a_still_house(tmp_path) as (house, clock):
        ca = TruthfulCa(life=2 * DAY)
        ca.now = clock.now
        ca.always["revoke"] = TryLater("no answer", reason="CA_DOWN")
        await house.add("own", ca, **WIDE)
        await house.ask(NAME, issuers=["own"])
        days = Days(house, clock)
        await days.go_on(clock.now() + HOUR)
        await house.revoke(NAME, reason=1, actor="local:alice")
        await days.go_on(clock.now() + 3 * DAY)
        assert [title for event, title in await told(house) if event == "job.dead"] == [
            f"The revocation of {NAME} was given up"
        ]


async def test_each_revocation_that_is_given_up_is_told_by_name_and_asking_again_takes_it_up(
    db: Database, tmp_path: Path
) -> None:
    house = await a_house(db, tmp_path)
    ca = TruthfulCa()
    ca.always["revoke"] = Refused("not yours", reason="CA_REFUSED")
    await house.add("own", ca, **WIDE)
    held: dict[str, Any] = {}
    async with house.working():
        for name in ("a.example", "b.example"):
            await house.ask(name, issuers=["own"])
            held[name] = (await house.settled(name)).current
            await house.revoke(name, reason=4, actor="local:alice")

        async def dead() -> bool:
            found = [await db.read(lambda tx, v=v: jobs.dead(tx, "revoke", v.id)) for v in held.values()]
            return None not in found

        await house.until(dead)
        given_up = [title for event, title in await told(house) if event == "job.dead"]
        assert sorted(given_up) == [f"The revocation of {name} was given up" for name in held]
        rows = await db.read(lambda tx: tx.rows("SELECT body, next FROM notifications WHERE event = 'job.dead'"))
        assert all("not yours" in row["body"] and row["next"].startswith("holdfast retry job") for row in rows)
        del ca.always["revoke"]
        version = held["a.example"]
        asked = await house.revoke("a.example", reason=1, actor="local:bob", version=version.id)

        async def done() -> bool:
            return await revoked(house, version.id)

        await house.until(done)
    assert ca.revoked[-1][1] == 1, "the reason of the last wish"
    assert asked.note == "Its revocation had been given up, and is taken up again."
    names = [each.name for each in await house.timeline("a.example")]
    assert names.count("revocation.asked_again") == 1
    await duties.watch(db, HOUR)
    assert ("jobs.well", "a.example: its dead job is settled") in await told(house)
    note = await db.read(lambda tx: revocation.note(tx, versions.get(tx, version.id)))  # type: ignore[arg-type]
    assert note == "It is revoked already."


async def test_whoever_asks_again_hears_what_became_of_it(tmp_path: Path) -> None:
    async with a_still_house(tmp_path) as (house, clock):
        ca = TruthfulCa()
        ca.now = clock.now
        ca.always["revoke"] = TryLater("an administrator must approve it", reason="CA_STILL_PENDING")
        await house.add("own", ca, **WIDE)
        await house.ask(NAME, issuers=["own"])
        days = Days(house, clock)
        await days.go_on(clock.now() + HOUR)
        held = (await house.view(NAME)).current
        assert held is not None
        assert (await house.revoke(NAME, reason=1)).note is None
        await days.go_on(clock.now() + HOUR)
        note = (await house.revoke(NAME, reason=1, version=held.id)).note
        assert "asked for before" in note
        assert "an administrator must approve it" in note
        await house.db.write(lambda tx: tx.run("UPDATE jobs SET state = 'dead' WHERE kind = 'revoke'"))
        note = (await house.revoke(NAME, reason=1, version=held.id)).note
        assert note == "Its revocation had been given up, and is taken up again."


# ── Orders ──


async def test_a_ca_that_is_away_for_hours_hears_of_an_order_that_was_given_up(tmp_path: Path) -> None:
    async with an_office(tmp_path, "digicert") as office:
        office.ca.approval = True
        await office.house.ask(NAME, issuers=["later"])
        await office.pass_by(HOUR)
        office.ca.fail(status=503, times=FOR_EVER)
        await office.house.cancel(NAME, actor="local:alice", why="a mistake")
        await office.pass_by(8 * HOUR)
        office.ca.calm()
        await office.pass_by(2 * HOUR)
        assert [each.status for each in office.ca.orders] == ["rejected"]


@pytest.mark.parametrize(("status", "body"), [(401, ""), (404, PROXY)])
async def test_a_withdrawal_outlives_a_refused_account_and_a_proxy_and_mended_credentials_resume_it(
    tmp_path: Path, status: int, body: str
) -> None:
    async with an_office(tmp_path, "digicert") as office:
        office.ca.approval = True
        await office.house.ask(NAME, issuers=["later"])
        await office.pass_by(HOUR)
        office.ca.fail(status=status, body=body, times=FOR_EVER)
        await office.house.cancel(NAME, actor="local:alice", why="a mistake")
        await office.house.set_state(NAME, "paused", actor="local:alice")
        await office.pass_by(3 * HOUR)
        assert [event for event, _ in await told(office.house)].count("withdrawal.waits") == 1
        [owed] = (await office.house.view(NAME)).status.owed
        assert (owed.kind, owed.issuer, owed.given_up) == ("withdrawal", "later", False)
        office.ca.calm()
        await mended(office)
        await office.pass_by(timedelta(seconds=2))
        assert [each.status for each in office.ca.orders] == ["rejected"]
        await duties.watch(office.house.db, HOUR)
        assert ("withdrawal.settled", f"The order of {NAME} is settled") in await told(office.house)


async def test_orders_that_wait_are_looked_at_at_once_when_credentials_or_settings_are_mended(tmp_path: Path) -> None:
    async with an_office(tmp_path, "sectigo") as office:
        office.ca.approval = True
        await office.house.ask(NAME, issuers=["later"])
        await office.pass_by(3 * HOUR)
        looked = len(office.ca.requests)
        await mended(office)
        await office.pass_by(timedelta(seconds=2))
        assert len(office.ca.requests) > looked
        await office.pass_by(timedelta(seconds=2))
        looked = len(office.ca.requests)
        row = await office.house.read(manage_issuers.found, "later")
        settings = {**row.settings, "request_timeout_seconds": 20}
        await office.house.change_issuer("later", settings, actor="local:op")
        await office.pass_by(timedelta(seconds=2))
        assert len(office.ca.requests) > looked


async def test_an_order_that_cannot_be_withdrawn_for_a_month_is_told_by_the_name_of_its_certificate(
    tmp_path: Path,
) -> None:
    async with a_still_house(tmp_path) as (house, clock):
        ca = LaterCa()
        ca.now = clock.now

        async def cancel(ref: object) -> None:
            raise TryLater("no answer", reason="CA_DOWN", after=DAY)

        ca.cancel = cancel  # type: ignore[method-assign]
        await house.add("later", ca, **WIDE)
        view = await house.ask(NAME, issuers=["later"])
        days = Days(house, clock)
        await days.go_on(clock.now() + HOUR)
        await house.cancel(NAME, actor="local:alice", why="a mistake")
        await house.set_state(NAME, "paused", actor="local:alice")
        await days.go_on(clock.now() + 31 * DAY)
        assert ("order.withdrawn", f"An order of {NAME} could not be withdrawn") in await told(house)
        assert view.issuance is not None
        attempt = await house.db.read(lambda tx: issuances.get(tx, view.issuance.id))  # type: ignore[union-attr]
        assert attempt is not None
        assert (attempt.state, attempt.withdrawal) == (IssuanceState.CANCELLED, "refused")


def test_the_wait_doubles_with_the_time_that_was_waited_and_is_an_hour_at_most() -> None:
    minute = timedelta(minutes=1)
    waits = [backoff.insisting_wait(n * minute, None, key="x") / minute for n in (0, 1, 10, 60, 6000)]
    assert waits[0] == pytest.approx(0.5, rel=0.11)
    assert waits[1:3] == [pytest.approx(1, rel=0.11), pytest.approx(10, rel=0.11)]
    assert all(54 <= each <= 60 for each in waits[3:])
    assert backoff.insisting_wait(minute, timedelta(hours=3), key="x") == timedelta(hours=3)
