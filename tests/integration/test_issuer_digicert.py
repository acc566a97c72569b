"""DigiCert CertCentral, against a server that does as its documentation says: what the conformance suite leaves out."""

import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from tests.support.engine import PATIENCE
from tests.support.fake_cas.base import Remote
from tests.support.fake_cas.bench import NAME, IssuerBench, bench_of, looked_up, refused
from tests.support.fake_cas.digicert import FakeDigicert
from tests.support.issuing import a_wish, leaf_of
from tests.support.lifecycle import House, a_house
from tests.support.running import add_issuer
from tests.support.upstream import a_site

from holdfast.core.certificate import CertificateSpec
from holdfast.core.reasons import Reason
from holdfast.engine.issuance import issuer_factory
from holdfast.engine.issuance.issuer_factory import kinds as issuer_kinds
from holdfast.errors import Refused, TryLater
from holdfast.issuers import digicert_order
from holdfast.issuers.base import Failed, Issued, Pending, Placed, Uncertain
from holdfast.operations import kinds
from holdfast.operations.certificates.checks import identifiers_of
from holdfast.secret import Secret
from holdfast.store.database import Database
from holdfast.store.tx import Tx
from holdfast.world import HttpTransport

pytestmark = pytest.mark.anyio


Bench = IssuerBench[FakeDigicert]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with bench_of(FakeDigicert, tmp_path) as bench:
        yield bench


# ── What is ordered ──


async def test_an_order_repeats_every_name_and_carries_our_reference(bench: Bench) -> None:
    request = a_wish(NAME, "api.holdfast.test")
    placed = await bench.issuer().place_order(request)
    [body] = bench.bodies
    assert body["certificate"]["common_name"] == NAME
    assert body["certificate"]["dns_names"] == [NAME, "api.holdfast.test"]
    assert x509.load_pem_x509_csr(body["certificate"]["csr"].encode()).public_bytes(Encoding.DER) == request.csr
    assert body["certificate"]["signature_hash"] == "sha256"
    assert body["alternative_order_id"] == request.issuance
    assert (body["organization"], body["order_validity"]) == ({"id": 17}, {"years": 1})
    assert body["skip_approval"] is False
    assert "renewal_of_order_id" not in body
    order = bench.ca.orders[0]
    assert placed.ref == {"order": order.id, "request": order.request}


async def test_settings_of_the_account_go_into_the_order(bench: Bench) -> None:
    issuer = bench.issuer(
        product="ssl_securesite_flex", container_id=5, skip_approval=True, order_years=2, validity_days=90,
        signature_hash="sha384", dcv_method="dns-txt-token", payment_method="balance", ca_cert_id="A1B2",
        custom_fields={"11": "team a"},
    )  # fmt: skip
    await issuer.place_order(a_wish(NAME))
    [body] = bench.bodies
    assert bench.ca.orders[0].product == "ssl_securesite_flex"
    assert (body["container"], body["order_validity"], body["skip_approval"]) == ({"id": 5}, {"years": 2}, True)
    assert (body["dcv_method"], body["payment_method"]) == ("dns-txt-token", "balance")
    assert body["custom_fields"] == [{"metadata_id": 11, "value": "team a"}]
    assert body["certificate"]["cert_validity"] == {"days": 90}
    assert (body["certificate"]["signature_hash"], body["certificate"]["ca_cert_id"]) == ("sha384", "A1B2")


async def test_a_certificate_s_own_profile_is_its_product_and_its_lifetime_a_date(bench: Bench) -> None:
    request = a_wish(NAME, profile="private_ssl_plus", not_after=datetime(2027, 1, 31, 23, 0, tzinfo=UTC))
    await bench.issuer().place_order(request)
    assert bench.ca.orders[0].product == "private_ssl_plus"
    assert bench.bodies[0]["certificate"]["cert_validity"] == {"custom_expiration_date": "2027-01-31"}


