"""The extensions of a certificate, read one by one."""

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st
from tests.support import pki
from tests.support.challenge_server import NAME, PROOF, a_certificate, a_challenge, digest_of

from holdfast.pki import der
from holdfast.validators import tlsalpn01
from holdfast.validators.tlsalpn01 import Extension, wrong


@pytest.mark.parametrize("certificate", [pki.root(), pki.intermediate()], ids=["root", "intermediate"])
def test_the_same_extensions_are_found_as_by_the_library(certificate: x509.Certificate) -> None:
    expected = {
        der.object_identifier(each.oid.dotted_string)[2:]: Extension(each.critical, each.value.public_bytes())
        for each in certificate.extensions
    }
    assert tlsalpn01.read_extensions(certificate) == expected
    assert len(expected) > 2


def test_a_certificate_without_extensions_has_none() -> None:
    certificate, _ = a_certificate(None, None)
    assert tlsalpn01.read_extensions(certificate) == {}


def test_an_extension_that_comes_twice_is_refused() -> None:
    more = [x509.UnrecognizedExtension(x509.ObjectIdentifier(f"1.2.3.{last}"), b"\x05\x00") for last in (4, 5)]
    single = a_certificate(None, None, more=more)[0].public_bytes(Encoding.DER)
    assert len(tlsalpn01.read_extensions(x509.load_der_x509_certificate(single))) == 2
    double = single.replace(der.object_identifier("1.2.3.5"), der.object_identifier("1.2.3.4"))
    with pytest.raises(ValueError, match="twice"):
        tlsalpn01.read_extensions(x509.load_der_x509_certificate(double))


@given(st.data())
def test_a_damaged_certificate_is_no_proof_and_nothing_worse(data: st.DataObject) -> None:
    """Every byte of it is signed, so there is no harmless damage."""
    right = RIGHT.public_bytes(Encoding.DER)
    damaged = bytearray(right)
    at = data.draw(st.integers(0, len(right) - 1))
    damaged[at] ^= data.draw(st.integers(1, 255))
    challenge = a_challenge("tls-alpn-01")
    assert wrong(right, challenge) is None
    assert wrong(bytes(damaged), challenge)
    assert wrong(right[:at], challenge)


@pytest.mark.parametrize("content", [b"", b"\x82\x14" + NAME.encode(), b"\x05\x00", NAME.encode(), b"\x30\x00"])
def test_names_that_no_server_would_show_are_no_proof_either(content: bytes) -> None:
    more = [x509.UnrecognizedExtension(x509.ObjectIdentifier("2.5.29.17"), content)]
    certificate, _ = a_certificate(None, digest_of(PROOF), more=more)
    assert wrong(certificate.public_bytes(Encoding.DER), a_challenge("tls-alpn-01"))


RIGHT, _ = a_certificate([x509.DNSName(NAME)], digest_of(PROOF))
