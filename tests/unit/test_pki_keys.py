"""Keys are made without holding anyone up, kept under slow locks, and the weak ones are recognised."""

from __future__ import annotations

import asyncio
import hashlib
import random
from math import isqrt

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, rsa, x25519
from tests.support.keys import Draws
from tests.support.pki import SOUND, a_key, close_primes, next_factor, roca_modulus
from tests.support.secrets_planted import KEY_PASSPHRASE

from holdfast.core.key_kind import KeyKind
from holdfast.pki import keys
from holdfast.pki.keys import EVERYDAY
from holdfast.pki.refused import KeyRefused
from holdfast.secret import Secret

pytestmark = pytest.mark.anyio
QUICK = [KeyKind.EC_P256, KeyKind.EC_P384, KeyKind.ED25519, KeyKind.RSA_2048]
PASSPHRASE = Secret(KEY_PASSPHRASE)


# ── Making, writing, reading ──


@pytest.mark.parametrize("kind", QUICK)
async def test_a_new_key_is_of_its_kind_and_good(kind: KeyKind):
    key = await keys.generate(kind)
    assert keys.kind_of(key.public_key()) is kind
    assert keys.key_problem(key.public_key(), ed25519_allowed=True) is None


async def test_while_an_rsa_key_is_made_the_loop_goes_on():
    """OpenSSL must let go of the interpreter meanwhile; a thread alone would not help."""
    turns = 0
    making = asyncio.create_task(keys.generate(KeyKind.RSA_3072))
    while not making.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 100


@pytest.mark.parametrize("kind", QUICK)
def test_a_key_survives_being_written(kind: KeyKind):
    key = a_key(kind)
    assert keys.from_pem(keys.to_pem(key)).public_key() == key.public_key()
    assert keys.from_spki(keys.spki(key.public_key())) == key.public_key()


def test_an_encrypted_key_opens_with_its_passphrase_and_no_other():
    key = a_key()
    pem = keys.to_encrypted_pem(key, PASSPHRASE, Draws())
    assert pem.startswith(b"-----BEGIN ENCRYPTED PRIVATE KEY-----\n")
    assert keys.from_pem(pem, PASSPHRASE).public_key() == key.public_key()
    for wrong, code in ((Secret("another"), "key-passphrase-wrong"), (None, "key-needs-passphrase")):
        with pytest.raises(KeyRefused) as refused:
            keys.from_pem(pem, wrong)
        assert refused.value.code == code


def test_the_cost_of_a_guess_is_the_one_that_was_decided():
    """As much as OWASP asks for, in as little memory as OpenSSL allows."""
    assert keys.SCRYPT == {"n": 2**14, "r": 8, "p": 5}


def test_an_empty_passphrase_is_none():
    with pytest.raises(ValueError, match="empty"):
        keys.to_encrypted_pem(a_key(), Secret(""), Draws())


def test_a_written_key_is_a_secret():
    assert "PRIVATE" not in repr(keys.to_pem(a_key()))


def test_a_passphrase_that_is_not_needed_does_no_harm():
    assert keys.from_pem(keys.to_pem(a_key()), PASSPHRASE).public_key() == a_key().public_key()


@pytest.mark.parametrize(
    ("pem", "code"),
    [
        (b"", "key-malformed"),
        (b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "key-malformed"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "key-malformed"),
        (b"x" * (keys.MAX_KEY_PEM + 1), "key-too-large"),
    ],
)
def test_what_is_no_key_is_refused_and_not_quoted(pem: bytes, code: str):
    with pytest.raises(KeyRefused) as refused:
        keys.from_pem(pem)
    assert refused.value.code == code
    assert "AAAA" not in str(refused.value)


def test_a_private_key_of_a_foreign_kind_is_refused():
    pem = ed448.Ed448PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with pytest.raises(KeyRefused) as refused:
        keys.from_pem(pem)
    assert refused.value.code == "key-kind"


def test_a_key_is_named_by_the_hash_of_its_spki():
    key = a_key().public_key()
    assert keys.spki_sha256(key) == hashlib.sha256(keys.spki(key)).digest() == keys.spki_sha256(keys.spki(key))


def test_a_key_identifier_is_160_bits_of_the_keys_own_bits():
    assert {len(keys.key_identifier(a_key(kind).public_key())) for kind in QUICK} == {20}
    assert len({keys.key_identifier(a_key(kind).public_key()) for kind in QUICK}) == len(QUICK)
    bits = a_key().public_key().public_bytes(
        serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
    )  # fmt: skip
    assert keys.key_identifier(a_key().public_key()) == hashlib.sha256(bits).digest()[:20]


# ── Weak keys ──


def rsa_key(modulus: int, exponent: int = 65537) -> rsa.RSAPublicKey:
    return rsa.RSAPublicNumbers(exponent, modulus).public_key()


