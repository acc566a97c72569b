"""What every deployer promises, whatever its target is like: each installed kind runs against a bench of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.support.deployer_benches import BENCHES, Bench
from tests.support.deploying import a_bundle

from holdfast import plugins
from holdfast.core.reasons import Reason
from holdfast.deployers.base import ChecksConfig, Probes, Reloads
from holdfast.errors import Refused, TryLater

pytestmark = pytest.mark.anyio
KINDS = sorted(plugins.kinds(plugins.DEPLOYERS))


def test_every_installed_kind_of_deployer_has_a_bench() -> None:
    missing = sorted(set(KINDS) - set(BENCHES))
    assert missing == [], f"add a bench for {', '.join(missing)} to tests/support/deployer_benches"


@pytest.fixture(params=KINDS)
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    if request.param not in BENCHES:
        pytest.fail(f"{request.param} has no bench in tests/support/deployer_benches")
    async with BENCHES[request.param]() as found:
        yield found


async def test_a_written_bundle_is_in_place_whole(bench: Bench) -> None:
    bundle = a_bundle(1)
    written = await (await bench.deployer()).write(bundle)
    assert written.changed
    assert await bench.holds() == (bundle.leaf_sha256, bundle.key)


async def test_the_same_bundle_again_changes_nothing(bench: Bench) -> None:
    bundle = a_bundle(1)
    await (await bench.deployer()).write(bundle)
    assert not (await (await bench.deployer()).write(bundle)).changed
    assert await bench.holds() == (bundle.leaf_sha256, bundle.key)


async def test_a_newer_bundle_takes_over_and_an_older_one_is_refused(bench: Bench) -> None:
    await (await bench.deployer()).write(a_bundle(1))
    await (await bench.deployer()).write(a_bundle(2))
    with pytest.raises(Refused) as why:
        await (await bench.deployer()).write(a_bundle(1))
    assert why.value.reason == Reason.TARGET_HAS_NEWER
    assert await bench.holds() == (a_bundle(2).leaf_sha256, a_bundle(2).key)


async def test_the_one_before_is_restored_and_the_next_one_can_be_written(bench: Bench) -> None:
    for number in (1, 2):
        await (await bench.deployer()).write(a_bundle(number))
    for _ in range(2):  # a worker may have died before it could say so
        await (await bench.deployer()).restore(a_bundle(2), a_bundle(1))
        assert await bench.holds() == (a_bundle(1).leaf_sha256, a_bundle(1).key)
    await (await bench.deployer()).write(a_bundle(3))
    assert await bench.holds() == (a_bundle(3).leaf_sha256, a_bundle(3).key)


async def test_a_target_that_is_away_is_tried_later_and_holds_what_it_held(bench: Bench) -> None:
    await (await bench.deployer()).write(a_bundle(1))
    if not await bench.go_away():
        pytest.skip("it is on this machine, and cannot be away")
    with pytest.raises(TryLater) as why:
        await (await bench.deployer()).write(a_bundle(2))
    assert why.value.reason in set(Reason)
    await bench.come_back()
    assert await bench.holds() == (a_bundle(1).leaf_sha256, a_bundle(1).key)
    await (await bench.deployer()).write(a_bundle(2))
    assert await bench.holds() == (a_bundle(2).leaf_sha256, a_bundle(2).key)


async def test_a_target_that_says_no_is_refused_with_a_reason_and_without_the_key(bench: Bench) -> None:
    await (await bench.deployer()).write(a_bundle(1))
    if not await bench.refuse():
        pytest.skip("it has no way to refuse")
    with pytest.raises(Refused) as why:
        await (await bench.deployer()).write(a_bundle(2))
    assert why.value.reason in set(Reason)
    said = f"{why.value} {why.value!r} {why.value.__cause__!r}"
    assert "PRIVATE KEY" not in said
    assert not [each for each in bench.secrets if each in said]
    await bench.come_back()
    assert await bench.holds() == (a_bundle(1).leaf_sha256, a_bundle(1).key)


async def test_its_steps_have_words_and_can_be_repeated(bench: Bench) -> None:
    deployer = await bench.deployer()
    await deployer.write(a_bundle(1))
    for _ in range(2):
        if isinstance(deployer, ChecksConfig):
            assert isinstance(deployer.tested_by, str)
            await deployer.test()
        if isinstance(deployer, Reloads):
            assert isinstance(deployer.reloaded_by, str)
            await deployer.reload()
        if isinstance(deployer, Probes):
            assert (await deployer.probe()).endswith(".")
    await deployer.close()
    await deployer.close()
