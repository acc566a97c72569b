"""A signing request is granted as it is written, or refused for the first rule that it breaks."""

from __future__ import annotations

import base64
import random
from itertools import count

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed448, rsa, x25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import pki
from tests.support.pki import (
    EMPTY,
    SOUND,
    a_key,
    asked,
    close_primes,
    common_name,
    crafted,
    dns,
    ec_spki,
    extension,
    roca_modulus,
    rsa_spki,
    san,
)

from holdfast.core.key_kind import KeyKind
from holdfast.pki import csr, der, keys
from holdfast.pki.refused import CsrRefused

NAME = dns("a.example.com")
GOOD = crafted(san(NAME))
CURVE_P256 = "1.2.840.10045.3.1.7"
STATUS_REQUEST, STATUS_REQUEST_V2 = der.integer(5), der.integer(17)
ALL_KINDS = [KeyKind.EC_P256, KeyKind.EC_P384, KeyKind.RSA_2048, KeyKind.ED25519]


def pem(content: bytes, label: str = "CERTIFICATE REQUEST") -> bytes:
    return f"-----BEGIN {label}-----\n{base64.encodebytes(content).decode()}-----END {label}-----\n".encode()


def spki_of(key) -> bytes:
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def uses(*dotted: str) -> bytes:
    return extension("2.5.29.37", der.sequence(*map(der.object_identifier, dotted)))


def features(*numbers: bytes) -> bytes:
    return extension("1.3.6.1.5.5.7.1.24", der.sequence(*numbers))


def key_usage(bits: int) -> bytes:
    return extension("2.5.29.15", bytes([3, 2, 1, bits]), critical=True)


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


# ── What is granted ──


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_what_we_build_we_understand(kind: KeyKind):
    key = a_key(kind)
    built = csr.build(["A.example.com", "*.b.example.com"], key, ips=["192.0.2.1", "2001:db8::1"], must_staple=True)
    request = csr.parse(built, ed25519_allowed=True, must_staple_allowed=True)
    assert request == csr.CertificateRequest(
        names=("a.example.com", "*.b.example.com"),
        ips=("192.0.2.1", "2001:db8::1"),
        spki=keys.spki(key.public_key()),
        must_staple=True,
    )
    assert request.public_key == key.public_key()


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_the_same_names_and_key_give_the_same_request(kind: KeyKind):
    assert csr.build(["a.example"], a_key(kind)) == csr.build(["a.example"], a_key(kind))


def test_a_request_without_a_name_is_not_built():
    with pytest.raises(CsrRefused):
        csr.build([], a_key())


@pytest.mark.parametrize("label", ["CERTIFICATE REQUEST", "NEW CERTIFICATE REQUEST"])
def test_pem_and_der_are_the_same_request(label: str):
    assert csr.parse(pem(GOOD, label)) == csr.parse(GOOD)
    assert csr.parse(b"\n" + pem(GOOD, label).replace(b"\n", b"\r\n")) == csr.parse(GOOD)


def test_a_name_that_is_there_twice_counts_once():
    assert csr.parse(crafted(san(NAME, dns("A.EXAMPLE.com"), NAME))).names == ("a.example.com",)


@pytest.mark.parametrize(
    ("text", "names", "ips"),
    [
        ("a.example.com", ("a.example.com",), ()),
        ("A.Example.COM", ("a.example.com",), ()),
        ("b.example.com", ("a.example.com", "b.example.com"), ()),
        ("192.0.2.7", ("a.example.com",), ("192.0.2.7",)),
    ],
)
def test_the_common_name_is_among_the_names_or_is_added(text: str, names: tuple[str, ...], ips: tuple[str, ...]):
    request = csr.parse(crafted(san(NAME), subject=[common_name(text)]))
    assert (request.names, request.ips, request.common_name) == (names, ips, text.lower())


def test_a_common_name_alone_will_do():
    assert csr.parse(crafted(attributes=[], subject=[common_name("a.example.com")])).names == ("a.example.com",)


@pytest.mark.parametrize(
    "harmless",
    [
        extension("2.5.29.19", EMPTY),  # CA:FALSE
        key_usage(0b1110_0000),  # digitalSignature, nonRepudiation, keyEncipherment
        uses("1.3.6.1.5.5.7.3.1", "1.3.6.1.5.5.7.3.2"),
        extension("2.5.29.14", der.octet_string(b"x" * 20)),  # subjectKeyIdentifier
        extension("1.3.6.1.4.1.311.20.2", b"\x1e\x04\x00W\x00S"),  # what certreq.exe adds
        extension("1.2.840.113549.1.9.15", EMPTY),
    ],
)
def test_what_asks_for_nothing_else_than_we_issue_is_let_through(harmless: bytes):
    assert csr.parse(crafted(san(NAME), harmless)) == csr.parse(GOOD)


