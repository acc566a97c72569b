"""Issuances, the choice of a CA, breakers, limits, reasons, forecasts: values in, values out."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import reasons
from holdfast.core.certificate import CertificateSpec, RenewalPolicy
from holdfast.core.forecast import PlannedCertificate, renewals
from holdfast.core.issuance import MOVES, OVER, Candidate, IssuanceState, choose, move, patience
from holdfast.core.issuers import breaker, ca_limits
from holdfast.core.issuers.breaker import Breaker
from holdfast.core.issuers.budget import Limit
from holdfast.core.issuers.ca_limits import CaLimits, budgets_of_order, refused_key, registered_domain
from holdfast.core.own_ca.acme import Identifier
from holdfast.core.reasons import MEANINGS, Reason
from holdfast.core.windows import MaintenanceWindow
from holdfast.errors import IllegalMove
from holdfast.issuers.acme.settings import LETS_ENCRYPT, LETS_ENCRYPT_LIVES, PRIVATE, ZEROSSL
from holdfast.operations.kinds import limits_by

NOW = datetime(2026, 11, 16, tzinfo=UTC)
DAY, HOUR, MINUTE = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1)


def dns(*names: str) -> tuple[Identifier, ...]:
    return tuple(Identifier("dns", name) for name in names)


# ── The machine ──


def test_an_issuance_goes_from_a_wish_to_a_certificate() -> None:
    state = IssuanceState.AWAITING_APPROVAL
    for event in ("approved", "key stored", "order placed", "proofs asked", "proved", "csr handed in"):
        state = move(state, event)  # type: ignore[arg-type]
    assert move(state, "certificate received") is IssuanceState.ISSUED


def test_what_is_over_stays_over() -> None:
    assert {state for state, _ in MOVES} & OVER == set()
    with pytest.raises(IllegalMove):
        move(IssuanceState.CANCELLED, "certificate received")


def test_nothing_is_ordered_before_its_key_is_stored() -> None:
    before = {state for (state, event), after in MOVES.items() if after is IssuanceState.ORDERED}
    assert before == {IssuanceState.KEY_STORED}
    with pytest.raises(IllegalMove):
        move(IssuanceState.REQUESTED, "order placed")


def test_everything_under_way_can_be_given_up_and_cancelled() -> None:
    for state in set(IssuanceState) - OVER:
        assert move(state, "gave up") is IssuanceState.FAILED
        assert move(state, "cancelled") is IssuanceState.CANCELLED


# ── Which CA ──

A, B, C = Candidate(name="a"), Candidate(name="b"), Candidate(name="c")


def chosen(*candidates: Candidate, failures: int = 0, left: timedelta | None = 30 * DAY) -> str | None:
    found = choose(candidates, failures=failures, left=left, now=NOW, short=5 * DAY)
    return None if found is None else found.name


def test_the_first_of_the_list_is_asked_and_after_three_failures_the_next() -> None:
    assert [chosen(A, B, C, failures=n) for n in range(10)] == ["a"] * 3 + ["b"] * 3 + ["c"] * 3 + ["a"]


def test_with_little_time_left_every_failure_moves_on() -> None:
    assert [chosen(A, B, failures=n, left=DAY) for n in range(4)] == ["a", "b", "a", "b"]


def test_paused_and_unknown_ones_are_passed_over() -> None:
    assert chosen(Candidate(name="a", paused=True), Candidate(name="b", known=False), C) == "c"
    assert chosen(Candidate(name="a", paused=True)) is None


def test_one_that_is_down_is_passed_over_while_another_can_help() -> None:
    down = Candidate(name="a", down=True)
    assert chosen(down, B) == "b"
    assert chosen(down, B, left=None) == "b"
    assert chosen(down, left=DAY) == "a"  # there is no other
    assert chosen(down, Candidate(name="b", down=True)) == "a"


def test_one_that_was_down_is_tried_again_by_those_that_have_time() -> None:
    doubtful = Candidate(name="a", doubtful=True)
    assert chosen(doubtful, B) == "a"
    assert chosen(doubtful, B, left=DAY) == "b"
    assert chosen(doubtful, B, left=DAY, failures=2) == "a"  # the other one has failed as well
    assert chosen(doubtful, left=DAY) == "a"


def test_one_that_wants_to_hear_nothing_for_long_is_passed_over() -> None:
    held = Candidate(name="a", held_until=NOW + 40 * DAY)
    assert chosen(held, B) == "b"
    assert chosen(Candidate(name="a", held_until=NOW + HOUR), B) == "a"
    assert chosen(Candidate(name="a", held_until=NOW + 2 * HOUR), B) == "b"
    assert chosen(held) == "a"
    assert (
        chosen(held, Candidate(name="b", held_until=NOW + 2 * HOUR)) == "b"
    )  # both are away, and this one not for long


def test_a_long_line_is_no_reason_to_go_unless_it_takes_a_tenth_of_what_is_left() -> None:
    assert chosen(Candidate(name="a", turn_at=NOW + 2 * DAY), B) == "a"
    assert chosen(Candidate(name="a", turn_at=NOW + 4 * DAY), B) == "b"
    assert chosen(Candidate(name="a", turn_at=NOW + 2 * HOUR), B, left=None) == "b"
    assert chosen(Candidate(name="a", down=True), Candidate(name="b", turn_at=NOW + MINUTE), left=-HOUR) == "b"


def test_one_waits_for_an_hour_or_a_tenth_of_what_is_left_and_not_long_for_a_first_certificate() -> None:
    assert [patience(left) for left in (90 * DAY, 5 * HOUR, -HOUR, None)] == [
        HOUR, HOUR / 2, MINUTE, timedelta(minutes=10)
    ]  # fmt: skip


# ── Breakers ──


def test_a_breaker_opens_after_five_failures_and_waits_ever_longer() -> None:
    now, state, waits = NOW, Breaker(), list[timedelta]()
    for n in range(12):
        state = breaker.failed(state, now, "no route")
        if state.until is not None and n >= 4:
            waits.append(state.until - now)
            now = state.until + MINUTE
    assert waits[:6] == [MINUTE, 2 * MINUTE, 4 * MINUTE, 8 * MINUTE, 15 * MINUTE, 15 * MINUTE]


def test_while_it_is_open_nobody_asks_then_one_does_for_all() -> None:
    state = Breaker(failures=5, until=NOW + MINUTE)
    _, until = breaker.admit(state, "one", NOW)
    assert until is not None
    assert until >= NOW + MINUTE
    later = NOW + 2 * MINUTE
    state, until = breaker.admit(state, "one", later)
    assert (until, state.probe) == (None, "one")
    _, until = breaker.admit(state, "two", later)
    assert until is not None
    assert until > later
    _, until = breaker.admit(state, "one", later)  # it may come back
    assert until is None
    taken_over, until = breaker.admit(state, "two", later + breaker.PROBE_FOR)  # the probe died
    assert (until, taken_over.probe) == (None, "two")


def test_a_ca_that_limits_us_again_and_again_is_asked_more_seldom_than_it_says() -> None:
    now, state, waits = NOW, Breaker(), list[timedelta]()
    for _ in range(7):
        state = breaker.limited(state, now, now + timedelta(seconds=45), "too many")
        assert state.until is not None
        waits.append(state.until - now)
        now = state.until
    assert waits[:3] == [timedelta(seconds=45), MINUTE, 2 * MINUTE]
    assert waits[-1] == 15 * MINUTE
    assert breaker.limited(Breaker(), NOW, NOW + DAY, "").until == NOW + DAY


def test_an_account_that_is_barred_is_tried_by_one_ever_more_seldom_and_at_once_after_a_change() -> None:
    now, state, waits = NOW, Breaker(), list[timedelta]()
    for _ in range(6):
        state = breaker.barred(state, now, "bad key")
        assert breaker.barred(state, now, "bad key") == state  # the others that were under way say nothing new
        assert state.until is not None
        waits.append(state.until - now)
        now = state.until
    assert waits == [n * MINUTE for n in (5, 10, 20, 40, 60, 60)]
    assert (state.barred, state.limited) == (True, False)
    changed = breaker.another_chance(state, now)
    assert not changed.shut_at(now)
    assert breaker.admit(changed, "one", now)[1] is None
    assert breaker.barred(changed, now, "bad key").until == now + 10 * MINUTE
    assert breaker.limited(state, now, now + HOUR, "").limits == 1


def test_how_long_a_breaker_has_been_shut_is_known_by_the_waits_that_are_over() -> None:
    assert Breaker(failures=5, until=NOW).lasted == timedelta(0)
    assert Breaker(failures=8, until=NOW).lasted == 7 * MINUTE
    assert Breaker(failures=10**6, until=NOW).lasted > 10 * HOUR
    assert Breaker(limits=-3, until=NOW).lasted == 15 * MINUTE


def test_a_success_closes_it() -> None:
    assert breaker.succeeded(Breaker(failures=9, until=NOW)) == Breaker()


# ── Limits ──


def test_a_first_order_pays_everything_at_lets_encrypt() -> None:
    names = dns("a.example.co.uk", "b.example.co.uk", "*.other.com")
    keys = budgets_of_order(LETS_ENCRYPT, "le", names, renewal=False, in_ari_window=False)
    assert keys["ca/le/orders"] == Limit(burst=300, every=timedelta(seconds=36))
    shared = "ca/acme-v02.api.letsencrypt.org"
    assert {f"{shared}/domain/example.co.uk", f"{shared}/domain/other.com", "ca/le/requests"} < set(keys)
    assert sum(key.startswith(f"{shared}/names/") for key in keys) == 1
    assert len(keys) == 5


def test_a_renewal_there_pays_for_its_set_only_and_in_its_window_for_nothing() -> None:
    names = dns("a.example.com")
    renewal = budgets_of_order(LETS_ENCRYPT, "le", names, renewal=True, in_ari_window=False)
    assert sorted(key.split("/")[2] for key in renewal) == ["names", "requests"]
    in_window = budgets_of_order(LETS_ENCRYPT, "le", names, renewal=True, in_ari_window=True)
    assert list(in_window) == ["ca/le/requests"]
    other = budgets_of_order(ZEROSSL, "z", names, renewal=True, in_ari_window=True)
    assert "ca/z/orders" in other


def test_the_same_names_in_any_order_are_one_set() -> None:
    assert ca_limits.set_key("le", dns("a.com", "b.com")) == ca_limits.set_key("le", dns("b.com", "a.com"))
    assert ca_limits.set_key("le", dns("a.com")) != ca_limits.set_key("le", dns("a.com", "b.com"))


def test_what_a_ca_counts_across_accounts_is_one_budget_for_all_of_its_rows() -> None:
    names = dns("a.example.com")
    one, two = (set(budgets_of_order(LETS_ENCRYPT, row, names, renewal=False, in_ari_window=False)) for row in "ab")
    assert sorted(key.split("/")[2] for key in one & two) == ["domain", "names"]
    assert sorted(key.split("/")[2] for key in one ^ two) == ["orders", "orders", "requests", "requests"]
    by_account = CaLimits(per_domain=LETS_ENCRYPT.per_domain)
    assert "ca/a/domain/example.com" in budgets_of_order(by_account, "a", names, renewal=False, in_ari_window=False)


def test_short_profiles_have_fewer_names_and_settings_overrule_it() -> None:
    profiles = (None, "classic", "tlsserver", "shortlived")
    assert [LETS_ENCRYPT.names_in(each) for each in profiles] == [100, 100, 25, 25]
    own = limits_by("acme", {"directory": "https://acme-v02.api.letsencrypt.org/", "limits": {"max_names": 40}})
    assert [own.names_in(each) for each in profiles] == [40, 40, 40, 40]


def test_limits_are_known_by_the_host_of_the_directory_and_settings_overrule_them() -> None:
    assert limits_by("acme", {"directory": "https://acme-v02.api.letsencrypt.org/directory"}) is LETS_ENCRYPT
    assert limits_by("acme", {"directory": "https://ca.internal/acme/directory"}) is PRIVATE
    assert limits_by("local", {}).requests is None
    own = limits_by("acme", {"limits": {"orders": [10, 60], "per_set": None}})
    assert (own.orders, own.per_set) == (Limit(burst=10, every=MINUTE), None)
    with pytest.raises(ValueError, match="a limit is"):
        limits_by("acme", {"limits": {"orders": "many"}})


@pytest.mark.parametrize(
    ("why", "kind"),
    [
        ("too many certificates (5) already issued for this exact set of identifiers in the last 168h0m0s", "names"),
        ('too many certificates (50) already issued for "example.com" in the last 168h0m0s', "domain"),
        ("too many new orders (300) from this account in the last 3h0m0s", "orders"),
        ('too many failed authorizations (5) for "www.example.com" in the last 1h0m0s', "names"),
        ("Service busy; retry later.", "requests"),
        (
            "Your account is temporarily prevented from requesting certificates for www.example.com and possibly "
            "others. Please visit: https://portal.example/sfe/v1/unpause?jwt=a.b.c",
            "names",
        ),
    ],
)
def test_a_rate_limit_holds_the_budget_that_it_speaks_of(why: str, kind: str) -> None:
    names = dns("www.other.com", "www.example.com")
    kept = list(budgets_of_order(LETS_ENCRYPT, "le", names, renewal=False, in_ari_window=False))
    key = refused_key(LETS_ENCRYPT, "le", names, why, kept)
    assert key in kept
    assert key.split("/")[2] == kind
    if kind == "domain":
        assert key.endswith("/example.com")
        assert "/names/" in refused_key(LETS_ENCRYPT, "x", dns("www.example.com"), why, ["ca/x/orders"])


@pytest.mark.parametrize(
    ("why", "kind"),
    [
        ('le, a new order: too many certificates (50) already issued for "example.com" in the last 168h', "names"),
        ("le, a new order: too many new orders (300) from this account in the last 3h0m0s", "names"),
        ("le, a new order: Service busy; retry later.", "requests"),
    ],
)
def test_what_is_refused_to_an_exempt_renewal_does_not_stop_the_others(why: str, kind: str) -> None:
    names = dns("www.example.com")
    for window in (True, False):
        paid = budgets_of_order(LETS_ENCRYPT, "le", names, renewal=True, in_ari_window=window)
        assert refused_key(LETS_ENCRYPT, "le", names, why, paid).split("/")[2] == kind


@pytest.mark.parametrize(
    ("name", "domain"),
    [
        ("a.b.example.co.uk", "example.co.uk"),
        ("*.example.com", "example.com"),
        ("example.com", "example.com"),
        ("user.github.io", "user.github.io"),
        ("a.user.github.io", "user.github.io"),
        ("co.uk", "co.uk"),
        ("app.internal", "app.internal"),
        ("x.app.internal", "app.internal"),
        ("10.1.2.3", "10.1.2.3"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8:0:0:ffff::2", "2001:db8::/64"),
        ("2001:db8:0:1::1", "2001:db8:0:1::/64"),
        ("localhost", "localhost"),
    ],
)
def test_the_registered_domain_is_that_of_the_public_suffix_list(name: str, domain: str) -> None:
    assert registered_domain(name) == domain


# ── Reasons ──


def test_every_reason_has_its_meaning_in_a_sentence() -> None:
    assert set(MEANINGS) == set(Reason)
    assert all(meaning.sentence.endswith(".") for meaning in MEANINGS.values())


def test_a_reason_that_nobody_knows_is_ours() -> None:
    assert reasons.of("SOMETHING_NEW") is Reason.INTERNAL
    assert reasons.of(None) is Reason.OK


# ── Wishes ──


def test_a_wish_that_changes_nothing_in_the_certificate_has_the_same_fingerprint() -> None:
    wish = CertificateSpec(name="w", identifiers=dns("a.com", "b.com"), issuers=("ca",))
    same = CertificateSpec(name="x", identifiers=dns("b.com", "a.com"), issuers=("ca",), owner="me", labels={"a": "b"})
    assert wish.fingerprint() == same.fingerprint()
    other = CertificateSpec(name="w", identifiers=dns("a.com", "b.com"), issuers=("ca",), key_kind="rsa-2048")
    assert wish.fingerprint() != other.fingerprint()


@pytest.mark.parametrize(
    "make",
    [
        lambda: CertificateSpec(name="w", identifiers=(), issuers=("ca",)),
        lambda: CertificateSpec(name="w", identifiers=dns(*(f"{n}.com" for n in range(101))), issuers=("ca",)),
        lambda: CertificateSpec(name="w", identifiers=dns("a.com"), issuers=()),
        lambda: RenewalPolicy(fraction=0.99),
        lambda: RenewalPolicy(fraction=0.5, before=DAY),
        lambda: RenewalPolicy(before=timedelta(0)),
        lambda: MaintenanceWindow(days=frozenset()),
        lambda: MaintenanceWindow(opens=60, closes=60),
    ],
)
def test_a_wish_that_makes_no_sense_cannot_be_made(make) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=r"\w"):
        make()


@given(st.frozensets(st.integers(0, 6), min_size=1), st.integers(0, 1439), st.integers(1, 1440))
def test_windows_and_rules_come_back_from_json(days: frozenset[int], opens: int, closes: int) -> None:
    if opens != closes:
        window = MaintenanceWindow(days=days, opens=opens, closes=closes)
        assert MaintenanceWindow.from_json(window.to_json()) == window
    rule = RenewalPolicy(before=timedelta(minutes=closes), ari=opens % 2 == 0)
    assert RenewalPolicy.from_json(rule.to_json()) == rule


# ── Forecast ──


def test_shorter_lives_to_come_are_counted_with() -> None:
    kept = PlannedCertificate(issuer="le", identifiers=dns("a.com"), next_at=NOW, life=90 * DAY)
    plain = list(renewals(kept, NOW, NOW + 365 * DAY, ()))
    shorter = list(renewals(kept, NOW, NOW + 365 * DAY, LETS_ENCRYPT_LIVES))
    assert (len(plain), len(shorter)) == (7, 8)
