"""Entrust, GlobalSign and Vault from a wish to a certificate in use: stored settings, a real engine, days that pass."""

from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.support.fake_cas.clients import a_pair
from tests.support.fake_cas.entrust import FakeEntrust
from tests.support.fake_cas.globalsign import FakeGlobalSign
from tests.support.fake_cas.vault import FakeVault
from tests.support.later import Days
from tests.support.lifecycle import House, MovedClock, a_house, a_moving_house
from tests.support.running import add_issuer

from holdfast.engine.issuance import duties as issuance_duties
from holdfast.engine.issuance import issuer_factory, renewals
from holdfast.engine.issuance.issuer_factory import Upstream
from holdfast.engine.issuance.issuer_factory import kinds as issuer_kinds
from holdfast.operations.certificates.views import View
from holdfast.secret import Secret
from holdfast.store import issuances
from holdfast.store.database import Database
from holdfast.world import HttpTransport, SystemClock

pytestmark = pytest.mark.anyio
NAME = "www.example.com"
FAKES = {"entrust": FakeEntrust, "globalsign": FakeGlobalSign, "vault": FakeVault}
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
WIDE = {"requests": [1000, 0.001], "orders": [1000, 0.001]}


async def configured(house: House, ca: Any, transport: HttpTransport, clock: Any, **more: Any) -> Any:
    """The tools of a house that has this CA among its rows, and no other way to reach it."""
    kind = ca.name.lower()
    made = Upstream(context=house.certificate_context, own_cas=None, transport=transport, clock=clock)
    sealed = {name: Secret(value.encode()) for name, value in ca.credentials.items()}
    settings = ca.settings(limits=WIDE, **more)
    await add_issuer(
        house.certificate_context,
        kind,
        kind=kind,
        kinds=issuer_kinds(),
        settings=settings,
        credentials=sealed,
        actor="local:op",
        fit=issuer_factory.check,
    )
    return replace(house.tools, make_issuer=made.make)


class Office:
    """One house, with one CA of the three."""

    def __init__(self, house: House, clock: MovedClock, ca: Any, tools: Any, folder: Path) -> None:
        self.house, self.clock, self.ca, self.folder = house, clock, ca, folder
        self.days = Days(house, clock, issuance_duties.kinds(tools))

    async def ask(self) -> None:
        await self.house.ask(NAME, issuers=[self.ca.name.lower()])

    async def pass_by(self, span: timedelta) -> View:
        await self.days.go_on(self.clock.now() + span)
        return await self.house.view(NAME)

    async def told(self) -> list[str]:
        return [each.name for each in await self.house.timeline(NAME)]


@pytest.fixture
async def office(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Office]:
    transport = HttpTransport()
    async with a_moving_house(tmp_path) as (house, clock), FAKES[request.param](tmp_path / "ca") as ca:
        ca.now = clock.now
        yield Office(house, clock, ca, await configured(house, ca, transport, clock), tmp_path / "ca")
    await transport.close()


def at(*kinds: str) -> Any:
    return pytest.mark.parametrize("office", kinds, indirect=True)


# ── The whole way ──


@pytest.mark.parametrize("kind", FAKES)
async def test_a_certificate_is_ordered_once_waited_for_and_put_to_use(db: Database, tmp_path: Path, kind: str) -> None:
    house, transport = await a_house(db, tmp_path), HttpTransport()
    async with FAKES[kind](tmp_path / "ca") as ca:
        ca.pending_looks = 2
        tools = await configured(house, ca, transport, SystemClock())
        async with house.working(kinds=issuance_duties.kinds(tools), only=True):
            await house.ask(NAME, issuers=[kind])
            view = await house.settled_soon(NAME)
        assert view.current is not None, view.status
        assert len(ca.orders) == 1
        secrets = [value for value in ca.credentials.values() if len(value) > 8]
        rows = await db.read(lambda tx: [dict(row) for row in tx.rows("SELECT * FROM events")])
        assert not any(secret in str(rows) for secret in secrets)
    await transport.close()


# ── How often ──


