"""The Entrust issuer against a gateway that behaves as Entrust's own clients know it, and wants to see who asks."""

import base64
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from tests.support.fake_cas.bench import IssuerBench, bench_of
from tests.support.fake_cas.entrust import CA, PROFILE, FakeEntrust
from tests.support.issuing import leaf_of

from holdfast.core.reasons import Reason
from holdfast.errors import Refused, TryLater
from holdfast.issuers.base import Failed, Issued, Look, Pending, Placed, Uncertain
from holdfast.pki.chain import parse_bundle

pytestmark = pytest.mark.anyio
NAME = "www.example.com"
PATH = f"/v1/certificate-authorities/{CA}"


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[IssuerBench[FakeEntrust]]:
    async with bench_of(FakeEntrust, tmp_path) as bench:
        yield bench


async def ordered(bench: IssuerBench[FakeEntrust], **more: Any) -> tuple[Placed, Look]:
    request = bench.wish(NAME, **more)
    placed = await bench.issuer().place_order(request)
    return placed, await bench.issuer().order_status(placed.ref, request)


async def refusal(bench: IssuerBench[FakeEntrust], **settings: Any) -> Refused:
    with pytest.raises(Refused) as why:
        await bench.issuer(**settings).place_order(bench.wish(NAME))
    return why.value


# ── What is asked ──


async def test_an_enrollment_says_all_that_the_hosted_gateway_does_not_take_from_a_csr(
    bench: IssuerBench[FakeEntrust],
) -> None:
    request = bench.wish(NAME, "192.0.2.7", not_after=bench.clock.now() + timedelta(days=30))
    placed = await bench.issuer().place_order(request)
    order = bench.ca.orders[0]
    assert base64.b64decode(order.body["csr"]) == request.csr  # DER, without armour
    assert order.body["subjectAltNames"] == [
        {"type": "dNSName", "value": NAME},
        {"type": "iPAddress", "value": "192.0.2.7"},
    ]
    assert order.body["subjectVariables"] == [{"type": "cn", "value": NAME}]
    assert order.body["optionalCertificateRequestDetails"]["validityPeriod"].startswith("PT25919")
    assert order.reference == request.issuance
    await bench.issuer().place_order(bench.wish(NAME))
    unsaid = bench.ca.orders[1].body["optionalCertificateRequestDetails"]["validityPeriod"]
    assert unsaid == f"PT{90 * 86400}S"  # without it the hosted form gives three years
    lasts = leaf_of(await _issued(bench, placed, request))
    assert timedelta(days=29) < lasts.not_valid_after_utc - bench.clock.now() <= timedelta(days=30)


async def _issued(bench: IssuerBench[FakeEntrust], placed: Placed, wish: object) -> Issued:
    look = await bench.issuer().order_status(placed.ref, wish)  # type: ignore[arg-type]
    assert isinstance(look, Issued)
    return look


async def test_the_id_of_the_client_goes_with_each_request(bench: IssuerBench[FakeEntrust]) -> None:
    await bench.issuer(client_id="tenant-7").probe()
    assert {each.headers.get("ca-client-id") for each in bench.ca.requests} == {"tenant-7"}


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
async def test_the_address_may_end_with_the_version_or_a_slash(bench: IssuerBench[FakeEntrust], suffix: str) -> None:
    assert "knows us" in await bench.issuer(base_url=f"{bench.ca.base}{suffix}").probe()
    assert all(each.startswith("GET /v1/certificate-authorities/") for each in bench.ca.lines())


async def test_a_subject_variable_that_the_profile_wants_comes_from_the_settings(
    bench: IssuerBench[FakeEntrust],
) -> None:
    bench.ca.variables = {"cn": True, "costCenter": True, "team": False}
    why = await refusal(bench)
    assert "subject_variables.costCenter" in str(why)
    await bench.issuer(subject_variables={"costCenter": "17"}).place_order(bench.wish(NAME))
    sent = {each["type"]: each["value"] for each in bench.ca.orders[0].body["subjectVariables"]}
    assert sent == {"cn": NAME, "costCenter": "17"}


# ── A certificate decides before any word ──


@pytest.mark.parametrize("word", ["ACCEPTED", "ISSUED", "PENDING", "AWAITING_APPROVAL", "REJECTED", "whatever"])
async def test_a_certificate_in_the_answer_counts_whatever_the_word_is(
    bench: IssuerBench[FakeEntrust], word: str
) -> None:
    bench.ca.word, bench.ca.at_once = word, True
    _, look = await ordered(bench)
    assert isinstance(look, Issued)


