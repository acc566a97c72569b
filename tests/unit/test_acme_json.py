"""What clients send is read in one way only, quickly, and anything else is malformed; problems survive being stored."""

from __future__ import annotations

import json
import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import base64url
from holdfast.core.own_ca.problem import PREFIX, STATUS, AcmeError, Problem, SubProblem
from holdfast.pki import strict_json

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
SCALARS = st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False) | TEXTS
VALUES = st.recursive(
    SCALARS.filter(lambda value: value not in (float("inf"), float("-inf"))),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=40,
)


def depth(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


def refusal(data: bytes) -> Problem:
    with pytest.raises(AcmeError) as refused:
        strict_json.loads(data)
    return refused.value.problem


# ── JSON ──


@given(VALUES, st.booleans())
def test_a_json_value_is_read_as_everybody_reads_it(value, ascii_only):
    text = json.dumps(value, ensure_ascii=ascii_only).encode()
    if depth(value) <= strict_json.MAX_DEPTH:
        assert strict_json.loads(text) == value
    else:
        assert refusal(text).type == "malformed"


@given(st.binary(max_size=200) | st.text('{}[]",:\\u0dD8. eE-+19truefalsn\ufeff', max_size=60).map(str.encode))
def test_any_bytes_are_a_value_or_malformed(data):
    try:
        found = strict_json.loads(data)
    except AcmeError as error:
        found = error.problem
    assert (found.type, found.status) == ("malformed", 400) if isinstance(found, Problem) else found == json.loads(data)


LIMIT = strict_json.MAX_SIZE
REFUSED = {
    "nothing": b"",
    "white space": b" \n",
    "two values": b"{} {}",
    "a word": b"hello",
    "a trailing comma": b'{"a":1,}',
    "a comment": b"{} // well",
    "single quotes": b"{'a':1}",
    "a duplicate member": b'{"a":1,"a":1}',
    "a duplicate member, spelt otherwise": b'{"a":1,"\\u0061":2}',
    "a duplicate member within": b'{"b":[{"a":1,"a":2}]}',
    "NaN": b'{"a":NaN}',
    "Infinity": b"[Infinity]",
    "minus Infinity": b"[-Infinity]",
    "a float beyond all": b"[1e999]",
    "an integer of 17 digits": b"[10000000000000000]",
    "an integer beyond 2^53": b"[9007199254740992]",
    "a negative one": b"[-9007199254740992]",
    "an integer of 60000 digits": b"[" + b"9" * 60000 + b"]",
    "a byte order mark": b"\xef\xbb\xbf{}",
    "UTF-16": "{}".encode("utf-16"),
    "UTF-16 without a mark": "{}".encode("utf-16-le"),
    "a stray octet": b'{"a":"\xff"}',
    "an overlong NUL": b'{"a":"\xc0\x80"}',
    "a surrogate in UTF-8": b'{"a":"\xed\xa0\x80"}',
    "half a pair": b'{"a":"\\ud800"}',
    "the other half": b'{"a":"\\udc00"}',
    "half a pair as a name": b'{"\\uD800":1}',
    "half a pair deep within": b'[[{"a":[1,"\\ud83d "]}]]',
    "a NUL": b'{"a":"b\\u0000"}',
    "a raw control character": b'{"a":"\n"}',
    "an unknown escape": b'{"a":"\\x41"}',
    "an open text": b'{"a":"',
    "a text that ends in a backslash": b'["\\',
    "17 levels": b"[" * 17 + b"]" * 17,
    "17 levels of two kinds": b'{"a":[' * 8 + b"[" + b"]" + b"]}" * 8,
    "17 levels beside a text with brackets": b'["]]]]]]]]",' + b"[" * 16 + b"]" * 16 + b"]",
    "a bomb": b"[" * (LIMIT - 1),
    "a bomb of objects": b'{"a":' * (LIMIT // 6),
    "a bomb in front of an open text": b"[" * 20000 + b'"' + b"]" * 20000,
    "closing brackets only": b"]" * 1000,
    "brackets that do not match": b"[}" * 1000,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_strictly_json_is_malformed(name: str):
    assert refusal(REFUSED[name]).to_json().keys() == {"type", "detail", "status"}
    assert refusal(REFUSED[name]).type == "malformed"
    assert refusal(REFUSED[name]).status == 400


def test_a_body_over_the_limit_is_too_large_and_one_at_the_limit_is_not():
    assert strict_json.loads(b" " * (LIMIT - 2) + b"{}") == {}
    assert (refusal(b" " * (LIMIT - 1) + b"{}").type, refusal(b" " * (LIMIT - 1) + b"{}").status) == ("malformed", 413)


@pytest.mark.parametrize("text", [b"[]", b'"a"', b"1", b"null", b"true"])
def test_where_an_object_is_needed_no_other_value_will_do(text: bytes):
    with pytest.raises(AcmeError, match="is not a JSON object"):
        strict_json.loads_object(text)


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":"[[[[[[[[[[[[[[[[[[[["}',
        b'{"a":"\\"[[[[[[[[[[[[[[[[[[[[\\\\","b":[]}',
        b'["\\\\",["\\\\\\"{{{{{{{{{{{{{{{{{"]]',
        b"[" * 16 + b"]" * 16,
        b"[[]," + b"[" * 15 + b"]" * 16,
        b"[" + b",".join([b"{}"] * 1000) + b"]",
        b'{"emoji":"\\ud83d\\ude00","zero":"\\\\u0000"}',
        b"[9007199254740991,-9007199254740991,1e300,0.5]",
    ],
)
def test_brackets_in_texts_and_many_on_one_level_do_no_harm(text: bytes):
    assert strict_json.loads(text) == json.loads(text)


@given(st.text('[]{}"\\a', max_size=80))
def test_what_passes_the_depth_check_can_never_be_deeper(text: str):
    """Against the obvious way of counting; texts that are open, or brackets that do not match, may be refused early."""
    data = text.encode() + b'{"a":[{"a":[[]]}]}' * 4
    level, deepest = 0, 0
    for found in re.finditer(r'"(?:[^"\\]|\\.)*(?:"|\\?$)|([\[{])|([\]}])', data.decode()):
        level += bool(found[1]) - bool(found[2])
        deepest = max(deepest, level)
    if not strict_json.too_deep(data):
        assert deepest <= strict_json.MAX_DEPTH


PIECES = [b"[", b"[]", b'"', b'"\\', b'\\"', b'"\\"', b'["', b'{"a":', b"{", b"[[]],", b"\\", b"1,", b'"\\u0000",']


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("start", [b"", b"[]" * 17])  # with so many brackets, their depth is looked at
def test_64_kib_of_anything_end_in_a_refusal(start: bytes, piece: bytes):
    assert refusal((start + piece * LIMIT)[:LIMIT]).type == "malformed"


# ── base64url ──


@given(st.binary(max_size=70))
def test_octets_survive_base64url(octets: bytes):
    assert strict_json.decode(base64url.encode(octets)) == octets


@given(st.text(string.ascii_letters + string.digits + "-_", max_size=12) | st.text(max_size=12))
def test_a_text_that_is_base64url_is_the_only_spelling_of_its_octets(text: str):
    try:
        octets = strict_json.decode(text)
    except ValueError:
        return
    assert base64url.encode(octets) == text


NOT_BASE64URL = [
    "A", "AAAAA", "AA==", "AAA=", "AB", "AAB", "AAAAAB", "+A", "/A", "A A", "AA\n", " AA", "AA.", "ÄA", "AAA\0",
    "=", "====",
]  # fmt: skip


@pytest.mark.parametrize("text", NOT_BASE64URL)
def test_padding_other_alphabets_and_unused_bits_are_refused(text: str):
    with pytest.raises(ValueError, match=r"."):
        strict_json.decode(text)


@pytest.mark.parametrize("value", [None, 1, b"AA", ["AA"], {"a": "AA"}])
def test_only_a_text_is_base64url(value: object):
    with pytest.raises(ValueError, match="is a text"):
        strict_json.decode(value)


# ── Problems ──

MORE = {
    "badSignatureAlgorithm": {"algorithms": ("ES256",)},
    "userActionRequired": {"instance": "https://a.example/tos"},
}


@pytest.mark.parametrize("word", STATUS)
def test_every_type_has_a_constructor_of_its_name_and_survives_being_stored(word: str):
    name = re.sub(r"(?<=[a-z])([A-Z]+)", r"_\1", word).lower()
    error = getattr(AcmeError, name)("It went wrong.", **MORE.get(word, {}))
    assert (error.problem.type, error.problem.status, error.status) == (word, STATUS[word], STATUS[word])
    assert error.problem.to_json()["type"] == PREFIX + word
    assert Problem.from_json(json.loads(json.dumps(error.problem.to_json()))) == error.problem


def test_a_problem_is_stored_with_all_that_it_says():
    found = Problem(
        "compound",
        "Two names are wrong.",
        403,
        subproblems=(
            SubProblem("malformed", "Not a name.", ("dns", "_a.example")),
            SubProblem("rejectedIdentifier", "Not ours.", ("ip", "192.0.2.1")),
            SubProblem("caa", "In general."),
        ),
    )
    assert found.to_json() == {
        "type": "urn:ietf:params:acme:error:compound",
        "detail": "Two names are wrong.",
        "status": 403,
        "subproblems": [
            {
                "type": "urn:ietf:params:acme:error:malformed",
                "detail": "Not a name.",
                "identifier": {"type": "dns", "value": "_a.example"},
            },
            {
                "type": "urn:ietf:params:acme:error:rejectedIdentifier",
                "detail": "Not ours.",
                "identifier": {"type": "ip", "value": "192.0.2.1"},
            },
            {"type": "urn:ietf:params:acme:error:caa", "detail": "In general."},
        ],
    }
    assert Problem.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_a_place_that_knows_better_sets_the_status():
    assert AcmeError.unauthorized("Who?", status=401).problem.status == 401


def test_what_the_rfc_wants_in_a_problem_cannot_be_forgotten():
    with pytest.raises(ValueError, match="which algorithms"):
        AcmeError.bad_signature_algorithm("No.")
    with pytest.raises(ValueError, match="which page"):
        AcmeError.user_action_required("Agree first.")
    with pytest.raises(ValueError, match="no ACME error type"):
        Problem("oops", "No.", 400)


def test_when_to_retry_is_for_one_response_and_is_not_stored():
    error = AcmeError.rate_limited("Too many.", retry_after=30)
    assert error.problem.retry_after == 30
    assert Problem.from_json(error.problem.to_json()).retry_after is None
