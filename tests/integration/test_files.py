"""Files and programs of this machine: private from the first byte, whole or not at all, and no shell anywhere."""

import asyncio
import os
import stat
import sys
import threading
from pathlib import Path

import pytest
import uvloop
from tests.support.engine import eventually
from tests.support.reaper import PATIENCE

from holdfast.errors import TryLater
from holdfast.world import LocalFiles

pytestmark = pytest.mark.anyio

FILES = LocalFiles()
SH = "/bin/sh"  # where a test needs a program that starts others


# ── private files ──


def test_a_file_is_private_and_has_its_content(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "key"
    FILES.write_private(path, b"secret", replace=False)
    assert FILES.read(path) == b"secret"
    assert FILES.mode(path) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_there_is_no_content_of_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert FILES.read(tmp_path / "missing") is None


@pytest.mark.parametrize("replace", [True, False])
def test_a_file_is_private_from_its_first_byte_whatever_the_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replace: bool
) -> None:
    """Asked at the moment of the first write, and of every one after it: an attacker needs only that moment."""
    modes: list[int] = []
    fsync, fdopen = os.fsync, os.fdopen

    def note(descriptor: int) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            modes.append(stat.S_IMODE(os.fstat(descriptor).st_mode))

    def noting_fdopen(descriptor: int, *args: object, **more: object) -> object:
        note(descriptor)  # before it has any content
        return fdopen(descriptor, *args, **more)  # type: ignore[call-overload]

    def noting_fsync(descriptor: int) -> None:
        note(descriptor)
        fsync(descriptor)

    monkeypatch.setattr(os, "fdopen", noting_fdopen)
    monkeypatch.setattr(os, "fsync", noting_fsync)
    before = os.umask(0)
    try:
        FILES.write_private(tmp_path / "key", b"secret", replace=replace)
    finally:
        os.umask(before)
    assert modes == [0o600, 0o600]
    assert FILES.mode(tmp_path / "key") == 0o600


def test_a_file_that_is_there_is_not_replaced_by_mistake(tmp_path: Path) -> None:
    path = tmp_path / "key"
    FILES.write_private(path, b"first", replace=False)
    with pytest.raises(FileExistsError):
        FILES.write_private(path, b"second", replace=False)
    assert FILES.read(path) == b"first"
    assert [entry.name for entry in tmp_path.iterdir()] == ["key"]


def test_a_replaced_file_is_private_although_the_old_one_was_not(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"old")
    path.chmod(0o644)
    FILES.write_private(path, b"new", replace=True)
    assert (FILES.read(path), FILES.mode(path)) == (b"new", 0o600)


def test_a_link_put_in_its_place_is_replaced_and_not_followed(tmp_path: Path) -> None:
    target, path = tmp_path / "elsewhere", tmp_path / "key"
    target.write_bytes(b"untouched")
    path.symlink_to(target)
    FILES.write_private(path, b"secret", replace=True)
    assert target.read_bytes() == b"untouched"
    assert not path.is_symlink()


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "key"
    FILES.write_private(path, b"old", replace=False)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        FILES.write_private(path, b"new", replace=True)
    assert FILES.read(path) == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["key"]


