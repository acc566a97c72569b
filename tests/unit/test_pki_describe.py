"""What is in a file is told in words, and nothing in it can act on the reader's terminal."""

from __future__ import annotations

import re

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import pki
from tests.support.pki import DAY, NOW, a_key, a_leaf, a_signer, an_issuer, crafted, dns, intermediate, root, san

from holdfast.core.key_kind import KeyKind
from holdfast.core.revocation_reason import RevocationReason
from holdfast.pki import chain, crl, keys
from holdfast.pki.describe import describe
from holdfast.pki.refused import PkiRefused

LEAF = a_leaf(ips=("192.0.2.1",), must_staple=True)


def told(content: bytes, now=NOW) -> dict[str, str]:
    lines = [re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in describe(content, now=now).splitlines()[1:]]
    return {line[0]: line[1] for line in lines if len(line) == 2}


@pytest.mark.parametrize("encoding", [Encoding.PEM, Encoding.DER])
def test_a_certificate_is_told_in_words(encoding: Encoding):
    found = told(LEAF.public_bytes(encoding))
    assert found["for"] == "www.example.internal, 192.0.2.1"
    assert found["subject"] == "(empty)"
    assert found["issued by"] == "CN=Intermediate 102,O=Example"
    assert found["serial"] == f"{LEAF.serial_number:x}"
    assert found["valid"].endswith("another 89 days")
    assert found["key"] == "EC, secp256r1"
    assert found["good for"] == "servers (TLS)"
    assert found["CA"] == "no"
    assert found["CRL at"].startswith("http://ca.example.internal/crl/")
    assert found["issuer at"] == "http://ca.example.internal/ca1.cer"
    assert found["TLS features"] == "status_request"


def test_the_certificate_of_a_ca_tells_how_far_it_reaches():
    found = told(intermediate(permit=("example.internal",)).public_bytes(Encoding.PEM))
    assert found["CA"] == "yes, for end certificates only (path length 0)"
    assert found["permitted"] == "example.internal"
    assert found["excluded"] == "0.0.0.0/0, ::/0"
    assert told(root().public_bytes(Encoding.PEM))["CA"] == "yes, with at most 1 CA below it"


def test_time_is_told_from_the_readers_side():
    content = LEAF.public_bytes(Encoding.PEM)
    assert told(content, NOW - DAY)["valid"].endswith("NOT YET")
    assert told(content, NOW + 100 * DAY)["valid"].endswith("EXPIRED 10 days ago")
    assert told(content, LEAF.not_valid_after_utc)["valid"].endswith("another 0 hours")


def test_a_chain_is_told_certificate_by_certificate():
    text = describe(chain.certificates_pem([LEAF, intermediate()]), now=NOW)
    assert [line for line in text.splitlines() if line.startswith("C")] == ["Certificate 1 of 2", "Certificate 2 of 2"]


@pytest.mark.parametrize("count", [0, 3, 50])
def test_a_crl_is_told_in_words(count: int):
    revoked = [crl.Revoked(2**100 + n, NOW, RevocationReason.KEY_COMPROMISE) for n in range(count)]
    content = crl.sign(
        an_issuer(), a_signer(), number=7, this_update=NOW, next_update=NOW + DAY, revoked=revoked, shard=1
    )
    found = told(content)
    assert (found["number"], found["revoked"]) == ("7", str(count))
    assert found["shard"] == "http://ca.example.internal/crl/1.crl"
    text = describe(content, now=NOW)
    assert text.count("keyCompromise") == min(count, 20)
    assert ("… and 30 more" in text) == (count == 50)


def test_a_request_is_told_in_words():
    found = told(crafted(san(dns("a.example.com"))))
    assert found["for"] == "a.example.com"
    assert found["signature"] == "matches the key"
    wrong = told(crafted(san(dns("a.example.com")), spki=keys.spki(a_key(KeyKind.EC_P256, 2).public_key())))
    assert wrong["signature"] == "DOES NOT MATCH THE KEY"


def test_a_weak_key_is_warned_of():
    assert "warning" not in told(LEAF.public_bytes(Encoding.PEM))
    found = told(crafted(san(dns("a.example")), spki=pki.rsa_spki((1 << 1023) + 1)))
    assert "2048 to 4096 bits" in found["warning"]


def test_escape_sequences_do_not_reach_the_terminal():
    text = describe(crafted(san(dns("a\x1b[2J.example")), subject=[pki.common_name("x\x07\u202e")]), now=NOW)
    assert "\\x1b[2J" in text
    assert all(char.isprintable() or char == "\n" for char in text)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "file-malformed"),
        (b"hello", "file-malformed"),
        (keys.to_pem(a_key()).reveal(), "file-has-key"),
        (b"x" * (16 * 1024 * 1024 + 1), "file-too-large"),
    ],
)
def test_what_cannot_be_told_is_refused(content: bytes, code: str):
    with pytest.raises(PkiRefused) as refused:
        describe(content, now=NOW)
    assert refused.value.code == code


@settings(max_examples=200)
@given(st.integers(0, 10**6), st.integers(0, 255), st.sampled_from([LEAF, root()]))
def test_a_damaged_certificate_is_told_or_refused_and_never_a_crash(at: int, byte: int, certificate):
    content = bytearray(certificate.public_bytes(Encoding.DER))
    content[at % len(content)] = byte
    try:
        text = describe(bytes(content), now=NOW)
    except PkiRefused:
        return
    assert text.startswith("Certificate")
