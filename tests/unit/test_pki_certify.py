"""From a request to a certificate: planned once, written down, and signed as often as need be with the same result."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID
from hypothesis import given
from hypothesis import strategies as st
from tests.support.keys import Draws
from tests.support.pki import (
    DAY,
    NOW,
    a_key,
    a_leaf,
    a_request,
    a_signer,
    an_intent,
    an_issuer,
    intermediate,
    root,
)

from holdfast.core.key_kind import KeyKind
from holdfast.pki import certify, keys
from holdfast.pki.certify import finish, finish_aside
from holdfast.pki.profile import Intent, Profile, new_serial, plan
from holdfast.pki.refused import CsrRefused, MustNotSign, PkiRefused, SignerRefused
from holdfast.pki.signing import (
    Algorithm,
    KeySigner,
    SigningCertificate,
    algorithm_of,
    issuer_problem,
    open_issuer,
    open_signer,
    verifies,
)
from holdfast.secret import Secret

pytestmark = pytest.mark.anyio
CA_KINDS = [KeyKind.EC_P256, KeyKind.EC_P384, KeyKind.RSA_2048, KeyKind.ED25519]
SECOND = timedelta(seconds=1)


def value(certificate: x509.Certificate, kind):
    return certificate.extensions.get_extension_for_class(kind).value


def planned(profile: Profile | None = None, **more) -> Intent:
    arguments = {"serial": new_serial(Draws()), "now": NOW, **more}
    return plan(profile or Profile(), arguments.pop("request", a_request()), an_issuer(), **arguments)


# ── Intents ──


@given(
    serial=st.integers(1, 2**159 - 1),
    names=st.lists(st.sampled_from(["a.example", "*.b.example", "xn--bcher-kva.example"]), min_size=1, unique=True),
    ips=st.lists(st.ip_addresses().map(str), max_size=3),
    common_name=st.none() | st.just("a.example"),
    spki=st.binary(max_size=100),
    begins=st.integers(0, 10**9).map(lambda seconds: datetime(2000, 1, 1, tzinfo=UTC) + seconds * SECOND),
    staple=st.booleans(),
    shard=st.none() | st.integers(0, 1000),
)
def test_an_intent_comes_back_from_its_bytes_as_it_was(serial, names, ips, common_name, spki, begins, staple, shard):
    intent = replace(
        an_intent(), serial=serial, names=tuple(names), ips=tuple(ips), common_name=common_name, spki=spki,
        not_before=begins, not_after=begins + DAY, must_staple=staple, crl_shard=shard,
    )  # fmt: skip
    assert Intent.from_json(intent.to_json()) == intent
    assert Intent.from_json(intent.to_json()).to_json() == intent.to_json()


def test_the_bytes_of_an_intent_do_not_change_from_version_to_version():
    """They are in databases: a change here is a new version of the format, and a reader for the old one."""
    intent = replace(
        an_intent(), issuer_sha256="ab" * 32, serial=0x1234, spki=b"\x01\x02", ips=("192.0.2.1",),
        not_before=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), not_after=datetime(2026, 4, 1, tzinfo=UTC),
    )  # fmt: skip
    assert intent.to_json() == (
        b'{"algorithm":"ecdsa-sha256","ca_issuers_url":"http://ca.example.internal/ca1.cer","common_name":null,'
        b'"crl_shard":' + str(intent.crl_shard).encode() + b',"crl_url":"' + (intent.crl_url or "").encode() + b'",'
        b'"extended_key_usages":["serverAuth"],"ips":["192.0.2.1"],"issuer_id":"ca1","issuer_sha256":"'
        + b"ab"
        * 32
        + b'","key_usages":["digital_signature"],"must_staple":false,"names":["www.example.internal"],'
        b'"not_after":"2026-04-01T00:00:00Z","not_before":"2026-01-02T03:04:05Z","profile":"default",'
        b'"serial":"1234","spki":"AQI=","version":1}'
    )


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"version": None},
        {"surplus": 1},
        {"names": None},
        {"names": []},
        {"names": "a.example"},
        {"serial": 7},
        {"serial": "0"},
        {"serial": "-5"},
        {"serial": "8" + "0" * 39},
        {"serial": "00ff"},
        {"serial": "zz"},
        {"algorithm": "md5"},
        {"spki": "*"},
        {"not_before": "2026-01-02"},
        {"not_before": "2099-01-01T00:00:00Z"},
        {"key_usages": ["key_cert_sign"]},
        {"key_usages": []},
        {"extended_key_usages": ["codeSigning"]},
        {"extended_key_usages": []},
    ],
)
def test_an_intent_that_was_altered_into_nonsense_is_not_read(change: dict[str, object]):
    content = {**json.loads(an_intent().to_json()), **change}
    with pytest.raises(ValueError, match=r".+"):
        Intent.from_json(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


def test_an_intent_is_read_in_its_own_spelling_only():
    for other in (b" " + an_intent().to_json(), an_intent().to_json().replace(b",", b", "), b"[]", b"", b"null"):
        with pytest.raises(ValueError, match=r".+"):
            Intent.from_json(other)


@pytest.mark.parametrize(
    "change",
    [
        {"not_before": NOW.replace(microsecond=1)},
        {"not_before": NOW.replace(tzinfo=None)},
        {"not_after": NOW.astimezone(timezone(timedelta(hours=2)))},
        {"names": (), "ips": ()},
    ],
)
def test_an_intent_cannot_be_built_wrong(change: dict[str, object]):
    with pytest.raises((ValueError, TypeError)):
        an_intent(**change)


def test_serials_are_159_random_bits():
    drawn = [new_serial(Draws(seed)) for seed in range(2000)]
    assert len(set(drawn)) == 2000
    assert max(drawn).bit_length() == 159
    assert min(drawn) > 2**140
    ones = [sum(serial >> bit & 1 for serial in drawn) for bit in range(159)]
    assert all(800 < count < 1200 for count in ones)


def test_a_draw_of_zero_is_drawn_again():
    class Zero(Draws):
        tokens = iter([bytes(20), b"\0" * 19 + b"\x01", b"\0" * 19 + b"\x09"])  # 1 >> 1 is 0, too

        def token(self, size: int) -> bytes:
            return next(self.tokens)

    assert new_serial(Zero()) == 4


# ── Plans ──


def test_a_certificate_begins_a_little_ago_and_lasts_as_long_as_its_profile_says():
    intent = planned(Profile(lifetime=90 * DAY, backdate=timedelta(minutes=5)), now=NOW.replace(microsecond=999))
    assert intent.not_before == NOW - timedelta(minutes=5)
    assert intent.not_after - intent.not_before + SECOND == 90 * DAY


def test_a_certificate_never_outlives_its_issuer():
    late = intermediate().not_valid_after_utc - 10 * DAY
    assert planned(now=late).not_after == intermediate().not_valid_after_utc


def test_a_certificate_does_not_begin_before_its_issuer():
    early = intermediate().not_valid_before_utc + SECOND
    assert planned(now=early).not_before == intermediate().not_valid_before_utc


def test_an_issuer_whose_time_is_over_signs_nothing():
    for when in (intermediate().not_valid_after_utc, intermediate().not_valid_before_utc - SECOND):
        with pytest.raises(MustNotSign) as refused:
            planned(now=when)
        assert refused.value.code == "issuer-not-valid"


def test_requested_dates_are_kept_exactly():
    begins, ends = NOW + DAY, NOW + 3 * DAY
    intent = planned(not_before=begins, not_after=ends)
    assert (intent.not_before, intent.not_after) == (begins, ends)


@pytest.mark.parametrize(
    ("dates", "code"),
    [
        ({"not_before": NOW - timedelta(hours=2)}, "csr-begins-too-early"),
        ({"not_after": NOW - timedelta(minutes=1)}, "csr-ends-too-early"),
        ({"not_before": NOW + DAY, "not_after": NOW + DAY}, "csr-ends-too-early"),
        ({"not_after": NOW + 399 * DAY}, "csr-too-long"),
        ({"not_before": NOW + 990 * DAY, "not_after": NOW + 1001 * DAY}, "csr-outlives-issuer"),
    ],
)
def test_requested_dates_that_cannot_be_had_are_refused(dates: dict[str, datetime], code: str):
    with pytest.raises(CsrRefused) as refused:
        planned(**dates)
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"backdate": timedelta(hours=2)}, "backdate"),
        ({"backdate": -SECOND}, "backdate"),
        ({"lifetime": timedelta(minutes=5)}, "lifetime"),
        ({"lifetime": 400 * DAY}, "lifetime"),
    ],
)
def test_a_profile_cannot_be_built_wrong(wrong: dict[str, timedelta], why: str):
    with pytest.raises(ValueError, match=why):
        Profile(**wrong)  # type: ignore[arg-type]


def test_a_profile_says_which_keys_it_takes():
    request = a_request(key=a_key(KeyKind.ED25519))
    with pytest.raises(CsrRefused) as refused:
        planned(request=request)
    assert refused.value.code == "csr-key-kind"
    assert planned(Profile(key_kinds=frozenset({KeyKind.ED25519})), request=request).spki == request.spki
    with pytest.raises(CsrRefused):
        planned(Profile(key_kinds=frozenset({KeyKind.RSA_3072})), request=a_request(key=a_key(KeyKind.RSA_2048)))


def test_must_staple_is_granted_by_the_profile_only():
    request = replace(a_request(), must_staple=True)
    with pytest.raises(CsrRefused):
        planned(request=request)
    assert planned(Profile(must_staple=True), request=request).must_staple


def test_a_shard_is_fixed_by_the_serial_and_its_address_is_written_down():
    for serial in (2**100, 2**100 + 1, 2**100 + 7):
        intent = planned(serial=serial)
        assert intent.crl_shard == serial % 4
        assert intent.crl_url == f"http://ca.example.internal/crl/{serial % 4}.crl"


def test_an_issuer_without_a_crl_has_no_shards():
    issuer = SigningCertificate(id="ca1", certificate=intermediate())
    intent = plan(Profile(), a_request(), issuer, serial=5, now=NOW)
    assert (intent.crl_url, intent.crl_shard, intent.ca_issuers_url) == (None, None, None)
    with pytest.raises(MustNotSign):
        SigningCertificate(id="ca1", certificate=intermediate(), crl_url="http://example/one.crl", shards=2)


@pytest.mark.parametrize(
    ("names", "ips", "expected"),
    [
        (["a.example", "b.example"], [], "a.example"),
        ([f"{'a' * 60}.example", "b.example"], [], "b.example"),
        ([f"{'a' * 60}.example"], ["192.0.2.1"], "192.0.2.1"),
        ([f"{'a' * 60}.example"], [], None),
    ],
)
def test_a_common_name_is_put_in_on_request_if_one_is_short_enough(names, ips, expected):
    assert planned(Profile(common_name=True), request=a_request(names, ips=ips)).common_name == expected
    assert planned(request=a_request(names, ips=ips)).common_name is None


# ── Certificates ──


def test_a_certificate_has_what_the_intent_says_and_nothing_else():
    issuer = an_issuer()
    leaf = a_leaf(issuer, ips=("192.0.2.1", "2001:db8::1"), must_staple=True)
    intent = an_intent(issuer)
    assert leaf.serial_number == intent.serial
    assert leaf.issuer == issuer.certificate.subject
    assert leaf.public_key() == a_key().public_key()
    assert (leaf.not_valid_before_utc, leaf.not_valid_after_utc) == (intent.not_before, intent.not_after)
    names = value(leaf, x509.SubjectAlternativeName)
    assert names.get_values_for_type(x509.DNSName) == ["www.example.internal"]
    assert list(map(str, names.get_values_for_type(x509.IPAddress))) == ["192.0.2.1", "2001:db8::1"]
    assert list(value(leaf, x509.ExtendedKeyUsage)) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert value(leaf, x509.AuthorityKeyIdentifier).key_identifier == issuer.key_identifier
    assert value(leaf, x509.SubjectKeyIdentifier).digest == keys.key_identifier(a_key().public_key())
    assert value(leaf, x509.CRLDistributionPoints)[0].full_name[0].value == intent.crl_url
    assert value(leaf, x509.AuthorityInformationAccess)[0].access_location.value == issuer.ca_issuers_url
    assert list(value(leaf, x509.TLSFeature)) == [x509.TLSFeatureType.status_request]
    assert value(leaf, x509.BasicConstraints) == x509.BasicConstraints(ca=False, path_length=None)
    assert {each.oid._name for each in leaf.extensions if each.critical} == {
        "basicConstraints", "keyUsage", "subjectAltName",
    }  # fmt: skip
    assert len(leaf.extensions) == 9


def test_names_are_critical_exactly_if_the_subject_is_empty():
    for common_name in (None, "www.example.internal"):
        leaf = a_leaf(common_name=common_name)
        assert leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).critical == (common_name is None)
        assert [each.value for each in leaf.subject] == ([common_name] if common_name else [])


@pytest.mark.parametrize(("kind", "encipherment"), [(KeyKind.EC_P256, False), (KeyKind.RSA_2048, True)])
def test_only_rsa_keys_may_encipher_keys(kind: KeyKind, encipherment: bool):
    intent = planned(Profile(client_auth=True), request=a_request(key=a_key(kind)))
    leaf = x509.load_der_x509_certificate(certify.sign(intent, an_issuer(), a_signer()))
    usage = value(leaf, x509.KeyUsage)
    assert (usage.digital_signature, usage.key_encipherment) == (True, encipherment)
    assert not any([usage.key_cert_sign, usage.crl_sign, usage.key_agreement, usage.content_commitment])
    assert list(value(leaf, x509.ExtendedKeyUsage)) == [
        ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH,
    ]  # fmt: skip


@pytest.mark.parametrize("kind", CA_KINDS)
def test_the_same_intent_gives_the_same_bytes(kind: KeyKind):
    issuer = an_issuer(kind)
    intent = an_intent(issuer)
    first = certify.sign(intent, issuer, a_signer(kind))
    again = certify.sign(Intent.from_json(intent.to_json()), an_issuer(kind), KeySigner(a_key(kind, 102)))
    assert first == again
    x509.load_der_x509_certificate(first).verify_directly_issued_by(issuer.certificate)


@pytest.mark.parametrize("kind", CA_KINDS)
def test_what_is_signed_is_what_was_previewed(kind: KeyKind):
    issuer = an_issuer(kind)
    content = certify.prepare(an_intent(issuer), issuer)
    signed = x509.load_der_x509_certificate(finish(content, a_signer(kind)))
    assert signed.tbs_certificate_bytes == content.tbs == content.preview.tbs_certificate_bytes  # type: ignore[union-attr]
    assert signed.signature_algorithm_oid == content.preview.signature_algorithm_oid
    assert not verifies(issuer.public_key, content.preview.signature, content.tbs)


def test_our_certificate_is_the_one_that_the_library_would_have_made():
    """The assembly of bytes is ours: it must be what cryptography encodes in one step."""
    issuer = an_issuer()
    content = certify.prepare(an_intent(issuer), issuer)
    signature = a_signer().sign(content.tbs)
    parsed = x509.load_der_x509_certificate(content.with_signature(signature))
    assert parsed.signature == signature
    assert parsed.public_bytes(Encoding.DER) == content.with_signature(signature)


@pytest.mark.parametrize("kind", [KeyKind.EC_P256, KeyKind.RSA_2048])
async def test_signing_aside_gives_the_same_result(kind: KeyKind):
    content = certify.prepare(an_intent(an_issuer(kind)), an_issuer(kind))
    assert await finish_aside(content, a_signer(kind)) == finish(content, a_signer(kind))


def test_another_issuer_than_the_planned_one_does_not_sign():
    intent = an_intent()
    others = [
        replace(an_issuer(), id="ca2"),
        replace(an_issuer(), certificate=intermediate(number=103)),
    ]
    for other in others:
        with pytest.raises(MustNotSign) as refused:
            certify.sign(intent, other, a_signer())
        assert refused.value.code == "issuer-changed"
    with pytest.raises(MustNotSign):
        certify.sign(replace(intent, algorithm=Algorithm.RSA_SHA256), an_issuer(), a_signer())


# ── Signers ──


def test_another_key_than_the_issuers_does_not_sign():
    with pytest.raises(SignerRefused) as refused:
        certify.sign(an_intent(), an_issuer(), KeySigner(a_key()))
    assert refused.value.code == "signer-other-key"


def test_a_signature_that_does_not_verify_is_not_let_out():
    class Broken(KeySigner):
        def sign(self, content: bytes) -> bytes:
            return super().sign(content + b" ")

    with pytest.raises(SignerRefused) as refused:
        certify.sign(an_intent(), an_issuer(), Broken(a_key(KeyKind.EC_P256, 102)))
    assert refused.value.code == "signer-bad-signature"


def test_a_signer_is_opened_from_a_file_and_never_shows_its_key():
    signer = open_signer(keys.to_pem(a_key()))
    assert signer.public_key == a_key().public_key()
    assert signer.sign(b"twice") == signer.sign(b"twice")  # or a repeated signature would be another certificate
    assert repr(signer) == "KeySigner(ecdsa-sha256)"
    for content in (b"nonsense", Secret(b"nonsense")):
        with pytest.raises(SignerRefused):
            open_signer(content)


def test_a_signer_with_a_weak_key_is_not_opened():
    with pytest.raises(SignerRefused) as refused:
        open_signer(keys.to_pem(ec.derive_private_key(7, ec.SECP521R1())))
    assert refused.value.code == "key-curve"


@pytest.mark.parametrize(
    ("kind", "algorithm", "quick"),
    [
        (KeyKind.EC_P256, Algorithm.ECDSA_SHA256, True),
        (KeyKind.EC_P384, Algorithm.ECDSA_SHA384, False),
        (KeyKind.RSA_2048, Algorithm.RSA_SHA256, False),
        (KeyKind.ED25519, Algorithm.ED25519, True),
    ],
)
def test_the_key_decides_how_it_signs(kind: KeyKind, algorithm: Algorithm, quick: bool):
    signer = KeySigner(a_key(kind))
    assert algorithm_of(signer.public_key) is algorithm
    assert signer.quick is quick
    assert signer.sign(b"a") == signer.sign(b"a") != signer.sign(b"b")
    assert verifies(signer.public_key, signer.sign(b"a"), b"a")
    assert not verifies(signer.public_key, signer.sign(b"a"), b"b")


# ── Issuers ──


def test_a_self_signed_issuer_is_refused_unless_in_development():
    issuer = SigningCertificate(id="lab", certificate=root())
    with pytest.raises(MustNotSign, match="self-signed"):
        open_issuer(issuer, dev=False, now=NOW)
    assert open_issuer(issuer, dev=True, now=NOW) is issuer
    assert open_issuer(an_issuer(), dev=False, now=NOW) == an_issuer()


@pytest.mark.parametrize(
    ("certificate", "now", "words"),
    [
        (lambda: a_leaf(), NOW, "is not a CA certificate"),
        (intermediate, intermediate().not_valid_after_utc, "expired at"),
        (intermediate, intermediate().not_valid_before_utc - SECOND, "begins only at"),
    ],
)
def test_a_certificate_that_must_not_sign_is_no_issuer(certificate, now: datetime, words: str):
    assert words in (issuer_problem(certificate(), dev=False, now=now) or "")
    with pytest.raises(PkiRefused, match=words):
        open_issuer(SigningCertificate(id="x", certificate=certificate()), dev=False, now=now)
