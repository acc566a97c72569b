"""The ACME issuer against a CA that lies, floods, drips and forgets: each gets its reason, and nobody else is asked."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from tests.support.challenge_server import Trap
from tests.support.hostile_ca import NAME, TOKEN, HostileCa, flood
from tests.support.http_server import drip, hang
from tests.support.issuing import a_wish
from tests.support.pki import a_leaf
from tests.support.reaper import PATIENCE

from holdfast.core.reasons import MEANINGS, Reason
from holdfast.errors import Refused, TryLater
from holdfast.issuers import chains
from holdfast.issuers.acme import account as acme_account
from holdfast.issuers.acme.issuer import AcmeIssuer
from holdfast.issuers.acme.reading import ResponseContext
from holdfast.issuers.acme.wire import BAD_NONCES, CaAccount, Memory, Wire
from holdfast.issuers.base import ChallengeResponse, Failed, Issued, NeedsProof, Pending, Ready
from holdfast.world import HttpTransport, SystemClock

pytestmark = pytest.mark.anyio

KEY = ec.generate_private_key(ec.SECP256R1())
WISH = a_wish(NAME, key=KEY)


def pem_of(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


@dataclass
class HostileCaClient:
    ca: HostileCa
    trap: Trap  # where the CA would like to send us
    transport: HttpTransport

    def wire(self, place: ResponseContext | None = None) -> Wire:
        return Wire(self.transport, SystemClock(), Memory(), place or self.ca.place)

    @property
    def account(self) -> CaAccount:
        return CaAccount(self.ca.url("/account/1"), KEY)

    @property
    def issuer(self) -> AcmeIssuer:
        return AcmeIssuer(self.wire(), self.account)

    @property
    def ref(self) -> dict[str, str]:
        return {
            "order": self.ca.url("/order/1"),
            "finalize": self.ca.url("/order/1/finalize"),
            "account": self.account.url,
        }

    @property
    def elsewhere(self) -> list[str]:
        """Addresses that are not on the CA's own host, however they may look."""
        at = f"127.0.0.1:{self.trap.port}"
        own = f"localhost:{self.ca.port}"
        return [
            f"https://{at}/x",
            f"http://{own}/x",
            f"https://localhost:{self.trap.port}/x",
            f"https://{own}@{at}/x",
            f"https://{at}\\@{own}/x",
            f"https://{at}#@{own}/x",
            f"https://{own}.evil.test/x",
            f"//{own}/x",
            "/x",
            f"https://{own}/x y",
            f"https://{own}/x\r\nHost: evil",
            f"HTTPS://{own}/x",
            "https://[::1/x",
            "",
        ]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[HostileCaClient]:
    transport = HttpTransport()
    async with HostileCa(tmp_path) as ca, Trap() as trap:
        yield HostileCaClient(ca, trap, transport)
        assert trap.connections == 0  # in no test of this file
    await transport.close()


async def outcome(call: Callable[..., Awaitable[Any]], *arguments: Any) -> tuple[str, type[Exception]]:
    """How a step ends, within a few seconds whatever happens."""
    async with asyncio.timeout(PATIENCE):
        with pytest.raises((TryLater, Refused)) as why:
            await call(*arguments)
        return why.value.reason, type(why.value)


# ── when it behaves ──


async def test_a_ca_that_behaves_is_understood(bench: HostileCaClient) -> None:
    wire = bench.wire()
    assert await acme_account.ensure_account(wire, KEY, terms_agreed=True) == bench.account
    placed = await bench.issuer.place_order(WISH)
    assert placed.ref == bench.ref
    look = await bench.issuer.order_status(placed.ref, WISH)
    assert isinstance(look, NeedsProof)
    [[response]] = look.choices
    assert (response.type, response.identifier, response.token) == ("http-01", WISH.identifiers[0], TOKEN)
    await bench.issuer.answer(placed.ref, response)
    bench.ca.say("/order/1", bench.ca.order(status="ready"))
    assert await bench.issuer.order_status(placed.ref, WISH) == Ready()
    await bench.issuer.finalize(placed.ref, WISH)
    bench.ca.say("/order/1", bench.ca.order(status="processing"), Retry_After="7")
    pending = await bench.issuer.order_status(placed.ref, WISH)
    assert isinstance(pending, Pending)
    assert pending.after_s == 7
    bench.ca.say("/order/1", bench.ca.order(status="valid", certificate=bench.ca.url("/cert/1")))
    chain = pem_of(a_leaf())
    bench.ca.say("/cert/1", chain)
    assert await bench.issuer.order_status(placed.ref, WISH) == Issued(chain_pem=chain)


