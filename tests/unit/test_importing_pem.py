"""Loose PEM files find each other, whatever they are called; a folder is never left, and never waited for."""

import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from tests.support.foreign_layouts import DAY, NOW, SmallCa, key_pem, put

from holdfast.importing import pem
from holdfast.importing.found import FoundInFolder
from holdfast.ports import Unreadable
from holdfast.world import LocalTree

CA = SmallCa()


def _read(folder: Path, *files: str) -> FoundInFolder:
    return pem.read([(LocalTree(folder), list(files) or None)], NOW)


def test_certificate_key_and_chain_are_matched_by_what_they_are(tmp_path: Path) -> None:
    a, b = CA.issue("a.example.com"), CA.issue("b.example.com")
    put(tmp_path / "one/x.pem", a.leaf + b.leaf)
    put(tmp_path / "two/y.txt", b.key)
    put(tmp_path / "two/z.txt", a.key + "\n" + a.issuer)
    put(tmp_path / "notes.md", "nothing of interest")
    found = _read(tmp_path)
    assert [each.name for each in found.certificates] == ["a.example.com", "b.example.com"]
    assert [each.chain.decode() for each in found.certificates] == [a.chain, b.chain]
    assert [each.key.reveal().decode() for each in found.certificates] == [a.key, b.key]
    assert found.problems == ()


def test_a_certificate_without_its_key_is_told_and_the_others_are_found(tmp_path: Path) -> None:
    a, b = CA.issue("a.example.com"), CA.issue("b.example.com")
    put(tmp_path / "a.pem", a.leaf + a.key)
    put(tmp_path / "b.pem", b.leaf)
    found = _read(tmp_path)
    assert [each.name for each in found.certificates] == ["a.example.com"]
    [problem] = found.problems
    assert problem.file == str(tmp_path / "b.pem")
    assert "No key" in problem.problem


def test_of_several_for_the_same_names_the_longest_living_is_taken(tmp_path: Path) -> None:
    old, new = CA.issue("a.example.com", begins=-60 * DAY), CA.issue("a.example.com", begins=-1 * DAY)
    put(tmp_path / "old.pem", old.leaf + old.key)
    put(tmp_path / "new.pem", new.leaf + new.key)
    found = _read(tmp_path)
    assert [each.serial for each in found.certificates] == [new.serial]
    assert "old.pem is older than" in found.notes[0]


def test_certificates_with_the_same_first_name_get_names_of_their_own(tmp_path: Path) -> None:
    for number, names in enumerate([("a.example.com",), ("a.example.com", "b.example.com")]):
        pair = CA.issue(*names)
        put(tmp_path / f"{number}.pem", pair.leaf + pair.key)
    assert {each.name for each in _read(tmp_path).certificates} == {"a.example.com", "a.example.com-2"}


def test_files_may_be_named_one_by_one(tmp_path: Path) -> None:
    pair = CA.issue("a.example.com")
    put(tmp_path / "a.crt", pair.chain)
    put(tmp_path / "a.key", pair.key)
    put(tmp_path / "other.key", "-----BEGIN PRIVATE KEY-----\nbroken\n-----END PRIVATE KEY-----\n")
    assert len(_read(tmp_path, "a.crt", "a.key").certificates) == 1
    assert _read(tmp_path, "a.crt", "a.key").problems == ()
    assert _read(tmp_path, "missing").problems[0].problem == "There is no such file."


def test_an_encrypted_key_among_many_files_is_told(tmp_path: Path) -> None:
    put(tmp_path / "a.key", key_pem(ec.generate_private_key(ec.SECP256R1()), b"secret"))
    [problem] = _read(tmp_path).problems
    assert problem.problem == "The key is encrypted."


# ── The folder ──


def test_a_tree_reads_what_is_in_it_and_nothing_else(tmp_path: Path) -> None:
    put(tmp_path / "out", "secret")
    put(tmp_path / "in/a/file", "text")
    (tmp_path / "in/inner").symlink_to("a/file")
    (tmp_path / "in/outer").symlink_to(tmp_path / "out")
    (tmp_path / "in/folder").symlink_to(tmp_path)
    (tmp_path / "in/loop").symlink_to("loop")
    tree = LocalTree(tmp_path / "in")
    assert tree.names("") == ["a", "folder", "inner", "loop", "outer"]
    assert (tree.read("a/file", 10), tree.read("inner", 10), tree.read("nothing", 10)) == (b"text", b"text", None)
    assert (tree.names("a/file"), tree.names("nothing")) == (None, None)
    for path in ("outer", "../out", "folder/out", str(tmp_path / "out"), "loop", "a", "bad\0name"):
        with pytest.raises(Unreadable):
            tree.read(path, 10)
    with pytest.raises(Unreadable):
        tree.names("folder")
    with pytest.raises(Unreadable, match="longer than 3"):
        tree.read("a/file", 3)


def test_a_tree_may_be_given_by_a_link(tmp_path: Path) -> None:
    put(tmp_path / "real/file", "text")
    (tmp_path / "link").symlink_to("real")
    assert LocalTree(tmp_path / "link").read("file", 10) == b"text"


def test_a_pipe_in_a_folder_does_not_hold_the_import_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    [problem] = _read(tmp_path).problems
    assert "not a plain file" in problem.problem
