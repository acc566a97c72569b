"""The GlobalSign issuer against an account with a policy, tokens that end, and serials before certificates."""

import asyncio
import base64
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from tests.support.fake_cas.bench import IssuerBench, bench_of
from tests.support.fake_cas.globalsign import FakeGlobalSign
from tests.support.issuing import leaf_of

from holdfast.core.reasons import Reason
from holdfast.errors import Refused, TryLater
from holdfast.issuers.base import Failed, Issued, Look, OrderRequest, Pending, Placed, Uncertain
from holdfast.issuers.globalsign import KNOWN_AFTER
from holdfast.pki.chain import parse_bundle

pytestmark = pytest.mark.anyio
NAME = "www.example.com"


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[IssuerBench[FakeGlobalSign]]:
    async with bench_of(FakeGlobalSign, tmp_path) as bench:
        yield bench


async def ordered(bench: IssuerBench[FakeGlobalSign], *names: str, **more: Any) -> tuple[Placed, Look]:
    request = bench.wish(*(names or (NAME,)), **more)
    placed = await bench.issuer().place_order(request)
    return placed, await bench.issuer().order_status(placed.ref, request)


async def refusal(bench: IssuerBench[FakeGlobalSign], *names: str, **more: Any) -> str:
    with pytest.raises(Refused) as why:
        await ordered(bench, *names, **more)
    return str(why.value)


# ── The token ──


async def test_one_token_is_enough_for_many_at_once(bench: IssuerBench[FakeGlobalSign]) -> None:
    await asyncio.gather(*(ordered(bench) for _ in range(8)))
    assert len(bench.ca.lines("POST /login")) == 1
    assert len(bench.ca.lines("GET /validationpolicy")) == 1


async def test_a_token_is_replaced_before_its_ten_minutes_are_over(bench: IssuerBench[FakeGlobalSign]) -> None:
    await bench.issuer().probe()
    bench.clock.ahead += timedelta(minutes=9, seconds=1)
    await bench.issuer().probe()
    assert len(bench.ca.lines("POST /login")) == 2


async def test_a_token_that_is_refused_is_replaced_once_and_the_request_repeated(
    bench: IssuerBench[FakeGlobalSign],
) -> None:
    await bench.issuer().probe()
    bench.ca.tokens.clear()
    _, look = await ordered(bench)
    assert isinstance(look, Issued)
    assert len(bench.ca.lines("POST /login")) == 2
    assert len(bench.ca.orders) == 1


async def test_a_refusal_with_a_new_token_is_final(bench: IssuerBench[FakeGlobalSign]) -> None:
    bench.ca.fail(status=401, only="GET", times=99)
    with pytest.raises(Refused) as why:
        await bench.issuer().probe()
    assert why.value.reason == Reason.ACCOUNT_REFUSED
    assert len(bench.ca.lines("POST /login")) == 2
    assert len(bench.ca.lines("GET")) == 2


async def test_a_wrong_secret_is_told_once_and_not_shown(bench: IssuerBench[FakeGlobalSign]) -> None:
    wrong = {"api_secret": "f" * 40}
    with pytest.raises(Refused) as why:
        await bench.issuer(credentials=wrong).probe()
    assert "api_secret" in str(why.value)
    assert "f" * 40 not in str(why.value)
    assert bench.ca.key not in str(why.value)
    assert bench.ca.lines() == ["POST /login"]


@pytest.mark.parametrize("suffix", ["", "/", "/v2", "/v2/"])
async def test_the_version_is_in_the_address_once_wherever_it_was_given(
    bench: IssuerBench[FakeGlobalSign], suffix: str
) -> None:
    assert "knows us" in await bench.issuer(base_url=f"https://localhost:{bench.ca.port}{suffix}").probe()
    assert {*bench.ca.lines()} == {"POST /login", "GET /validationpolicy", "GET /quotas/issuance"}


# ── What is asked ──


async def test_an_order_is_cut_to_the_policy(bench: IssuerBench[FakeGlobalSign]) -> None:
    subject = {"organization": "Somebody", "email": "a@b.example", "organizational_unit": "Web"}
    request = bench.wish(NAME, "api.example.com")
    await bench.issuer(subject=subject).place_order(request)
    [order] = bench.ca.orders
    assert order.body["subject_dn"] == {"common_name": NAME, "organizational_unit": ["Web"]}
    assert order.body["san"] == {"dns_names": [NAME, "api.example.com"]}
    assert order.body["signature"] == {"hash_algorithm": "SHA-256"}
    assert order.body["validity"]["not_after"] == 0
    assert "extended_key_usages" not in order.body
    assert {each.headers["content-type"] for each in bench.ca.requests if each.method == "POST"} == {
        "application/json;charset=utf-8"
    }