@pytest.mark.parametrize("shows_ids", [True, False], ids=["with-id", "without-id"])
@pytest.mark.parametrize("shown", [200, 501], ids=["shown", "not-shown"])
async def test_an_enrollment_that_is_rejected_in_the_answer_is_refused_in_its_words(
    bench: IssuerBench[FakeEntrust], shows_ids: bool, shown: int
) -> None:
    bench.ca.rejects, bench.ca.shows_ids, bench.ca.enrollments_answer = "The quota is used up.", shows_ids, shown
    why = await refusal(bench)
    assert why.reason == Reason.CA_REFUSED
    assert "REJECTED. The quota is used up." in str(why)


async def test_of_a_body_with_a_whole_chain_the_certificate_for_our_key_is_taken(
    bench: IssuerBench[FakeEntrust],
) -> None:
    bench.ca.chain_bodies = True
    for at_once in (True, False):
        bench.ca.at_once = at_once
        _, look = await ordered(bench)
        assert isinstance(look, Issued)


@pytest.mark.parametrize("word", ["ACCEPTED", "Issued", "COMPLETED", "pending", "PROCESSING", "AWAITING_APPROVAL"])
async def test_a_good_word_without_a_certificate_is_pending(bench: IssuerBench[FakeEntrust], word: str) -> None:
    bench.ca.pending_looks, bench.ca.word = 9, word
    _, look = await ordered(bench)
    assert isinstance(look, Pending)
    assert (look.word, look.unknown) == (word, False)


async def test_a_certificate_that_comes_with_the_order_is_kept_with_it(bench: IssuerBench[FakeEntrust]) -> None:
    bench.ca.at_once = True
    _, look = await ordered(bench)
    assert isinstance(look, Issued)
    assert bench.ca.lines(f"GET {PATH}/enrollments") == []


@pytest.mark.parametrize("pem", [False, True], ids=["der", "pem"])
async def test_the_chain_is_ordered_and_has_no_root(bench: IssuerBench[FakeEntrust], pem: bool) -> None:
    bench.ca.pem_bodies = pem
    _, look = await ordered(bench)
    assert isinstance(look, Issued)
    leaf, above = parse_bundle(look.chain_pem)
    assert above == bench.ca.hierarchy.intermediate
    leaf.verify_directly_issued_by(above)


async def test_a_certificate_without_its_chain_is_waited_for_and_not_put_to_use(
    bench: IssuerBench[FakeEntrust],
) -> None:
    bench.ca.shows_chain = False
    _, look = await ordered(bench)
    assert isinstance(look, Pending)
    assert "ca_id" in look.why


async def test_what_cannot_be_a_certificate_is_no_certificate(bench: IssuerBench[FakeEntrust]) -> None:
    request = bench.wish(NAME)
    bench.ca.pending_looks = 9
    placed = await bench.issuer().place_order(request)
    body = '{"enrollment": {"id": "enr-1", "status": "ISSUED", "body": "bm90IGEgY2VydGlmaWNhdGU="}}'
    bench.ca.fail(status=200, body=body)
    with pytest.raises(TryLater) as why:
        await bench.issuer().order_status(placed.ref, request)
    assert why.value.reason == Reason.ANSWER_MALFORMED


# ── A gateway that does not show enrollments ──


@pytest.mark.parametrize("status", [404, 405, 501])
async def test_an_order_that_is_not_shown_is_found_among_the_events(
    bench: IssuerBench[FakeEntrust], status: int
) -> None:
    bench.ca.enrollments_answer, bench.ca.pending_looks = status, 2
    request = bench.wish(NAME)
    placed = await bench.issuer().place_order(request)
    for _ in range(2):
        assert isinstance(await bench.issuer().order_status(placed.ref, request), Pending | Issued)
    look = await bench.issuer().order_status(placed.ref, request)
    assert isinstance(look, Issued)
    assert len(bench.ca.orders) == 1


async def test_a_certificate_is_found_by_the_serial_that_the_order_named(bench: IssuerBench[FakeEntrust]) -> None:
    bench.ca.padded = True
    placed, look = await ordered(bench)
    [order] = bench.ca.orders
    assert order.issued is not None
    ref = {"serial": bench.ca.serial(order.issued), "placed_at": placed.ref["placed_at"]}
    request = bench.wish(NAME)
    found = await bench.issuer().order_status(ref, request)
    assert isinstance(found, Failed)  # for this wish has another key
    assert isinstance(look, Issued)
    assert bench.ca.lines(f"GET {PATH}/certificates/") != []


