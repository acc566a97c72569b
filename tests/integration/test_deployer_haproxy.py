"""A real HAProxy: its one transaction, its memory and its files."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from tests.support.deployer_benches.haproxy import HaproxyBench, a_bench
from tests.support.deploying import CERTIFICATE, a_bundle, parts

from holdfast.core.reasons import Reason
from holdfast.deployers.base import Reloads
from holdfast.deployers.haproxy import HaproxyDeployer
from holdfast.deployers.kind import LocalRules
from holdfast.errors import Refused, TryLater
from holdfast.network import SystemNet
from holdfast.ports import NetProblem, Stream

pytestmark = pytest.mark.anyio


@pytest.fixture
async def bench() -> AsyncIterator[HaproxyBench]:
    async with a_bench() as found:
        await (await found.deployer()).write(a_bundle(1))
        yield found


def open_transaction(bench: HaproxyBench, name: str) -> None:
    """Somebody began one, and left."""
    pem = a_bundle(7, "default.invalid").combined.reveal().decode()
    assert "Transaction created" in bench.said(f"set ssl cert {name} <<\n{pem}\n")


async def test_a_transaction_of_somebody_else_is_waited_for_with_a_reason(bench: HaproxyBench) -> None:
    other = bench.root / "other.pem"
    assert "New empty" in bench.said(f"new ssl cert {other}")
    open_transaction(bench, str(other))
    with pytest.raises(TryLater) as why:
        await (await bench.deployer()).write(a_bundle(2))
    assert why.value.reason == Reason.TARGET_BUSY
    assert f"abort ssl cert {other}" in str(why.value)
    assert await bench.holds() == (a_bundle(1).leaf_sha256, a_bundle(1).key), "file and memory are as before"
    assert f"*{other}" in bench.said("show ssl cert"), "theirs is left alone"
    bench.said(f"abort ssl cert {other}")
    await (await bench.deployer()).write(a_bundle(2))
    assert (await bench.holds())[0] == a_bundle(2).leaf_sha256


async def test_a_transaction_that_we_left_open_is_aborted(bench: HaproxyBench) -> None:
    open_transaction(bench, str(bench.certificates / f"{CERTIFICATE}.pem"))
    await (await bench.deployer()).write(a_bundle(2))
    assert (await bench.holds())[0] == a_bundle(2).leaf_sha256
    assert "\n*" not in bench.said("show ssl cert")


async def test_a_restart_brings_what_is_in_memory(bench: HaproxyBench) -> None:
    await (await bench.deployer()).write(a_bundle(2))
    await asyncio.to_thread(bench.stop)
    await asyncio.to_thread(bench.start)
    assert await bench.shown() == a_bundle(2).leaf_sha256


async def test_memory_that_was_changed_by_somebody_is_changed_back_though_the_file_is_the_same(
    bench: HaproxyBench,
) -> None:
    name = bench.certificates / f"{CERTIFICATE}.pem"
    pem = a_bundle(8).combined.reveal().decode()
    bench.said(f"set ssl cert {name} <<\n{pem}\n")
    assert "Success" in bench.said(f"commit ssl cert {name}")
    assert await bench.shown() == a_bundle(8).leaf_sha256
    assert (await (await bench.deployer()).write(a_bundle(1))).changed
    assert await bench.shown() == a_bundle(1).leaf_sha256


class Dying(SystemNet):
    """Its process dies just before this command."""

    def __init__(self, before: str) -> None:
        self._before = before

    async def connect_local(self, path: str, *, deadline_for: float) -> Stream:
        line = await super().connect_local(path, deadline_for=deadline_for)
        write = line.write

        async def dies(data: bytes) -> None:
            if data.startswith(self._before.encode()) or self._before == "":
                self._before = ""  # from here on nothing is said any more
                raise NetProblem("reset", "we died")
            await write(data)

        line.write = dies  # type: ignore[method-assign]
        return line


@pytest.mark.parametrize("before", ["show ssl cert", "set ssl cert", "commit ssl cert"])
@pytest.mark.parametrize("name", [CERTIFICATE, "new.example.com"])
async def test_a_death_at_any_command_leaves_the_old_one_served_and_is_made_good(
    bench: HaproxyBench, before: str, name: str
) -> None:
    dying = HaproxyDeployer(bench._settings, parts(bench._rules, net=Dying(before)))
    with pytest.raises(TryLater):
        await dying.write(a_bundle(2, name))
    assert await bench.shown() == a_bundle(1).leaf_sha256
    await (await bench.deployer()).write(a_bundle(2, name))
    assert await bench.shown(name) == a_bundle(2, name).leaf_sha256
    assert "\n*" not in bench.said("show ssl cert")


@pytest.mark.parametrize("before", ["new ssl cert", "add ssl crt-list"])
async def test_a_new_certificate_is_in_use_after_a_death(bench: HaproxyBench, before: str) -> None:
    dying = HaproxyDeployer(bench._settings, parts(bench._rules, net=Dying(before)))
    new = a_bundle(1, "new.example.com")
    with pytest.raises(TryLater):
        await dying.write(new)
    await (await bench.deployer()).write(new)
    assert await bench.shown("new.example.com") == new.leaf_sha256


async def test_no_handshake_fails_and_none_shows_another_certificate_during_swaps(bench: HaproxyBench) -> None:
    ours = {a_bundle(number).leaf_sha256 for number in range(1, 22)}
    seen: list[str] = []

    async def read() -> None:
        while True:
            seen.append(await bench.shown())

    reader = asyncio.create_task(read())
    for number in range(2, 22):
        await (await bench.deployer()).write(a_bundle(number))
    reader.cancel()
    assert not reader.done() or reader.cancelled()
    assert set(seen) <= ours
    assert len(seen) > 20
    assert await bench.shown() == a_bundle(21).leaf_sha256


async def test_a_pair_that_haproxy_refuses_changes_neither_memory_nor_file(bench: HaproxyBench) -> None:
    torn = replace(a_bundle(2), key=a_bundle(3).key)
    with pytest.raises(Refused) as why:
        await (await bench.deployer()).write(torn)
    assert "PRIVATE KEY" not in str(why.value)
    assert await bench.shown() == a_bundle(1).leaf_sha256
    assert "\n*" not in bench.said("show ssl cert")


async def test_a_socket_that_the_host_does_not_allow_is_refused(bench: HaproxyBench) -> None:
    rules = LocalRules(folders=(bench.root / "live",))
    with pytest.raises(Refused, match=r"sockets in deployment\.local_file"):
        await HaproxyDeployer(bench._settings, parts(rules)).write(a_bundle(2))


async def test_without_a_socket_the_file_is_written_and_the_program_reloads(bench: HaproxyBench) -> None:
    deployer = await bench.deployer(socket="", reload="haproxy-reload")
    assert isinstance(deployer, Reloads)
    assert deployer.reloaded_by == "haproxy-reload"
    assert (await deployer.write(a_bundle(2))).changed
    assert await bench.shown() == a_bundle(1).leaf_sha256, "nobody told it yet"
    with_socket = await bench.deployer()
    assert isinstance(with_socket, Reloads)
    assert with_socket.reloaded_by == ""
    assert (await with_socket.write(a_bundle(2))).changed, "the same bytes, and still not in memory"
    assert await bench.shown() == a_bundle(2).leaf_sha256