async def test_a_server_that_its_roots_do_not_vouch_for_is_not_talked_to(bench: HostileCaClient) -> None:
    wire = bench.wire(ResponseContext(directory=bench.ca.url("/dir")))
    assert await outcome(wire.directory) == (Reason.CA_TLS_FAILED, TryLater)
    with pytest.raises(TryLater, match="Check the setting roots"):
        await wire.directory()
    assert MEANINGS[Reason.CA_TLS_FAILED].acts_next == "operator"
    assert bench.ca.asked["/dir"] == 0


# ── addresses ──


@pytest.mark.parametrize("name", ["newNonce", "newAccount", "newOrder", "revokeCert", "keyChange", "renewalInfo"])
async def test_a_directory_that_leads_elsewhere_is_not_used(bench: HostileCaClient, name: str) -> None:
    for url in bench.elsewhere:
        bench.ca.say("/dir", bench.ca.directory(**{name: url}))
        assert await outcome(bench.issuer.place_order, WISH) == (Reason.DIRECTORY_UNSAFE, Refused), url
    assert set(bench.ca.asked) == {"/dir"}


async def test_a_host_that_the_operator_has_named_is_one_of_the_ca_s(bench: HostileCaClient) -> None:
    other = f"https://127.0.0.1:{bench.trap.port}/ari"
    bench.ca.say("/dir", bench.ca.directory(renewalInfo=other))
    place = ResponseContext(
        directory=bench.ca.url("/dir"), roots=bench.ca.place.roots, hosts=(f"127.0.0.1:{bench.trap.port}",)
    )
    assert (await bench.wire(place).directory()).renewal_info == other


async def test_no_address_of_an_order_leads_elsewhere(bench: HostileCaClient) -> None:
    for url in bench.elsewhere:
        bench.ca.say("/order/1", bench.ca.order(authorizations=[url]))
        assert await outcome(bench.issuer.order_status, bench.ref, WISH) == (Reason.DIRECTORY_UNSAFE, Refused), url
        bench.ca.say("/order/1", bench.ca.order(status="valid", certificate=url))
        assert await outcome(bench.issuer.order_status, bench.ref, WISH) == (Reason.DIRECTORY_UNSAFE, Refused), url
        bench.ca.say("/order", bench.ca.order(finalize=url), status=201, Location=bench.ca.url("/order/1"))
        assert await outcome(bench.issuer.place_order, WISH) == (Reason.DIRECTORY_UNSAFE, Refused), url
    bench.ca.say("/order/1", bench.ca.order())
    for url in bench.elsewhere:
        bench.ca.say("/authz/1", bench.ca.authz(challenges=[bench.ca.challenge(url=url)]))
        assert await outcome(bench.issuer.order_status, bench.ref, WISH) == (Reason.DIRECTORY_UNSAFE, Refused), url


async def test_no_header_leads_elsewhere(bench: HostileCaClient) -> None:
    elsewhere = bench.elsewhere[0]
    bench.ca.say("/order", bench.ca.order(), status=201, Location=elsewhere)
    assert await outcome(bench.issuer.place_order, WISH) == (Reason.DIRECTORY_UNSAFE, Refused)
    bench.ca.say("/account", {"status": "valid"}, status=201, Location=elsewhere)
    assert await outcome(acme_account.find_account, bench.wire(), KEY) == (Reason.DIRECTORY_UNSAFE, Refused)
    bench.ca.say("/account/1", {"status": "valid", "orders": elsewhere})
    assert await outcome(bench.issuer.find_order, WISH) == (Reason.DIRECTORY_UNSAFE, Refused)