@at("entrust", "globalsign")
async def test_the_ca_sees_the_ladder_with_a_jitter_of_its_own_for_each_order(office: Office) -> None:
    office.ca.pending_looks = 10**9
    for n in range(6):
        await office.house.ask(f"n{n}.example.com", issuers=[office.ca.name.lower()])
    await office.days.go_on(office.clock.now() + timedelta(minutes=2))
    looked = defaultdict[str, list[datetime]](list)
    for each in office.ca.requests:
        if each.method == "GET" and ("/enrollments/" in each.path or each.path.startswith("/certificates/")):
            looked[each.path].append(each.at)
    gaps = [[(later - before).total_seconds() for before, later in pairwise(times)] for times in looked.values()]
    assert [len(each) for each in gaps] == [3] * 6
    for each in gaps:
        for gap, rung in zip(each, (5, 15, 45), strict=True):
            assert 0.8 * rung - 0.01 < gap < 1.2 * rung + 10  # which requests may take on a busy machine
    assert len({round(each[2]) for each in gaps}) > 1


@at("entrust")
@pytest.mark.parametrize("after", [None, "1"])
async def test_too_many_requests_for_ever_are_answered_by_few(office: Office, after: str | None) -> None:
    office.ca.pending_looks = 10**9
    await office.ask()
    await office.days.round()
    office.ca.fail(status=429, retry_after=after, times=10**9)
    before = len(office.ca.requests)
    await office.pass_by(timedelta(minutes=10))
    assert len(office.ca.requests) - before <= 8
    await office.pass_by(3 * HOUR)
    assert len(office.ca.requests) - before <= 8 + 3 * 12
    office.ca.calm()
    office.ca.orders[0].looks = 0
    assert (await office.pass_by(3 * HOUR)).current is not None
    assert len(office.ca.orders) == 1


# ── Days ──


@at("entrust")
async def test_an_order_rests_while_people_take_days_and_is_collected_when_they_are_done(office: Office) -> None:
    office.ca.approval = True
    await office.ask()
    view = await office.pass_by(2 * DAY)
    assert view.status.reason_code == "AWAITING_APPROVAL_AT_CA"
    assert "days" in (view.status.last_error or "")
    assert len(office.ca.lines("GET /v1/certificate-authorities/partition~ca-1/enrollments")) < 100
    office.ca.approve()
    view = await office.pass_by(2 * HOUR)
    assert view.current is not None
    assert len(office.ca.orders) == 1


@at("entrust")
async def test_a_client_certificate_is_renewed_while_an_order_waits(office: Office) -> None:
    office.ca.approval = True
    await office.ask()
    await office.pass_by(HOUR)
    a_pair(office.folder, "client", days=60)
    office.ca.approve()
    assert (await office.pass_by(2 * HOUR)).current is not None
    assert len({each.client for each in office.ca.requests}) == 2


@at("entrust")
async def test_a_client_certificate_that_ends_while_an_order_waits_does_not_cost_the_order(office: Office) -> None:
    office.ca.approval = True
    a_pair(office.folder, "client", days=0.1)
    await office.ask()
    view = await office.pass_by(5 * HOUR)
    assert view.status.reason_code == "ACCOUNT_REFUSED"
    assert "client_certificate_file expired" in (view.status.last_error or "")
    assert (await office.told()).count("issuance.barred") == 1
    a_pair(office.folder, "client", days=90)
    office.ca.approve()
    assert (await office.pass_by(2 * HOUR)).current is not None
    assert len(office.ca.orders) == 1


@at("entrust")
async def test_an_order_that_was_denied_ends_with_the_words_of_whoever_did(office: Office) -> None:
    office.ca.approval = True
    await office.ask()
    await office.pass_by(HOUR / 4)
    office.ca.deny(words="the team has no budget")
    view = await office.pass_by(HOUR)
    assert view.current is None
    [attempt] = await office.house.db.read(lambda tx: issuances.of(tx, view.certificate.id))
    assert attempt.reason == "CA_REFUSED"
    assert "the team has no budget" in (attempt.error or "")