@pytest.mark.parametrize(
    ("modulus", "exponent", "code"),
    [
        pytest.param((1 << 1023) + 1, 65537, "key-rsa-size", id="1024 bits"),
        pytest.param((1 << 2046) + 1, 65537, "key-rsa-size", id="2047 bits"),
        pytest.param((1 << 2048) + 1, 65537, "key-rsa-size", id="2049 bits"),
        pytest.param((1 << 4096) + 1, 65537, "key-rsa-size", id="4097 bits"),
        pytest.param((1 << 8191) + 1, 65537, "key-rsa-size", id="8192 bits"),
        pytest.param(SOUND, 3, "key-rsa-exponent", id="exponent 3"),
        pytest.param(SOUND, 17, "key-rsa-exponent", id="exponent 17"),
        pytest.param(SOUND, 65535, "key-rsa-exponent", id="exponent 65535"),
        pytest.param(SOUND, 2**256 + 1, "key-rsa-exponent", id="exponent of 257 bits"),
        pytest.param(3 * ((1 << 2046) + 1), 65537, "key-rsa-small-factor", id="divisible by 3"),
        pytest.param(751 * ((1 << 2038) + 3), 65537, "key-rsa-small-factor", id="divisible by 751"),
        pytest.param(roca_modulus(2048), 65537, "key-rsa-roca", id="ROCA 2048"),
        pytest.param(roca_modulus(4096), 65537, "key-rsa-roca", id="ROCA 4096"),
        pytest.param(close_primes(2048), 65537, "key-rsa-close-primes", id="close primes"),
    ],
)
def test_a_weak_rsa_key_is_refused_for_its_own_reason(modulus: int, exponent: int, code: str):
    with pytest.raises(KeyRefused) as refused:
        keys.check_key(rsa_key(modulus, exponent))
    assert refused.value.code == code
    assert keys.key_problem(rsa_key(modulus, exponent)) == str(refused.value)


def test_an_even_exponent_is_refused_even_if_the_library_lets_it_through():
    with pytest.raises(KeyRefused) as refused:
        keys._check_rsa(rsa.RSAPublicNumbers(65538, SOUND))
    assert refused.value.code == "key-rsa-exponent"


@pytest.mark.parametrize(
    ("key", "code"),
    [
        (ec.derive_private_key(7, ec.SECP521R1()), "key-curve"),
        (ec.derive_private_key(7, ec.SECP224R1()), "key-curve"),
        (ec.derive_private_key(7, ec.SECP256K1()), "key-curve"),
        (ec.derive_private_key(7, ec.BrainpoolP256R1()), "key-curve"),
        (ed448.Ed448PrivateKey.generate(), "key-kind"),
        (x25519.X25519PrivateKey.generate(), "key-kind"),
        (a_key(KeyKind.ED25519), "key-ed25519"),
    ],
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_a_key_of_another_kind_is_refused(key, code: str):
    with pytest.raises(KeyRefused) as refused:
        keys.check_key(key.public_key())
    assert refused.value.code == code


def test_what_is_no_public_key_at_all_is_refused():
    for content in (b"", b"\x30\x00", keys.spki(a_key().public_key())[:-1]):
        with pytest.raises(KeyRefused) as refused:
            keys.from_spki(content)
        assert refused.value.code == "key-malformed"


def test_the_roca_test_uses_the_seventeen_primes_that_tell_something():
    assert [p for p, _ in keys._roca_residues()] == [
        11, 13, 17, 19, 37, 53, 61, 71, 73, 79, 97, 103, 107, 109, 127, 151, 157,
    ]  # fmt: skip


def test_ordinary_moduli_pass_for_neither_weakness():
    draw = random.Random(5)
    for _ in range(300):
        modulus = draw.getrandbits(2048) | 1 | 1 << 2047
        assert not keys.is_roca(modulus)
        assert not keys.has_close_primes(modulus)


@pytest.mark.parametrize("distance", [2**10, 2**100, 2**250])
def test_primes_in_each_others_reach_are_found(distance: int):
    p = next_factor(1 << 511)
    assert keys.has_close_primes(p * next_factor(p + distance))


def test_a_square_is_found_at_once():
    assert keys.has_close_primes(next_factor(1 << 511) ** 2, rounds=1)


def test_no_square_is_overlooked_by_the_quick_look():
    assert all(keys._may_be_square(n * n) for n in range(1000))
    assert not any(keys._may_be_square(n) and isqrt(n) ** 2 == n for n in (2, 3, 5, 6, 7, 8, 10))


def test_ed25519_must_be_asked_for():
    assert frozenset(KeyKind) - {KeyKind.ED25519} == EVERYDAY
