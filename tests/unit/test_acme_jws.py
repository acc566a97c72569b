"""The JWS edge: what a good request says, and a corpus of bad ones with the error that each must get."""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from hypothesis import given
from hypothesis import strategies as st
from tests.support.pki import a_key

from holdfast.acme import jws
from holdfast.acme.jws import Unverified
from holdfast.core.base64url import encode
from holdfast.core.key_kind import KeyKind
from holdfast.core.own_ca.problem import AcmeError
from holdfast.pki import jwk
from holdfast.pki.keys import PrivateKey
from holdfast.pki.strict_json import decode
from holdfast.secret import Secret

URL = "https://ca.example.internal/acme/main/new-order"
KID = "https://ca.example.internal/acme/main/account/1"
NONCE = encode(b"a nonce of some length")
KINDS = {"ES256": KeyKind.EC_P256, "ES384": KeyKind.EC_P384, "EdDSA": KeyKind.ED25519, "RS256": KeyKind.RSA_2048}
MAC = Secret(b"m" * 32)
GONE: Any = object()  # a member that is left out


# ── A client that signs whatever it is told to ──


def number(value: int, size: int) -> str:
    return encode(value.to_bytes(size, "big"))


def jwk_of(key: PrivateKey) -> dict[str, Any]:
    match key.public_key():
        case ed25519.Ed25519PublicKey() as public:
            return {"kty": "OKP", "crv": "Ed25519", "x": encode(public.public_bytes_raw())}
        case ec.EllipticCurvePublicKey() as public:
            point, bits = public.public_numbers(), public.key_size
            size = (bits + 7) // 8
            return {"kty": "EC", "crv": f"P-{bits}", "x": number(point.x, size), "y": number(point.y, size)}
        case rsa.RSAPublicKey() as public:
            numbers = public.public_numbers()
            return {"kty": "RSA", "n": number(numbers.n, public.key_size // 8), "e": "AQAB"}
    raise AssertionError


def sign(key: PrivateKey, content: bytes) -> bytes:
    match key:
        case ed25519.Ed25519PrivateKey():
            return key.sign(content)
        case rsa.RSAPrivateKey():
            return key.sign(content, padding.PKCS1v15(), hashes.SHA256())
    size = (key.key_size + 7) // 8
    digest = {32: hashes.SHA256(), 48: hashes.SHA384()}.get(size, hashes.SHA512())
    made = key.sign(content, ec.ECDSA(digest, deterministic_signing=True))
    return b"".join(half.to_bytes(size, "big") for half in decode_dss_signature(made))


def mac(content: bytes, name: str = "sha256") -> bytes:
    return hmac.digest(MAC.reveal(), content, name)


Sign = Callable[[bytes], bytes]


def envelope(header: Any, payload: bytes, signer: Sign) -> dict[str, Any]:
    protected = encode(header if isinstance(header, bytes) else json.dumps(header).encode())
    content = f"{protected}.{encode(payload)}".encode()
    return {"protected": protected, "payload": encode(payload), "signature": encode(signer(content))}


def a_header(**changes: Any) -> dict[str, Any]:
    header = {"alg": "ES256", "nonce": NONCE, "url": URL, "kid": KID, **changes}
    return {name: value for name, value in header.items() if value is not GONE}


def a_jws(
    *, payload: bytes = b'{"a":1}', key: PrivateKey | None = None, signer: Sign | None = None, **changes: Any
) -> dict[str, Any]:
    """A flattened JWS, signed by a P-256 key; `changes` are of its header."""
    made = signer or (lambda content: sign(key or a_key(), content))
    return envelope(a_header(**changes), payload, made)


def own(key: PrivateKey | None = None, **changes: Any) -> dict[str, Any]:
    """One that brings its key, as newAccount does."""
    return a_jws(key=key, **{"kid": GONE, "jwk": jwk_of(key or a_key()), **changes})


def body(found: Any) -> bytes:
    return found if isinstance(found, bytes) else json.dumps(found).encode()


ACCOUNT = jwk.parse(jwk_of(a_key()))


def accept(data: bytes) -> Unverified:
    """What a server does with a request of this account."""
    found = jws.parse(data)
    jws.check(found, found.jwk or ACCOUNT)
    return found


# ── Good ones ──


def test_a_request_says_who_signed_what_and_for_where():
    found = accept(body(a_jws(payload=b'{"identifiers":[]}')))
    assert (found.alg, found.nonce, found.url, found.kid, found.jwk) == ("ES256", NONCE, URL, KID, None)
    assert found.payload == b'{"identifiers":[]}'
    assert jws.payload_json(found) == {"identifiers": []}
    assert not found.is_post_as_get


@pytest.mark.parametrize("alg", KINDS)
def test_a_request_of_every_kind_of_key_is_accepted(alg: str):
    key = a_key(KINDS[alg])
    found = accept(body(own(key, alg=alg)))
    assert found.kid is None
    assert found.jwk == jwk.parse(jwk_of(key))


def test_an_empty_payload_asks_to_read_and_an_empty_object_does_not():
    assert accept(body(a_jws(payload=b""))).is_post_as_get
    assert not accept(body(a_jws(payload=b"{}"))).is_post_as_get


def test_members_that_nobody_knows_are_ignored():
    assert accept(body({**a_jws(typ="JOSE", cty="x", x5u="http://169.254.169.254/", jku=5), "extra": [1]})).kid == KID


def test_white_space_and_order_of_members_do_not_matter():
    found = a_jws()
    turned = dict(reversed(list(found.items())))
    assert accept(json.dumps(turned, indent=4).encode()).signing_input == accept(body(found)).signing_input


def test_the_signature_is_checked_with_the_stored_key_and_not_with_what_the_request_claims():
    with pytest.raises(AcmeError, match="signature"):
        jws.check(jws.parse(body(own())), jwk.parse(jwk_of(a_key(number=2))))


# ── Bad ones ──


def changed(name: str, value: Any) -> dict[str, Any]:
    """The envelope of a good request with one member changed after signing."""
    found = {**a_jws(), name: value}
    return {key: value for key, value in found.items() if value is not GONE}


def with_key(**changes: Any) -> dict[str, Any]:
    """Signed as it should be, with a key that is presented wrongly."""
    presented = {**jwk_of(a_key()), **changes}
    return own(jwk={name: value for name, value in presented.items() if value is not GONE})


GOOD = a_jws()
P521 = ec.derive_private_key(7, ec.SECP521R1())
RSA_1024 = rsa.generate_private_key(65537, 1024)
DER = a_key().sign(  # type: ignore[call-arg, union-attr]
    f"{GOOD['protected']}.{GOOD['payload']}".encode(), ec.ECDSA(hashes.SHA256())
)
MALFORMED, NO_NONCE, BAD_ALG, BAD_KEY = "malformed", "badNonce", "badSignatureAlgorithm", "badPublicKey"

CORPUS: dict[str, tuple[str, Any]] = {
    # the body
    "nothing": (MALFORMED, b""),
    "no JSON": (MALFORMED, b"protected=a&payload=b"),
    "the compact serialization": (MALFORMED, ".".join(GOOD.values()).encode()),
    "the compact serialization as a text": (MALFORMED, ".".join(GOOD.values())),
    "a list": (MALFORMED, [GOOD]),
    "null": (MALFORMED, None),
    "an empty object": (MALFORMED, {}),
    "too large": (MALFORMED, body(GOOD) + b" " * 65536),
    "an octet order mark": (MALFORMED, b"\xef\xbb\xbf" + body(GOOD)),
    "Latin-1": (MALFORMED, body(GOOD)[:-1] + b',"x":"\xe4"}'),
    "a nesting bomb": (MALFORMED, body(GOOD)[:-1] + b',"x":' + b"[" * 30000),
    "17 levels": (MALFORMED, body(GOOD)[:-1] + b',"x":' + b"[" * 17 + b"]" * 17 + b"}"),
    "the payload twice": (MALFORMED, body(GOOD)[:-1] + b',"payload":"e30"}'),
    "two bodies": (MALFORMED, body(GOOD) * 2),
    "half a body": (MALFORMED, body(GOOD)[:200]),
    # the envelope
    "no protected": (MALFORMED, changed("protected", GONE)),
    "no payload": (MALFORMED, changed("payload", GONE)),
    "no signature": (MALFORMED, changed("signature", GONE)),
    "a detached payload": (MALFORMED, changed("payload", None)),
    "a payload that is not encoded": (MALFORMED, changed("payload", {"a": 1})),
    "an unprotected header": (MALFORMED, changed("header", {"kid": KID})),
    "an empty unprotected header": (MALFORMED, changed("header", {})),
    "an unprotected header that is null": (MALFORMED, changed("header", None)),
    "the general serialization": (
        MALFORMED,
        {"payload": GOOD["payload"], "signatures": [{k: GOOD[k] for k in ("protected", "signature")}]},
    ),
    "both serializations": (MALFORMED, changed("signatures", [])),
    "a padded payload": (MALFORMED, changed("payload", "eyJhIjoxfQ==")),
    "a payload in the other alphabet": (MALFORMED, changed("payload", "eyJhIjoi/+8ifQ")),
    "a payload with unused bits": (MALFORMED, changed("payload", "eyJhIjoxfR")),
    "a payload with a line break": (MALFORMED, changed("payload", GOOD["payload"] + "\n")),
    "a padded header": (MALFORMED, changed("protected", GOOD["protected"] + "=")),
    "an empty header": (MALFORMED, changed("protected", "")),
    "a header that is a number": (MALFORMED, changed("protected", 5)),
    # the signature
    "an empty signature": (MALFORMED, changed("signature", "")),
    "a signature of zeros": (MALFORMED, changed("signature", encode(bytes(64)))),
    "a signature of 63 octets": (MALFORMED, changed("signature", encode(decode(GOOD["signature"])[:63]))),
    "a signature of 65 octets": (MALFORMED, changed("signature", encode(decode(GOOD["signature"]) + b"\0"))),
    "a signature with a zero in front of each half": (
        MALFORMED,
        changed("signature", encode(b"\0" + decode(GOOD["signature"])[:32] + b"\0" + decode(GOOD["signature"])[32:])),
    ),
    "a signature in DER": (MALFORMED, changed("signature", encode(DER))),
    "a padded signature": (MALFORMED, changed("signature", GOOD["signature"] + "==")),
    "a signature with its halves swapped": (
        MALFORMED,
        changed("signature", encode(decode(GOOD["signature"])[32:] + decode(GOOD["signature"])[:32])),
    ),
    "a signature that is a list": (MALFORMED, changed("signature", [GOOD["signature"]])),
    "the signature of another payload": (MALFORMED, changed("payload", encode(b'{"a":2}'))),
    "the signature of another header": (MALFORMED, changed("protected", a_jws(url=URL + "/x")["protected"])),
    "the signature of another key": (MALFORMED, a_jws(key=a_key(number=2))),
    "the signature of another key than the presented one": (MALFORMED, own(signer=lambda c: sign(a_key(number=2), c))),
    "a signature over the decoded content": (MALFORMED, own(signer=lambda c: sign(a_key(), b'{"a":1}'))),
    # the header
    "a header that is no JSON": (MALFORMED, envelope(b"{", b"", lambda c: sign(a_key(), c))),
    "a header that is a list": (MALFORMED, envelope([a_header()], b"", lambda c: sign(a_key(), c))),
    "a header that is not UTF-8": (MALFORMED, envelope(b'{"alg":"\xff"}', b"", lambda c: sign(a_key(), c))),
    "a header with alg twice": (
        MALFORMED,
        envelope(body(a_header())[:-1] + b',"alg":"ES256"}', b"", lambda c: sign(a_key(), c)),
    ),
    "a header with kid twice, spelt otherwise": (
        MALFORMED,
        envelope(body(a_header())[:-1] + b',"k\\u0069d":"x"}', b"", lambda c: sign(a_key(), c)),
    ),
    "a header with half a surrogate pair": (MALFORMED, a_jws(kid="\ud800")),
    "a header with a NUL": (MALFORMED, a_jws(kid=KID + "\0")),
    "crit": (MALFORMED, a_jws(crit=["exp"], exp=5)),
    "an empty crit": (MALFORMED, a_jws(crit=[])),
    "an unencoded payload": (MALFORMED, a_jws(b64=False, crit=["b64"])),
    "b64 without crit": (MALFORMED, a_jws(b64=False)),
    "b64 that is true": (MALFORMED, a_jws(b64=True)),
    # alg
    "no alg": (MALFORMED, a_jws(alg=GONE)),
    "alg null": (MALFORMED, a_jws(alg=None)),
    "alg a list": (MALFORMED, a_jws(alg=["ES256"])),
    "an empty alg": (MALFORMED, a_jws(alg="")),
    "none": (BAD_ALG, a_jws(alg="none", signer=lambda c: b"")),
    "None": (BAD_ALG, a_jws(alg="None", signer=lambda c: b"")),
    "none with a key": (BAD_ALG, own(alg="none", signer=lambda c: b"")),
    "HS256": (BAD_ALG, a_jws(alg="HS256", signer=mac)),
    "HS256 with the public key as the secret": (
        BAD_ALG,
        own(alg="HS256", signer=lambda c: hmac.digest(jwk.serialize(ACCOUNT).encode(), c, "sha256")),
    ),
    "HS512 with a symmetric key": (BAD_ALG, own(alg="HS512", jwk={"kty": "oct", "k": "AAAA"}, signer=mac)),
    "es256 in lower case": (BAD_ALG, a_jws(alg="es256")),
    "ES512 with P-521": (BAD_ALG, own(P521, alg="ES512")),
    "ES256K": (BAD_ALG, a_jws(alg="ES256K")),
    "PS256": (BAD_ALG, a_jws(alg="PS256")),
    "RS1": (BAD_ALG, a_jws(alg="RS1")),
    "RS512": (BAD_ALG, own(a_key(KeyKind.RSA_2048), alg="RS512")),
    "Ed448": (BAD_ALG, a_jws(alg="Ed448")),
    "an encryption": (BAD_ALG, a_jws(alg="RSA-OAEP")),
    "ES384 for an account with P-256": (BAD_ALG, a_jws(alg="ES384")),
    "RS256 for an account with P-256": (BAD_ALG, a_jws(alg="RS256")),
    "EdDSA for an account with P-256": (BAD_ALG, a_jws(alg="EdDSA")),
    # nonce
    "no nonce": (NO_NONCE, a_jws(nonce=GONE)),
    "an empty nonce": (NO_NONCE, a_jws(nonce="")),
    "no nonce with a key": (NO_NONCE, own(nonce=GONE)),
    "a nonce that is a number": (MALFORMED, a_jws(nonce=5)),
    "a nonce that is null": (MALFORMED, a_jws(nonce=None)),
    "a padded nonce": (MALFORMED, a_jws(nonce="AA==")),
    "a nonce in the other alphabet": (MALFORMED, a_jws(nonce="ab+/")),
    "a nonce of an impossible length": (MALFORMED, a_jws(nonce="abcde")),
    "a nonce with a line break": (MALFORMED, a_jws(nonce=NONCE + "\n")),
    "a nonce with a blank": (MALFORMED, a_jws(nonce="not a nonce!")),
    "a nonce in letters of others": (MALFORMED, a_jws(nonce="нонс")),
    # url
    "no url": (MALFORMED, a_jws(url=GONE)),
    "an empty url": (MALFORMED, a_jws(url="")),
    "a url that is a list": (MALFORMED, a_jws(url=[URL])),
    "a url that is null": (MALFORMED, a_jws(url=None)),
    # jwk and kid
    "both jwk and kid": (MALFORMED, a_jws(jwk=jwk_of(a_key()))),
    "both, and kid null": (MALFORMED, own(kid=None)),
    "both, and jwk null": (MALFORMED, a_jws(jwk=None)),
    "neither jwk nor kid": (MALFORMED, a_jws(kid=GONE)),
    "kid a number": (MALFORMED, a_jws(kid=1)),
    "kid null": (MALFORMED, a_jws(kid=None)),
    "an empty kid": (MALFORMED, a_jws(kid="")),
    "jwk a text": (MALFORMED, own(jwk=jwk.serialize(ACCOUNT))),
    "jwk a list": (MALFORMED, own(jwk=[jwk_of(a_key())])),
    "jwk null": (MALFORMED, own(jwk=None)),
    "jwk with a member twice": (
        MALFORMED,
        envelope(
            body(a_header(kid=GONE))[:-1] + b',"jwk":{"kty":"EC","kty":"EC"}}', b"", lambda c: sign(a_key(), c)
        ),
    ),
    "an empty jwk": (BAD_KEY, own(jwk={})),
    "a symmetric jwk": (BAD_KEY, own(jwk={"kty": "oct", "k": "AAAA"})),
    "a private jwk": (BAD_KEY, with_key(d=number(10**60 + 1, 32))),
    "jwk without y": (BAD_KEY, with_key(y=GONE)),
    "jwk with a padded x": (BAD_KEY, with_key(x=jwk_of(a_key())["x"] + "=")),
    "jwk off the curve": (BAD_KEY, with_key(y=jwk_of(a_key())["x"])),
    "ES256 with P-521": (BAD_KEY, own(P521)),
    "ES256 with P-384": (BAD_KEY, own(a_key(KeyKind.EC_P384))),
    "ES384 with P-256": (BAD_KEY, own(alg="ES384")),
    "RS256 with P-256": (BAD_KEY, own(alg="RS256")),
    "ES256 with RSA": (BAD_KEY, own(a_key(KeyKind.RSA_2048))),
    "EdDSA with P-256": (BAD_KEY, own(alg="EdDSA")),
    "EdDSA with Ed448": (BAD_KEY, own(alg="EdDSA", jwk={"kty": "OKP", "crv": "Ed448", "x": encode(bytes(57))})),
    "RS256 with 1024 bits": (BAD_KEY, own(RSA_1024, alg="RS256")),
}  # fmt: skip


@pytest.mark.parametrize("name", CORPUS)
def test_a_bad_request_gets_the_error_that_the_rfc_names(name: str):
    expected, found = CORPUS[name]
    with pytest.raises(AcmeError) as refused:
        accept(body(found))
    problem = refused.value.problem
    assert (problem.type, problem.status) == (expected, 413 if name == "too large" else 400), problem.detail
    assert len(problem.detail) < 250
    assert bool(problem.algorithms) is (expected == BAD_ALG)


def test_the_corpus_is_as_large_as_it_should_be():
    assert len(CORPUS) >= 80


def test_an_unsupported_algorithm_is_answered_with_all_that_are_supported():
    with pytest.raises(AcmeError) as refused:
        jws.parse(body(a_jws(alg="none")))
    assert refused.value.problem.to_json()["algorithms"] == ["ES256", "ES384", "EdDSA", "RS256"]


def test_an_algorithm_that_is_not_the_accounts_is_answered_with_the_one_that_is():
    with pytest.raises(AcmeError) as refused:
        accept(body(a_jws(alg="RS256")))
    assert refused.value.problem.to_json()["algorithms"] == ["ES256"]


def test_a_nonce_of_ours_with_its_last_character_changed_is_for_the_nonces_to_judge():
    """It is badNonce, which a client retries, and not malformed."""
    assert accept(body(a_jws(nonce="AB"))).nonce == "AB"


@pytest.mark.parametrize(
    "payload", [b"", b"[]", b'"a"', b"null", b"{", b'{"a":1,"a":2}', b"\xff", b"{}{}", b'{"a":NaN}']
)
def test_a_payload_that_is_not_strictly_an_object_is_malformed(payload: bytes):
    found = accept(body(a_jws(payload=payload)))
    with pytest.raises(AcmeError) as refused:
        jws.payload_json(found)
    assert refused.value.problem.type == "malformed"


# ── The inner JWS of keyChange ──


def inner(**changes: Any) -> dict[str, Any]:
    return own(a_key(number=2), **{"nonce": GONE, **changes})


OUTER = jws.parse(body(a_jws()))


def test_the_inner_jws_of_a_key_change_gives_the_new_key():
    found = jws.parse_inner(json.loads(json.dumps(inner(payload=b'{"account":"x"}'))))
    assert jws.check_inner(found, OUTER) == jwk.parse(jwk_of(a_key(number=2)))
    assert jws.payload_json(found) == {"account": "x"}
    assert found.nonce == ""


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        (MALFORMED, "text"),
        (MALFORMED, None),
        (MALFORMED, {}),
        (MALFORMED, [inner()]),
        (MALFORMED, inner(nonce=NONCE)),
        (MALFORMED, inner(nonce="")),
        (MALFORMED, inner(kid=KID)),
        (MALFORMED, a_jws(nonce=GONE)),
        (MALFORMED, inner(jwk=GONE)),
        (MALFORMED, inner(url=GONE)),
        (MALFORMED, inner(url=URL + "/")),
        (MALFORMED, inner(signer=lambda c: sign(a_key(), c))),
        (MALFORMED, {**inner(), "header": {}}),
        (MALFORMED, inner(crit=["x"])),
        (BAD_ALG, inner(alg="HS256")),
        (BAD_ALG, inner(alg="none")),
        (BAD_KEY, inner(alg="ES384")),
        (BAD_KEY, inner(jwk={"kty": "oct", "k": "AA"})),
    ],
)
def test_an_inner_jws_that_breaks_a_rule_is_refused(expected: str, found: Any):
    with pytest.raises(AcmeError) as refused:
        jws.check_inner(jws.parse_inner(found), OUTER)
    assert refused.value.problem.type == expected


