"""OpenSSL accepts what we make, refuses what we revoke, and opens our files; other processes make the same bytes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from tests.support.keys import Draws
from tests.support.pki import (
    DAY,
    NOW,
    a_key,
    a_leaf,
    a_signer,
    an_intent,
    an_issuer,
    intermediate,
    openssl,
    root,
)
from tests.support.reaper import PATIENCE
from tests.support.secrets_planted import OPENSSL_PASSPHRASE

from holdfast.core.key_kind import KeyKind
from holdfast.core.revocation_reason import RevocationReason
from holdfast.pki import certify, chain, crl, csr, keys
from holdfast.pki.keys import to_encrypted_pem
from holdfast.pki.signing import SigningCertificate
from holdfast.secret import Secret

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl(1) is not installed")
CA_KINDS = [KeyKind.EC_P256, KeyKind.EC_P384, KeyKind.RSA_2048, KeyKind.ED25519]
WHEN = ["-attime", str(int(NOW.timestamp()))]
PASSPHRASE = Secret(OPENSSL_PASSPHRASE)


def lay_out(
    folder: Path, leaf: x509.Certificate, issuer: SigningCertificate, revoked: list[crl.Revoked], shard: int | None
) -> None:
    kind = keys.kind_of(issuer.public_key)
    assert kind is not None
    der = crl.sign(
        issuer, a_signer(kind), number=1, this_update=NOW, next_update=NOW + 7 * DAY, revoked=revoked, shard=shard
    )
    (folder / "crl.pem").write_bytes(x509.load_der_x509_crl(der).public_bytes(Encoding.PEM))
    (folder / "leaf.pem").write_bytes(chain.certificates_pem([leaf]))
    (folder / "intermediate.pem").write_bytes(chain.certificates_pem([issuer.certificate]))
    (folder / "root.pem").write_bytes(chain.certificates_pem([root(kind)]))


def verified(folder: Path, *more: str) -> subprocess.CompletedProcess[bytes]:
    return openssl(
        "verify", "-x509_strict", *WHEN, "-crl_check", "-CRLfile", "crl.pem", "-CAfile", "root.pem",
        "-untrusted", "intermediate.pem", *more, "leaf.pem", folder=folder,
    )  # fmt: skip


@pytest.mark.parametrize("kind", CA_KINDS)
def test_openssl_verifies_our_certificate_with_our_crl_until_it_is_revoked(kind: KeyKind, tmp_path: Path):
    issuer = an_issuer(kind)
    leaf = a_leaf(issuer)
    shard = an_intent(issuer).crl_shard
    lay_out(tmp_path, leaf, issuer, [crl.Revoked(2**100, NOW)], shard)
    done = verified(tmp_path, "-purpose", "sslserver", "-verify_hostname", "www.example.internal")
    assert (done.returncode, done.stdout) == (0, b"leaf.pem: OK\n"), done.stderr
    lay_out(tmp_path, leaf, issuer, [crl.Revoked(leaf.serial_number, NOW, RevocationReason.KEY_COMPROMISE)], shard)
    done = verified(tmp_path)
    assert done.returncode == 2
    assert b"certificate revoked" in done.stderr


def test_the_crl_of_another_shard_does_not_count(tmp_path: Path):
    issuer = an_issuer()
    shard = an_intent(issuer).crl_shard
    assert shard is not None
    lay_out(tmp_path, a_leaf(issuer), issuer, [], (shard + 1) % 4)
    assert b"different crl scope" in verified(tmp_path).stderr.lower()


def test_one_crl_for_all_is_accepted_too(tmp_path: Path):
    issuer = replace(an_issuer(), crl_url="http://ca.example.internal/one.crl", shards=1)
    lay_out(tmp_path, a_leaf(issuer), issuer, [], None)
    assert verified(tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("names", "good"), [(("a.example.internal",), True), (("example.internal",), True), (("a.example.com",), False)]
)
def test_openssl_obeys_our_name_constraints(names: tuple[str, ...], good: bool, tmp_path: Path):
    issuer = an_issuer(permit=("example.internal",))
    lay_out(tmp_path, a_leaf(issuer, names=names), issuer, [], an_intent(issuer).crl_shard)
    done = verified(tmp_path)
    assert (done.returncode == 0) is good
    assert (b"permitted subtree violation" in done.stderr) is not good


def test_the_placeholder_is_no_signature(tmp_path: Path):
    """What the linter sees must never pass for a certificate."""
    for kind in CA_KINDS:
        issuer = an_issuer(kind)
        lay_out(tmp_path, a_leaf(issuer), issuer, [], an_intent(issuer).crl_shard)
        preview = certify.prepare(an_intent(issuer), issuer).preview
        (tmp_path / "leaf.pem").write_bytes(preview.public_bytes(Encoding.PEM))
        assert verified(tmp_path).returncode == 2


@pytest.mark.parametrize("kind", [KeyKind.EC_P256, KeyKind.RSA_2048, KeyKind.ED25519])
def test_openssl_opens_our_encrypted_keys(kind: KeyKind, tmp_path: Path):
    pem = to_encrypted_pem(a_key(kind), PASSPHRASE, Draws())
    done = openssl(
        "pkey", "-passin", f"pass:{PASSPHRASE.reveal()}", "-pubout", "-outform", "DER", folder=tmp_path, stdin=pem
    )
    assert done.stdout == keys.spki(a_key(kind).public_key()), done.stderr
    shown = openssl("asn1parse", folder=tmp_path, stdin=pem).stdout
    assert b":PBES2" in shown
    assert b":id-scrypt" in shown or b":scrypt" in shown
    assert b":aes-256-cbc" in shown


@pytest.mark.parametrize(
    ("compatible", "words"), [(False, b"AES-256-CBC"), (True, b"pbeWithSHA1And3-KeyTripleDES-CBC")]
)
def test_openssl_opens_our_pkcs12_files(compatible: bool, words: bytes, tmp_path: Path):
    content = chain.to_pkcs12(a_key(), [a_leaf(), intermediate()], PASSPHRASE, name="www", compatible=compatible)
    done = openssl(
        "pkcs12", "-info", "-nodes", "-passin", f"pass:{PASSPHRASE.reveal()}", folder=tmp_path, stdin=content.reveal()
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(b"BEGIN CERTIFICATE") == 2
    assert done.stdout.count(b"BEGIN PRIVATE KEY") == 1
    assert words in done.stderr


def test_openssl_and_we_read_each_others_requests(tmp_path: Path):
    done = openssl("req", "-verify", "-noout", "-text", "-inform", "DER", folder=tmp_path,
                   stdin=csr.build(["a.example", "*.b.example"], a_key(), ips=["::1"]))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert b"DNS:a.example, DNS:*.b.example, IP Address:0:0:0:0:0:0:0:1" in done.stdout
    made = openssl(
        "req", "-new", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-subj", "/CN=a.example/O=Example",
        "-addext", "subjectAltName=DNS:b.example", "-addext", "keyUsage=digitalSignature,keyEncipherment",
        "-addext", "extendedKeyUsage=serverAuth", "-addext", "basicConstraints=CA:FALSE", folder=tmp_path,
    )  # fmt: skip
    request = csr.parse(made.stdout)
    assert (request.names, request.common_name) == (("b.example", "a.example"), "a.example")


# ── Another process ──

SIGN_AGAIN = """
import sys
from tests.support.pki import an_issuer, a_signer
from holdfast.pki import certify
from holdfast.pki.profile import Intent
sys.stdout.write(certify.sign(Intent.from_json(sys.stdin.buffer.read()), an_issuer(), a_signer()).hex())
"""


def test_another_process_makes_the_same_certificate_of_the_same_intent():
    intent = an_intent()
    done = subprocess.run(
        [sys.executable, "-c", SIGN_AGAIN], input=intent.to_json(), capture_output=True, timeout=PATIENCE, check=True,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert bytes.fromhex(done.stdout.decode()) == certify.sign(intent, an_issuer(), a_signer())
