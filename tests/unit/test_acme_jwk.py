"""Account keys: the RFCs' own examples, one spelling for each key, and no key that should not sign."""

from __future__ import annotations

import json

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from hypothesis import given
from hypothesis import strategies as st
from tests.support.pki import a_key, close_primes, next_factor, roca_modulus

from holdfast.core.base64url import encode
from holdfast.core.key_kind import KeyKind
from holdfast.core.own_ca.problem import AcmeError
from holdfast.pki import jwk
from holdfast.pki.keys import PrivateKey
from holdfast.pki.strict_json import decode

KINDS = {KeyKind.EC_P256: "ES256", KeyKind.EC_P384: "ES384", KeyKind.ED25519: "EdDSA", KeyKind.RSA_2048: "RS256"}


def number(value: int, size: int | None = None) -> str:
    return encode(value.to_bytes(size or (value.bit_length() + 7) // 8, "big"))


def jwk_of(key: PrivateKey) -> dict[str, str]:
    match key.public_key():
        case ed25519.Ed25519PublicKey() as public:
            return {"kty": "OKP", "crv": "Ed25519", "x": encode(public.public_bytes_raw())}
        case ec.EllipticCurvePublicKey() as public:
            point, bits = public.public_numbers(), public.key_size
            x, y = number(point.x, (bits + 7) // 8), number(point.y, (bits + 7) // 8)
            return {"kty": "EC", "crv": f"P-{bits}", "x": x, "y": y}
        case rsa.RSAPublicKey() as public:
            numbers = public.public_numbers()
            return {"kty": "RSA", "n": number(numbers.n), "e": number(numbers.e)}
    raise AssertionError


def signature_of(key: PrivateKey, content: bytes) -> bytes:
    match key:
        case ed25519.Ed25519PrivateKey():
            return key.sign(content)
        case rsa.RSAPrivateKey():
            return key.sign(content, padding.PKCS1v15(), hashes.SHA256())
    size = key.key_size // 8
    made = key.sign(content, ec.ECDSA(hashes.SHA256() if size == 32 else hashes.SHA384()))
    return b"".join(half.to_bytes(size, "big") for half in decode_dss_signature(made))


# ── The examples of the RFCs ──

# RFC 7515 A.2, RFC 7515 A.3, RFC 8037 A
RSA_2048 = {
    "kty": "RSA",
    "n": "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2l"
    "ZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2Ca"
    "pHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb5"
    "4h4FRWyuXpoQ",
    "e": "AQAB",
}
EC_256 = {
    "kty": "EC",
    "crv": "P-256",
    "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
    "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0",
}
ED = {"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}
CLAIMS = "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ"
SIGNED = [
    (
        EC_256,
        f"eyJhbGciOiJFUzI1NiJ9.{CLAIMS}",
        "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q",
    ),
    (
        RSA_2048,
        f"eyJhbGciOiJSUzI1NiJ9.{CLAIMS}",
        "cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZ"
        "cAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-e"
        "OkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw",
    ),
    (
        ED,
        "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc",
        "hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg",
    ),
]


@pytest.mark.parametrize(("members", "content", "signature"), SIGNED)
def test_the_signatures_in_the_rfcs_verify_and_changed_ones_do_not(members, content, signature):
    key, octets = jwk.parse(members), decode(signature)
    assert key.verify(key.alg, octets, content.encode())
    assert not key.verify(key.alg, octets, content.encode() + b"A")
    assert not key.verify(key.alg, octets[:-1] + bytes([octets[-1] ^ 1]), content.encode())
    for alg in ("none", "HS256", "ES512", *set(jwk.ALGORITHMS) - {key.alg}):
        assert not key.verify(alg, octets, content.encode())


RFC_7638_N = (
    "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3oknjhMst"
    "n64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajrn1n9"
    "1CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnqDKgw"
)


@pytest.mark.parametrize(
    ("members", "thumbprint"),
    [
        # RFC 7638 §3.1, with the members that do not count; RFC 8037 A.3
        (
            {"kty": "RSA", "n": RFC_7638_N, "e": "AQAB", "alg": "RS256", "kid": "2011-04-29"},
            "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs",
        ),
        (ED, "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"),
    ],
)
def test_the_thumbprints_in_the_rfcs_are_ours(members, thumbprint):
    key = jwk.parse(members)
    assert key.thumbprint == thumbprint
    assert set(key.members) <= {"kty", "crv", "x", "y", "n", "e"}


def test_the_ec_key_of_rfc_7517_is_read_with_its_other_members_ignored():
    more = {"use": "enc", "kid": "1"}
    x, y = "MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4", "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"
    assert jwk.parse({"kty": "EC", "crv": "P-256", "x": x, "y": y, **more}).alg == "ES256"


# ── Every kind ──


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_has_one_algorithm_and_verifies_what_it_signed(kind: KeyKind):
    key = jwk.parse(jwk_of(a_key(kind)))
    signature = signature_of(a_key(kind), b"content")
    assert key.alg == KINDS[kind]
    assert key.verify(key.alg, signature, b"content")
    assert not key.verify(key.alg, signature, b"other content")


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_survives_being_stored(kind: KeyKind):
    key = jwk.parse({**jwk_of(a_key(kind)), "use": "sig", "kid": "mine"})
    stored = jwk.serialize(key)
    again = jwk.deserialize(stored)
    assert (again, again.alg, again.members) == (key, key.alg, key.members)
    assert again.public == key.public
    assert stored == json.dumps(jwk_of(a_key(kind)), sort_keys=True, separators=(",", ":"))
    assert jwk.serialize(again) == stored


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", ["short", "long", "empty", "zero", "leading zero", "twice"])
def test_a_signature_of_another_length_is_none(kind: KeyKind, change: str):
    key, right = jwk.parse(jwk_of(a_key(kind))), signature_of(a_key(kind), b"content")
    wrong = {
        "short": right[:-1],
        "long": right + b"\0",
        "empty": b"",
        "zero": bytes(len(right)),
        "leading zero": b"\0" + right,
        "twice": right * 2,
    }[change]
    assert not key.verify(key.alg, wrong, b"content")


@pytest.mark.parametrize("kind", [KeyKind.EC_P256, KeyKind.EC_P384])
def test_an_ecdsa_signature_in_der_is_none_and_neither_is_one_with_zeros_or_the_order(kind: KeyKind):
    private = a_key(kind)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    key, size = jwk.parse(jwk_of(private)), private.key_size // 8
    right = signature_of(private, b"content")
    in_der = private.sign(b"content", ec.ECDSA(hashes.SHA256() if size == 32 else hashes.SHA384()))
    longer = right[:size] + b"\0" + right[size:]  # the same numbers
    for wrong in (in_der, longer, bytes(size) + right[size:], right[:size] + bytes(size), b"\xff" * 2 * size):
        assert not key.verify(key.alg, wrong, b"content")


def test_two_keys_are_equal_if_their_thumbprints_are():
    one, other = (jwk.parse(jwk_of(a_key(number=n))) for n in (1, 2))
    assert one == jwk.parse({**jwk_of(a_key(number=1)), "kid": "x"})
    assert one != other
    assert len({one, other, jwk.parse(jwk_of(a_key()))}) == 2


def test_a_key_recognises_its_own_jwk():
    key = jwk.parse(EC_256)
    assert key.is_jwk({**EC_256, "kid": "whatever"})
    assert not key.is_jwk({**EC_256, "y": EC_256["x"]})
    assert not key.is_jwk({"kty": "EC"})
    assert not key.is_jwk(ED)


# ── Refused ──


def ec_jwk(**changes: object) -> dict[str, object]:
    return {**EC_256, **changes}


def rsa_jwk(n: int | str, e: int | str = 65537) -> dict[str, object]:
    return {
        "kty": "RSA",
        "n": n if isinstance(n, str) else number(n),
        "e": e if isinstance(e, str) else number(e),
    }


def without(members: dict[str, str], name: str) -> dict[str, str]:
    return {key: value for key, value in members.items() if key != name}


N = int.from_bytes(decode(RSA_2048["n"]), "big")
POINT = decode(EC_256["x"]) + decode(EC_256["y"])
P521 = ec.derive_private_key(7, ec.SECP521R1())
K256 = ec.derive_private_key(7, ec.SECP256K1())
Q = 2**255 - 19
ORDER_8 = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
SMALL_ORDER = [0, 1, Q - 1, ORDER_8, Q - ORDER_8]


def ed_jwk(y: int, sign: int = 0) -> dict[str, object]:
    return {**ED, "x": encode((y | sign << 255).to_bytes(32, "little"))}


REFUSED = {
    "nothing": {},
    "no kty": without(EC_256, "kty"),
    "kty null": ec_jwk(kty=None),
    "kty a list": ec_jwk(kty=["EC"]),
    "kty in lower case": ec_jwk(kty="ec"),
    "a symmetric key": {"kty": "oct", "k": "AAAA"},
    "a symmetric key without its key": {"kty": "oct"},
    "an unknown kind": {"kty": "AKP", "alg": "ML-DSA-44", "pub": "AAAA"},
    "EC without crv": without(EC_256, "crv"),
    "EC without x": without(EC_256, "x"),
    "EC without y": without(EC_256, "y"),
    "EC with x a number": ec_jwk(x=5),
    "EC with y null": ec_jwk(y=None),
    "P-521": jwk_of(P521),
    "secp256k1": {**jwk_of(K256), "crv": "secp256k1"},
    "secp256k1 that says P-256": jwk_of(K256),
    "P-256 that says P-384": ec_jwk(crv="P-384"),
    "P-384 that says P-256": {**jwk_of(a_key(KeyKind.EC_P384)), "crv": "P-256"},
    "an Ed25519 curve in an EC key": ec_jwk(crv="Ed25519"),
    "a point off the curve": ec_jwk(y=EC_256["x"]),
    "a point at zero": ec_jwk(x=number(0, 32), y=number(0, 32)),
    "a coordinate beyond the field": ec_jwk(x=encode(b"\xff" * 32)),
    "an empty coordinate": ec_jwk(x=""),
    "a coordinate of 31 octets": ec_jwk(x=encode(decode(EC_256["x"])[1:])),
    "a coordinate of 33 octets": ec_jwk(x=encode(b"\0" + decode(EC_256["x"]))),
    "coordinates of 31 and 33 octets, together the point": ec_jwk(x=encode(POINT[:31]), y=encode(POINT[31:])),
    "a coordinate of 40000 octets": ec_jwk(x=encode(bytes(40000))),
    "a padded coordinate": ec_jwk(x=EC_256["x"] + "="),
    "a coordinate in the other alphabet": ec_jwk(y=EC_256["y"].replace("_", "/")),
    "a coordinate with unused bits": ec_jwk(x=EC_256["x"][:-1] + "V"),
    "a coordinate with white space": ec_jwk(x=EC_256["x"] + "\n"),
    "a private EC key": ec_jwk(d="jpsQnnGQmL-YBIffH1136cspYG6-0iY7X1fCE9-E9LI"),
    "a private key that is null": ec_jwk(d=None),
    "a private RSA key": {**RSA_2048, "d": "AAAA"},
    "an RSA prime": {**RSA_2048, "p": "AAAA"},
    "an RSA key with a CRT part": {**RSA_2048, "qi": "AAAA"},
    "a private Ed25519 key": {**ED, "d": "nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A"},
    "RSA without n": without(RSA_2048, "n"),
    "RSA without e": without(RSA_2048, "e"),
    "RSA of 512 bits": rsa_jwk(N >> 1536 | 1),
    "RSA of 1024 bits": rsa_jwk(next_factor(N >> 1024)),
    "RSA of 2040 bits": rsa_jwk(next_factor(N >> 8)),
    "RSA of 4104 bits": rsa_jwk(next_factor(N << 2056)),
    "RSA of 100000 bits": rsa_jwk(1 << 99999 | 1),
    "RSA of 2049 bits": rsa_jwk(next_factor(1 << 2048)),
    "an even modulus": rsa_jwk(N - 1),
    "a modulus that 3 divides": rsa_jwk(next(n for n in range(N, N + 6) if n % 6 == 3)),
    "close primes": rsa_jwk(close_primes(2048)),
    "ROCA": rsa_jwk(roca_modulus(2048)),
    "exponent 1": rsa_jwk(N, 1),
    "exponent 3": rsa_jwk(N, 3),
    "an even exponent": rsa_jwk(N, 65538),
    "an exponent of 257 bits": rsa_jwk(N, 2**256 + 1),
    "an exponent of 30000 octets": rsa_jwk(N, encode(b"\x01" * 30000)),
    "an empty exponent": rsa_jwk(N, ""),
    "exponent zero": rsa_jwk(N, "AA"),
    "an exponent with a leading zero": rsa_jwk(N, "AAEAAQ"),
    "an exponent as a number": {**RSA_2048, "e": 65537},
    "an empty modulus": rsa_jwk(""),
    "a modulus with a leading zero": rsa_jwk(encode(b"\0" + decode(RSA_2048["n"]))),
    "a padded modulus": rsa_jwk(RSA_2048["n"] + "=="),
    "Ed448": {"kty": "OKP", "crv": "Ed448", "x": encode(bytes(57))},
    "X25519": {**ED, "crv": "X25519"},
    "P-256 in an OKP key": {**ED, "crv": "P-256"},
    "Ed25519 without x": without(ED, "x"),
    "Ed25519 of 31 octets": {**ED, "x": encode(bytes(31))},
    "Ed25519 of 33 octets": {**ED, "x": encode(bytes(33))},
    "Ed25519 off the curve": ed_jwk(2),
    "Ed25519 beyond the field": ed_jwk(Q + 3),
    **{f"Ed25519 of small order, {n}": ed_jwk(y, sign) for n, y in enumerate(SMALL_ORDER) for sign in (0, 1)},
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_key_that_should_not_sign_is_a_bad_public_key(name: str):
    with pytest.raises(AcmeError) as refused:
        jwk.parse(REFUSED[name])
    assert (refused.value.problem.type, refused.value.problem.status) == ("badPublicKey", 400)
    assert len(refused.value.problem.detail) < 200


def test_numbers_that_are_far_too_long_are_not_even_looked_at():
    for members in (rsa_jwk(encode(b"\1" * 513)), rsa_jwk(N, encode(b"\1" * 33))):
        with pytest.raises(AcmeError, match="must have at most"):
            jwk.parse(members)


def test_a_private_member_is_not_repeated_in_the_refusal():
    with pytest.raises(AcmeError) as refused:
        jwk.parse(ec_jwk(d="jpsQnnGQmL-YBIffH1136cspYG6-0iY7X1fCE9-E9LI"))
    assert "jpsQ" not in str(refused.value.problem)


def add(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    """Edwards addition (RFC 8032 §5.1)."""
    d = -121665 * pow(121666, -1, Q)
    (x1, y1), (x2, y2) = one, other
    xy = d * x1 * x2 * y1 * y2
    return (x1 * y2 + x2 * y1) * pow(1 + xy, -1, Q) % Q, (y1 * y2 + x1 * x2) * pow(1 - xy, -1, Q) % Q


@pytest.mark.parametrize("y", [ORDER_8, Q - ORDER_8])
def test_the_points_called_small_are_of_order_8(y: int):
    d = -121665 * pow(121666, -1, Q)
    squared = (y * y - 1) * pow(d * y * y + 1, -1, Q) % Q
    x = pow(squared, (Q + 3) // 8, Q)
    x = x if x * x % Q == squared else x * pow(2, (Q - 1) // 4, Q) % Q
    assert x * x % Q == squared
    twice = add((x, y), (x, y))
    assert add(twice, twice) == (0, Q - 1)


def test_a_key_of_small_order_would_let_anybody_sign():
    """Why they are refused: the library verifies this signature, which nobody made, over anything."""
    identity = (1).to_bytes(32, "little")
    ed25519.Ed25519PublicKey.from_public_bytes(identity).verify(identity + bytes(32), b"anything")


@pytest.mark.parametrize("number", range(1, 30))
def test_no_good_ed25519_key_is_taken_for_a_bad_one(number: int):
    assert jwk.parse(jwk_of(a_key(KeyKind.ED25519, number))).alg == "EdDSA"


def outcome(members: dict[str, object]) -> str:
    try:
        return jwk.parse(members).alg
    except AcmeError as error:
        return error.problem.type


ANYTHING = st.none() | st.integers() | st.text(max_size=50) | st.lists(st.text(max_size=3), max_size=2)


@given(
    st.sampled_from([EC_256, RSA_2048, ED]),
    st.dictionaries(st.sampled_from(["kty", "crv", "x", "y", "n", "e", "alg"]) | st.text(), ANYTHING, max_size=3),
)
def test_any_change_of_a_key_gives_a_key_or_a_refusal(members, changes):
    assert outcome({**members, **changes}) in (jwk.parse(members).alg, "badPublicKey")


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=256, max_size=256))
def test_any_octets_in_the_right_places_give_a_key_or_a_refusal(short, long):
    assert outcome(ec_jwk(x=encode(short))) in ("ES256", "badPublicKey")
    assert outcome({**ED, "x": encode(short)}) in ("EdDSA", "badPublicKey")
    assert outcome(rsa_jwk(encode(long), encode(short))) in ("RS256", "badPublicKey")


@given(st.sampled_from([EC_256, RSA_2048, ED]), st.binary(max_size=600))
def test_any_octets_as_a_signature_are_just_wrong(members, signature):
    key = jwk.parse(members)
    assert not key.verify(key.alg, signature, b"content")


def test_an_exponent_too_large_for_the_library_verifies_nothing_and_breaks_nothing():
    key = jwk.parse(rsa_jwk(next_factor(N << 2048), 2**255 + 1))
    assert not key.verify("RS256", b"\1" * 512, b"content")
