"""Every row of the table by which answers of CAs are judged, for every CA that is judged by it."""

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from holdfast.core.reasons import Reason
from holdfast.errors import Refused, TryLater
from holdfast.issuers import digicert_order, entrust, globalsign, sectigo, triage, vault
from holdfast.issuers.base import Failed, Pending
from holdfast.issuers.triage import AnswerFinding, AnswerMeaning, AnswerVerdict, Dialect
from holdfast.ports import Response

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
DIALECTS = {
    each.ca: each
    for each in (
        digicert_order.DIALECT,
        sectigo.DIALECT,
        entrust.DIALECT,
        globalsign.DIALECT,
        vault.DIALECT,
    )
}
every_ca = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)


def answer(status: int, body: Any = b"", **headers: str) -> Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Response(status=status, headers={k.replace("_", "-"): v for k, v in headers.items()}, body=content)


def judged(dialect: Dialect, response: Response) -> AnswerFinding:
    found = triage.judge(dialect, response, what="an order", now=NOW)
    assert found is not None
    return found


# ── By status ──


@every_ca
def test_a_good_status_is_no_finding(dialect: Dialect) -> None:
    found = [triage.judge(dialect, answer(status), what="an order", now=NOW) for status in (200, 201, 202, 204)]
    assert found == [None] * 4


STATUSES = {
    **dict.fromkeys((408, 425, 500, 502, 503, 504, 507, 599), (AnswerVerdict.TRANSIENT, Reason.CA_DOWN)),
    429: (AnswerVerdict.TRANSIENT, Reason.CA_RATE_LIMITED),
    **dict.fromkeys((401, 403), (AnswerVerdict.FAILED, Reason.ACCOUNT_REFUSED)),
    **dict.fromkeys((400, 409, 411, 413, 415, 418, 422, 451), (AnswerVerdict.FAILED, Reason.CA_REFUSED)),
    **dict.fromkeys((404, 405, 410), (AnswerVerdict.FAILED, Reason.NOT_THE_CA)),
    **dict.fromkeys((301, 302, 303, 307, 308), (AnswerVerdict.FAILED, Reason.DIRECTORY_UNSAFE)),
    **dict.fromkeys((100, 0, 199), (AnswerVerdict.BROKEN, Reason.ANSWER_MALFORMED)),
}


@every_ca
@pytest.mark.parametrize("status", STATUSES)
def test_a_status_means_the_same_at_every_ca_whatever_the_body(dialect: Dialect, status: int) -> None:
    meant = OWN.get((dialect.ca, status), STATUSES[status])
    for body in (b"", b"<html>proxy</html>", b"[1, 2", b"\xff\xfe", b"[" * 5000):
        found = judged(dialect, answer(status, body))
        assert (found.verdict, found.reason) == meant, body[:20]


OWN = {
    ("DigiCert", 406): (AnswerVerdict.TRANSIENT, Reason.CA_DOWN),
    ("Entrust", 501): (AnswerVerdict.FAILED, Reason.CA_REFUSED),
    ("GlobalSign", 402): (AnswerVerdict.TRANSIENT, Reason.CA_QUOTA_USED_UP),
    ("Vault", 403): (AnswerVerdict.FAILED, Reason.ACCOUNT_REFUSED),
    ("Vault", 404): (AnswerVerdict.FAILED, Reason.PROFILE_UNKNOWN),
    ("Vault", 412): (AnswerVerdict.TRANSIENT, Reason.CA_DOWN),
    ("Vault", 472): (AnswerVerdict.TRANSIENT, Reason.CA_DOWN),
    ("Vault", 473): (AnswerVerdict.TRANSIENT, Reason.CA_DOWN),
}


def test_where_a_ca_differs_from_the_table_it_is_written_here() -> None:
    assert {(ca, status) for ca, each in DIALECTS.items() for status in each.statuses} == set(OWN)
    for (ca, status), meant in OWN.items():
        found = judged(DIALECTS[ca], answer(status))
        assert (found.verdict, found.reason) == meant, (ca, status)


@every_ca
def test_verdicts_become_what_the_engine_knows(dialect: Dialect) -> None:
    assert isinstance(judged(dialect, answer(503)).error(), TryLater)
    assert isinstance(judged(dialect, answer(400)).error(), Refused)
    broken = triage.broken(dialect, "an order")
    assert (broken.verdict, type(broken.error()), broken.reason) == (
        AnswerVerdict.BROKEN, TryLater, Reason.ANSWER_MALFORMED,
    )  # fmt: skip
    with pytest.raises(TryLater):
        broken.look()
    with pytest.raises(TryLater):
        judged(dialect, answer(502)).look()


@every_ca
def test_too_many_requests_did_not_get_anywhere(dialect: Dialect) -> None:
    limited, down = judged(dialect, answer(429)).error(), judged(dialect, answer(503)).error()
    assert isinstance(limited, TryLater)
    assert isinstance(down, TryLater)
    assert (limited.sent, down.sent) == (False, True)