# ── External account binding ──

NEW_ACCOUNT = jws.parse(body(own()))


def eab(**changes: Any) -> dict[str, Any]:
    key = changes.pop("binds", jwk_of(a_key()))
    payload = key if isinstance(key, bytes) else json.dumps(key).encode()
    return a_jws(payload=payload, **{"nonce": GONE, "alg": "HS256", "kid": "eab-1", "signer": mac, **changes})


@pytest.mark.parametrize("alg", ["HS256", "HS384", "HS512"])
def test_a_binding_of_this_key_by_the_holder_of_the_mac_key_is_accepted(alg: str):
    found = jws.parse_eab(eab(alg=alg, signer=lambda c: mac(c, f"sha{alg[2:]}")))
    assert found.kid == "eab-1"
    jws.check_eab(found, NEW_ACCOUNT, MAC)


def test_a_binding_may_write_the_key_with_other_members_and_in_another_order():
    turned = dict(reversed([*jwk_of(a_key()).items(), ("kid", "x")]))
    jws.check_eab(jws.parse_eab(eab(binds=turned)), NEW_ACCOUNT, MAC)


def test_a_binding_by_the_mac_of_rfc_7515_verifies():
    """A.1: its payload is no key, which is found only after the MAC was found right."""
    key = "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow"
    payload = "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ"
    found = Unverified(
        alg="HS256", nonce="", url=URL, kid="x", jwk=None, payload=decode(payload), header={},
        signing_input=f"eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.{payload}".encode(),
        signature=decode("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"),
    )  # fmt: skip
    with pytest.raises(AcmeError, match="another key"):
        jws.check_eab(found, NEW_ACCOUNT, Secret(decode(key)))
    with pytest.raises(AcmeError, match=r"MAC .* wrong"):
        jws.check_eab(found, NEW_ACCOUNT, MAC)


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        (MALFORMED, None),
        (MALFORMED, []),
        (MALFORMED, "a.b.c"),
        (MALFORMED, {}),
        (MALFORMED, eab(nonce=NONCE)),
        (MALFORMED, eab(kid=GONE)),
        (MALFORMED, eab(kid=5)),
        (MALFORMED, eab(kid="")),
        (MALFORMED, eab(jwk=jwk_of(a_key()))),
        (MALFORMED, eab(kid=GONE, jwk=jwk_of(a_key()))),
        (MALFORMED, eab(url=GONE)),
        (MALFORMED, eab(url=URL + "x")),
        (MALFORMED, eab(b64=False)),
        (MALFORMED, {**eab(), "header": {}}),
        (MALFORMED, {**eab(), "signature": "not base64url!"}),
        (MALFORMED, eab(binds=jwk_of(a_key(number=2)))),
        (MALFORMED, eab(binds=b"")),
        (MALFORMED, eab(binds=b"[]")),
        (MALFORMED, eab(binds={})),
        ("unauthorized", eab(signer=lambda c: b"")),
        ("unauthorized", eab(signer=lambda c: mac(c)[:16])),
        ("unauthorized", eab(signer=lambda c: mac(c) + b"\0")),
        ("unauthorized", eab(signer=lambda c: mac(c + b"x"))),
        ("unauthorized", eab(alg="HS512")),
        ("unauthorized", {**eab(), "payload": eab(binds=jwk_of(a_key(number=2)))["payload"]}),
        (BAD_ALG, eab(alg="none", signer=lambda c: b"")),
        (BAD_ALG, eab(alg="ES256", signer=lambda c: sign(a_key(), c))),
        (BAD_ALG, eab(alg="HS1")),
    ],
)
def test_a_binding_that_breaks_a_rule_is_refused(expected: str, found: Any):
    with pytest.raises(AcmeError) as refused:
        jws.check_eab(jws.parse_eab(found), NEW_ACCOUNT, MAC)
    assert refused.value.problem.type == expected
    assert bool(refused.value.problem.algorithms) is (expected == BAD_ALG)


