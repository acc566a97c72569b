"""Nonces are ours, young and used once, whatever the clock does; the note in one comes back as it was."""

from __future__ import annotations

import string
from datetime import UTC, datetime, timedelta
from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.keys import T0, Draws

from holdfast.acme import nonces
from holdfast.acme.nonces import MAX_NOTE, SKEW, NonceKey, Redeemed
from holdfast.core.base64url import encode
from holdfast.pki.strict_json import decode

KEY = NonceKey(7, b"k" * 32)
OTHER = NonceKey(8, b"o" * 32)
KEYS = {7: KEY, 8: OTHER}
LIFE = timedelta(hours=1)
SECOND = timedelta(seconds=1)


def a_nonce(*, at: datetime = T0, note: str = "", key: NonceKey = KEY, seed: int = 1) -> str:
    return nonces.mint_nonce(key, at, Draws(seed), note)


def raw_of(text: str) -> bytes:
    return decode(text)


# ── Made and opened ──


@given(st.text(string.printable, max_size=MAX_NOTE))
def test_a_note_comes_back_as_it_was(note: str):
    opened = nonces.open_nonce(a_nonce(note=note), KEYS, T0, LIFE)
    assert opened is not None
    assert opened.note == note


def test_a_nonce_is_base64url_and_no_two_are_alike():
    draws = Draws()
    made = {nonces.mint_nonce(KEY, T0, draws) for _ in range(1000)}
    assert len(made) == 1000
    assert set("".join(made)) <= set(string.ascii_letters + string.digits + "-_")


def test_a_note_that_is_too_long_or_not_ascii_is_a_mistake_of_ours():
    with pytest.raises(ValueError, match="at most 40"):
        a_nonce(note="x" * 41)
    with pytest.raises(UnicodeEncodeError):
        a_nonce(note="ä")


def test_nonces_of_every_key_that_is_known_open_and_no_others():
    assert nonces.open_nonce(a_nonce(key=OTHER), KEYS, T0, LIFE) is not None
    assert nonces.open_nonce(a_nonce(key=OTHER), {7: KEY}, T0, LIFE) is None
    assert nonces.open_nonce(a_nonce(key=NonceKey(7, b"x" * 32)), KEYS, T0, LIFE) is None
    assert nonces.open_nonce(a_nonce(key=NonceKey(7, OTHER.secret)), KEYS, T0, LIFE) is None


@pytest.mark.parametrize(
    ("age", "opens"),
    [(timedelta(0), True), (LIFE, True), (LIFE + SECOND, False), (-SKEW * SECOND, True), (-(SKEW + 1) * SECOND, False)],
)
def test_a_nonce_opens_during_its_life_and_when_another_clock_is_a_little_ahead(age: timedelta, opens: bool):
    assert (nonces.open_nonce(a_nonce(), KEYS, T0 + age, LIFE) is not None) is opens


@pytest.mark.parametrize("note", ["", "cert_01k8zzzzzzzzzzzzzz"])
def test_a_nonce_with_any_bit_changed_does_not_open(note: str):
    raw = raw_of(a_nonce(note=note))
    for place in range(len(raw)):
        for bit in range(8):
            changed = raw[:place] + bytes([raw[place] ^ 1 << bit]) + raw[place + 1 :]
            assert nonces.open_nonce(encode(changed), KEYS, T0, LIFE) is None


@pytest.mark.parametrize("cut", range(1, 38))
def test_a_nonce_that_was_cut_or_grew_does_not_open(cut: int):
    raw = raw_of(a_nonce())
    assert nonces.open_nonce(encode(raw[:-cut]), KEYS, T0, LIFE) is None
    assert nonces.open_nonce(encode(raw[cut:]), KEYS, T0, LIFE) is None
    assert nonces.open_nonce(encode(raw + bytes(cut)), KEYS, T0, LIFE) is None


def test_a_nonce_of_a_format_to_come_does_not_open():
    content = b"\2" + raw_of(a_nonce())[1:-16]
    made = blake2b(content, key=KEY.secret, digest_size=16, person=b"holdfast nonce").digest()
    assert nonces.open_nonce(encode(content + made), KEYS, T0, LIFE) is None