ASKED = {
    "30": 30,
    "0": 5,
    "-60": 5,
    "99999999999999999999": 86400,
    format_datetime(NOW + timedelta(seconds=90), usegmt=True): 90,
    format_datetime(NOW - timedelta(days=90), usegmt=True): 5,
    format_datetime(NOW + timedelta(days=90), usegmt=True): 86400,
    "tomorrow": None,
    "": None,
    "3" * 5000: None,
}


@every_ca
@pytest.mark.parametrize("status", [408, 425, 429, 500, 503])
def test_retry_after_is_honoured_and_clamped(dialect: Dialect, status: int) -> None:
    for header, seconds in ASKED.items():
        found = judged(dialect, answer(status, retry_after=header))
        assert found.after == (None if seconds is None else timedelta(seconds=seconds)), header[:40]


@pytest.mark.parametrize("ca", ["DigiCert", "Sectigo", "Entrust", "GlobalSign"])
@pytest.mark.parametrize("status", [401, 403])
def test_who_is_not_let_in_learns_which_setting_to_look_at(ca: str, status: int) -> None:
    found = judged(DIALECTS[ca], answer(status))
    assert any(f"setting {name}" in found.why for name in DIALECTS[ca].blame.values())


@every_ca
def test_a_redirect_names_where_it_leads_and_the_setting(dialect: Dialect) -> None:
    found = judged(dialect, answer(302, location="https://evil.test/\x1b[2J\r\n" + "x" * 900))
    assert "https://evil.test/" in found.why
    assert dialect.base_setting in found.why
    assert "\x1b" not in found.why
    assert len(found.why) < 500


# ── By word ──

WORDS = {
    "DigiCert": {
        "pending": "pending", "processing": "pending", "needs_approval": "pending", "waiting_pickup": "pending",
        "reissue_pending": "pending", "approved": "pending", "needs_csr": "pending", "issued": "issued",
        "rejected": "failed", "canceled": "failed", "denied": "failed", "revoked": "failed", "expired": "failed",
    },
    "Sectigo": {
        "Init": "pending", "Requested": "pending", "SAApproved": "pending", "SA Approved": "pending",
        "Approved": "pending", "Applied": "pending", "Enrolled - Pending Download": "pending",
        "Awaiting Approval": "pending", "Issued": "issued", "Declined": "failed", "Rejected": "failed",
        "Invalid": "failed", "Revoked": "failed", "Expired": "failed", "Replaced": "failed", "Unmanaged": "failed",
    },
    "Entrust": {
        "PENDING": "pending", "PROCESSING": "pending", "AWAITING_APPROVAL": "pending", "ACCEPTED": "pending",
        "ISSUED": "pending", "COMPLETED": "pending", "normal": "pending", "REJECTED": "failed", "DENIED": "failed",
        "DECLINED": "failed", "FAILED": "failed", "CANCELED": "failed", "revoked": "failed", "expired": "failed",
    },
    "GlobalSign": {"ISSUED": "issued", "REVOKED": "failed"},
}  # fmt: skip


@pytest.mark.parametrize(("ca", "word"), [(ca, word) for ca, listed in WORDS.items() for word in listed])
def test_every_word_of_every_ca_means_what_its_vendor_says(ca: str, word: str) -> None:
    for spelled in (word, word.upper(), word.lower(), f"  {word} "):
        found = triage.by_word(DIALECTS[ca], spelled, what="an order")
        assert (found.verdict, found.unknown, found.word) == (WORDS[ca][word], False, spelled.strip())


@pytest.mark.parametrize("ca", WORDS)
def test_there_is_no_word_in_a_table_that_is_not_checked_here(ca: str) -> None:
    listed = {triage.folded(word) for word in WORDS[ca]}
    spare = {"cancelled", "pending", "held", "suspended"}  # other spellings, and what was seen at other CAs
    assert set(DIALECTS[ca].words) - listed <= spare


@every_ca
def test_a_word_that_nobody_knows_is_neither_issued_nor_failed(dialect: Dialect) -> None:
    for word in ("gone_fishing", "issued!", "", None, 7, ["issued"], {"issued": 1}, "x" * 10000):
        look = triage.by_word(dialect, word, what="an order", after=timedelta(seconds=9)).look()
        assert isinstance(look, Pending), word
        assert (look.unknown, look.after_s) == (True, 9)
        assert len(look.why) < 300


@pytest.mark.parametrize(("ca", "word"), [("DigiCert", "rejected"), ("Sectigo", "Declined"), ("Entrust", "DENIED")])
def test_an_order_that_is_over_says_so_in_the_ca_s_words(ca: str, word: str) -> None:
    look = triage.by_word(DIALECTS[ca], word, what="our order", said="no budget\nthis year\x07").look()
    assert isinstance(look, Failed)
    assert word in look.why
    assert "no budget this year" in look.why
    assert not look.retryable


