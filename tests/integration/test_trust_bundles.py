"""The roots of our own CAs go to targets together with certificates: as a file, a truststore, a ConfigMap."""

import asyncio
from pathlib import Path

import pytest
from tests.support.deployer_benches import keystores, kubernetes, ssh
from tests.support.deployer_benches.files import FilesBench
from tests.support.deployer_benches.keystores import Pkcs12Bench
from tests.support.deploying import CERTIFICATE, a_bundle, with_roots
from tests.support.deploying_house import Yard, a_look
from tests.support.lifecycle import a_house

from holdfast.core.deployment import DeploymentState
from holdfast.core.own_ca.ca import CaOptions
from holdfast.core.reasons import Reason
from holdfast.deployers.kind import LocalRules
from holdfast.errors import Refused
from holdfast.operations.own_ca import manage as manage_ca
from holdfast.pki.ceremony import CeremonyPlan
from holdfast.store.database import Database
from holdfast.store.own_ca import cas

pytestmark = pytest.mark.anyio


async def test_roots_are_a_file_of_the_bundle_and_of_a_path_and_new_ones_take_their_place(tmp_path: Path) -> None:
    bench = FilesBench(tmp_path, roots_path=str(tmp_path / "live" / "roots.crt"))
    first, second = with_roots(a_bundle(1), 1), with_roots(a_bundle(1), 1, 2)
    assert (await (await bench.deployer()).write(first)).changed
    assert (bench.folder / "current" / "roots.pem").read_bytes() == first.roots
    assert (tmp_path / "live" / "roots.crt").read_bytes() == first.roots
    assert (tmp_path / "live" / "roots.crt").stat().st_mode & 0o777 == 0o644
    assert not (await (await bench.deployer()).write(first)).changed
    assert (await (await bench.deployer()).write(second)).changed
    assert (tmp_path / "live" / "roots.crt").read_bytes() == second.roots


async def test_roots_reach_another_machine_by_sftp_and_by_an_account_that_only_receives() -> None:
    async with ssh.a_bench() as bench:
        await (await bench.deployer()).write(with_roots(a_bundle(1), 1))
        file = bench.live / CERTIFICATE / "current" / "roots.pem"
        assert file.read_bytes() == with_roots(a_bundle(1), 1).roots
        bench.only_receives()
        await (await bench.deployer(receive=True)).write(with_roots(a_bundle(2), 1, 2))
        assert file.read_bytes() == with_roots(a_bundle(2), 1, 2).roots


@pytest.mark.parametrize("kind", ["jks", "pkcs12"])
async def test_java_trusts_the_roots_of_a_truststore(kind: str) -> None:
    async with keystores.a_jks_bench() if kind == "jks" else keystores.a_bench() as bench:
        path = bench.root / "live" / "trust"
        await (await bench.deployer(truststore=str(path))).write(with_roots(a_bundle(1), 1))
        bundle = with_roots(a_bundle(2), 1, 2)
        assert (await (await bench.deployer(truststore=str(path))).write(bundle)).changed
        assert not (await (await bench.deployer(truststore=str(path))).write(bundle)).changed
        listed = await asyncio.to_thread(bench.keytool, "-list", "-v", "-storetype", kind, store=path)
        assert listed.count("Entry type: trustedCertEntry") == 2
        wanted = [a_bundle(900 + each, f"root-{each}").leaf_sha256.upper() for each in (1, 2)]
        assert all(each in listed.replace(":", "") for each in wanted)
        await _is_left_alone(bench, path)


async def _is_left_alone(bench: Pkcs12Bench, path: Path) -> None:
    """A truststore with a certificate of somebody else."""
    theirs = bench.root / "their.pem"
    theirs.write_bytes(a_bundle(50).leaf)
    words = ["-importcert", "-noprompt", "-alias", "theirs", "-file", str(theirs)]
    await asyncio.to_thread(bench.keytool, *words, store=path)
    before = await asyncio.to_thread(path.read_bytes)
    with pytest.raises(Refused, match="not written from here") as why:
        await (await bench.deployer(truststore=str(path))).write(with_roots(a_bundle(3), 1))
    assert why.value.reason == Reason.TARGET_TAKEN
    assert await asyncio.to_thread(path.read_bytes) == before


async def test_a_config_map_gets_the_roots_by_server_side_apply() -> None:
    async with kubernetes.a_bench() as bench:
        place = "/api/v1/namespaces/prod/configmaps/our-roots"
        bundle = with_roots(a_bundle(1), 1)
        assert (await (await bench.deployer(config_map="our-roots")).write(bundle)).changed
        assert bench.api.secrets[place]["data"] == {"ca.crt": bundle.roots.decode()}
        assert not (await (await bench.deployer(config_map="our-roots")).write(bundle)).changed
        bench.api.put(place, {"data": {"ca.crt": "of trust-manager"}}, "trust-manager")
        with pytest.raises(Refused, match="ConfigMap prod/our-roots are managed by trust-manager") as why:
            await (await bench.deployer(config_map="our-roots")).write(with_roots(a_bundle(2), 2))
        assert why.value.reason == Reason.TARGET_TAKEN


async def test_a_deployment_brings_the_roots_of_all_our_cas(db: Database, tmp_path: Path) -> None:
    house = await a_house(db, tmp_path)
    for name in ("ca1", "ca2"):
        await manage_ca.create(
            house.certificate_context.secret_store,
            ca=name,
            plan=CeremonyPlan(name=f"Example {name}"),
            options=CaOptions(),
            actor="local:test",
        )
    live = tmp_path / "live"
    live.mkdir()
    yard = Yard(house, LocalRules(folders=(live,)), a_look())
    await yard.add("web-1", settings={"folder": str(live)})
    await house.ask(CERTIFICATE, targets=("web-1",))
    async with house.working(kinds=yard.kinds):
        await yard.reaches(CERTIFICATE, DeploymentState.INSTALLED)
    roots = (live / CERTIFICATE / "current" / "roots.pem").read_text()
    rows = [await house.read(cas.get, name) for name in ("ca1", "ca2")]
    assert all(each is not None and each.root.strip() in roots for each in rows)
    assert roots.count("BEGIN CERTIFICATE") == 2