# ── No second order ──


async def test_an_order_whose_answer_was_lost_is_found_by_our_key_on_whatever_page(
    bench: IssuerBench[FakeEntrust],
) -> None:
    bench.ca.page, bench.ca.at_once = 2, True
    request = bench.wish(NAME, asked_at=bench.clock.now())
    for _ in range(5):
        await bench.issuer().place_order(bench.wish(NAME))
    bench.ca.fail(kind="reset", effect=True, only=f"POST {PATH}/enrollments")
    with pytest.raises(TryLater) as why:
        await bench.issuer().place_order(request)
    assert why.value.sent
    found = await bench.issuer().find_order(request)
    assert isinstance(found, Placed)
    assert isinstance(await bench.issuer().order_status(found.ref, request), Issued)
    assert len(bench.ca.lines(f"GET {PATH}/certificate-events")) == 3
    assert len(bench.ca.orders) == 6


async def test_an_older_certificate_of_a_key_that_is_used_again_is_not_taken_for_the_new_one(
    bench: IssuerBench[FakeEntrust],
) -> None:
    bench.ca.at_once = True
    key = ec.generate_private_key(ec.SECP256R1())
    await bench.issuer().place_order(bench.wish(NAME, key=key))
    bench.clock.ahead = timedelta(days=20)
    bench.ca.orders[0].issued_at = bench.clock.now()  # something else happened to it just now, such as its revocation
    found = await bench.issuer().find_order(bench.wish(NAME, key=key, asked_at=bench.clock.now()))
    assert isinstance(found, Uncertain)


async def test_an_order_that_may_wait_for_a_person_is_uncertain_and_told_by_its_reference(
    bench: IssuerBench[FakeEntrust],
) -> None:
    bench.ca.approval = True
    request = bench.wish(NAME, asked_at=bench.clock.now())
    bench.ca.fail(kind="reset", effect=True, only="POST")
    with pytest.raises(TryLater):
        await bench.issuer().place_order(request)
    found = await bench.issuer().find_order(request)
    assert isinstance(found, Uncertain)
    assert found.for_a_person
    assert request.issuance in found.why
    assert [each.reference for each in bench.ca.orders] == [request.issuance]


async def test_a_profile_that_issues_at_once_leaves_no_doubts(bench: IssuerBench[FakeEntrust]) -> None:
    request = bench.wish(NAME, asked_at=bench.clock.now())
    assert await bench.issuer(approval=False).find_order(request) is None


async def test_what_never_left_is_told_apart_from_what_may_have_arrived(bench: IssuerBench[FakeEntrust]) -> None:
    await bench.issuer().probe()  # so that nothing is left to be asked before the order
    await bench.ca.__aexit__(None, None, None)
    with pytest.raises(TryLater) as why:
        await bench.issuer().place_order(bench.wish(NAME))
    assert not why.value.sent
    await bench.ca.__aenter__()
    bench.memory.clear()
    bench.ca.fail(status=503, only="GET")  # its profile is read first
    with pytest.raises(TryLater) as why:
        await bench.issuer().place_order(bench.wish(NAME))
    assert not why.value.sent
    assert bench.ca.orders == []


async def test_an_order_of_days_is_asked_for_by_its_id_alone(bench: IssuerBench[FakeEntrust]) -> None:
    bench.ca.approval = True
    request = bench.wish(NAME)
    placed = await bench.issuer().place_order(request)
    for _ in range(14):
        bench.clock.ahead += timedelta(days=1)
        look = await bench.issuer().order_status(placed.ref, request)
        assert isinstance(look, Pending)
        assert "days" in look.why
    bench.ca.approve()
    assert isinstance(await bench.issuer().order_status(placed.ref, request), Issued)
    assert len(bench.ca.lines(f"GET {PATH}/enrollments/enr-1")) == 15
    assert len(bench.ca.orders) == 1


async def test_an_order_that_waits_cannot_be_withdrawn_and_one_that_is_over_need_not_be(
    bench: IssuerBench[FakeEntrust],
) -> None:
    bench.ca.approval = True
    placed = await bench.issuer().place_order(bench.wish(NAME))
    with pytest.raises(Refused, match="denied there"):
        await bench.issuer().cancel(placed.ref)
    bench.ca.deny()
    await bench.issuer().cancel(placed.ref)


