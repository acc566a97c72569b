"""A real sshd: its pinned key, private files from the first byte on, programs whose words stay whole, and an account
that can do nothing but receive."""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator

import pytest
from tests.support.deployer_benches.ssh import SshBench, a_bench
from tests.support.deploying import CERTIFICATE, a_bundle, parts

from holdfast.core.reasons import Reason
from holdfast.deployers import receiving
from holdfast.deployers.base import ChecksConfig, Reloads
from holdfast.deployers.kind import LocalRules
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
    with pytest.raises(TryLater, match="did not end") as why:
        await deployer.reload()
    assert why.value.reason == Reason.TARGET_BUSY


async def test_a_link_in_place_of_a_folder_there_ends_the_deployment(bench: SshBench) -> None:
    elsewhere = bench.root / "elsewhere"
    elsewhere.mkdir()
    (bench.live / CERTIFICATE).symlink_to(elsewhere)
    with pytest.raises(Refused, match="is a link") as why:
        await (await bench.deployer()).write(a_bundle(1))
    assert why.value.reason == Reason.TARGET_TAKEN
    assert list(elsewhere.iterdir()) == []
    (bench.live / CERTIFICATE).unlink()
    (bench.live / CERTIFICATE).mkdir()
    (bench.live / CERTIFICATE / "current").symlink_to(elsewhere)
    with pytest.raises(Refused, match="leads to somewhere else"):
        await (await bench.deployer()).write(a_bundle(1))


async def test_fixed_paths_there_keep_their_modes_and_are_called_not_atomic(bench: SshBench) -> None:
    paths = {"certificate_path": str(bench.root / "site.crt"), "key_path": str(bench.root / "site.key")}
    (bench.root / "site.crt").write_text("of before")
    (bench.root / "site.key").write_text("key of before")
    (bench.root / "site.key").chmod(0o440)
    written = await (await bench.deployer(**paths)).write(a_bundle(1))
    assert not written.atomic
    assert (bench.root / "site.key").read_bytes() == a_bundle(1).key.reveal()
    assert (bench.root / "site.key").stat().st_mode & 0o777 == 0o440
    await (await bench.deployer(**paths)).restore(a_bundle(1), None)
    assert (bench.root / "site.key").read_text() == "key of before"


# ── An account that only receives ──


def by_ssh(bench: SshBench, *words: str, said: bytes = b"", subsystem: bool = False) -> bytes:
    """What OpenSSH's own client gets."""
    argv = ["ssh", "-F", "none", "-i", str(bench.root / "login"), "-p", str(bench.port), "-o", "BatchMode=yes"]
    argv += [
        "-o",
        "StrictHostKeyChecking=no",
        "-o",
        "UserKnownHostsFile=/dev/null",
        *(["-s"] if subsystem else []),
        "127.0.0.1",
        *words,
    ]
    return subprocess.run(argv, input=said, capture_output=True, timeout=60).stdout


async def test_an_account_that_only_receives_swaps_tests_reloads_and_rolls_back(bench: SshBench) -> None:
    bench.only_receives()
    deployer = await bench.deployer(receive=True, reload="daemon", test="daemon")
    assert isinstance(deployer, Reloads)
    assert isinstance(deployer, ChecksConfig)
    assert (await deployer.write(a_bundle(1))).changed
    assert not (await deployer.write(a_bundle(1))).changed
    await deployer.test()
    await deployer.reload()
    assert (bench.root / "ran").read_text() == "ran\nran\n"
    await deployer.write(a_bundle(2))
    assert await bench.holds() == (a_bundle(2).leaf_sha256, a_bundle(2).key)
    with pytest.raises(Refused) as why:
        await deployer.write(a_bundle(1))
    assert why.value.reason == Reason.TARGET_HAS_NEWER
    await deployer.restore(a_bundle(2), a_bundle(1))
    assert await bench.holds() == (a_bundle(1).leaf_sha256, a_bundle(1).key)
    (bench.root / "fail").touch()
    with pytest.raises(Refused) as why:
        await deployer.reload()
    assert why.value.reason == Reason.RELOAD_FAILED


async def test_an_account_that_only_receives_has_no_shell_and_no_other_folder(bench: SshBench) -> None:
    bench.only_receives()
    said = await asyncio.to_thread(by_ssh, bench, "touch", str(bench.root / "owned"))
    assert not (bench.root / "owned").exists()
    assert "takes one JSON object" in json.loads(said)["error"]
    assert (
        "takes one JSON object" in json.loads(await asyncio.to_thread(by_ssh, bench, "sftp", subsystem=True))["error"]
    )
    for folder in (str(bench.root), f"{bench.live}/../other", "relative"):
        call = {
            "call": "write",
            "settings": {"folder": folder},
            "target": "web-1",
            "bundle": receiving._told(a_bundle(1)),
        }
        said = await asyncio.to_thread(by_ssh, bench, "x", said=json.dumps(call).encode())
        assert "allows no deployment" in json.loads(said)["error"]
    assert list(bench.live.iterdir()) == []


async def test_a_bundle_whose_content_id_is_a_path_is_refused(bench: SshBench) -> None:
    told = {**receiving._told(a_bundle(1)), "content_id": "../../x"}
    call = {"call": "write", "settings": {"folder": str(bench.live)}, "target": "web-1", "bundle": told}
    rules = LocalRules(folders=(bench.live,))
    assert "not well-formed" in (await receiving.answer(json.dumps(call).encode(), parts(rules)))["error"]


async def test_an_account_with_another_command_is_not_taken_for_a_receiver(bench: SshBench) -> None:
    """A command that repeats what it was sent, key and all, has received nothing."""
    key = (bench.root / "login.pub").read_text()
    (bench.root / "login.pub").write_text(f'restrict,command="tee /dev/stderr" {key}')
    with pytest.raises(Refused, match="does not answer as holdfast-receive") as why:
        await (await bench.deployer(receive=True)).write(a_bundle(1))
    assert "PRIVATE KEY" not in str(why.value)
