"""What clients without any proof may take up: names, authorizations, changes and requests are counted; both stores."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.support.acme_client import AcmeClient
from tests.support.acme_desk import limits
from tests.support.acme_face import Front, open_front

from holdfast.core.client import counted_as
from holdfast.core.own_ca.ca import CaPolicy, RateLimit
from holdfast.engine.own_ca import sweep
from holdfast.store.database import Database

pytestmark = pytest.mark.anyio
HOURS = timedelta(hours=3)


def problem(reply: httpx2.Response) -> tuple[int, str]:
    return reply.status_code, reply.json()["type"].rpartition(":")[2]


def _names(number: int, mark: str = "") -> list[str]:
    return [f"n{n}{mark}.example" for n in range(number)]


async def test_an_order_counts_as_many_times_as_it_has_names(db: Database, tmp_path: Path) -> None:
    policy = limits(names_per_account=RateLimit(count=25, span=HOURS))
    async with open_front(db, tmp_path, policy=policy) as front:
        client = await front.client()
        assert (await client.order(*_names(20))).status_code == 201
        refused = await client.order(*_names(6, "x"))
        assert problem(refused) == (429, "rateLimited")
        assert int(refused.headers["retry-after"]) >= 1
        assert (await client.order(*_names(5, "y"))).status_code == 201


async def test_names_are_counted_for_the_address_of_all_its_accounts(db: Database, tmp_path: Path) -> None:
    policy = limits(names_per_address=RateLimit(count=25, span=HOURS))
    async with open_front(db, tmp_path, policy=policy) as front:
        for n in range(2):
            assert (await (await front.client()).order(*_names(10, f"a{n}"))).status_code == 201
        assert problem(await (await front.client()).order(*_names(10))) == (429, "rateLimited")


@pytest.mark.parametrize("limit", ["pending_per_account", "pending_per_address"])
async def test_names_that_wait_to_be_proved_are_counted(db: Database, tmp_path: Path, limit: str) -> None:
    async with open_front(db, tmp_path, policy=limits(**{limit: 12})) as front:
        client = await front.client()
        placed = (await client.order(*_names(10))).json()
        other = client if limit == "pending_per_account" else await front.client()
        refused = await other.order(*_names(3, "x"))
        assert problem(refused) == (429, "rateLimited")
        assert "10 do" in refused.json()["detail"]
        for authz in placed["authorizations"][:2]:  # giving names up makes room
            assert (await client.post(authz, {"status": "deactivated"})).status_code == 200
        assert (await other.order(*_names(3, "x"))).status_code == 201


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("192.0.2.7", "192.0.2.7"), ("::ffff:192.0.2.7", "192.0.2.7"), ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"), ("", ""), ("testclient", "testclient"),
    ],
)  # fmt: skip
def test_of_ipv6_a_customers_network_is_counted(address: str, counted: str) -> None:
    assert counted_as(address) == counted


async def test_changes_of_an_account_are_limited(db: Database, tmp_path: Path) -> None:
    policy = limits(changes_per_account=RateLimit(count=3, span=HOURS))
    async with open_front(db, tmp_path, policy=policy) as front:
        client = await front.client()
        for n in (0, 1, 2, 2, 2, 2):  # contacts that it has already change nothing
            assert (await _contact(client, n)).status_code == 200
        assert problem(await _contact(client, 3)) == (429, "rateLimited")
        [row] = await db.read(lambda tx: tx.rows("SELECT COUNT(*) AS n FROM audit WHERE action = 'account_updated'"))
        assert row["n"] == 3


async def _contact(client: AcmeClient, n: int) -> httpx2.Response:
    return await client.post(client.kid or "", {"contact": [f"mailto:a{n}@example.org"]})


async def test_changed_accounts_count_as_new_ones_for_their_address(db: Database, tmp_path: Path) -> None:
    policy = limits(accounts_per_address=RateLimit(count=4, span=HOURS))
    async with open_front(db, tmp_path, policy=policy) as front:
        client = await front.client()
        for n in range(3):
            assert (await _contact(client, n)).status_code == 200
        assert problem(await _contact(client, 9)) == (429, "rateLimited")
        assert problem(await (await front.stranger()).register()) == (429, "rateLimited")


@pytest.mark.parametrize("limit", ["requests_per_account", "requests_per_address"])
async def test_signed_requests_are_limited(db: Database, tmp_path: Path, limit: str) -> None:
    policy = limits(**{limit: RateLimit(count=5, span=timedelta(minutes=1))})
    async with open_front(db, tmp_path, policy=policy) as front:
        client = await front.client()
        replies = [await client.get(client.kid or "") for _ in range(6)]
        assert problem(replies[-1]) == (429, "rateLimited")
        assert replies[0].status_code == 200
        assert int(replies[-1].headers["retry-after"]) >= 1
        assert (await front.http.get(front.directory)).status_code == 200


# ── Behind a proxy ──


async def test_clients_behind_a_trusted_proxy_are_counted_each_by_itself(db: Database, tmp_path: Path) -> None:
    policy = limits(accounts_per_address=RateLimit(count=2, span=HOURS))
    async with open_front(db, tmp_path, policy=policy, proxies=["10.0.0.0/8"], peer="10.1.2.3") as front:
        for n in range(6):
            assert (await _registered(front, f"198.51.100.{n}")).status_code == 201
        for _ in range(2):
            await _registered(front, "203.0.113.9")
        assert problem(await _registered(front, "203.0.113.9")) == (429, "rateLimited")
        assert problem(await _registered(front, "1.2.3.4, 203.0.113.9")) == (429, "rateLimited"), "hearsay"


async def test_what_a_stranger_says_of_its_address_counts_for_nothing(db: Database, tmp_path: Path) -> None:
    policy = limits(accounts_per_address=RateLimit(count=2, span=HOURS))
    async with open_front(db, tmp_path, policy=policy, proxies=["10.0.0.0/8"]) as front:
        for n in range(2):
            assert (await _registered(front, f"198.51.100.{n}")).status_code == 201
        assert problem(await _registered(front, "198.51.100.9")) == (429, "rateLimited")


async def _registered(front: Front, forwarded: str) -> httpx2.Response:
    client = await front.stranger()
    asked = {"termsOfServiceAgreed": True}
    return await client.post(client.urls["newAccount"], asked, jwk=True, headers={"X-Forwarded-For": forwarded})


# ── The disk ──

LONG = ".".join(["x" * 60] * 3)  # with what comes before it, as long as a name can be
NAMES = 100
BYTES_FOR_A_NAME = 2_600  # order, authorization and challenges, with their indexes
BYTES_OF_AUDIT_FOR_AN_ORDER = 1_500
KEPT_FOR = CaPolicy().order_for + sweep.AUTHZS_FOR
BOUND_GB = 7.1  # as docs/guides/private-ca.md says, for one address that never rests


def _long_names(n: int) -> list[str]:
    return [f"{f'n{n}m{m}':x<58}.{LONG}.example" for m in range(NAMES)]


async def test_the_default_limits_bound_what_an_address_takes_up_on_the_disk() -> None:
    policy = CaPolicy()
    names = policy.names_per_address.count * (KEPT_FOR / policy.names_per_address.span)
    assert round(names * BYTES_FOR_A_NAME / 1e9, 1) == BOUND_GB
    orders_a_day = policy.names_per_address.count * (timedelta(days=1) / policy.names_per_address.span)
    assert orders_a_day * BYTES_OF_AUDIT_FOR_AN_ORDER <= 0.25e9
    text = (Path(__file__).parents[2] / "docs" / "guides" / "private-ca.md").read_text()
    assert f"{BOUND_GB} GB" in text


async def test_a_name_that_is_never_proved_takes_up_no_more_than_is_reckoned(db: Database, tmp_path: Path) -> None:
    async with open_front(db, tmp_path) as front:
        client = await front.client()
        await client.order(*_long_names(0))
        before, number = await _size(db), 10
        for n in range(1, number + 1):
            assert (await client.order(*_long_names(n))).status_code == 201
        taken = await _size(db) - before
        assert 0 < taken / (number * NAMES) <= BYTES_FOR_A_NAME
        assert await _audited(db, "order_created") <= BYTES_OF_AUDIT_FOR_AN_ORDER


async def _size(db: Database) -> int:
    if db.engine.name == "sqlite":
        sql = "SELECT page_count * page_size AS n FROM pragma_page_count(), pragma_page_size()"
    else:
        sql = """SELECT SUM(pg_total_relation_size(oid))::bigint AS n FROM pg_class
                  WHERE relkind = 'r' AND relname LIKE 'acme_%'"""
    [row] = await db.read(lambda tx: tx.rows(sql))
    return int(row["n"])


async def _audited(db: Database, action: str) -> int:
    """Characters of the longest entry."""
    sql = (
        "SELECT MAX(LENGTH(details) + LENGTH(actor) + LENGTH(subject) + LENGTH(hash)) AS n FROM audit WHERE action = :a"
    )
    [row] = await db.read(lambda tx: tx.rows(sql, a=action))
    return int(row["n"])


async def test_an_order_that_is_never_proved_leaves_one_audit_entry_with_the_number_of_its_names(
    db: Database, tmp_path: Path
) -> None:
    policy = replace(CaPolicy(), order_for=timedelta(seconds=-1))
    async with open_front(db, tmp_path, policy=policy) as front:
        client = await front.client()
        assert (await client.order(*_long_names(0))).status_code == 201
        assert await sweep.expire(db) > NAMES
    rows: list[Any] = await db.read(lambda tx: tx.rows("SELECT action, details FROM audit ORDER BY seq"))
    about = [row for row in rows if row["action"].startswith(("order_", "authz_"))]
    assert [row["action"] for row in about] == ["order_created"]
    details = json.loads(about[0]["details"])
    assert (details["count"], "names" in details, len(details["digest"])) == (NAMES, False, 64)