def test_another_spelling_of_a_nonce_does_not_open():
    text = a_nonce()
    assert len(text) % 4 == 2, "there are unused bits to play with"
    others = [text + "=", text + "==", text[:-1] + chr(ord(text[-1]) + 1), text + "\n", " " + text]
    assert [nonces.open_nonce(other, KEYS, T0, LIFE) for other in others] == [None] * 5


@given(st.text(max_size=120) | st.binary(max_size=90).map(encode))
def test_any_text_is_no_nonce(text: str):
    assert nonces.open_nonce(text, KEYS, T0, LIFE) is None


def test_a_key_does_not_show_its_secret_and_is_not_too_short():
    assert "kkk" not in repr(KEY)
    with pytest.raises(ValueError, match="16 to 64"):
        NonceKey(1, b"short")
    with pytest.raises(ValueError, match="32 bits"):
        NonceKey(2**32, b"k" * 32)


# ── Redeemed ──


def test_a_nonce_is_redeemed_once():
    redeemed, one, two = Redeemed(LIFE), raw_of(a_nonce(seed=1)), raw_of(a_nonce(seed=2))
    assert redeemed.redeem(one, T0)
    assert not redeemed.redeem(one, T0)
    assert redeemed.redeem(two, T0)
    assert not redeemed.redeem(one, T0 + LIFE)
    assert len(redeemed) == 2


def test_what_is_too_old_to_open_is_forgotten_and_what_is_not_is_kept():
    redeemed = Redeemed(LIFE)
    for minute in range(600):
        now = T0 + minute * timedelta(minutes=1)
        assert redeemed.redeem(raw_of(a_nonce(at=now, seed=minute)), now)
        assert len(redeemed) <= 60 + 5
        old = max(0, minute - 59)
        assert not redeemed.redeem(raw_of(a_nonce(at=T0 + old * timedelta(minutes=1), seed=old)), now)


def test_memory_is_bounded_and_the_price_is_paid_by_the_oldest():
    redeemed = Redeemed(LIFE, limit=100)
    late = T0 + timedelta(minutes=50)
    for seed in range(90):
        assert redeemed.redeem(raw_of(a_nonce(seed=seed)), T0)
    for seed in range(100, 150):
        assert redeemed.redeem(raw_of(a_nonce(at=late, seed=seed)), late)
    assert len(redeemed) <= 100
    assert not redeemed.redeem(raw_of(a_nonce(seed=1)), late), "it was forgotten, and is refused all the same"
    assert not redeemed.redeem(raw_of(a_nonce(seed=95)), late), "nobody can tell it from those"
    assert not redeemed.redeem(raw_of(a_nonce(at=late, seed=149)), late)
    assert redeemed.redeem(raw_of(a_nonce(at=late, seed=200)), late)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(-200, 200)), max_size=40),
    st.integers(1, 120),
    st.integers(2, 20),
)
def test_however_the_clock_jumps_no_nonce_is_redeemed_twice(steps, life, limit):
    redeemed, used, now = Redeemed(timedelta(seconds=life), limit), set(), datetime(2026, 1, 1, tzinfo=UTC)
    made = [nonces.mint_nonce(KEY, now + place * 20 * SECOND, Draws(place)) for place in range(10)]
    for which, jump in steps:
        now += jump * SECOND
        opened = nonces.open_nonce(made[which], KEYS, now, timedelta(seconds=life))
        if opened is not None and redeemed.redeem(opened.raw, now):
            assert which not in used
            used.add(which)
        assert len(redeemed) <= limit


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=30).map(sorted), st.integers(0, 60))
def test_with_a_clock_that_only_grows_every_nonce_that_opens_is_redeemed_the_first_time(moments, wait):
    redeemed = Redeemed(LIFE)
    for seed, moment in enumerate(moments):
        text = a_nonce(at=T0 + moment * SECOND, seed=seed)
        now = T0 + (moment + wait * 60) * SECOND
        opened = nonces.open_nonce(text, KEYS, now, LIFE)
        assert opened is not None
        assert redeemed.redeem(opened.raw, now)
        assert not redeemed.redeem(opened.raw, now)
