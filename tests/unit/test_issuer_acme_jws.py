"""What our client signs, as our server reads it: two pieces that share no code but the standard."""

import json
from base64 import urlsafe_b64encode

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from holdfast.acme import jws
from holdfast.issuers.acme import wire
from holdfast.issuers.acme.wire import CaAccount, Eab
from holdfast.pki.keys import PrivateKey
from holdfast.secret import Secret

URL = "https://ca.example/acme/order"
NONCE = "bm9uY2U"
KEYS: list[PrivateKey] = [
    ec.generate_private_key(ec.SECP256R1()),
    ec.generate_private_key(ec.SECP384R1()),
    rsa.generate_private_key(65537, 2048),
    ed25519.Ed25519PrivateKey.generate(),
]
OTHER = ec.generate_private_key(ec.SECP256R1())


@pytest.mark.parametrize("key", KEYS, ids=["P-256", "P-384", "RSA", "Ed25519"])
def test_a_request_of_a_key_is_believed_by_the_server(key: PrivateKey) -> None:
    found = jws.parse(wire.by_key({"a": 1}, url=URL, nonce=NONCE, key=key))
    assert found.jwk is not None
    jws.check(found, found.jwk)
    assert (found.url, found.nonce, found.kid, jws.payload_json(found)) == (URL, NONCE, None, {"a": 1})


@pytest.mark.parametrize("payload", [None, {}, {"csr": "x"}])
def test_a_request_of_an_account_names_it_and_nothing_else(payload: dict[str, str] | None) -> None:
    account = CaAccount("https://ca.example/acme/account/1", KEYS[0])
    found = jws.parse(wire.by_account(payload, url=URL, nonce=NONCE, account=account))
    key = jws.parse(wire.by_key({}, url=URL, nonce=NONCE, key=KEYS[0])).jwk
    assert key is not None
    jws.check(found, key)
    assert (found.kid, found.jwk, found.is_post_as_get) == (account.url, None, payload is None)


def test_signatures_of_elliptic_curves_have_their_full_size_even_if_a_number_is_small() -> None:
    for _ in range(1500):  # one in 128 has a leading zero in one of its halves
        raw = json.loads(wire.by_key({}, url=URL, nonce=NONCE, key=KEYS[0]))
        assert len(raw["signature"]) == 86


def test_a_change_of_keys_is_signed_by_both() -> None:
    account = CaAccount("https://ca.example/acme/account/1", KEYS[0])
    inner = wire.signed_key_change(account, OTHER, url=URL)
    outer = jws.parse(wire.by_account(inner, url=URL, nonce=NONCE, account=account))
    new = jws.check_inner(jws.parse_inner(inner), outer)
    asked = jws.payload_json(jws.parse_inner(inner))
    assert new.is_jwk(json.loads(json.dumps(wire.jwk(OTHER.public_key()))))
    assert asked["account"] == account.url
    assert asked["oldKey"] == wire.jwk(KEYS[0].public_key())


def test_a_binding_is_made_with_the_mac_key_for_the_account_s_key() -> None:
    eab = Eab.from_text("kid-1", Secret("c2VjcmV0LXNlY3JldC1zZWNyZXQ"))
    outer = jws.parse(wire.by_key({}, url=URL, nonce=NONCE, key=KEYS[0]))
    found = jws.parse_eab(wire.binding(eab, KEYS[0], url=URL))
    jws.check_eab(found, outer, Secret(b"secret-secret-secret"))
    assert found.kid == "kid-1"
    assert "secret" not in repr(eab)


@pytest.mark.parametrize("text", ["", "AAAA", "not base64!", "é" * 30])
def test_a_mac_key_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="MAC key"):
        Eab.from_text("kid-1", Secret(text))


def test_a_mac_key_is_read_with_padding_and_spaces_as_web_pages_show_it() -> None:
    octets = bytes(range(20))
    padded = urlsafe_b64encode(octets).decode()
    assert padded.endswith("=")
    assert Eab.from_text(" kid ", Secret(f" {padded}\n")) == Eab("kid", Secret(octets))
