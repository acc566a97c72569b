"""What orders cost when something is wrong with them: one for a wish, until a person says otherwise."""

import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from tests.support.fake_cas.base import FOR_EVER
from tests.support.issuing import a_wish
from tests.support.jobs import audits
from tests.support.later import Days, LaterCa, a_still_house
from tests.support.later_office import HOUR, Office, an_office
from tests.support.lifecycle import DAY, TruthfulCa
from tests.support.running import run, services_of

from holdfast.core.issuance import IssuanceState
from holdfast.core.issuers import ca_limits
from holdfast.engine.issuance import renewals
from holdfast.engine.notifications import duties
from holdfast.errors import Refused, TryLater
from holdfast.operations.issuers import manage as manage_issuers
from holdfast.pki import csr
from holdfast.store import issuances
from holdfast.store.work import budgets

pytestmark = pytest.mark.anyio
LATER = ("digicert", "sectigo", "entrust", "globalsign")
NAME = "www.example.com"
MINUTE = timedelta(minutes=1)
WIDE = {"limits": {"requests": [1000, 0.001], "orders": [1000, 0.001]}}


# ── Names that nobody asked for ──


@pytest.mark.parametrize("kind", LATER)
async def test_a_name_that_the_ca_gives_along_costs_no_second_order_and_is_told(tmp_path: Path, kind: str) -> None:
    async with an_office(tmp_path, kind) as office:
        office.ca.gives_twins = True
        for name in ("*.example.com", NAME):
            await office.house.ask(name, issuers=["later"])
        await office.live(HOUR)
        for name in ("*.example.com", NAME):
            assert (await office.house.view(name)).current is not None
            told = await office.house.timeline(name)
            assert [each.details["names"] for each in told if each.name == "certificate.extra_names"] == [
                ["example.com"]
            ]
        assert len(office.ca.orders) == 2


@pytest.mark.parametrize("kind", ["digicert", "globalsign"])
async def test_any_other_name_more_is_refused_and_not_bought_again(tmp_path: Path, kind: str) -> None:
    async with an_office(tmp_path, kind) as office:
        office.ca.adds_name = "mail.example.com"
        await office.house.ask(NAME, issuers=["later"])
        await office.live(1.5 * HOUR)
        view = await office.house.view(NAME)
        assert (view.current, view.status.reason_code) == (None, "WRONG_CERTIFICATE")
        assert "adds mail.example.com" in str(view.status.last_error)
        assert len(office.ca.orders) == 1


# ── What is issued, and of no use ──


@pytest.mark.parametrize("kind", LATER)
async def test_a_wrong_certificate_rests_until_a_person_orders_anew(tmp_path: Path, kind: str) -> None:
    async with an_office(tmp_path, kind) as office:
        office.ca.wrong_certificate = True
        await office.house.ask(NAME, issuers=["later"])
        await office.live(1.5 * HOUR)
        view = await office.house.view(NAME)
        assert (view.status.reason_code, view.status.acts_next) == ("WRONG_CERTIFICATE", "operator")
        assert (len(office.ca.orders), view.certificate.failing) == (1, None)
        assert (await office.events(NAME)).count("issuance.not_as_asked") == 1
        assert await office.notifications() == ["issuance.not_as_asked"]
        office.ca.wrong_certificate = False
        await office.house.renew(NAME, actor="local:alice")
        await office.live(HOUR)
        assert (await office.house.view(NAME)).current is not None
        assert len(office.ca.orders) == 2


async def test_a_right_to_collect_that_is_missing_costs_no_enrolment(tmp_path: Path) -> None:
    async with an_office(tmp_path, "sectigo") as office:
        office.ca.may_collect = False
        await office.house.ask(NAME, issuers=["later"])
        await office.live(2 * HOUR)
        assert (await office.house.view(NAME)).status.reason_code == "ACCOUNT_REFUSED"
        office.ca.may_collect = True
        await office.live(2 * HOUR)
        assert (await office.house.view(NAME)).current is not None
        assert len(office.ca.orders) == 1


async def test_a_ca_that_does_not_know_the_orders_it_took_gets_one_more_and_no_third(tmp_path: Path) -> None:
    async with an_office(tmp_path, "digicert") as office:
        missing = '{"errors": [{"code": "not_found", "message": "The order does not exist."}]}'
        office.ca.fail(status=404, body=missing, times=FOR_EVER, only=r"GET /order/certificate/\d+$")
        await office.house.ask(NAME, issuers=["later"])
        await office.live(4 * HOUR)
        assert (await office.house.view(NAME)).status.reason_code == "ORDER_UNCERTAIN"
        assert len(office.ca.orders) == 2
        office.ca.calm()
        await office.live(2 * HOUR)
        assert (await office.house.view(NAME)).current is not None
        assert len(office.ca.orders) == 2