def test_a_binding_in_a_request_without_a_key_binds_nothing():
    with pytest.raises(AcmeError, match="another key"):
        jws.check_eab(jws.parse_eab(eab()), OUTER, MAC)


# ── Anything at all ──

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
TYPES = {MALFORMED, NO_NONCE, BAD_ALG, BAD_KEY}


def outcome(data: bytes) -> str:
    try:
        accept(data)
    except AcmeError as error:
        return error.problem.type
    return "accepted"


@given(st.binary(max_size=300))
def test_any_bytes_are_refused(data: bytes):
    assert outcome(data) == MALFORMED


@given(st.dictionaries(st.sampled_from(["protected", "payload", "signature", "header", "x"]), JSON, max_size=5))
def test_any_envelope_is_refused(found: dict[str, Any]):
    assert outcome(body(found)) == MALFORMED
    for parse in (jws.parse_inner, jws.parse_eab):
        with pytest.raises(AcmeError):
            parse(found)


MEMBERS = st.sampled_from(["alg", "nonce", "url", "kid", "jwk", "crit", "b64", "typ"])


@given(st.dictionaries(MEMBERS, JSON, max_size=3), st.booleans())
def test_any_header_is_accepted_or_refused_by_name(changes: dict[str, Any], with_jwk: bool):
    header = {**a_header(), **changes} if not with_jwk else {**a_header(kid=GONE, jwk=jwk_of(a_key())), **changes}
    assert outcome(body(envelope(header, b"", lambda c: sign(a_key(), c)))) in {*TYPES, "accepted"}


