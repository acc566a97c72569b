"""Targets with an HTTP API: what each vendor's answers mean for a deployment."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.deployer_benches import aws_acm, kubernetes, vault_kv
from tests.support.deploying import a_bundle

from holdfast.core.reasons import Reason
from holdfast.deployers import local_file
from holdfast.deployers.kubernetes import KUBERNETES, KubernetesSettings
from holdfast.errors import Refused, TryLater

pytestmark = pytest.mark.anyio

# ── Kubernetes ──


async def test_a_secret_says_which_certificate_it_holds() -> None:
    async with kubernetes.a_bench() as bench:
        await (await bench.deployer()).write(a_bundle(7))
        found = bench.api.secrets[kubernetes.PLACE]
        notes = found["metadata"]["annotations"]
        assert found["type"] == "kubernetes.io/tls"
        assert (notes["holdfast/certificate"], notes["holdfast/number"]) == ("www.example.com", "7")
        assert notes["holdfast/serial"] == a_bundle(7).serial


async def test_the_other_manager_of_a_secret_is_named_and_only_take_over_forces() -> None:
    async with kubernetes.a_bench() as bench:
        theirs = {"type": "kubernetes.io/tls", "data": {"tls.crt": "eA==", "tls.key": "eA=="}}
        bench.api.put(kubernetes.PLACE, theirs, "cert-manager")
        with pytest.raises(Refused, match=r"managed by cert-manager.*take_over") as why:
            await (await bench.deployer()).write(a_bundle(1))
        assert why.value.reason == Reason.TARGET_TAKEN
        assert bench.api.secrets[kubernetes.PLACE]["data"] == theirs["data"]
        await (await bench.deployer(take_over=True)).write(a_bundle(1))
        assert await bench.holds() == (a_bundle(1).leaf_sha256, a_bundle(1).key)


@pytest.mark.parametrize(
    ("theirs", "said"),
    [({"type": "Opaque"}, "Opaque"), ({"type": "kubernetes.io/tls", "immutable": True}, "immutable")],
)
async def test_a_secret_that_cannot_be_changed_asks_for_a_person(theirs: dict[str, object], said: str) -> None:
    async with kubernetes.a_bench() as bench:
        bench.api.put(kubernetes.PLACE, {**theirs, "data": {}}, "kubectl")
        with pytest.raises(Refused, match=f"{said}.*Delete it") as why:
            await (await bench.deployer(take_over=True)).write(a_bundle(1))
        assert why.value.reason == Reason.TARGET_TAKEN


async def test_a_secret_that_changed_since_it_was_read_is_tried_later() -> None:
    async with kubernetes.a_bench() as bench:
        await (await bench.deployer()).write(a_bundle(1))
        newer = {**bench.api.secrets[kubernetes.PLACE]}
        bench.api.meanwhile.append(lambda: bench.api.put(kubernetes.PLACE, newer, "holdfast"))
        with pytest.raises(TryLater) as why:
            await (await bench.deployer()).write(a_bundle(2))
        assert why.value.reason == Reason.TARGET_BUSY


async def test_a_missing_right_is_named_by_its_verb_and_a_missing_namespace_by_its_setting() -> None:
    async with kubernetes.a_bench() as bench:
        bench.api.refuses = True
        with pytest.raises(Refused, match="the verb patch on secrets in prod"):
            await (await bench.deployer()).write(a_bundle(1))
        bench.api.refuses = False
        with pytest.raises(Refused, match="setting namespace: other"):
            await (await bench.deployer(namespace="other")).write(a_bundle(1))


async def test_a_token_file_is_read_again_each_time_and_goes_only_where_the_host_says(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{kubernetes.TOKEN}\n")
    async with kubernetes.a_bench() as bench:
        rules = local_file.rules_of(f'[token_files]\n"{file}" = "{bench.api.origin}/"\n')
        deployer = await bench.deployer(rules, token_file=str(file))
        await deployer.write(a_bundle(1))
        bench.api.tokens = {"rotated"}
        with pytest.raises(Refused, match="setting token_file"):
            await deployer.write(a_bundle(2))
        assert [each.method for each in bench.api.requests[-2:]] == ["GET", "GET"], "read again once"
        file.write_text("rotated")
        await deployer.write(a_bundle(2))
        elsewhere = local_file.rules_of(f'[token_files]\n"{file}" = "https://kubernetes.default.svc"\n')
        asked = len(bench.api.requests)
        with pytest.raises(Refused, match="does not allow the token"):
            await (await bench.deployer(elsewhere, token_file=str(file))).write(a_bundle(3))
        assert len(bench.api.requests) == asked, "nothing was sent"


def test_a_target_has_a_token_or_a_token_file() -> None:
    assert KUBERNETES.fits is not None
    settings = KubernetesSettings(base_url="https://k8s.example.com", namespace="prod", secret="www")
    KUBERNETES.fits(settings, {"token": None})
    with pytest.raises(ValueError, match="either the setting token_file or the credential token"):
        KUBERNETES.fits(settings, {})


async def test_one_secret_holds_one_certificate() -> None:
    async with kubernetes.a_bench() as bench:
        await (await bench.deployer()).write(a_bundle(1))
        with pytest.raises(Refused, match="one place holds one certificate") as why:
            await (await bench.deployer()).write(a_bundle(2, "other.example.com"))
        assert why.value.reason == Reason.TARGET_TAKEN


# ── Vault ──


async def test_a_second_writer_in_vault_is_noticed() -> None:
    async with vault_kv.a_bench() as bench:
        await (await bench.deployer()).write(a_bundle(1))
        bench.api.meanwhile.append(lambda: bench.api.versions.append({"theirs": "x"}))
        with pytest.raises(TryLater) as why:
            await (await bench.deployer()).write(a_bundle(2))
        assert why.value.reason == Reason.TARGET_BUSY
        assert bench.api.versions[-1] == {"theirs": "x"}


async def test_a_secret_of_somebody_else_in_vault_stays_unless_it_is_taken_over_and_comes_back() -> None:
    async with vault_kv.a_bench() as bench:
        bench.api.versions.append({"password": "theirs"})
        with pytest.raises(Refused) as why:
            await (await bench.deployer()).write(a_bundle(1))
        assert why.value.reason == Reason.TARGET_TAKEN
        await (await bench.deployer(take_over=True)).write(a_bundle(1))
        for _ in range(2):
            await (await bench.deployer()).restore(a_bundle(1), None)
            assert bench.api.versions[-1] == {"password": "theirs"}


async def test_a_deleted_version_in_vault_counts() -> None:
    async with vault_kv.a_bench() as bench:
        bench.api.versions += [{"theirs": "x"}, None]
        await (await bench.deployer()).write(a_bundle(1))
        assert await bench.holds() == (a_bundle(1).leaf_sha256, a_bundle(1).key)


async def test_a_wrong_mount_in_vault_is_named() -> None:
    async with vault_kv.a_bench() as bench:
        with pytest.raises(Refused, match="setting mount"):
            await (await bench.deployer(mount="kv")).write(a_bundle(1))


# ── AWS ──


async def test_a_key_of_another_type_is_refused_before_anything_is_sent_to_acm() -> None:
    async with aws_acm.a_bench() as bench:
        bench.api.algorithm = "RSA_2048"
        with pytest.raises(Refused, match="RSA_2048, the new one EC_prime256v1") as why:
            await (await bench.deployer()).write(a_bundle(1))
        assert why.value.reason == Reason.BUNDLE_UNFIT
        assert bench.api.tags == {}
        assert await bench.holds() == (a_bundle(90).leaf_sha256, a_bundle(90).key)


async def test_a_certificate_that_acm_issued_itself_is_left_alone() -> None:
    async with aws_acm.a_bench() as bench:
        bench.api.type = "AMAZON_ISSUED"
        with pytest.raises(Refused) as why:
            await (await bench.deployer()).write(a_bundle(1))
        assert why.value.reason == Reason.TARGET_TAKEN


async def test_an_import_that_acm_does_not_show_is_no_success_and_is_repeated() -> None:
    async with aws_acm.a_bench() as bench:
        await (await bench.deployer()).write(a_bundle(1))
        bench.api.loses_imports = True
        with pytest.raises(TryLater):
            await (await bench.deployer()).write(a_bundle(2))
        with pytest.raises(Refused) as why:  # the tag is there already
            await (await bench.deployer()).write(a_bundle(1))
        assert why.value.reason == Reason.TARGET_HAS_NEWER
        bench.api.loses_imports = False
        await (await bench.deployer()).write(a_bundle(2))
        assert await bench.holds() == (a_bundle(2).leaf_sha256, a_bundle(2).key)
        assert bench.api.tags["holdfast:number"] == "2"


async def test_throttling_is_waited_out_and_a_wrong_secret_is_named() -> None:
    async with aws_acm.a_bench() as bench:
        bench.api.throttles = True
        with pytest.raises(TryLater) as why:
            await (await bench.deployer()).write(a_bundle(1))
        assert why.value.reason == Reason.TARGET_BUSY
        with pytest.raises(Refused, match="credential secret_access_key"):
            await (await bench.deployer(secret_access_key="another")).write(a_bundle(1))
