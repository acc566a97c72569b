"""A real sshd: its pinned key, private files from the first byte on, and programs whose words stay whole."""

from collections.abc import AsyncIterator

import pytest
from tests.support.deployer_benches.ssh import SshBench, a_bench
from tests.support.deploying import CERTIFICATE, a_bundle

from holdfast.core.reasons import Reason
from holdfast.deployers.base import Reloads
from holdfast.errors import Refused, TryLater

pytestmark = pytest.mark.anyio


@pytest.fixture
async def bench() -> AsyncIterator[SshBench]:
    async with a_bench() as found:
        yield found


async def test_another_host_key_is_never_accepted(bench: SshBench) -> None:
    bench.host_key = "other_key"
    with pytest.raises(Refused) as why:
        await (await bench.deployer()).write(a_bundle(1))
    assert why.value.reason == Reason.HOST_KEY_CHANGED
    assert list(bench.live.iterdir()) == []


async def test_keys_are_private_and_two_bundles_stay(bench: SshBench) -> None:
    for number in (1, 2, 3):
        deployer = await bench.deployer()
        await deployer.write(a_bundle(number))
        await deployer.close()
    folder = bench.live / CERTIFICATE
    assert (folder / "current" / "privkey.pem").stat().st_mode & 0o777 == 0o600
    assert (folder / "current" / "combined.pem").stat().st_mode & 0o777 == 0o600
    assert sorted(each.name.split("-")[1] for each in folder.glob("bundle-*")) == ["2", "3"]
    await (await bench.deployer()).restore(a_bundle(3), None)
    assert await bench.holds() == (a_bundle(2).leaf_sha256, a_bundle(2).key)


async def test_a_program_runs_there_with_its_words_whole(bench: SshBench) -> None:
    deployer = await bench.deployer(reload="touch")
    assert isinstance(deployer, Reloads)
    await deployer.reload()
    assert (bench.root / "a file").exists()
    failing = await bench.deployer(reload="failing")
    assert isinstance(failing, Reloads)
    with pytest.raises(Refused, match="exited with 3: it is so"):
        await failing.reload()


async def test_a_program_there_that_floods_is_ended_with_its_time(bench: SshBench) -> None:
    deployer = await bench.deployer(reload="flooding")
    assert isinstance(deployer, Reloads)
    with pytest.raises(TryLater, match="did not end"):
        await deployer.reload()
