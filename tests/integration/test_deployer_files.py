"""The deployer of files: what it refuses, what it carries over, and what a crash leaves behind."""

import os
import stat
from pathlib import Path

import pytest
from tests.support.deployer_benches.files import FilesBench
from tests.support.deploying import CERTIFICATE, a_bundle, parts

from holdfast.core.reasons import Reason
from holdfast.deployers.files import FilesDeployer, FilesSettings
from holdfast.deployers.kind import LocalRules, Program
from holdfast.deployers.local_file import rules_of
from holdfast.deployers.swapping import folder_name
from holdfast.errors import Refused, TryLater

pytestmark = pytest.mark.anyio


@pytest.fixture
def bench(tmp_path: Path) -> FilesBench:
    return FilesBench(tmp_path)


@pytest.mark.parametrize("folder", ["/etc", "live", "{root}/live/../secret", "{root}/elsewhere", "{root}"])
async def test_a_folder_that_the_host_does_not_allow_is_refused(tmp_path: Path, folder: str) -> None:
    (tmp_path / "live").mkdir()
    settings = FilesSettings(folder=folder.format(root=tmp_path))
    deployer = FilesDeployer(settings, parts(LocalRules(folders=(tmp_path / "live",))))
    with pytest.raises(Refused, match="allows no deployment"):
        await deployer.write(a_bundle(1))


async def test_links_below_the_allowed_folder_are_not_followed(bench: FilesBench, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "live" / CERTIFICATE).symlink_to(tmp_path / "outside")
    with pytest.raises(Refused) as why:
        await (await bench.deployer()).write(a_bundle(1))
    assert why.value.reason == Reason.TARGET_TAKEN
    assert list((tmp_path / "outside").iterdir()) == []


@pytest.mark.parametrize("what", ["folder", "elsewhere"])
async def test_a_current_that_is_not_ours_is_left_alone(bench: FilesBench, what: str) -> None:
    bench.folder.mkdir()
    if what == "folder":
        (bench.folder / "current").mkdir()
    else:
        (bench.folder / "current").symlink_to("/etc")
    with pytest.raises(Refused) as why:
        await (await bench.deployer()).write(a_bundle(1))
    assert why.value.reason == Reason.TARGET_TAKEN


async def test_a_key_is_for_its_owner_and_a_narrower_mode_is_kept(bench: FilesBench) -> None:
    await (await bench.deployer()).write(a_bundle(1))
    key = bench.folder / "current" / "privkey.pem"
    assert _mode(key) == _mode(bench.folder / "current" / "combined.pem") == 0o600
    os.chmod(key, 0o444)
    await (await bench.deployer()).write(a_bundle(2))
    assert _mode(key) == 0o440  # as before, but never for others
    assert _mode(bench.folder / "current" / "fullchain.pem") == 0o644


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_labels_of_the_file_before_are_carried_over(bench: FilesBench) -> None:
    await (await bench.deployer()).write(a_bundle(1))
    key = bench.folder / "current" / "privkey.pem"
    acl = bytes.fromhex("02000000010006000000000004000400000000001000040000000000200000000000000000000000")[:4]
    entries = [(0x01, 6, 0xFFFFFFFF), (0x02, 4, 1), (0x04, 0, 0xFFFFFFFF), (0x10, 4, 0xFFFFFFFF), (0x20, 0, 0xFFFFFFFF)]
    for tag, perm, who in entries:
        acl += tag.to_bytes(2, "little") + perm.to_bytes(2, "little") + who.to_bytes(4, "little")
    try:
        os.setxattr(key, "system.posix_acl_access", acl)
    except OSError:
        pytest.skip("this file system keeps no ACLs")
    await (await bench.deployer()).write(a_bundle(2))
    assert os.getxattr(key, "system.posix_acl_access") == acl