# ── Revoking ──


@pytest.mark.parametrize("padded", [False, True], ids=["plain", "padded"])
async def test_a_serial_is_spelled_as_the_gateway_spells_it(
    bench: IssuerBench[FakeEntrust], padded: bool
) -> None:  # fmt: skip
    bench.ca.padded, bench.ca.next_serial = padded, 0x0A1B2C  # short: padding shows
    _, look = await ordered(bench)
    assert isinstance(look, Issued)
    await bench.issuer().revoke(look.chain_pem, 1)
    assert [each.revoked for each in bench.ca.orders] == ["keyCompromise"]


async def test_a_rejected_revocation_is_a_refusal_although_its_status_is_good(bench: IssuerBench[FakeEntrust]) -> None:
    _, look = await ordered(bench)
    assert isinstance(look, Issued)
    bench.ca.rejects_actions = True
    with pytest.raises(Refused, match="rejected the revocation"):
        await bench.issuer().revoke(look.chain_pem, 0)


async def test_a_revocation_that_is_taken_and_not_done_yet_is_asked_about_again(
    bench: IssuerBench[FakeEntrust],
) -> None:
    _, look = await ordered(bench)
    assert isinstance(look, Issued)
    bench.ca.action_word = "ACCEPTED"
    with pytest.raises(TryLater, match="not done it yet") as why:
        await bench.issuer().revoke(look.chain_pem, 1)
    assert why.value.reason == Reason.CA_STILL_PENDING
    bench.ca.orders[0].revoked = "keyCompromise"
    await bench.issuer().revoke(look.chain_pem, 1)


async def test_a_gateway_that_refuses_to_revoke_twice_shows_that_it_is_done(bench: IssuerBench[FakeEntrust]) -> None:
    _, look = await ordered(bench)
    assert isinstance(look, Issued)
    bench.ca.orders[0].revoked, bench.ca.rejects_actions = "superseded", True
    await bench.issuer().revoke(look.chain_pem, 1)
    bench.ca.fail(status=409, only="POST", body='{"type": "ErrorResponse", "error": {"code": "cagw-4090"}}')
    await bench.issuer().revoke(look.chain_pem, 1)


# ── What is wrong with a setting ──


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"ca_id": "other~ca"}, "ca_id"),
        ({"profile_id": "nobody"}, "profile_id"),
    ],
    ids=["ca", "profile"],
)
async def test_an_unknown_ca_or_profile_is_refused_before_anything_is_ordered(
    bench: IssuerBench[FakeEntrust], settings: dict[str, str], named: str
) -> None:
    why = await refusal(bench, **settings)
    assert named in str(why)
    assert bench.ca.lines("POST") == []


async def test_an_error_is_one_with_any_status_and_what_is_behind_the_gateway_is_not_shown(
    bench: IssuerBench[FakeEntrust],
) -> None:
    bench.ca.errors_with_200 = True
    why = await refusal(bench)
    assert "cagw-4000" in str(why)
    assert "backend" not in str(why)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"ca_id": None}, "ca_id"),
        ({"profile_id": None}, "profile_id"),
        ({"client_certificate_file": None, "client_key_file": None}, "client_certificate_file"),
        ({"client_certificate_file": "client.pem"}, "client_certificate_file"),
        ({"client_key_file": "keys/client.key"}, "client_key_file"),
        ({"approval": "perhaps"}, "approval"),
        ({"subject_variables": "cn"}, "subject_variables"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_setting_that_cannot_be_is_refused_by_its_name(
    bench: IssuerBench[FakeEntrust], settings: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        bench.issuer(**settings)


async def test_a_profile_of_the_certificate_comes_before_that_of_the_settings(bench: IssuerBench[FakeEntrust]) -> None:
    await bench.issuer(profile_id="nobody").place_order(bench.wish(NAME, profile=PROFILE))
    assert bench.ca.orders[0].body["profileId"] == PROFILE


async def test_events_are_asked_for_since_the_order_with_some_time_for_clocks_that_differ(
    bench: IssuerBench[FakeEntrust],
) -> None:
    await bench.issuer().find_order(bench.wish(NAME, asked_at=datetime(2026, 8, 1, 12, tzinfo=UTC)))
    [asked] = [each for each in bench.ca.requests if each.path.endswith("certificate-events")]
    assert asked.query == {"startDate": "2026-08-01T11:55:00.00Z", "preferredPageSize": "50"}