async def test_a_key_is_proved_by_a_signature_of_itself(bench: IssuerBench[FakeGlobalSign]) -> None:
    request = bench.wish(NAME)
    await bench.issuer().place_order(request)
    [order] = bench.ca.orders  # which has verified it
    key = load_pem_public_key(order.body["public_key"].encode())
    assert key == x509.load_der_x509_csr(request.csr).public_key()
    assert base64.b64decode(order.body["public_key_signature"])
    assert not order.body["public_key"].endswith("\n")


async def test_an_account_that_wants_a_request_gets_one_without_a_signature(bench: IssuerBench[FakeGlobalSign]) -> None:
    bench.ca.policy["public_key"]["key_format"] = "PKCS10"
    request = bench.wish(NAME)
    await bench.issuer().place_order(request)
    body = bench.ca.orders[0].body
    assert "public_key_signature" not in body
    assert x509.load_pem_x509_csr(body["public_key"].encode()) == x509.load_der_x509_csr(request.csr)


async def test_an_account_that_wants_no_proof_gets_none(bench: IssuerBench[FakeGlobalSign]) -> None:
    bench.ca.policy["public_key_signature"] = "FORBIDDEN"
    await bench.issuer().place_order(bench.wish(NAME))
    assert "public_key_signature" not in bench.ca.orders[0].body


async def test_an_rsa_key_is_proved_as_well(bench: IssuerBench[FakeGlobalSign]) -> None:
    bench.ca.policy["public_key"] = {"key_type": "RSA", "allowed_lengths": [2048], "key_format": "PKCS8"}
    _, look = await ordered(bench, key=rsa.generate_private_key(65537, 2048))
    assert isinstance(look, Issued)


async def test_uses_are_asked_for_where_the_account_may_choose(bench: IssuerBench[FakeGlobalSign]) -> None:
    bench.ca.policy["extended_key_usages"]["ekus"] |= {"static": False, "maxcount": 2}
    await bench.issuer().place_order(bench.wish(NAME))
    assert bench.ca.orders[0].body["extended_key_usages"] == ["1.3.6.1.5.5.7.3.1"]


async def test_a_lifetime_is_asked_for_within_the_policy(bench: IssuerBench[FakeGlobalSign]) -> None:
    _, look = await ordered(bench, not_after=bench.clock.now() + timedelta(days=7))
    assert timedelta(days=6) < leaf_of(look).not_valid_after_utc - bench.clock.now() <= timedelta(days=7)  # type: ignore[arg-type]
    await ordered(bench, not_after=bench.clock.now() + timedelta(days=700))
    assert bench.ca.orders[-1].body["validity"]["not_after"] == 0  # as long as it may be


@pytest.mark.parametrize(
    ("names", "change", "named"),
    [
        ((NAME,), {"public_key": {"key_type": "RSA", "allowed_lengths": [2048, 4096]}}, "--key"),
        ((NAME,), {"subject_dn": {"state": {"presence": "REQUIRED", "format": ".*"}}}, "subject.state"),
        ((NAME,), {"subject_dn": {"organizational_unit": {"static": False, "mincount": 1, "maxcount": 1}}}, "subject."),
        ((NAME, "a.example.com"), {"san": {"dns_names": {"static": False, "mincount": 1, "maxcount": 1}}}, "allows 1"),
        (("192.0.2.7",), {}, "allows 0 addresses"),
        ((NAME,), {"san": {"dns_names": {"static": True, "list": ["x.example.com"]}}}, "fixed DNS names"),
        ((NAME,), {"validity": {"secondsmin": 10**9}}, "longer lifetime"),
    ],
    ids=["key", "subject", "list", "names", "address", "static", "lifetime"],
)
async def test_what_the_policy_does_not_allow_is_refused_before_it_is_ordered(
    bench: IssuerBench[FakeGlobalSign], names: tuple[str, ...], change: dict[str, Any], named: str
) -> None:
    bench.ca.policy |= change
    more = {"not_after": bench.clock.now() + timedelta(days=1)} if "validity" in change else {}
    assert named in await refusal(bench, *names, **more)
    assert bench.ca.lines("POST /certificates") == []


