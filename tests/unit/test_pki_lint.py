"""Nothing is signed that breaks a rule of ours, wherever between plan and bytes the mistake was made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from tests.support.pki import DAY, NOW, a_key, a_signer, an_intent, an_issuer, crl_findings, intermediate, root, signed

from holdfast.core.key_kind import KeyKind
from holdfast.core.revocation_reason import RevocationReason
from holdfast.pki import authority, certify, crl, keys, lint
from holdfast.pki import names as pki_names
from holdfast.pki.authority import CaCertificateFields
from holdfast.pki.certify import unsigned
from holdfast.pki.refused import NameRefused
from holdfast.pki.signing import SigningCertificate

ISSUER = an_issuer()
Extensions = dict[type[x509.ExtensionType], tuple[x509.ExtensionType, bool]]


def codes(
    certificate: x509.Certificate, issuer: SigningCertificate = ISSUER, max_lifetime: timedelta = 398 * DAY
) -> set[str]:
    found = lint.findings(certificate, an_intent(issuer), issuer, max_lifetime=max_lifetime)
    return {each.code for each in found}


def altered(change: Callable[[Extensions], object] = lambda _: None, **fields: object) -> x509.Certificate:
    """The certificate of our intent, but for a mistake that someone made in encoding it."""
    good = certify.prepare(an_intent(), ISSUER).preview
    assert isinstance(good, x509.Certificate)
    extensions: Extensions = {type(each.value): (each.value, each.critical) for each in good.extensions}
    change(extensions)
    made = {
        "issuer_name": good.issuer,
        "subject_name": good.subject,
        "public_key": good.public_key(),
        "serial_number": good.serial_number,
        "not_valid_before": good.not_valid_before_utc.replace(tzinfo=None),
        "not_valid_after": good.not_valid_after_utc.replace(tzinfo=None),
        **fields,
    }
    builder = x509.CertificateBuilder(**made)  # type: ignore[arg-type]
    for value, critical in extensions.values():
        builder = builder.add_extension(value, critical=critical)
    preview = unsigned(builder, ISSUER.public_key).preview
    assert isinstance(preview, x509.Certificate)
    return preview


def put(value: x509.ExtensionType, *, critical: bool) -> Callable[[Extensions], object]:
    return lambda extensions: extensions.update({type(value): (value, critical)})


def drop(kind: type[x509.ExtensionType]) -> Callable[[Extensions], object]:
    return lambda extensions: extensions.pop(kind)


def names(*texts: str) -> Callable[[Extensions], object]:
    return put(x509.SubjectAlternativeName([x509.DNSName(text) for text in texts]), critical=True)


def subject(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


NAIVE = NOW.replace(tzinfo=None)


def test_what_we_make_has_nothing_wrong_with_it():
    for issuer in (ISSUER, an_issuer(KeyKind.RSA_2048), an_issuer(KeyKind.ED25519), an_issuer(KeyKind.EC_P384)):
        for intent in (an_intent(issuer), an_intent(issuer, common_name="www.example.internal", must_staple=True)):
            preview = certify.prepare(intent, issuer).preview
            assert lint.findings(preview, intent, issuer, max_lifetime=90 * DAY) == []  # type: ignore[arg-type]
    assert codes(altered()) == set()


@pytest.mark.parametrize(
    ("change", "fields", "code"),
    [
        (None, {"serial_number": 2**64 - 1}, "lint-serial"),
        (None, {"serial_number": 1}, "lint-serial"),
        (None, {"not_valid_after": NAIVE + 399 * DAY}, "lint-lifetime"),
        (None, {"not_valid_after": NAIVE + 1001 * DAY}, "lint-outlives-issuer"),
        (None, {"not_valid_before": NAIVE - 2 * DAY}, "lint-outlives-issuer"),
        (None, {"public_key": ec.derive_private_key(7, ec.SECP521R1()).public_key()}, "lint-key"),
        (None, {"public_key": a_key(KeyKind.EC_P256, 9).public_key()}, "lint-other-key"),
        (None, {"issuer_name": subject("another")}, "lint-issuer-name"),
        (None, {"subject_name": subject("other.example")}, "lint-subject"),
        (None, {"subject_name": subject("www.example.internal")}, "lint-names-critical"),
        (drop(x509.SubjectKeyIdentifier), {}, "lint-key-identifier"),
        (put(x509.SubjectKeyIdentifier(b"x" * 20), critical=False), {}, "lint-key-identifier"),
        (drop(x509.SubjectAlternativeName), {}, "lint-no-names"),
        (names("other.example"), {}, "lint-other-names"),
        (names("www.example.internal", "more.example"), {}, "lint-other-names"),
        (names("WWW.example.internal"), {}, "lint-name"),
        (names("under_score.example"), {}, "lint-name"),
        (put(x509.BasicConstraints(ca=True, path_length=None), critical=True), {}, "lint-ca"),
        (put(x509.BasicConstraints(ca=False, path_length=None), critical=False), {}, "lint-ca"),
        (put(certify.key_usage("digital_signature", "key_cert_sign"), critical=True), {}, "lint-ca"),
        (put(certify.key_usage("digital_signature", "crl_sign"), critical=True), {}, "lint-ca"),
        (put(certify.key_usage("key_encipherment"), critical=True), {}, "lint-key-usage"),
        (put(certify.key_usage("digital_signature"), critical=False), {}, "lint-key-usage"),
        (drop(x509.KeyUsage), {}, "lint-key-usage"),
        (drop(x509.ExtendedKeyUsage), {}, "lint-extended-key-usage"),
        (put(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False), {}, "lint-extended-key-usage"),
        (drop(x509.AuthorityKeyIdentifier), {}, "lint-authority-key"),
        (put(x509.AuthorityKeyIdentifier(b"x" * 20, None, None), critical=False), {}, "lint-authority-key"),
        (drop(x509.CRLDistributionPoints), {}, "lint-crl-url"),
        (put(certify.distribution_points("http://elsewhere/0.crl"), critical=False), {}, "lint-crl-url"),
    ],
)
def test_a_mistake_is_found(change, fields: dict[str, object], code: str):
    assert code in codes(altered(change or (lambda _: None), **fields))


def test_basic_constraints_may_be_absent():
    assert codes(altered(drop(x509.BasicConstraints))) == set()


def test_a_lifetime_over_the_profiles_is_found():
    assert codes(altered(), max_lifetime=89 * DAY) == {"lint-lifetime"}


def test_another_algorithm_than_the_issuers_is_found():
    builder = x509.CertificateBuilder(
        ISSUER.certificate.subject, x509.Name([]), a_key().public_key(), 2**100, NAIVE, NAIVE + DAY
    )
    other = unsigned(builder, a_key(KeyKind.EC_P384).public_key()).preview
    assert "lint-signature-algorithm" in codes(other)  # type: ignore[arg-type]


@pytest.mark.parametrize("certificate", [root(), intermediate()])
def test_the_certificate_of_a_ca_is_never_taken_for_an_end_certificate(certificate: x509.Certificate):
    assert {"lint-ca", "lint-no-names", "lint-other-key"} <= codes(certificate)


def test_an_issuer_that_is_no_ca_or_not_for_servers_is_found():
    leaf = signed_leaf()
    wrong = replace(ISSUER, certificate=leaf)
    intent = an_intent()
    preview = certify.prepare(intent, ISSUER).preview
    found = lint.findings(preview, intent, wrong, max_lifetime=90 * DAY)  # type: ignore[arg-type]
    assert "lint-issuer" in {each.code for each in found}


def signed_leaf() -> x509.Certificate:
    return x509.load_der_x509_certificate(certify.sign(an_intent(), ISSUER, a_signer()))


# ── Name constraints ──


def test_names_outside_the_issuers_constraints_are_found():
    issuer = an_issuer(permit=("example.internal", "10.0.0.0/8"))
    for wanted, ips, expected in (
        (("www.example.internal",), ("10.1.2.3",), set()),
        (("example.internal", "*.example.internal"), (), set()),
        (("badexample.internal",), (), {"lint-name-constraints"}),
        (("example.com",), (), {"lint-name-constraints"}),
        (("www.example.internal",), ("11.0.0.1",), {"lint-name-constraints"}),
        (("www.example.internal",), ("2001:db8::1",), {"lint-name-constraints"}),
    ):
        intent = an_intent(issuer, names=wanted, ips=ips)
        preview = certify.prepare(intent, issuer).preview
        found = lint.findings(preview, intent, issuer, max_lifetime=90 * DAY)  # type: ignore[arg-type]
        assert {each.code for each in found} == expected, wanted


@pytest.mark.parametrize(
    ("permit", "name", "ip"),
    [
        (("example.internal",), "a.example.internal", None),
        (("10.0.0.0/8",), None, "10.0.0.1"),
        (("2001:db8::/32",), None, "2001:db8::7"),
    ],
)
def test_a_kind_of_name_of_which_nothing_is_permitted_is_excluded(permit, name, ip):
    made = pki_names.permitting(permit)
    assert pki_names.outside(made, [name] if name else [], [ip] if ip else []) == []
    everything = ["a.example.com"], ["192.0.2.1", "2001:db9::1"]
    assert len(pki_names.outside(made, *everything)) == 3


def test_without_constraints_every_name_is_permitted():
    assert pki_names.permitting(()) is None
    assert pki_names.outside(None, ["a.example"], ["::1"]) == []


def test_an_excluded_subtree_wins_over_a_permitted_one():
    made = x509.NameConstraints([x509.DNSName("example")], [x509.DNSName("secret.example")])
    assert pki_names.outside(made, ["a.example", "secret.example", "*.secret.example"], []) == [
        "secret.example is excluded by the CA's name constraints",
        "*.secret.example is excluded by the CA's name constraints",
    ]


def test_a_wildcard_that_would_stand_for_an_excluded_name_is_excluded():
    made = x509.NameConstraints(None, [x509.DNSName("secret.example")])
    assert pki_names.outside(made, ["*.example", "*.other.example", "example", "a.example"], []) == [
        "*.example is excluded by the CA's name constraints"
    ]


@pytest.mark.parametrize("text", ["10.0.0.1/8", "*.example", "exa mple", "", "10.0.0.0/99", "ü.example"])
def test_what_is_no_subtree_is_refused(text: str):
    with pytest.raises(NameRefused):
        pki_names.permitting([text])


# ── CAs ──


def an_authority(**changes: object) -> CaCertificateFields:
    made = CaCertificateFields(
        organization="Example", common_name="Next", key=a_key(KeyKind.EC_P256, 7).public_key(), serial=2**150,
        not_before=NOW, not_after=NOW + 100 * DAY, path_length=0,
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, None),
        ({"path_length": 1}, "lint-path-length"),
        ({"not_after": NOW + 3651 * DAY}, "lint-outlives-issuer"),
        ({"not_before": NOW - 2 * DAY}, "lint-outlives-issuer"),
        ({"serial": 5}, "lint-serial"),
        ({"key": ec.derive_private_key(7, ec.SECP521R1()).public_key()}, "lint-authority"),
        ({"not_before": NOW + DAY}, "lint-authority"),
    ],
)
def test_the_certificate_of_a_ca_is_linted_too(changes: dict[str, object], code: str | None):
    preview = authority.prepare(an_authority(**changes), root()).preview
    found = authority.findings(preview, root(), now=NOW)  # type: ignore[arg-type]
    assert {each.code for each in found} == ({code} if code else set())


def test_a_root_may_be_its_own_issuer():
    made = authority.prepare(an_authority(path_length=1))
    assert authority.findings(made.preview, None, now=NOW) == []  # type: ignore[arg-type]
    assert signed(made, a_key(KeyKind.EC_P256, 7)).subject == made.preview.issuer


# ── pkilint ──


@pytest.fixture
def pkilint() -> None:
    pytest.importorskip("pkilint", reason="pkilint is not installed: pip install 'holdfast[lint]'")


@pytest.mark.usefixtures("pkilint")
@pytest.mark.parametrize("kind", [KeyKind.EC_P256, KeyKind.EC_P384, KeyKind.RSA_2048, KeyKind.ED25519])
def test_pkilint_finds_nothing_in_what_we_sign(kind: KeyKind):
    issuer = an_issuer(kind)
    for intent in (
        an_intent(issuer),
        an_intent(issuer, common_name="www.example.internal", must_staple=True),
        an_intent(issuer, names=("*.example.internal", "xn--bcher-kva.example"), ips=("192.0.2.1", "::1")),
        an_intent(
            issuer,
            names=(),
            ips=("10.0.0.1",),
            spki=keys.spki(a_key(KeyKind.RSA_2048).public_key()),
            key_usages=("digital_signature", "key_encipherment"),
            extended_key_usages=("serverAuth", "clientAuth"),
        ),
    ):
        content = certify.prepare(intent, issuer)
        assert lint.pkilint_findings(content.preview.public_bytes(Encoding.DER)) == []
        assert lint.pkilint_findings(certify.sign(intent, issuer, a_signer(kind))) == []
    for authority_certificate in (root(kind), intermediate(kind), intermediate(kind, permit=("example", "10.0.0.0/8"))):
        assert lint.pkilint_findings(authority_certificate.public_bytes(Encoding.DER)) == []


@pytest.mark.usefixtures("pkilint")
def test_pkilint_finds_nothing_in_our_crls():
    entries = [crl.Revoked(2**100 + at, NOW, reason) for at, reason in enumerate(RevocationReason)]
    for issuer, shard in ((ISSUER, 3), (replace(ISSUER, crl_url="http://ca.example/one.crl", shards=1), None)):
        for revoked in ([], entries):
            der = crl.sign(
                issuer, a_signer(), number=7, this_update=NOW, next_update=NOW + 7 * DAY, revoked=revoked, shard=shard
            )
            assert crl_findings(der) == []


@pytest.mark.usefixtures("pkilint")
def test_pkilint_is_heard_when_it_finds_something():
    wrong = altered(put(x509.AuthorityKeyIdentifier(b"x" * 20, None, None), critical=True))
    assert [each.code for each in lint.pkilint_findings(wrong.public_bytes(Encoding.DER))] != []
    assert lint.pkilint_findings(b"\x30\x00") != []
