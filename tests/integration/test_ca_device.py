"""A CA whose key is in a device: brought along by the key's address, opened, signing; and what is told if it fails."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from tests.support.api import a_desk
from tests.support.ca import a_vault, adopt_ca, authorities_of, issue, opened_ca
from tests.support.engine import Watch, eventually, working
from tests.support.pki import a_key
from tests.support.softhsm import LIBRARY, PIN, needs_softhsm, token

from holdfast.core.own_ca.ca import CaOptions, CaPolicy
from holdfast.engine.own_ca import crls as crl_jobs
from holdfast.errors import TryLater
from holdfast.operations.context import OwnCaServices
from holdfast.operations.own_ca.manage import Brought, CaRefused
from holdfast.pki import authority, chain, keys
from holdfast.pki.ceremony import CeremonyPlan, make
from holdfast.pki.certify import finish
from holdfast.pki.hsm import DeviceAddress, Pkcs11Signer, place_of
from holdfast.pki.profile import new_serial
from holdfast.pki.refused import SignerRefused
from holdfast.pki.signing import KeySigner
from holdfast.store.database import Database
from holdfast.store.own_ca import cas, crls
from holdfast.world import LocalFiles, SystemClock, SystemRandom

# ── The address ──


def read(path: Path) -> bytes | None:
    return {Path("/pin"): PIN.reveal().encode() + b"\n", Path("/empty"): b"\n"}.get(path)


def test_an_address_names_the_library_the_token_the_key_and_the_file_of_the_pin() -> None:
    place = place_of("pkcs11:token=my%20ca;object=issuer;type=private?module-path=/lib/x.so&pin-source=file:/pin", read)
    assert (place.library, place.token, place.key, place.pin) == ("/lib/x.so", "my ca", "issuer", PIN)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("", "not the address"),
        ("/lib/x.so", "not the address"),
        ("pkcs11:token=a;object=b?module-path=/x", "not the address"),
        ("pkcs11:token=a?module-path=/x&pin-source=/pin", "not the address"),
        ("pkcs11:token=a;object=b?module-path=/x&pin-value=5678", "may not stand in the address"),
        ("pkcs11:token=a;object=b?module-path=/x&pin-source=file:/none", "no PIN in /none"),
        ("pkcs11:token=a;object=b?module-path=/x&pin-source=/empty", "no PIN in /empty"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_without_its_pin(address: str, words: str) -> None:
    with pytest.raises(SignerRefused, match=words) as refusal:
        place_of(address, read)
    assert "5678" not in str(refusal.value) + refusal.value.hint


# ── The CA ──


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeviceAddress]:
    with token(tmp_path_factory.mktemp("softhsm")) as where:
        yield where


async def in_device(place: DeviceAddress, label: str, pin: Path) -> Brought:
    """A chain from a root of files to an issuer whose key is in the token."""
    LocalFiles().write_private(pin, PIN.reveal().encode(), replace=True)
    now, random = SystemClock().now().replace(microsecond=0), SystemRandom()
    made = await make(CeremonyPlan(name="Example"), now=now, random=random)
    signer = Pkcs11Signer(replace(place, key=label))
    plan = authority.CaCertificateFields(
        organization="Example",
        common_name="In a device",
        key=signer.public_key,
        serial=new_serial(random),
        not_before=now - timedelta(minutes=30),
        not_after=now + timedelta(days=365),
        path_length=0,
    )
    issuer = x509.load_der_x509_certificate(finish(authority.prepare(plan, made.root), KeySigner(made.root_key)))
    signer.close()
    address = f"pkcs11:token=ca;object={label}?module-path={LIBRARY}&pin-source=file:{pin}"
    return Brought(chain=chain.certificates_pem([issuer, made.root]), device=address)


@needs_softhsm
@pytest.mark.anyio
@pytest.mark.parametrize("label", ["p256", "ed25519"])
async def test_a_ca_in_a_device_signs_certificates_and_lists(
    db: Database, tmp_path: Path, place: DeviceAddress, label: str
) -> None:
    secret_store, watch = await a_vault(db, tmp_path), Watch()
    brought = await in_device(place, label, tmp_path / "pin")
    await adopt_ca(secret_store, ca="ca1", brought=brought, options=CaOptions(), actor="local:test")
    authorities = authorities_of(secret_store, watch=watch)
    await authorities.refresh()
    opened = authorities.get("ca1")
    assert opened is not None, authorities.problem("ca1")
    leaf = x509.load_der_x509_certificate((await issue(db, opened)).der)
    leaf.verify_directly_issued_by(opened.issuer.certificate)
    async with working(db, [crl_jobs.kind(db, authorities, watch.telemetry)], watch=watch):
        await eventually(lambda: db.read(lambda tx: crls.get(tx, "ca1", 0)))
    assert await db.read(lambda tx: tx.rows("SELECT id FROM secrets")) == []  # the key never was here


@needs_softhsm
@pytest.mark.anyio
async def test_a_ca_whose_pin_is_gone_says_so_and_comes_back_with_it(
    db: Database, tmp_path: Path, place: DeviceAddress
) -> None:
    secret_store, watch, pin = await a_vault(db, tmp_path), Watch(), tmp_path / "pin"
    brought = await in_device(place, "p256", pin)
    await adopt_ca(secret_store, ca="ca1", brought=brought, options=CaOptions(), actor="local:test")
    pin.unlink()
    authorities = authorities_of(secret_store, watch=watch)
    for _ in range(3):
        await authorities.refresh()
    assert "There is no PIN" in (authorities.problem("ca1") or "")
    assert len(watch.log.told("ca.not_opened")) == 1
    LocalFiles().write_private(pin, PIN.reveal().encode(), replace=False)
    await authorities.refresh()
    assert authorities.get("ca1") is not None
    assert authorities.problem("ca1") is None


@needs_softhsm
@pytest.mark.anyio
async def test_a_key_of_another_certificate_is_not_taken_over(
    db: Database, tmp_path: Path, place: DeviceAddress
) -> None:
    secret_store = await a_vault(db, tmp_path)
    brought = await in_device(place, "p256", tmp_path / "pin")
    other = replace(brought, device=(brought.device or "").replace("object=p256", "object=rsa"))
    with pytest.raises(SignerRefused, match="not the one in the issuer's certificate"):
        await adopt_ca(secret_store, ca="ca1", brought=other, options=CaOptions(), actor="local:test")
    both = replace(brought, key=keys.to_pem(a_key()))
    with pytest.raises(CaRefused, match="a key, or with a device"):
        await adopt_ca(secret_store, ca="ca1", brought=both, options=CaOptions(), actor="local:test")
    assert await db.read(cas.everything) == []


@needs_softhsm
@pytest.mark.anyio
async def test_a_token_that_is_not_there_is_told_to_whoever_brings_the_ca(
    db: Database, tmp_path: Path, place: DeviceAddress
) -> None:
    brought = await in_device(place, "p256", tmp_path / "pin")
    mistyped = replace(brought, device=(brought.device or "").replace("token=ca", "token=cb"))
    secret_store = await a_vault(db, tmp_path)
    with pytest.raises(SignerRefused, match="Token 'cb'") as refused:
        await adopt_ca(secret_store, ca="ca1", brought=mistyped, options=CaOptions(), actor="local:test")
    assert "list" in refused.value.hint


@pytest.mark.anyio
async def test_a_command_is_told_in_words_that_a_device_does_not_answer(db: Database, tmp_path: Path) -> None:
    def problem(name: str) -> str:
        raise TryLater("Token 'ca', key 'p256': no signature could be had (DeviceRemoved)")

    opened = await opened_ca(db, tmp_path)
    own = OwnCaServices(policy=CaPolicy(), refresh=opened.authorities.refresh, problem=problem)
    async with a_desk(db, tmp_path, own_ca=own) as desk:
        reply = await (await desk.as_())("GET", "/cas/ca1")
    told = reply.json()
    assert (reply.status_code, told["code"], "DeviceRemoved" in told["detail"]) == (503, "try-later", True)