async def test_what_was_stored_is_checked_again_when_it_is_used(bench: HostileCaClient) -> None:
    elsewhere = bench.elsewhere[0]
    ref = {"order": elsewhere, "finalize": elsewhere}
    response = ChallengeResponse(
        type="http-01",
        identifier=WISH.identifiers[0],
        token=TOKEN,
        key_authorization="x",
        ref={"challenge": elsewhere, "authorization": elsewhere},
    )
    issuer = bench.issuer
    for call in (
        issuer.order_status(ref, WISH),
        issuer.finalize(ref, WISH),
        issuer.cancel(ref),
        issuer.answer(ref, response),
    ):
        with pytest.raises(Refused) as refused:
            await call
        assert refused.value.reason == Reason.DIRECTORY_UNSAFE


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_not_followed(bench: HostileCaClient, status: int) -> None:
    bench.ca.say("/dir", b"", status=status, Location=bench.elsewhere[0])
    assert await outcome(bench.issuer.place_order, WISH) == (Reason.ANSWER_MALFORMED, TryLater)
    bench.ca.do("/dir", bench.ca.good("/dir"))
    bench.ca.say("/order", b"", status=status, Location=bench.elsewhere[0])
    assert await outcome(bench.issuer.place_order, WISH) == (Reason.ANSWER_MALFORMED, TryLater)


# ── bodies ──


async def test_a_flood_is_cut_off(bench: HostileCaClient) -> None:
    bench.ca.do("/dir", flood)
    assert await outcome(bench.issuer.place_order, WISH) == (Reason.ANSWER_MALFORMED, TryLater)
    await asyncio.wait_for(bench.ca.left.wait(), PATIENCE)


@pytest.mark.parametrize("behave", [drip, hang], ids=["drips", "hangs"])
async def test_an_answer_that_never_ends_is_not_waited_for(tmp_path: Path, behave: Any) -> None:
    transport = HttpTransport()
    async with HostileCa(tmp_path, deadline_for=0.5) as ca:
        ca.do("/dir", behave)
        wire = Wire(transport, SystemClock(), Memory(), ca.place)
        assert await outcome(wire.directory) == (Reason.CA_DOWN, TryLater)
    await transport.close()


RUBBISH = [
    b"", b"<html>Bad gateway</html>", b"{", b"[]", b"null", b'"text"', b"\xff\xfe{}", b"[" * 100_000,
    b'{"a":' * 5_000 + b"1" + b"}" * 5_000, b'{"newNonce": 1' + b"0" * 5_000 + b"}", b"{}", b'{"newNonce": {}}',
    b'{"newNonce": ' + b"[" * 20 + b"]" * 20 + b"}",
]  # fmt: skip


@pytest.mark.parametrize("body", RUBBISH, ids=range(len(RUBBISH)))
async def test_rubbish_is_not_understood(bench: HostileCaClient, body: bytes) -> None:
    bench.ca.say("/dir", body)
    reason, _ = await outcome(bench.issuer.place_order, WISH)
    assert reason in (
        {Reason.ANSWER_MALFORMED, Reason.DIRECTORY_UNSAFE} if b"newNonce" in body else {Reason.ANSWER_MALFORMED}
    )
    bench.ca.do("/dir", bench.ca.good("/dir"))
    for path in ("/order/1", "/authz/1"):
        bench.ca.say(path, body)
        assert await outcome(bench.issuer.order_status, bench.ref, WISH) == (Reason.ANSWER_MALFORMED, TryLater)


async def test_a_directory_that_is_nested_too_deep_is_not_understood(bench: HostileCaClient) -> None:
    deep: dict[str, Any] = {}
    for _ in range(16):
        deep = {"meta": deep}
    bench.ca.say("/dir", bench.ca.directory(meta=deep))
    assert await outcome(bench.issuer.place_order, WISH) == (Reason.ANSWER_MALFORMED, TryLater)


@pytest.mark.parametrize(
    "changes",
    [
        {"status": 7},
        {"status": "sleeping"},
        {"status": "valid"},
        {"identifiers": {}},
        {"identifiers": [{"type": "dns"}]},
        {"identifiers": [{"type": "dns", "value": "x" * 300}]},
        {"identifiers": [{"type": "ip", "value": "localhost"}]},
        {"authorizations": "https://localhost/"},
        {"authorizations": ["https://localhost/"] * 1001},
    ],
)
async def test_an_order_of_the_wrong_shape_is_not_understood(bench: HostileCaClient, changes: dict[str, Any]) -> None:
    bench.ca.say("/order/1", bench.ca.order(**changes))
    assert await outcome(bench.issuer.order_status, bench.ref, WISH) == (Reason.ANSWER_MALFORMED, TryLater)