def test_other_attributes_and_parts_of_the_subject_are_not_read():
    challenge = der.sequence(der.object_identifier("1.2.840.113549.1.9.7"), der.tlv(0x31, der.tlv(0x0C, b"pass")))
    organization = der.tlv(0x31, der.sequence(der.object_identifier("2.5.4.10"), der.tlv(0x0C, b"Evil\x1b Ltd")))
    assert csr.parse(crafted(attributes=[asked(san(NAME)), challenge], subject=[organization])) == csr.parse(GOOD)


@pytest.mark.parametrize("version", [1, 2])
def test_the_version_of_a_certificate_is_read_as_that_of_a_request(version: int):
    """Ruby's acme-client writes version 3; Boulder and Pebble do not look at it. The signature covers it."""
    assert csr.parse(crafted(san(NAME), version=version)) == csr.parse(GOOD)
    signature = x509.load_der_x509_csr(GOOD).signature
    with pytest.raises(CsrRefused, match="signature"):
        csr.parse(crafted(san(NAME), version=version, signature=signature))


def test_a_hundred_names_are_granted():
    request = csr.parse(crafted(san(*(dns(f"n{n}.example.com") for n in range(100)))))
    assert len(request.names) == csr.MAX_NAMES == 100


def test_must_staple_is_granted_where_it_is_allowed():
    content = crafted(san(NAME), features(STATUS_REQUEST))
    assert csr.parse(content, must_staple_allowed=True).must_staple
    assert not csr.parse(GOOD, must_staple_allowed=True).must_staple


# ── What is refused ──

FORM = {
    "nothing": (b"", "csr-malformed"),
    "garbage": (b"\xff" * 100, "csr-malformed"),
    "an empty sequence": (EMPTY, "csr-malformed"),
    "sequences of nothing": (der.sequence(EMPTY, EMPTY, der.bit_string(b"")), "csr-malformed"),
    "cut short": (GOOD[:-1], "csr-malformed"),
    "a byte too many": (GOOD + b"\0", "csr-malformed"),
    "endless length": (b"\x30\x80" + GOOD[4:] + b"\0\0", "csr-malformed"),
    "deep nesting": (b"\x30\x80" * 30_000, "csr-malformed"),
    "a certificate": (pki.root().public_bytes(Encoding.DER), "csr-malformed"),
    "a certificate in PEM": (pki.root().public_bytes(Encoding.PEM), "csr-malformed"),
    "two in one file": (pem(GOOD) * 2, "csr-malformed"),
    "PEM with a wrong label": (pem(GOOD, "CERTIFICATE"), "csr-malformed"),
    "PEM that is not base64": (pem(GOOD).replace(b"\nM", b"\n!", 1), "csr-malformed"),
    "PEM of three characters": (
        b"-----BEGIN CERTIFICATE REQUEST-----\nAAA\n-----END CERTIFICATE REQUEST-----\n",
        "csr-malformed",
    ),
    "PEM without an end": (pem(GOOD)[:-40], "csr-malformed"),
    "one byte over the limit": (bytes(csr.MAX_CSR + 1), "csr-too-large"),
    "a gigantic PEM": (pem(bytes(csr.MAX_CSR)), "csr-too-large"),
    "version 4": (crafted(san(NAME), version=3), "csr-version"),
}

SIGNATURE = {
    "altered signature": (flipped(GOOD, len(GOOD) - 1), "csr-signature"),
    "altered name": (GOOD.replace(b"a.example", b"b.example"), "csr-signature"),
    "no signature": (crafted(san(NAME), signature=b""), "csr-signature"),
    "zeros": (crafted(san(NAME), signature=der.sequence(der.integer(0), der.integer(0))), "csr-signature"),
    "of another key": (crafted(san(NAME), spki=spki_of(a_key(KeyKind.EC_P256, 2))), "csr-signature"),
    "unknown algorithm": (crafted(san(NAME), algorithm=der.sequence(der.object_identifier("1.2.3"))), "csr-signature"),
    "algorithm of RSA": (
        crafted(san(NAME), algorithm=der.sequence(der.object_identifier("1.2.840.113549.1.1.11"), b"\x05\0")),
        "csr-signature",
    ),
    "SHA-1": (
        crafted(san(NAME), algorithm=der.sequence(der.object_identifier("1.2.840.10045.4.1"))),
        "csr-signature-weak",
    ),
}

