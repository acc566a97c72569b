"""Programs that install bundles: certbot's hooks and acme.sh's own deploy scripts run unchanged, and fenced."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.interop.packages import Debian
from tests.support.deployer_benches.program import ProgramBench, a_bench
from tests.support.deploying import CERTIFICATE, a_bundle
from tests.support.packages import tool
from tests.support.reaper import until

from holdfast.core.reasons import Reason
from holdfast.deployers.kind import Program
from holdfast.deployers.local_file import rules_of
from holdfast.errors import Refused, TryLater

pytestmark = pytest.mark.anyio


@pytest.fixture
async def bench() -> AsyncIterator[ProgramBench]:
    async with a_bench() as found:
        yield found


def also(bench: ProgramBench, program: Program) -> None:
    bench.rules = replace(bench.rules, programs={**bench.rules.programs, "other": program})


async def test_a_program_is_told_by_certbots_variables_and_by_ours_and_gets_no_others(bench: ProgramBench) -> None:
    await (await bench.deployer()).write(a_bundle(3))
    told = dict(line.partition("=")[::2] for line in (bench.root / "env").read_text().splitlines())
    assert told["RENEWED_DOMAINS"] == CERTIFICATE
    assert (told["HOLDFAST_NAME"], told["HOLDFAST_NUMBER"]) == (CERTIFICATE, "3")
    assert (told["HOLDFAST_REASON"], told["HOLDFAST_TARGET"]) == ("deploy", "web-1")
    assert "HOME" not in told
    assert bench.left() == []


@pytest.mark.parametrize(
    ("code", "error", "reason"),
    [
        (75, TryLater, Reason.TARGET_BUSY),
        (77, Refused, Reason.TARGET_REFUSED),
        (1, Refused, Reason.DEPLOY_FAILED),
    ],
)
async def test_its_exit_code_decides_and_neither_key_nor_password_is_repeated(
    bench: ProgramBench, code: int, error: type[TryLater | Refused], reason: Reason
) -> None:
    bench.exits_with(code)
    with pytest.raises(error) as why:
        await (await bench.deployer()).write(a_bundle(1))
    assert why.value.reason == reason
    assert not [line for line in a_bundle(1).key.reveal().decode().splitlines() if line in str(why.value)]
    assert "the password is ***" in str(why.value)
    assert bench.left() == []


async def test_one_that_hangs_and_forks_is_ended_with_its_children_and_nothing_stays(bench: ProgramBench) -> None:
    script = f"sleep 1000 & echo $! > {bench.root}/child; wait"
    also(bench, Program(argv=("/bin/sh", "-c", script), timeout=0.5))
    with pytest.raises(TryLater, match="did not end"):
        await (await bench.deployer("other")).write(a_bundle(1))
    child = (bench.root / "child").read_text().strip()
    until(lambda: _is_gone(child), "the end of the child", every=0.02)
    assert bench.left() == []


async def test_what_a_crash_left_behind_is_removed_before_the_next_run(bench: ProgramBench) -> None:
    left = bench.folder / "web-1" / CERTIFICATE / "bundle-1-0123456789abcdef" / CERTIFICATE
    left.mkdir(parents=True)
    (left / "privkey.pem").write_text("key")
    await (await bench.deployer()).write(a_bundle(2))
    assert bench.left() == []


async def test_a_program_that_the_host_does_not_name_is_not_run(bench: ProgramBench) -> None:
    with pytest.raises(Refused) as why:
        await (await bench.deployer("/bin/sh")).write(a_bundle(1))
    assert why.value.reason == Reason.PROGRAM_UNKNOWN
    assert bench.left() == []


def _is_gone(process: str) -> bool:
    found = Path(f"/proc/{process}/stat")
    return not found.exists() or found.read_text().split()[2] == "Z"


# ── acme.sh ──


def acme_sh(bench: ProgramBench, script: Path, env: str) -> None:
    rules = rules_of(f'[programs.other]\nacme_sh = "{script}"\nenv = {{ {env} }}\n')
    also(bench, rules.programs["other"])


async def test_acme_shs_own_haproxy_script_runs_unchanged_and_keeps_nothing(bench: ProgramBench) -> None:
    scripts = tool(Debian(("acme.sh",), suite="trixie"), "acme.sh").programs[-1] / "deploy"
    (bench.root / "certs").mkdir()
    env = f'DEPLOY_HAPROXY_PEM_PATH = "{bench.root}/certs", DEPLOY_HAPROXY_RELOAD = "touch {bench.root}/reloaded"'
    acme_sh(bench, scripts / "haproxy.sh", env)
    await (await bench.deployer("other")).write(a_bundle(1))
    combined = (bench.root / "certs" / f"{CERTIFICATE}.pem").read_bytes()
    assert a_bundle(1).leaf.strip() in combined
    assert a_bundle(1).key.reveal().strip() in combined
    assert (bench.root / "reloaded").exists()
    assert bench.left() == []


async def test_a_script_of_acme_sh_that_fails_or_is_not_there_is_refused(bench: ProgramBench) -> None:
    scripts = tool(Debian(("acme.sh",), suite="trixie"), "acme.sh").programs[-1] / "deploy"
    for script, said in ((scripts / "myapi.sh", "Not implemented yet"), (scripts / "none.sh", "there is no")):
        acme_sh(bench, script, 'A = "b"')
        with pytest.raises(Refused, match=said):
            await (await bench.deployer("other")).write(a_bundle(1))
        assert bench.left() == []


@pytest.mark.parametrize("table", ['argv = ["sh"]', 'acme_sh = "x.sh"', 'argv = ["/a"]\nacme_sh = "/b"', "env = {}"])
def test_a_program_of_the_local_file_is_written_from_the_root_on_and_in_one_way(table: str) -> None:
    with pytest.raises(ValueError, match="other"):
        rules_of(f"[programs.other]\n{table}\n")
