"""What every issuer promises, whatever its CA is like: each runs against a real server that behaves as its vendor's."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from tests.support.challenge_server import Trap
from tests.support.contestants import CONTESTANTS, Contestant, IssuerUnderTest
from tests.support.issuing import leaf_of
from tests.support.pki import a_leaf
from tests.support.reaper import PATIENCE

from holdfast import plugins
from holdfast.core.reasons import Reason
from holdfast.errors import Refused, TryLater
from holdfast.issuers.base import (
    Cancels,
    Failed,
    Finalizes,
    Issued,
    NeedsProof,
    OrderRequest,
    Pending,
    Placed,
    ProvesNames,
    Ready,
    TellsRenewalWindow,
    Uncertain,
)
from holdfast.operations.acme.names import split
from holdfast.pki import chain, csr
from holdfast.world import HttpTransport

pytestmark = pytest.mark.anyio

FAKES = [each for each in CONTESTANTS if each.fake]
WAITING = [each for each in CONTESTANTS if each.waits]
PEOPLED = [each for each in CONTESTANTS if each.people]
SOON = 0.15  # seconds that an answer may take, where a test lets it take too long
FOR_EVER = 10**9


def test_every_installed_kind_of_issuer_has_a_ca_to_talk_to() -> None:
    missing = sorted(set(plugins.kinds(plugins.ISSUERS)) - {each.name for each in CONTESTANTS})
    assert missing == [], f"add a CA for {', '.join(missing)} to tests/support/contestants.py"


def of(contestants: list[Contestant]) -> Any:
    return pytest.mark.parametrize("contestant", contestants, ids=lambda each: each.name)


@pytest.fixture
async def bench(contestant: Contestant, tmp_path: Path) -> AsyncIterator[IssuerUnderTest]:
    transport = HttpTransport()
    async with contestant.open(tmp_path, transport) as bench:
        yield bench
    await transport.close()


async def ends_in(call: Callable[..., Awaitable[Any]], *arguments: Any) -> TryLater | Refused:
    """How a call fails, which it must, soon."""
    async with asyncio.timeout(PATIENCE):
        with pytest.raises((TryLater, Refused)) as why:
            await call(*arguments)
    return why.value


async def found_by(bench: IssuerUnderTest, request: OrderRequest) -> Placed | Uncertain | TryLater | None:
    """Some CAs show an order only after a while: until then they ask to be asked again."""
    try:
        return await bench.issuer.find_order(request)
    except TryLater as why:
        return why


def problem_with(issued: Issued, request: OrderRequest) -> str | None:
    """What the engine would say of it, before it counts."""
    found = chain.parse_bundle(issued.chain_pem)
    dns, ips = split(request.identifiers)
    key = csr.parse(request.csr).public_key
    return chain.problem_with(found, key=key, names=dns, ips=ips, now=datetime.now(UTC))


def orders(bench: IssuerUnderTest) -> int:
    return len(bench.ca.orders)


# ── A certificate, from wish to revocation ──


@of(CONTESTANTS)
async def test_a_probe_says_in_words_that_the_ca_answers_and_orders_nothing(bench: IssuerUnderTest) -> None:
    said = await bench.issuer.probe()
    assert said.endswith(".")
    assert len(said) > 15
    assert not any(secret in said for secret in bench.secrets)
    if bench.ca is not None:
        assert orders(bench) == 0


@of(CONTESTANTS)
async def test_an_order_ends_in_a_chain_for_our_key_and_our_names(bench: IssuerUnderTest) -> None:
    request = bench.wish()
    placed = await bench.issuer.place_order(request)
    issued = await bench.completed(placed.ref, request)
    assert isinstance(issued, Issued)
    assert problem_with(issued, request) is None


@of(CONTESTANTS)
async def test_looking_again_shows_the_same_certificate(bench: IssuerUnderTest) -> None:
    request = bench.wish()
    placed = await bench.issuer.place_order(request)
    first = await bench.completed(placed.ref, request)
    assert await bench.issuer.order_status(placed.ref, request) == first


@of(CONTESTANTS)
async def test_what_an_order_needs_to_be_found_again_survives_json(bench: IssuerUnderTest) -> None:
    request = bench.wish()
    placed = await bench.issuer.place_order(request)
    kept = json.loads(json.dumps(dict(placed.ref)))
    assert kept == dict(placed.ref)
    assert isinstance(await bench.completed(kept, request), Issued)


@of(CONTESTANTS)
async def test_a_certificate_is_revoked_and_saying_so_twice_is_harmless(bench: IssuerUnderTest) -> None:
    request = bench.wish()
    issued = await bench.completed((await bench.issuer.place_order(request)).ref, request)
    certificate = leaf_of(issued).public_bytes(Encoding.DER)
    await bench.issuer.revoke(certificate, 4)
    await bench.issuer.revoke(certificate, 4)


@of(CONTESTANTS)
async def test_a_certificate_of_somebody_else_is_not_revoked(bench: IssuerUnderTest) -> None:
    with pytest.raises((Refused, TryLater)):
        await bench.issuer.revoke(a_leaf().public_bytes(Encoding.DER), 4)


@of(CONTESTANTS)
async def test_a_renewal_window_is_a_time_or_nothing(bench: IssuerUnderTest) -> None:
    request = bench.wish()
    issued = await bench.completed((await bench.issuer.place_order(request)).ref, request)
    if isinstance(bench.issuer, TellsRenewalWindow):
        window = await bench.issuer.renewal_window(leaf_of(issued).public_bytes(Encoding.DER))
        assert window is None or window.start < window.end


# ── Finding again: no second order ──


@of(CONTESTANTS)
async def test_before_anything_was_ordered_nothing_is_found(bench: IssuerUnderTest) -> None:
    assert not isinstance(await found(bench, bench.wish(asked_at=datetime.now(UTC))), Placed)


async def found(bench: IssuerUnderTest, request: OrderRequest) -> object:
    """What is found; or that it is too early to tell, for a CA where a fresh order is invisible for a while."""
    try:
        return await bench.issuer.find_order(request)
    except TryLater as why:
        return why


@of(FAKES)
async def test_what_was_ordered_is_found_or_said_to_be_uncertain_and_never_denied(bench: IssuerUnderTest) -> None:
    request = bench.wish(asked_at=datetime.now(UTC))
    placed = await bench.issuer.place_order(request)
    found = await found_by(bench, request)
    assert found is not None or not bench.issuer.binding
    if isinstance(found, Placed):
        assert leaf_of(await bench.completed(found.ref, request)) == leaf_of(await bench.completed(placed.ref, request))


@of(FAKES)
async def test_an_order_of_another_issuance_is_not_taken_for_ours(bench: IssuerUnderTest) -> None:
    now = datetime.now(UTC)
    theirs = replace(bench.wish(asked_at=now), issuance="issuance_another")
    await bench.completed((await bench.issuer.place_order(theirs)).ref, theirs)
    assert not isinstance(await found(bench, bench.wish(asked_at=now)), Placed)


@of(FAKES)
@pytest.mark.parametrize("kind", ["reset", "garbage", "status"])
async def test_an_order_whose_answer_was_lost_is_not_placed_again(bench: IssuerUnderTest, kind: str) -> None:
    await bench.issuer.probe()  # whatever it wants to know first, it knows
    request = bench.wish(asked_at=datetime.now(UTC))
    bench.ca.fail(kind=kind, effect=True, only="POST /(?!login)")
    assert isinstance(await ends_in(bench.issuer.place_order, request), TryLater)
    assert orders(bench) == 1
    found = await found_by(bench, request)
    assert found is not None or not bench.issuer.binding
    if isinstance(found, Placed):
        assert isinstance(await bench.completed(found.ref, request), Issued)
    assert orders(bench) == 1


# ── Waiting ──


@of(WAITING)
async def test_an_order_is_pending_in_the_ca_s_own_words_until_it_is_issued(bench: IssuerUnderTest) -> None:
    bench.ca.pending_looks = 2
    request = bench.wish()
    placed = await bench.issuer.place_order(request)
    shown = [await bench.issuer.order_status(placed.ref, request) for _ in range(3)]
    assert [type(each) for each in shown] == [Pending, Pending, Issued]
    first = shown[0]
    assert isinstance(first, Pending)
    assert first.why
    assert first.word
    assert not first.unknown


@of(PEOPLED)
async def test_an_order_that_waits_for_a_person_is_issued_after_they_said_yes(bench: IssuerUnderTest) -> None:
    bench.ca.approval = True
    request = bench.wish()
    placed = await bench.issuer.place_order(request)
    for _ in range(3):
        assert isinstance(await bench.issuer.order_status(placed.ref, request), Pending)
    bench.ca.approve()
    assert isinstance(await bench.completed(placed.ref, request), Issued)
    assert orders(bench) == 1


@of(PEOPLED)
async def test_a_denied_order_is_over_in_the_ca_s_own_words(bench: IssuerUnderTest) -> None:
    bench.ca.approval = True
    request = bench.wish()
    placed = await bench.issuer.place_order(request)
    bench.ca.deny(words="nobody knows this department")
    over = await bench.issuer.order_status(placed.ref, request)
    assert isinstance(over, Failed)
    assert "nobody knows this department" in over.why
    assert not over.retryable


@of(PEOPLED)
async def test_a_word_that_nobody_knows_is_waited_for_with_a_warning(bench: IssuerUnderTest) -> None:
    bench.ca.approval = True
    request = bench.wish()
    placed = await bench.issuer.place_order(request)
    bench.ca.word = "gone_fishing"
    look = await bench.issuer.order_status(placed.ref, request)
    assert isinstance(look, Pending)
    assert look.unknown
    assert look.word == "gone_fishing"
    assert "gone_fishing" in look.why


@of(CONTESTANTS)
async def test_a_look_asks_only_for_steps_that_the_issuer_has(bench: IssuerUnderTest) -> None:
    request = bench.wish()
    placed = await bench.issuer.place_order(request)
    look = await bench.issuer.order_status(placed.ref, request)
    assert isinstance(bench.issuer, ProvesNames) or not isinstance(look, NeedsProof)
    assert isinstance(bench.issuer, Finalizes) or not (placed.ready or isinstance(look, Ready))


@of(PEOPLED)
async def test_an_order_that_waits_for_a_person_can_be_given_up_if_the_ca_lets_us(bench: IssuerUnderTest) -> None:
    bench.ca.approval = True
    request = bench.wish()
    placed = await bench.issuer.place_order(request)
    assert isinstance(bench.issuer, Cancels)  # or orders that nobody wants would wait there for ever
    try:
        await bench.issuer.cancel(placed.ref)
    except Refused:
        return
    bench.ca.approve()
    assert not isinstance(await bench.issuer.order_status(placed.ref, request), Issued)


# ── What is wrong with an answer ──


async def looking(bench: IssuerUnderTest) -> Callable[[], Awaitable[Any]]:
    """A look at an order that is under way: the call that is made most often."""
    bench.ca.pending_looks = FOR_EVER
    request = bench.wish()
    placed = await bench.issuer.place_order(request)
    return lambda: bench.issuer.order_status(placed.ref, request)


async def asking(bench: IssuerUnderTest, contestant: Contestant) -> Callable[[], Awaitable[Any]]:
    """Where orders do not wait, placing one is what can fail."""
    if contestant.waits:
        return await looking(bench)
    await bench.issuer.probe()
    return lambda: bench.issuer.place_order(bench.wish())


@of(FAKES)
async def test_what_passes_is_tried_later(bench: IssuerUnderTest, contestant: Contestant) -> None:
    call = await asking(bench, contestant)
    for status in (408, 425, 500, 502, 503, 504):
        bench.ca.fail(status=status)
        why = await ends_in(call)
        assert (type(why), why.reason) == (TryLater, Reason.CA_DOWN), status


@of(FAKES)
async def test_too_many_requests_is_a_rate_limit_with_the_ca_s_own_time(
    bench: IssuerUnderTest, contestant: Contestant
) -> None:
    call = await asking(bench, contestant)
    at = format_datetime(datetime.now(UTC) + timedelta(minutes=10), usegmt=True)
    waits = {None: None, "7": 7, "999999999": 86400, "-3": 5, "soon": None, at: 600}
    for header, seconds in waits.items():
        bench.ca.fail(status=429, retry_after=header)
        why = await ends_in(call)
        assert isinstance(why, TryLater), header
        assert why.reason == Reason.CA_RATE_LIMITED, header
        asked = None if why.after is None else why.after.total_seconds()
        late = PATIENCE if header == at else 0  # its time passes while we ask
        assert seconds - late <= asked <= seconds if seconds and asked else asked is seconds, header


@of(FAKES)
async def test_a_retry_after_of_a_server_that_is_down_is_honoured(
    bench: IssuerUnderTest, contestant: Contestant
) -> None:
    call = await asking(bench, contestant)
    bench.ca.fail(status=503, retry_after="120")
    why = await ends_in(call)
    assert isinstance(why, TryLater)
    assert why.after == timedelta(seconds=120)


@of(FAKES)
async def test_a_refusal_is_final_and_says_why(bench: IssuerUnderTest, contestant: Contestant) -> None:
    call = await asking(bench, contestant)
    for status in (400, 401, 403, 405, 409, 410, 422):
        bench.ca.fail(status=status, times=2)  # a session is renewed once after a 401
        why = await ends_in(call)
        assert isinstance(why, Refused), status
        assert str(status) in str(why) or f"this is {status}" in str(why)
        bench.ca.calm()


@of(FAKES)
async def test_no_answer_and_half_an_answer_are_tried_later(bench: IssuerUnderTest, contestant: Contestant) -> None:
    call = await asking(bench, contestant)
    for kind, reason in (("reset", Reason.CA_DOWN), ("garbage", Reason.ANSWER_MALFORMED)):
        bench.ca.fail(kind=kind)
        why = await ends_in(call)
        assert (type(why), why.reason) == (TryLater, reason), kind


@of(FAKES)
@pytest.mark.parametrize("kind", ["hang", "drip"])
async def test_a_ca_that_takes_its_time_does_not_take_ours(bench: IssuerUnderTest, kind: str) -> None:
    issuer = bench.again(request_timeout_seconds=SOON)
    bench.ca.fail(kind=kind)
    why = await ends_in(issuer.probe)
    assert (type(why), why.reason) == (TryLater, Reason.CA_DOWN)


@of(FAKES)
async def test_a_certificate_for_another_key_is_never_ours(bench: IssuerUnderTest) -> None:
    bench.ca.wrong_certificate = True
    request = bench.wish()
    got = await bench.completed((await bench.issuer.place_order(request)).ref, request)
    if isinstance(got, Issued):
        assert problem_with(got, request) == "The certificate is for another key than ours."
    else:
        assert (got.reason, got.retryable) == (Reason.WRONG_CERTIFICATE, False)


# ── Who we are, and where it is ──


@of(FAKES)
async def test_a_redirect_to_another_host_is_not_followed_and_names_the_setting(
    bench: IssuerUnderTest, contestant: Contestant
) -> None:
    call = await asking(bench, contestant)
    async with Trap() as trap:
        bench.ca.fail(kind="redirect", location=f"https://127.0.0.1:{trap.port}/steal")
        why = await ends_in(call)
        assert trap.connections == 0
    assert isinstance(why, Refused)
    assert "base_url" in str(why)


@of([each for each in FAKES if each.name != "entrust"])  # which knows us by our client certificate only
async def test_wrong_credentials_are_refused_with_the_setting_to_fix_and_never_shown(bench: IssuerUnderTest) -> None:
    known = dict(bench.ca.credentials)
    wrong = {purpose: f"wrong-{value}" for purpose, value in known.items()}
    why = await ends_in(bench.again(credentials=wrong).probe)
    assert isinstance(why, Refused)
    assert why.reason == Reason.ACCOUNT_REFUSED
    assert any(word in str(why) for word in ("credential", "setting"))
    assert not any(value in str(why) for value in wrong.values())


@of([each for each in FAKES if each.name != "entrust"])
async def test_credentials_that_were_pasted_with_something_else_are_refused(bench: IssuerUnderTest) -> None:
    for odd in ("two\r\nlines: 1", "schl\u00fcssel", "nul\x00"):
        why = await ends_in(bench.again(credentials=dict.fromkeys(bench.ca.credentials, odd)).probe)
        assert (type(why), why.reason) == (Refused, Reason.ACCOUNT_REFUSED)
        assert odd not in str(why)


@of(FAKES)
async def test_nothing_that_goes_wrong_shows_a_secret(bench: IssuerUnderTest, contestant: Contestant) -> None:
    call = await asking(bench, contestant)
    said = {"code": -1, "message": (quoted := " ".join(bench.secrets)), "description": quoted}
    for status in (400, 401, 403, 404, 429, 500, 302):
        body = json.dumps({**said, "errors": [said], "error": said})  # as one of them would say it
        bench.ca.fail(status=status, times=2, body=body)
        try:
            shown = await call()
        except (TryLater, Refused) as why:
            shown = f"{why} {why!r} {why.__cause__!r}"
        assert not any(secret in str(shown) for secret in bench.secrets), status
        bench.ca.calm()


@of(FAKES)
async def test_a_server_that_the_roots_do_not_vouch_for_is_not_talked_to(bench: IssuerUnderTest) -> None:
    why = await ends_in(bench.again(roots="").probe)
    assert (type(why), why.reason) == (TryLater, Reason.CA_TLS_FAILED)
    assert "Check the setting roots" in str(why)
    assert bench.ca.requests == []


@of(FAKES)
@pytest.mark.parametrize(
    "url", ["http://ca.example.com/api", "ftp://ca.example.com", "ca.example.com", "https://", "https://me:pw@ca.example.com/",
            "https://ca.example.com/a?b=c", "https://ca.example.com/a b", "https://[::1", 7]
)  # fmt: skip
async def test_an_address_that_is_none_is_refused_with_its_setting(bench: IssuerUnderTest, url: object) -> None:
    with pytest.raises(ValueError, match="base_url") as why:
        bench.again(base_url=url)
    assert "pw" not in str(why.value)


@of(FAKES)
async def test_a_setting_that_there_is_not_is_refused_by_name(bench: IssuerUnderTest) -> None:
    with pytest.raises(ValueError, match="bass_url"):
        bench.again(bass_url="https://ca.example.com")
