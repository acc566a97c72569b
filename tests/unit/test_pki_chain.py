"""A chain is used only if it is for our key, our names and this time, and if each certificate signs the one before."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from tests.support.pki import DAY, NOW, a_key, a_leaf, an_issuer, intermediate, root

from holdfast.core.key_kind import KeyKind
from holdfast.pki import chain, der, keys
from holdfast.pki.refused import ChainRefused
from holdfast.pki.signing import is_self_signed

LEAF, MIDDLE, ROOT = a_leaf(), intermediate(), root()
OTHER_MIDDLE, OTHER_ROOT = intermediate(number=202, root_number=201), root(number=201)
NAMES = ["www.example.internal"]


def problem(
    certificates: Sequence[x509.Certificate],
    *,
    now: datetime = NOW,
    names: Sequence[str] = NAMES,
    ips: Sequence[str] = (),
    key=None,
    roots: Sequence[x509.Certificate] = (),
) -> str | None:
    key = key or a_key().public_key()
    return chain.problem_with(certificates, key=key, names=names, ips=ips, now=now, roots=roots)


# ── What is good ──


@pytest.mark.parametrize("roots", [(), (ROOT,)])
@pytest.mark.parametrize("certificates", [(LEAF, MIDDLE), (LEAF, MIDDLE, ROOT)])
def test_a_good_chain_has_no_problem_with_or_without_its_root(certificates, roots):
    assert problem(certificates, roots=roots) is None


@pytest.mark.parametrize("kind", [KeyKind.EC_P256, KeyKind.EC_P384, KeyKind.RSA_2048])
def test_path_validation_accepts_what_we_sign(kind: KeyKind):
    issuer = an_issuer(kind)
    for leaf in (a_leaf(issuer), a_leaf(issuer, names=("*.example.internal",)), a_leaf(issuer, names=(), ips=("::1",))):
        assert chain.verification_problem(leaf, [issuer.certificate], [root(kind)], NOW) is None


def test_names_are_compared_without_regard_to_order():
    leaf = a_leaf(names=("b.example", "a.example"), ips=("192.0.2.1",))
    assert problem([leaf, MIDDLE], names=["a.example", "b.example"], ips=["192.0.2.1"]) is None


@pytest.mark.parametrize(
    ("asked", "got", "added"),
    [
        (["*.a.example"], ["*.a.example", "a.example"], ["a.example"]),
        (["www.a.example"], ["www.a.example", "a.example"], ["a.example"]),
        (["a.example"], ["a.example", "www.a.example"], ["www.a.example"]),
        (["a.example", "www.a.example"], ["a.example", "www.a.example"], []),
    ],
    ids=["wildcard", "base", "www", "none"],
)
def test_the_names_that_cas_give_along_are_no_problem_and_are_told(
    asked: list[str], got: list[str], added: list[str]
) -> None:
    leaf = a_leaf(names=tuple(got))
    assert problem([leaf, MIDDLE], names=asked) is None
    assert chain.added_names(leaf, asked) == added


@pytest.mark.parametrize(
    ("asked", "extra"),
    [
        ("*.a.example", "www.a.example"), ("*.b.a.example", "a.example"), ("mail.a.example", "a.example"),
        ("a.example", "*.a.example"), ("www.example", "example"), ("a.example", "b.example"),
    ],
)  # fmt: skip
def test_any_other_name_more_is_a_problem(asked: str, extra: str) -> None:
    leaf = a_leaf(names=(asked, extra))
    assert problem([leaf, MIDDLE], names=[asked]) == (
        f"The names of the certificate differ from those asked for: it adds {extra}."
    )


# ── What is not ──


@pytest.mark.parametrize(
    ("certificates", "more", "words"),
    [
        ([], {}, "There is no certificate."),
        ([LEAF, MIDDLE], {"key": a_key(KeyKind.EC_P256, 9).public_key()}, "another key than ours"),
        ([LEAF, MIDDLE], {"key": a_key(KeyKind.ED25519).public_key()}, "another key than ours"),
        ([LEAF, MIDDLE], {"names": ["b.example"]}, "it lacks b.example and adds www.example.internal."),
        ([LEAF, MIDDLE], {"names": [*NAMES, "b.example"]}, "it lacks b.example."),
        ([LEAF, MIDDLE], {"names": []}, "it adds www.example.internal."),
        ([LEAF, MIDDLE], {"ips": ["192.0.2.1"]}, "it lacks 192.0.2.1."),
        ([LEAF, MIDDLE], {"now": NOW - DAY}, "The certificate is not valid before"),
        ([LEAF, MIDDLE], {"now": NOW + 90 * DAY}, "The certificate expired at"),
        ([MIDDLE, LEAF], {}, "another key than ours"),
        ([LEAF, ROOT, MIDDLE], {}, "The chain is out of order: certificate 1 is not signed by the next one."),
        ([LEAF, OTHER_MIDDLE], {}, "The chain does not build"),
        ([LEAF, ROOT], {}, "The chain does not build"),
        ([LEAF, LEAF, MIDDLE], {}, "Certificate 2 of the chain is there twice."),
        ([LEAF, MIDDLE, MIDDLE], {}, "Certificate 3 of the chain is there twice."),
        ([LEAF, MIDDLE, OTHER_MIDDLE], {}, "Certificate 3 does not belong to the chain"),
        ([LEAF, MIDDLE, ROOT, OTHER_ROOT], {}, "Certificate 4 does not belong to the chain"),
        ([LEAF, MIDDLE], {"roots": [OTHER_ROOT]}, "does not lead to a root that we trust"),
        ([LEAF], {"roots": [ROOT]}, "does not lead to a root that we trust"),
    ],
)
def test_a_bad_chain_is_named_in_a_sentence(certificates, more, words: str):
    found = problem(certificates, **more)
    assert found is not None
    assert words in found
    assert found[0].isupper()


def test_an_expired_intermediate_is_found_though_the_certificate_is_valid():
    key = a_key(KeyKind.EC_P256, 102)
    short = self_made(key.public_key(), a_key(KeyKind.EC_P256, 101), subject=MIDDLE.subject, issuer=ROOT.subject)
    assert chain.issued_by(LEAF, short)
    assert problem([LEAF, short], now=NOW + 2 * DAY) == f"Certificate 2 of the chain expired at {NOW + DAY:%F %T}Z."


def self_made(
    key, signer, *, subject: x509.Name, issuer: x509.Name, algorithm: hashes.HashAlgorithm | None = None
) -> x509.Certificate:
    builder = x509.CertificateBuilder(issuer, subject, key, 2**100, NOW.replace(tzinfo=None) - DAY)
    builder = builder.not_valid_after(NOW + DAY).add_extension(
        x509.SubjectAlternativeName([x509.DNSName(NAMES[0])]), critical=False
    )
    return builder.sign(signer, algorithm or hashes.SHA256())


def test_a_weak_signature_is_found():
    """cryptography signs with SHA-1 no longer, so this certificate only says that it was."""
    made = self_made(a_key().public_key(), a_key(), subject=x509.Name([]), issuer=MIDDLE.subject)
    sha256, sha1 = (der.sequence(der.object_identifier(oid)) for oid in ("1.2.840.10045.4.3.2", "1.2.840.10045.4.1"))
    tbs = made.tbs_certificate_bytes
    inside = tbs[2 + (tbs[1] & 0x7F if tbs[1] & 0x80 else 0) :]
    weak = der.sequence(der.sequence(inside.replace(sha256, sha1)), sha1, der.bit_string(made.signature))
    assert problem([x509.load_der_x509_certificate(weak), MIDDLE]) == "Certificate 1 of the chain is signed with sha1."


def test_a_weak_key_anywhere_in_the_chain_is_found():
    curve = ec.derive_private_key(7, ec.SECP521R1())
    made = self_made(a_key().public_key(), curve, subject=x509.Name([]), issuer=ROOT.subject)
    above = self_made(curve.public_key(), curve, subject=ROOT.subject, issuer=ROOT.subject)
    assert "Certificate 2 of the chain has a weak key" in (problem([made, above]) or "")


def test_a_key_of_a_kind_we_do_not_know_is_a_problem_and_no_crash():
    made = self_made(
        rsa.generate_private_key(65537, 1024).public_key(), a_key(), subject=MIDDLE.subject, issuer=ROOT.subject
    )
    assert problem([LEAF, made]) is not None


# ── Order ──


@pytest.mark.parametrize("shuffled", [(ROOT, MIDDLE, LEAF), (MIDDLE, LEAF, ROOT), (LEAF, MIDDLE, ROOT)])
def test_a_chain_can_be_put_in_order(shuffled):
    assert chain.ordered(shuffled) == (LEAF, MIDDLE, ROOT)


@pytest.mark.parametrize("pieces", [(LEAF, ROOT), (LEAF, OTHER_MIDDLE), (LEAF, MIDDLE, OTHER_ROOT), ()])
def test_what_is_not_one_chain_cannot_be_put_in_order(pieces):
    with pytest.raises(ChainRefused):
        chain.ordered(pieces)


def test_servers_send_the_chain_without_its_root():
    assert chain.without_root((LEAF, MIDDLE, ROOT)) == (LEAF, MIDDLE)
    assert chain.without_root((ROOT,)) == (ROOT,)


def test_only_a_root_is_self_signed():
    assert is_self_signed(ROOT)
    assert not is_self_signed(MIDDLE)
    fake = self_made(a_key().public_key(), a_key(KeyKind.EC_P256, 9), subject=ROOT.subject, issuer=ROOT.subject)
    assert not is_self_signed(fake), "its name says so, its signature does not"


# ── Files ──


def test_a_file_is_read_in_its_own_order():
    pem = b"subject=/CN=whatever\n" + chain.certificates_pem([MIDDLE, LEAF])
    assert chain.parse_bundle(pem) == (MIDDLE, LEAF)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "chain-empty"),
        (ROOT.public_bytes(Encoding.DER), "chain-empty"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "chain-malformed"),
        (b"-----BEGIN CERTIFICATE-----\n", "chain-malformed"),
        (chain.certificates_pem([ROOT])[:-60], "chain-malformed"),
        (b"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n", "chain-malformed"),
        (chain.certificates_pem([ROOT]) + keys.to_pem(a_key()).reveal(), "chain-has-key"),
        (chain.certificates_pem([ROOT] * 11), "chain-too-long"),
        (b"-----BEGIN CERTIFICATE-----" * 2000, "chain-too-long"),
        (b"x" * (chain.MAX_BUNDLE + 1), "chain-too-large"),
        (chain.certificates_pem([ROOT]) * 200, "chain-too-large"),
    ],
)
def test_a_bad_file_is_refused_for_its_own_reason(content: bytes, code: str):
    with pytest.raises(ChainRefused) as refused:
        chain.parse_bundle(content)
    assert refused.value.code == code


def test_ten_certificates_are_not_too_many():
    assert len(chain.parse_bundle(chain.certificates_pem([ROOT] * 10))) == 10


def test_a_certificate_is_valid_up_to_its_last_second():
    assert problem([LEAF, MIDDLE], now=LEAF.not_valid_after_utc) is None
    assert problem([LEAF, MIDDLE], now=LEAF.not_valid_after_utc + timedelta(seconds=1)) is not None
