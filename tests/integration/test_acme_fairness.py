"""Slow servers of one account hold up no validation of another account; on both stores."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.support.acme_desk import Office, open_office

from holdfast.core.own_ca.acme import AuthzState, Identifier
from holdfast.core.own_ca.fairness import may_begin, share_of
from holdfast.engine.own_ca.validation import SLOTS
from holdfast.operations.acme.context import Requester
from holdfast.store.database import Database
from holdfast.validators import check, verdict

pytestmark = pytest.mark.anyio
SOON = 8.0  # seconds; a look at a silent server takes several times as long here


@contextmanager
def silent_servers(port: int, hosts: list[str]) -> Iterator[None]:
    """They take connections, and say nothing."""
    with ExitStack() as opened:
        for host in hosts:
            line = opened.enter_context(socket.socket())
            line.bind((host, port))
            line.listen(200)
        yield


def _hosts(number: int) -> list[str]:
    return [f"127.0.{1 + n // 200}.{1 + n % 200}" for n in range(number)]


async def _answered(office: Office, who: Requester, hosts: list[str]) -> None:
    for start in range(0, len(hosts), 50):
        order = await office.order(who, *(Identifier("ip", host) for host in hosts[start : start + 50]))
        for authz in order.authzs:
            await office.answer(who, authz)


async def test_another_accounts_challenge_does_not_wait_for_the_slow_servers_of_one(
    db: Database, tmp_path: Path
) -> None:
    async with open_office(db, tmp_path) as office, office.working():
        hosts = _hosts(SLOTS + 70)
        with silent_servers(office.web.port, hosts):
            await _answered(office, await office.client(), hosts)
            other = await office.client()
            async with asyncio.timeout(SOON):
                order = await office.ready(other)
                assert (await office.decided(other, order.authzs[0])).state is AuthzState.VALID


async def test_one_address_does_not_hold_all_checks_however_many_accounts_lead_there(
    db: Database, tmp_path: Path
) -> None:
    async with open_office(db, tmp_path) as office:
        slow, most = "127.0.3.1", check.MOST_AT_ONE_ADDRESS
        with silent_servers(office.web.port, [slow]):
            asked = verdict.ChallengeToCheck(
                type="http-01", identifier_type="ip", identifier=slow, token="t" * 43, thumbprint="x", account_url="u"
            )
            looks = [asyncio.create_task(office.validator.check(asked)) for _ in range(most + 5)]
            async with asyncio.timeout(SOON):
                done, left = await asyncio.wait(looks, return_when=asyncio.FIRST_COMPLETED)
                while len(done) < 5:
                    more, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                    done |= more
            assert [each.result() for each in done] == [verdict.Crowded()] * 5
            for each in left:
                each.cancel()
            await asyncio.wait(left)
            again = asyncio.create_task(office.validator.check(asked))
            done, _ = await asyncio.wait([again], timeout=0.5)
            assert not done, "those that ended made room"
            again.cancel()
            await asyncio.wait([again])


@pytest.mark.parametrize("accounts", [1, 2, 5, 40])
def test_whoever_has_nothing_under_way_finds_a_slot(accounts: int) -> None:
    held: Counter[str] = Counter()
    for name in [f"a{n}" for n in range(accounts)] * SLOTS:
        if may_begin(held, name, SLOTS):
            held[name] += 1
    assert sum(held.values()) < SLOTS
    assert may_begin(held, "newcomer", SLOTS)
    assert share_of(SLOTS, 1) == SLOTS // 2