# ── By code ──

CODES = {
    ("DigiCert", "request_limit_exceeded"): ("transient", Reason.CA_RATE_LIMITED),
    ("DigiCert", "access_denied|invalid_approver"): ("failed", Reason.ACCOUNT_REFUSED),
    ("DigiCert", "invalid_organization"): ("failed", Reason.CA_REFUSED),
    ("DigiCert", "invalid_product_name_id"): ("failed", Reason.PROFILE_UNKNOWN),
    ("DigiCert", "invalid_dns_name"): ("failed", Reason.NAME_REFUSED),
    **{("Sectigo", code): ("pending", Reason.CA_STILL_PENDING) for code in (-183, -103, -109, -1400)},
    **{("Sectigo", code): ("transient", Reason.CA_DOWN) for code in (-2, -14, -129, -140, -195)},
    **{("Sectigo", code): ("failed", Reason.ACCOUNT_REFUSED) for code in (-16, -970, -3, -25, -37)},
    **{("Sectigo", code): ("failed", Reason.PROFILE_UNKNOWN) for code in (-39, -111)},
    **{("Sectigo", code): ("failed", Reason.CA_REFUSED) for code in (-10, -36, -107, -110, -138, -170, -1023, -1601)},
    ("Sectigo", -1010): ("failed", Reason.NAME_REFUSED),
    ("Sectigo", -4711): ("failed", Reason.CA_REFUSED),
}


@pytest.mark.parametrize(("ca", "code"), CODES)
def test_an_error_code_tells_more_than_http_400(ca: str, code: str | int) -> None:
    said = {"code": code, "message": "as it says", "description": "as it says"}
    found = judged(DIALECTS[ca], answer(400, {**said, "errors": [said]}))
    assert (found.verdict.value, found.reason) == CODES[ca, code]
    assert "as it says" in found.why


SETTINGS = {
    ("DigiCert", "organization_not_validated"): "organization_id",
    ("DigiCert", "invalid_product"): "product",
    ("DigiCert", "invalid_container"): "container_id",
    ("Sectigo", -36): "term",
    ("Sectigo", -111): "cert_type",
    ("Sectigo", -1023): "org_id",
    ("Sectigo", -1601): "custom_fields",
    ("Sectigo", -107): "dcv_mode",
    ("Sectigo", -16): "customer_uri",
}


@pytest.mark.parametrize(("ca", "code"), SETTINGS)
def test_a_refusal_that_a_setting_is_to_blame_for_names_it(ca: str, code: str | int) -> None:
    said = {"code": code, "message": "no", "description": "no"}
    assert SETTINGS[ca, code] in judged(DIALECTS[ca], answer(400, {**said, "errors": [said]})).why


def test_a_known_code_does_not_make_a_good_answer_bad() -> None:
    assert triage.judge(sectigo.DIALECT, answer(200, {"code": -183}), what="it", now=NOW) is None


def test_errors_of_digicert_are_read_as_a_list_and_as_an_object() -> None:
    said = {"code": "not_found|route", "message": "nothing here"}
    for errors in ([said], said):
        problem = triage.read_problem(digicert_order.DIALECT, answer(404, {"errors": errors}))
        assert problem is not None
        assert problem.codes == ("not_found|route", "not_found", "route")
        assert problem.said == "nothing here"


ODD = (
    b"null", b"7", b"[]", b"{}", b'{"errors": 7}', b'{"errors": [7, null]}', b'{"code": {}}', b'{"error": []}',
    b'{"description": 5}', b'{"errors": [{"code": null, "message": {"a": 1}}]}', b'{"error": {"code": [1]}}',
)  # fmt: skip


@every_ca
def test_a_refusal_in_any_shape_is_still_a_refusal(dialect: Dialect) -> None:
    for body in ODD:
        assert judged(dialect, answer(400, body)).verdict is AnswerVerdict.FAILED, body


@every_ca
def test_what_a_ca_says_is_made_fit_to_be_shown(dialect: Dialect) -> None:
    rude = "\x1b[31mred\r\nnext line " + "x" * 5000
    said = {"code": "odd", "message": rude, "description": rude}
    found = judged(dialect, answer(400, {**said, "errors": [said, rude], "error": said}))
    assert found.why.isprintable()
    assert len(found.why) < 1200


def test_a_meaning_without_a_reason_has_that_of_its_verdict() -> None:
    dialect = Dialect(
        ca="Any", words={"a": AnswerMeaning(AnswerVerdict.BROKEN), "b": AnswerMeaning(AnswerVerdict.TRANSIENT)}
    )
    assert triage.by_word(dialect, "A", what="it").reason is Reason.ANSWER_MALFORMED
    assert triage.by_word(dialect, "B", what="it").reason is Reason.CA_DOWN