async def test_a_name_too_long_for_a_common_name_is_not_made_one(bench: Bench) -> None:
    long = f"{'a' * 60}.holdfast.test"
    await bench.issuer().place_order(a_wish(long, NAME))
    assert bench.bodies[0]["certificate"]["common_name"] == NAME
    why = await refused(bench.issuer().place_order, a_wish(long))
    assert why.reason == Reason.NAME_REFUSED
    assert len(bench.ca.orders) == 1


# ── What is refused ──


async def test_a_probe_finds_a_product_that_there_is_not_and_lists_those_that_there_are(bench: Bench) -> None:
    why = await refused(bench.issuer(product="ssl_plus").probe)
    assert why.reason == Reason.PROFILE_UNKNOWN
    assert "Check the setting product" in str(why)
    assert "ssl_basic" in str(why)


@pytest.mark.parametrize(("organization", "status"), [(18, "active"), (17, "pending")])
async def test_a_probe_finds_an_organization_that_cannot_order(bench: Bench, organization: int, status: str) -> None:
    bench.ca.organization_status = status
    why = await refused(bench.issuer(organization_id=organization).probe)
    assert "setting organization_id" in str(why)
    assert bench.ca.orders == []


async def test_an_order_that_a_setting_spoils_names_it(bench: Bench) -> None:
    unknown = await refused(bench.issuer().place_order, a_wish(NAME, profile="ssl_plus"))
    assert (unknown.reason, "setting product" in str(unknown)) == (Reason.PROFILE_UNKNOWN, True)
    stranger = await refused(bench.issuer(organization_id=99).place_order, a_wish(NAME))
    assert "setting organization_id" in str(stranger)
    bench.ca.organization_status = "pending"
    early = await refused(bench.issuer().place_order, a_wish(NAME))
    assert "has not been validated" in str(early)
    assert "setting organization_id" in str(early)
    bench.ca.organization_status = "active"
    bench.ca.bad_names = {NAME}
    name = await refused(bench.issuer().place_order, a_wish(NAME))
    assert (name.reason, NAME in str(name)) == (Reason.NAME_REFUSED, True)
    assert bench.ca.orders == []


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("product", None), ("product", "SSL Basic"), ("product", "../user"), ("organization_id", "acme"),
        ("organization_id", -1), ("organization_id", True), ("renewals", "always"), ("skip_approval", "yes"),
        ("order_years", 60), ("validity_days", 0), ("signature_hash", "md5"), ("custom_fields", ["a"]),
        ("custom_fields", {"team": "a"}), ("roots", "no certificate"),
        ("roots", "-----BEGIN PRIVATE KEY-----"), ("request_timeout_seconds", 0),
    ],
)  # fmt: skip
def test_a_setting_that_cannot_be_used_is_named(setting: str, value: object) -> None:
    with pytest.raises(ValueError, match=setting):
        issuer_factory.check("digicert", {"product": "ssl_basic", setting: value}, ["api_key"])


def test_the_credential_is_needed_and_no_other_is_taken() -> None:
    issuer_factory.check("digicert", {"product": "ssl_basic"}, ["api_key"])
    with pytest.raises(ValueError, match="api_key"):
        issuer_factory.check("digicert", {"product": "ssl_basic"}, [])
    with pytest.raises(ValueError, match="apikey"):
        issuer_factory.check("digicert", {"product": "ssl_basic"}, ["api_key", "apikey"])


@pytest.mark.parametrize(("allowed", "window"), [(1000, timedelta(minutes=3)), (100, timedelta(seconds=5))])
def test_the_budget_stays_below_what_certcentral_allows_in_any_window(allowed: int, window: timedelta) -> None:
    budget = kinds.limits_by("digicert", {}).requests
    assert budget is not None
    assert budget.burst + window / budget.every <= allowed


async def test_its_own_rate_limit_is_recognized(bench: Bench) -> None:
    bench.ca.rate_limited = True
    issuer = bench.issuer()
    for _ in range(50):
        await issuer.probe()
    with pytest.raises(TryLater, match="limit exceeded") as why:
        await issuer.probe()
    assert (why.value.reason, why.value.after) == (Reason.CA_RATE_LIMITED, None)


# ── What is shown ──