@at("globalsign")
async def test_a_secret_that_the_ca_quotes_is_in_no_table_and_in_no_log(office: Office) -> None:
    office.ca.secret, secret = "f" * 40, office.ca.secret  # so that ours is wrong, and told back
    await office.ask()
    view = await office.pass_by(HOUR)
    assert view.status.reason_code in ("ACCOUNT_REFUSED", "BACKOFF"), view.status
    tables = await office.house.db.read(lambda tx: tx.rows("SELECT name FROM sqlite_master WHERE type = 'table'"))
    for table in tables:
        rows = await office.house.db.read(lambda tx, name=table["name"]: tx.rows(f'SELECT * FROM "{name}"'))  # type: ignore[misc]
        shown = str([dict(row) for row in rows])
        assert secret not in shown, table["name"]
        assert secret.encode().hex() not in shown, table["name"]
    assert secret not in str(office.house.watch.log.__dict__)
    [attempt] = await office.house.db.read(lambda tx: issuances.of(tx, view.certificate.id))
    assert "api_secret" in (attempt.error or "")


# ── Doubts ──


@at("entrust", "globalsign")
async def test_a_lost_answer_is_looked_for_and_nothing_is_ordered_twice(office: Office) -> None:
    office.ca.fail(kind="reset", effect=True, only="POST /(?!login)")
    await office.ask()
    view = await office.pass_by(HOUR)
    assert view.current is not None
    assert len(office.ca.orders) == 1


@at("entrust")
async def test_who_cannot_even_ask_whether_there_is_an_order_does_not_place_another(office: Office) -> None:
    office.ca.at_once = True
    office.ca.fail(kind="reset", effect=True, only="POST")
    await office.ask()
    await office.days.round()
    office.ca.fail(status=403, only="GET", times=999)  # a proxy does not know us any more
    view = await office.pass_by(2 * HOUR)
    assert view.status.reason_code == "ACCOUNT_REFUSED"
    office.ca.calm()
    assert (await office.pass_by(2 * HOUR)).current is not None
    assert len(office.ca.orders) == 1


@at("entrust")
async def test_a_doubt_is_told_to_people_and_ends_when_the_order_shows(office: Office) -> None:
    office.ca.approval = True
    office.ca.fail(kind="reset", effect=True, only="POST")
    await office.ask()
    view = await office.pass_by(HOUR)
    assert view.status.reason_code == "ORDER_UNCERTAIN"
    assert "issuance.uncertain" in await office.told()
    assert len(office.ca.orders) == 1
    office.ca.approve()
    assert (await office.pass_by(2 * HOUR)).current is not None
    assert len(office.ca.orders) == 1


@at("entrust", "globalsign")
async def test_a_ca_that_cannot_be_reached_raises_no_doubt_and_is_asked_less_and_less(office: Office) -> None:
    port = office.ca.port
    await office.ca.__aexit__(None, None, None)
    await office.ask()
    view = await office.pass_by(HOUR)
    assert view.status.reason_code != "ORDER_UNCERTAIN"
    office.ca.port = port
    await office.ca.__aenter__()
    await office.pass_by(HOUR)
    await renewals.sweep_due(office.house.certificate_context)
    view = await office.pass_by(HOUR)
    assert view.current is not None
    assert "issuance.uncertain" not in await office.told()
    assert len(office.ca.orders) == 1


@at("globalsign")
async def test_an_account_without_quota_is_asked_seldom_until_it_has_some(office: Office) -> None:
    office.ca.quota_left, office.ca.token_for = 0, DAY  # its tokens live by a clock that is moved, ours do not
    await office.ask()
    view = await office.pass_by(6 * HOUR)
    assert view.status.reason_code == "CA_QUOTA_USED_UP"
    assert "quota" in (view.status.last_error or "")
    assert len(office.ca.lines("POST /certificates")) <= 6 + 1
    down = await office.house.db.read(lambda tx: tx.rows("SELECT id FROM events WHERE name = 'issuer.down'"))
    assert len(down) == 1  # a person hears of it, once
    office.ca.quota_left = 1
    assert (await office.pass_by(6 * HOUR)).current is not None
    assert len(office.ca.orders) == 1