class Careless(LaterCa):
    """Approves at once; what it makes is as it was asked for, or not."""

    def __init__(self) -> None:
        super().__init__(life=DAY)
        self.approved = True


async def near_its_end(folder: Path, cas: dict[str, TruthfulCa], spoil: Any) -> tuple[list[Any], list[str]]:
    """A renewal that goes wrong at the first CA, until the certificate has ended: the attempts, and what was told."""
    async with a_still_house(folder) as (house, clock):
        for name, ca in cas.items():
            ca.now = clock.now
            await house.add(name, ca, **WIDE)
        days = Days(house, clock)
        view = await house.ask(NAME, issuers=list(cas))
        await days.go_on(clock.now() + MINUTE)
        spoil(next(iter(cas.values())))
        end = clock.now() + DAY
        while clock.now() < end:
            await renewals.sweep_due(house.certificate_context)
            await days.go_on(clock.now() + HOUR / 4)
        told = [each.name for each in await house.timeline(NAME, limit=500)]
        return await house.db.read(lambda tx: issuances.of(tx, view.certificate.id)), told


def other_names(ca: LaterCa) -> None:
    ca.other_names = ["other.example.com"]


def no_right(ca: LaterCa) -> None:
    ca.always["look"] = Refused("403: no right to look", reason="ACCOUNT_REFUSED")


def no_sense(ca: LaterCa) -> None:
    ca.always["look"] = TryLater("the answer cannot be understood", reason="ANSWER_MALFORMED")


@pytest.mark.parametrize("spoil", [other_names, no_right, no_sense], ids=["wrong", "barred", "broken"])
async def test_with_no_other_ca_and_no_time_left_it_is_ordered_once_more_and_never_again(
    tmp_path: Path, spoil: Any
) -> None:
    ca = Careless()
    attempts, told = await near_its_end(tmp_path, {"later": ca}, spoil)
    assert len(ca.orders) == 1 + 2, "the first certificate, its renewal, and one order more"
    assert [each.state for each in attempts] == [IssuanceState.WAITING, IssuanceState.FAILED, IssuanceState.ISSUED]
    assert told.count("issuance.ordered_again") == (1 if spoil is other_names else 0)
    assert told.count("issuance.failed") == 1


async def test_with_another_ca_and_no_time_left_that_one_is_asked(tmp_path: Path) -> None:
    ca, other = Careless(), TruthfulCa()
    attempts, _ = await near_its_end(tmp_path, {"later": ca, "other": other}, other_names)
    assert [(each.issuer, each.state) for each in attempts] == [
        ("other", IssuanceState.ISSUED), ("later", IssuanceState.FAILED), ("later", IssuanceState.ISSUED)
    ]  # fmt: skip
    assert len(ca.orders) == 2
    assert attempts[0].started_at < attempts[-1].started_at + DAY * 0.9, "there was time for more than one try"


# ── Renewals ──


async def test_a_renewal_with_other_names_is_a_request_of_its_own(tmp_path: Path) -> None:
    async with an_office(tmp_path, "sectigo", renewals="renew") as office:
        await office.house.ask(NAME, issuers=["later"])
        await office.live(HOUR)
        await office.house.change(NAME, names=[NAME, "new.example.com"])
        await office.live(1.5 * HOUR)
        assert [each.names for each in office.ca.orders] == [[NAME], [NAME, "new.example.com"]]
        await office.house.renew(NAME, actor="local:alice")
        await office.live(HOUR)
        assert len(office.ca.lines("POST /ssl/v1/renewById")) == 1


async def test_a_plan_that_ends_is_followed_by_an_order_before_certificates_become_short(tmp_path: Path) -> None:
    async with an_office(tmp_path, "digicert", renewals="reissue") as office:
        office.ca.longest_days = 199
        began = office.clock.now()
        await office.house.ask(NAME, issuers=["later"])
        lives, last = [], ""
        while office.clock.now() < began + 370 * DAY:
            await office.live(3 * DAY, sweep_every=3 * DAY)
            current = (await office.house.view(NAME)).current
            assert current is not None
            assert current.not_after > office.clock.now()
            if current.serial != last:
                last = current.serial
                lives.append(current.life / DAY)
        assert min(lives) > 90
        assert [each.body.get("renewal_of_order_id") for each in office.ca.orders] == [None, office.ca.orders[0].id]