async def test_a_name_that_was_never_claimed_is_explained(bench: IssuerBench[FakeGlobalSign]) -> None:
    said = await refusal(bench, "shop.example.org", NAME)
    assert "no claim for shop.example.org" in said  # its own words
    assert "covers shop.example.org: claim the domain" in said
    assert NAME not in said
    assert "(id a1b2c3d4)" in said  # its support asks for it


async def test_another_refusal_is_told_in_its_words_alone(bench: IssuerBench[FakeGlobalSign]) -> None:
    bench.ca.bad_names = {NAME}
    said = await refusal(bench)
    assert "blocklist" in said
    assert "claim" not in said


async def test_a_policy_that_was_changed_is_read_again_after_a_refusal(bench: IssuerBench[FakeGlobalSign]) -> None:
    await ordered(bench)
    bench.ca.policy["subject_dn"]["common_name"] = {"presence": "STATIC", "format": "fixed"}
    assert "common_name is STATIC" in await refusal(bench)
    _, look = await ordered(bench)
    assert isinstance(look, Issued)


async def test_an_account_without_quota_holds_all_orders_and_says_so(bench: IssuerBench[FakeGlobalSign]) -> None:
    bench.ca.quota_left = 0
    with pytest.raises(TryLater, match="quota") as why:
        await bench.issuer().place_order(bench.wish(NAME))
    assert why.value.reason == Reason.CA_QUOTA_USED_UP
    assert "0 certificates are left" in await bench.issuer().probe()


# ── Looking ──


@pytest.mark.parametrize("absolute", [False, True], ids=["path", "address"])
async def test_the_order_is_the_last_part_of_its_location(bench: IssuerBench[FakeGlobalSign], absolute: bool) -> None:
    bench.ca.absolute = absolute
    placed, look = await ordered(bench)
    assert placed.ref["certificate"] == f"{bench.ca.orders[0].serial:X}"
    assert isinstance(look, Issued)
    assert leaf_of(look).serial_number == bench.ca.orders[0].serial


async def test_202_is_not_yet_and_the_chain_comes_from_elsewhere(bench: IssuerBench[FakeGlobalSign]) -> None:
    bench.ca.pending_looks = 1
    request = bench.wish(NAME)
    placed = await bench.issuer().place_order(request)
    first, second = [await bench.issuer().order_status(placed.ref, request) for _ in range(2)]
    assert isinstance(first, Pending)
    assert "not ready" in first.why
    assert isinstance(second, Issued)
    assert parse_bundle(second.chain_pem)[1:] == (bench.ca.hierarchy.intermediate,)
    await ordered(bench)
    assert len(bench.ca.lines("GET /trustchain")) == 1


async def test_a_certificate_that_the_ca_refused_to_make_is_over_in_its_words(
    bench: IssuerBench[FakeGlobalSign],
) -> None:
    request = bench.wish(NAME)
    placed = await bench.issuer().place_order(request)
    bench.ca.deny(words="CAA forbids it")
    look = await bench.issuer().order_status(placed.ref, request)
    assert isinstance(look, Failed)
    assert "CAA forbids it" in look.why


async def test_one_that_is_revoked_before_it_was_fetched_is_not_used(bench: IssuerBench[FakeGlobalSign]) -> None:
    request = bench.wish(NAME)
    placed, issued = await ordered(bench)
    assert isinstance(issued, Issued)
    bench.ca.orders[0].revoked = "superseded"
    assert isinstance(await bench.issuer().order_status(placed.ref, request), Failed)


async def test_an_order_that_is_not_known_yet_is_waited_for_and_later_is_lost(
    bench: IssuerBench[FakeGlobalSign],
) -> None:
    bench.ca.unknown_looks = 2
    placed, look = await ordered(bench)
    assert isinstance(look, Pending)
    bench.clock.ahead += KNOWN_AFTER
    lost = await bench.issuer().order_status(placed.ref, bench.wish(NAME))
    assert isinstance(lost, Failed)
    assert lost.reason == Reason.ORDER_EXPIRED


# ── No second order ──