async def test_what_is_issued_in_the_answer_is_collected_without_a_look_at_the_order(bench: Bench) -> None:
    bench.ca.at_once = True
    placed, _ = await bench.issued()
    assert placed.ref["certificate"] == bench.ca.orders[0].current.id
    assert bench.ca.lines("GET /order") == []


async def test_an_order_that_needs_approval_says_whose(bench: Bench) -> None:
    bench.ca.approval = True
    request = a_wish(NAME)
    placed = await bench.issuer().place_order(request)
    look = await bench.issuer().order_status(placed.ref, request)
    assert isinstance(look, Pending)
    assert look.word == "needs_approval"
    assert "administrator" in look.why


async def test_an_administrator_s_key_may_skip_the_approval_and_another_may_not(bench: Bench) -> None:
    bench.ca.approval = True
    issuer = bench.issuer(skip_approval=True)
    await bench.issued(issuer)
    bench.ca.rights = False
    await issuer.place_order(a_wish(NAME))
    assert [each.status for each in bench.ca.orders] == ["issued", "needs_approval"]


async def test_a_certificate_that_is_issued_and_not_there_yet_is_pending(bench: Bench) -> None:
    bench.ca.download_lag = 2
    request = a_wish(NAME)
    placed = await bench.issuer().place_order(request)
    shown = [type(await bench.issuer().order_status(placed.ref, request)) for _ in range(3)]
    assert shown == [Pending, Pending, Issued]


async def test_a_credential_that_an_answer_quotes_is_masked_whatever_its_status(bench: Bench) -> None:
    request = a_wish(NAME)
    placed = await bench.issuer().place_order(request)
    bench.ca.orders[0].status = f"held for {bench.ca.credentials['api_key']}"
    look = await bench.issuer().order_status(placed.ref, request)
    assert isinstance(look, Pending)
    assert (look.word, look.unknown) == ("held for ***", True)
    assert bench.ca.credentials["api_key"] not in look.why


@pytest.mark.parametrize("word", ["rejected", "canceled", "denied", "revoked", "expired"])
async def test_the_negative_words_end_the_order(bench: Bench, word: str) -> None:
    request = a_wish(NAME)
    placed = await bench.issuer().place_order(request)
    bench.ca.orders[0].status = word
    look = await bench.issuer().order_status(placed.ref, request)
    assert isinstance(look, Failed)
    assert word in look.why


def test_approved_is_issued_only_with_a_serial_number() -> None:
    assert not digicert_order.is_issued({"status": "approved", "certificate": {"common_name": NAME}})
    assert not digicert_order.is_issued({"status": "approved", "certificate": {"id": 5}})
    assert digicert_order.is_issued({"status": "approved", "certificate": {"id": 5, "serial_number": "0A"}})


async def test_an_order_that_is_gone_is_over_and_one_under_another_number_is_not_believed(bench: Bench) -> None:
    request = a_wish(NAME)
    placed = await bench.issuer().place_order(request)
    bench.ca.orders[0].id += 1
    gone = await bench.issuer().order_status(placed.ref, request)
    assert isinstance(gone, Failed)
    assert gone.reason == Reason.ORDER_EXPIRED
    bench.ca.fail(status=404, body="<html>where am I</html>")
    assert "setting base_url" in str(await refused(bench.issuer().order_status, placed.ref, request))
    bench.ca.fail(status=200, body='{"id": 7, "status": "issued", "certificate": {"id": 8}}')
    with pytest.raises(TryLater):
        await bench.issuer().order_status(placed.ref, request)


async def test_ours_is_the_certificate_with_our_key_whatever_else_is_sent(bench: Bench) -> None:
    bench.ca.strangers = True
    _, leaf = await bench.issued()
    assert leaf == bench.ca.orders[0].current.issued
    bench.ca.wrong_certificate = True
    request = a_wish(NAME)
    look = await bench.issuer().order_status((await bench.issuer().place_order(request)).ref, request)
    assert isinstance(look, Failed)
    assert (look.reason, look.retryable) == (Reason.WRONG_CERTIFICATE, False)


