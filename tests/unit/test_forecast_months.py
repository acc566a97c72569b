"""The months to come: what is counted, what does not fit and why, and what if."""

from datetime import UTC, datetime, timedelta

import pytest

from holdfast.core.forecast import Month, PlannedCertificate, WhatIf, ahead, by_month, folded, supposed
from holdfast.core.issuers.budget import Limit
from holdfast.core.issuers.ca_limits import CaLimits
from holdfast.core.own_ca.acme import Identifier
from holdfast.core.windows import MaintenanceWindow
from holdfast.operations import kinds

NOW = datetime(2027, 3, 10, 12, 0, tzinfo=UTC)
DAY = timedelta(days=1)
FREE = CaLimits(requests=None)


def kept(number: int = 0, **wishes: object) -> PlannedCertificate:
    given = {"issuer": "ca", "next_at": NOW + 20 * DAY, "life": 90 * DAY} | wishes
    return PlannedCertificate(identifiers=(Identifier("dns", f"n{number}.example.com"),), **given)  # type: ignore[arg-type]


def outlook(*fleet: PlannedCertificate, limits: CaLimits = FREE, months: int = 12) -> list[Month]:
    return by_month(fleet, {"ca": limits}, NOW, months=months)


def test_each_calendar_month_has_its_row_and_every_renewal_is_in_one() -> None:
    found = outlook(kept())
    assert [f"{each.starts:%Y-%m}" for each in found][:3] == ["2027-03", "2027-04", "2027-05"]
    assert len(found) == 12
    assert [n for n, each in enumerate(found) if each.orders] == [0, 2, 4, 6, 8, 10]  # every sixty days, from day 20 on
    assert all(each.fits for each in found)


def test_months_of_another_year_are_not_taken_for_this_ones() -> None:
    late = outlook(kept(next_at=datetime(2028, 1, 5, tzinfo=UTC)), months=13)
    assert [f"{each.starts:%Y-%m}" for each in late if each.orders] == ["2028-01", "2028-03"]


def test_each_renewal_is_deployed_to_each_target_of_its_certificate() -> None:
    march = outlook(kept(targets=3), kept(1))[0]
    assert (march.orders, march.deployments) == (2, 3)


def test_where_no_limit_is_known_nothing_is_used_up() -> None:
    assert {each.used_percent for each in outlook(kept())} == {None}


def test_a_domain_that_needs_more_in_a_week_than_its_ca_allows_is_named() -> None:
    limits = CaLimits(per_domain=Limit(burst=50, every=timedelta(minutes=202)))
    [march, *_] = outlook(*(kept(n) for n in range(60)), limits=limits)
    assert march.problem is not None
    assert (march.problem.kind, march.problem.what, march.problem.needed) == ("domain", "example.com", 60)
    assert march.used_percent == 120