# ── Answers that are lost ──


async def test_an_enrollment_that_may_wait_for_approval_is_never_placed_again_without_a_person(tmp_path: Path) -> None:
    async with an_office(tmp_path, "entrust") as office:
        office.ca.approval = True
        office.ca.fail(kind="reset", effect=True, only="POST ")
        await office.house.ask(NAME, issuers=["later"])
        await office.live(26 * HOUR, sweep_every=DAY)
        view = await office.house.view(NAME)
        assert (view.status.reason_code, len(office.ca.orders)) == ("ORDER_UNCERTAIN", 1)
        rows = await office.house.db.read(lambda tx: tx.rows("SELECT body FROM notifications"))
        advice = f"no order is placed automatically. Look for it at the issuer, then run: holdfast renew {NAME}"
        assert [advice in row["body"] for row in rows] == [True]
        office.ca.approval = False
        await office.house.renew(NAME, actor="local:alice")
        await office.live(HOUR)
        assert (await office.house.view(NAME)).current is not None
        assert len(office.ca.orders) == 2


async def test_an_approval_that_comes_after_all_ends_the_doubt(tmp_path: Path) -> None:
    async with an_office(tmp_path, "entrust") as office:
        office.ca.approval = True
        office.ca.fail(kind="reset", effect=True, only="POST ")
        await office.house.ask(NAME, issuers=["later"])
        await office.live(HOUR)
        office.ca.approve()
        await office.live(HOUR)
        assert (await office.house.view(NAME)).current is not None
        assert len(office.ca.orders) == 1


async def test_a_lost_renewal_that_is_cancelled_is_not_said_to_be_none(tmp_path: Path) -> None:
    async with an_office(tmp_path, "sectigo", renewals="renew") as office:
        await office.house.ask(NAME, issuers=["later"])
        await office.live(HOUR)
        office.ca.approval = True
        office.ca.fail(kind="reset", effect=True, only="POST /ssl/v1/renewById")
        await office.house.renew(NAME, actor="local:alice")
        await office.live(HOUR / 2)
        await office.house.cancel(NAME, actor="local:alice", why="a mistake")
        await office.live(HOUR / 2)
        [told] = [each for each in await office.house.timeline(NAME) if each.name == "order.withdrawn"]
        assert (told.details["how"], told.details["alert"]) == ("refused", True)
        assert str(office.ca.orders[-1].id) in told.details["why"]


async def test_what_was_in_doubt_and_is_not_found_is_told_when_it_is_cancelled(tmp_path: Path) -> None:
    async with a_still_house(tmp_path) as (house, clock):
        ca = LaterCa(can_find=False)
        ca.now = clock.now
        await house.add("later", ca, **WIDE)
        ca.always["place"] = TryLater("the connection was reset", reason="CA_DOWN")
        await house.ask(NAME, issuers=["later"])
        days = Days(house, clock)
        await days.go_on(clock.now() + HOUR)
        ca.can_find = True
        await house.cancel(NAME, actor="local:alice", why="a mistake")
        await days.go_on(clock.now() + HOUR)
        told = [each for each in await house.timeline(NAME) if each.name == "order.withdrawn"]
        assert [(each.details["how"], each.details["alert"]) for each in told] == [("refused", True)]


async def test_the_audit_log_names_the_engine_where_it_begins_again_by_itself(tmp_path: Path) -> None:
    async with an_office(tmp_path, "digicert") as office:
        office.ca.bad_names = {NAME}
        await office.house.ask(NAME, issuers=["later"])
        await office.live(3 * HOUR)
        begun = [each for each in await audits(office.house.db) if each[1] == "issuance_begun"]  # type: ignore[arg-type]
        assert [actor for actor, _, _ in begun[:2]] == ["local:alice", "system"]
        view = await office.house.view(NAME)
        asked = await office.house.db.read(lambda tx: issuances.of(tx, view.certificate.id))
        assert {each.requested_by for each in asked} == {"local:alice"}, "whose wish it is, approvals must know"


# ── Accepted late ──

ORDERING = r"POST (/order/certificate/|/ssl/v1/enroll)"


async def unanswered(office: Office) -> Any:
    """An order whose answer does not come, and that the CA has not taken yet; the request, for it to take."""
    office.ca.fail(kind="reset", only=ORDERING)
    await office.house.ask(NAME, issuers=["later"])
    await office.pass_by(2 * MINUTE)
    assert office.ca.orders == []
    [request] = [each for each in office.ca.requests if re.match(ORDERING, each.line)]
    return request


