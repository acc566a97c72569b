"""What sightings of an endpoint mean together."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from holdfast.core.endpoint import (
    Endpoint,
    EndpointProtocol,
    Expected,
    Outcome,
    Sighting,
    SightingProblem,
    Verdict,
    covers,
    judge,
)
from holdfast.core.reasons import Reason

NOW = datetime(2030, 1, 1, tzinfo=UTC)
NEW, OLD, OTHER, INTERMEDIATE, CROSS = "aa" * 32, "bb" * 32, "cc" * 32, "dd" * 32, "ee" * 32
SEVEN = Expected(label="version 7", leaf=NEW, chain=(INTERMEDIATE,))
V4, V6 = "192.0.2.1", "2001:db8::1"


def shows(leaf: str, address: str = V4, *, days: float = 60, names: tuple[str, ...] = ("www.example.org",)) -> Sighting:
    ends = NOW + timedelta(days=days)
    return Sighting(
        address=address, leaf=leaf, chain=(leaf, INTERMEDIATE), names=names, issuer="CN=R10", not_after=ends
    )


def fails(problem: SightingProblem, address: str = V4) -> Sighting:
    return Sighting(address=address, problem=problem, why=f"{address}: {problem}")


def judged(*sightings: Sighting, expected: tuple[Expected, ...] = (SEVEN,)) -> Verdict:
    return judge(expected, {OLD}, sightings, now=NOW, name="www.example.org")


def test_all_samples_at_all_addresses_make_it_served() -> None:
    verdict = judged(*[shows(NEW)] * 5, *[shows(NEW, V6)] * 5)
    assert verdict.served
    assert verdict.sentence == "10 of 10 samples at 2 addresses show version 7."
    assert [(each.outcome, each.count, each.sighting.address) for each in verdict.seen] == [
        (Outcome.NEW, 5, V4),
        (Outcome.NEW, 5, V6),
    ]


def test_one_sample_is_one_sample() -> None:
    assert judged(shows(NEW)).sentence == f"1 of 1 sample at {V4} shows version 7."


def test_everything_old_is_not_served_and_not_wrong() -> None:
    verdict = judged(shows(OLD), shows(OLD, V6))
    assert (verdict.reason, verdict.wrong) == (Reason.ENDPOINT_OLD, False)


def test_some_addresses_that_lag_are_told_from_all() -> None:
    verdict = judged(shows(NEW), shows(NEW), shows(OLD, V6))
    assert (verdict.reason, verdict.wrong) == (Reason.ENDPOINT_LAGS, False)
    assert verdict.sentence == f"1 of 3 samples at {V6} shows an earlier version, and 2 version 7."


def test_an_earlier_version_about_to_expire_is_more_than_late() -> None:
    verdict = judged(shows(OLD, days=3))
    assert verdict.reason is Reason.ENDPOINT_EXPIRING
    assert "expires at 2030-01-04 00:00Z, though there is version 7" in verdict.sentence


def test_neither_old_nor_new_is_drift_and_a_rollback_may_help() -> None:
    verdict = judged(shows(OTHER))
    assert (verdict.reason, verdict.wrong) == (Reason.ENDPOINT_DRIFT, True)
    assert f"SHA-256 {OTHER[:16]}" in verdict.sentence
    assert not judged(shows(OTHER), shows(NEW)).wrong, "somewhere it is right: a rollback would take that away"


def test_nothing_reached_is_not_wrong() -> None:
    verdict = judged(fails(SightingProblem.REFUSED), fails(SightingProblem.UNREACHABLE, V6))
    assert (verdict.reason, verdict.wrong) == (Reason.ENDPOINT_UNREACHABLE, False)
    assert judged().reason is Reason.ENDPOINT_UNREACHABLE


def test_addresses_that_cannot_be_reached_are_named_beside_those_that_show_it() -> None:
    verdict = judged(shows(NEW), fails(SightingProblem.UNREACHABLE, V6))
    assert verdict.reason is Reason.ENDPOINT_PARTLY_UNREACHABLE
    assert verdict.sentence.startswith(f"1 of 2 samples at {V4} shows version 7; 1 of 2 samples at {V6} could not")


@pytest.mark.parametrize("problem", [SightingProblem.TLS, SightingProblem.PROTOCOL])
def test_a_server_whose_tls_fails_is_wrong(problem: SightingProblem) -> None:
    verdict = judged(fails(problem), fails(SightingProblem.UNREACHABLE, V6))
    assert (verdict.reason, verdict.wrong) == (Reason.ENDPOINT_TLS_FAILED, True)
    assert not judged(fails(problem), shows(NEW)).wrong


def test_the_right_leaf_without_its_intermediate_is_not_served() -> None:
    alone = replace(shows(NEW), chain=(NEW,))
    assert judged(alone).reason is Reason.ENDPOINT_MISSING_INTERMEDIATE
    assert judged(replace(alone, chain=(NEW, CROSS))).served, "another path to a root, cross-signed"
    assert not judged(replace(alone, chain=(NEW, CROSS), gap="the certificate of its issuer is missing")).served


def test_a_chain_that_needs_no_intermediate_has_none_missing() -> None:
    alone = replace(shows(NEW), chain=(NEW,), gap="the certificate of its issuer is missing")
    assert judged(alone, expected=(replace(SEVEN, chain=()),)).served


def test_twins_are_each_expected_for_their_own_kind_of_key() -> None:
    twins = (replace(SEVEN, key="rsa"), Expected(label="version 3", leaf=OTHER, key="ecdsa"))
    rsa, ecdsa = replace(shows(NEW), key="rsa"), replace(shows(OTHER), key="ecdsa")
    assert judged(rsa, ecdsa, expected=twins).sentence == f"2 of 2 samples at {V4} show version 7 and version 3."
    swapped = judged(replace(rsa, key="ecdsa"), replace(ecdsa, key="rsa"), expected=twins)
    assert swapped.reason is Reason.ENDPOINT_DRIFT


# ── without an expectation ──


def test_any_valid_certificate_for_the_name_will_do() -> None:
    verdict = judged(shows(OTHER), expected=())
    assert verdict.sentence == f"1 of 1 sample at {V4} shows a certificate that expires at 2030-03-02 00:00Z."
    assert verdict.served


@pytest.mark.parametrize(("days", "word"), [(3, "expires"), (-3, "expired")])
def test_a_certificate_that_nobody_renewed_in_time_is_told(days: int, word: str) -> None:
    verdict = judged(shows(OTHER, days=days), expected=())
    assert verdict.reason is Reason.ENDPOINT_EXPIRING
    assert word in verdict.sentence


def test_a_certificate_for_another_name_is_told() -> None:
    verdict = judged(shows(OTHER, names=("default.invalid",)), expected=())
    assert verdict.reason is Reason.ENDPOINT_WRONG_NAME
    assert "is not for www.example.org: it has default.invalid" in verdict.sentence


def test_a_gap_in_the_chain_is_told_without_knowing_the_chain() -> None:
    assert judged(replace(shows(OTHER), gap="it is alone"), expected=()).reason is Reason.ENDPOINT_MISSING_INTERMEDIATE


@pytest.mark.parametrize(
    ("names", "name", "covered"),
    [
        (("*.example.org",), "www.example.org", True),
        (("*.example.org",), "WWW.Example.Org.", True),
        (("*.example.org",), "a.b.example.org", False),
        (("*.example.org",), "example.org", False),
        (("192.0.2.1",), "192.0.2.1", True),
        (("*.0.2.1",), "192.0.2.1", False),
        ((), "example.org", False),
    ],
)
def test_a_wildcard_stands_for_one_label(names: tuple[str, ...], name: str, covered: bool) -> None:
    assert covers(names, name) is covered


# ── where to look ──


def test_an_address_is_never_sent_as_server_name() -> None:
    assert Endpoint(host="192.0.2.1", port=443).sni is None
    assert Endpoint(host="192.0.2.1", port=443, server_name="www.example.org").sni == "www.example.org"
    assert Endpoint(host="2001:db8::1", port=25, protocol=EndpointProtocol.SMTP).shown == "smtp://[2001:db8::1]:25"


@pytest.mark.parametrize("wrong", [{"port": 0}, {"samples": 0}, {"samples": 51}, {"host": "a' b"}, {"host": ""}])
def test_an_endpoint_that_makes_no_sense_cannot_be_built(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"an? (port|endpoint|host)"):
        Endpoint(**{"host": "www.example.org", "port": 443} | wrong)  # type: ignore[arg-type]