# ── what it says about our order ──


@pytest.mark.parametrize(
    "token", ["../../../etc/cron.d/x", "a/b", "", "a" * 513, "a b", "a\nb", "a%2fb", "a.b", None, 7, ["a"]]
)
async def test_a_token_that_could_be_a_path_is_never_published(bench: HostileCaClient, token: object) -> None:
    bench.ca.say("/authz/1", bench.ca.authz(challenges=[bench.ca.challenge(token=token)]))
    assert await outcome(bench.issuer.order_status, bench.ref, WISH) == (Reason.ANSWER_MALFORMED, Refused)


async def test_other_names_than_ours_are_not_proved_and_not_accepted(bench: HostileCaClient) -> None:
    bench.ca.say("/order/1", bench.ca.order(identifiers=[{"type": "dns", "value": "other.test"}]))
    look = await bench.issuer.order_status(bench.ref, WISH)
    assert isinstance(look, Failed)
    assert look.reason == Reason.WRONG_CERTIFICATE
    bench.ca.say("/order/1", bench.ca.order())
    for changes in ({"identifier": {"type": "dns", "value": "other.test"}}, {"wildcard": True}):
        bench.ca.say("/authz/1", bench.ca.authz(**changes))
        assert await outcome(bench.issuer.order_status, bench.ref, WISH) == (Reason.ANSWER_MALFORMED, Refused)


async def test_a_wildcard_is_told_apart_from_its_parent_even_if_the_ca_forgets_to_say_so(
    bench: HostileCaClient,
) -> None:
    named = [{"type": "dns", "value": f"*.{NAME}"}]
    bench.ca.say("/order/1", bench.ca.order(identifiers=named))
    for changes in ({"wildcard": True}, {}):
        bench.ca.say("/authz/1", bench.ca.authz(**changes))
        look = await bench.issuer.order_status(bench.ref, a_wish(f"*.{NAME}"))
        assert isinstance(look, NeedsProof)
        assert look.choices[0][0].identifier.value == f"*.{NAME}"


async def test_an_order_that_the_ca_has_forgotten_or_let_expire_is_over(bench: HostileCaClient) -> None:
    past = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    bench.ca.refuse("/order/1", "malformed", "no such order", status=404)
    looks = [await bench.issuer.order_status(bench.ref, WISH)]
    for status in ("pending", "ready"):
        bench.ca.say("/order/1", bench.ca.order(status=status, expires=past))
        looks.append(await bench.issuer.order_status(bench.ref, WISH))
    bench.ca.say("/order/1", bench.ca.order(status="invalid"))
    for status in ("expired", "deactivated", "revoked"):
        bench.ca.say("/authz/1", bench.ca.authz(status=status))
        looks.append(await bench.issuer.order_status(bench.ref, WISH))
    assert all(isinstance(each, Failed) and each.reason == Reason.ORDER_EXPIRED for each in looks), looks


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("caa", Reason.CAA_FORBIDS),
        ("connection", Reason.VALIDATION_FAILED),
        ("dns", Reason.VALIDATION_FAILED),
        ("incorrectResponse", Reason.VALIDATION_FAILED),
        ("tls", Reason.VALIDATION_FAILED),
        ("unauthorized", Reason.VALIDATION_FAILED),
        ("rejectedIdentifier", Reason.NAME_REFUSED),
        ("strange", Reason.CA_REFUSED),
    ],
)
async def test_a_failed_order_says_for_which_name_and_why(bench: HostileCaClient, word: str, reason: str) -> None:
    error = {"type": f"urn:ietf:params:acme:error:{word}", "detail": "the CA's own words\x1b[31m\r\n"}
    bench.ca.say("/order/1", bench.ca.order(status="invalid"))
    bench.ca.say(
        "/authz/1", bench.ca.authz(status="invalid", challenges=[bench.ca.challenge(status="invalid", error=error)])
    )
    look = await bench.issuer.order_status(bench.ref, WISH)
    assert look == Failed(why=f"localhost, http-01 for {NAME}: the CA's own words [31m ({word})", reason=reason)


