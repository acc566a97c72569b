"""A drill, computed: turns in the order of risk by the real rule of budgets, one deployment at a time, windows kept."""

from datetime import UTC, datetime, timedelta

import pytest

from holdfast.core import drill
from holdfast.core.drill import DrilledCertificate, DrilledIssuer, DrilledTarget, DrillGround
from holdfast.core.issuers.budget import Budget, Limit
from holdfast.core.issuers.ca_limits import CaLimits, order_key
from holdfast.core.own_ca.acme import Identifier
from holdfast.core.windows import MaintenanceWindow

NOW = datetime(2030, 1, 2, 12, tzinfo=UTC)
SECOND, HOUR, DAY = timedelta(seconds=1), timedelta(hours=1), timedelta(days=1)


def a_certificate(
    name: str, *, days: float = 60, targets: tuple[str, ...] = ("web",), **more: object
) -> DrilledCertificate:
    return DrilledCertificate(
        name=name, identifiers=(Identifier("dns", name),), issuer="ca", ends=NOW + days * DAY, targets=targets, **more,  # type: ignore[arg-type]
    )  # fmt: skip


def a_ground(*, orders: Limit | None = None, **more: object) -> DrillGround:
    limits = CaLimits(requests=None, orders=orders)
    given: dict[str, object] = {
        "issuers": {"ca": DrilledIssuer(limits=limits, requests=1, takes=10 * SECOND)},
        "targets": {"web": DrilledTarget(domain="nginx", takes=SECOND)},
        "budgets": {},
        "now": NOW,
    }
    return DrillGround(**{**given, **more})  # type: ignore[arg-type]


def test_the_certificate_that_ends_first_goes_first() -> None:
    fleet = [a_certificate("a", days=80), a_certificate("c", days=3), a_certificate("b", days=3)]
    found = drill.rehearse(fleet, a_ground())
    assert [(each.name, each.turn) for each in found] == [("b", 1), ("c", 2), ("a", 3)]


def test_turns_come_as_the_limit_of_the_issuer_allows() -> None:
    fleet = [a_certificate(f"n{number:03}.example") for number in range(10)]
    found = drill.rehearse(fleet, a_ground(orders=Limit(burst=4, every=HOUR, reserve=0)))
    waits = [each.ordered_at - NOW for each in found if each.ordered_at is not None]
    assert waits == [timedelta(0)] * 4 + [number * HOUR for number in range(1, 7)]
    assert (found[0].waits_for, found[9].waits_for) == ("", order_key("ca"))
    assert drill.time_to_safe(found, NOW) == 6 * HOUR + 11 * SECOND


def test_what_is_used_of_a_budget_already_counts() -> None:
    limit = Limit(burst=4, every=HOUR, reserve=0)
    used = Budget(key=order_key("ca"), limit=limit, tat=NOW + 4 * HOUR)
    [found] = drill.rehearse([a_certificate("a")], a_ground(orders=limit, budgets={used.key: used}))
    assert found.ordered_at == NOW + HOUR


def test_one_deployment_at_a_time_in_each_reload_domain() -> None:
    fleet = [a_certificate(f"n{number}", targets=("web", "mail")) for number in range(3)]
    targets = {
        "web": DrilledTarget(domain="nginx", takes=10 * SECOND),
        "mail": DrilledTarget(domain="postfix", takes=SECOND),
    }
    found = drill.rehearse(fleet, a_ground(targets=targets))
    assert [each.served_at for each in found] == [NOW + (10 + 10 * number) * SECOND for number in (1, 2, 3)]


def test_windows_and_a_freeze_are_kept() -> None:
    night = MaintenanceWindow(opens=120, closes=180)
    targets = {"web": DrilledTarget(domain="nginx", takes=SECOND, windows=(night,))}
    [found] = drill.rehearse([a_certificate("a")], a_ground(targets=targets))
    assert found.served_at == datetime(2030, 1, 3, 2, 0, 1, tzinfo=UTC)
    [frozen] = drill.rehearse([a_certificate("a")], a_ground(frozen_until=NOW + 5 * DAY))
    assert frozen.served_at == NOW + 5 * DAY + SECOND


def test_what_is_blocked_says_why_and_takes_no_turn_from_others() -> None:
    blocked = a_certificate("a", days=1, obstacles=("It is paused: resume it.",))
    broken = {"web": DrilledTarget(domain="nginx", takes=SECOND, obstacle="Target web failed its test: no.")}
    found = drill.rehearse([blocked, a_certificate("b")], a_ground(orders=Limit(burst=1, every=HOUR, reserve=0)))
    assert found[0].problems == ("It is paused: resume it.",)
    assert (found[1].ordered_at, found[1].makes_it(NOW + DAY)) == (NOW, True)
    assert drill.time_to_safe(found, NOW) is None
    [at_target] = drill.rehearse([a_certificate("b")], a_ground(targets=broken))
    assert at_target.problems == ("Target web failed its test: no.",)
    [nowhere] = drill.rehearse([a_certificate("c", targets=())], a_ground())
    assert "No target is named" in nowhere.problems[0]


def test_too_late_is_not_in_time() -> None:
    fleet = [a_certificate(f"n{number}") for number in range(3)]
    found = drill.rehearse(fleet, a_ground(orders=Limit(burst=1, every=DAY, reserve=0)))
    assert [each.makes_it(NOW + DAY) for each in found] == [True, False, False]


def test_a_great_fleet_is_counted_through() -> None:
    fleet = [a_certificate(f"n{number}") for number in range(3000)]
    found = drill.rehearse(fleet, a_ground(orders=Limit(burst=300, every=timedelta(seconds=36), reserve=0)))
    assert found[-1].ordered_at == NOW + 2701 * timedelta(seconds=36), "299 at once, and one after the other"


def test_a_drill_that_is_told_to_stop_stops() -> None:
    class Enough(Exception):
        pass

    def check() -> None:
        raise Enough

    with pytest.raises(Enough):
        drill.rehearse([a_certificate("a")], a_ground(), check)
