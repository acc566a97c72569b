"""What every solver promises, whichever way it publishes: each installed kind runs against a real place to look at."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.issuing import a_dns_proof
from tests.support.reaper import PATIENCE
from tests.support.solver_remotes import REMOTES, Remote

from holdfast import plugins
from holdfast.core.reasons import Reason
from holdfast.errors import TryLater
from holdfast.issuers.base import ChallengeResponse

pytestmark = pytest.mark.anyio
KINDS = sorted(plugins.kinds(plugins.SOLVERS))


def test_every_installed_kind_of_solver_has_a_fake_remote() -> None:
    missing = sorted(set(KINDS) - set(REMOTES))
    assert missing == [], f"add a fake remote for {', '.join(missing)} to tests/support/solver_remotes.py"


@pytest.fixture(params=KINDS)
async def remote(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Remote]:
    if request.param not in REMOTES:
        pytest.fail(f"{request.param} has no fake remote in tests/support/solver_remotes.py")
    async with REMOTES[request.param](tmp_path) as found:
        yield found


def a_proof(remote: Remote, number: int = 1) -> ChallengeResponse:
    return a_dns_proof(f"www.{remote.domain}", number)


async def test_a_published_proof_is_shown_and_seen(remote: Remote) -> None:
    solver, response = remote.solver(), a_proof(remote)
    assert not remote.shown(response)
    await solver.publish(response)
    assert remote.shown(response)
    assert await solver.visible(response)


async def test_publishing_again_changes_nothing(remote: Remote) -> None:
    solver, response = remote.solver(), a_proof(remote)
    await solver.publish(response)
    await remote.solver().publish(response)  # another replica, after a crash
    assert remote.shown(response)
    await solver.clean(response)
    assert not remote.shown(response)


async def test_a_proof_is_taken_away_by_any_replica_and_more_than_once(remote: Remote) -> None:
    response = a_proof(remote)
    await remote.solver().publish(response)
    other = remote.solver()
    await other.clean(response)
    await other.clean(response)
    assert not remote.shown(response)


async def test_what_was_never_published_is_cleaned_without_trouble(remote: Remote) -> None:
    await remote.solver().clean(a_proof(remote))


async def test_two_proofs_of_one_name_stand_side_by_side(remote: Remote) -> None:
    solver, first, second = remote.solver(), a_proof(remote, 1), a_proof(remote, 2)
    await solver.publish(first)
    await solver.publish(second)
    assert (remote.shown(first), remote.shown(second)) == (True, True)
    await solver.clean(first)
    assert (remote.shown(first), remote.shown(second)) == (False, True)


async def test_a_solver_says_what_it_proves_and_whether_calls_may_overlap(remote: Remote) -> None:
    solver = remote.solver()
    assert solver.type in ("http-01", "dns-01", "tls-alpn-01")
    assert isinstance(solver.side_by_side, bool)


async def test_a_remote_that_cannot_be_reached_is_tried_later_without_a_secret_in_words(remote: Remote) -> None:
    if remote.away is None:
        return  # the store is ours: the worker waits for it
    solver = remote.away()
    for step in (solver.publish, solver.clean):
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(TryLater) as why:
                await step(a_dns_proof(f"www.{remote.away_domain}"))
        assert why.value.reason == Reason.SOLVER_FAILED
        assert not [each for each in remote.secrets if each in f"{why.value} {why.value.__cause__!r}"]
