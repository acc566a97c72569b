"""When an endpoint is looked at again, and which look is worth an event."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from holdfast.core.deployment import Deployment, DeploymentState
from holdfast.core.endpoint import Outcome, Seen, Sighting, Verdict, endpoint_of
from holdfast.core.endpoint_watch import TROUBLES, LastLook, deploy_again, event_of, looked, news, next_look
from holdfast.core.notifications.alert_texts import TOLD
from holdfast.core.reasons import MEANINGS, Reason

NOW = datetime(2030, 1, 1, tzinfo=UTC)
EVERY = timedelta(minutes=10)
GONE = Reason.ENDPOINT_UNREACHABLE


def verdict(reason: Reason, *, days: float = 60) -> Verdict:
    seen = Sighting(address="192.0.2.1", leaf="aa", not_after=NOW + timedelta(days=days))
    return Verdict(reason=reason, sentence="S.", seen=(Seen(outcome=Outcome.NEW, count=1, sighting=seen),))


def looks(*reasons: Reason) -> list[tuple[LastLook, bool]]:
    found, before = [], None
    for number, reason in enumerate(reasons):
        after = looked(before, verdict(reason), NOW + number * EVERY)
        found.append((after, news(before, after)))
        before = after
    return found


def test_the_first_look_and_every_change_are_events_and_nothing_else() -> None:
    reasons = (Reason.OK, Reason.OK, Reason.ENDPOINT_DRIFT, Reason.ENDPOINT_DRIFT, Reason.OK)
    assert [told for _, told in looks(*reasons)] == [True, False, True, False, True]


def test_since_and_times_say_how_long_it_is_so() -> None:
    last = looks(Reason.OK, Reason.ENDPOINT_OLD, Reason.ENDPOINT_OLD)[-1][0]
    assert (last.since, last.times) == (NOW + EVERY, 2)


def test_a_lost_packet_is_no_outage() -> None:
    assert [told for _, told in looks(Reason.OK, GONE, Reason.OK)] == [True, False, True]
    assert [told for _, told in looks(Reason.OK, GONE, GONE, GONE, GONE)] == [True, False, False, True, False]
    assert [last.troubled for last, _ in looks(GONE, GONE, GONE)] == [False, False, True]


def test_an_end_that_comes_nearer_is_told_again() -> None:
    soon = Reason.ENDPOINT_EXPIRING
    far = LastLook(at=NOW, reason=soon, since=NOW, times=1, sentence="", seen=verdict(soon, days=3.001).seen)
    assert news(far, looked(far, verdict(soon, days=3.001), NOW + EVERY)), "three days are left"
    assert not news(far, looked(far, verdict(soon, days=5), NOW + EVERY))


def test_a_target_that_shows_an_earlier_version_is_deployed_to_again_whenever_it_is_seen() -> None:
    there = Deployment(
        id="d", certificate="c", certificate_version="v", target="web-1", number=1, created_at=NOW, changed_at=NOW,
        state=DeploymentState.SERVED, served_at=NOW,
    )  # fmt: skip
    first, second = (each for each, _ in looks(Reason.ENDPOINT_OLD, Reason.ENDPOINT_OLD))
    assert deploy_again(first, there, NOW)
    assert deploy_again(second, there, NOW), "it may have been deployed between the two"
    stubborn = replace(there, cause="drift")
    assert not deploy_again(second, stubborn, NOW + EVERY), "it changed nothing a moment ago"
    assert deploy_again(second, stubborn, NOW + timedelta(hours=1))
    assert not deploy_again(looks(Reason.ENDPOINT_DRIFT)[0][0], there, NOW), "somebody else put it there"


def test_looks_are_spread_over_the_interval_by_id_and_stay_so() -> None:
    last = looks(Reason.OK)[0][0]
    times = sorted(next_look(f"ep_{number}", last, EVERY) - NOW for number in range(1000))
    assert min(times) > EVERY / 10
    assert max(times) <= EVERY * 1.1
    by_tenth = [sum(EVERY / 10 * n < each <= EVERY / 10 * (n + 1) for each in times) for n in range(11)]
    assert min(by_tenth[2:10]) > 60, by_tenth
    after = looked(None, verdict(Reason.OK), next_look("ep_1", last, EVERY))
    assert next_look("ep_1", after, EVERY) - after.at == EVERY


def test_what_was_not_reached_is_looked_at_again_soon() -> None:
    assert next_look("ep_1", looks(GONE)[0][0], EVERY) == NOW + timedelta(minutes=1)


def test_every_trouble_has_an_alert_and_every_alert_a_trouble() -> None:
    troubles = {event_of(Reason(each)) for each in TROUBLES}
    assert troubles == {each for each in TOLD if each.startswith("endpoint.")} - {"endpoint.well"}
    assert all(MEANINGS[Reason(each)].alert for each in TROUBLES)


def test_what_was_seen_can_be_kept_as_json() -> None:
    seen = verdict(Reason.OK).seen[0]
    assert Seen.from_json(seen.to_json()) == seen


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("www.example.org", "tls://www.example.org:443"),
        ("WWW.example.org.", "tls://www.example.org:443"),
        ("https://www.example.org/", "tls://www.example.org:443"),
        ("mail.example.org:465", "tls://mail.example.org:465"),
        ("smtp://mail.example.org", "smtp://mail.example.org:25"),
        ("postgresql://db.example.org:6432", "postgres://db.example.org:6432"),
        ("[2001:db8::1]:8443", "tls://[2001:db8::1]:8443"),
        ("192.0.2.1", "tls://192.0.2.1:443"),
    ],
)
def test_places_are_understood_as_people_write_them(text: str, shown: str) -> None:
    assert endpoint_of(text).shown == shown


@pytest.mark.parametrize(
    "text", ["", "a b", "gopher://a.example", "a.example:0", "a.example:99999", "user@h", "h/path"]
)
def test_a_place_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not|port|a host"):
        endpoint_of(text)
