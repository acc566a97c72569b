"""Keystores that Java's keytool and OpenSSL open, modern and legacy; what is somebody else's stays."""

import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.deployer_benches.pkcs12 import Pkcs12Bench, a_bench
from tests.support.deploying import a_bundle

from holdfast.core.reasons import Reason
from holdfast.deployers.base import ChecksConfig, Reloads
from holdfast.errors import Refused

pytestmark = pytest.mark.anyio


@pytest.fixture
async def bench() -> AsyncIterator[Pkcs12Bench]:
    async with a_bench() as found:
        yield found


def keytool(bench: Pkcs12Bench, *words: str, store: Path | None = None) -> str:
    program = shutil.which("keytool")
    if program is None:
        pytest.skip("there is no keytool here: apt-get install openjdk-17-jre-headless")
    argv = [program, *words, "-keystore", str(store or bench.keystore), "-storepass:env", "STORE"]
    env = {**os.environ, "STORE": bench.password}
    return subprocess.run(argv, env=env, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize(
    ("encryption", "cipher"), [("modern", "AES-256-CBC"), ("legacy", "pbeWithSHA1And3-KeyTripleDES")]
)
async def test_java_and_openssl_open_it_with_its_whole_chain(bench: Pkcs12Bench, encryption: str, cipher: str) -> None:
    await (await bench.deployer(encryption=encryption, alias="tomcat")).write(a_bundle(1))
    listed = keytool(bench, "-list", "-v")
    assert "Alias name: tomcat" in listed
    assert "Entry type: PrivateKeyEntry" in listed
    assert "Certificate chain length: 2" in listed
    assert a_bundle(1).leaf_sha256.upper() in listed.replace(":", "")
    assert cipher in bench.encryption()
    assert bench.keystore.stat().st_mode & 0o777 == 0o600


async def test_the_other_encryption_makes_a_new_keystore_of_the_same_certificate(bench: Pkcs12Bench) -> None:
    for encryption in ("modern", "legacy", "modern"):
        assert (await (await bench.deployer(encryption=encryption)).write(a_bundle(1))).changed
        assert not (await (await bench.deployer(encryption=encryption)).write(a_bundle(1))).changed


async def test_another_alias_or_password_makes_a_new_keystore(bench: Pkcs12Bench) -> None:
    await (await bench.deployer()).write(a_bundle(1))
    assert (await (await bench.deployer(alias="other")).write(a_bundle(1))).changed
    bench.password = "another-password"
    assert (await (await bench.deployer(alias="other")).write(a_bundle(1))).changed
    assert await bench.holds() == (a_bundle(1).leaf_sha256, a_bundle(1).key)
    assert not (await (await bench.deployer(alias="other")).write(a_bundle(1))).changed


async def test_a_jks_keystore_is_refused_with_a_hint_and_stays(bench: Pkcs12Bench) -> None:
    words = (
        "-genkeypair",
        "-storetype",
        "JKS",
        "-alias",
        "a",
        "-dname",
        "CN=a",
        "-keyalg",
        "EC",
        "-keypass:env",
        "STORE",
    )
    keytool(bench, *words)
    before = bench.keystore.read_bytes()
    with pytest.raises(Refused, match="-deststoretype PKCS12"):
        await (await bench.deployer()).write(a_bundle(1))
    assert bench.keystore.read_bytes() == before


async def test_a_keystore_with_another_password_is_somebody_elses(bench: Pkcs12Bench) -> None:
    bench.keystore.write_bytes(b"not ours")
    with pytest.raises(Refused) as why:
        await (await bench.deployer()).write(a_bundle(1))
    assert why.value.reason == Reason.TARGET_TAKEN
    assert bench.keystore.read_bytes() == b"not ours"


async def test_a_daemon_that_calls_the_password_wrong_is_told_of_legacy(bench: Pkcs12Bench) -> None:
    deployer = await bench.deployer(test="failing", reload="failing")
    assert isinstance(deployer, ChecksConfig)
    assert isinstance(deployer, Reloads)
    for step, reason in ((deployer.test, Reason.CONFIG_TEST_FAILED), (deployer.reload, Reason.RELOAD_FAILED)):
        with pytest.raises(Refused, match="encryption=legacy") as why:
            await step()
        assert why.value.reason == reason