async def test_a_proof_that_was_not_found_ends_the_order_also_where_the_ca_would_wait_for_ever(
    bench: HostileCaClient,
) -> None:
    error = {"type": "urn:ietf:params:acme:error:connection", "detail": "refused"}
    bench.ca.say("/authz/1", bench.ca.authz(challenges=[bench.ca.challenge(error=error)]))
    look = await bench.issuer.order_status(bench.ref, WISH)
    assert look == Failed(why=f"localhost, http-01 for {NAME}: refused (connection)", reason=Reason.VALIDATION_FAILED)
    bench.ca.say("/authz/1", bench.ca.authz(challenges=[bench.ca.challenge(status="processing", error=error)]))
    assert isinstance(await bench.issuer.order_status(bench.ref, WISH), Pending)  # it tries again by itself (§8.2)


async def test_a_certificate_that_is_none_is_not_handed_on(bench: HostileCaClient) -> None:
    secret = KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    bench.ca.say("/order/1", bench.ca.order(status="valid", certificate=bench.ca.url("/cert/1")))
    for body in (b"", b"rubbish", secret, pem_of(a_leaf()) + secret, pem_of(a_leaf()) * 11):
        bench.ca.say("/cert/1", body)
        for wanted in (None, "Somebody"):
            look = await bench.issuer.order_status(bench.ref, a_wish(NAME, preferred_chain=wanted))
            assert isinstance(look, Failed)
            assert look.reason == Reason.WRONG_CERTIFICATE


async def test_another_chain_that_is_odd_or_elsewhere_is_passed_by(bench: HostileCaClient) -> None:
    first, odd = pem_of(a_leaf()), bench.ca.url("/cert/2")
    bench.ca.say("/order/1", bench.ca.order(status="valid", certificate=bench.ca.url("/cert/1")))
    bench.ca.say("/cert/1", first, Link=", ".join(f'<{url}>;rel="alternate"' for url in (bench.elsewhere[0], odd)))
    bench.ca.say("/cert/2", b"rubbish")
    look = await bench.issuer.order_status(bench.ref, a_wish(NAME, preferred_chain="Somebody"))
    assert look == Issued(chain_pem=first)
    assert bench.ca.asked["/cert/2"] == 1


async def test_a_name_without_a_proof_that_we_know_ends_the_order(bench: HostileCaClient) -> None:
    for challenge in ({"type": "telepathy-01", "token": "../.."}, bench.ca.challenge(status="asleep")):
        bench.ca.say("/authz/1", bench.ca.authz(challenges=[challenge]))
        look = await bench.issuer.order_status(bench.ref, WISH)
        assert isinstance(look, Failed)
        assert (look.reason, look.retryable) == (Reason.NO_SOLVER, False)


# ── what it says about us ──


@pytest.mark.parametrize(
    ("word", "status", "reason", "kind"),
    [
        ("accountDoesNotExist", 400, Reason.ACCOUNT_GONE, Refused),
        ("unauthorized", 403, Reason.ACCOUNT_REFUSED, Refused),
        ("userActionRequired", 403, Reason.ACCOUNT_REFUSED, Refused),
        ("caa", 403, Reason.CAA_FORBIDS, Refused),
        ("rejectedIdentifier", 400, Reason.NAME_REFUSED, Refused),
        ("unsupportedIdentifier", 400, Reason.NAME_REFUSED, Refused),
        ("invalidProfile", 400, Reason.PROFILE_UNKNOWN, Refused),
        ("badCSR", 400, Reason.CA_REFUSED, Refused),
        ("malformed", 400, Reason.CA_REFUSED, Refused),
        ("rateLimited", 429, Reason.CA_RATE_LIMITED, TryLater),
        ("rateLimited", 503, Reason.CA_RATE_LIMITED, TryLater),
        ("serverInternal", 500, Reason.CA_DOWN, TryLater),
        ("orderNotReady", 403, Reason.CA_STILL_PENDING, TryLater),
        ("malformed", 502, Reason.CA_DOWN, TryLater),
    ],
)
async def test_each_refusal_has_its_reason(
    bench: HostileCaClient, word: str, status: int, reason: str, kind: type
) -> None:
    bench.ca.refuse("/order", word, status=status)
    with pytest.raises(kind, match=f"this is {word}") as why:
        await bench.issuer.place_order(WISH)
    assert why.value.reason == reason