KEY = {
    "RSA of 1024 bits": (rsa_spki((1 << 1023) + 1), "key-rsa-size"),
    "RSA of 2047 bits": (rsa_spki((1 << 2046) + 1), "key-rsa-size"),
    "RSA of 8192 bits": (rsa_spki((1 << 8191) + 1), "key-rsa-size"),
    "RSA of 300 000 bits": (rsa_spki((1 << 299_999) + 1), "key-rsa-size"),
    "RSA with exponent 3": (rsa_spki(SOUND, 3), "key-rsa-exponent"),
    "RSA with a giant exponent": (rsa_spki(SOUND, 2**256 + 1), "key-rsa-exponent"),
    "RSA with an even modulus": (rsa_spki(1 << 2047), "key-rsa-small-factor"),
    "RSA with exponent 1": (rsa_spki(SOUND, 1), "key-malformed"),
    "RSA with modulus 0": (rsa_spki(0), "key-malformed"),
    "RSA with a small factor": (rsa_spki(3 * ((1 << 2046) + 1)), "key-rsa-small-factor"),
    "RSA of Infineon": (rsa_spki(roca_modulus(2048)), "key-rsa-roca"),
    "RSA with close primes": (rsa_spki(close_primes(2048)), "key-rsa-close-primes"),
    "P-521": (spki_of(ec.derive_private_key(7, ec.SECP521R1())), "key-curve"),
    "P-224": (spki_of(ec.derive_private_key(7, ec.SECP224R1())), "key-curve"),
    "secp256k1": (spki_of(ec.derive_private_key(7, ec.SECP256K1())), "key-curve"),
    "a point off the curve": (ec_spki(CURVE_P256, b"\x04" + b"\x01" * 64), "key-malformed"),
    "the point at infinity": (ec_spki(CURVE_P256, b"\0"), "key-malformed"),
    "no point": (ec_spki(CURVE_P256, b""), "key-malformed"),
    "an unknown curve": (ec_spki("1.2.3.4", b"\x04" + b"\x01" * 64), "key-malformed"),
    "an unknown kind": (
        der.sequence(der.sequence(der.object_identifier("1.2.3")), der.bit_string(b"")),
        "key-malformed",
    ),
    "Ed448": (spki_of(ed448.Ed448PrivateKey.generate()), "key-kind"),
    "X25519": (spki_of(x25519.X25519PrivateKey.generate()), "key-kind"),
    "Ed25519": (spki_of(a_key(KeyKind.ED25519)), "key-ed25519"),
}

EXTENSIONS = {
    "a CA": ([extension("2.5.29.19", der.sequence(b"\x01\x01\xff"))], "csr-ca"),
    "a CA with a path length": ([extension("2.5.29.19", der.sequence(b"\x01\x01\xff", der.integer(0)))], "csr-ca"),
    "signing of certificates": ([key_usage(0b1000_0100)], "csr-key-usage"),
    "signing of CRLs": ([key_usage(0b1000_0010)], "csr-key-usage"),
    "signing of code": ([uses("1.3.6.1.5.5.7.3.1", "1.3.6.1.5.5.7.3.3")], "csr-extended-key-usage"),
    "any use": ([uses("2.5.29.37.0")], "csr-extended-key-usage"),
    "signing of OCSP answers": ([uses("1.3.6.1.5.5.7.3.9")], "csr-extended-key-usage"),
    "must-staple": ([features(STATUS_REQUEST)], "csr-must-staple"),
    "another TLS feature": ([features(STATUS_REQUEST_V2)], "csr-tls-feature"),
    "both TLS features": ([features(STATUS_REQUEST, STATUS_REQUEST_V2)], "csr-tls-feature"),
    "no TLS feature": ([features()], "csr-extensions-malformed"),
    "name constraints": ([extension("2.5.29.30", der.sequence(der.tlv(0xA0, der.sequence(NAME))))], "csr-extension"),
    "a policy": (
        [extension("2.5.29.32", der.sequence(der.sequence(der.object_identifier("2.23.140.1.2.1"))))],
        "csr-extension",
    ),
    "a CRL address": (
        [extension("2.5.29.31", der.sequence(der.sequence(der.tlv(0xA0, der.tlv(0xA0, der.tlv(0x86, b"http://x"))))))],
        "csr-extension",
    ),
    "poison": ([extension("1.3.6.1.4.1.11129.2.4.3", b"\x05\0", critical=True)], "csr-extension"),
    "OCSP without check": ([extension("1.3.6.1.5.5.7.48.1.5", b"\x05\0")], "csr-extension"),
    "something unknown": ([extension("1.2.3.4.5", b"whatever")], "csr-extension"),
    "a harmless one, critical": ([extension("1.2.840.113549.1.9.15", EMPTY, critical=True)], "csr-extension"),
    "the same one twice": ([key_usage(0x80), key_usage(0x80)], "csr-extension-twice"),
    "names twice": ([san(NAME)], "csr-extension-twice"),
    "a malformed key usage": ([extension("2.5.29.15", b"\x04\x01\x80")], "csr-extensions-malformed"),
    "an empty key usage": ([extension("2.5.29.15", b"")], "csr-extensions-malformed"),
    "malformed constraints": ([extension("2.5.29.19", b"\x30\x03\x01")], "csr-extensions-malformed"),
}

