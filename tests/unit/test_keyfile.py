"""The key file is private, written whole, and never read with one eye closed."""

from __future__ import annotations

import base64
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.keys import a_kek

from holdfast import keyring
from holdfast.errors import StoreRefused
from holdfast.world import LocalFiles

FILES = LocalFiles()
PATH = Path("data/holdfast.key")


@given(seeds=st.lists(st.integers(0, 99), unique=True, max_size=5))
def test_what_was_written_is_read_again_in_the_same_order(seeds: list[int]):
    keks = [a_kek(seed) for seed in seeds]
    assert keyring.parse_key_file(keyring.render_key_file(keks), PATH) == keks


def test_the_first_line_is_the_version_and_each_key_has_a_line():
    kek = a_kek()
    lines = [line for line in keyring.render_key_file([kek]).decode().splitlines() if not line.startswith("#")]
    key = base64.b64encode(kek.key.reveal()).decode()
    assert lines == ["holdfast-keys 1", f"{kek.id} 2026-01-02T03:04:05+00:00 {key}"]


def test_the_file_is_made_private_and_only_once(tmp_path: Path):
    path = tmp_path / "deep" / "holdfast.key"
    first, second = a_kek(1), a_kek(2)
    assert keyring.create_key_file(FILES, path, first) == [first]
    assert keyring.create_key_file(FILES, path, second) == [first], "the one that was quicker counts"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    keyring.rewrite_key_file(FILES, path, [second, first])
    assert keyring.read_key_file(FILES, path) == [second, first]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(path.parent) == ["holdfast.key"], "no copy of a key is left behind"


def test_a_file_that_is_not_there_is_no_error(tmp_path: Path):
    assert keyring.read_key_file(FILES, tmp_path / "none") is None


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o601, 0o666, 0o777])
def test_a_file_that_others_can_reach_is_refused_with_the_remedy(tmp_path: Path, mode: int):
    path = tmp_path / "holdfast.key"
    keyring.create_key_file(FILES, path, a_kek())
    path.chmod(mode)
    with pytest.raises(StoreRefused, match=f"{path} is open to other users .*0{mode:o}") as refusal:
        keyring.read_key_file(FILES, path)
    assert f"chmod 600 {path}" in refusal.value.hint


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_private_file_is_accepted(tmp_path: Path, mode: int):
    path = tmp_path / "holdfast.key"
    keyring.create_key_file(FILES, path, a_kek())
    path.chmod(mode)
    assert keyring.read_key_file(FILES, path) == [a_kek()]


GOOD = keyring.render_key_file([a_kek(1), a_kek(2)])
KEY_LINE = GOOD.splitlines()[-1]
DAMAGES = {
    "empty": b"",
    "another version": GOOD.replace(b"keys 1", b"keys 2"),
    "no version": GOOD.partition(b"\n")[2],
    "not text": b"\xff\xfe" + GOOD,
    "a short key": GOOD[:-8] + b"\n",
    "not base64": GOOD.replace(KEY_LINE, KEY_LINE[:-4] + b"!!!!"),
    "no date": GOOD.replace(b"2026-01-02", b"yesterday"),
    "a date without a zone cannot be told from another": GOOD.replace(b"+00:00", b""),
    "a bare key": GOOD.replace(KEY_LINE, KEY_LINE.split()[2]),
    "one word more": GOOD.replace(KEY_LINE, KEY_LINE + b" x"),
    "the same id twice": GOOD + KEY_LINE,
}


@pytest.mark.parametrize("content", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_file_is_refused_by_name_and_without_quoting_it(content: bytes):
    with pytest.raises(StoreRefused, match=r"data/holdfast\.key is damaged") as refusal:
        keyring.parse_key_file(content, PATH)
    shown = f"{refusal.value} {refusal.value.hint} {refusal.value.__cause__}"
    for kek in (a_kek(1), a_kek(2)):
        assert base64.b64encode(kek.key.reveal()).decode()[:8] not in shown
    assert refusal.value.__context__ is None or refusal.value.__suppress_context__


@given(cut=st.integers(0, len(GOOD) - 2))
def test_a_file_that_was_cut_off_never_yields_a_wrong_key(cut: int):
    """At a line's end it may look whole, with fewer keys; a key that is read is always a whole one."""
    try:
        keks = keyring.parse_key_file(GOOD[:cut], PATH)
    except StoreRefused:
        return
    assert keks == [a_kek(1), a_kek(2)][: len(keks)]


def test_a_folder_in_the_place_of_the_file_is_a_sentence(tmp_path: Path):
    with pytest.raises(StoreRefused, match="cannot be read: Is a directory"):
        keyring.read_key_file(FILES, tmp_path)
    with pytest.raises(StoreRefused, match="cannot be written: Is a directory"):
        keyring.rewrite_key_file(FILES, tmp_path, [a_kek()])
    (tmp_path / "plain").write_text("x")
    with pytest.raises(StoreRefused, match="Not a directory"):
        keyring.create_key_file(FILES, tmp_path / "plain" / "holdfast.key", a_kek())
