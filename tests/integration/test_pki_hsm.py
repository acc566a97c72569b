"""A CA key in a device: SoftHSM stands for one. It signs, it fails in ways that are told apart, and it recovers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from tests.support.keys import Draws
from tests.support.pki import DAY, NOW, a_key, a_request, root, signed
from tests.support.secrets_planted import WRONG_PIN
from tests.support.softhsm import PIN, needs_softhsm, token

from holdfast.core.key_kind import KeyKind
from holdfast.errors import TryLater
from holdfast.pki import authority, certify, crl, keys
from holdfast.pki.certify import finish_aside
from holdfast.pki.hsm import DeviceAddress, Pkcs11Signer
from holdfast.pki.profile import Profile, new_serial, plan
from holdfast.pki.refused import SignerRefused
from holdfast.pki.signing import SigningCertificate, verifies
from holdfast.secret import Secret

pytestmark = [pytest.mark.anyio, needs_softhsm]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeviceAddress]:
    with token(tmp_path_factory.mktemp("softhsm")) as where:
        yield where


def issuer_of(signer: Pkcs11Signer) -> SigningCertificate:
    ca = authority.CaCertificateFields(
        organization="Example", common_name="In a device", key=signer.public_key, serial=new_serial(Draws(9)),
        not_before=NOW - DAY, not_after=NOW + 100 * DAY, path_length=0,
    )  # fmt: skip
    certificate = signed(authority.prepare(ca, root()), a_key(KeyKind.EC_P256, 101))
    return SigningCertificate(id="hsm", certificate=certificate, crl_url="http://ca.example/one.crl")


@pytest.mark.parametrize(
    ("label", "deterministic"), [("p256", False), ("p384", False), ("rsa", True), ("ed25519", True)]
)
async def test_a_device_signs_certificates_and_crls(place: DeviceAddress, label: str, deterministic: bool):
    signer = Pkcs11Signer(replace(place, key=label))
    issuer = issuer_of(signer)
    intent = plan(Profile(), a_request(), issuer, serial=new_serial(Draws()), now=NOW)
    content = certify.prepare(intent, issuer)
    certificate = x509.load_der_x509_certificate(await finish_aside(content, signer))
    certificate.verify_directly_issued_by(issuer.certificate)
    again = await finish_aside(content, signer)
    assert (x509.load_der_x509_certificate(again) == certificate) is deterministic
    assert x509.load_der_x509_certificate(again).tbs_certificate_bytes == certificate.tbs_certificate_bytes
    revoked = [crl.Revoked(intent.serial, NOW)]
    der = crl.sign(issuer, signer, number=1, this_update=NOW, next_update=NOW + DAY, revoked=revoked)
    assert x509.load_der_x509_crl(der).is_signature_valid(signer.public_key)  # type: ignore[arg-type]
    assert not signer.quick
    signer.close()


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"pin": Secret(WRONG_PIN)}, SignerRefused, "the PIN is wrong"),
        ({"key": "other"}, SignerRefused, "there is no such key"),
        ({"key": "p521"}, SignerRefused, "curve"),
        ({"library": "/nowhere.so"}, SignerRefused, "cannot be used"),
        ({"token": "other"}, TryLater, "NoSuchToken"),
    ],
)
def test_what_a_person_must_mend_is_told_apart_from_what_may_pass(place: DeviceAddress, change, error, words: str):
    with pytest.raises(error, match=words) as raised:
        Pkcs11Signer(replace(place, **change))
    assert WRONG_PIN not in str(raised.value)
    assert PIN.reveal() not in str(raised.value)


def test_two_cas_share_a_token_and_survive_each_others_log_out(place: DeviceAddress):
    """Log-in and log-out count for the whole process: the second signer finds itself locked out, and dials again."""
    one, other = Pkcs11Signer(place), Pkcs11Signer(replace(place, key="rsa"))
    one.sign(b"a")
    one.close()
    assert verifies(other.public_key, other.sign(b"a"), b"a")
    assert verifies(one.public_key, one.sign(b"a"), b"a")
    one.close()
    other.close()


def test_many_threads_share_a_session_without_mixing_their_signatures(place: DeviceAddress):
    signer = Pkcs11Signer(place)
    contents = [f"content {n}".encode() for n in range(100)]
    with ThreadPoolExecutor(8) as threads:
        signatures = list(threads.map(signer.sign, contents))
    assert all(verifies(signer.public_key, made, content) for made, content in zip(signatures, contents, strict=True))
    signer.close()


def test_a_signer_shows_where_its_key_is_and_not_its_pin(place: DeviceAddress):
    signer = Pkcs11Signer(place)
    assert repr(signer) == "Pkcs11Signer(ca/p256, ecdsa-sha256)"
    assert PIN.reveal() not in repr(place)
    assert keys.kind_of(signer.public_key) is KeyKind.EC_P256
    signer.close()


def test_a_device_that_was_away_signs_again_for_all_who_use_it(place: DeviceAddress):
    """Its library looks for devices only when it starts: without a new start nobody would find it again."""
    one, other = Pkcs11Signer(place), Pkcs11Signer(replace(place, key="rsa"))
    tokens = Path(os.environ["SOFTHSM2_CONF"]).parent / "tokens"
    tokens.rename(tokens.with_name("away"))
    for signer in (one, other, one):
        with pytest.raises(TryLater):
            signer.sign(b"a")
    with pytest.raises(TryLater):
        Pkcs11Signer(place)
    tokens.with_name("away").rename(tokens)
    for signer in (one, other, one):
        assert verifies(signer.public_key, signer.sign(b"a"), b"a")
        signer.close()
