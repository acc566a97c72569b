"""A sealed secret opens with its key and in its place only; whatever else was done to it, it is refused."""

from __future__ import annotations

import copy
import json
import pickle
import traceback
from dataclasses import asdict, replace

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st
from tests.support.keys import T0, Draws, a_kek, a_keyring
from tests.support.secrets_planted import SEALED

from holdfast.errors import KeyMissing, KeyUnusable, UserError
from holdfast.keyring import Kek, Keyring, Sealed, check_box, derive, new_kek, opens
from holdfast.secret import Secret

SENTINEL = SEALED
PLACE = {"table": "secrets", "row": "secret_1", "column": "box"}


def seal(keyring: Keyring, content: bytes = SENTINEL) -> Sealed:
    return keyring.seal(Secret(content), **PLACE)


# ── Round trip ──


@given(content=st.binary(max_size=5000), row=st.text(), column=st.text(), table=st.text())
def test_what_was_sealed_opens_again(content: bytes, table: str, row: str, column: str):
    keyring = a_keyring()
    sealed = keyring.seal(Secret(content), table=table, row=row, column=column)
    assert keyring.open(sealed, table=table, row=row, column=column) == Secret(content)


@given(content=st.binary(min_size=4, max_size=200))
def test_no_part_of_what_is_stored_holds_the_content(content: bytes):
    sealed = seal(a_keyring(), content)
    assert content not in sealed.box
    assert content not in sealed.wrapped


def test_the_same_secret_sealed_twice_shares_nothing():
    """Neither a nonce nor a data key is ever used twice."""
    keyring = a_keyring()
    pieces = [(s.wrapped[:12], s.box[:12], s.wrapped[12:], s.box[12:]) for s in map(seal, [keyring] * 500)]
    assert all(len(set(column)) == 500 for column in zip(*pieces, strict=True))
    assert not {p[0] for p in pieces} & {p[1] for p in pieces}


def test_the_same_random_numbers_give_the_same_box():
    """So a simulation that is run again writes the same rows."""
    assert seal(a_keyring()) == seal(a_keyring())


def test_what_is_stored_can_be_opened_by_hand_and_every_secret_has_a_data_key_of_its_own():
    """Pins the format: rows outlive programs. AES-256-GCM; nonce, then ciphertext; a JSON list is authenticated."""
    kek = a_kek()
    keyring = a_keyring(kek)
    data_keys = {kek.key.reveal()}
    for _ in range(20):
        sealed = seal(keyring)
        about = f'["holdfast/1", "wrap", "{kek.id}", "secrets", "secret_1", "box"]'.encode()
        data_key = AESGCM(kek.key.reveal()).decrypt(sealed.wrapped[:12], sealed.wrapped[12:], about)
        about = b'["holdfast/1", "box", "secrets", "secret_1", "box"]'
        assert AESGCM(data_key).decrypt(sealed.box[:12], sealed.box[12:], about) == SENTINEL
        data_keys.add(data_key)
    assert len(data_keys) == 21


@pytest.mark.parametrize("part", ["table", "row", "column"])
def test_the_box_itself_is_bound_to_its_place_even_if_two_had_the_same_data_key(part: str):
    elsewhere = {**PLACE, part: "other"}
    box = a_keyring().seal(Secret(SENTINEL), **PLACE).box
    theirs = a_keyring().seal(Secret(SENTINEL), **elsewhere)  # the same draws again, so the same data key
    assert theirs.box != box
    with pytest.raises(KeyUnusable):
        a_keyring().open(replace(theirs, box=box), **elsewhere)


def test_a_box_has_the_size_that_was_promised():
    sealed = seal(a_keyring())
    assert len(sealed.wrapped) == 12 + 32 + 16
    assert len(sealed.box) == 12 + len(SENTINEL) + 16


# ── What is refused ──