@pytest.mark.parametrize("status", [401, 403, 404, 418, 429, 500, 503])
async def test_what_speaks_no_acme_is_not_taken_for_the_ca_s_refusal(bench: HostileCaClient, status: int) -> None:
    bench.ca.say("/order", b"<html>the proxy says no</html>", status=status)
    reason, kind = await outcome(bench.issuer.place_order, WISH)
    assert kind is TryLater
    assert reason == {429: Reason.CA_RATE_LIMITED, 500: Reason.CA_DOWN, 503: Reason.CA_DOWN}.get(
        status, Reason.ANSWER_MALFORMED
    )


IN_TWO_HOURS = "in two hours"  # from when the test runs, which may be long after it was collected


@pytest.mark.parametrize(
    ("header", "low", "high"),
    [
        ("120", 120, 120),
        pytest.param(IN_TWO_HOURS, 6000, 7200, id="date"),
        ("0", 5, 5),
        ("99999999999", 86400, 86400),
        ("soon", None, None),
    ],
)
async def test_a_rate_limit_waits_as_long_as_the_ca_asks_within_reason(
    bench: HostileCaClient, header: str, low: float | None, high: float | None
) -> None:
    if header == IN_TWO_HOURS:
        header = format_datetime(datetime.now(UTC) + timedelta(hours=2), usegmt=True)
    bench.ca.refuse("/order", "rateLimited", "too many certificates", status=429, Retry_After=header)
    with pytest.raises(TryLater, match="too many certificates") as later:
        await bench.issuer.place_order(WISH)
    after = later.value.after
    assert (
        (after is None) if low is None or high is None else (after is not None and low <= after.total_seconds() <= high)
    )


async def test_a_rate_limit_without_a_header_is_read_in_its_words(bench: HostileCaClient) -> None:
    at = (datetime.now(UTC) + timedelta(hours=2)).strftime("%Y-%m-%d %H:%M:%S UTC")
    bench.ca.refuse("/order", "rateLimited", f"too many new orders (300), retry after {at}: see https://x", status=429)
    with pytest.raises(TryLater) as later:
        await bench.issuer.place_order(WISH)
    assert later.value.after is not None
    assert 6000 <= later.value.after.total_seconds() <= 7200


async def test_a_name_that_a_person_must_unpause_is_no_rate_limit_and_its_link_is_whole(bench: HostileCaClient) -> None:
    link = f"https://portal.example/sfe/v1/unpause?jwt={'x' * 600}.end"
    said = f"Your account is temporarily prevented from requesting certificates for {NAME} and possibly others."
    bench.ca.refuse("/order", "rateLimited", f"{said} Please visit: {link}", status=429)
    with pytest.raises(Refused) as refused:
        await bench.issuer.place_order(WISH)
    assert refused.value.reason == Reason.NAME_PAUSED_AT_CA
    assert link in str(refused.value)


async def test_a_ca_that_takes_no_end_is_told_apart_from_one_that_minds_this_end(bench: HostileCaClient) -> None:
    request = a_wish(NAME, key=KEY, not_after=datetime.now(UTC) + timedelta(days=2))
    bench.ca.refuse("/order", "malformed", "NotBefore and NotAfter are not supported", status=400)
    assert await outcome(bench.issuer.place_order, request) == (Reason.LIFETIME_REJECTED, Refused)
    assert await outcome(bench.issuer.place_order, WISH) == (Reason.CA_REFUSED, Refused)  # not sent, so not the reason
    bench.ca.refuse("/order", "malformed", "notAfter is too far away", status=400)
    assert await outcome(bench.issuer.place_order, request) == (Reason.CA_REFUSED, Refused)