@pytest.mark.parametrize("decimal", [False, True], ids=["hex", "decimal"])
async def test_a_lost_order_is_found_by_its_key_among_what_was_issued(
    bench: IssuerBench[FakeGlobalSign], decimal: bool
) -> None:
    bench.ca.decimal = decimal
    request = bench.wish(NAME, asked_at=bench.clock.now())
    await ordered(bench)
    bench.ca.fail(kind="reset", effect=True, only="POST /certificates")
    with pytest.raises(TryLater) as why:
        await bench.issuer().place_order(request)
    assert why.value.sent
    found = await bench.issuer().find_order(request)
    assert isinstance(found, Placed)
    assert isinstance(await bench.issuer().order_status(found.ref, request), Issued)
    assert len(bench.ca.orders) == 2


async def test_an_order_that_takes_its_time_is_found_when_it_is_listed(bench: IssuerBench[FakeGlobalSign]) -> None:
    bench.ca.approval = True  # it takes its time
    request = bench.wish(NAME, asked_at=bench.clock.now())
    bench.ca.fail(kind="reset", effect=True, only="POST /certificates")
    with pytest.raises(TryLater):
        await bench.issuer().place_order(request)
    assert await bench.issuer().find_order(request) is None
    bench.ca.approval = False
    bench.clock.ahead += timedelta(minutes=4)
    assert isinstance(await bench.issuer().find_order(request), Placed)


async def test_too_much_to_look_through_is_a_doubt(bench: IssuerBench[FakeGlobalSign]) -> None:
    bench.ca.fail(status=200, only="GET /stats", times=99, body='[{"serial_number": "AB"}' + ', {"a": 1}' * 99 + "]")
    found = await bench.issuer().find_order(bench.wish(NAME, asked_at=bench.clock.now()))
    assert isinstance(found, Uncertain)
    assert NAME in found.why


async def test_a_login_that_fails_sends_no_order(bench: IssuerBench[FakeGlobalSign]) -> None:
    bench.ca.fail(status=503, only="POST /login", times=9)
    with pytest.raises(TryLater) as why:
        await bench.issuer().place_order(bench.wish(NAME))
    assert not why.value.sent


async def test_a_location_that_names_no_serial_leaves_the_order_to_be_found(bench: IssuerBench[FakeGlobalSign]) -> None:
    request = bench.wish(NAME, asked_at=bench.clock.now())
    bench.ca.fail(status=201, effect=True, only="POST /certificates")  # without a Location
    with pytest.raises(TryLater) as why:
        await bench.issuer().place_order(request)
    assert (why.value.reason, why.value.sent) == (Reason.ANSWER_MALFORMED, True)
    assert isinstance(await bench.issuer().find_order(request), Placed)


# ── Revoking ──


async def test_a_revocation_says_why_and_one_that_was_done_is_done(bench: IssuerBench[FakeGlobalSign]) -> None:
    _, look = await ordered(bench)
    assert isinstance(look, Issued)
    await bench.issuer().revoke(look.chain_pem, 1)
    assert bench.ca.orders[0].revoked == "keyCompromise"
    await bench.issuer().revoke(look.chain_pem, 4)
    assert bench.ca.orders[0].revoked == "keyCompromise"


async def test_a_conflict_that_is_no_revocation_is_refused(bench: IssuerBench[FakeGlobalSign]) -> None:
    _, look = await ordered(bench)
    assert isinstance(look, Issued)
    bench.ca.fail(status=409, only="PATCH", body='{"description": "still pending"}')
    with pytest.raises(Refused, match="still pending"):
        await bench.issuer().revoke(look.chain_pem, 4)


# ── Giving up ──


async def test_an_order_that_is_being_made_or_issued_cannot_be_withdrawn_and_says_so(
    bench: IssuerBench[FakeGlobalSign],
) -> None:
    bench.ca.pending_looks = 1
    request = bench.wish(NAME)
    placed = await bench.issuer().place_order(request)
    for state in ("is being made", "is issued"):
        with pytest.raises(Refused, match=state):
            await bench.issuer().cancel(placed.ref)
    await bench.issuer().revoke((await looked(bench, placed, request)).chain_pem, 1)
    await bench.issuer().cancel(placed.ref)


async def looked(bench: IssuerBench[FakeGlobalSign], placed: Placed, request: OrderRequest) -> Issued:
    found = await bench.issuer().order_status(placed.ref, request)
    assert isinstance(found, Issued)
    return found


async def test_an_order_that_the_ca_refused_needs_no_withdrawal(bench: IssuerBench[FakeGlobalSign]) -> None:
    bench.ca.pending_looks = 9
    placed = await bench.issuer().place_order(bench.wish(NAME))
    bench.ca.deny()
    await bench.issuer().cancel(placed.ref)