async def test_what_a_crash_left_behind_is_removed_and_never_current(bench: FilesBench) -> None:
    await (await bench.deployer()).write(a_bundle(1))
    (bench.folder / ".bundle-9-abc.0011").mkdir()
    half = bench.folder / f"bundle-2-{a_bundle(2).content_id}"
    half.mkdir()
    (half / "fullchain.pem").write_bytes(b"half")
    await (await bench.deployer()).write(a_bundle(2))
    assert await bench.holds() == (a_bundle(2).leaf_sha256, a_bundle(2).key)
    await (await bench.deployer()).write(a_bundle(3))
    left = {each.name for each in bench.folder.iterdir()}
    assert left == {"current", *(f"bundle-{n}-{a_bundle(n).content_id}" for n in (2, 3))}


async def test_fixed_paths_are_written_as_well_and_what_was_there_before_is_restored(tmp_path: Path) -> None:
    fixed = tmp_path / "live" / "ssl"
    bench = FilesBench(tmp_path, certificate_path=str(fixed / "site.crt"), key_path=str(fixed / "site.key"))
    fixed.mkdir()
    (fixed / "site.crt").write_bytes(b"an old certificate")
    (fixed / "site.key").write_bytes(b"an old key")
    os.chmod(fixed / "site.key", 0o400)
    written = await (await bench.deployer()).write(a_bundle(1))
    assert (written.changed, written.atomic) == (True, False)
    assert (fixed / "site.key").read_bytes() == a_bundle(1).key.reveal()
    assert (fixed / "site.crt").read_bytes() == a_bundle(1).fullchain
    assert _mode(fixed / "site.key") == 0o400
    await (await bench.deployer()).restore(a_bundle(1), None)
    assert (fixed / "site.crt").read_bytes() == b"an old certificate"
    assert (fixed / "site.key").read_bytes() == b"an old key"


async def test_a_program_that_hangs_fails_or_asks_for_another_try_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "live").mkdir()
    programs = {
        "hangs": Program(argv=("/bin/sleep", "60"), timeout=0.2),
        "later": Program(argv=("/bin/sh", "-c", "echo busy; exit 75")),
        "fails": Program(argv=("/bin/sh", "-c", "printf 'bad\\033[31m line'; exit 1")),
        "floods": Program(argv=("/bin/sh", "-c", "yes | head -c 1000000; exit 3")),
        "missing": Program(argv=("/no/such/program",)),
    }
    said = {}
    for name in [*programs, "unknown"]:
        settings = FilesSettings(folder=str(tmp_path / "live"), reload=name)
        with pytest.raises((TryLater, Refused)) as why:
            await FilesDeployer(settings, parts(LocalRules(programs=programs))).reload()
        said[name] = (type(why.value), why.value.reason)
        assert len(str(why.value)) < 600
        assert str(why.value).isprintable()
    assert said == {
        "hangs": (TryLater, Reason.TARGET_BUSY),
        "later": (TryLater, Reason.TARGET_BUSY),
        "fails": (Refused, Reason.RELOAD_FAILED),
        "floods": (Refused, Reason.RELOAD_FAILED),
        "missing": (Refused, Reason.PROGRAM_UNKNOWN),
        "unknown": (Refused, Reason.PROGRAM_UNKNOWN),
    }


def test_the_names_of_certificates_never_lead_out_of_a_folder() -> None:
    odd = ["*.example.com", "../../etc", "a/b", ".hidden", "..", "x" * 253, "a\nb", "current"]
    found = [folder_name(each) for each in odd]
    assert found[0] == "_.example.com"
    assert not [each for each in found if "/" in each or each.startswith(".")]
    assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('folders = ["live"]', "from / on"),
        ('allow = ["iis"]', "iis"),
        ('[programs.x]\nargv = ["nginx"]', "from / on"),
        ("[programs.x]\nshell = 1", "argv"),
        ("[program.x]\nargv = []", "no key"),
    ],
)
def test_a_mistake_in_the_file_of_a_host_is_named(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        rules_of(text)


def test_the_file_of_a_host_allows_daemons_by_name() -> None:
    rules = rules_of('folders = ["/srv/live"]\nallow = ["nginx"]\n[programs.app]\nargv = ["/bin/app", "-r"]\n')
    assert sorted(rules.programs) == ["app", "nginx-reload", "nginx-test"]
    assert rules.folders == (Path("/srv/live"),)