# ── Finding again ──


async def test_an_order_whose_reference_was_not_kept_is_found_by_its_key(bench: Bench) -> None:
    bench.ca.keeps_references = False
    for _ in range(3):
        await bench.issuer().place_order(replace(a_wish(NAME), issuance="issuance_other"))
    request = a_wish(NAME, asked_at=datetime.now(UTC))
    placed = await bench.issuer().place_order(request)
    assert await bench.issuer().find_order(request) == placed
    assert await bench.issuer().find_order(a_wish(NAME, asked_at=datetime.now(UTC))) is None


async def test_an_order_is_found_by_its_reference_before_anything_is_listed(bench: Bench) -> None:
    request = a_wish(NAME, asked_at=datetime.now(UTC))
    placed = await bench.issuer().place_order(request)
    assert await bench.issuer().find_order(request) == placed
    assert "GET /order/certificate" not in bench.ca.lines()


async def test_an_order_with_the_reference_of_another_try_is_not_ours_though_it_has_our_key(bench: Bench) -> None:
    request = a_wish(NAME, asked_at=datetime.now(UTC))
    await bench.issuer().place_order(replace(request, issuance="issuance_before"))
    assert await bench.issuer().find_order(request) is None


async def test_of_two_orders_with_our_reference_the_older_one_is_ours(bench: Bench) -> None:
    request = a_wish(NAME)
    first = await bench.issuer().place_order(request)
    await bench.issuer().place_order(request)
    assert await bench.issuer().find_order(request) == first


@pytest.mark.parametrize("csrs", ["pem", "bare", "none"])
@pytest.mark.parametrize("shown", [True, False], ids=["reference-shown", "reference-hidden"])
async def test_what_is_filed_under_our_reference_is_ours_however_little_it_shows(
    bench: Bench, csrs: str, shown: bool
) -> None:
    bench.ca.csrs, bench.ca.shows_references, bench.ca.approval = csrs, shown, True
    request = a_wish(NAME, asked_at=datetime.now(UTC))
    assert await bench.issuer().find_order(request) is None
    placed = await bench.issuer().place_order(request)
    assert await bench.issuer().find_order(request) == placed


@pytest.mark.parametrize("csrs", ["pem", "bare"])
async def test_without_a_reference_an_order_is_known_by_the_key_of_its_csr_in_either_form(
    bench: Bench, csrs: str
) -> None:
    bench.ca.csrs, bench.ca.keeps_references, bench.ca.approval = csrs, False, True
    request = a_wish(NAME, asked_at=datetime.now(UTC))
    placed = await bench.issuer().place_order(request)
    assert await bench.issuer().find_order(request) == placed
    assert await bench.issuer().find_order(a_wish(NAME, asked_at=datetime.now(UTC))) is None


async def test_an_order_under_our_reference_with_another_key_is_not_ours(bench: Bench) -> None:
    await bench.issuer().place_order(a_wish(NAME))
    assert await bench.issuer().find_order(a_wish(NAME, asked_at=datetime.now(UTC))) is None


@pytest.mark.parametrize("said", ["error", "empty", "list"])
async def test_that_nothing_has_our_reference_may_be_said_in_three_ways(bench: Bench, said: str) -> None:
    bench.ca.unknown_reference = said
    assert await bench.issuer().find_order(a_wish(NAME, asked_at=datetime.now(UTC))) is None


async def test_an_order_for_the_same_name_that_shows_neither_key_nor_reference_leaves_a_doubt(bench: Bench) -> None:
    bench.ca.csrs, bench.ca.keeps_references, bench.ca.approval = "none", False, True
    request = a_wish(NAME, asked_at=datetime.now(UTC))
    await bench.issuer().place_order(request)
    assert isinstance(await bench.issuer().find_order(request), Uncertain)


async def test_among_too_many_orders_nothing_is_denied(bench: Bench) -> None:
    bench.ca.keeps_references = False
    for _ in range(41):
        await bench.issuer().place_order(replace(a_wish(NAME), issuance="issuance_other"))
    issuer = bench.issuer()
    found = await looked_up(lambda: issuer, a_wish(NAME, asked_at=datetime.now(UTC)))
    assert isinstance(found, Uncertain)
    assert "issuance_1" in found.why