async def test_several_problems_at_once_are_told_by_their_names(bench: HostileCaClient) -> None:
    inner = {"type": "urn:ietf:params:acme:error:rejectedIdentifier", "detail": "policy", "identifier": {"value": NAME}}
    bench.ca.say(
        "/order", {"type": "urn:ietf:params:acme:error:compound", "detail": "two", "subproblems": [inner]}, status=403
    )
    with pytest.raises(Refused, match=f"{NAME}: policy") as refused:
        await bench.issuer.place_order(WISH)
    assert refused.value.reason == Reason.NAME_REFUSED


async def test_a_missing_account_shows_when_it_is_probed(bench: HostileCaClient) -> None:
    assert "knows our account" in await bench.issuer.probe()
    bench.ca.say("/account/1", {"status": "deactivated"})
    assert await outcome(bench.issuer.probe) == (Reason.ACCOUNT_REFUSED, Refused)
    bench.ca.refuse("/account/1", "accountDoesNotExist")
    assert await outcome(bench.issuer.probe) == (Reason.ACCOUNT_GONE, Refused)


# ── nonces ──


async def test_a_refused_nonce_is_replaced_some_times_and_no_more(bench: HostileCaClient) -> None:
    bad = bench.ca.refusing("badNonce")
    bench.ca.do("/order", *[bad] * BAD_NONCES, bench.ca.good("/order"))
    assert (await bench.issuer.place_order(WISH)).ref == bench.ref
    assert bench.ca.asked["/nonce"] == 1  # each refusal brought the next one
    bench.ca.requests.clear()
    bench.ca.do("/order", bad)
    assert await outcome(bench.issuer.place_order, WISH) == (Reason.NONCES_REFUSED, TryLater)
    assert bench.ca.asked["/order"] == BAD_NONCES + 1


async def test_with_a_refused_nonce_all_that_came_before_it_are_dropped(bench: HostileCaClient) -> None:
    issuer = bench.issuer
    await asyncio.gather(*(issuer.place_order(WISH) for _ in range(3)))  # each leaves a nonce behind
    asked = bench.ca.asked["/nonce"]
    bench.ca.do("/order", bench.ca.refusing("badNonce", Replay_Nonce=""), bench.ca.good("/order"))
    await issuer.place_order(WISH)
    assert bench.ca.asked["/nonce"] == asked + 1


async def test_nonces_and_the_directory_are_remembered_between_calls(bench: HostileCaClient) -> None:
    wire = bench.wire()
    for _ in range(3):
        await AcmeIssuer(wire, bench.account).place_order(WISH)
    assert (bench.ca.asked["/dir"], bench.ca.asked["/nonce"], bench.ca.asked["/order"]) == (1, 1, 3)


@pytest.mark.parametrize("nonce", ["", "a b", "../..", "é", "x" * 600])
async def test_a_nonce_that_is_none_is_not_used(bench: HostileCaClient, nonce: str) -> None:
    bench.ca.say("/nonce", b"", Replay_Nonce=nonce)
    assert await outcome(bench.issuer.place_order, WISH) == (Reason.ANSWER_MALFORMED, TryLater)


# ── renewal information ──


@pytest.fixture(scope="module")
def issued() -> bytes:
    """A certificate that says which key signed it."""
    return a_leaf().public_bytes(Encoding.DER)


def ari_path(certificate: bytes) -> str:
    return f"/ari/{chains.renewal_name(chains.leaf_of(certificate))}"


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"suggestedWindow": []},
        {"suggestedWindow": {"start": "2030-01-02T00:00:00Z", "end": "2030-01-01T00:00:00Z"}},
        {"suggestedWindow": {"start": "2030-01-01T00:00:00", "end": "2030-01-02T00:00:00"}},
        {"suggestedWindow": {"start": 1, "end": 2}},
        {"suggestedWindow": {"start": "soon", "end": "later"}},
    ],
)
async def test_a_renewal_window_that_makes_no_sense_is_no_answer(
    bench: HostileCaClient, answer: object, issued: bytes
) -> None:
    bench.ca.say(ari_path(issued), answer)
    assert await bench.issuer.renewal_window(issued) is None