NAMES = {
    "no names": ([], "csr-no-names"),
    "e-mail": ([der.tlv(0x81, b"me@example.com")], "csr-email"),
    "URI": ([der.tlv(0x86, b"https://a.example.com")], "csr-uri"),
    "a directory name": ([der.tlv(0xA4, EMPTY)], "csr-name-type"),
    "a registered id": ([der.tlv(0x88, b"\x2a\x03")], "csr-name-type"),
    "another name": (
        [der.tlv(0xA0, der.object_identifier("1.2.3"), der.tlv(0xA0, der.tlv(0x0C, b"x")))],
        "csr-name-type",
    ),
    "an X.400 address": ([der.tlv(0xA3, EMPTY)], "csr-name-type"),
    "an address of 5 bytes": ([der.tlv(0x87, b"12345")], "csr-extensions-malformed"),
    "an address of no bytes": ([der.tlv(0x87, b"")], "csr-extensions-malformed"),
    "a network": ([der.tlv(0x87, bytes([10, 0, 0, 0, 255, 0, 0, 0]))], "ip-network"),
    "multicast": ([der.tlv(0x87, bytes([224, 0, 0, 1]))], "ip-not-a-host"),
    "any address": ([der.tlv(0x87, bytes(16))], "ip-not-a-host"),
    "a mapped address": ([der.tlv(0x87, bytes(10) + b"\xff\xff\x0a\0\0\x01")], "ip-mapped"),
    "101 names": ([dns(f"n{n}.example.com") for n in range(101)], "csr-too-many-names"),
    "the same name 101 times": ([NAME] * 101, "csr-too-many-names"),
    "3000 names": ([dns(f"n{n}.example.com") for n in range(3000)], "csr-too-many-names"),
    "not ASCII": ([dns("bücher.example")], "name-not-ascii"),
    "not UTF-8": ([dns(b"\xff.example")], "csr-extensions-malformed"),
    "a zero byte": ([dns("a.example.com\0.evil.example")], "name-control-character"),
    "an escape": ([dns("a\x1b[0m.example")], "name-control-character"),
    "a space": ([dns("a .example")], "name-space"),
    "empty": ([dns("")], "name-empty"),
    "an underscore": ([dns("_acme.example")], "name-characters"),
    "a trailing dot": ([dns("a.example.")], "name-trailing-dot"),
    "two stars": ([dns("*.*.example")], "name-wildcard"),
    "half a star": ([dns("w*.example")], "name-wildcard"),
    "an address as a name": ([dns("10.0.0.1")], "name-is-address"),
    "a false A-label": ([dns("xn--a.example")], "name-idna"),
    "a long label": ([dns(f"{'a' * 64}.example")], "name-label-too-long"),
    "a long name": ([dns("a." * 130 + "example")], "name-too-long"),
    "one bad among many": ([NAME, dns("b.example.com"), dns("-.example")], "name-characters"),
}

SUBJECT = {
    "two common names": ([common_name("a.example.com"), common_name("b.example.com")], "csr-common-names"),
    "no name at all": ([common_name("My Server")], "name-space"),
    "an e-mail address": ([common_name("me@example.com")], "name-characters"),
    "unicode": ([common_name("bücher.example")], "name-not-ascii"),
    "empty": ([common_name("")], "csr-common-name"),
    "65 characters": ([common_name(f"{'a' * 57}.example")], "csr-common-name-long"),
    "not text": ([common_name(b"\0abc", tag=0x03)], "csr-malformed"),
    "hidden characters": ([common_name("a\N{RIGHT-TO-LEFT OVERRIDE}.example")], "name-hidden-character"),
    "a wildcard in the middle": ([common_name("a.*.example")], "name-wildcard"),
}

