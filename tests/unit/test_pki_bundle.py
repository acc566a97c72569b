"""What servers are given: chains in order, keys that stay secret, and PKCS#12 files that open."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.serialization import pkcs12
from tests.support.pki import a_key, a_leaf, intermediate
from tests.support.secrets_planted import PKCS12_PASSPHRASE

from holdfast.core.key_kind import KeyKind
from holdfast.pki import chain
from holdfast.pki.refused import ChainRefused
from holdfast.secret import Secret

CHAIN = (a_leaf(), intermediate())
PASSPHRASE = Secret(PKCS12_PASSPHRASE)


def test_a_chain_in_pem_is_read_again_in_its_order():
    assert chain.parse_bundle(chain.certificates_pem(CHAIN)) == CHAIN


@pytest.mark.parametrize("compatible", [False, True])
def test_a_pkcs12_file_holds_key_certificate_and_chain(compatible: bool):
    content = chain.to_pkcs12(a_key(), CHAIN, PASSPHRASE, name="www.example.internal", compatible=compatible)
    found = pkcs12.load_pkcs12(content.reveal(), PASSPHRASE.reveal().encode())
    assert found.key is not None
    assert found.cert is not None
    assert found.key.public_key() == a_key().public_key()  # type: ignore[union-attr]
    assert (found.cert.certificate, found.cert.friendly_name) == (CHAIN[0], b"www.example.internal")
    assert [each.certificate for each in found.additional_certs] == [CHAIN[1]]
    with pytest.raises(ValueError, match="password"):
        pkcs12.load_pkcs12(content.reveal(), b"another")


def test_a_pkcs12_file_without_a_passphrase_is_not_made():
    with pytest.raises(ValueError, match="passphrase"):
        chain.to_pkcs12(a_key(), CHAIN, Secret(""), name="x")


def test_a_pkcs12_file_for_another_key_is_not_made():
    with pytest.raises(ChainRefused):
        chain.to_pkcs12(a_key(KeyKind.EC_P256, 9), CHAIN, PASSPHRASE, name="x")
    with pytest.raises(ChainRefused):
        chain.to_pkcs12(a_key(), (), PASSPHRASE, name="x")