def test_a_week_is_held_against_what_is_refilled_in_it() -> None:
    limits = CaLimits(orders=Limit(burst=5, every=DAY))
    fleet = [kept(n, next_at=datetime(2027, 4, 5 + n // 2, n, tzinfo=UTC)) for n in range(8)]
    april = outlook(*fleet, limits=limits)[1]
    assert april.problem is not None
    assert (april.problem.kind, april.problem.needed, april.problem.allowed) == ("week", 8, 7)
    assert april.problem.starts == datetime(2027, 4, 5, tzinfo=UTC)  # a Monday


def test_a_change_window_makes_an_hour_too_narrow() -> None:
    night = MaintenanceWindow(days=frozenset({5}), opens=2 * 60, closes=3 * 60)
    limits = CaLimits(orders=Limit(burst=10, every=timedelta(minutes=6)))
    fleet = [kept(n, next_at=NOW + DAY * (n % 7)) for n in range(60)]
    assert all(each.fits for each in outlook(*fleet, limits=limits))
    [march, *_] = outlook(*(kept(n, next_at=NOW + DAY * (n % 7), windows=(night,)) for n in range(60)), limits=limits)
    assert march.problem is not None
    assert (march.problem.kind, march.problem.allowed) == ("hour", 20)
    assert march.problem.starts.weekday() == 5
    assert march.busiest_hour_orders == march.busiest_day_orders >= march.problem.needed


def test_a_window_that_opens_too_late_is_not_waited_for() -> None:
    never = MaintenanceWindow(days=frozenset({0}), opens=0, closes=1)
    [march, *_] = outlook(kept(next_at=NOW, life=timedelta(days=6), windows=(never,)))
    assert march.orders == 4  # after three days two more, when a sixth of its life is left: not once a week


def test_shorter_lives_mean_more_orders() -> None:
    usual = sum(each.orders for each in outlook(kept()))
    shorter = sum(each.orders for each in outlook(*supposed([kept()], WhatIf(life=47 * DAY), NOW)))
    assert (usual, shorter) == (6, 11)


@pytest.mark.parametrize("fleet", [[], [kept()], [kept(n) for n in range(5)]], ids=["none", "one", "some"])
def test_more_certificates_are_like_those_that_there_are_and_spread(fleet: list[PlannedCertificate]) -> None:
    found = supposed(fleet, WhatIf(more=100, issuer="ca"), NOW)
    assert len(found) == len(fleet) + 100
    assert {each.issuer for each in found} == {"ca"}
    assert len({each.next_at for each in found}) >= 100


def test_only_the_ca_that_is_asked_about_is_looked_at() -> None:
    fleet = [kept(1), kept(2, issuer="other")]
    assert supposed(fleet, WhatIf(issuer="other"), NOW) == fleet[1:]


def test_one_that_is_renewed_so_long_before_its_end_is_renewed_as_often_as_that_means() -> None:
    found = outlook(kept(before=80 * DAY))  # of ninety: ten days in use
    assert sum(each.orders for each in found) == 34
    tenth = outlook(kept(before=900 * DAY))  # never less than a tenth of its life, as the engine has it
    assert sum(each.orders for each in tenth) == 38


def test_one_that_is_renewed_late_in_its_life_is_never_moved_before_its_time_by_a_window() -> None:
    never = MaintenanceWindow(days=frozenset({0}), opens=0, closes=1)
    [march, *_] = outlook(kept(next_at=NOW, fraction=0.95, windows=(never,)))
    assert march.busiest_day == NOW.replace(hour=0)


def test_the_same_names_too_often_in_a_week_are_named() -> None:
    limits = CaLimits(per_set=Limit(burst=5, every=timedelta(hours=34)))
    same = [kept(7) for _ in range(6)]
    [march, *_] = outlook(*same, *(kept(n) for n in range(6)), limits=limits)
    assert march.problem is not None
    assert (march.problem.kind, march.problem.what) == ("names", "n7.example.com")
    assert (march.problem.needed, march.problem.allowed) == (6, 5)
    [alone, *_] = outlook(kept(next_at=NOW, life=timedelta(hours=20)), limits=limits)
    assert alone.problem is not None
    assert alone.problem.kind == "names"


def test_those_that_are_only_assumed_have_names_of_their_own() -> None:
    limits = CaLimits(per_set=Limit(burst=5, every=timedelta(hours=34)))
    fleet = supposed([kept()], WhatIf(more=600), NOW)
    assert all(each.fits for each in outlook(*fleet, limits=limits))


@pytest.mark.parametrize(
    ("kind", "directory", "longest"),
    [
        ("acme", "https://acme-v02.api.letsencrypt.org/directory", 90),
        ("acme", "https://dv.acme-v02.api.pki.goog/directory", 200),
        ("digicert", "", 200),
        ("acme", "https://ca.internal/acme/letsencrypt.org", None),
        ("acme", "https://notletsencrypt.org/directory", None),
        ("vault", "", None),
        ("local", "", None),
    ],
    ids=["letsencrypt", "google", "digicert", "private", "alike", "vault", "own"],
)
def test_only_lives_at_public_cas_are_bounded(kind: str, directory: str, longest: int | None) -> None:
    since = datetime(2026, 12, 1, tzinfo=UTC)
    found = [life for begins, life in kinds.limits_by(kind, {"directory": directory}).lives if begins <= since][-1:]
    assert found == ([] if longest is None else [longest * DAY])


def test_supposed_certificates_of_an_issuer_without_any_are_not_put_on_the_domain_of_another() -> None:
    limits = CaLimits(per_domain=Limit(burst=50, every=timedelta(minutes=202)))
    fleet = supposed([kept(issuer="own")], WhatIf(more=500, issuer="ca"), NOW)
    assert len({each.identifiers for each in fleet}) == 500
    assert all(month.fits for month in outlook(*fleet, limits=limits))


def test_certificates_that_differ_in_their_names_alone_are_counted_as_if_each_were_looked_at() -> None:
    per_domain = Limit(burst=50, every=timedelta(minutes=202))
    limits = {"ca": CaLimits(per_domain=per_domain, per_set=Limit(burst=5, every=timedelta(hours=34)))}
    same = [kept(7) for _ in range(6)]
    window = MaintenanceWindow(days=frozenset({2}), opens=60, closes=120)
    fleet = [
        *(kept(n, next_at=NOW + (n % 9) * DAY, life=(90 if n % 2 else 6) * DAY) for n in range(300)),
        *(kept(1000 + n, windows=(window,)) for n in range(40)),
        *same,
    ]
    short = folded(fleet, limits)
    assert len(short) < 40
    assert sum(each.number for each in short) == len(fleet)
    assert ahead(short, limits, NOW, months=12) == ahead(fleet, limits, NOW, months=12)


def test_the_tightest_limit_comes_first_with_the_week_in_which_it_breaks() -> None:
    limits = CaLimits(
        per_domain=Limit(burst=50, every=timedelta(minutes=202)), orders=Limit(burst=300, every=DAY / 300)
    )
    found = ahead([kept(n) for n in range(60)], {"ca": limits}, NOW, months=12).limits
    assert [(each.kind, each.what, each.allowed) for each in found] == [
        ("domain", "example.com", 50),
        ("orders", "", 2100),
    ]
    assert found[0].first_broken == datetime(2027, 3, 29, tzinfo=UTC)  # the Monday before 30 March
    assert found[1].first_broken is None