def test_a_reader_sees_the_old_file_or_the_new_one_and_never_a_part(tmp_path: Path) -> None:
    path, seen, over = tmp_path / "key", set[bytes](), threading.Event()
    contents = [bytes([letter]) * 100_000 for letter in b"abc"]
    FILES.write_private(path, contents[0], replace=False)

    def read() -> None:
        while not over.is_set():
            seen.add(path.read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    for n in range(60):
        FILES.write_private(path, contents[n % 3], replace=True)
    over.set()
    reader.join()
    assert seen <= set(contents)


def test_of_two_first_starts_exactly_one_writes_the_file(tmp_path: Path) -> None:
    for n in range(20):
        path, won, ready = tmp_path / f"key-{n}", list[bytes](), threading.Barrier(2)

        def write(content: bytes, path: Path = path, won: list[bytes] = won, ready: threading.Barrier = ready) -> None:
            ready.wait()
            try:
                FILES.write_private(path, content, replace=False)
            except FileExistsError:
                return
            won.append(content)

        both = [threading.Thread(target=write, args=(content,)) for content in (b"a", b"b")]
        for one in both:
            one.start()
        for one in both:
            one.join()
        assert won == [FILES.read(path)]


# ── programs ──


async def test_a_program_gets_its_arguments_as_they_are(tmp_path: Path) -> None:
    """No shell reads them: none of these is anything but text."""
    nasty = [
        "$(touch pwned)",
        "`id`",
        "; rm -rf /",
        "a b",
        "*",
        "&& true",
        "| cat",
        "> out",
        "$HOME",
        "\n",
        "'\"",
        "-n",
    ]
    code, output = await FILES.run([sys.executable, "-c", "import sys; print(sys.argv[1:])", *nasty])
    assert code == 0
    assert output.decode().strip() == str(nasty)


async def test_a_program_sees_nothing_of_our_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_KEYS_PASSPHRASE", "sentinel")
    _, output = await FILES.run(["/usr/bin/env"])
    assert b"sentinel" not in output
    assert b"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" in output


async def test_the_exit_code_and_both_kinds_of_output_come_back() -> None:
    code, output = await FILES.run([SH, "-c", "echo one; echo two >&2; exit 3"])
    assert (code, output) == (3, b"one\ntwo\n")


async def test_a_program_that_dies_of_a_signal_says_so() -> None:
    code, _ = await FILES.run([SH, "-c", "kill -9 $$"])
    assert code == -9


async def test_a_program_is_given_its_input() -> None:
    assert await FILES.run(["/bin/cat"], stdin=b"hello") == (0, b"hello")


async def test_a_program_that_does_not_read_its_input_is_no_problem() -> None:
    code, _ = await FILES.run(["/bin/true"], stdin=b"x" * 10_000_000, timeout=PATIENCE)
    assert code == 0


async def test_input_and_output_flow_at_the_same_time() -> None:
    """One that answers while it reads would otherwise wait for us, and we for it."""
    code, output = await FILES.run(["/bin/cat"], stdin=b"x" * 5_000_000, timeout=PATIENCE)
    assert (code, output) == (0, b"x" * 65536)


async def test_output_is_capped_and_the_rest_is_read_and_dropped() -> None:
    code, output = await FILES.run([SH, "-c", "head -c 3000000 /dev/zero; exit 5"])
    assert (code, len(output)) == (5, 65536)


def alive(pid: int) -> bool:
    """Whether a process runs; one that is dead and not yet collected does not."""
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False


async def pids_in(path: Path, count: int) -> list[int]:
    def written() -> list[int]:
        return [int(pid) for pid in (FILES.read(path) or b"").split()]

    await eventually(lambda: len(written()) >= count)
    return written()


FAMILY = 'sleep 1000 & echo $! >> "$0"; sh -c \'echo $$ >> "$0"; sleep 1000\' "$0" & echo $$ >> "$0"; '


async def overtime(end: str, folder: Path) -> list[int]:
    """A family that was there when its time was up: a second, or more if the machine needs longer to start it."""
    for limit in (1, 5, 25, 125):
        pids = folder / f"pids{limit}"
        with pytest.raises(TryLater, match=f"did not end in {limit} s") as caught:
            await FILES.run([SH, "-c", FAMILY + end, str(pids)], timeout=limit)
        assert caught.value.reason == "TIMEOUT"
        if len(family := (FILES.read(pids) or b"").split()) == 3:
            return [int(pid) for pid in family]
    raise AssertionError("it never got so far")


async def test_when_the_time_is_up_the_whole_family_of_a_program_dies(tmp_path: Path) -> None:
    family = await overtime("wait", tmp_path)
    await eventually(lambda: not any(alive(pid) for pid in family))


async def test_a_child_left_behind_with_the_output_open_does_not_outlive_the_deadline(tmp_path: Path) -> None:
    family = await overtime("exit 0", tmp_path)
    await eventually(lambda: not any(alive(pid) for pid in family))


async def test_a_child_left_behind_in_silence_is_ended_with_its_parent(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code, _ = await FILES.run([SH, "-c", 'sleep 1000 > /dev/null 2>&1 & echo $! >> "$0"', str(pids)], timeout=PATIENCE)
    assert code == 0
    [child] = await pids_in(pids, 1)
    await eventually(lambda: not alive(child))


async def test_a_program_whose_caller_is_cancelled_is_killed(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    running = asyncio.create_task(FILES.run([SH, "-c", FAMILY + "wait", str(pids)]))
    family = await pids_in(pids, 3)
    running.cancel()
    await asyncio.wait({running})
    assert running.cancelled()
    await eventually(lambda: not any(alive(pid) for pid in family))


async def test_a_program_that_is_not_there_says_which() -> None:
    with pytest.raises(FileNotFoundError, match="/no/such/program"):
        await FILES.run(["/no/such/program"])


def test_a_program_runs_as_well_on_the_loop_that_the_product_uses() -> None:
    assert uvloop.run(FILES.run(["/bin/cat"], stdin=b"hello")) == (0, b"hello")


def test_a_program_that_ends_before_it_is_given_its_input_has_ended_well() -> None:
    """On the loop of the server, which tells of a closed line in a way of its own."""

    async def many() -> list[tuple[int, bytes]]:
        return [await LocalFiles().run(["/bin/true"], stdin=b"x" * 100) for _ in range(200)]

    assert uvloop.run(many()) == [(0, b"")] * 200
