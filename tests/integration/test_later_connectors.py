"""Pending orders as the CAs see them: the real connectors, before servers that behave like the vendors'."""

import re
from collections import defaultdict
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.support.fake_cas.base import FOR_EVER
from tests.support.later_office import HOUR, Office, an_office
from tests.support.lifecycle import DAY

from holdfast.core.backoff import next_poll

pytestmark = pytest.mark.anyio
LATER = ("digicert", "sectigo", "entrust", "globalsign")
LADDER = [5, 15, 45, 135, 300]
MINUTE = timedelta(minutes=1)
# Requests that look at one order, by kind of CA; the group is the order.
LOOKS = {
    "digicert": r"GET /order/certificate/(\d+)$",
    "sectigo": r"GET /ssl/v1/(\d+)$",
    "entrust": r"GET /v1/certificate-authorities/[^/]+/enrollments/([^/]+)$",
    "globalsign": r"GET /certificates/([^/]+)$",
}


def looks(office: Office) -> dict[str, list[Any]]:
    """By order: when it was looked at."""
    found = defaultdict(list)
    for each in office.ca.requests:
        if (told := re.match(LOOKS[office.kind], f"{each.method} {each.path}")) is not None:
            found[told.group(1)].append(each.at)
    return found


@pytest.mark.parametrize("kind", LATER)
async def test_a_pending_order_is_asked_by_the_ladder_jitter_and_all_and_issued_in_the_end(
    tmp_path: Path, kind: str
) -> None:
    async with an_office(tmp_path, kind) as office:
        office.ca.pending_looks = FOR_EVER
        names = [f"n{n}.example.com" for n in range(4)]
        for name in names:
            await office.house.ask(name, issuers=["later"])
        await office.pass_by(8 * MINUTE)
        shares = []
        for times in looks(office).values():
            waits = [(later - earlier).total_seconds() for earlier, later in pairwise(times)]
            assert len(waits) >= 4
            for wait, rung in zip(waits, LADDER, strict=False):
                assert 0.8 * rung - 0.01 <= wait <= 1.2 * rung + 0.01
                shares.append(wait / rung)
        assert min(shares) < 1 < max(shares)
        assert len({round(share, 3) for share in shares}) > len(shares) / 2, "each wait has a jitter of its own"
        await office.pass_by(HOUR)
        view = await office.house.view(names[0])
        assert view.status.reason_code == "CA_STILL_PENDING"
        for order in office.ca.orders:
            order.looks = 0
        await office.pass_by(HOUR)
        views = [await office.house.view(name) for name in names]
        assert [view.current is not None for view in views] == [True] * 4
        assert len(office.ca.orders) == 4


@pytest.mark.parametrize(
    ("kind", "after"), [("digicert", "1"), ("sectigo", None), ("entrust", "1"), ("globalsign", None)], ids=LATER
)
async def test_a_ca_that_says_too_many_for_ever_hears_of_us_no_more_often_than_the_ladder_allows(
    tmp_path: Path, kind: str, after: str | None
) -> None:
    async with an_office(tmp_path, kind) as office:
        office.ca.pending_looks = FOR_EVER
        await office.house.ask("www.example.com", issuers=["later"])
        await office.days.round()
        office.ca.fail(status=429, retry_after=after, times=FOR_EVER)
        before = len(office.ca.requests)
        await office.pass_by(10 * MINUTE)
        assert len(office.ca.requests) - before <= 8
        await office.pass_by(DAY - 10 * MINUTE)
        assert len(office.ca.requests) - before <= _allowed(DAY)
        office.ca.calm()
        for order in office.ca.orders:
            order.looks = 0
        await office.pass_by(2 * HOUR)
        assert (await office.house.view("www.example.com")).current is not None
        assert len(office.ca.orders) == 1


def _allowed(span: timedelta) -> int:
    """How many looks the ladder has in this time, if every wait were as short as jitter makes it."""
    at, polls = timedelta(0), 0
    while at < span:
        polls += 1
        wait, _ = next_poll(polls, waited=at, window=timedelta(0), age=at, asked=None, key="x")
        at += wait * 0.8
    return polls


@pytest.mark.parametrize(
    ("kind", "how"),
    [("digicert", "done"), ("sectigo", "refused"), ("entrust", "refused"), ("globalsign", "refused")],
    ids=LATER,
)
async def test_an_order_that_is_cancelled_is_taken_back_at_the_ca(tmp_path: Path, kind: str, how: str) -> None:
    """Or, where the CA does not let us, told: it may be issued, and cost money."""
    async with an_office(tmp_path, kind) as office:
        office.ca.pending_looks = FOR_EVER
        view = await office.house.ask("www.example.com", issuers=["later"])
        await office.pass_by(HOUR)
        await office.house.cancel("www.example.com", actor="local:alice", why="a mistake")
        await office.pass_by(MINUTE)
        told = await office.house.timeline(view.certificate.id)
        assert [each.details["how"] for each in told if each.name == "order.withdrawn"] == [how]
        assert ("order.withdrawn" in await office.notifications()) == (how == "refused")
        if kind in ("digicert", "sectigo"):
            assert [each.status for each in office.ca.orders] == ["canceled" if how == "done" else "Applied"]