async def test_orders_from_long_before_are_not_looked_at(bench: Bench) -> None:
    for _ in range(3):
        await bench.issuer().place_order(replace(a_wish(NAME), issuance="issuance_other"))
    before = len(bench.ca.requests)
    assert await bench.issuer().find_order(a_wish(NAME, asked_at=datetime.now(UTC) + timedelta(days=9))) is None
    assert len(bench.ca.requests) == before + 2


# ── Renewals ──


async def test_a_renewal_follows_the_order_before(bench: Bench) -> None:
    placed, _ = await bench.issued()
    issuer = bench.issuer(renewals="renewal")
    await issuer.place_order(a_wish(NAME, previous=placed.ref))
    assert bench.bodies[1]["renewal_of_order_id"] == placed.ref["order"]
    await bench.issuer().place_order(a_wish(NAME, previous=placed.ref))
    assert "renewal_of_order_id" not in bench.bodies[2]


async def test_a_reissue_buys_nothing_and_is_never_the_certificate_before(bench: Bench) -> None:
    issuer = bench.issuer(renewals="reissue")
    first, old = await bench.issued(issuer)
    bench.ca.pending_looks = 2
    request = a_wish(NAME, previous=first.ref)
    placed = await issuer.place_order(request)
    assert placed.ref["order"] == first.ref["order"]
    shown = [await issuer.order_status(placed.ref, request) for _ in range(3)]
    assert [type(each) for each in shown] == [Pending, Pending, Issued]
    assert leaf_of(shown[-1]) != old  # type: ignore[arg-type]
    assert len(bench.ca.orders) == 1


async def test_a_reissue_whose_answer_was_lost_is_found_by_its_key(bench: Bench) -> None:
    issuer = bench.issuer(renewals="reissue")
    first, _ = await bench.issued(issuer)
    request = a_wish(NAME, previous=first.ref)
    assert await issuer.find_order(request) is None
    bench.ca.fail(kind="reset", effect=True, only="POST")
    with pytest.raises(TryLater):
        await issuer.place_order(request)
    found = await issuer.find_order(request)
    assert isinstance(found, Placed)
    assert isinstance(await issuer.order_status(found.ref, request), Issued)
    assert len(bench.ca.orders[0].certificates) == 2


async def test_a_reissue_of_somebody_else_s_key_is_not_collected_as_ours(bench: Bench) -> None:
    issuer = bench.issuer(renewals="reissue")
    first, _ = await bench.issued(issuer)
    await bench.issued(issuer, previous=first.ref)
    bench.ca.pending_looks = 1
    request = a_wish(NAME, previous=first.ref)
    placed = await issuer.place_order(request)
    shown = [type(await issuer.order_status(placed.ref, request)) for _ in range(2)]
    assert shown == [Pending, Issued]


async def test_a_reissue_with_the_same_key_is_not_the_certificate_before(bench: Bench) -> None:
    issuer, key = bench.issuer(renewals="reissue"), ec.generate_private_key(ec.SECP256R1())
    first, old = await bench.issued(issuer, key=key)
    _, again = await bench.issued(issuer, key=key, previous=first.ref)
    bench.ca.pending_looks = 1
    later = datetime.now(UTC) + timedelta(days=40)
    request = replace(a_wish(NAME, key=key, previous=first.ref, asked_at=later), issuance="issuance_2")
    assert await issuer.find_order(request) is None
    placed = await issuer.place_order(request)
    assert isinstance(await issuer.order_status(placed.ref, request), Pending)
    new = await issuer.order_status(placed.ref, request)
    assert isinstance(new, Issued)
    assert leaf_of(new) not in (old, again)


