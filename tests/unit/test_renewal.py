"""When certificates are due, and what they wait for."""

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.certificate import (
    Ari,
    Certificate,
    CertificateSpec,
    CertificateState,
    Failing,
    RenewalPolicy,
    Version,
    VersionState,
    failed,
)
from holdfast.core.own_ca.acme import Identifier
from holdfast.core.reasons import Reason
from holdfast.core.renewal import (
    decide,
    emergency_at,
    leaves_wrong,
    lifetime_due,
    pick,
    safe_until,
    short_from,
)
from holdfast.core.windows import MaintenanceWindow

T0 = datetime(2026, 11, 1, tzinfo=UTC)  # a Sunday
DAY, HOUR, MINUTE = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1)


def a_certificate(**changes: Any) -> Certificate:
    wishes = {name: changes.pop(name) for name in ("rule", "windows") if name in changes}
    spec = CertificateSpec(name="www", identifiers=(Identifier("dns", "www.example.com"),), issuers=("ca",), **wishes)
    base = Certificate(
        id="certificate_1",
        wanted=spec,
        state=CertificateState.ACTIVE,
        generation=1,
        version=1,
        fingerprint=spec.fingerprint(),
        changed_by="alice",
        created_at=T0,
        current_version="version_1",
    )
    return replace(base, **changes)


def a_version(life: timedelta = 90 * DAY, **changes: Any) -> Version:
    base = Version(
        id="version_1",
        certificate="certificate_1",
        generation=1,
        state=VersionState.ACTIVE,
        key_secret="secret_1",
        chain_pem="",
        serial="1",
        not_before=T0,
        not_after=T0 + life,
        issuer="ca",
        account=None,
        spki_sha256="",
        issued_at=T0,
    )
    return replace(base, **changes)


def failing(attempts: int | None, last_at: datetime, first_at: datetime | None = None) -> Failing:
    return Failing(attempts=attempts, last_at=last_at, first_at=first_at or last_at, error="no", reason="CA_REFUSED")


# ── Why ──


def test_one_that_has_no_certificate_yet_is_due_at_once() -> None:
    decision = decide(a_certificate(current_version=None), None, T0 + MINUTE)
    assert (decision.cause, decision.due(T0 + MINUTE), decision.urgent) == (Reason.FIRST, True, False)


def test_a_fresh_one_is_renewed_at_two_thirds_of_its_life_or_a_little_before() -> None:
    decision = decide(a_certificate(), a_version(), T0)
    assert decision.cause is Reason.DUE_LIFETIME
    assert T0 + 54 * DAY <= decision.at <= T0 + 60 * DAY  # type: ignore[operator]
    assert not decision.due(T0)


def test_one_that_lives_less_than_ten_days_is_renewed_at_half_of_its_life() -> None:
    decision = decide(a_certificate(), a_version(160 * HOUR), T0)
    assert T0 + 69 * HOUR <= decision.at <= T0 + 80 * HOUR  # type: ignore[operator]


@pytest.mark.parametrize(
    ("rule", "low", "high"),
    [
        (RenewalPolicy(fraction=0.5), 39, 45),
        (RenewalPolicy(before=30 * DAY), 54, 60),
        (RenewalPolicy(before=89 * DAY), 3, 9),  # never in the first tenth of its life
        (RenewalPolicy(before=900 * DAY), 3, 9),
    ],
)
def test_a_rule_of_its_own_is_kept(rule: RenewalPolicy, low: int, high: int) -> None:
    decision = decide(a_certificate(rule=rule), a_version(), T0)
    assert T0 + low * DAY <= decision.at <= T0 + high * DAY  # type: ignore[operator]


