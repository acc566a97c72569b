"""The status block and the explanation: what a person sees of a certificate, in every situation."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.test_renewal import DAY, HOUR, MINUTE, T0, a_certificate, a_version, failing, lives, situations

from holdfast.cli.certificates import display
from holdfast.core.certificate import Ari, Certificate, CertificateState, Version, VersionState, failed
from holdfast.core.issuance import ORDER_NUMBERS, Issuance, IssuanceState
from holdfast.core.own_ca.acme import Identifier
from holdfast.core.reasons import MEANINGS, Reason
from holdfast.core.renewal import decide, safe_until
from holdfast.core.status import HELD, IssuanceJob, Phase, explain, status


def an_issuance(**changes: Any) -> Issuance:
    base = Issuance(
        id="issuance_1",
        certificate="certificate_1",
        generation=1,
        state=IssuanceState.ORDERED,
        issuer="ca",
        cause="DUE_LIFETIME",
        identifiers=(Identifier("dns", "www.example.com"),),
        requested_by="system",
        started_at=T0 + 60 * DAY,
    )
    return replace(base, **changes)


def test_a_good_certificate_says_when_it_is_renewed_and_until_when_that_is_safe() -> None:
    found = status(a_certificate(), a_version(), None, None, T0 + DAY)
    assert (found.phase, found.reason_code, found.attempt, found.last_error) == (Phase.OK, Reason.NOT_DUE, 0, None)
    assert found.next_attempt_at is not None
    assert found.next_attempt_cause == "DUE_LIFETIME"
    assert found.safe_until == safe_until(a_version())
    assert found.expires_at == T0 + 90 * DAY
    assert found.blocked_by == ()


def test_a_failing_one_says_why_how_often_and_when_again() -> None:
    last = T0 + 61 * DAY
    found = status(a_certificate(failing=failing(3, last)), a_version(), None, None, last + 48 * MINUTE)
    assert (found.phase, found.attempt, found.reason_code) == (Phase.FAILING, 3, Reason.CA_REFUSED)
    assert (found.last_error, found.last_attempt_at) == ("no", last)
    assert found.next_attempt_at == last + 4 * HOUR
    assert found.blocked_by == ("BACKOFF",)


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (IssuanceJob(due_at=T0, reason="BUDGET"), Reason.BUDGET),
        (IssuanceJob(due_at=T0, reason="NOT_BEFORE"), Reason.CA_RATE_LIMITED),
        (IssuanceJob(due_at=T0, dead=True, last_error="bug"), Reason.INTERNAL),
        (IssuanceJob(due_at=T0, running=True), Reason.UNDER_WAY),
    ],
)
def test_an_attempt_under_way_says_what_it_waits_for(job: IssuanceJob, reason: Reason) -> None:
    found = status(a_certificate(), a_version(), an_issuance(), job, T0 + 60 * DAY)
    assert (found.phase, found.reason_code) == (Phase.RENEWING, reason)
    assert found.next_attempt_at == (None if job.dead else T0)


def test_an_attempt_that_waits_for_the_ca_says_so() -> None:
    resting = an_issuance(state=IssuanceState.WAITING, reason="CA_STILL_PENDING")
    found = status(a_certificate(), a_version(), resting, IssuanceJob(due_at=T0 + 61 * DAY), T0 + 60 * DAY)
    assert (found.reason_code, found.acts_next) == (Reason.CA_STILL_PENDING, "ca")
    assert found.next_attempt_at == T0 + 61 * DAY
    assert found.blocked_by == ("CA_STILL_PENDING",)


@pytest.mark.parametrize(
    ("certificate", "version", "issuance", "now", "phase"),
    [
        (a_certificate(current_version=None), None, an_issuance(cause="FIRST"), T0, Phase.PENDING),
        (a_certificate(), a_version(), an_issuance(state=IssuanceState.AWAITING_APPROVAL), T0, Phase.AWAITING_APPROVAL),
        (a_certificate(state=CertificateState.PAUSED), a_version(), None, T0, Phase.PAUSED),
        (a_certificate(state=CertificateState.ARCHIVED), a_version(), None, T0 + 900 * DAY, Phase.ARCHIVED),
        (a_certificate(), a_version(), None, T0 + 91 * DAY, Phase.EXPIRED),
        (a_certificate(state=CertificateState.PAUSED), a_version(), None, T0 + 91 * DAY, Phase.EXPIRED),
        (a_certificate(), a_version(state=VersionState.REVOKED, revoked_at=T0), None, T0, Phase.REVOKED),
    ],
)
def test_every_situation_has_its_phase(
    certificate: Certificate, version: Version | None, issuance: Issuance | None, now: Any, phase: Phase
) -> None:
    assert status(certificate, version, issuance, None, now).phase is phase


def test_what_waits_for_all_its_cas_says_so_though_it_is_due() -> None:
    paused = a_certificate(current_version=None, next_action_at=T0 + HOUR, next_cause="ISSUER_PAUSED")
    found = status(paused, None, None, None, T0 + MINUTE)
    assert found.reason_code is Reason.ISSUER_PAUSED
    assert found.next_attempt_at == T0 + HOUR


def test_the_block_is_plain_json() -> None:
    found = status(a_certificate(), a_version(), None, None, T0).to_json()
    assert found["phase"] == "ok"
    assert found["expires_at"] == "2027-01-30T00:00:00+00:00"
    assert set(found) >= {"reason", "acts_next", "max_attempts", "blocked_by", "safe_until", "next_attempt_cause"}


@given(situations())
def test_whoever_is_active_is_fine_or_has_exactly_one_next_step_with_a_time_and_a_reason(situation: Any) -> None:
    certificate, version, now = situation
    found = status(certificate, version, None, None, now)
    assert found.next_attempt_at is not None
    assert found.reason == MEANINGS[found.reason_code].sentence
    assert found.next_attempt_cause is not None
    assert len(found.blocked_by) <= 1


@given(lives, st.floats(0, 0.999), st.floats(0, 1), st.one_of(st.none(), st.integers(1, 12)))
def test_as_many_attempts_fit_as_the_rules_will_make(
    life: Any, last: float, first: float, attempts: int | None
) -> None:
    version, now, made = a_version(life), T0 + life * last, 0
    found = a_certificate(failing=failing(attempts, now, T0 + life * last * first))
    said = status(found, version, None, None, now).attempts_that_fit
    while (at := decide(found, version, now).at) is not None and (now := max(at, now)) <= safe_until(version):
        made += 1
        found = replace(found, failing=failed(found.failing, now, error="", reason=""))
    assert said == made


def test_what_does_not_fail_or_has_no_end_yet_has_no_number_of_attempts() -> None:
    assert status(a_certificate(), a_version(), None, None, T0).attempts_that_fit is None
    new = a_certificate(current_version=None, failing=failing(3, T0))
    assert status(new, None, None, None, T0).attempts_that_fit is None


# ── explain ──


@given(
    situations(),
    st.sampled_from([None, *HELD, Reason.BACKOFF]),
    st.integers(-60, 60),
    st.sampled_from(CertificateState),
)
def test_what_an_explanation_calls_blocking_is_what_the_status_calls_so(
    situation: Any, cause: Reason | None, minutes: int, state: CertificateState
) -> None:
    certificate, version, now = situation
    waits = replace(certificate, state=state, next_cause=cause, next_action_at=now + minutes * MINUTE)
    block, found = status(waits, version, None, None, now), explain(waits, version, None, None, now)
    assert found.blocking in (block.blocked_by or (None, "NOT_DUE"))
    assert len([check for check in found.checks if check.blocks]) == (0 if found.blocking is None else 1)
    assert ("the next sweep begins it" in found.would_change_it) == (found.blocking is None)


@pytest.mark.parametrize(
    ("cause", "rule", "remedy"),
    [
        (Reason.ISSUER_PAUSED, "ca", "holdfast issuer resume ca"),
        (Reason.UNKNOWN_ISSUER, "ca", "holdfast issuer add KIND ca"),
        (Reason.CANCELLED, "cancelled", "holdfast renew www"),
    ],
)
def test_what_is_due_and_held_says_by_what_and_how_to_go_on(cause: Reason, rule: str, remedy: str) -> None:
    held = a_certificate(next_cause=cause.value, next_action_at=T0 + 61 * DAY + HOUR)
    found = explain(held, a_version(), None, None, T0 + 61 * DAY)
    assert (found.blocking, found.checks[-1].rule, found.checks[-1].blocks) == (cause.value, rule, True)
    assert MEANINGS[cause].sentence in found.verdict
    assert remedy in found.would_change_it


def test_an_explanation_names_each_check_and_the_one_that_blocks() -> None:
    last = T0 + 61 * DAY
    found = explain(a_certificate(failing=failing(3, last)), a_version(), None, None, last + MINUTE)
    assert [check.rule for check in found.checks] == ["state", "ari", "lifetime", "back-off"]
    assert [check.rule for check in found.checks if check.blocks] == ["back-off"]
    assert found.blocking == "BACKOFF"
    assert "holdfast renew www" in found.would_change_it
    assert "4:00:00" in found.checks[-1].verdict


def test_it_can_be_asked_about_another_time() -> None:
    later = explain(a_certificate(), a_version(), None, None, T0 + 61 * DAY)
    assert later.blocking is None
    assert later.verdict.startswith("Due:")
    assert explain(a_certificate(), a_version(), None, None, T0 + DAY).blocking == "NOT_DUE"


def test_an_attempt_under_way_is_part_of_it() -> None:
    waiting = an_issuance(state=IssuanceState.AWAITING_APPROVAL)
    found = explain(a_certificate(), a_version(), waiting, None, T0 + 61 * DAY)
    assert found.blocking == "AWAITING_APPROVAL"
    assert found.checks[-1].rule == "issuance"
    assert "approvals" in found.would_change_it


def test_early_renewal_is_explained_too() -> None:
    early = Ari(start=T0 + DAY, end=T0 + DAY + HOUR, pick=T0 + DAY, explanation="https://ca.example/incident")
    found = explain(a_certificate(ari=early), a_version(), None, None, T0 + 2 * DAY)
    assert any("https://ca.example/incident" in check.saw for check in found.checks)
    assert "asked for its renewal" in found.verdict


def test_a_life_of_an_hour_has_a_safe_moment_too() -> None:
    version = a_version(HOUR)
    assert T0 < safe_until(version) < version.not_after
    assert safe_until(a_version(400 * DAY)) == T0 + 400 * DAY - timedelta(hours=1)


# ── since when ──


def test_it_says_since_when_it_stands_so() -> None:
    version = a_version()
    assert status(a_certificate(), version, None, None, T0 + DAY).since == version.issued_at
    bad = replace(failing(3, T0 + 61 * DAY), first_at=T0 + 60 * DAY)
    assert status(a_certificate(failing=bad), version, None, None, T0 + 62 * DAY).since == T0 + 60 * DAY
    assert status(a_certificate(), version, None, None, T0 + 91 * DAY).since == version.not_after
    begun = an_issuance(started_at=T0 + 60 * DAY)
    assert status(a_certificate(), version, begun, IssuanceJob(due_at=T0), T0 + 61 * DAY).since == T0 + 60 * DAY
    assert status(a_certificate(), None, None, None, T0 + DAY).since == a_certificate().created_at
    assert status(a_certificate(state=CertificateState.PAUSED), version, None, None, T0 + DAY).since is None


@given(situations())
def test_nothing_stands_so_since_a_time_to_come(situation: Any) -> None:
    certificate, current, now = situation
    since = status(certificate, current, None, None, now).since
    assert since is None or since <= max(now, current.issued_at if current else now, certificate.created_at)


def test_one_that_was_asked_for_with_others_waits_for_its_turn_and_says_so() -> None:
    turn, now = T0 + 10 * DAY, T0 + 9 * DAY
    asked = an_issuance(state=IssuanceState.REQUESTED, cause="MANUAL", started_at=turn)
    found = status(a_certificate(), a_version(), asked, IssuanceJob(due_at=turn), now)
    assert (found.phase, found.reason_code, found.next_attempt_at) == (Phase.WAITING, Reason.STAGGERED, turn)
    assert (found.blocked_by, found.since, found.last_attempt_at) == (("STAGGERED",), None, a_version().issued_at)
    told = explain(a_certificate(), a_version(), asked, IssuanceJob(due_at=turn), now)
    assert (told.blocking, "holdfast renew" in told.would_change_it) == ("STAGGERED", True)
    assert [each.rule for each in told.checks if each.blocks] == ["issuance"]
    its_turn = status(a_certificate(), a_version(), asked, IssuanceJob(due_at=turn), turn)
    assert (its_turn.phase, its_turn.reason_code) == (Phase.RENEWING, Reason.UNDER_WAY)


# ── revoked, and paused at the CA ──

THEN = T0 + 30 * DAY
DONE = {"state": VersionState.REVOKED, "revoke_asked_at": THEN, "revoked_at": THEN + HOUR}
ASKED = {"revoke_asked_at": THEN}


@pytest.mark.parametrize(
    ("changes", "code", "since"),
    [(DONE, Reason.REVOKED, THEN + HOUR), (ASKED, Reason.REVOCATION_ASKED, THEN)],
    ids=["done", "asked"],
)
def test_a_revoked_one_in_use_is_not_called_safe_and_what_was_only_asked_for_is_told_apart(
    changes: dict[str, Any], code: Reason, since: Any
) -> None:
    current, now = a_version(400 * DAY, **changes), THEN + 2 * HOUR
    found = status(a_certificate(), current, None, None, now)
    assert (found.reason_code, found.safe_until) == (code, since)
    under_way = status(a_certificate(), current, an_issuance(), IssuanceJob(due_at=now), now)
    assert (under_way.reason_code, under_way.safe_until) == (Reason.UNDER_WAY, since)
    assert under_way.reason.startswith(f"{code.value}: ")
    troubled = status(a_certificate(failing=failing(2, now)), current, None, None, now + MINUTE)
    assert troubled.reason.startswith(f"{code.value}: ")
    assert troubled.attempts_that_fit == 0


def test_an_explanation_does_not_call_revoked_what_the_ca_has_not_revoked_yet() -> None:
    for changes, saw in (
        (ASKED, "requested at 2026-12-01T00:00:00Z, not yet confirmed by the CA"),
        (DONE, "2026-12-01T01:00:00Z"),
    ):
        checks = explain(a_certificate(), a_version(**changes), None, None, THEN).checks
        assert [each.saw for each in checks if each.rule == "revoked"] == [saw]


def test_a_name_that_is_paused_at_the_ca_is_the_operator_s_and_its_link_is_shown() -> None:
    last, link = T0 + 61 * DAY, "https://portal.example/sfe/v1/unpause?jwt=a.b.c"
    paused = replace(failing(1, last), reason="NAME_PAUSED_AT_CA", error=f"Please visit: {link}")
    certificate = a_certificate(failing=paused)
    found = status(certificate, a_version(), None, None, last + MINUTE)
    assert (found.reason_code, found.acts_next) == (Reason.NAME_PAUSED_AT_CA, "operator")
    assert link in (found.last_error or "")
    told = explain(certificate, a_version(), None, None, last + MINUTE)
    assert link in told.verdict
    assert "npause the name at the CA" in told.would_change_it
    assert "holdfast renew www" in told.would_change_it


@pytest.mark.parametrize(
    ("reason", "acts", "words"),
    [
        ("ACCOUNT_REFUSED", "operator", "An operator of Holdfast corrects the cause above"),
        ("CA_QUOTA_USED_UP", "operator", "An operator of Holdfast corrects the cause above"),
        ("CA_REFUSED", "you", "You correct the cause above"),
    ],
)
def test_an_explanation_has_the_words_of_the_ca_and_says_who_acts(reason: str, acts: str, words: str) -> None:
    last, said = T0 + 61 * DAY, "The CA says: api key 4711 is not known."
    certificate = a_certificate(failing=replace(failing(1, last), reason=reason, error=said))
    found = status(certificate, a_version(), None, None, last + MINUTE)
    assert (found.reason_code, found.acts_next, found.last_error) == (reason, acts, said)
    told = explain(certificate, a_version(), None, None, last + MINUTE)
    assert said in told.verdict
    assert told.would_change_it.startswith(words)


def test_the_number_of_an_order_at_its_ca_is_shown() -> None:
    ordered = an_issuance(ref={ORDER_NUMBERS[0]: 4711})
    assert ordered.order_number == "4711"
    told = explain(a_certificate(), a_version(), ordered, None, T0 + 61 * DAY)
    assert ", order 4711" in told.checks[-1].saw
    attempt = {"state": "ordered", "issuer": "digicert", "order_number": ordered.order_number}
    assert (
        display._phase({"status": {"phase": "renewing", "attempt": 0}, "operation": attempt})
        == "renewing, ordered, order 4711 at digicert"
    )