async def test_a_reissue_that_somebody_rejects_is_over(bench: Bench) -> None:
    issuer = bench.issuer(renewals="reissue")
    first, _ = await bench.issued(issuer)
    bench.ca.approval = True
    request = a_wish(NAME, previous=first.ref)
    placed = await issuer.place_order(request)
    assert isinstance(await issuer.order_status(placed.ref, request), Pending)
    bench.ca.deny(words="not again")
    look = await issuer.order_status(placed.ref, request)
    assert isinstance(look, Failed)
    assert "not again" in look.why


async def test_what_cannot_be_reissued_any_more_is_ordered_anew(bench: Bench) -> None:
    issuer = bench.issuer(renewals="reissue")
    first, _ = await bench.issued(issuer)
    bench.ca.orders[0].status = "expired"
    request = a_wish(NAME, previous=first.ref)
    placed = await issuer.place_order(request)
    assert bench.bodies[1]["renewal_of_order_id"] == first.ref["order"]
    assert placed.ref["order"] != first.ref["order"]
    assert await issuer.find_order(request) == placed
    assert isinstance(await issuer.order_status(placed.ref, request), Issued)


@pytest.mark.parametrize(
    ("gone", "settings", "reissued"),
    [(120, {}, True), (200, {"validity_days": 199}, True), (300, {}, False), (340, {"validity_days": 20}, True)],
    ids=["plenty", "enough", "too-little", "as-short-as-asked"],
)
async def test_a_reissue_that_the_plan_s_end_would_cut_short_is_an_order_that_follows_it(
    tmp_path: Path, gone: int, settings: dict[str, Any], reissued: bool
) -> None:
    async with bench_of(FakeDigicert, tmp_path) as bench:
        request = bench.wish(NAME)
        first = await bench.issuer().place_order(request)
        await bench.issuer().order_status(first.ref, request)
        bench.clock.ahead = timedelta(days=gone)
        again = replace(bench.wish(NAME, previous=first.ref), issuance="issuance_2")
        placed = await bench.issuer(renewals="reissue", **settings).place_order(again)
        assert (placed.ref["order"] == first.ref["order"]) is reissued
        assert len(bench.ca.orders) == (1 if reissued else 2)
        assert reissued or bench.ca.orders[1].body["renewal_of_order_id"] == first.ref["order"]


async def test_a_reissue_that_waits_for_an_administrator_says_so(bench: Bench) -> None:
    issuer = bench.issuer(renewals="reissue")
    first, _ = await bench.issued(issuer)
    bench.ca.approval = True
    request = a_wish(NAME, previous=first.ref)
    look = await issuer.order_status((await issuer.place_order(request)).ref, request)
    assert isinstance(look, Pending)
    assert look.person


async def test_a_reissue_by_somebody_else_is_not_taken_for_ours(bench: Bench) -> None:
    issuer = bench.issuer(renewals="reissue")
    first, _ = await bench.issued(issuer)
    bench.ca.pending_looks = 9
    await issuer.place_order(a_wish(NAME, previous=first.ref))
    assert isinstance(await issuer.find_order(a_wish(NAME, previous=first.ref)), Uncertain)


# ── Taking back ──


async def test_a_revocation_is_asked_for_with_its_reason_and_without_approval(bench: Bench) -> None:
    _, leaf = await bench.issued()
    await bench.issuer().revoke(leaf.public_bytes(Encoding.DER), 1)
    [asked] = [each.json() for each in bench.ca.requests if each.method == "PUT"]
    assert (asked["revocation_reason"], asked["skip_approval"]) == ("key_compromise", True)
    assert bench.ca.orders[0].current.revoked


async def test_a_revocation_that_somebody_must_approve_is_not_done_and_not_asked_twice(bench: Bench) -> None:
    bench.ca.rights = False
    _, leaf = await bench.issued()
    for _ in range(3):
        with pytest.raises(TryLater, match="approve") as why:
            await bench.issuer().revoke(leaf.public_bytes(Encoding.DER), 1)
        assert why.value.reason == Reason.CA_STILL_PENDING
    assert len(bench.ca.lines("PUT")) == 1
    bench.ca.approve()
    await bench.issuer().revoke(leaf.public_bytes(Encoding.DER), 1)


