"""Sectigo Certificate Manager, against a server that does as its reference says: what is not of all CAs."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from tests.support.fake_cas.bench import NAME, IssuerBench, bench_of, looked_up, refused
from tests.support.fake_cas.sectigo import FakeSectigo
from tests.support.issuing import leaf_of
from tests.support.lifecycle import a_house
from tests.support.running import add_issuer
from tests.support.upstream import a_site

from holdfast.core.certificate import CertificateSpec
from holdfast.core.reasons import Reason
from holdfast.engine.issuance import issuer_factory
from holdfast.engine.issuance.issuer_factory import kinds as issuer_kinds
from holdfast.errors import TryLater
from holdfast.issuers import sectigo
from holdfast.issuers.base import Failed, Issued, Pending, Placed, Uncertain
from holdfast.operations.certificates.checks import identifiers_of
from holdfast.pki import csr
from holdfast.secret import Secret
from holdfast.store.database import Database
from holdfast.world import HttpTransport

pytestmark = pytest.mark.anyio


Bench = IssuerBench[FakeSectigo]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with bench_of(FakeSectigo, tmp_path, common_name=True) as bench:
        yield bench


# ── What is requested ──


async def test_a_request_names_everything_and_carries_our_reference_in_its_comments(bench: Bench) -> None:
    request = bench.wish(NAME, "api.holdfast.test")
    placed = await bench.issuer().place_order(request)
    [body] = bench.bodies
    assert (body["orgId"], body["certType"], body["term"]) == (42, 3, 199)
    assert body["subjAltNames"] == f"{NAME},api.holdfast.test"
    assert x509.load_pem_x509_csr(body["csr"].encode()).public_bytes(Encoding.DER) == request.csr
    assert request.issuance in body["comments"]
    assert not {"dcvMode", "externalRequester", "customFields"} & set(body)
    assert placed.ref == {"ssl": bench.ca.orders[0].id, "renew": f"renew-{bench.ca.orders[0].id}"}


async def test_settings_of_the_account_go_into_the_request(bench: Bench) -> None:
    issuer = bench.issuer(
        dcv_mode="CNAME", dcv_email="dns@example.com", external_requester="pki@example.com",
        custom_fields={"Cost centre": "4711"},
    )  # fmt: skip
    await issuer.place_order(bench.wish(NAME, profile="7"))
    [body] = bench.bodies
    assert (body["dcvMode"], body["dcvEmail"]) == ("CNAME", "dns@example.com")
    assert body["externalRequester"] == "pki@example.com"
    assert body["customFields"] == [{"name": "Cost centre", "value": "4711"}]
    assert body["certType"] == 7


async def test_a_shorter_wish_gets_the_longest_term_that_is_not_longer(bench: Bench) -> None:
    now = datetime.now(UTC)
    for days in (100, 20, 800):
        await bench.issuer().place_order(bench.wish(NAME, not_after=now + timedelta(days=days)))
    assert [body["term"] for body in bench.bodies] == [90, 199, 199]


async def test_a_csr_has_the_common_name_that_sectigo_files_it_under(bench: Bench) -> None:
    key, request = ec.generate_private_key(ec.SECP256R1()), bench.wish(NAME)
    assert csr.parse(request.csr).common_name == NAME
    await bench.issuer().place_order(request)
    nameless = await refused(bench.issuer().place_order, replace(request, csr=csr.build([NAME], key)))
    assert "CSR" in str(nameless)
    assert bench.ca.orders[0].common_name == NAME


# ── What is refused ──


async def test_a_probe_finds_a_profile_or_a_term_that_there_is_not(bench: Bench) -> None:
    profile = await refused(bench.issuer(cert_type=99).probe)
    assert (profile.reason, "setting" in str(profile), "cert_type" in str(profile)) == (
        Reason.PROFILE_UNKNOWN, True, True,
    )  # fmt: skip
    term = await refused(bench.issuer(term=730).probe)
    assert "setting term" in str(term)
    assert "365" in str(term)
    organization = await refused(bench.issuer(org_id=1).probe)
    assert "org_id" in str(organization)


async def test_a_request_that_a_setting_spoils_names_it(bench: Bench) -> None:
    request = bench.wish(NAME)
    for setting, value in (("org_id", 1), ("cert_type", 99), ("term", 730)):
        why = await refused(bench.issuer(**{setting: value}).place_order, request)
        assert f"setting {setting}" in str(why)
    bench.ca.organization_status = "Not validated"
    assert "org_id" in str(await refused(bench.issuer().place_order, request))
    bench.ca.organization_status, bench.ca.bad_names = "Validated", {NAME}
    assert (await refused(bench.issuer().place_order, request)).reason == Reason.NAME_REFUSED
    assert (await refused(bench.issuer().place_order, bench.wish(NAME, profile="web"))).reason == Reason.PROFILE_UNKNOWN
    assert bench.ca.orders == []


async def test_a_wrong_login_is_told_by_its_settings_and_the_password_by_nobody(bench: Bench) -> None:
    issuer = bench.issuer(credentials={"password": "not-the-password"})
    why = await refused(issuer.probe)
    assert why.reason == Reason.ACCOUNT_REFUSED
    assert "customer_uri" in str(why)
    assert "not-the-password" not in str(why)
    assert "api-user" in str(why)  # which is no secret, and helps


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("customer_uri", None), ("customer_uri", "a b"), ("login", None), ("org_id", None), ("org_id", "x"),
        ("cert_type", None), ("term", 0), ("term", None), ("api_version", "v3"), ("dcv_mode", "PIGEON"),
        ("dcv_email", "nobody"), ("renewals", "replace"), ("custom_fields", "a=b"), ("password", "in the open"),
    ],
)  # fmt: skip
def test_a_setting_that_cannot_be_used_is_named(setting: str, value: object) -> None:
    good = {"customer_uri": "c", "login": "l", "org_id": 1, "cert_type": 3, "term": 199}
    issuer_factory.check("sectigo", good, ["password"])
    with pytest.raises(ValueError, match=setting) as why:
        issuer_factory.check("sectigo", {**good, setting: value}, ["password"])
    assert "in the open" not in str(why.value)


# ── Issued, and not yet to be had ──


@pytest.mark.parametrize("code", [-183, -103, -109, -1400, -195, -140, -129])
async def test_what_is_issued_and_not_collectable_is_pending(bench: Bench, code: int) -> None:
    bench.ca.collect_lag, bench.ca.wait_code = 2, code
    request = bench.wish(NAME)
    placed = await bench.issuer().place_order(request)
    shown = [await bench.issuer().order_status(placed.ref, request) for _ in range(3)]
    assert [type(each) for each in shown] == [Pending, Pending, Issued]
    assert not any(each.unknown for each in shown if isinstance(each, Pending))


async def test_of_the_400s_of_collecting_only_a_revocation_is_final(bench: Bench) -> None:
    """Any other is about us or about the way: what is issued stays issued, and paid for."""
    bench.ca.collect_lag, bench.ca.wait_code = 9, -126
    request = bench.wish(NAME)
    placed = await bench.issuer().place_order(request)
    assert "-126" in str(await refused(bench.issuer().order_status, placed.ref, request))
    bench.ca.wait_code = -110
    look = await bench.issuer().order_status(placed.ref, request)
    assert isinstance(look, Failed)
    assert "-110" in look.why


@pytest.mark.parametrize("status", [400, 401, 403, 404, 302])
async def test_an_order_whose_certificate_we_may_not_collect_is_not_over(bench: Bench, status: int) -> None:
    request = bench.wish(NAME)
    placed = await bench.issuer().place_order(request)
    bench.ca.fail(status=status, body="<html>no</html>", only="GET /ssl/v1/collect")
    await refused(bench.issuer().order_status, placed.ref, request)
    assert isinstance(await bench.issuer().order_status(placed.ref, request), Issued)


async def test_an_empty_answer_is_not_a_certificate_yet(bench: Bench) -> None:
    bench.ca.fail(status=200, only="GET /ssl/v1/collect")
    request = bench.wish(NAME)
    placed = await bench.issuer().place_order(request)
    bench.ca.faults[0].body = " "
    assert isinstance(await bench.issuer().order_status(placed.ref, request), Pending)
    assert isinstance(await bench.issuer().order_status(placed.ref, request), Issued)


@pytest.mark.parametrize("bundle", ["pem", "p7b", "der"])
async def test_a_certificate_is_understood_in_any_wrapping_and_order(bench: Bench, bundle: str) -> None:
    bench.ca.bundle = bundle
    _, leaf = await bench.issued()
    assert leaf == bench.ca.orders[0].issued


@pytest.mark.parametrize(
    "content", [b"", b"0", b"0\x82\xff\xff", b"-----BEGIN PKCS7-----\nAAAA\n-----END PKCS7-----\n"]
)
def test_what_is_no_certificate_is_none(content: bytes) -> None:
    assert sectigo.certificates(content) == ()


@pytest.mark.parametrize("word", ["Declined", "Rejected", "Invalid", "Revoked", "Expired", "Replaced", "Unmanaged"])
async def test_the_negative_words_end_the_request(bench: Bench, word: str) -> None:
    request = bench.wish(NAME)
    placed = await bench.issuer().place_order(request)
    bench.ca.orders[0].status = word
    look = await bench.issuer().order_status(placed.ref, request)
    assert isinstance(look, Failed)
    assert word in look.why


async def test_ours_is_the_certificate_with_our_key_whatever_else_is_sent(bench: Bench) -> None:
    bench.ca.strangers = True
    _, leaf = await bench.issued()
    assert leaf == bench.ca.orders[0].issued
    bench.ca.wrong_certificate = True
    request = bench.wish(NAME)
    look = await bench.issuer().order_status((await bench.issuer().place_order(request)).ref, request)
    assert isinstance(look, Failed)
    assert (look.reason, look.retryable) == (Reason.WRONG_CERTIFICATE, False)


# ── Finding again ──


async def test_a_request_is_found_among_many_by_its_comments(bench: Bench) -> None:
    request = bench.wish(NAME, asked_at=datetime.now(UTC))
    placed = await bench.issuer().place_order(request)
    for number in range(12):
        await bench.issuer().place_order(replace(bench.wish(NAME), issuance=f"issuance_1{number}"))
    found = await looked_up(bench.issuer, request)
    assert isinstance(found, Placed)
    assert found.ref["ssl"] == placed.ref["ssl"]


async def test_nothing_is_denied_where_not_all_was_looked_at(bench: Bench) -> None:
    for number in range(41):
        await bench.issuer().place_order(replace(bench.wish(NAME), issuance=f"issuance_1{number}"))
    assert isinstance(await looked_up(bench.issuer, bench.wish(NAME, asked_at=datetime.now(UTC))), Uncertain)
    bench.memory.clear()  # it is another search
    later = bench.wish(NAME, asked_at=datetime.now(UTC) + timedelta(days=3))
    assert await bench.issuer().find_order(later) is None  # all of them are older than our try


async def test_pages_of_the_list_are_turned(bench: Bench) -> None:
    request = bench.wish(NAME, asked_at=datetime.now(UTC))
    await bench.issuer().place_order(request)
    bench.ca.placed = [replace(bench.ca.placed[0], id=number, comments="") for number in range(1, 221)]
    bench.ca.placed.append(replace(bench.ca.placed[0], id=900, comments=f"Holdfast {request.issuance}"))
    assert await bench.issuer().find_order(request) == Placed(ref={"ssl": 900})
    assert len(bench.ca.lines("GET /ssl/v1")) == 3


# ── Renewals ──


async def test_a_renewal_is_of_the_last_certificate_and_with_our_key(bench: Bench) -> None:
    issuer = bench.issuer(renewals="renew")
    first, old = await bench.issued()
    request = bench.wish(NAME, previous=first.ref, same_names=True)
    placed = await issuer.place_order(request)
    assert placed.ref["ssl"] != first.ref["ssl"]
    assert f"POST /ssl/v1/renewById/{first.ref['ssl']}" in bench.ca.lines()
    new = await issuer.order_status(placed.ref, request)
    assert isinstance(new, Issued)
    assert leaf_of(new) != old


async def test_a_renewal_whose_answer_was_lost_is_known_by_its_key_or_not_at_all(bench: Bench) -> None:
    issuer = bench.issuer(renewals="renew")
    first, _ = await bench.issued()
    request = bench.wish(NAME, previous=first.ref, same_names=True)
    assert await issuer.find_order(request) is None
    bench.ca.pending_looks = 1
    bench.ca.fail(kind="reset", effect=True, only="POST")
    with pytest.raises(TryLater):
        await issuer.place_order(request)
    assert isinstance(await issuer.find_order(request), Uncertain)  # it shows nothing before it is issued
    await issuer.order_status({"ssl": bench.ca.orders[-1].id}, request)
    found = await issuer.find_order(request)
    assert found == Placed(ref={"ssl": bench.ca.orders[-1].id})
    assert len(bench.ca.orders) == 2


async def test_other_names_than_those_of_the_last_certificate_are_a_request_of_their_own(bench: Bench) -> None:
    issuer = bench.issuer(renewals="renew")
    first, _ = await bench.issued()
    request = bench.wish(NAME, "new.example.com", previous=first.ref, same_names=False)
    placed = await issuer.place_order(request)
    assert bench.ca.orders[-1].names == [NAME, "new.example.com"]
    assert await issuer.find_order(request) == Placed(ref={"ssl": placed.ref["ssl"]})


# ── Taking back ──


async def test_a_revocation_has_a_serial_with_colons_and_a_reason(bench: Bench) -> None:
    _, leaf = await bench.issued()
    await bench.issuer().revoke(leaf.public_bytes(Encoding.DER), 9)
    [asked] = [each for each in bench.ca.requests if "/revoke/" in each.path]
    assert asked.json()["reasonCode"] == 0
    octets = asked.raw.rpartition("/")[2].split(":")  # as the vendor's reference has it: not percent-encoded
    assert all(len(each) == 2 for each in octets)
    assert bench.ca.orders[0].revoked


async def test_a_withdrawal_whose_answer_was_lost_is_done(bench: Bench) -> None:
    bench.ca.approval = True
    placed = await bench.issuer().place_order(bench.wish(NAME))
    bench.ca.fail(kind="reset", effect=True, only="POST /ssl/v1/decline")
    with pytest.raises(TryLater):
        await bench.issuer().cancel(placed.ref)
    await bench.issuer().cancel(placed.ref)
    assert bench.ca.orders[0].status == "Declined"


async def test_what_nobody_approved_is_declined_and_what_is_at_the_ca_is_not(bench: Bench) -> None:
    bench.ca.approval = True
    waiting = await bench.issuer().place_order(bench.wish(NAME))
    await bench.issuer().cancel(waiting.ref)
    assert bench.ca.orders[0].status == "Declined"
    bench.ca.approval = False
    applied = await bench.issuer().place_order(bench.wish(NAME))
    await refused(bench.issuer().cancel, applied.ref)


# ── Through the engine ──


async def test_a_request_is_waited_for_and_collected_by_the_engine_once(db: Database, tmp_path: Path) -> None:
    house, transport = await a_house(db, tmp_path), HttpTransport()
    async with FakeSectigo(tmp_path / "ca") as ca:
        ca.pending_looks, ca.collect_lag = 1, 1
        site = a_site(house, transport)
        await add_issuer(
            house.certificate_context, "sectigo", kind="sectigo", kinds=issuer_kinds(), settings=ca.settings(),
            credentials={"password": Secret(ca.password.encode())}, actor="local:op",
        )  # fmt: skip
        spec = CertificateSpec(name="www", identifiers=identifiers_of([NAME]), issuers=("sectigo",))
        await house.want(spec)
        async with site.working():
            view = await house.settled_soon("www")
        assert view.current is not None
        assert view.current.issuer == "sectigo"
        assert len(ca.orders) == 1
    await transport.close()
