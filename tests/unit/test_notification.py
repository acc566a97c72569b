"""What is owed, to whom, how long one tries, and what is worth a word."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.test_docs import exists

from holdfast.core.backoff import NOTIFICATION_MAX_ATTEMPTS
from holdfast.core.issuers.breaker import Breaker, failed
from holdfast.core.notifications import notification
from holdfast.core.notifications.alert import About, in_words
from holdfast.core.notifications.alert_texts import OF_CERTIFICATE, TOLD, tell
from holdfast.core.notifications.notification import (
    MOVES,
    WAITING,
    Notification,
    NotificationState,
    Routing,
    Severity,
    crossings,
    move,
    thresholds,
)
from holdfast.errors import IllegalMove

NOW = datetime(2030, 1, 1, tzinfo=UTC)
DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)
INFO, WARNING, CRITICAL = Severity.INFO, Severity.WARNING, Severity.CRITICAL


def a_notification(**changes: object) -> Notification:
    given: dict[str, object] = {
        "id": "notification_1", "message": "msg_1", "channel": "ops", "event": "issuance.failed", "severity": WARNING,
        "subject": "cert_1", "name": "a.example", "title": "A title", "text": "A text.", "key": "certificate/cert_1",
        "waiting_since": NOW, "created_at": NOW,
    }  # fmt: skip
    return Notification(**{**given, **changes})  # type: ignore[arg-type]


# ── The machine ──


def test_no_state_but_those_that_wait_can_become_sent() -> None:
    assert {before for (before, event), after in MOVES.items() if after is NotificationState.SENT} == set(WAITING)


def test_whatever_is_dead_can_be_requeued_or_resolved_and_nothing_else() -> None:
    assert {event for before, event in MOVES if before is NotificationState.DEAD} == {"requeued", "resolved"}


def test_a_move_that_the_table_does_not_have_is_refused() -> None:
    impossible = set(product(NotificationState, {event for _, event in MOVES})) - set(MOVES)
    for state, event in impossible:
        with pytest.raises(IllegalMove, match=state.value):
            move(state, event)


# ── Waiting ──


def test_the_waits_are_one_two_four_and_eight_minutes_and_the_fifth_failure_is_the_last() -> None:
    waits = [notification.after_failure(failures).wait for failures in range(1, 6)]
    assert waits == [1 * MINUTE, 2 * MINUTE, 4 * MINUTE, 8 * MINUTE, None]
    assert notification.after_failure(NOTIFICATION_MAX_ATTEMPTS).event == "gave up"


def test_a_channel_is_left_alone_before_any_notification_has_used_up_its_attempts_on_it() -> None:
    breaker, attempts = Breaker(), 0
    while breaker.until is None:
        breaker, attempts = failed(breaker, NOW, "no", opens_after=notification.OPENS_AFTER), attempts + 1
    assert attempts < NOTIFICATION_MAX_ATTEMPTS


# ── Routing ──


@pytest.mark.parametrize(
    ("routing", "wanted"),
    [
        (Routing(), True),
        (Routing(severities=frozenset({CRITICAL})), False),
        (Routing(severities=frozenset()), False),
        (Routing(owners=("shop",)), True),
        (Routing(owners=("other",)), False),
        (Routing(labels={"env": "prod"}), True),
        (Routing(labels={"env": "prod", "team": "x"}), False),
        (Routing(owners=("shop",), labels={"env": "test"}), False),
    ],
    ids=["all", "critical-only", "nothing", "owner", "other-owner", "label", "missing-label", "owner-other-label"],
)
def test_a_channel_hears_what_its_severities_owners_and_labels_ask_for(routing: Routing, wanted: bool) -> None:
    assert notification.wants(routing, WARNING, "shop", {"env": "prod"}) is wanted


def test_what_belongs_to_nobody_is_not_for_channels_of_some_owner() -> None:
    assert not notification.wants(Routing(owners=("shop",)), CRITICAL, "", {})
    assert notification.wants(Routing(), CRITICAL, "", {})


def test_a_quiet_channel_hears_at_the_end_of_each_stretch_and_of_critical_things_at_once() -> None:
    at = NOW + timedelta(minutes=61)
    assert notification.digest_at(at, timedelta(hours=1), WARNING) == NOW + timedelta(hours=2)
    assert notification.digest_at(at, timedelta(hours=1), CRITICAL) is None
    assert notification.digest_at(at, None, WARNING) is None


# ── Ends ──


def test_the_thresholds_of_a_long_life_are_days() -> None:
    assert thresholds(365 * DAY) == thresholds(90 * DAY) == (30 * DAY, 14 * DAY, 7 * DAY, 3 * DAY, DAY, 0 * DAY)


def test_a_short_life_has_the_same_shares() -> None:
    week = thresholds(6 * DAY)
    assert week[0] == 2 * DAY
    assert [each / (6 * DAY) for each in week] == pytest.approx([each / (90 * DAY) for each in thresholds(90 * DAY)])


@given(life=st.integers(1, 400 * 24), looks=st.lists(st.integers(0, 500 * 24), max_size=20))
def test_each_threshold_is_told_once_however_seldom_somebody_looks(life: int, looks: list[int]) -> None:
    hours = timedelta(hours=1)
    end, told, words = NOW + life * hours, set[int](), 0
    for at in sorted(looks):
        found = crossings(life * hours, end, NOW + at * hours, told)
        assert not told & set(found.owed)
        assert found.next_at is None or found.next_at > NOW + at * hours
        words += found.told is not None
        told |= set(found.owed)
    last = crossings(life * hours, end, end, told)
    assert told | set(last.owed) == set(range(len(thresholds(DAY))))
    assert words <= len(thresholds(DAY))


def test_after_a_long_silence_one_word_about_the_last_threshold_is_enough() -> None:
    found = crossings(90 * DAY, NOW + 2 * DAY, NOW, [])
    assert found.owed == (0, 1, 2, 3)
    assert found.told == 3
    assert found.next_at == NOW + DAY


def test_only_the_last_thresholds_wake_somebody() -> None:
    assert [notification.severity_of_crossing(n) for n in range(6)] == [WARNING] * 3 + [CRITICAL] * 3


def test_the_first_threshold_is_worth_a_line_only_while_the_renewal_is_in_hand() -> None:
    assert [notification.severity_of_crossing(n, late=False) for n in range(3)] == [INFO, WARNING, WARNING]


# ── Failures ──


def failure(attempts: int, **more: object) -> dict[str, object]:
    return {"attempts": attempts, "reason": "SOLVER_FAILED", "error": "no", "next": NOW.isoformat(), **more}


ABOUT = About(subject="cert_1", name="a.example", safe_until=NOW + DAY)


def test_the_first_failure_and_every_doubling_is_told() -> None:
    told = [n for n in range(1, 40) if tell("issuance.failed", failure(n), ABOUT)]
    assert told == [1, 2, 4, 8, 16, 32]


def test_a_failure_whose_next_attempt_comes_too_late_is_critical_whatever_its_number() -> None:
    late = failure(3, next=(NOW + 2 * DAY).isoformat())
    alert = tell("issuance.failed", late, ABOUT)
    assert alert is not None
    assert alert.severity is CRITICAL
    assert "act now" in alert.text
    assert tell("issuance.failed", failure(3, next=None), ABOUT) is not None
    assert tell("issuance.failed", late, About(subject="c", name="c")) is None  # it has none yet that could end


def test_a_failure_that_is_none_of_the_certificates_own_is_not_told() -> None:
    assert tell("issuance.failed", failure(0), ABOUT) is None


def test_a_new_refusal_is_told_once_at_whatever_attempt_it_comes() -> None:
    alert = tell("issuance.failed", failure(3, reason="CAA_FORBIDS", alert=True), ABOUT)
    assert alert is not None
    assert (alert.mode, alert.key, alert.gate) == ("opens", "certificate/cert_1", "certificate/cert_1/CAA_FORBIDS")


def test_while_a_ca_is_known_to_be_down_its_certificates_are_silent_until_that_is_unsafe() -> None:
    down = About(subject="cert_1", name="a.example", safe_until=NOW + DAY, ca_down=True)
    assert tell("issuance.failed", failure(1, reason="CA_DOWN"), down) is None
    assert tell("issuance.failed", failure(1, reason="CA_DOWN"), ABOUT) is not None
    assert tell("issuance.failed", failure(1, reason="CA_DOWN", next=None), down) is not None


# ── Words ──

FOUND_AGAIN: dict[str, object] = {"certificates": 2, "revocations": 1, "serials": 0}
SAID: dict[str, dict[str, object]] = {
    "certificate.expires": {"left_s": 86400 * 13.6, "threshold": 1, "not_after": "2030-01-14", "next": None},
    "certificate.well": {"key": "certificate/x"},
    "certificate.uncollected": {"names": ["a.example"], "account": "acct_1", "serial": "01"},
    "certificate.stranded": {},
    "issuance.failed": failure(1),
    "issuance.uncertain": {"error": "no answer"},
    "issuance.ordered_again": {"error": "no answer"},
    "issuance.barred": {"why": "ACCOUNT_REFUSED", "error": "no"},
    "issuance.not_as_asked": {"why": "WRONG_CERTIFICATE", "error": "it adds b.example"},
    "issuance.needs_approval": {"issuance": "issuance_1", "issuer": "ca", "word": "needs_approval", "error": "wait"},
    "issuance.goes_on": {"issuance": "issuance_1"},
    "order.goes_on": {},
    "order.withdrawn": {"issuer": "ca", "why": "no", "alert": True},
    "withdrawal.waits": {"issuance": "issuance_1", "issuer": "ca", "error": "wait"},
    "revocation.waits": {"version": "version_1", "issuer": "ca", "serial": "01", "error": "wait"},
    "withdrawal.settled": {"key": "withdrawal/issuance_1"},
    "revocation.settled": {"key": "revocation/version_1"},
    "approval.asked": {"approval": "approval_1"},
    "approval.settled": {"key": "approval/approval_1"},
    "ari.moved": {"before": "2030-01-02", "after": "2030-01-01", "explanation": "https://ca.example/incident"},
    "deployment.failed": {"deployment": "d1", "target": "web", "error": "no"},
    "deployment.served": {"deployment": "d1", "target": "web"},
    "deployment.rollback_failed": {"deployment": "d1", "target": "web", "error": "no"},
    "endpoint.drift": {"reason": "ENDPOINT_DRIFT", "error": "127.0.0.1 shows another certificate."},
    "endpoint.missing_intermediate": {
        "reason": "ENDPOINT_MISSING_INTERMEDIATE",
        "error": "a link is missing",
    },
    "endpoint.wrong_name": {"reason": "ENDPOINT_WRONG_NAME", "error": "The certificate is not for this name."},
    "endpoint.tls_failed": {"reason": "ENDPOINT_TLS_FAILED", "error": "The handshake failed."},
    "endpoint.unreachable": {"reason": "ENDPOINT_UNREACHABLE", "error": "Nothing answers."},
    "endpoint.expiring": {"reason": "ENDPOINT_EXPIRING", "left_s": 86400.0, "error": "It serves an older version."},
    "find.expiring": {"left_s": 86400.0, "where": "tls://192.0.2.1:443", "manager": "unknown", "state": "new"},
    "find.settled": {"key": "find/x"},
    "discovery.finished": {"unmanaged": 2},
    "discovery.failed": {"error": "The log does not answer."},
    "finds.managed": {"key": "finds/unmanaged"},
    "endpoint.well": {"endpoint": "www", "key": "endpoint/x"},
    "agent.enrolled": {"agent": "edge", "state": "pending", "address": "192.0.2.1"},
    "agent.recovered": {"agent": "edge", "address": "192.0.2.1", "left": 4},
    "agent.recovery_refused": {"agent": "edge", "address": "192.0.2.1", "left": 0, "error": "Too often."},
    "agent.cloned": {"agent": "edge", "here": "a", "there": "b"},
    "agent.active": {"agent": "edge"},
    "issuer.down": {"error": "no answer"},
    "issuer.up": {},
    "issuer.account_well": {},
    "issuer.windows_calm": {},
    "ca.issuer_ends": {"left_s": 86400 * 10, "threshold": 2, "not_after": "2030-01-11", "root_here": True},
    "ca.issuer_well": {},
    "job.dead": {"kind": "issue"},
    "job.quarantined": {"kind": "issue"},
    "jobs.well": {"key": "jobs/issue"},
    "selfcheck.failed": {"problem": "row 7"},
    "selfcheck.passed": {},
    "store.failover": {},
    "installation.recovering": {"why": "the server failed over", "missing_s": 3},
    "installation.recovered": {"missing_s": 3, **FOUND_AGAIN},
    "installation.quarantine": {"why": "it was restored", "missing_s": 3600},
    "installation.released": {"by": "local:root", **FOUND_AGAIN},
    "witness.replayed": {"replica": "web-1", **FOUND_AGAIN},
    "replica.lost": {"seen_at": "2030-01-01"},
    "replica.back": {},
    "channel.down": {"error": "no"},
    "channel.up": {},
    "channel.recipients_missed": {"error": "no such user"},
    "channel.fallback_gone": {"to": "mail"},
    "channel.fallback_well": {"key": "fallback/x"},
    "channel.dead_letters": {"reason": "REFUSED", "error": "no"},
    "channel.letters_gone": {"key": "dead-letters/ops"},
}


@pytest.mark.parametrize("event", sorted(TOLD))
def test_every_event_that_is_told_has_its_words(event: str) -> None:
    alert = tell(event, SAID[event], About(subject="x", name="a.example"))
    assert alert is not None
    assert alert.title
    assert alert.text
    assert "\n" not in alert.title
    assert alert.key or alert.mode == "plain"
    assert alert.mode == "clears" or alert.next.startswith("holdfast ")


@pytest.mark.parametrize("event", sorted(TOLD))
@pytest.mark.parametrize(
    "details", [{"alert": True}, {"alert": True, "left_s": "x", "attempts": [], "names": 7}], ids=["none", "odd"]
)
def test_words_never_fail_for_want_of_facts(event: str, details: dict[str, object]) -> None:
    """They are found in the transaction of their cause: a mistake here must not undo an issuance."""
    tell(event, details, About(subject="x", name="a.example"))


def test_an_event_that_is_marked_as_an_alert_is_told_even_without_words_of_its_own() -> None:
    alert = tell("thing.broke_down", {"alert": True, "error": "it fell"}, About(subject="x", name="a.example"))
    assert alert is not None
    assert (alert.title, alert.text) == ("a.example: thing broke down", "it fell")
    assert tell("thing.broke_down", {}, About(subject="x", name="a.example")) is None
    assert tell("order.withdrawn", {}, About(subject="x", name="a.example")) is None


@pytest.mark.parametrize(
    ("begins", "ends"),
    [
        ("issuer.down", "issuer.up"),
        ("selfcheck.failed", "selfcheck.passed"),
        ("replica.lost", "replica.back"),
        ("channel.down", "channel.up"),
        ("deployment.failed", "deployment.served"),
    ],
)
def test_an_outage_and_its_all_clear_have_one_key(begins: str, ends: str) -> None:
    about = About(subject="x", name="x")
    first, last = tell(begins, SAID[begins], about), tell(ends, SAID[ends], about)
    assert first is not None
    assert last is not None
    assert (first.key, first.mode, last.mode) == (last.key, "opens", "clears")


def test_what_is_said_about_certificates_is_looked_up_by_their_ids() -> None:
    assert set(TOLD) >= OF_CERTIFICATE


@pytest.mark.parametrize(
    ("left", "words"),
    [(13.6 * DAY, "14 days"), (47 * 60 * MINUTE, "47 hours"), (90 * MINUTE, "90 minutes"), (0 * DAY, "a minute")],
)
def test_the_time_left_is_said_in_one_unit(left: timedelta, words: str) -> None:
    assert in_words(left) == words


# ── Messages ──


def test_a_message_keeps_the_id_of_its_notification_on_every_attempt() -> None:
    first, third = notification.message_of(a_notification()), notification.message_of(a_notification(retry_count=2))
    assert first.id == third.id == "notification_1"
    assert (first.attempt, third.attempt) == (1, 3)


def test_a_message_links_to_the_page_of_its_object() -> None:
    told = notification.message_of(a_notification(event="issuance.failed", name="*.a.example"), "https://hf.example")
    assert told.url == "https://hf.example/certificates/%2A.a.example"
    assert notification.message_of(a_notification(event="issuance.failed")).url == "", (
        "without an address there is none"
    )
    assert notification.page_of("issuer.down", "le") == "/issuers"
    assert notification.page_of("certificate.uncollected", "a.example") == "/cas"
    assert notification.page_of("thing.broke", "x") == ""


def test_every_notification_of_a_digest_has_its_line_and_the_worst_gives_its_severity() -> None:
    several = [a_notification(id=f"notification_{n}", title=f"Title {n}") for n in range(notification.DIGEST_LINES - 1)]
    told = notification.digest_of(
        "digest_1", [*several, a_notification(title="Last\r\nof\u2028all", severity=CRITICAL)]
    )
    assert len(told.text.splitlines()) == notification.DIGEST_LINES
    assert "Last" in told.text
    assert "Title 0" in told.text
    assert told.severity is CRITICAL


def test_every_command_that_a_message_names_exists() -> None:
    said = [tell(event, SAID[event], About(subject="x", name="a.example")) for event in TOLD]
    named = {tuple(alert.next.split()[1:3]) for alert in said if alert is not None and alert.next}
    unknown = [words for words in named if not exists(tuple(word for word in words if word.isalpha()))]
    assert unknown == []