@given(st.dictionaries(st.sampled_from(["kty", "crv", "x", "y", "n", "e", "d"]), JSON, max_size=3))
def test_any_key_is_accepted_or_refused_by_name(changes: dict[str, Any]):
    assert outcome(body(own(jwk={**jwk_of(a_key()), **changes}))) in {MALFORMED, BAD_KEY, "accepted"}


WHOLE = body(GOOD)


@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 3), st.binary(max_size=3))
def test_a_request_that_was_tampered_with_is_refused_unless_it_still_says_the_same(place, cut, put):
    data = WHOLE[:place] + put + WHOLE[place + cut :]
    if outcome(data) == "accepted":
        assert jws.parse(data) == jws.parse(WHOLE)
    else:
        assert outcome(data) in TYPES


# ── The nonce of a request that is refused (§6.5) ──


@given(st.binary(max_size=60), st.sampled_from([b"", b'"protected":"', WHOLE[:40]]))
def test_looking_for_a_nonce_never_fails(data: bytes, before: bytes):
    assert isinstance(jws.nonce_in(before + data), str)


@pytest.mark.parametrize("data", [b"", b"{}", b"null", b'{"protected":""}', b'{"protected":"A"}', b'{"protected":7}'])
def test_where_there_is_no_nonce_none_is_seen(data: bytes):
    assert jws.nonce_in(data) == ""


@pytest.mark.parametrize("data", [WHOLE, WHOLE[:-1], b" " + WHOLE, WHOLE + b"}", b"\xef\xbb\xbf" + WHOLE])
def test_a_nonce_is_seen_whatever_is_wrong_around_it(data: bytes):
    assert jws.nonce_in(data) == NONCE


@pytest.mark.parametrize("data", [b'"protected"', b'"protected" : ', b'"protected":"', b" ", b'"protected":"\n'])
def test_looking_for_a_nonce_takes_no_longer_than_the_body_is_long(data: bytes):
    assert jws.nonce_in(data * (jws.MAX_BODY // len(data))) == ""