async def test_a_renewal_window_is_read_and_asked_for_again_within_a_day(bench: HostileCaClient, issued: bytes) -> None:
    window = {"start": "2030-01-01T00:00:00Z", "end": "2030-01-02T00:00:00+01:00"}
    for header, seconds in ((None, 21600), ("30", 60), ("7200", 7200), ("999999", 86400), ("never", 21600)):
        headers = {} if header is None else {"Retry_After": header}
        bench.ca.say(ari_path(issued), {"suggestedWindow": window, "explanationURL": "https://x.test/\x1b"}, **headers)
        found = await bench.issuer.renewal_window(issued)
        assert found is not None
        assert (found.start, found.end) == (datetime(2030, 1, 1, tzinfo=UTC), datetime(2030, 1, 1, 23, tzinfo=UTC))
        assert (found.explanation, found.ask_again_after_s) == ("https://x.test/", seconds)


async def test_a_ca_without_renewal_information_is_not_asked_for_it(bench: HostileCaClient, issued: bytes) -> None:
    bench.ca.say("/dir", {k: v for k, v in bench.ca.directory().items() if k != "renewalInfo"})
    assert await bench.issuer.renewal_window(issued) is None
    assert (await bench.issuer.place_order(a_wish(NAME, key=KEY, replaces="AAAA.AQ"))).ref == bench.ref


async def test_a_certificate_that_the_ca_does_not_know_has_no_window_but_a_broken_ca_is_told(
    bench: HostileCaClient, issued: bytes
) -> None:
    assert await bench.issuer.renewal_window(issued) is None  # 404
    bench.ca.say(ari_path(issued), b"", status=503)
    assert await outcome(bench.issuer.renewal_window, issued) == (Reason.CA_DOWN, TryLater)


# ── replacing ──


@pytest.mark.parametrize(
    ("word", "status", "detail"),
    [
        ("alreadyReplaced", 409, "that one was replaced"),
        ("malformed", 409, "conflict"),
        ("malformed", 400, "cannot parse replaces field"),
        ("unauthorized", 403, "requester account did not request the certificate being replaced"),
        ("malformed", 404, "no certificate to replace"),
    ],
)
async def test_a_refused_predecessor_is_told_apart(bench: HostileCaClient, word: str, status: int, detail: str) -> None:
    bench.ca.refuse("/order", word, detail, status=status)
    assert await outcome(bench.issuer.place_order, a_wish(NAME, key=KEY, replaces="AAAA.AQ")) == (
        Reason.REPLACES_REJECTED,
        Refused,
    )
    reason, _ = await outcome(bench.issuer.place_order, WISH)  # not sent, so it cannot be the reason
    assert reason != Reason.REPLACES_REJECTED or word == "alreadyReplaced"


async def test_the_list_of_orders_may_be_long_broken_or_not_there(bench: HostileCaClient) -> None:
    assert await bench.issuer.find_order(WISH) is None  # not offered
    bench.ca.say("/account/1", {"status": "valid", "orders": bench.ca.url("/orders")})
    assert await bench.issuer.find_order(WISH) is None  # 404
    page = {"orders": [bench.ca.url("/order/0")] * 30}
    bench.ca.say("/orders", page, Link=f'<{bench.ca.url("/orders")}>;rel="next"')  # a list without end
    assert await bench.issuer.find_order(WISH) is None
    assert bench.ca.asked["/orders"] == 6
    bench.ca.say("/orders", {"orders": [bench.ca.url("/order/0"), bench.ca.url("/order/1")]})
    found = await bench.issuer.find_order(WISH)
    assert found is not None
    assert found.ref == bench.ref
    assert json.loads(json.dumps(found.ref)) == found.ref  # it can be stored
    bench.ca.say("/order/1", bench.ca.order(profile="short"))
    assert await bench.issuer.find_order(a_wish(NAME, profile="short")) == found
    assert await bench.issuer.find_order(a_wish(NAME, profile="long")) is None
    bench.ca.refuse("/order/1", "unauthorized", "it was put away", status=403)
    assert await bench.issuer.find_order(WISH) is None
    bench.ca.refuse("/order/1", "rateLimited", status=429)
    assert await outcome(bench.issuer.find_order, WISH) == (Reason.CA_RATE_LIMITED, TryLater)