BAD = {
    **{f"form: {what}": case for what, case in FORM.items()},
    **{f"signature: {what}": case for what, case in SIGNATURE.items()},
    **{f"key: {what}": (crafted(san(NAME), spki=spki), code) for what, (spki, code) in KEY.items()},
    **{f"asks for: {what}": (crafted(san(NAME), *more), code) for what, (more, code) in EXTENSIONS.items()},
    **{f"names: {what}": (crafted(san(*names)), code) for what, (names, code) in NAMES.items()},
    **{f"subject: {what}": (crafted(san(NAME), subject=s), code) for what, (s, code) in SUBJECT.items()},
    "no extensions and no subject": (crafted(attributes=[]), "csr-no-names"),
    "two lists of extensions": (crafted(attributes=[asked(san(NAME)), asked(san(NAME))]), "csr-extensions-twice"),
    "a list of extensions of Microsoft's besides": (
        crafted(
            attributes=[
                asked(san(NAME)),
                der.sequence(der.object_identifier("1.3.6.1.4.1.311.2.1.14"), der.tlv(0x31, der.sequence(san(NAME)))),
            ]
        ),
        "csr-extensions-twice",
    ),
    "100 names and another as common name": (
        crafted(san(*(dns(f"n{n}.example.com") for n in range(100))), subject=[common_name("a.example.com")]),
        "csr-too-many-names",
    ),
}


@pytest.mark.filterwarnings("ignore:Attribute's length")  # cryptography tells so, and goes on
@pytest.mark.parametrize("what", BAD)
def test_a_bad_request_is_refused_for_its_own_reason(what: str):
    content, code = BAD[what]
    with pytest.raises(CsrRefused) as refused:
        csr.parse(content)
    assert refused.value.code == code
    assert refused.value.status == 400
    assert str(refused.value).endswith(".")
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 250


def test_there_are_enough_of_them():
    assert len(BAD) >= 100


def test_what_is_too_large_is_refused_before_it_is_parsed():
    """Were it parsed first, the trailing bytes would be what is wrong with it."""
    with pytest.raises(CsrRefused) as refused:
        csr.parse(GOOD + bytes(200_000_000))
    assert refused.value.code == "csr-too-large"


def test_a_real_rsa_request_signed_with_sha1_or_md5_is_weak():
    key = rsa.generate_private_key(65537, 2048)
    assert csr.parse(csr.build(["a.example"], key)).names == ("a.example",)
    info = x509.load_der_x509_csr(csr.build(["a.example"], key)).tbs_certrequest_bytes
    for dotted in ("1.2.840.113549.1.1.5", "1.2.840.113549.1.1.4"):
        algorithm = der.sequence(der.object_identifier(dotted), b"\x05\0")
        with pytest.raises(CsrRefused) as refused:
            csr.parse(der.sequence(info, algorithm, der.bit_string(bytes(256))))
        assert refused.value.code == "csr-signature-weak"


def test_a_signature_with_bits_that_do_not_count_is_refused():
    for number in count():  # one whose last bit is 0: without it the octets are the same
        content = bytearray(crafted(san(dns(f"n{number}.example.com"))))
        if not content[-1] & 1:
            break
    content[content.rindex(b"\x00\x30")] = 1
    with pytest.raises(CsrRefused) as refused:
        csr.parse(bytes(content))
    assert refused.value.code in ("csr-signature", "csr-malformed")


# ── Whatever comes ──


@settings(max_examples=400)
@given(st.data())
def test_damage_anywhere_is_a_refusal_and_never_a_crash(data: st.DataObject):
    content = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    if bytes(content) != GOOD:
        with pytest.raises(CsrRefused):
            csr.parse(bytes(content))


@settings(max_examples=200)
@given(st.integers())
def test_damage_under_a_good_signature_is_a_refusal_or_a_request_and_never_a_crash(seed: int):
    """The attacker has a key: extensions and subject reach the reader whatever is in them."""
    draw = random.Random(seed)
    inside = bytearray(der.sequence(san(NAME), key_usage(0x80), features(STATUS_REQUEST), uses("1.3.6.1.5.5.7.3.1")))
    for _ in range(draw.randint(1, 6)):
        inside[draw.randrange(len(inside))] = draw.randrange(256)
    attribute = der.sequence(der.object_identifier("1.2.840.113549.1.9.14"), der.tlv(0x31, bytes(inside)))
    try:
        request = csr.parse(crafted(attributes=[attribute]), must_staple_allowed=True)
    except CsrRefused:
        return
    assert request.names or request.ips


@settings(max_examples=200)
@given(st.binary(max_size=400))
def test_any_bytes_at_all_are_refused(content: bytes):
    with pytest.raises(CsrRefused):
        csr.parse(content)
