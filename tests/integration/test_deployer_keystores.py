"""Keystores that Java's keytool and OpenSSL open, modern and legacy; what is somebody else's stays."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.support.deployer_benches.keystores import JksBench, Pkcs12Bench, a_bench, a_jks_bench
from tests.support.deploying import a_bundle

from holdfast.core.reasons import Reason
from holdfast.deployers.base import ChecksConfig, Reloads
from holdfast.errors import Refused

pytestmark = pytest.mark.anyio
A_JKS = ["-genkeypair", "-storetype", "JKS", "-alias", "a", "-dname", "CN=a", "-keyalg", "EC", "-keypass:env", "STORE"]


@pytest.fixture
async def bench() -> AsyncIterator[Pkcs12Bench]:
    async with a_bench() as found:
        yield found


@pytest.mark.parametrize(
    ("encryption", "cipher"), [("modern", "AES-256-CBC"), ("legacy", "pbeWithSHA1And3-KeyTripleDES")]
)
async def test_java_and_openssl_open_it_with_its_whole_chain(bench: Pkcs12Bench, encryption: str, cipher: str) -> None:
    await (await bench.deployer(encryption=encryption, alias="tomcat")).write(a_bundle(1))
    listed = bench.keytool("-list", "-v")
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
    bench.keytool(*A_JKS)
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


# ── JKS ──


@pytest.fixture
async def jks() -> AsyncIterator[JksBench]:
    async with a_jks_bench() as found:
        yield found


async def test_java_opens_a_jks_keystore_with_its_whole_chain(jks: JksBench) -> None:
    jks.password = "a password of Java"
    await (await jks.deployer(alias="Tomcat")).write(a_bundle(1))
    listed = await asyncio.to_thread(jks.keytool, "-list", "-v", "-storetype", "JKS", "-alias", "Tomcat")
    assert "Entry type: PrivateKeyEntry" in listed
    assert "Certificate chain length: 2" in listed
    assert a_bundle(1).leaf_sha256.upper() in listed.replace(":", "")
    assert jks.keystore.stat().st_mode & 0o777 == 0o600
    assert await jks.holds() == (a_bundle(1).leaf_sha256, a_bundle(1).key)


async def test_a_keystore_that_keytool_made_is_taken_over_only_if_nothing_else_is_in_it(jks: JksBench) -> None:
    await asyncio.to_thread(jks.keytool, *A_JKS)
    more = [word if word not in ("a", "CN=a") else f"{word}b" for word in A_JKS]
    await asyncio.to_thread(jks.keytool, *more)
    before = jks.keystore.read_bytes()
    with pytest.raises(Refused, match="1 more entries") as why:
        await (await jks.deployer()).write(a_bundle(1))
    assert why.value.reason == Reason.TARGET_TAKEN
    assert jks.keystore.read_bytes() == before
    await asyncio.to_thread(jks.keytool, "-delete", "-alias", "ab")
    assert (await (await jks.deployer(alias="a")).write(a_bundle(1))).changed


@pytest.mark.parametrize("content", [b"not ours", bytes.fromhex("feedfeed00000002ffffffff") + b"x" * 40, b""])
async def test_what_is_no_jks_keystore_stays(jks: JksBench, content: bytes) -> None:
    jks.keystore.write_bytes(content)
    with pytest.raises(Refused) as why:
        await (await jks.deployer()).write(a_bundle(1))
    assert why.value.reason == Reason.TARGET_TAKEN
    assert jks.keystore.read_bytes() == content