@pytest.mark.parametrize("kind", ["digicert", "sectigo"])
async def test_an_order_that_the_ca_takes_minutes_later_is_not_bought_twice(tmp_path: Path, kind: str) -> None:
    async with an_office(tmp_path, kind) as office:
        late = await unanswered(office)
        view = await office.house.view(NAME)
        assert (view.status.reason_code, view.status.acts_next) == ("ORDER_UNANSWERED", "holdfast")
        office.ca.answer(late)
        await office.pass_by(HOUR)
        assert (await office.house.view(NAME)).current is not None
        assert len(office.ca.orders) == 1
        assert await office.notifications() == []


@pytest.mark.parametrize("kind", ["digicert", "sectigo"])
async def test_a_second_order_after_a_doubt_is_flagged_and_told(tmp_path: Path, kind: str) -> None:
    async with an_office(tmp_path, kind) as office:
        await unanswered(office)
        await office.pass_by(HOUR)
        view = await office.house.view(NAME)
        assert view.current is not None
        [attempt] = await office.house.db.read(lambda tx: issuances.of(tx, view.certificate.id))
        assert attempt.maybe_twice
        assert await office.notifications() == ["issuance.ordered_again"]


@pytest.mark.parametrize("kind", ["digicert", "sectigo"])
async def test_an_order_that_the_ca_takes_late_is_withdrawn_if_nobody_wants_it_any_more(
    tmp_path: Path, kind: str
) -> None:
    async with an_office(tmp_path, kind) as office:
        office.ca.approval = True
        late = await unanswered(office)
        await office.house.cancel(NAME, actor="local:alice", why="a mistake")
        await office.pass_by(MINUTE)
        office.ca.answer(late)
        await office.pass_by(HOUR)
        told = [each for each in await office.house.timeline(NAME) if each.name == "order.withdrawn"]
        assert [each.details["how"] for each in told] == ["done"]


# ── Waiting for a person ──


@pytest.mark.parametrize("kind", ["digicert", "sectigo", "entrust"])
async def test_people_hear_once_that_the_ca_waits_for_one_and_that_it_goes_on(tmp_path: Path, kind: str) -> None:
    async with an_office(tmp_path, kind) as office:
        office.ca.approval, office.ca.pending_looks = True, FOR_EVER
        await office.house.ask(NAME, issuers=["later"])
        await office.pass_by(9 * MINUTE)
        assert await office.notifications() == [], "many an order is approved in moments"
        await office.pass_by(2 * HOUR)
        assert await office.notifications() == ["issuance.needs_approval"]
        view = await office.house.view(NAME)
        assert (view.status.reason_code, view.status.acts_next) == ("AWAITING_APPROVAL_AT_CA", "approver")
        assert view.explain().would_change_it == "A person approves it in the CA's portal; Holdfast polls it."
        number = view.issuance.order_number if view.issuance else None
        assert number in {str(each.id) for each in office.ca.orders}
        waits = [each.details for each in await office.house.timeline(NAME) if each.name == "issuance.waits"]
        assert waits[0]["order"] == number
        [told] = await office.house.db.read(lambda tx: tx.rows("SELECT facts FROM notifications"))
        assert f'"{number}"' in told["facts"]
        office.ca.approve()
        await office.pass_by(HOUR / 2)
        told = [each for each in await office.events(NAME) if each in ("issuance.needs_approval", "issuance.goes_on")]
        assert sorted(told) == ["issuance.goes_on", "issuance.needs_approval"]


async def test_an_order_that_is_issued_or_given_up_waits_for_nobody(tmp_path: Path) -> None:
    async with an_office(tmp_path, "digicert") as office:
        office.ca.approval = True
        for name in (NAME, "b.example.com"):
            await office.house.ask(name, issuers=["later"])
        await office.pass_by(HOUR)
        office.ca.approve(office.ca.orders[0].id)
        await office.house.cancel("b.example.com", actor="local:alice", why="a mistake")
        await office.pass_by(2 * HOUR)
        await duties.watch(office.house.db, HOUR)
        left = await office.house.db.read(lambda tx: tx.rows("SELECT key FROM outages WHERE key LIKE 'ca-approval/%'"))
        assert (left, "issuance.goes_on" in await office.events(NAME)) == ([], True)


# ── What is paid for ──


SLOW: dict[str, Any] = {"limits": {"requests": [40, 0.5], "orders": None}}


