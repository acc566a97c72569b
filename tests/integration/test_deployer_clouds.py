"""Key Vault, Certificate Manager and BIG-IP: what each refuses, what is waited for, and what must not stay behind."""

from collections.abc import AsyncIterator

import pytest
from tests.support.deployer_benches import azure_keyvault, f5, gcp_certificate_manager
from tests.support.deployer_benches.azure_keyvault import AzureKeyVaultBench
from tests.support.deployer_benches.f5 import F5Bench
from tests.support.deployer_benches.gcp_certificate_manager import PLACE, GcpBench
from tests.support.deploying import a_bundle

from holdfast.core.reasons import Reason
from holdfast.errors import Refused, TryLater

pytestmark = pytest.mark.anyio


@pytest.fixture
async def vault() -> AsyncIterator[AzureKeyVaultBench]:
    async with azure_keyvault.a_bench() as found:
        yield found


@pytest.fixture
async def gcp() -> AsyncIterator[GcpBench]:
    async with gcp_certificate_manager.a_bench() as found:
        yield found


@pytest.fixture
async def bigip() -> AsyncIterator[F5Bench]:
    async with f5.a_bench() as found:
        yield found


# ── Azure Key Vault ──


async def test_key_vault_is_logged_in_to_once_for_a_deployment(vault: AzureKeyVaultBench) -> None:
    await (await vault.deployer()).write(a_bundle(1))
    assert vault.api.logins == 1
    assert vault.api.versions[-1]["tags"]["holdfast-number"] == "1"


async def test_a_certificate_of_key_vault_that_is_not_ours_stays(vault: AzureKeyVaultBench) -> None:
    vault.api.versions.append({"value": a_bundle(90).combined.reveal().decode(), "tags": {}})
    with pytest.raises(Refused, match="take_over") as why:
        await (await vault.deployer()).write(a_bundle(1))
    assert why.value.reason == Reason.TARGET_TAKEN
    assert len(vault.api.versions) == 1
    assert (await (await vault.deployer(take_over=True)).write(a_bundle(1))).changed


async def test_a_deleted_certificate_of_key_vault_is_named_with_what_to_do(vault: AzureKeyVaultBench) -> None:
    vault.api.deleted = True
    with pytest.raises(Refused, match="recover it, or purge it") as why:
        await (await vault.deployer()).write(a_bundle(1))
    assert why.value.reason == Reason.TARGET_TAKEN


async def test_a_wrong_client_secret_is_named_and_never_quoted(vault: AzureKeyVaultBench) -> None:
    with pytest.raises(Refused, match="credential client_secret") as why:
        await (await vault.deployer(secret="another-secret-of-tests")).write(a_bundle(1))
    assert "another-secret-of-tests" not in str(why.value)


# ── Google Cloud ──


async def test_an_operation_that_goes_on_is_waited_for_and_found_done(gcp: GcpBench) -> None:
    gcp.api.slow = True
    with pytest.raises(TryLater, match="still at it") as why:
        await (await gcp.deployer()).write(a_bundle(1))
    assert why.value.reason == Reason.TARGET_BUSY
    assert not (await (await gcp.deployer()).write(a_bundle(1))).changed


async def test_a_certificate_that_google_renews_stays(gcp: GcpBench) -> None:
    gcp.api.certificates[PLACE] = {"managed": {"domains": ["www.example.com"]}, "pemCertificate": "x"}
    with pytest.raises(Refused, match="Google renews") as why:
        await (await gcp.deployer()).write(a_bundle(1))
    assert why.value.reason == Reason.TARGET_TAKEN


async def test_a_certificate_of_google_that_is_not_ours_stays(gcp: GcpBench) -> None:
    gcp.api.certificates[PLACE] = {"selfManaged": {}, "pemCertificate": "x", "description": "by hand"}
    with pytest.raises(Refused, match="take_over") as why:
        await (await gcp.deployer()).write(a_bundle(1))
    assert why.value.reason == Reason.TARGET_TAKEN


@pytest.mark.parametrize(
    "given", ["{}", "no JSON", '{"private_key": "x", "client_email": "a", "token_uri": "b"}', "[]"]
)
async def test_what_is_no_service_account_is_refused_before_anything_is_asked(gcp: GcpBench, given: str) -> None:
    with pytest.raises(Refused, match="service_account is no JSON key"):
        await (await gcp.deployer(credential=given)).write(a_bundle(1))
    assert gcp.api.requests == []


# ── F5 BIG-IP ──


async def test_no_uploaded_file_stays_on_the_bigip_and_two_pairs_do(bigip: F5Bench) -> None:
    for number in (1, 2, 3):
        deployer = await bigip.deployer()
        await deployer.write(a_bundle(number))
        await deployer.close()
    assert bigip.api.uploads == {}
    ours = sorted(each for each in bigip.api.objects["key"] if "holdfast" in each)
    assert [each.split("_")[2] for each in ours] == ["2", "3"]
    assert bigip.api.tokens == set()  # a user may have 100 of them


async def test_the_profile_changes_in_a_transaction_and_the_change_is_saved(bigip: F5Bench) -> None:
    await (await bigip.deployer(device_group="pair")).write(a_bundle(1))
    patched = [each for each in bigip.api.requests if each.method == "PATCH" and "client-ssl" in each.path]
    assert [each.headers.get("x-f5-rest-coordination-id") for each in patched] == ["1700000000"]
    assert bigip.api.saved == bigip.api.pair
    assert bigip.api.synced == ["config-sync to-group pair"]


async def test_a_transaction_that_does_not_end_is_waited_for_and_the_old_pair_stays(bigip: F5Bench) -> None:
    bigip.api.slow = True
    before = bigip.api.pair
    with pytest.raises(TryLater) as why:
        await (await bigip.deployer()).write(a_bundle(1))
    assert why.value.reason == Reason.TARGET_BUSY
    assert bigip.api.pair == before
    bigip.api.slow = False
    assert (await (await bigip.deployer()).write(a_bundle(1))).changed


async def test_a_unit_on_standby_is_not_changed(bigip: F5Bench) -> None:
    bigip.api.standby = True
    with pytest.raises(TryLater, match="standby"):
        await (await bigip.deployer()).write(a_bundle(1))
    assert bigip.api.uploads == {}
    assert not [each for each in bigip.api.objects["key"] if "holdfast" in each]


async def test_the_pair_that_the_bigip_kept_is_restored(bigip: F5Bench) -> None:
    for number in (1, 2):
        await (await bigip.deployer()).write(a_bundle(number))
    await (await bigip.deployer()).restore(a_bundle(2), None)
    assert await bigip.holds() == (a_bundle(1).leaf_sha256, a_bundle(1).key)


async def test_a_profile_of_another_certificate_is_left_alone(bigip: F5Bench) -> None:
    await (await bigip.deployer()).write(a_bundle(1))
    with pytest.raises(Refused) as why:
        await (await bigip.deployer()).write(a_bundle(5, "other.example.com"))
    assert why.value.reason == Reason.TARGET_TAKEN
    bigip.api.pair = [*bigip.api.pair, *bigip.api.pair]
    with pytest.raises(Refused, match="2 pairs"):
        await (await bigip.deployer()).write(a_bundle(2))