async def test_what_is_not_wanted_any_more_is_cancelled_or_its_request_rejected(bench: Bench) -> None:
    bench.ca.approval = True
    waiting = await bench.issuer().place_order(a_wish(NAME))
    bench.ca.approval, bench.ca.pending_looks = False, 9
    pending = await bench.issuer().place_order(a_wish(NAME))
    await bench.issuer().cancel(waiting.ref)
    await bench.issuer().cancel(pending.ref)
    assert [each.status for each in bench.ca.orders] == ["rejected", "canceled"]
    await bench.issuer().cancel({"order": 4711})  # it is not there: nothing to give up
    bench.ca.pending_looks = 0
    placed, _ = await bench.issued()
    await refused(bench.issuer().cancel, placed.ref)


async def test_a_revoked_certificate_leaves_its_order_active_and_a_lost_answer_is_no_refusal(bench: Bench) -> None:
    _, leaf = await bench.issued()
    bench.ca.fail(kind="reset", effect=True, only="PUT /certificate")
    with pytest.raises(TryLater):
        await bench.issuer().revoke(leaf.public_bytes(Encoding.DER), 1)
    await bench.issuer().revoke(leaf.public_bytes(Encoding.DER), 1)
    assert (bench.ca.orders[0].status, bench.ca.orders[0].current.revoked) == ("issued", True)
    assert len(bench.ca.lines("PUT")) == 1


async def test_an_older_reissue_that_is_revoked_already_is_told_by_the_refusal_alone(bench: Bench) -> None:
    """An order is found by its newest certificate only, so nothing but the answer says so."""
    issuer = bench.issuer(renewals="reissue")
    first, old = await bench.issued(issuer)
    await bench.issued(issuer, previous=first.ref)
    for _ in range(2):
        await bench.issuer().revoke(old.public_bytes(Encoding.DER), 1)
    assert [each.revoked for each in bench.ca.orders[0].certificates] == [True, False]


async def test_nothing_is_revoked_while_a_reissue_is_pending_and_it_is_asked_again_after_that(bench: Bench) -> None:
    issuer = bench.issuer(renewals="reissue")
    first, old = await bench.issued(issuer)
    bench.ca.approval = True
    request = a_wish(NAME, previous=first.ref)
    placed = await issuer.place_order(request)
    with pytest.raises(TryLater, match="reissue") as why:
        await bench.issuer().revoke(old.public_bytes(Encoding.DER), 1)
    assert why.value.reason == Reason.CA_STILL_PENDING
    await issuer.cancel(placed.ref)
    await bench.issuer().revoke(old.public_bytes(Encoding.DER), 1)
    assert bench.ca.orders[0].certificates[0].revoked


async def test_a_revocation_that_somebody_rejects_is_over_and_not_asked_for_by_itself(bench: Bench) -> None:
    bench.ca.rights = False
    _, leaf = await bench.issued()
    issuer = bench.issuer()
    with pytest.raises(TryLater):
        await issuer.revoke(leaf.public_bytes(Encoding.DER), 1)
    bench.ca.deny()
    with pytest.raises(Refused, match="rejected request"):
        await issuer.revoke(leaf.public_bytes(Encoding.DER), 1)
    assert len(bench.ca.lines("PUT")) == 1


@pytest.mark.parametrize("waits", [True, False], ids=["request", "order"])
async def test_a_withdrawal_whose_answer_was_lost_is_done(bench: Bench, waits: bool) -> None:
    bench.ca.approval, bench.ca.pending_looks = waits, 9
    placed = await bench.issuer().place_order(a_wish(NAME))
    bench.ca.fail(kind="reset", effect=True, only="PUT")
    with pytest.raises(TryLater):
        await bench.issuer().cancel(placed.ref)
    await bench.issuer().cancel(placed.ref)
    assert bench.ca.orders[0].status == ("rejected" if waits else "canceled")