async def a_hard_life(office: Office) -> None:
    """Orders, looks, answers that are lost among many others, renewals, cancellations and revocations."""
    names = [f"n{n}.example.com" for n in range(3)]
    office.ca.pending_looks = 1
    for name in names:
        await office.house.ask(name, issuers=["later"])
    await office.pass_by(20 * MINUTE)
    office.ca.fail(kind="reset", effect=True, only="POST (?!/login)", times=2)
    for name in names:
        await office.house.renew(name, actor="local:alice")
    await office.pass_by(20 * MINUTE)
    office.ca.pending_looks = FOR_EVER
    await office.house.renew(names[0], actor="local:alice")
    await office.pass_by(20 * MINUTE)
    await office.house.cancel(names[0], actor="local:alice", why="a mistake")
    if office.ca.name != "DigiCert":  # which does not revoke while it reissues
        await office.house.revoke(names[1], reason=4, actor="local:alice")
    await office.pass_by(20 * MINUTE)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [("digicert", {"renewals": "reissue"}), ("digicert", {}), ("sectigo", {"renewals": "renew"}), ("sectigo", {}),
     ("entrust", {"approval": False}), ("globalsign", {})],
    ids=["digicert-reissue", "digicert", "sectigo-renew", "sectigo", "entrust", "globalsign"],
)  # fmt: skip
async def test_no_claim_makes_more_requests_than_it_has_paid_for(
    tmp_path: Path, kind: str, settings: dict[str, Any]
) -> None:
    async with an_office(tmp_path, kind, **SLOW, **settings) as office:
        await a_hard_life(office)
        assert max(made for _, made in office.days.claims) >= 3
        assert [(paid, made) for paid, made in office.days.claims if made > paid] == []


async def test_whoever_resumes_after_a_crash_pays_for_the_look_up_before_it_is_made(tmp_path: Path) -> None:
    async with an_office(tmp_path, "sectigo", **SLOW) as office:
        office.ca.fail(kind="reset", effect=True, only="POST ")
        await office.house.ask(NAME, issuers=["later"])
        await office.days.round()
        for _ in range(5):
            await somebody_else_asks(office)
        first, _ = office.days.claims[0]
        key = ca_limits.request_key("later")
        paid = "\n".join([key] * first)  # as if this claim had died before it said what the next one pays for
        await office.house.db.write(lambda tx: tx.run("UPDATE jobs SET budgets = :paid", paid=paid))
        await office.pass_by(HOUR)
        assert (await office.house.view(NAME)).current is not None
        assert [(paid, made) for paid, made in office.days.claims if made > paid] == []
        assert max(made for _, made in office.days.claims) > first


async def somebody_else_asks(office: Office) -> None:
    """A request for the same name by somebody else."""
    row = await office.house.read(manage_issuers.found, "later")
    content = csr.build([NAME], ec.generate_private_key(ec.SECP256R1()), common_name=True)
    await (await office.upstream.make(row)).place_order(replace(a_wish(NAME), csr=content))


async def test_a_look_up_among_many_certificates_goes_on_from_claim_to_claim(tmp_path: Path) -> None:
    async with an_office(tmp_path, "globalsign", **SLOW) as office:
        for number in range(24):
            await office.house.ask(f"n{number}.example.com", issuers=["later"])
        await office.pass_by(10 * MINUTE)
        office.ca.fail(kind="reset", effect=True, only="POST /certificates")
        await office.house.ask(NAME, issuers=["later"])
        for number in range(24):
            await office.house.renew(f"n{number}.example.com", actor="local:alice")
        await office.pass_by(HOUR)
        assert (await office.house.view(NAME)).current is not None
        assert len(office.ca.orders) == 49
        assert [(paid, made) for paid, made in office.days.claims if made > paid] == []


async def test_testing_a_ca_is_paid_for_and_refused_when_its_budget_is_used_up(tmp_path: Path) -> None:
    async with an_office(tmp_path, "digicert", limits={"requests": [4, 3600], "orders": None}) as office:
        services = services_of(office.house.certificate_context, probe=office.upstream.probe)
        for _ in range(2):
            assert "answers" in (await run(services, manage_issuers.test, name="later")).detail
        asked = len(office.ca.requests)
        refused = await run(services, manage_issuers.test, name="later")
        assert (refused.ok, "allows no more requests before" in refused.detail) == (False, True)
        assert len(office.ca.requests) == asked
        [held] = await office.house.db.read(lambda tx: budgets.load(tx, [ca_limits.request_key("later")]))
        assert held.tat - office.clock.now() == 4 * HOUR
