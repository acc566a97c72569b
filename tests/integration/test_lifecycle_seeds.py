"""Back-off after failed issuances, as people were promised it: whole days of it, with a moved clock."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from tests.support.lifecycle import DAY, House, MovedClock, a_moving_house

from holdfast.core.status import Phase
from holdfast.errors import Refused
from holdfast.operations.certificates.views import View
from holdfast.store.tx import Tx

pytestmark = pytest.mark.anyio
HOUR = timedelta(hours=1)
NAME = "www.example.com"
REFUSED = Refused("no, says the CA", reason="CA_REFUSED")


@pytest.fixture
async def moving(tmp_path: Path) -> AsyncIterator[tuple[House, MovedClock]]:
    async with a_moving_house(tmp_path) as found:
        yield found


async def failed_times(house: House, clock: MovedClock, number: int) -> None:
    """A certificate that was due, and failed so often in a row."""
    await house.ask(NAME)
    await house.worked(NAME)
    house.cas["ca"].always["place"] = REFUSED
    clock.ahead += 61 * DAY
    for n in range(number):
        view = await house.attempt(NAME)
        assert view.certificate.failing is not None
        assert view.certificate.failing.attempts == n + 1
        if n + 1 < number:
            assert view.status.next_attempt_at is not None
            clock.ahead += view.status.next_attempt_at - clock.now() + timedelta(seconds=1)


def waits(house_view: View) -> timedelta:
    failing = house_view.certificate.failing
    assert failing is not None
    assert house_view.certificate.next_action_at == house_view.status.next_attempt_at
    assert house_view.status.next_attempt_at is not None
    return house_view.status.next_attempt_at - failing.last_at


async def test_after_the_third_failure_the_next_attempt_is_in_four_hours_and_success_clears_all(
    moving: tuple[House, MovedClock],
) -> None:
    house, clock = moving
    await failed_times(house, clock, 3)
    view = await house.view(NAME)
    assert waits(view) == 4 * HOUR
    assert view.status.phase is Phase.FAILING
    assert (view.status.attempt, view.status.reason_code) == (3, "CA_REFUSED")
    assert view.status.blocked_by == ("BACKOFF",)

    clock.ahead += 4 * HOUR - timedelta(minutes=1)
    placed = len(house.cas["ca"].calls)
    await house.attempt(NAME)
    assert len(house.cas["ca"].calls) == placed  # not before its time

    del house.cas["ca"].always["place"]
    clock.ahead += timedelta(minutes=2)
    view = await house.attempt(NAME)
    assert view.certificate.failing is None
    assert view.status.phase is Phase.OK
    row = await house.db.read(lambda tx: tx.row("SELECT * FROM certificates"))
    assert row is not None
    assert (row["issuance_attempts"], row["last_failure_at"], row["first_failure_at"]) == (None, None, None)
    assert (row["last_error"], row["reason"]) == (None, None)
    assert view.current is not None
    assert view.current.not_after > clock.now() + 80 * DAY


async def test_a_manual_renewal_that_succeeds_clears_all(moving: tuple[House, MovedClock]) -> None:
    house, clock = moving
    await failed_times(house, clock, 3)
    del house.cas["ca"].always["place"]
    await house.renew(NAME, actor="local:alice")
    view = await house.worked(NAME)
    assert view.certificate.failing is None
    assert view.status.phase is Phase.OK


async def test_a_manual_renewal_that_fails_is_the_fourth_failure_and_the_next_is_in_eight_hours(
    moving: tuple[House, MovedClock],
) -> None:
    house, clock = moving
    await failed_times(house, clock, 3)
    await house.renew(NAME, actor="local:alice")
    view = await house.worked(NAME)
    assert view.certificate.failing is not None
    assert view.certificate.failing.attempts == 4
    assert waits(view) == 8 * HOUR


async def test_after_seven_failures_and_more_the_wait_is_thirty_two_hours(moving: tuple[House, MovedClock]) -> None:
    house, clock = moving
    await failed_times(house, clock, 8)
    assert waits(await house.view(NAME)) == 32 * HOUR


async def test_a_row_of_an_older_release_with_a_time_and_no_count_waits_an_hour(
    moving: tuple[House, MovedClock],
) -> None:
    house, clock = moving
    await house.ask(NAME)
    await house.worked(NAME)
    clock.ahead += 61 * DAY

    def old_row(tx: Tx) -> None:
        tx.run(
            """UPDATE certificates SET last_failure_at = now_us(), issuance_attempts = NULL, first_failure_at = NULL,
                      next_action_at = now_us()"""
        )

    await house.db.write(old_row)
    placed = len(house.cas["ca"].orders)
    view = await house.attempt(NAME)
    assert len(house.cas["ca"].orders) == placed
    assert waits(view) == HOUR
    clock.ahead += HOUR + timedelta(seconds=1)
    view = await house.attempt(NAME)
    assert len(house.cas["ca"].orders) == placed + 1
    assert view.certificate.failing is None


async def test_a_restart_neither_forgets_nor_extends_a_wait(moving: tuple[House, MovedClock]) -> None:
    house, clock = moving
    await failed_times(house, clock, 2)
    before = await house.view(NAME)
    for _ in range(3):  # replicas that start sweep at once
        clock.ahead += timedelta(minutes=10)
        after = await house.attempt(NAME)
        assert after.status.next_attempt_at == before.status.next_attempt_at
        assert after.certificate.failing == before.certificate.failing


@pytest.mark.parametrize("hours", [24, 160])
async def test_a_short_lived_certificate_gets_ten_attempts_before_it_expires(tmp_path: Path, hours: int) -> None:
    async with a_moving_house(tmp_path, life=timedelta(hours=hours)) as (house, clock):
        await house.ask(NAME)
        view = await house.worked(NAME)
        house.cas["ca"].always["place"] = REFUSED
        attempts = 0
        assert view.current is not None
        while True:
            at = view.status.next_attempt_at
            assert at is not None
            if at >= view.current.not_after:
                break
            clock.ahead += max(at - clock.now(), timedelta(0)) + timedelta(seconds=1)
            view = await house.attempt(NAME)
            attempts += 1
        assert attempts >= 10


async def test_a_changed_input_is_a_new_epoch(moving: tuple[House, MovedClock]) -> None:
    house, clock = moving
    await failed_times(house, clock, 3)
    del house.cas["ca"].always["place"]
    await house.change(NAME, names=[NAME, "other.example.com"])
    view = await house.worked(NAME)
    assert view.certificate.failing is None
    assert view.certificate.generation == 2
    assert view.current is not None
    assert view.current.generation == 2