async def test_a_reissue_that_is_done_cannot_be_withdrawn_and_its_order_is_left_alone(bench: Bench) -> None:
    issuer = bench.issuer(renewals="reissue")
    first, _ = await bench.issued(issuer)
    second, _ = await bench.issued(issuer, previous=first.ref)
    await refused(issuer.cancel, second.ref)
    assert not bench.ca.lines("PUT")


@pytest.mark.parametrize("word", ["Issued", "ISSUED"])
async def test_words_are_read_without_their_case(bench: Bench, word: str) -> None:
    bench.ca.word = word
    _, leaf = await bench.issued()
    assert leaf.serial_number == bench.ca.orders[0].current.issued.serial_number  # type: ignore[union-attr]


# ── Through the engine ──


async def asked_for(house: House, ca: FakeDigicert, *, key: str = "", **settings: Any) -> None:
    """One certificate, from this CA."""
    await add_issuer(
        house.certificate_context, "digicert", kind="digicert", kinds=issuer_kinds(), settings=ca.settings(**settings),
        credentials={"api_key": Secret((key or ca.key).encode())}, actor="local:op",
    )  # fmt: skip
    spec = CertificateSpec(name="www", identifiers=identifiers_of([NAME]), issuers=("digicert",))
    await house.want(spec)


async def test_an_order_is_waited_for_and_collected_by_the_engine_once(db: Database, tmp_path: Path) -> None:
    house, transport = await a_house(db, tmp_path), HttpTransport()
    async with FakeDigicert(tmp_path / "ca") as ca:
        ca.approval, ca.pending_looks = True, 1
        await asked_for(house, ca)
        async with a_site(house, transport).working():
            await house.until(lambda: ca.lines("GET /order/certificate/1"))
            assert (await house.view("www")).issuance is not None
            ca.approve()
            view = await house.settled_soon("www")
        assert view.current is not None
        assert view.current.issuer == "digicert"
        assert len(ca.orders) == 1
    await transport.close()


async def test_a_renewal_through_the_engine_reissues_the_order_that_it_has(db: Database, tmp_path: Path) -> None:
    house, transport = await a_house(db, tmp_path), HttpTransport()
    async with FakeDigicert(tmp_path / "ca") as ca:
        await asked_for(house, ca, renewals="reissue")
        async with a_site(house, transport).working():
            first = await house.settled_soon("www")
            await house.renew("www", actor="local:alice")
            second = await house.settled_soon("www")
        assert first.current is not None
        assert second.current is not None
        assert first.current.serial != second.current.serial
        assert len(ca.orders) == 1
        assert len(ca.orders[0].certificates) == 2
    await transport.close()


async def test_a_key_that_is_refused_is_nowhere_to_be_read(db: Database, tmp_path: Path) -> None:
    house, transport, wrong = await a_house(db, tmp_path), HttpTransport(), "WRONG-0815-digicert-key"
    async with FakeDigicert(tmp_path / "ca") as ca:
        await asked_for(house, ca, key=wrong)
        async with a_site(house, transport).working():
            await house.settled("www")
        assert ca.requests[0].headers["x-dc-devkey"] == wrong
    tables = ("jobs", "job_history", "audit", "events", "issuers", "issuances", "certificates", "secrets")
    kept = [str(dict(row)) for name in tables for row in await db.read(partial(_all_rows, name=name))]
    assert any("api_key" in row and Reason.ACCOUNT_REFUSED in row for row in kept)
    assert not any(wrong in row for row in [*kept, *map(str, house.watch.log.lines)])
    await transport.close()


def _all_rows(tx: Tx, name: str) -> Sequence[Any]:
    return tx.rows(f"SELECT * FROM {name}")


# ── The fake as a process ──


def test_the_server_runs_on_its_own_and_does_as_it_is_told(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.support.fake_cas.digicert", "--folder", str(tmp_path)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stdout is not None
        ready, base = process.stdout.readline().split()
        assert ready == "READY"
        remote = Remote(base, tmp_path)
        remote.do("set", approval=True)
        remote.do("fail", status=503, times=1)
        assert remote.do("show") == {"requests": [], "orders": []}
        process.terminate()
        assert process.wait(PATIENCE) == 0