def test_ten_thousand_issued_together_are_not_renewed_together() -> None:
    days = Counter((lifetime_due(a_certificate(), a_version(id=f"version_{n}")) - T0) // HOUR for n in range(10_000))
    assert len(days) > 140  # hours; six days have 144
    assert max(days.values()) < 130  # evenly: 70 an hour


def test_a_revoked_one_is_due_at_once_and_urgent() -> None:
    version = a_version(state=VersionState.REVOKED, revoked_at=T0 + DAY)
    decision = decide(a_certificate(), version, T0 + DAY)
    assert (decision.cause, decision.urgent, decision.due(T0 + DAY)) == (Reason.REVOKED, True, True)


def test_a_changed_input_makes_it_due_at_once() -> None:
    decision = decide(a_certificate(generation=2), a_version(), T0 + DAY)
    assert (decision.cause, decision.due(T0 + DAY)) == (Reason.INPUT_CHANGED, True)


def test_with_a_twentieth_of_its_life_left_it_is_an_emergency() -> None:
    now = T0 + 90 * DAY * 0.96
    decision = decide(a_certificate(rule=RenewalPolicy(fraction=0.95)), a_version(), now)
    assert (decision.cause, decision.urgent, decision.due(now)) == (Reason.EMERGENCY, True, True)


@pytest.mark.parametrize("life", [8 * HOUR, 90 * DAY], ids=["of-hours", "of-months"])
def test_a_wrong_certificate_is_left_for_another_ca_long_before_the_emergency(life: timedelta) -> None:
    current = a_version(life)
    short = short_from(current)
    assert short < emergency_at(current) - life / 10
    assert [leaves_wrong(current, at, others=True) for at in (short, short + MINUTE)] == [False, True]


def test_a_wrong_certificate_is_never_left_where_there_is_no_other_ca_or_nothing_in_use() -> None:
    late = safe_until(a_version())
    assert not leaves_wrong(a_version(), late, others=False)
    assert not leaves_wrong(None, late, others=True)


@pytest.mark.parametrize(
    ("state", "reason"), [(CertificateState.PAUSED, Reason.PAUSED), (CertificateState.ARCHIVED, Reason.ARCHIVED)]
)
def test_one_that_is_put_away_is_never_due(state: CertificateState, reason: Reason) -> None:
    decision = decide(a_certificate(state=state), a_version(), T0 + 100 * DAY)
    assert (decision.at, decision.cause) == (None, reason)


# ── ARI ──


def a_window(start: datetime, end: datetime, **changes: Any) -> Ari:
    return replace(Ari(start=start, end=end, pick=pick(start, end, "version_1")), **changes)


def test_the_cas_window_decides_and_one_instant_in_it_is_kept() -> None:
    ari = a_window(T0 + 59 * DAY, T0 + 61 * DAY)
    decision = decide(a_certificate(ari=ari), a_version(), T0)
    assert (decision.at, decision.cause) == (ari.pick, Reason.DUE_ARI)
    assert ari.start <= ari.pick < ari.end
    assert pick(ari.start, ari.end, "version_1") == ari.pick
    assert pick(ari.start, ari.end + HOUR, "version_1") != ari.pick


def test_a_window_that_moves_to_the_past_is_due_now_and_urgent() -> None:
    ari = a_window(T0 + DAY - HOUR, T0 + DAY - HOUR / 2)
    decision = decide(a_certificate(ari=ari), a_version(), T0 + DAY)
    assert (decision.cause, decision.urgent, decision.due(T0 + DAY)) == (Reason.DUE_ARI, True, True)


def test_a_ca_that_hurries_every_new_certificate_does_not_send_us_round_in_circles() -> None:
    ari = a_window(T0, T0 + HOUR)
    certificate = a_certificate(ari=ari, ari_forced_at=T0 - MINUTE)
    decision = decide(certificate, a_version(), T0 + HOUR)
    assert not decision.due(T0 + HOUR)
    assert decision.at == T0 - MINUTE + 9 * DAY  # a tenth of its life after the last time
    short = decide(certificate, a_version(160 * HOUR), T0 + 2 * HOUR)
    assert short.at == T0 - MINUTE + DAY


def test_ari_that_says_very_late_is_overruled_by_the_emergency() -> None:
    ari = a_window(T0 + 89 * DAY, T0 + 90 * DAY)
    decision = decide(a_certificate(ari=ari), a_version(), T0)
    assert (decision.at, decision.cause) == (emergency_at(a_version()), Reason.EMERGENCY)


def test_ari_can_be_switched_off() -> None:
    ari = a_window(T0 + DAY, T0 + 2 * DAY)
    decision = decide(a_certificate(ari=ari, rule=RenewalPolicy(ari=False)), a_version(), T0)
    assert decision.cause is Reason.DUE_LIFETIME


# ── Back-off ──


@pytest.mark.parametrize(("attempts", "hours"), [(1, 1), (2, 2), (3, 4), (4, 8), (5, 16), (6, 32), (7, 32), (99, 32)])
def test_the_wait_doubles_from_an_hour_to_thirty_two(attempts: int, hours: int) -> None:
    last = T0 + 61 * DAY
    decision = decide(a_certificate(failing=failing(attempts, last)), a_version(), last + MINUTE)
    assert (decision.at, decision.waits_for) == (last + hours * HOUR, Reason.BACKOFF)


def test_a_time_without_a_count_waits_an_hour() -> None:
    last = T0 + 61 * DAY
    upgraded = Failing(attempts=None, last_at=last)
    decision = decide(a_certificate(failing=upgraded), a_version(), last + MINUTE)
    assert decision.at == last + HOUR
    assert failed(upgraded, last + HOUR, error="", reason="").attempts == 1


def test_failures_of_one_without_a_certificate_wait_just_so() -> None:
    decision = decide(a_certificate(failing=failing(3, T0), current_version=None), None, T0 + MINUTE)
    assert decision.at == T0 + 4 * HOUR


@pytest.mark.parametrize("life", [24 * HOUR, 160 * HOUR, 47 * DAY, 90 * DAY])
def test_at_least_ten_attempts_fit_before_it_expires(life: timedelta) -> None:
    version, certificate, now, attempts = a_version(life), a_certificate(), T0, 0
    while True:
        decision = decide(certificate, version, now)
        assert decision.at is not None
        now = max(now, decision.at)
        if now >= version.not_after:
            break
        attempts += 1
        certificate = replace(certificate, failing=failed(certificate.failing, now, error="", reason=""))
    assert attempts >= 10


def test_the_last_safe_moment_is_never_slept_through() -> None:
    version = a_version()
    last = safe_until(version) - 5 * HOUR
    certificate = a_certificate(failing=failing(9, last, T0 + 60 * DAY))
    assert decide(certificate, version, last + MINUTE).at == safe_until(version)
    late = safe_until(version) + MINUTE  # a sweep comes when it comes: the attempt is due, and not put off for ever
    assert decide(certificate, version, late).at <= late


@pytest.mark.parametrize(("attempts", "hours"), [(1, 1), (2, 2), (3, 4), (6, 32), (7, 32)])
def test_one_that_begins_to_fail_when_it_has_ended_waits_as_one_that_was_never_there(attempts: int, hours: int) -> None:
    version = a_version()
    last = version.not_after + 90 * HOUR
    certificate = a_certificate(failing=failing(attempts, last, version.not_after))
    assert decide(certificate, version, last + MINUTE).at == last + hours * HOUR


def test_a_name_that_a_person_must_unpause_is_tried_at_the_slowest_step_from_the_first_time_on() -> None:
    last = T0 + 61 * DAY
    paused = replace(failing(1, last), reason=Reason.NAME_PAUSED_AT_CA.value)
    assert decide(a_certificate(failing=paused), a_version(), last + MINUTE).at == last + 32 * HOUR


# ── Maintenance windows ──

SUNDAYS = MaintenanceWindow(days=frozenset({6}), opens=22 * 60, closes=4 * 60)


def test_it_waits_for_its_window() -> None:
    version = a_version()
    monday = datetime(2027, 1, 4, 12, tzinfo=UTC)  # day 64
    decision = decide(a_certificate(windows=(SUNDAYS,)), version, monday)
    assert decision.at == datetime(2027, 1, 10, 22, tzinfo=UTC)
    assert decision.waits_for is Reason.WINDOW
    inside = datetime(2027, 1, 11, 3, 59, tzinfo=UTC)  # over midnight
    assert decide(a_certificate(windows=(SUNDAYS,)), version, inside).due(inside)
    outside = datetime(2027, 1, 11, 4, 0, tzinfo=UTC)
    assert not decide(a_certificate(windows=(SUNDAYS,)), version, outside).due(outside)


def test_a_window_that_would_come_too_late_is_not_waited_for() -> None:
    version = a_version(6 * DAY)
    never = MaintenanceWindow(days=frozenset({5}), opens=0, closes=1)
    decision = decide(a_certificate(windows=(never,)), version, T0 + 3 * DAY)
    assert decision.at == version.not_after - DAY


@pytest.mark.parametrize("why", ["first", "revoked", "changed", "emergency"])
def test_nothing_that_presses_waits_for_a_window(why: str) -> None:
    never = MaintenanceWindow(days=frozenset({5}), opens=0, closes=1)
    now, certificate, version = T0 + DAY, a_certificate(windows=(never,)), a_version()
    if why == "first":
        assert decide(replace(certificate, current_version=None), None, now).due(now)
    elif why == "revoked":
        assert decide(certificate, replace(version, state=VersionState.REVOKED, revoked_at=now), now).due(now)
    elif why == "changed":
        assert decide(replace(certificate, generation=2), version, now).due(now)
    else:
        assert decide(certificate, version, version.not_after - HOUR).due(version.not_after - HOUR)


# ── What holds for all of them ──

lives = st.integers(1, 400 * 24).map(lambda hours: hours * HOUR)


@st.composite
def situations(draw: st.DrawFn) -> tuple[Certificate, Version, datetime]:
    version = a_version(draw(lives), id=f"version_{draw(st.integers(0, 999))}")
    share = draw(st.floats(0, 1))
    now = T0 + version.life * share
    try:
        windows = tuple(
            MaintenanceWindow(days=frozenset({draw(st.integers(0, 6))}), opens=draw(st.integers(0, 1439)), closes=close)
            for close in draw(st.lists(st.integers(1, 1440), max_size=2))
        )
    except ValueError:
        windows = ()
    troubles = None
    if draw(st.booleans()):
        first = T0 + (now - T0) * draw(st.floats(0, 1))
        last = first + (now - first) * draw(st.floats(0, 1))
        troubles = failing(draw(st.one_of(st.none(), st.integers(1, 50))), last, first)
    ari = None
    if draw(st.booleans()):
        start = T0 + version.life * draw(st.floats(-0.2, 1.2))
        end = start + draw(st.integers(1, 100)) * HOUR
        ari = Ari(start=start, end=end, pick=pick(start, end, version.id))
    return a_certificate(windows=windows, failing=troubles, ari=ari), version, now


@given(situations())
def test_the_next_attempt_is_never_later_than_safe(situation: tuple[Certificate, Version, datetime]) -> None:
    certificate, version, now = situation
    decision = decide(certificate, version, now)
    assert decision.at is not None
    if certificate.failing is None or certificate.failing.last_at < safe_until(version):
        if now <= safe_until(version):
            assert max(decision.at, now) <= safe_until(version)
    else:
        assert decision.at <= certificate.failing.last_at + 32 * HOUR


@given(situations())
def test_exactly_one_check_blocks_what_is_not_due_and_none_what_is(
    situation: tuple[Certificate, Version, datetime],
) -> None:
    certificate, version, now = situation
    decision = decide(certificate, version, now)
    blocking = [check for check in decision.checks if check.blocks]
    assert len(blocking) == (0 if decision.due(now) else 1)


@given(situations())
def test_asking_again_when_the_time_has_come_finds_it_due(situation: tuple[Certificate, Version, datetime]) -> None:
    """Or the sweep would put it off for ever."""
    certificate, version, now = situation
    decision = decide(certificate, version, now)
    assert decision.at is not None
    then = max(now, decision.at)
    assert decide(certificate, version, then).due(then)