def test_a_change_of_any_bit_of_the_wrap_or_the_box_is_refused():
    keyring = a_keyring()
    sealed = seal(keyring)
    for name in ("wrapped", "box"):
        before: bytes = getattr(sealed, name)
        for bit in range(len(before) * 8):
            after = bytearray(before)
            after[bit // 8] ^= 1 << bit % 8
            with pytest.raises(KeyUnusable):
                keyring.open(replace(sealed, **{name: bytes(after)}), **PLACE)


@pytest.mark.parametrize("name", ["wrapped", "box"])
def test_a_cut_or_lengthened_wrap_or_box_is_refused(name: str):
    keyring = a_keyring()
    sealed = seal(keyring)
    before: bytes = getattr(sealed, name)
    for after in [*(before[:n] for n in range(len(before))), before + b"\0", b"\0" + before]:
        with pytest.raises(KeyUnusable):
            keyring.open(replace(sealed, **{name: after}), **PLACE)


def test_a_change_of_any_character_of_the_key_id_is_refused():
    keyring = a_keyring()
    sealed = seal(keyring)
    for n in range(len(sealed.kek_id)):
        changed = f"{sealed.kek_id[:n]}~{sealed.kek_id[n + 1 :]}"
        with pytest.raises(KeyMissing, match=changed):
            keyring.open(replace(sealed, kek_id=changed), **PLACE)


def test_a_row_that_names_another_key_we_hold_is_refused():
    old, new = a_kek(1), a_kek(2)
    keyring = a_keyring(new, old)
    sealed = seal(keyring)
    with pytest.raises(KeyUnusable):
        keyring.open(replace(sealed, kek_id=old.id), **PLACE)


def test_the_id_of_the_key_is_authenticated_not_only_looked_up():
    """One key under two ids: a wrap made under the first id does not open under the second."""
    first = a_kek()
    second = replace(first, id="kek_other")
    sealed = seal(a_keyring(first))
    with pytest.raises(KeyUnusable):
        a_keyring(second, first).open(replace(sealed, kek_id=second.id), **PLACE)


@pytest.mark.parametrize("part", ["table", "row", "column"])
def test_a_sealed_secret_does_not_open_in_another_place(part: str):
    keyring = a_keyring()
    with pytest.raises(KeyUnusable):
        keyring.open(seal(keyring), **{**PLACE, part: "other"})


@given(a=st.tuples(st.text(), st.text(), st.text()), b=st.tuples(st.text(), st.text(), st.text()))
def test_no_two_places_look_alike(a: tuple[str, str, str], b: tuple[str, str, str]):
    keyring = a_keyring()
    sealed = keyring.seal(Secret(SENTINEL), table=a[0], row=a[1], column=a[2])
    if a == b:
        return
    with pytest.raises(KeyUnusable):
        keyring.open(sealed, table=b[0], row=b[1], column=b[2])


def test_moving_a_separator_between_the_parts_of_a_place_is_refused():
    keyring = a_keyring()
    sealed = keyring.seal(Secret(SENTINEL), table="ab", row="c", column='d","e')
    for table, row, column in [("a", "bc", 'd","e'), ("ab", 'c","d', "e"), ("abc", "", 'd","e')]:
        with pytest.raises(KeyUnusable):
            keyring.open(sealed, table=table, row=row, column=column)


@pytest.mark.parametrize("names", [("wrapped",), ("box",), ("wrapped", "box"), ("kek_id", "wrapped", "box")])
def test_two_rows_that_were_swapped_are_refused_in_whole_and_in_part(names: tuple[str, ...]):
    keyring = a_keyring()
    mine = keyring.seal(Secret(b"mine"), **{**PLACE, "row": "secret_a"})
    theirs = keyring.seal(Secret(b"theirs"), **{**PLACE, "row": "secret_b"})
    swapped = replace(mine, **{name: getattr(theirs, name) for name in names})
    with pytest.raises(KeyUnusable):
        keyring.open(swapped, **{**PLACE, "row": "secret_a"})


def test_a_wrap_cannot_be_passed_off_as_a_box_nor_as_a_check_value():
    """What is authenticated says what it is for: a data key never comes out as the content of a secret."""
    kek = a_kek()
    keyring = a_keyring(kek)
    sealed = seal(keyring)
    with pytest.raises(KeyUnusable):
        keyring.open(replace(sealed, box=sealed.wrapped), **PLACE)
    with pytest.raises(KeyUnusable):
        keyring.open(replace(sealed, wrapped=check_box(kek, Draws())), **PLACE)
    assert not opens(kek.key, kek.id, sealed.wrapped)


def test_another_key_under_the_same_id_is_refused():
    sealed = seal(a_keyring())
    impostor = replace(a_kek(2), id=sealed.kek_id)
    with pytest.raises(KeyUnusable):
        a_keyring(impostor).open(sealed, **PLACE)


def test_a_damaged_row_does_not_touch_the_others():
    keyring = a_keyring()
    damaged, sound = seal(keyring), seal(keyring)
    with pytest.raises(KeyUnusable):
        keyring.open(replace(damaged, box=b""), **PLACE)
    assert keyring.open(sound, **PLACE) == Secret(SENTINEL)


def test_refusals_name_the_row_and_the_key_and_say_what_to_do():
    unusable, missing = KeyUnusable("secrets secret_1", "kek_9"), KeyMissing("kek_9")
    assert str(unusable).startswith("secrets secret_1 does not open with key kek_9")
    assert "kek_9" in str(missing)
    for error in (unusable, missing):
        assert isinstance(error, UserError)
        assert error.hint
    assert not isinstance(missing, KeyUnusable), "a key that is elsewhere is no reason to replace a secret"


# ── Rotation ──


@given(content=st.binary(max_size=200))
def test_a_rewrapped_secret_opens_under_the_new_key_alone(content: bytes):
    old, new = a_kek(1), a_kek(2)
    before = seal(a_keyring(old), content)
    after = a_keyring(new, old).rewrap(before, **PLACE)
    assert (after.kek_id, after.box) == (new.id, before.box)
    assert a_keyring(new).open(after, **PLACE) == Secret(content)
    with pytest.raises(KeyMissing):
        a_keyring(old).open(after, **PLACE)


def test_during_a_rotation_both_keys_open_and_the_first_seals():
    old, new = a_kek(1), a_kek(2)
    before = seal(a_keyring(old))
    both = a_keyring(new, old)
    assert both.open(before, **PLACE) == Secret(SENTINEL)
    assert seal(both).kek_id == new.id
    assert (both.current, both.previous) == (new, (old,))


@pytest.mark.parametrize("part", ["table", "row", "column"])
def test_rewrapping_does_not_launder_a_swapped_row(part: str):
    old, new = a_kek(1), a_kek(2)
    sealed = seal(a_keyring(old))
    with pytest.raises(KeyUnusable):
        a_keyring(new, old).rewrap(sealed, **{**PLACE, part: "other"})


def test_rewrapping_a_damaged_wrap_is_refused():
    old, new = a_kek(1), a_kek(2)
    sealed = replace(seal(a_keyring(old)), wrapped=bytes(60))
    with pytest.raises(KeyUnusable):
        a_keyring(new, old).rewrap(sealed, **PLACE)


def test_a_keyring_is_never_empty():
    with pytest.raises(ValueError, match="at least one key"):
        Keyring([], Draws())
    with pytest.raises(ValueError, match="at least one key"):
        a_keyring().adopt([])


# ── Keys ──


def test_a_check_value_tells_the_right_key_from_a_wrong_one():
    kek = a_kek()
    box = check_box(kek, Draws())
    assert opens(kek.key, kek.id, box)
    assert not opens(a_kek(2).key, kek.id, box)
    assert not opens(kek.key, "kek_other", box)
    assert not opens(kek.key, kek.id, b"")
    assert not opens(kek.key, kek.id, box[:-1] + bytes([box[-1] ^ 1]))


def test_a_passphrase_gives_the_key_that_scrypt_promises():
    """Counted once with another program: openssl kdf -keylen 32 … SCRYPT, n:32768 r:8 p:1."""
    expected = "a6e1c5f30b25e0fe6d47724036c0a579988e41eb3ed39298d8fa076d41293064"
    assert derive(Secret("correct horse"), b"0123456789abcdef").reveal().hex() == expected


def test_the_salt_and_every_letter_of_the_passphrase_count():
    keys = [derive(Secret(word), salt) for word in ("a", "A", "a ", "ä") for salt in (b"1" * 16, b"2" * 16)]
    assert len({key.reveal() for key in keys}) == 8
    assert derive(Secret("\udcff"), b"1" * 16), "any bytes can come from the environment"


def test_new_keys_differ_and_have_256_bits():
    draws = Draws()
    keks = [new_kek(draws, T0) for _ in range(50)]
    assert len({kek.key.reveal() for kek in keks}) == len({kek.id for kek in keks}) == 50
    assert all(len(kek.key.reveal()) == 32 for kek in keks)
    with pytest.raises(ValueError, match="32 bytes"):
        Kek(id="kek_1", key=Secret(b"short"), created_at=T0)


# ── Nothing is printed ──


def test_no_way_of_printing_shows_a_key_or_a_secret():
    kek = a_kek()
    keyring = a_keyring(kek)
    sealed = seal(keyring)
    secret = keyring.open(sealed, **PLACE)
    key = kek.key.reveal()
    for thing in (kek, keyring, sealed, secret, asdict(kek), vars(keyring), [keyring, secret], {"k": kek}):
        for shown in (str(thing), repr(thing), f"{thing}", f"{thing!r:.5000}"):
            assert SENTINEL.decode() not in shown
            assert key.hex() not in shown
            assert repr(key)[2:-1] not in shown
    assert kek.id in repr(keyring)


def test_no_traceback_shows_a_key_or_a_secret_even_with_local_variables():
    """The frames of this test aside, which hold them on purpose."""
    kek = a_kek()
    keyring = a_keyring(kek)
    sealed = seal(keyring)
    with pytest.raises(KeyUnusable) as refusal:
        keyring.open(replace(sealed, wrapped=sealed.wrapped[:-1] + b"\0"), **PLACE)
    frames = traceback.TracebackException.from_exception(refusal.value, capture_locals=True)
    ours = [frame for frame in frames.stack if "keyring.py" in frame.filename and "test_" not in frame.filename]
    assert ours
    shown = str([frame.locals for frame in ours])
    assert "key=***" in shown
    assert repr(kek.key.reveal())[2:-1] not in shown


def test_nothing_that_holds_a_key_can_be_pickled_or_written_as_json():
    kek = a_kek()
    for thing in (kek, a_keyring(kek), copy.copy(kek)):
        with pytest.raises(TypeError):
            pickle.dumps(thing)
        with pytest.raises(TypeError):
            json.dumps(thing)
