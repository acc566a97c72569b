"""What an attempt does after each answer: facts and answers in, steps with their reasons out."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.core.backoff import BREAKER_BARRED, PASSING, PASSING_TRIES, POLL, POLL_WINDOW, REST_CAP, FailureClass
from holdfast.core.certificate import Certificate, CertificateSpec, CertificateState, Version, VersionState
from holdfast.core.issuance import LOOKUP_FOR, Candidate, Issuance, IssuanceState
from holdfast.core.issuance_decision import (
    DOUBT_FOR,
    LATEST,
    LIMITED_FOR,
    MOMENT,
    NOTHING,
    PATIENT_FOR,
    SOONEST,
    VISIBLE_WITHIN,
    Payment,
    decide,
    left_out,
    next_budgets,
    refund,
    remembered,
    takes_back,
    used_by_placing,
)
from holdfast.core.issuance_steps import (
    AccountGone,
    AlertOfCaApproval,
    BarAccount,
    Beside,
    BreakerOpen,
    CallDone,
    CertificateIssued,
    CountFailure,
    EndAccount,
    Facts,
    GiveUp,
    HoldBudget,
    IssuanceStep,
    IssuerFacts,
    KeepOrderReference,
    MakeCall,
    MoveOn,
    NotVisible,
    OrderFailed,
    OrderNotKept,
    OrderPending,
    OrderReady,
    OrderUncertain,
    OurFault,
    PlaceOrder,
    RaiseAlert,
    RemoteAnswer,
    RemoteRefused,
    RemoteUnavailable,
    ReportUnknownWord,
    ResponsesReported,
    StartOver,
    Unfinished,
    UseCertificate,
    WaitFor,
)
from holdfast.core.issuers.breaker import Breaker
from holdfast.core.issuers.ca_limits import Reckoned
from holdfast.core.own_ca.acme import Identifier
from holdfast.core.reasons import Reason
from holdfast.core.renewal import emergency_at, safe_until, short_from
from holdfast.core.work.job import Claim, Priority

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
DAY, HOUR, MINUTE, SECOND = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)
NAMES = (Identifier("dns", "www.example.com"),)
REQUESTS, ORDERS = "ca/first/requests", "ca/first/orders"
REF = {"url": "https://ca.example/order/1"}
SECOND_CA = Candidate(name="second")
CLAIM = Claim(
    id="job_1",
    kind="issue",
    subject="issuance_1",
    payload={},
    attempt=1,
    max_attempts=3,
    fence=1,
    priority=Priority.NORMAL,
    budgets=(REQUESTS, ORDERS),
    recheck=False,
)
ISSUANCE = Issuance(
    id="issuance_1",
    certificate="certificate_1",
    generation=1,
    state=IssuanceState.KEY_STORED,
    issuer="first",
    cause="FIRST",
    identifiers=NAMES,
    requested_by="alice",
    started_at=NOW - MINUTE,
)


def a_certificate(*issuers: str) -> Certificate:
    spec = CertificateSpec(name="www", identifiers=NAMES, issuers=issuers)
    return Certificate(
        id="certificate_1",
        wanted=spec,
        state=CertificateState.ACTIVE,
        generation=1,
        version=1,
        fingerprint=spec.fingerprint(),
        changed_by="alice",
        created_at=NOW - DAY,
    )


def a_version(left: timedelta) -> Version:
    """Of ninety days, with so much left."""
    return Version(
        id="version_1",
        certificate="certificate_1",
        generation=1,
        state=VersionState.ACTIVE,
        key_secret="secret_1",
        chain_pem="",
        serial="1",
        not_before=NOW + left - 90 * DAY,
        not_after=NOW + left,
        issuer="first",
        account=None,
        spki_sha256="",
        issued_at=NOW + left - 90 * DAY,
    )


FACTS = Facts(
    issuance=ISSUANCE,
    certificate=a_certificate("first"),
    current=None,
    issuer=IssuerFacts(name="first", reckoned=Reckoned(order=2, look=1, lookup=3)),
    claim=CLAIM,
    now=NOW,
    used="requests",
)
_OF_ISSUANCE = frozenset(Issuance.__dataclass_fields__) - {"issuer", "certificate"}


def facts(*, others: tuple[Candidate, ...] | None = None, left: timedelta | None = None, **changes: Any) -> Facts:
    """`others`: the certificate may come from a second issuer as well, which stands like this. The rest by its name."""
    own = {name: changes.pop(name) for name in [*changes] if name in _OF_ISSUANCE}
    at = {name: changes.pop(name) for name in ("breaker", "poll_window", "known") if name in changes}
    beside = {name: changes.pop(name) for name in ("ordered_before", "begun_anew") if name in changes}
    claim = {
        name: changes.pop(name) for name in ("budgets", "recheck", "paid", "paid_at", "payload") if name in changes
    }
    return replace(
        FACTS,
        issuance=replace(ISSUANCE, **own),
        certificate=a_certificate("first") if others is None else a_certificate("first", "second"),
        current=None if left is None else a_version(left),
        issuer=replace(FACTS.issuer, **at),
        claim=replace(CLAIM, **claim),
        beside=Beside(others=others or (), **beside),
        **{"asked_before": own.get("asked_at"), **changes},
    )


PLACED: dict[str, Any] = {"state": IssuanceState.ORDERED, "ref": REF}
WAITING: dict[str, Any] = {"state": IssuanceState.WAITING, "ref": REF}
BINDING: dict[str, Any] = {**WAITING, "binding": True, "asked_at": NOW - MINUTE}
OPEN = Breaker(failures=5, until=NOW + MINUTE, error="no route")
LIMITED = Breaker(limits=1, until=NOW + MINUTE, error="busy")
BARRED = Breaker(limits=-1, until=NOW, error="no such account")


def later(reason: Reason | str, why: str = "not now", **more: Any) -> RemoteUnavailable:
    return RemoteUnavailable(at=more.pop("at", "look"), reason=reason, why=why, **more)


def refusal(reason: Reason | str, at: Any = "place") -> RemoteRefused:
    return RemoteRefused(at=at, reason=reason, why="no")


# ── Which call is next ──

CALLS: dict[str, tuple[Facts, RemoteAnswer, IssuanceStep]] = {
    "a new attempt seals its key": (facts(state=IssuanceState.REQUESTED), CallDone("begin"), MakeCall("store key")),
    "one with a key opens its issuer": (facts(), CallDone("begin"), MakeCall("open")),
    "a sealed key is followed by the issuer": (facts(fresh=True), CallDone("store key"), MakeCall("open")),
    "an open breaker is asked for leave": (facts(breaker=OPEN), CallDone("begin"), MakeCall("admit")),
    "also by one that has an order": (facts(**PLACED, breaker=OPEN), CallDone("begin"), MakeCall("admit")),
    "a limit stops new orders": (facts(breaker=LIMITED), CallDone("begin"), MakeCall("admit")),
    "a limit does not stop a placed one": (facts(**PLACED, breaker=LIMITED), CallDone("begin"), MakeCall("open")),
    "a probe without a key seals one": (
        facts(state=IssuanceState.REQUESTED, breaker=OPEN),
        CallDone("admit"),
        MakeCall("store key"),
    ),
    "nothing can be placed before the key": (facts(fresh=True), CallDone("open"), PlaceOrder()),
    "one that resumes looks for its order": (facts(), CallDone("open"), MakeCall("find")),
    "a lost commit makes it look as well": (facts(fresh=True, recheck=True), CallDone("open"), MakeCall("find")),
    "nothing binding was asked for": (facts(binding=True), CallDone("open"), PlaceOrder()),
    "a binding order that was begun is looked for": (
        facts(binding=True, asked_at=NOW, budgets=(REQUESTS,) * 5),
        CallDone("open"),
        MakeCall("find"),
    ),
    "but not before the look-up is paid for": (
        facts(binding=True, asked_at=NOW, budgets=(REQUESTS,) * 4),
        CallDone("open"),
        WaitFor(SOONEST, Reason.UNDER_WAY),
    ),
    "where requests cost nothing, at once": (
        facts(binding=True, asked_at=NOW, budgets=()),
        CallDone("open"),
        MakeCall("find"),
    ),
    "a recheck does not wait for that": (
        facts(binding=True, asked_at=NOW, recheck=True),
        CallDone("open"),
        MakeCall("find"),
    ),
    "a placed order is looked at": (facts(**PLACED), CallDone("open"), MakeCall("look")),
    "no order was found": (facts(), CallDone("find"), PlaceOrder()),
    "no order that binds was found, long after it was sent": (
        facts(binding=True, asked_at=NOW - LOOKUP_FOR),
        CallDone("find"),
        PlaceOrder(NOW - LOOKUP_FOR),
    ),
    "a new order is looked at": (facts(**PLACED), CallDone("place"), MakeCall("look")),
    "unless it waits for the CSR only": (facts(**PLACED, proved=True), CallDone("place"), MakeCall("finalize")),
    "a proved order gets its CSR": (facts(**PLACED), OrderReady(), MoveOn("proved", "finalize")),
    "which is not committed twice": (facts(**PLACED, proved=True), OrderReady(), MakeCall("finalize")),
    "many CAs have it by then": (facts(**PLACED, handed_in=True), CallDone("finalize"), MakeCall("look")),
    "a CA at work has the CSR": (
        facts(state=IssuanceState.FINALIZING, ref=REF),
        OrderPending(why="at work"),
        MoveOn("csr handed in", OrderPending(why="at work"), {"polls": 0, "polled_since": NOW}),
    ),
    "an order that could not be stored": (facts(), OrderNotKept(REF), KeepOrderReference(REF)),
    "a certificate is put in use": (
        facts(**WAITING),
        CertificateIssued(version=a_version(DAY)),
        UseCertificate(CertificateIssued(version=a_version(DAY))),
    ),
}


@pytest.mark.parametrize("case", CALLS)
def test_which_step_is_next(case: str) -> None:
    given, answer, step = CALLS[case]
    assert decide(given, answer) == step


# ── When the attempt ends, or goes to another issuer ──

ENDS: dict[str, tuple[Facts, RemoteAnswer, IssuanceStep]] = {
    "the issuer was removed": (
        facts(known=False),
        CallDone("begin"),
        GiveUp(FailureClass.LOCAL, Reason.UNKNOWN_ISSUER, "There is no CA named 'first' any more."),
    ),
    "no solver": (
        facts(**PLACED),
        OurFault(reason=Reason.NO_SOLVER, why="none"),
        GiveUp(FailureClass.LOCAL, Reason.NO_SOLVER, "none"),
    ),
    "a response that is never seen": (
        facts(**PLACED, polled_since=NOW - VISIBLE_WITHIN - SECOND),
        NotVisible(names=("a", "b", "c", "d"), by_dns=True, responses=(), to_publish_again=()),
        GiveUp(FailureClass.VALIDATION, Reason.DNS_TXT_NOT_VISIBLE, "Not yet to be seen for a, b, c."),
    ),
    "the CA did not find a response": (
        facts(**PLACED),
        OrderFailed(why="404", reason=Reason.VALIDATION_FAILED),
        GiveUp(FailureClass.VALIDATION, Reason.VALIDATION_FAILED, "404"),
    ),
    "the CA gave the order up": (
        facts(**PLACED),
        OrderFailed(why="gone", reason=Reason.ORDER_EXPIRED),
        GiveUp(FailureClass.TRANSIENT, Reason.ORDER_EXPIRED, "gone"),
    ),
    "one that cost nothing is placed again as often as that": (
        facts(**PLACED, ordered_before=True),
        OrderFailed(why="gone", reason=Reason.ORDER_EXPIRED),
        GiveUp(FailureClass.TRANSIENT, Reason.ORDER_EXPIRED, "gone"),
    ),
    "a binding one is placed again, once": (
        facts(**BINDING),
        OrderFailed(why="gone", reason=Reason.ORDER_EXPIRED),
        GiveUp(FailureClass.TRANSIENT, Reason.ORDER_EXPIRED, "gone"),
    ),
    "an order failed, and a new one may do better": (
        facts(**WAITING),
        OrderFailed(why="oops", reason=Reason.CA_REFUSED),
        GiveUp(FailureClass.TRANSIENT, Reason.CA_REFUSED, "oops"),
    ),
    "an order failed for good, for a reason that we do not know": (
        facts(**WAITING),
        OrderFailed(why="oops", reason="ODD", retryable=False),
        GiveUp(FailureClass.REFUSED, Reason.CA_REFUSED, "oops"),
    ),
    "a wrong certificate that cost nothing": (
        facts(**WAITING),
        OrderFailed(why="other names", reason=Reason.WRONG_CERTIFICATE),
        GiveUp(FailureClass.REFUSED, Reason.WRONG_CERTIFICATE, "other names"),
    ),
    "a paid one, with little time left and another issuer": (
        facts(**BINDING, left=10 * DAY, others=(SECOND_CA,)),
        OrderFailed(why="other names", reason=Reason.WRONG_CERTIFICATE),
        GiveUp(FailureClass.REFUSED, Reason.WRONG_CERTIFICATE, "other names"),
    ),
    "a paid one, with no time left and no other issuer, is ordered again and told": (
        facts(**BINDING, left=DAY),
        OrderFailed(why="other names", reason=Reason.WRONG_CERTIFICATE),
        GiveUp(
            FailureClass.REFUSED,
            Reason.WRONG_CERTIFICATE,
            "other names",
            also=(RaiseAlert("issuance.ordered_again", {"error": "other names"}),),
        ),
    ),
    "the fifth passing failure": (
        facts(failures=PASSING_TRIES - 1),
        later(Reason.ANSWER_MALFORMED),
        GiveUp(FailureClass.TRANSIENT, Reason.ANSWER_MALFORMED, "not now", also=(CountFailure("not now"),)),
    ),
    "of a solver, which says nothing about the CA": (
        facts(**PLACED, failures=PASSING_TRIES - 1),
        later(Reason.SOLVER_FAILED, at="prove"),
        GiveUp(FailureClass.TRANSIENT, Reason.SOLVER_FAILED, "not now"),
    ),
    "of a plugin that invents reasons": (
        facts(failures=PASSING_TRIES - 1),
        later("ODD"),
        GiveUp(FailureClass.TRANSIENT, Reason.INTERNAL, "not now"),
    ),
    "another issuer takes an order at once": (
        facts(failures=PASSING_TRIES - 1, others=(SECOND_CA,)),
        later(Reason.CA_DOWN),
        StartOver("second", Reason.CA_DOWN, "not now", (CountFailure("not now"),)),
    ),
    "another issuer is down as well": (
        facts(failures=PASSING_TRIES - 1, others=(replace(SECOND_CA, down=True),)),
        later(Reason.CA_DOWN),
        GiveUp(FailureClass.TRANSIENT, Reason.CA_DOWN, "not now", also=(CountFailure("not now"),)),
    ),
    "a binding order that is given up is withdrawn": (
        facts(**BINDING, left=DAY, failures=PASSING_TRIES - 1),
        later(Reason.CA_DOWN),
        GiveUp(FailureClass.TRANSIENT, Reason.CA_DOWN, "not now", also=(CountFailure("not now"),), withdraw=True),
    ),
    "in an emergency the first failure is enough where another issuer can be asked": (
        facts(**WAITING, left=DAY, others=(SECOND_CA,)),
        later(Reason.CA_DOWN),
        GiveUp(FailureClass.TRANSIENT, Reason.CA_DOWN, "not now", also=(CountFailure("not now"),)),
    ),
    "patience with a CA that has our CSR ends after a day": (
        facts(**WAITING, failures=PASSING_TRIES - 1, started_at=NOW - LATEST),
        later(Reason.CA_DOWN),
        GiveUp(FailureClass.TRANSIENT, Reason.CA_DOWN, "not now", also=(CountFailure("not now"),)),
    ),
    "patience with a CA that has a binding order ends after thirty": (
        facts(**BINDING, failures=PASSING_TRIES - 1, started_at=NOW - PATIENT_FOR),
        later(Reason.CA_DOWN),
        GiveUp(FailureClass.TRANSIENT, Reason.CA_DOWN, "not now", also=(CountFailure("not now"),), withdraw=True),
    ),
    "with another issuer after a day already": (
        facts(**BINDING, failures=PASSING_TRIES - 1, started_at=NOW - LATEST, others=(SECOND_CA,), ordered_before=True),
        later(Reason.CA_DOWN),
        GiveUp(FailureClass.TRANSIENT, Reason.CA_DOWN, "not now", also=(CountFailure("not now"),), withdraw=True),
    ),
    "nothing was ordered at a CA whose orders bind": (
        facts(binding=True, failures=PASSING_TRIES - 1, ordered_before=True),
        later(Reason.ANSWER_MALFORMED),
        GiveUp(
            FailureClass.TRANSIENT,
            Reason.ANSWER_MALFORMED,
            "not now",
            also=(CountFailure("not now"),),
            withdraw=True,
        ),
    ),
    "an order that costs nothing may be placed for a third time": (
        facts(**PLACED, failures=PASSING_TRIES - 1, ordered_before=True),
        later(Reason.CA_DOWN),
        GiveUp(FailureClass.TRANSIENT, Reason.CA_DOWN, "not now", also=(CountFailure("not now"),)),
    ),
    "a failure that is not the CA's sends no attempt to another issuer": (
        facts(failures=PASSING_TRIES - 1, others=(SECOND_CA,)),
        later(Reason.NONCES_REFUSED),
        GiveUp(FailureClass.TRANSIENT, Reason.NONCES_REFUSED, "not now"),
    ),
    "a limit that lasts too long, where another issuer can help": (
        facts(others=(SECOND_CA,)),
        later(Reason.CA_RATE_LIMITED, "too many", after=2 * HOUR),
        StartOver("second", Reason.CA_RATE_LIMITED, "too many", (HoldBudget(REQUESTS, NOW + 2 * HOUR, "too many"),)),
    ),
    "a limit on a placed order, beyond the last safe moment": (
        facts(**PLACED, left=3 * HOUR, others=(SECOND_CA,)),
        later(Reason.CA_RATE_LIMITED, "too many new orders", after=2 * HOUR),
        GiveUp(
            FailureClass.RATE_LIMITED,
            Reason.CA_RATE_LIMITED,
            "too many new orders",
            also=(HoldBudget(ORDERS, NOW + 2 * HOUR, "too many new orders"),),
        ),
    ),
    "a CA that has been down for long": (
        facts(breaker=replace(OPEN, failures=30), others=(SECOND_CA,)),
        BreakerOpen(NOW + MINUTE),
        StartOver("second", Reason.CA_DOWN, "first is down: no route"),
    ),
    "a CA that does not let us in": (
        facts(breaker=BARRED, others=(SECOND_CA,)),
        BreakerOpen(NOW + MINUTE),
        StartOver("second", Reason.ACCOUNT_REFUSED, "first does not let us in: no such account"),
    ),
    "pending for too long in an emergency, with another issuer": (
        facts(**WAITING, left=DAY, others=(SECOND_CA,), polled_since=NOW - 3 * HOUR),
        OrderPending(why="At work."),
        GiveUp(
            FailureClass.TRANSIENT,
            Reason.CA_STILL_PENDING,
            "At work. There is no time left to wait for it, and there are other CAs.",
            withdraw=True,
        ),
    ),
    "a doubt that a person must end, with no time left and another issuer": (
        facts(binding=True, asked_at=NOW, left=DAY, others=(SECOND_CA,)),
        OrderUncertain(why="Perhaps.", for_a_person=True),
        GiveUp(
            FailureClass.TRANSIENT,
            Reason.ORDER_UNCERTAIN,
            "Perhaps. There is no time left to wait for a word, and there are other CAs.",
            withdraw=True,
        ),
    ),
    "a refusal": (
        facts(),
        refusal(Reason.NAME_REFUSED),
        GiveUp(FailureClass.REFUSED, Reason.NAME_REFUSED, "no"),
    ),
    "a refusal by CAA": (
        facts(**PLACED),
        refusal(Reason.CAA_FORBIDS, "finalize"),
        GiveUp(FailureClass.VALIDATION, Reason.CAA_FORBIDS, "no"),
    ),
    "a refusal for a reason that we do not know": (
        facts(),
        refusal("REFUSED"),
        GiveUp(FailureClass.REFUSED, Reason.CA_REFUSED, "no"),
    ),
    "a name that is paused at this CA only": (
        facts(others=(SECOND_CA,)),
        refusal(Reason.NAME_PAUSED_AT_CA),
        StartOver("second", Reason.NAME_PAUSED_AT_CA, "no"),
    ),
    "a name that is paused, and no other issuer": (
        facts(),
        refusal(Reason.NAME_PAUSED_AT_CA),
        GiveUp(FailureClass.REFUSED, Reason.NAME_PAUSED_AT_CA, "no"),
    ),
    "the first certificate whose account is refused counts it": (
        facts(),
        refusal(Reason.EAB_REQUIRED, "open"),
        GiveUp(FailureClass.REFUSED, Reason.EAB_REQUIRED, "no", barred=True),
    ),
    "or goes to another issuer": (
        facts(others=(SECOND_CA,)),
        refusal(Reason.ACCOUNT_REFUSED, "open"),
        StartOver("second", Reason.ACCOUNT_REFUSED, "no", (BarAccount(Reason.ACCOUNT_REFUSED, "no"),)),
    ),
    "with an order, a refused account is a refusal": (
        facts(**PLACED),
        refusal(Reason.ACCOUNT_REFUSED, "look"),
        GiveUp(FailureClass.REFUSED, Reason.ACCOUNT_REFUSED, "no"),
    ),
    "a binding order that we may not look at, with no time left and another issuer, is withdrawn": (
        facts(**BINDING, left=DAY, others=(SECOND_CA,)),
        refusal(Reason.ACCOUNT_REFUSED, "look"),
        GiveUp(FailureClass.REFUSED, Reason.ACCOUNT_REFUSED, "no", withdraw=True),
    ),
    "an account that is gone is put away": (facts(), refusal(Reason.ACCOUNT_GONE), EndAccount("no")),
    "its order is begun anew by another account": (
        facts(**PLACED),
        AccountGone("no"),
        StartOver("first", Reason.ACCOUNT_GONE, "no"),
    ),
    "but not twice in a row": (
        facts(**PLACED, begun_anew=True),
        AccountGone("no"),
        GiveUp(FailureClass.REFUSED, Reason.ACCOUNT_GONE, "no"),
    ),
    "a key that does not open": (
        facts(),
        OurFault(reason=Reason.KEY_MISSING, why="damaged"),
        GiveUp(FailureClass.LOCAL, Reason.KEY_MISSING, "damaged"),
    ),
}


@pytest.mark.parametrize("case", ENDS)
def test_when_an_attempt_ends(case: str) -> None:
    given, answer, step = ENDS[case]
    assert decide(given, answer) == step


def test_what_the_ca_counts_as_a_failed_validation() -> None:
    counted = [reason for reason in Reason if GiveUp(FailureClass.VALIDATION, reason, "").validated]
    assert counted == [Reason.VALIDATION_FAILED, Reason.CAA_FORBIDS]


# ── When it waits, why, and for how long ──


def waits(given: Facts, answer: RemoteAnswer) -> WaitFor:
    step = decide(given, answer)
    assert isinstance(step, WaitFor), step
    return step


WAITS: dict[str, tuple[Facts, RemoteAnswer, Reason, timedelta, timedelta]] = {
    "the first poll": (facts(**WAITING), OrderPending(why=""), Reason.UNDER_WAY, 4 * SECOND, 6 * SECOND),
    "an ACME server names a short time": (
        facts(**WAITING),
        OrderPending(why="", after_s=1),
        Reason.UNDER_WAY,
        SECOND,
        SECOND,
    ),
    "an absurdly short one": (facts(**WAITING), OrderPending(why="", after_s=0), Reason.UNDER_WAY, SOONEST, SOONEST),
    "an absurdly long one": (facts(**WAITING), OrderPending(why="", after_s=1e9), Reason.UNDER_WAY, LATEST, LATEST),
    "a binding order is not polled more often for that": (
        facts(**BINDING),
        OrderPending(why="", after_s=1),
        Reason.UNDER_WAY,
        4 * SECOND,
        6 * SECOND,
    ),
    "an order that outlived its window rests": (
        facts(**WAITING, polled_since=NOW - POLL_WINDOW, polls=9, started_at=NOW - DAY),
        OrderPending(why=""),
        Reason.CA_STILL_PENDING,
        POLL.cap,
        REST_CAP,
    ),
    "its own window is longer": (
        facts(**WAITING, polled_since=NOW - POLL_WINDOW, polls=9, poll_window=HOUR),
        OrderPending(why=""),
        Reason.UNDER_WAY,
        4 * MINUTE,
        6 * MINUTE,
    ),
    "one that rests is looked at when the emergency begins": (
        facts(**WAITING, polled_since=NOW - DAY, polls=9, started_at=NOW - 9 * DAY, left=4.5 * DAY + 10 * MINUTE),
        OrderPending(why=""),
        Reason.CA_STILL_PENDING,
        10 * MINUTE,
        10 * MINUTE,
    ),
    "pending in an emergency, with another issuer, for a moment": (
        facts(**WAITING, left=DAY, others=(SECOND_CA,)),
        OrderPending(why=""),
        Reason.UNDER_WAY,
        4 * SECOND,
        6 * SECOND,
    ),
    "pending for long in an emergency, without another issuer": (
        facts(**WAITING, left=DAY, polled_since=NOW - 3 * HOUR),
        OrderPending(why=""),
        Reason.CA_STILL_PENDING,
        POLL.cap,
        REST_CAP,
    ),
    "the CA took the CSR and does not show it yet": (
        facts(**PLACED, handed_in=True),
        OrderReady(),
        Reason.UNDER_WAY,
        4 * SECOND,
        6 * SECOND,
    ),
    "the CA was told of the responses": (
        facts(**PLACED),
        ResponsesReported(()),
        Reason.UNDER_WAY,
        4 * SECOND,
        6 * SECOND,
    ),
    "more responses than one claim can see to": (facts(**PLACED), Unfinished(()), Reason.UNDER_WAY, SOONEST, SOONEST),
    "a response is not to be seen yet": (
        facts(**PLACED),
        NotVisible(names=("a",), by_dns=False, responses=(), to_publish_again=()),
        Reason.PROOF_NOT_VISIBLE,
        4 * SECOND,
        6 * SECOND,
    ),
    "a look-up that is more than one claim pays for": (
        facts(),
        later(Reason.UNDER_WAY, at="find"),
        Reason.UNDER_WAY,
        POLL.first,
        POLL.first,
    ),
    "the order of another certificate": (
        facts(),
        later(Reason.UNDER_WAY, at="place", after=MINUTE),
        Reason.UNDER_WAY,
        MINUTE,
        MINUTE,
    ),
    "a first passing failure": (facts(), later(Reason.CA_DOWN), Reason.CA_DOWN, 24 * SECOND, 36 * SECOND),
    "a fourth": (facts(failures=3), later(Reason.CA_DOWN), Reason.CA_DOWN, 192 * SECOND, 288 * SECOND),
    "the CA names a longer time": (
        facts(),
        later(Reason.CA_DOWN, after=HOUR),
        Reason.CA_DOWN,
        HOUR,
        HOUR,
    ),
    "a CA that has our CSR is waited for": (
        facts(**WAITING, failures=99),
        later(Reason.CA_DOWN),
        Reason.CA_DOWN,
        8 * MINUTE,
        12 * MINUTE,
    ),
    "also one that may have our binding order": (
        facts(binding=True, asked_at=NOW - MINUTE, failures=99),
        later(Reason.CA_DOWN),
        Reason.CA_DOWN,
        8 * MINUTE,
        12 * MINUTE,
    ),
    "the last order that may be placed by itself is waited for without end": (
        facts(**BINDING, failures=99, started_at=NOW - 99 * DAY, ordered_before=True),
        later(Reason.CA_DOWN),
        Reason.CA_DOWN,
        8 * MINUTE,
        HOUR,
    ),
    "a failure that is not the CA's, in an emergency with another issuer": (
        facts(**PLACED, left=DAY, others=(SECOND_CA,)),
        later(Reason.SOLVER_FAILED, at="prove"),
        Reason.SOLVER_FAILED,
        24 * SECOND,
        36 * SECOND,
    ),
    "in an emergency a CA without our order gets its tries": (
        facts(left=DAY, others=(SECOND_CA,)),
        later(Reason.CA_DOWN),
        Reason.CA_DOWN,
        24 * SECOND,
        36 * SECOND,
    ),
    "also the only one": (facts(**PLACED, left=DAY), later(Reason.CA_DOWN), Reason.CA_DOWN, 24 * SECOND, 36 * SECOND),
    "also one with our order, while there is time": (
        facts(**PLACED, left=40 * DAY, others=(SECOND_CA,)),
        later(Reason.CA_DOWN),
        Reason.CA_DOWN,
        24 * SECOND,
        36 * SECOND,
    ),
    "a key that another replica may hold": (
        facts(),
        later(Reason.KEY_MISSING),
        Reason.KEY_MISSING,
        24 * SECOND,
        36 * SECOND,
    ),
    "the account is gone before there is an order": (
        facts(),
        AccountGone("no"),
        Reason.ACCOUNT_GONE,
        24 * SECOND,
        36 * SECOND,
    ),
    "a limit without a time": (
        facts(),
        later(Reason.CA_RATE_LIMITED),
        Reason.CA_RATE_LIMITED,
        LIMITED_FOR,
        LIMITED_FOR,
    ),
    "a limit of no time at all": (
        facts(),
        later(Reason.CA_RATE_LIMITED, after=timedelta(0)),
        Reason.CA_RATE_LIMITED,
        LIMITED_FOR,
        LIMITED_FOR,
    ),
    "a limit for ever": (
        facts(),
        later(Reason.CA_RATE_LIMITED, after=99 * DAY),
        Reason.CA_RATE_LIMITED,
        LATEST,
        LATEST,
    ),
    "a short limit is waited for, though there are other issuers": (
        facts(others=(SECOND_CA,)),
        later(Reason.CA_RATE_LIMITED, after=5 * MINUTE),
        Reason.CA_RATE_LIMITED,
        5 * MINUTE,
        5 * MINUTE,
    ),
    "a limit on a placed order, with another issuer and time": (
        facts(**PLACED, left=40 * DAY, others=(SECOND_CA,)),
        later(Reason.CA_RATE_LIMITED, after=2 * HOUR),
        Reason.CA_RATE_LIMITED,
        2 * HOUR,
        2 * HOUR,
    ),
    "a limit beyond the last safe moment, without another issuer": (
        facts(**PLACED, left=3 * HOUR),
        later(Reason.CA_RATE_LIMITED, after=2 * HOUR),
        Reason.CA_RATE_LIMITED,
        2 * HOUR,
        2 * HOUR,
    ),
    "a breaker that is open": (facts(breaker=OPEN), BreakerOpen(NOW + MINUTE), Reason.CA_DOWN, MINUTE, MINUTE),
    "a breaker that opens in this moment": (facts(breaker=OPEN), BreakerOpen(NOW), Reason.CA_DOWN, SOONEST, SOONEST),
    "a breaker by a limit": (facts(breaker=LIMITED), BreakerOpen(NOW + MINUTE), Reason.CA_RATE_LIMITED, MINUTE, MINUTE),
    "a breaker by a refused account": (
        facts(breaker=BARRED),
        BreakerOpen(NOW + MINUTE),
        Reason.ACCOUNT_REFUSED,
        MINUTE,
        MINUTE,
    ),
    "the second certificate whose account is refused waits for the first": (
        facts(breaker=BARRED),
        refusal(Reason.ACCOUNT_REFUSED, "open"),
        Reason.ACCOUNT_REFUSED,
        BREAKER_BARRED.rung(2),
        BREAKER_BARRED.rung(2) + MINUTE,
    ),
    "a first doubt": (
        facts(binding=True, asked_at=NOW),
        OrderUncertain(why="perhaps"),
        Reason.ORDER_UNCERTAIN,
        4 * SECOND,
        6 * SECOND,
    ),
    "a doubt after a second order": (
        facts(binding=True, asked_at=NOW, maybe_twice=True, uncertain_since=NOW - 9 * DAY),
        OrderUncertain(why="perhaps"),
        Reason.ORDER_UNCERTAIN,
        4 * SECOND,
        6 * SECOND,
    ),
    "a doubt that a person must end, with another issuer and time": (
        facts(binding=True, asked_at=NOW, left=40 * DAY, others=(SECOND_CA,)),
        OrderUncertain(why="perhaps", for_a_person=True),
        Reason.ORDER_UNCERTAIN,
        4 * SECOND,
        6 * SECOND,
    ),
    "a doubt that a person must end, with no time left and no other issuer": (
        facts(binding=True, asked_at=NOW, left=DAY),
        OrderUncertain(why="perhaps", for_a_person=True),
        Reason.ORDER_UNCERTAIN,
        4 * SECOND,
        6 * SECOND,
    ),
    "a binding order that we may not look at": (
        facts(**BINDING),
        refusal(Reason.ACCOUNT_REFUSED, "look"),
        Reason.ACCOUNT_REFUSED,
        POLL.cap,
        REST_CAP,
    ),
    "one that the CA has forgotten twice": (
        facts(**BINDING, ordered_before=True),
        OrderFailed(why="gone", reason=Reason.ORDER_EXPIRED),
        Reason.ORDER_UNCERTAIN,
        POLL.cap,
        REST_CAP,
    ),
    "a wrong certificate that is paid for": (
        facts(**BINDING, left=30 * DAY),
        OrderFailed(why="other names", reason=Reason.WRONG_CERTIFICATE),
        Reason.WRONG_CERTIFICATE,
        POLL.cap,
        REST_CAP,
    ),
    "the second one in a row, in an emergency": (
        facts(**BINDING, left=DAY, ordered_before=True),
        OrderFailed(why="other names", reason=Reason.WRONG_CERTIFICATE),
        Reason.WRONG_CERTIFICATE,
        POLL.cap,
        REST_CAP,
    ),
    "with another issuer no wait goes past the emergency": (
        facts(others=(replace(SECOND_CA, down=True),), left=4.5 * DAY + 3 * MINUTE, breaker=OPEN),
        BreakerOpen(NOW + HOUR),
        Reason.CA_DOWN,
        3 * MINUTE,
        3 * MINUTE,
    ),
    "in the emergency, no longer than a tenth of what is left": (
        facts(others=(replace(SECOND_CA, down=True),), left=5 * HOUR, breaker=OPEN),
        BreakerOpen(NOW + HOUR),
        Reason.CA_DOWN,
        30 * MINUTE,
        30 * MINUTE,
    ),
    "and for a moment at least": (
        facts(others=(replace(SECOND_CA, down=True),), left=MINUTE, breaker=OPEN),
        BreakerOpen(NOW + HOUR),
        Reason.CA_DOWN,
        MOMENT,
        MOMENT,
    ),
    "what has expired has nothing to hurry for": (
        facts(others=(replace(SECOND_CA, down=True),), left=-DAY, breaker=OPEN),
        BreakerOpen(NOW + HOUR),
        Reason.CA_DOWN,
        HOUR,
        HOUR,
    ),
}


@pytest.mark.parametrize("case", WAITS)
def test_why_an_attempt_waits_and_for_how_long(case: str) -> None:
    given, answer, reason, least, most = WAITS[case]
    step = waits(given, answer)
    assert step.reason is reason
    assert least <= step.after <= most


def test_a_poll_is_counted_and_heals_what_failed_before() -> None:
    given = facts(**WAITING, polls=2, polled_since=NOW - MINUTE, failures=3, error="away", reason="CA_DOWN")
    healed = {"polls": 3, "polled_since": NOW - MINUTE, "failures": 0, "reason": None, "error": None}
    assert waits(given, OrderPending(why="At work.")).changes == healed


def test_people_can_read_what_a_binding_order_waits_for() -> None:
    assert waits(facts(**BINDING), OrderPending(why="At work.")).changes["error"] == "At work."
    assert waits(facts(**WAITING), OrderPending(why="At work.")).changes["error"] is None


def test_a_passing_failure_is_counted_and_hurts_the_breaker_only_if_the_ca_is_to_blame() -> None:
    step = waits(facts(failures=1), later(Reason.CA_TLS_FAILED, "bad certificate"))
    assert step.changes == {"failures": 2, "reason": "CA_TLS_FAILED", "error": "bad certificate"}
    assert step.also == (CountFailure("bad certificate", opens=True),)  # no waiting cures it
    assert waits(facts(), later(Reason.NONCES_REFUSED)).also == ()


def test_a_failure_with_an_order_is_a_poll_as_well() -> None:
    assert waits(facts(**PLACED, polls=4), later(Reason.CA_DOWN)).changes["polls"] == 5
    assert "polls" not in waits(facts(), later(Reason.CA_DOWN)).changes


def test_an_attempt_waits_the_same_time_however_often_it_is_decided() -> None:
    first = decide(facts(failures=2), later(Reason.CA_DOWN))
    assert first == decide(facts(failures=2), later(Reason.CA_DOWN))
    assert waits(facts(failures=2), later(Reason.CA_DOWN)).after == PASSING.wait(3, "issuance_1")
    away = facts(failures=30)  # and no other issuer: to begin anew would only wait longer
    assert waits(away, later(Reason.CA_DOWN)).after <= 12 * MINUTE


# ── Limits ──


@pytest.mark.parametrize(
    ("why", "key"),
    [
        ("too many requests", REQUESTS),
        ("too many new orders recently", ORDERS),
        ("too many certificates (5) already issued for this exact set of identifiers", "set"),
    ],
)
def test_a_limit_holds_the_budget_that_the_ca_speaks_of_for_as_long_as_the_attempt_waits(why: str, key: str) -> None:
    step = waits(facts(**PLACED), later(Reason.CA_RATE_LIMITED, why, after=HOUR))
    (hold,) = step.also
    assert isinstance(hold, HoldBudget)
    assert hold.key == key if key != "set" else hold.key.startswith("ca/first/names/")
    assert (hold.until, hold.error) == (NOW + step.after, why)


# ── Doubtful and paid orders ──


def test_a_doubt_lasts_for_a_day_or_until_the_emergency_and_then_it_is_ordered_once_more() -> None:
    perhaps, since = OrderUncertain(why="perhaps"), NOW - DOUBT_FOR
    doubted: dict[str, Any] = {"binding": True, "asked_at": NOW - DAY}
    assert waits(facts(**doubted, uncertain_since=since + SECOND), perhaps).changes["uncertain_since"] == since + SECOND
    assert decide(facts(**doubted, uncertain_since=since), perhaps) == PlaceOrder(since)
    assert decide(facts(**doubted, left=4 * DAY), perhaps) == PlaceOrder(NOW)
    assert waits(facts(**doubted, left=40 * DAY), perhaps).changes["uncertain_since"] == NOW


@pytest.mark.parametrize(("person", "twice"), [(True, False), (False, True), (False, False)])
def test_only_a_person_orders_again_what_a_person_must_decide_or_was_ordered_twice(person: bool, twice: bool) -> None:
    step = waits(
        facts(binding=True, asked_at=NOW, maybe_twice=twice), OrderUncertain(why="perhaps", for_a_person=person)
    )
    assert step.for_a_person is (person or twice)


def test_people_are_told_once_that_an_order_is_kept() -> None:
    no = refusal(Reason.ACCOUNT_REFUSED, "look")
    told = RaiseAlert("issuance.barred", {"why": "ACCOUNT_REFUSED", "error": "no"})
    assert waits(facts(**BINDING), no).also == (told,)
    assert waits(facts(**BINDING, reason="ACCOUNT_REFUSED"), no).also == ()


def test_a_wrong_certificate_is_looked_at_again_when_another_issuer_may_be_asked() -> None:
    given = facts(**BINDING, left=15 * DAY + HOUR + 3 * MINUTE, others=(SECOND_CA,))
    step = waits(given, OrderFailed(why="other names", reason=Reason.WRONG_CERTIFICATE))
    assert given.current is not None
    assert NOW + step.after == short_from(given.current) + MOMENT
    assert step.also == (RaiseAlert("issuance.not_as_asked", {"why": "WRONG_CERTIFICATE", "error": "other names"}),)


def test_a_refused_look_up_is_kept_as_well_but_a_refused_order_is_not() -> None:
    doubted = facts(binding=True, asked_at=NOW - MINUTE)
    assert waits(doubted, refusal(Reason.CA_REFUSED, "find")).reason is Reason.CA_REFUSED
    assert isinstance(decide(doubted, refusal(Reason.CA_REFUSED, "place")), GiveUp)


def test_an_order_that_may_be_placed_is_not_left_for_another_issuer() -> None:
    limited = later(Reason.CA_RATE_LIMITED, after=2 * HOUR)
    asked = facts(others=(SECOND_CA,), binding=True, asked_at=NOW - MINUTE)
    perhaps = facts(others=(SECOND_CA,), binding=True, used="an order perhaps")
    nothing = facts(others=(SECOND_CA,), binding=True, asked_at=NOW, asked_before=None)
    assert isinstance(decide(asked, limited), WaitFor)
    assert isinstance(decide(perhaps, limited), WaitFor)
    assert isinstance(decide(facts(**PLACED, others=(SECOND_CA,)), limited), WaitFor)
    assert isinstance(decide(nothing, limited), StartOver)  # this claim began it, and was told that nothing is placed
    assert isinstance(
        decide(facts(others=(SECOND_CA,), used="an order perhaps"), limited), StartOver
    )  # it binds nobody


# ── Approvals and words ──


def test_an_approval_at_the_ca_is_told_once_it_lasts_and_cleared_when_the_order_goes_on() -> None:
    asked = OrderPending(why="Somebody must approve it.", word="needs_approval", person=True)
    assert waits(facts(**BINDING), asked).also == ()
    long = facts(**BINDING, polled_since=NOW - POLL_WINDOW)
    assert waits(long, asked).also == (AlertOfCaApproval(True, "needs_approval", "Somebody must approve it."),)
    assert waits(facts(**BINDING), OrderPending(why="At work.", word="issuing")).also == (
        AlertOfCaApproval(False, "issuing", ""),
    )
    assert waits(facts(**WAITING), asked).also == ()
    assert len(waits(facts(**BINDING, poll_window=MINUTE, polled_since=NOW - MINUTE), asked).also) == 1
    assert len(waits(facts(**BINDING, poll_window=HOUR, polled_since=NOW - POLL_WINDOW), asked).also) == 1


def test_a_word_that_we_do_not_know_is_told() -> None:
    assert waits(facts(**WAITING), OrderPending(why="?", word="pondering", unknown=True)).also == (
        ReportUnknownWord("pondering"),
    )


# ── Challenge responses ──


def test_every_fourth_look_a_response_that_is_not_to_be_seen_is_published_again() -> None:
    seen, again = ({"token": "t", "published": True},), ({"token": "t", "published": False},)
    missing = NotVisible(names=("a",), by_dns=True, responses=seen, to_publish_again=again)
    kept = [waits(facts(**PLACED, polls=polls), missing).changes["proofs"] for polls in range(8)]
    assert [proofs == again for proofs in kept] == [False, False, False, True] * 2


def test_what_one_claim_cannot_publish_begins_a_new_count_in_the_next() -> None:
    marks = ({"token": "t", "published": True},)
    step = waits(facts(**PLACED, polls=7, polled_since=NOW - HOUR, failures=2), Unfinished(marks))
    anew = {"polls": 0, "polled_since": NOW, "failures": 0, "reason": None, "error": None}
    assert step.changes == {"proofs": marks, **anew}


# ── Placing ──


@pytest.mark.parametrize(
    ("answer", "used", "back"),
    [
        (refusal(Reason.NAME_REFUSED), "requests", False),
        (later(Reason.CA_DOWN, sent=False), "requests", True),
        (later(Reason.CA_RATE_LIMITED), "requests", True),
        (later(Reason.CA_DOWN), "an order perhaps", False),
        (later(Reason.KEY_MISSING), "an order", False),
        (OurFault(reason=Reason.INTERNAL, why=""), "an order", False),
    ],
)
def test_what_an_order_used_up_and_whether_there_may_be_one(answer: RemoteAnswer, used: str, back: bool) -> None:
    assert used_by_placing(answer) == used
    assert takes_back(facts(binding=True, asked_at=NOW), answer) is back
    assert not takes_back(facts(), answer)
    assert not takes_back(facts(binding=True, asked_at=NOW, uncertain_since=NOW), answer)


def test_what_a_ca_does_not_want_to_hear_is_left_out_once() -> None:
    replaces, lifetime = refusal(Reason.REPLACES_REJECTED), refusal(Reason.LIFETIME_REJECTED)
    assert left_out(facts(replaces="id"), replaces) == "replaces"
    assert left_out(facts(), replaces) is None
    assert left_out(facts(), lifetime) == "lifetime"
    assert left_out(facts(any_lifetime=True), lifetime) is None
    assert left_out(facts(replaces="id"), refusal(Reason.NAME_REFUSED)) is None


# ── What is paid, and comes back ──

PAID = {REQUESTS: SECOND, ORDERS: 2 * SECOND, "ca/first/names/1": HOUR}


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({"used": "nothing"}, {*PAID}),
        ({"used": "requests"}, {ORDERS, "ca/first/names/1"}),
        ({"used": "an order perhaps"}, {"ca/first/names/1"}),
        ({"used": "an order perhaps", "binding": True}, set()),
        ({"used": "an order"}, set()),
    ],
)
def test_what_the_ca_cannot_have_counted_comes_back(changes: dict[str, Any], keys: set[str]) -> None:
    assert {*refund(facts(paid=PAID, paid_at=NOW, **changes), gave_up=False).taken} == keys


def test_a_certificate_that_no_ca_makes_any_more_comes_back_when_its_order_is_given_up() -> None:
    placed = facts(**PLACED, paid=PAID, paid_at=NOW)
    assert refund(placed, gave_up=False) == NOTHING
    assert refund(placed, gave_up=True) == Payment({"ca/first/names/1": HOUR}, NOW)
    assert refund(facts(**WAITING, paid=PAID, paid_at=NOW), gave_up=True) == NOTHING
    assert refund(replace(placed, binding=True), gave_up=True) == NOTHING
    kept = remembered(placed)
    assert kept is not None
    assert refund(facts(**PLACED, payload=kept), gave_up=True) == Payment({"ca/first/names/1": HOUR}, NOW)


def test_what_the_next_claim_pays_for() -> None:
    given = facts()
    assert next_budgets(given, replace(given.issuance, ref=REF)) == [REQUESTS]
    assert next_budgets(given, given.issuance) == [REQUESTS, REQUESTS, ORDERS]
    assert next_budgets(given, replace(given.issuance, asked_at=NOW)) == [*[REQUESTS] * 5, ORDERS]
    assert next_budgets(facts(budgets=(ORDERS,)), replace(given.issuance, ref=REF)) == []
    assert next_budgets(facts(budgets=(ORDERS,)), given.issuance) == [ORDERS]


# ── All of it ──


def test_the_marks_of_time_are_where_the_tables_above_say() -> None:
    assert emergency_at(a_version(4.5 * DAY)) == NOW
    assert safe_until(a_version(HOUR)) == NOW


@pytest.mark.parametrize("others", [None, (SECOND_CA,)])
@pytest.mark.parametrize("left", [None, 40 * DAY, DAY, -DAY])
@pytest.mark.parametrize("base", [{}, PLACED, WAITING, BINDING, {"binding": True}])
def test_whatever_is_answered_no_attempt_waits_for_more_than_a_day_or_for_nothing(
    base: dict[str, Any], left: timedelta | None, others: tuple[Candidate, ...] | None
) -> None:
    given = facts(**base, left=left, others=others)
    answers: list[RemoteAnswer] = [
        *(later(reason, after=after) for reason in Reason for after in (None, timedelta(0), 99 * DAY)),
        *(refusal(reason, at) for reason in Reason for at in ("open", "find", "place", "look", "finalize")),
        *(OrderFailed(why="", reason=reason) for reason in Reason),
        *(OrderPending(why="", after_s=after) for after in (None, -1.0, 0.0, 1e12)),
    ]
    for answer in answers:
        step = decide(given, answer)
        under_way = (
            isinstance(answer, RemoteUnavailable) and answer.reason == Reason.UNDER_WAY
        )  # a look-up of ours names its time
        if isinstance(step, WaitFor) and not under_way:
            assert timedelta(0) < step.after <= LATEST
