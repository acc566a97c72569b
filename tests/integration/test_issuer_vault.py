"""The Vault issuer: one file, one line in a table, and every promise of the others."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.fake_cas.bench import IssuerBench, bench_of
from tests.support.fake_cas.vault import FakeVault
from tests.support.issuing import leaf_of

from holdfast.core.reasons import Reason
from holdfast.errors import Refused, TryLater
from holdfast.issuers.base import Issued, Placed
from holdfast.pki.chain import parse_bundle, subject_names

pytestmark = pytest.mark.anyio
NAME = "www.example.com"


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[IssuerBench[FakeVault]]:
    async with bench_of(FakeVault, tmp_path) as bench:
        yield bench


async def signed(
    bench: IssuerBench[FakeVault], *names: str, settings: dict[str, Any] | None = None, **more: Any
) -> Issued:
    request = bench.wish(*(names or (NAME,)), **more)
    issuer = bench.issuer(**(settings or {}))
    placed = await issuer.place_order(request)
    look = await issuer.order_status(placed.ref, request)
    assert isinstance(look, Issued)
    return look


async def test_names_are_lists_in_one_text_each_and_the_chain_has_no_root(bench: IssuerBench[FakeVault]) -> None:
    issued = await signed(bench, NAME, "api.example.com", "192.0.2.7")
    [asked] = bench.ca.orders
    assert (asked.body["common_name"], asked.body["alt_names"]) == (NAME, f"{NAME},api.example.com")
    assert asked.body["ip_sans"] == "192.0.2.7"
    assert subject_names(leaf_of(issued)) == ([NAME, "api.example.com"], ["192.0.2.7"])
    assert list(parse_bundle(issued.chain_pem))[1:] == [bench.ca.hierarchy.intermediate]


async def test_a_mount_without_those_above_it_has_a_chain_of_what_it_names(bench: IssuerBench[FakeVault]) -> None:
    bench.ca.lone_root = True
    assert len(parse_bundle((await signed(bench)).chain_pem)) == 2


async def test_a_lifetime_is_asked_for_in_seconds_and_a_role_may_shorten_it(bench: IssuerBench[FakeVault]) -> None:
    issued = await signed(bench, not_after=bench.clock.now() + timedelta(days=60))
    assert 60 * 86400 - 60 <= int(bench.ca.orders[0].body["ttl"].removesuffix("s")) <= 60 * 86400
    left = leaf_of(issued).not_valid_after_utc - bench.clock.now()
    assert timedelta(days=29) < left <= timedelta(days=30)


async def test_a_namespace_an_issuer_and_a_profile_are_where_vault_looks_for_them(
    bench: IssuerBench[FakeVault],
) -> None:
    bench.ca.namespace = "team/a"
    await signed(bench, settings={"namespace": "team/a", "issuer": "main", "role": "other"}, profile="web")
    assert bench.ca.lines("POST") == ["POST /v1/pki/issuer/main/sign/web"]


async def test_a_lost_answer_is_asked_for_again_for_it_costs_nothing(bench: IssuerBench[FakeVault]) -> None:
    request = bench.wish(NAME, asked_at=bench.clock.now())
    bench.ca.fail(kind="reset", effect=True)
    with pytest.raises(TryLater):
        await bench.issuer().place_order(request)
    assert await bench.issuer().find_order(request) is None
    assert isinstance(await bench.issuer().place_order(request), Placed)


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"role": "nobody"}, "role"), ({"mount": "elsewhere"}, "mount")],
    ids=["role", "mount"],
)
async def test_an_unknown_role_or_mount_names_the_setting(
    bench: IssuerBench[FakeVault], settings: dict[str, Any], named: str
) -> None:
    with pytest.raises(Refused, match=named) as why:
        await bench.issuer(**settings).place_order(bench.wish())
    assert why.value.reason == Reason.PROFILE_UNKNOWN


async def test_a_name_that_the_role_does_not_allow_is_told_in_its_words(bench: IssuerBench[FakeVault]) -> None:
    bench.ca.bad_names = {NAME}
    with pytest.raises(Refused, match="not allowed by this role"):
        await bench.issuer().place_order(bench.wish(NAME))


async def test_a_sealed_vault_is_down(bench: IssuerBench[FakeVault]) -> None:
    bench.ca.sealed = True
    with pytest.raises(TryLater, match="sealed") as why:
        await bench.issuer().place_order(bench.wish())
    assert why.value.reason == Reason.CA_DOWN


@pytest.mark.parametrize("status", [412, 472, 473])
async def test_a_standby_that_is_behind_is_asked_again(bench: IssuerBench[FakeVault], status: int) -> None:
    bench.ca.fail(status=status)
    with pytest.raises(TryLater):
        await bench.issuer().place_order(bench.wish())


@pytest.mark.parametrize(("left", "renewals"), [(3600, 0), (1300, 0), (1200, 1), (5, 1)])
async def test_a_token_is_renewed_once_two_thirds_of_its_life_are_over(
    bench: IssuerBench[FakeVault], left: int, renewals: int
) -> None:
    bench.ca.token_ttl = left
    await bench.issuer().keep_alive()  # as daily for each certificate
    assert bench.ca.renewals == renewals


async def test_a_token_is_looked_at_once_for_many_certificates(bench: IssuerBench[FakeVault]) -> None:
    for _ in range(20):
        await bench.issuer().keep_alive()
    assert bench.ca.lines() == ["GET /v1/auth/token/lookup-self"]
    bench.clock.ahead += timedelta(hours=2)
    await bench.issuer().keep_alive()
    assert len(bench.ca.lines()) == 2


async def test_a_probe_says_when_the_token_ends_and_does_not_need_the_right_to_read_the_role(
    bench: IssuerBench[FakeVault],
) -> None:
    assert "ends in 1 h" in await bench.issuer().probe()
    bench.ca.reads_roles, bench.ca.token_life = False, 0
    assert "does not end" in await bench.issuer().probe()


@pytest.mark.parametrize("role", ["", "a/b", "../sys", "a b", None])
async def test_a_role_that_is_none_is_refused_by_name(bench: IssuerBench[FakeVault], role: str | None) -> None:
    with pytest.raises(ValueError, match="role"):
        bench.issuer(role=role)


async def test_what_a_role_did_not_keep_is_revoked_by_showing_it(bench: IssuerBench[FakeVault]) -> None:
    issued = await signed(bench)
    bench.ca.no_store = True
    await bench.issuer().revoke(issued.chain_pem, 1)
    assert bench.ca.orders[0].revoked


async def test_a_revocation_in_the_queue_of_another_cluster_is_not_done_yet(bench: IssuerBench[FakeVault]) -> None:
    issued = await signed(bench)
    bench.ca.revocations_pend = True
    with pytest.raises(TryLater, match="queue") as why:
        await bench.issuer().revoke(issued.chain_pem, 1)
    assert why.value.reason == Reason.CA_STILL_PENDING
